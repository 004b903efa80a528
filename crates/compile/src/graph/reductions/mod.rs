//! Rewrites of reductions and sorts to cheaper ones.

pub mod arg_max;
pub mod batch_variance;
pub mod folds;
pub mod linear;
pub mod sort_keys;
pub mod window_sums;
