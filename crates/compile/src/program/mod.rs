//! Compiled program: steps with their kernels and buffers, step editing, listing and verifier.

mod attention;
mod conv_moments;
mod int8_product;
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

pub use conv_moments::ConvWithMoments;
pub use int8_product::Int8Product;
pub use kernel::{Kernel, LayerScope, ProgramSchedule, Step, right_operand};
pub use map::{Contraction, Map, MapInstr, MapLoad, MapRegister};
pub use nested_kernels::{FusedRows, RowBlockLoop};
pub use pooling::{DEAD, MaxPoolArgmax, Relu, Unpool, UnpooledGradient};
pub use product_epilogue::ProductEpilogue;
pub use quantized_gemm::{DequantizeStep, DequantizedGemm};
pub use storage::{ALIGN, Location, ResultPlan, SlotId, SlotStorage, SlotView};
pub use strided_map::{StridedMap, StridedStore};
pub use top_k::TopK;
pub use verify::verify_planned as verify;

// Used in this crate only.
pub(crate) use step_list::{StepList, is_result, readers, writer};
pub(crate) use storage::array_bytes;
pub(crate) use verify::{verify_planned, verify_steps};
