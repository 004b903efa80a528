//! Kernels of quantised models: bytes in, sums of 32 bits, bytes out, rounded as the reference kernels of `.tflite` round.
//!
//! Not part of compiled programs: crates that hold a graph of bytes call these one by one. Arrays are slices, batches
//! come first, channels last. Whatever the machine and the number of threads, results are the same bits, since
//! sums of integers have no order; a constructor gives `None` where a sum or a product could leave 32 bits, so that what
//! wraps around or saturates elsewhere is left to who counts on it.
//!
//! ```
//! use systole_cpu::int8::{Output, Product, Scale, Unit};
//! use systole_cpu::{Level, Team};
//! // [1, 2] · [[3, 4], [5, 6]]ᵀ = [11, 17], times 1/2: rounded half away from zero.
//! let output = Output { bias: None, scale: Scale::Fixed(vec![(1 << 30, 0)]), zero: 0, low: -128, high: 127 };
//! let dense = Product::dense(Unit::of(Level::Portable), &[3, 4, 5, 6], 2, 0, &output).unwrap();
//! let mut y = [0i8; 2];
//! dense.run(&Team::new(1), &[1, 2], &mut y);
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
#[cfg(test)]
mod tests;
mod windows;

pub use binary_lut::{BinaryLut, FormulaHint};
pub use elementwise::{Int8Add, table};
pub use isa::Int8Isa;
pub use matmul::Int8Matmul;
pub use output_quantization::{OutputQuantization, OutputScale};
pub use parallel_blocks::in_chunks;
pub use windows::{Int8DepthwiseConv, Int8Pool, Int8WindowDim, PoolMode};
