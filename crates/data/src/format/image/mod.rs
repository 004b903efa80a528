//! Image decoders: JPEG, PNG, BMP, GIF and WebP to `ui8[H, W, C]`, with bounded memory.

pub mod any_format;
mod bmp;
mod exif;
#[cfg(feature = "gif")]
mod gif;
pub mod jpeg;
pub mod png;
mod size_limit;
#[cfg(feature = "webp")]
mod webp;
