//! Image formats: JPEG, PNG, BMP, GIF and WebP to `ui8[H, W, C]`, with bounded memory.

mod bmp;
mod exif;
#[cfg(feature = "gif")]
mod gif;
pub mod jpeg;
mod limit;
pub mod picture;
pub mod png;
#[cfg(feature = "webp")]
mod webp;
