//! File formats: bytes to arrays and back. Every lie of a file is an error with file, offset, expected and found.

mod bmp;
pub mod cifar;
pub mod csv;
pub mod encoding;
pub mod events;
pub mod example;
mod exif;
#[cfg(feature = "gif")]
mod gif;
pub mod idx;
pub mod jpeg;
mod limit;
pub mod npy;
pub mod picture;
pub mod png;
pub mod tar;
pub mod tfrecord;
#[cfg(feature = "webp")]
mod webp;
pub(crate) mod wire;
pub mod zip;
