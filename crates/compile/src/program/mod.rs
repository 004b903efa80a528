//! The compiled program: kernels and storage as data, rewriting, the listing and the verifier.

mod attention;
mod conv_moments;
mod kernel;
mod map;
mod nested_kernels;
mod pooling;
mod print;
mod product_epilogue;
mod quantized_gemm;
mod step_list;
mod storage;
mod strided_map;
mod top_k;
mod type_check;
mod verify;

pub use conv_moments::Moments;
pub use kernel::{Kernel, Schedule, Scope, Step, right_operand};
pub use map::{Expr, Instr, Load, Map};
pub use nested_kernels::{Blocks, Rows};
pub use pooling::{DEAD, Pool, Relu, Unpool, UnpooledGradient};
pub use product_epilogue::ProductEpilogue;
pub use quantized_gemm::{Packed, PackedProduct};
pub use storage::{ALIGN, Location, ResultPlan, Slot, Storage, View};
pub use strided_map::{Store, StridedMap};
pub use top_k::TopK;
pub use verify::verify_planned as verify;

// Of this crate alone.
pub(crate) use step_list::{Steps, is_result, readers, writer};
pub(crate) use storage::array_bytes;
pub(crate) use verify::{verify_planned, verify_steps};
