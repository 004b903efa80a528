//! Passes over graphs. Each maps a graph to an equivalent one; [`PASSES`] lists them in execution order.

mod arg_max;
mod batch_variance;
pub mod cheap;
mod cse;
mod derived;
mod folds;
mod invariants;
mod linear;
pub mod loops;
mod pad_sums;
mod pass;
mod prune;
mod ranges;
mod recompute;
mod remat;
pub mod rewrite;
mod simplify;
pub mod slices;
mod sort_keys;
pub mod transpose_weights;
mod trips;
mod window_sums;

pub use pass::{PASSES, Pass, PassStat, optimize, optimize_until, optimize_with};
pub use remat::remat;
