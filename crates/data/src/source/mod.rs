//! Sources: where elements come from.

pub(crate) mod files;
pub(crate) mod generator;
pub(crate) mod images;
pub(crate) mod range;
pub(crate) mod slices;
pub(crate) mod tfrecord;
