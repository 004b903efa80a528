//! Int8 kernels for quantized models: int32 accumulators, rounding as in TFLite's reference kernels.
//!
//! The crate that executes a quantized graph calls these kernels one by one. Compiled programs use the products, without
//! requantization (`kernels/int8_product`).
//! Arrays are slices in NHWC layout. Results are bit-identical on every machine and for any number of threads, since
//! integer addition is associative. A constructor returns `None` if an accumulator or product could overflow 32 bits;
//! the caller then falls back to a kernel that defines wrapping or saturation.
//!
//! ```
//! use systole_cpu::int8::{OutputQuantization, Int8Matmul, OutputScale, Int8Isa};
//! use systole_cpu::{Level, ThreadPool};
//! // [1, 2] · [[3, 4], [5, 6]]ᵀ = [11, 17], times 1/2: rounded half away from zero.
//! let output = OutputQuantization { bias: None, scale: OutputScale::Fixed(vec![(1 << 30, 0)]), zero: 0, low: -128, high: 127 };
//! let dense = Int8Matmul::dense(Int8Isa::of(Level::Portable), &[3, 4, 5, 6], 2, 0, &output).unwrap();
//! let mut y = [0i8; 2];
//! dense.run(&ThreadPool::new(1), &[1, 2], &mut y);
//! assert_eq!(y, [6, 9]);
//! ```

mod binary_lut;
mod elementwise;
mod isa;
mod matmul;
mod output_quantization;
mod packed_weights;
mod parallel_blocks;
mod staging;

// Names of the previous version.
systole_ir::renamed! { Along => Int8WindowDim, Depthwise => Int8DepthwiseConv, Likely => FormulaHint, Pairs => BinaryLut, Pool => Int8Pool, Product => Int8Matmul, Scale => OutputScale, Unit => Int8Isa }
#[doc(hidden)]
pub use self::{Int8Add as Addition, OutputQuantization as Output, PoolMode as Pooling};

#[cfg(test)]
mod tests;
mod windows;

pub use binary_lut::{BinaryLut, FormulaHint};
pub use elementwise::{Int8Add, table};
pub use isa::Int8Isa;
pub(crate) use matmul::Int8Gemm;
pub use matmul::Int8Matmul;
pub use output_quantization::{OutputQuantization, OutputScale};
pub use parallel_blocks::in_chunks;
pub use windows::{Int8DepthwiseConv, Int8Pool, Int8WindowDim, PoolMode};
