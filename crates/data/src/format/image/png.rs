//! PNG decoder to `u8[H, W, C]` and encoder, on the `png` crate, with bounded memory.

use super::size_limit::{most_bytes, too_large, unreadable};
use crate::file_system::{OsFileSystem, write_atomically};
use png::{BitDepth, ColorType, Decoder, DecodingError, Encoder, Limits, Reader, Transformations};
use std::io::Cursor;
use std::path::Path;
use systole_base::{DType, Error, Literal, Result, ensure, err};

/// Reads a PNG file: `→ u8[H, W, C]` with 1 (gray), 2 (gray, alpha), 3 (RGB) or 4 (RGB, alpha) channels.
///
/// Palettes become colors, 1, 2 and 4 bits are scaled to 8, 16 bits keep the upper 8.
///
/// # Errors
/// `Io` if the file cannot be read; `Data` if it is not a PNG, is damaged or truncated, or exceeds
/// `SYSTOLE_PICTURE_LIMIT`.
pub fn read(path: impl AsRef<Path>) -> Result<Literal> {
    let path = path.as_ref();
    let bytes = crate::input_file::read(path)
        .map_err(|e| Error::io("cannot read", path, e).hint("check the path of the image file"))?;
    from_bytes(&path.display().to_string(), &bytes)
}

/// Decodes a PNG from memory; `name` is used in messages.
pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<Literal> {
    let wrong = |e: DecodingError| unreadable(name, e.to_string());
    let mut reader = headers(bytes).map_err(wrong)?;
    let (width, height) = reader.info().size();
    let most = most_bytes()?;
    let size = reader.output_buffer_size().filter(|&n| n <= most).ok_or_else(|| {
        err!(Data, "the image is too large: {width} × {height} pixels")
            .at(name)
            .because(too_large())
            .hint("resize the image")
    })?;
    let mut pixels = vec![0; size];
    let frame = reader.next_frame(&mut pixels).map_err(wrong)?;
    pixels.truncate(frame.buffer_size());
    let channels = frame.color_type.samples();
    Literal::from_slice([frame.height as usize, frame.width as usize, channels], &pixels)
        .map_err(|e| e.at(name.to_string()))
}

/// Returns height, width and channels (1 to 4) from the headers.
///
/// # Errors
/// If there are none.
pub(crate) fn size(name: &str, bytes: &[u8]) -> Result<[usize; 3]> {
    let reader = headers(bytes).map_err(|e| unreadable(name, e.to_string()))?;
    let (width, height) = reader.info().size();
    Ok([height as usize, width as usize, reader.output_color_type().0.samples()])
}

fn headers(bytes: &[u8]) -> Result<Reader<Cursor<&[u8]>>, DecodingError> {
    let mut decoder = Decoder::new_with_limits(
        Cursor::new(bytes),
        Limits { bytes: most_bytes().unwrap_or(0).saturating_mul(2) },
    );
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    decoder.read_info()
}

/// Encodes `x: u8[H, W]` or `u8[H, W, C]`, C 1 to 4, as PNG.
pub fn to_bytes(x: &Literal) -> Result<Vec<u8>> {
    let wrong = |why: String| {
        err!(Data, "cannot write {} as PNG", x.ty())
            .because(why)
            .hint("pass ui8[height, width] or ui8[height, width, channels] with 1 to 4 channels")
    };
    let (h, w, c) = match *x.shape().dims() {
        [h, w] => (h, w, 1),
        [h, w, c @ 1..=4] => (h, w, c),
        _ => return Err(wrong("it does not have the shape of an image".into())),
    };
    ensure!(x.dtype() == DType::U8, wrong("the elements are not ui8".into()));
    let side = |n: usize| u32::try_from(n).map_err(|e| wrong(e.to_string()));
    let mut out = Vec::new();
    let mut encoder = Encoder::new(&mut out, side(w)?, side(h)?);
    encoder.set_depth(BitDepth::Eight);
    encoder
        .set_color([ColorType::Grayscale, ColorType::GrayscaleAlpha, ColorType::Rgb, ColorType::Rgba][c - 1]);
    let written = encoder.write_header().and_then(|mut w| {
        w.write_image_data(x.bytes())?;
        w.finish()
    });
    written.map_err(|e| wrong(e.to_string()))?;
    Ok(out)
}

/// Writes an array as a PNG file: see [`to_bytes`].
pub fn write(path: impl AsRef<Path>, x: &Literal) -> Result<()> {
    write_atomically(&OsFileSystem, path.as_ref(), &[&to_bytes(x)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(c: usize) -> Literal {
        let data: Vec<u8> = (0..5 * 7 * c).map(|i| (i * 37 % 256) as u8).collect();
        Literal::from_slice([5, 7, c], &data).unwrap()
    }

    fn encode(
        color: ColorType,
        depth: BitDepth,
        data: &[u8],
        setup: impl Fn(&mut Encoder<&mut Vec<u8>>),
    ) -> Vec<u8> {
        let mut out = Vec::new();
        let mut encoder = Encoder::new(&mut out, 2, 1);
        encoder.set_color(color);
        encoder.set_depth(depth);
        setup(&mut encoder);
        encoder.write_header().unwrap().write_image_data(data).unwrap();
        out
    }

    #[test]
    fn round_trips_one_to_four_channels() {
        for c in 1..=4 {
            assert_eq!(from_bytes("p", &to_bytes(&picture(c)).unwrap()).unwrap(), picture(c));
        }
        let flat = picture(1).reshape([5, 7]).unwrap();
        assert_eq!(from_bytes("p", &to_bytes(&flat).unwrap()).unwrap(), picture(1));
        assert!(to_bytes(&picture(1).convert(DType::F32)).is_err());
        assert!(to_bytes(&picture(1).reshape([35]).unwrap()).is_err());
    }

    #[test]
    fn palettes_small_and_wide_depths_become_bytes() {
        let palette =
            encode(ColorType::Indexed, BitDepth::Eight, &[1, 0], |e| e.set_palette(vec![1, 2, 3, 9, 8, 7]));
        let x = from_bytes("p", &palette).unwrap();
        assert_eq!((x.ty().to_string().as_str(), x.bytes()), ("ui8[1, 2, 3]", &[9, 8, 7, 1, 2, 3][..]));
        let bits = encode(ColorType::Grayscale, BitDepth::One, &[0b1000_0000], |_| ());
        assert_eq!(from_bytes("p", &bits).unwrap().bytes(), [255, 0]);
        let wide = encode(ColorType::Grayscale, BitDepth::Sixteen, &[0x12, 0x34, 0xff, 0xff], |_| ());
        assert_eq!(from_bytes("p", &wide).unwrap().bytes(), [0x12, 0xff]);
    }

    #[test]
    fn damage_is_an_error_and_never_a_panic() {
        let good = to_bytes(&picture(3)).unwrap();
        for cut in 0..good.len() - 12 {
            assert!(from_bytes("cut", &good[..cut]).is_err(), "cut at {cut} of {}", good.len());
        }
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            if let Err(e) = from_bytes("flipped", &bad) {
                assert!(e.to_string().contains("flipped"));
            }
        }
        assert!(from_bytes("text", b"hello").unwrap_err().to_string().contains("PNG"));
    }

    #[test]
    fn a_photo_of_24_million_pixels_is_read() {
        let (w, h) = (6000, 4000);
        let mut out = Vec::new();
        let mut encoder = Encoder::new(&mut out, w, h);
        encoder.set_color(ColorType::Rgba);
        encoder.set_compression(png::Compression::Fast);
        encoder.write_header().unwrap().write_image_data(&vec![7; (w * h * 4) as usize]).unwrap();
        assert_eq!(from_bytes("photo", &out).unwrap().shape().dims(), [4000, 6000, 4]);
    }

    #[test]
    fn absurd_sizes_are_refused_before_unpacking() {
        let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
        let header: [u8; 13] = [0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff, 8, 6, 0, 0, 0];
        bytes.extend(header);
        let mut crc = flate2::Crc::new();
        crc.update(&bytes[12..]);
        bytes.extend(crc.sum().to_be_bytes());
        bytes.extend(b"\0\0\0\0IDAT\x35\xaf\x06\x1e");
        assert!(from_bytes("huge", &bytes).is_err());
    }
}
