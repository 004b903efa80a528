//! The compiled program: kernels and storage as data, rewriting, the listing and the verifier.

mod attention;
mod check;
mod edit;
mod kernel;
mod map;
mod moments;
mod nested;
mod packed;
mod pooling;
mod print;
mod product_epilogue;
mod storage;
mod strided_map;
mod top_k;
mod verify;

pub use kernel::{Kernel, Schedule, Scope, Step, right_operand};
pub use map::{Expr, Instr, Load, Map};
pub use moments::Moments;
pub use nested::{Blocks, Rows};
pub use packed::{Packed, PackedProduct};
pub use pooling::{DEAD, Pool, Relu, Unpool, UnpooledGradient};
pub use product_epilogue::ProductEpilogue;
pub use storage::{ALIGN, Location, ResultPlan, Slot, Storage, View};
pub use strided_map::{Store, StridedMap};
pub use top_k::TopK;
pub use verify::verify_planned as verify;

// Of this crate alone.
pub(crate) use edit::{Steps, is_result, readers, writer};
pub(crate) use storage::array_bytes;
pub(crate) use verify::{verify_planned, verify_steps};
