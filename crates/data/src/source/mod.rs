//! Sources: where elements come from.

pub(crate) mod arrays;
pub(crate) mod files;
pub(crate) mod generator;
pub(crate) mod images;
pub(crate) mod lines;
#[cfg(feature = "parquet")]
pub(crate) mod parquet;
pub(crate) mod range;
pub(crate) mod slices;
pub(crate) mod table;
pub(crate) mod tfrecord;
pub(crate) mod webdataset;
