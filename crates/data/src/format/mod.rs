//! File formats: bytes to arrays and back. Every lie of a file is an error with file, offset, expected and found.

pub mod cifar;
pub mod csv;
pub mod example;
pub mod idx;
mod image;
pub mod npy;
pub(crate) mod protobuf_wire;
pub mod tar;
pub mod tensorboard_events;
pub mod text_encoding;
pub mod tfrecord;
pub mod zip;

pub use image::{any_format, jpeg, png};
