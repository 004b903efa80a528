//! Vectorised code that several kernel families share: SIMD types, narrow floats, elementary functions, element-wise
//! and reduction loops, GEMM microkernels and packing. It knows nothing of threads or memory allocation.

pub mod amx;
pub mod dequantize;
pub mod gemm;
pub mod inline_methods;
pub mod int8;
pub mod jit;
pub mod level;
pub mod loops;
pub mod math;
pub mod narrow_bias;
pub mod narrow_floats;
pub mod pack;
pub mod philox;
pub mod pool_row;
pub mod prefetch;
pub mod ranges;
pub mod reduce_loops;
pub mod stored_elements;
pub mod vector;
pub mod winograd;
