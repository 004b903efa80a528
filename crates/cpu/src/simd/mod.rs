//! What kernels of several families share: vectors, narrow floats, mathematical functions, loops, tiles of products.
//! Nothing here knows threads or memory.

pub mod amx;
pub mod bf16;
pub mod cells;
pub mod folds;
pub mod gemm;
pub mod jit;
pub mod level;
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
