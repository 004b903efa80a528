//! File formats: bytes to arrays and back. Every lie of a file is an error with file, offset, expected and found.

pub mod cifar;
pub mod csv;
pub mod encoding;
pub mod events;
pub mod example;
pub mod idx;
mod image;
pub mod npy;
pub mod tar;
pub mod tfrecord;
pub(crate) mod wire;
pub mod zip;

pub use image::{jpeg, picture, png};
