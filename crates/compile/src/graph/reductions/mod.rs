//! Reduction passes: rewrite reductions, window sums and sorts to cheaper ones.

pub mod arg_max;
pub mod batch_variance;
pub mod multi_op_reduce;
pub mod sort_keys;
pub mod sum_linearity;
pub mod window_sums;
