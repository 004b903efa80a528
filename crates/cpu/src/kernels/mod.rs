//! CPU kernels by operation family: convolution, GEMM, attention, pooling, reduction and others.
//!
//! Each folder or file has a table of candidate kernels. [`FAMILIES`] lists the tables.

mod accumulate;
mod attention;
mod conv;
mod conv_pool;
mod elementwise;
mod int8_product;
pub(crate) mod matmul;
pub(crate) mod movement;
mod pool;
mod reduce;
mod reference;
mod rng;
mod via_f32;

use crate::select::Family;

/// Kernel families of each folder, in the order in which they are checked for a step. Families that run nested programs
/// are not included.
pub const FAMILIES: &[&[&Family]] = &[
    &[&elementwise::FAMILY],
    &[&reduce::FAMILY],
    matmul::FAMILIES,
    conv::FAMILIES,
    &[&int8_product::FAMILY],
    conv_pool::FAMILIES,
    &[&pool::FAMILY],
    &[&attention::FAMILY],
    &[&accumulate::FAMILY],
    &[&rng::FAMILY],
    &[&movement::FAMILY],
];
