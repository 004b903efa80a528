//! The program: kernels as data, the map of an element-wise kernel, edits, the listing and the verifier.

mod edit;
mod kernel;
mod map;
mod moments;
mod nested;
mod pooling;
mod print;
mod product_epilogue;
mod storage;
mod strided_map;
mod verify;

pub use edit::{Steps, is_result, readers, writer};
pub use kernel::{Kernel, Schedule, Step, right_operand};
pub use map::{Expr, Instr, Load, Map};
pub use moments::Moments;
pub use nested::{Blocks, Rows};
pub use pooling::{DEAD, Pool, Relu, Unpool, UnpooledGradient};
pub use product_epilogue::ProductEpilogue;
pub use storage::{ALIGN, Location, ResultPlan, Slot, Storage, View, array_bytes};
pub use strided_map::{Store, StridedMap};
pub use verify::{verify_planned as verify, verify_planned, verify_steps};
