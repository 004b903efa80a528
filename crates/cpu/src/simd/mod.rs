//! SIMD code shared by kernel families: vectors, math functions, element-wise loops, GEMM microkernels, packing.
//!
//! It has no threads and allocates no memory.

pub mod amx;
pub mod dequantize;
pub mod gemm;
pub mod group_lanes;
pub mod inline_methods;
pub mod int8;
pub mod jit;
pub mod level;
#[cfg(feature = "linalg")]
pub(crate) mod linalg_kernels;
pub mod loops;
pub mod math;
pub mod math64;
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
pub mod zip_lanes;
