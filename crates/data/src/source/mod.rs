//! Pipeline sources: arrays, generators, text, CSV, TFRecord, Parquet, WebDataset, image folders.

pub(crate) mod csv_table;
pub(crate) mod generator;
#[cfg(feature = "formats")]
pub(crate) mod images;
pub(crate) mod list_files;
#[cfg(feature = "formats")]
pub(crate) mod numpy;
#[cfg(feature = "parquet")]
pub(crate) mod parquet;
pub(crate) mod range;
pub(crate) mod slices;
pub(crate) mod text_files;
pub(crate) mod tfrecord;
#[cfg(feature = "formats")]
pub(crate) mod webdataset;
