//! Pruned weights and channels of a model.

pub(crate) mod channels;
pub(crate) mod masks;
