//! Kernels: one folder and one table of candidates for each family. [`FAMILIES`] lists them.

mod accumulate;
mod attention;
mod conv;
mod conv_pool;
mod elementwise;
pub(crate) mod matmul;
mod movement;
mod pool;
mod reduce;
mod reference;
mod rng;
mod via_f32;

use crate::select::Family;

/// All families of kernels that run no programs of their own, in the order in which they are asked whether a step is theirs.
pub static FAMILIES: &[&Family] = &[
    &elementwise::FAMILY,
    &reduce::FAMILY,
    &matmul::FAMILY,
    &matmul::product_epilogue::FAMILY,
    &conv::FAMILY,
    &conv::BATCH_STATISTICS,
    &conv_pool::FORWARD,
    &conv_pool::GRADIENT,
    &pool::FAMILY,
    &attention::FAMILY,
    &accumulate::FAMILY,
    &rng::FAMILY,
    &movement::FAMILY,
];
