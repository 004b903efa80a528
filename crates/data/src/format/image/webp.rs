//! WebP decoder: `→ ui8[H, W, 3]`, or `ui8[H, W, 4]` with alpha; the first frame of an animation.

use super::exif;
use super::size_limit::{is_too_large, too_large, unreadable};
use crate::HostArray;
use image_webp::WebPDecoder;
use std::io::Cursor;
use systole_base::{DType, Literal, Result, TensorType};

/// Whether the first bytes are those of a WebP.
pub(super) fn is_webp(start: &[u8]) -> bool {
    start.starts_with(b"RIFF") && start.get(8..12) == Some(b"WEBP")
}

fn open<'a>(name: &str, bytes: &'a [u8]) -> Result<WebPDecoder<Cursor<&'a [u8]>>> {
    let decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(|e| unreadable(name, e.to_string()))?;
    let (w, h) = decoder.dimensions();
    if is_too_large((w as usize).saturating_mul(h as usize).saturating_mul(4)) {
        return Err(unreadable(name, format!("{w} × {h} pixels are too many: {}", too_large())));
    }
    Ok(decoder)
}

fn shape(decoder: &WebPDecoder<Cursor<&[u8]>>) -> [usize; 3] {
    let (w, h) = decoder.dimensions();
    [h as usize, w as usize, if decoder.has_alpha() { 4 } else { 3 }]
}

/// Returns the EXIF orientation, 1 to 8.
fn orientation(decoder: &mut WebPDecoder<Cursor<&[u8]>>) -> u8 {
    decoder.exif_metadata().ok().flatten().map_or(1, |block| exif::orientation_of_block(&block))
}

/// Decodes a WebP from memory, rotated by its EXIF orientation.
///
/// # Errors
/// If it is damaged, truncated or too large.
pub(super) fn from_bytes(name: &str, bytes: &[u8]) -> Result<Literal> {
    let mut decoder = open(name, bytes)?;
    let turned = orientation(&mut decoder);
    let mut out = Literal::zeros(TensorType::new(DType::U8, shape(&decoder)));
    decoder.read_image(out.bytes_mut()).map_err(|e| unreadable(name, e.to_string()))?;
    match turned {
        1 => Ok(out),
        turned => exif::upright(HostArray::from(out), turned).into_literal(),
    }
}

/// Returns height, width and channels of the decoded image.
pub(super) fn size(name: &str, bytes: &[u8]) -> Result<[usize; 3]> {
    let mut decoder = open(name, bytes)?;
    let [h, w, c] = shape(&decoder);
    Ok(if orientation(&mut decoder) >= 5 { [w, h, c] } else { [h, w, c] })
}

#[cfg(test)]
mod tests {
    use crate::format::any_format;
    use image_webp::{ColorType, WebPEncoder};

    #[test]
    fn webp_with_and_without_alpha_is_read() {
        for (colour, c) in [(ColorType::Rgb8, 3), (ColorType::Rgba8, 4)] {
            let pixels: Vec<u8> = (0..5 * 4 * c).map(|i| (i * 11 % 251) as u8).collect();
            let mut bytes = Vec::new();
            WebPEncoder::new(&mut bytes).encode(&pixels, 5, 4, colour).unwrap();
            assert!(any_format::is_picture(&bytes[..16]));
            let x = any_format::from_bytes("a.webp", &bytes).unwrap();
            assert_eq!((x.shape().dims(), x.bytes()), (&[4, 5, c][..], &pixels[..]));
            assert_eq!(any_format::size_of_bytes("a.webp", &bytes).unwrap(), [4, 5, c]);
            for cut in [13, 24, bytes.len() / 2] {
                let e = any_format::from_bytes("cut.webp", &bytes[..cut]).unwrap_err().to_string();
                assert!(e.contains("cut.webp"), "{e}");
            }
        }
    }
}
