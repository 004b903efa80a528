//! Sources: where elements come from.

pub(crate) mod generator;
pub(crate) mod range;
pub(crate) mod slices;
