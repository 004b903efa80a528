//! Kernels: one folder or file per family, each with a table of candidates. [`FAMILIES`] lists the tables.

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

/// All families except control flow (`run/control.rs`), in the order in which they are asked whether they take a step.
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
