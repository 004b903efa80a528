//! Input pipelines in the style of tf.data: sources, transformations, batching; and file formats.
//!
//! A [`Dataset`] is an immutable description, cheap to clone; [`Dataset::iter`] runs it. Elements are [`Sample`]s:
//! named host arrays. The order of elements is a pure function of (seed, epoch, index), so a [`PipelinePosition`] identifies
//! the state of any pipeline exactly, and [`Dataset::iter_at`] resumes there.
//!
//! This crate does not depend on graphs, layers or devices.
//!
//! ```
//! use systole_base::{DType, Literal};
//! use systole_data::{AUTOTUNE, Dataset, Sample};
//!
//! let image = Literal::from_slice([4, 2], &[0u8, 51, 102, 153, 204, 255, 0, 255])?;
//! let label = Literal::from_slice([4], &[0i32, 1, 2, 3])?;
//! let batches = Dataset::from_tensor_slices([("image", image), ("label", label)])?
//!     .map(|s: Sample| s.map("image", |x| x.cast(DType::F32) / 255.0))
//!     .shuffle(4, 7)
//!     .repeat()
//!     .batch(2)
//!     .prefetch(AUTOTUNE);
//! for batch in batches.iter().take(3) {
//!     assert_eq!(batch?.get("image")?.ty().to_string(), "f32[2, 2]");
//! }
//! # Ok::<(), systole_base::Error>(())
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "formats"),
    allow(dead_code, unused_imports, reason = "some helpers serve these formats only")
)]

mod arithmetic;
pub mod clock;
mod compression;
mod directory_entry;
pub mod file_system;
pub mod format;
#[cfg(feature = "formats")]
pub mod hmac;
mod host_array;
pub mod http;
#[cfg(feature = "formats")]
pub mod image_ops;
pub mod input_file;
mod mutex;
#[cfg(feature = "object-stores")]
pub mod objects;
mod options;
mod pipeline;
mod rescale;
#[cfg(feature = "formats")]
mod run_secret;
mod sample;
mod sample_store;
mod shell;
#[cfg(feature = "formats")]
mod simd16;
mod source;
pub mod stage;
#[cfg(feature = "formats")]
pub mod tools;

pub use arithmetic::ArrayOperand;
pub use host_array::HostArray;
pub use pipeline::{
    AUTOTUNE, Cardinality, Dataset, DatasetIter, DatasetOptions, IteratorState, PipelinePosition,
    PipelineReport, PipelineRun, PipelineTuning, QueueReport, StageReport, free_memory,
};
pub use rescale::Rescale;
#[cfg(feature = "formats")]
pub use run_secret::{RunSecret, random_bytes};
pub use sample::{ElementSpec, IntoSample, Sample};
pub use shell::shell_quoted;
pub use source::csv_table::{ColumnKind, CsvTable, DateColumn, TableColumn};
#[cfg(feature = "formats")]
pub use source::images::{ImageFolder, decode_image};
pub use source::text_files::{CsvColumn, CsvFormat, CsvOptions};
pub use source::tfrecord::TfRecordOptions;
pub use stage::batch::BatchShare;
pub use stage::group_by_window::BucketOptions;
pub use stage::interleave::IntoDataset;
pub use stage::padded_batch::PaddingOptions;
pub use stage::shuffle::ShuffleOptions;
pub use stage::window::WindowOptions;

/// Error for `what`, which this build leaves out.
#[cfg(not(feature = "formats"))]
fn missing_formats(what: &str) -> systole_base::Error {
    let built = "this build, without the feature `formats` of systole-data, cannot handle";
    systole_base::Error::new(systole_base::ErrorKind::Unsupported, format!("{built} {what}"))
        .hint("enable the default features of the crate `systole` in Cargo.toml")
}

// Names of the previous version.
systole_base::renamed! { Bucketing => BucketOptions, Column => CsvColumn, Csv => CsvOptions, Operand => ArrayOperand, Options => DatasetOptions, Padding => PaddingOptions, Position => PipelinePosition, Report => PipelineReport, Run => PipelineRun, Share => BatchShare, Shuffle => ShuffleOptions, Table => CsvTable, TfRecord => TfRecordOptions, Window => WindowOptions, Written => CsvFormat }
#[doc(hidden)]
pub use self::PipelineTuning as Tuning;
#[doc(hidden)]
#[deprecated = "renamed to `file_system`"]
pub mod disk {
    pub use super::file_system::*;
}
#[doc(hidden)]
#[deprecated = "renamed to `input_file`"]
pub mod input {
    pub use super::input_file::*;
}
#[cfg(feature = "formats")]
#[doc(hidden)]
#[deprecated = "renamed to `image_ops`"]
pub mod picture {
    pub use super::image_ops::*;
}
#[doc(hidden)]
#[deprecated = "renamed to `http`"]
pub mod web {
    pub use super::http::*;
}
