//! File formats: TFRecord, CSV, NumPy, IDX, TAR, ZIP, CIFAR, images.
//!
//! Damaged files yield errors with file, offset, expected and found value.

#[cfg(feature = "formats")]
pub mod archive;
pub mod cifar;
pub mod csv;
pub mod date;
pub mod example;
#[cfg(feature = "formats")]
pub mod idx;
#[cfg(feature = "formats")]
mod image;
mod model_format;
pub mod npy;
pub(crate) mod protobuf_wire;
pub mod tar;
pub mod tensorboard_events;
pub mod text_encoding;
pub mod tfrecord;
#[cfg(feature = "formats")]
pub mod zip;

#[cfg(not(feature = "formats"))]
/// PNG encoder: unavailable without the feature `formats`.
pub mod png {
    use systole_base::{Literal, Result};

    /// Returns an error: PNG needs the feature `formats`.
    pub fn to_bytes(_: &Literal) -> Result<Vec<u8>> {
        Err(crate::missing_formats("PNG images"))
    }
}
#[cfg(feature = "formats")]
pub use image::{any_format, jpeg, png};
pub use model_format::ModelFormat;

#[doc(hidden)]
#[deprecated = "renamed to `text_encoding`"]
pub mod encoding {
    pub use super::text_encoding::*;
}
#[doc(hidden)]
#[deprecated = "renamed to `tensorboard_events`"]
pub mod events {
    pub use super::tensorboard_events::*;
}
#[cfg(feature = "formats")]
#[doc(hidden)]
#[deprecated = "renamed to `any_format`"]
pub mod picture {
    pub use super::any_format::*;
}
