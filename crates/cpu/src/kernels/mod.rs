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

/// The families of each folder that run no programs of their own, in the order in which they are asked whether a step is
/// theirs.
pub const FAMILIES: &[&[&Family]] = &[
    &[&elementwise::FAMILY],
    &[&reduce::FAMILY],
    matmul::FAMILIES,
    conv::FAMILIES,
    conv_pool::FAMILIES,
    &[&pool::FAMILY],
    &[&attention::FAMILY],
    &[&accumulate::FAMILY],
    &[&rng::FAMILY],
    &[&movement::FAMILY],
];
