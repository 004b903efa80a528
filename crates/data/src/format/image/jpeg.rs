//! JPEG decoder: `→ ui8[H, W, C]`, with bounded memory.
//!
//! Common baseline files use a built-in decoder, all others the `zune-jpeg` crate.

mod baseline;
mod huffman;
mod idct;
mod upsample_color;

use super::size_limit::{is_too_large, most_bytes, too_large};
use std::panic::{AssertUnwindSafe, catch_unwind};
use systole_base::{DType, Literal, Result, TensorType, err};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// Maximum side length in pixels.
const MAX_SIDE: usize = 1 << 15;

/// Decodes a JPEG: `→ ui8[H, W, 1]` (grayscale) or `ui8[H, W, 3]` (RGB; CMYK is converted). `name` is used in messages.
///
/// # Errors
/// If it is not a JPEG, is damaged or truncated, or too large.
pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<Literal> {
    let wrong = |why: String| {
        err!(Data, "cannot read the image")
            .at(name)
            .because(why)
            .hint("open the image in another program and save it as JPEG or PNG")
    };
    // The end marker is last except for padding: a truncated file would decode to gray at the bottom.
    if !after_headers(bytes).windows(2).rev().any(|w| w == [0xff, 0xd9]) {
        return Err(wrong("the file is truncated: it has no end marker".into()));
    }
    most_bytes()?;
    caught(|| decode(bytes)).map_err(wrong)
}

/// Returns the bytes after the first scan's header: a thumbnail before it has its own end marker.
fn after_headers(bytes: &[u8]) -> &[u8] {
    let mut rest = bytes.get(2..).unwrap_or_default();
    loop {
        match *rest {
            [0xff, 0xff, ..] => rest = &rest[1..],
            [0xff, 0xda, ..] => return rest,
            [0xff, _, high, low, ..] => match rest.get(2 + usize::from(u16::from_be_bytes([high, low]))..) {
                Some(next) => rest = next,
                None => return &[],
            },
            // Invalid headers: the decoder reports the error.
            _ => return rest,
        }
    }
}

/// Catches panics of the general decoder, which occur on some damaged files.
fn caught<T>(read: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err("the decoder panicked".into()))
}

/// Returns height, width and channels (1 or 3) from the headers.
///
/// # Errors
/// If there are none.
pub(crate) fn size(name: &str, bytes: &[u8]) -> Result<[usize; 3]> {
    caught(|| headers(bytes).map(|(_, size)| size))
        .map_err(|why| err!(Data, "cannot read the image").at(name).because(why))
}

/// Decodes a JPEG with both decoders: the baseline decoder, which returns `None` for unsupported files, and the general
/// one. For comparison tests; [`from_bytes`] uses the first result available.
#[doc(hidden)]
pub fn both_decoders(bytes: &[u8]) -> (Option<Literal>, Result<Literal, String>) {
    (baseline(bytes), caught(|| general(bytes)))
}

type ZuneJpegDecoder<'a> = JpegDecoder<ZCursor<&'a [u8]>>;

fn headers(bytes: &[u8]) -> Result<(ZuneJpegDecoder<'_>, [usize; 3]), String> {
    let options = DecoderOptions::default().set_max_width(MAX_SIDE).set_max_height(MAX_SIDE);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(|e| format!("{e:?}"))?;
    let (wanted, channels) = match decoder.input_colorspace() {
        Some(ColorSpace::Luma) => (ColorSpace::Luma, 1),
        _ => (ColorSpace::RGB, 3),
    };
    decoder.set_options(options.jpeg_set_out_colorspace(wanted));
    let info = decoder.info().ok_or("it has no size")?;
    Ok((decoder, [usize::from(info.height), usize::from(info.width), channels]))
}

fn decode(bytes: &[u8]) -> Result<Literal, String> {
    match baseline(bytes) {
        Some(picture) => Ok(picture),
        None => general(bytes),
    }
}

/// Runs the baseline decoder; `None`: the general decoder is needed.
fn baseline(bytes: &[u8]) -> Option<Literal> {
    let frame = baseline::JpegFrame::of(bytes)?;
    let size = [frame.height, frame.width, frame.channels()];
    if frame.height > MAX_SIDE || frame.width > MAX_SIDE || is_too_large(size.iter().product()) {
        return None;
    }
    let mut out = Literal::unfilled(TensorType::new(DType::U8, size));
    frame.decode(out.bytes_mut())?;
    Some(out)
}

fn general(bytes: &[u8]) -> Result<Literal, String> {
    let (mut decoder, size) = headers(bytes)?;
    if is_too_large(size.iter().product()) {
        let [h, w, _] = size;
        return Err(format!("{w} × {h} pixels are too many: {}", too_large()));
    }
    let mut out = Literal::zeros(TensorType::new(DType::U8, size));
    decoder.decode_into(out.bytes_mut()).map_err(|e| format!("{e:?}"))?;
    Ok(out)
}

#[cfg(test)]
mod tests;
