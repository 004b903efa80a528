//! Pruning of single weights and of whole channels.

pub(crate) mod channels;
pub(crate) mod masks;
