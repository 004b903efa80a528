//! Vectorised code that several kernel families share: SIMD types, narrow floats, elementary functions, element-wise
//! and reduction loops, GEMM microkernels and packing. It knows nothing of threads or memory allocation.

pub mod amx;
pub mod cells;
pub mod folds;
pub mod gemm;
pub mod halves;
pub mod inlined;
pub mod int8;
pub mod jit;
pub mod level;
pub mod lift;
pub mod loops;
pub mod math;
pub mod narrow_bias;
pub mod pack;
pub mod philox;
pub mod pool_row;
pub mod prefetch;
pub mod ranges;
pub mod vector;
pub mod winograd;
