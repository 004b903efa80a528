//! Passes over graphs: functions from graph to graph that keep what is computed. [`PASSES`] is the whole list.

mod batch_variance;
pub mod cheap;
mod cse;
mod linear;
pub mod loops;
mod pad_sums;
mod pass;
mod prune;
mod recompute;
mod remat;
pub mod rewrite;
mod simplify;
pub mod slices;
pub mod transpose_weights;
mod window_sums;

pub use pass::{PASSES, Pass, PassStat, optimize, optimize_until, optimize_with};
pub use remat::remat;
