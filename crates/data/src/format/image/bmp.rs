//! BMP decoder: `→ ui8[H, W, C]` for uncompressed images of 1, 4 and 8 bits with a palette, 24 and 32 bits.

use super::size_limit::{is_too_large, too_large, unreadable};
use systole_base::{DType, Literal, Result, TensorType, ensure};

/// Size in bytes of the file header and the shortest image header.
const HEADERS: usize = 14 + 40;
/// Maximum side length in pixels.
const MAX_SIDE: u32 = 1 << 16;

/// Whether the first bytes (8 are enough) are those of a BMP: its signature, and two bytes that are always 0.
pub(super) fn is_bmp(start: &[u8]) -> bool {
    start.starts_with(b"BM") && start.get(6..8) == Some(&[0, 0])
}

/// Parsed headers.
struct BmpHeader<'a> {
    width: usize,
    height: usize,
    /// Whether the first row is the top one.
    is_top_down: bool,
    bits: usize,
    /// Palette entries: blue, green, red and an unused byte.
    palette: &'a [[u8; 4]],
    /// Byte positions of red, green, blue and alpha in a 32-bit pixel.
    places: [usize; 4],
    has_alpha: bool,
    pixels: &'a [u8],
}

/// Decodes a BMP: `→ ui8[H, W, 1]` (gray palette), `ui8[H, W, 3]`, or `ui8[H, W, 4]` if it has alpha.
///
/// # Errors
/// If it is damaged, truncated, compressed, or too large.
pub(super) fn from_bytes(name: &str, bytes: &[u8]) -> Result<Literal> {
    let wrong = |why: String| unreadable(name, why);
    let header = BmpHeader::of(bytes).map_err(wrong)?;
    let size = header.size();
    if is_too_large(size.iter().product()) {
        return Err(wrong(format!("{} × {} pixels are too many: {}", size[1], size[0], too_large())));
    }
    let mut out = Literal::zeros(TensorType::new(DType::U8, size));
    header.decode(out.bytes_mut()).ok_or_else(|| wrong("the file is truncated".into()))?;
    Ok(out)
}

/// Returns height, width and channels from the headers.
pub(super) fn size(name: &str, bytes: &[u8]) -> Result<[usize; 3]> {
    BmpHeader::of(bytes).map(|header| header.size()).map_err(|why| unreadable(name, why))
}

impl BmpHeader<'_> {
    fn of(bytes: &[u8]) -> Result<BmpHeader<'_>, String> {
        ensure!(bytes.len() >= HEADERS, "the file is truncated within its header".into());
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (begin, own, width, height) = (number(10) as usize, number(14) as usize, number(18), number(22));
        let (bits, packing, colours) = (usize::from(bytes[28]), number(30), number(46) as usize);
        let is_top_down = (height as i32) < 0;
        let height = (height as i32).unsigned_abs();
        if own < 40 || width == 0 || height == 0 || width > MAX_SIDE || height > MAX_SIDE {
            return Err("its header is invalid".into());
        }
        // Methods 3 and 6 have bit masks of the color channels.
        let has_masks = bits == 32 && [3, 6].contains(&packing);
        if ![1, 4, 8, 24, 32].contains(&bits) || !(packing == 0 || has_masks) {
            return Err(format!("images of {bits} bits with compression method {packing} are not supported"));
        }
        let (mut places, mut has_alpha) = ([2, 1, 0, 3], false);
        if has_masks {
            let mask = |i: usize| bytes.get(54 + 4 * i..58 + 4 * i).map(|m| [m[0], m[1], m[2], m[3]]);
            for (i, place) in places.iter_mut().enumerate().take(3) {
                let mask = mask(i).ok_or("the file is truncated within its header")?;
                *place =
                    mask.iter().position(|b| *b == 0xff).ok_or("its color channels do not have 8 bits")?;
            }
            let alpha = mask(3).filter(|m| (own >= 56 || packing == 6) && m.contains(&0xff));
            if let Some(at) = alpha.and_then(|m| m.iter().position(|b| *b == 0xff)) {
                (places[3], has_alpha) = (at, true);
            }
        }
        let count = if bits > 8 {
            0
        } else if colours == 0 {
            1 << bits
        } else {
            colours.min(1 << bits)
        };
        let palette = bytes.get(14 + own..).and_then(|p| p.get(..4 * count));
        let palette = palette.ok_or("the file is truncated within its palette")?.as_chunks::<4>().0;
        let pixels = bytes.get(begin..).ok_or("the file is truncated")?;
        let (width, height) = (width as usize, height as usize);
        Ok(BmpHeader { width, height, is_top_down, bits, palette, places, has_alpha, pixels })
    }

    fn size(&self) -> [usize; 3] {
        let is_grey = self.palette.iter().all(|[b, g, r, _]| b == g && g == r);
        let channels = match self.bits {
            ..=8 if is_grey => 1,
            _ if self.has_alpha => 4,
            _ => 3,
        };
        [self.height, self.width, channels]
    }

    /// Decodes the pixels; `None` if there are too few bytes.
    fn decode(&self, out: &mut [u8]) -> Option<()> {
        let [height, width, channels] = self.size();
        // Rows are padded to a multiple of 4 bytes.
        let stride = (width * self.bits).div_ceil(32) * 4;
        for (y, row) in out.chunks_exact_mut(width * channels).enumerate() {
            let from = if self.is_top_down { y } else { height - 1 - y } * stride;
            let stored = self.pixels.get(from..)?.get(..(width * self.bits).div_ceil(8))?;
            for (x, pixel) in row.chunks_exact_mut(channels).enumerate() {
                let colour = self.colour(stored, x);
                pixel.copy_from_slice(&colour[..channels]);
            }
        }
        Some(())
    }

    /// Returns red, green, blue and alpha of a pixel.
    fn colour(&self, row: &[u8], x: usize) -> [u8; 4] {
        match self.bits {
            24 => [row[3 * x + 2], row[3 * x + 1], row[3 * x], 255],
            32 => self.places.map(|place| row[4 * x + place]),
            bits => {
                let in_byte = 8 / bits;
                let shift = 8 - bits - x % in_byte * bits;
                let index = usize::from(row[x / in_byte] >> shift) & ((1 << bits) - 1);
                // Indices beyond the palette are black.
                let [b, g, r, _] = self.palette.get(index).copied().unwrap_or_default();
                [r, g, b, 255]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::any_format;

    fn bmp(bits: u16, [width, height]: [i32; 2], palette: &[[u8; 4]], pixels: &[u8]) -> Vec<u8> {
        let begin = (HEADERS + 4 * palette.len()) as u32;
        let number = |n: u32| n.to_le_bytes();
        let mut out =
            [&b"BM"[..], &number(begin + pixels.len() as u32), &[0; 4], &number(begin), &number(40)].concat();
        out.extend([&width.to_le_bytes()[..], &height.to_le_bytes(), &[1, 0], &bits.to_le_bytes()].concat());
        out.extend([&[0; 16][..], &number(palette.len() as u32), &[0; 4]].concat());
        [out, palette.concat(), pixels.to_vec()].concat()
    }

    #[test]
    fn every_depth_is_read() {
        let colours = bmp(24, [1, 2], &[], &[1, 2, 3, 0, 4, 5, 6, 0]);
        let x = any_format::from_bytes("p", &colours).unwrap();
        assert_eq!((x.ty().to_string().as_str(), x.bytes()), ("ui8[2, 1, 3]", &[6, 5, 4, 3, 2, 1][..]));
        let down = bmp(24, [1, -2], &[], &[1, 2, 3, 0, 4, 5, 6, 0]);
        assert_eq!(any_format::from_bytes("p", &down).unwrap().bytes(), [3, 2, 1, 6, 5, 4]);
        assert_eq!(size("p", &down).unwrap(), [2, 1, 3]);
        let wide = bmp(32, [2, 1], &[], &[1, 2, 3, 9, 4, 5, 6, 9]);
        assert_eq!(any_format::from_bytes("p", &wide).unwrap().bytes(), [3, 2, 1, 6, 5, 4]);
        let greys = [[0; 4], [200, 200, 200, 0]];
        let bit = bmp(1, [3, 1], &greys, &[0b0100_0000, 0, 0, 0]);
        let x = any_format::from_bytes("p", &bit).unwrap();
        assert_eq!((x.ty().to_string().as_str(), x.bytes()), ("ui8[1, 3, 1]", &[0, 200, 0][..]));
        let four = bmp(4, [2, 1], &[[1, 2, 3, 0], [4, 5, 6, 0]], &[0x10, 0, 0, 0]);
        assert_eq!(any_format::from_bytes("p", &four).unwrap().bytes(), [6, 5, 4, 3, 2, 1]);
    }

    #[test]
    fn damage_is_an_error_and_never_a_panic() {
        let good = bmp(24, [3, 5], &[], &[7; 60]);
        for cut in 0..good.len() - 3 {
            assert!(from_bytes("cut", &good[..cut]).is_err(), "cut at {cut}");
        }
        for bit in 0..HEADERS * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let _ = from_bytes("flipped", &bad);
        }
        let mut packed = good;
        packed[30] = 1;
        assert!(from_bytes("packed", &packed).unwrap_err().to_string().contains("method 1"));
    }

    #[test]
    fn masks_place_the_color_channels() {
        let masks = [[0, 255, 0, 0], [0, 0, 255, 0], [0, 0, 0, 255], [255, 0, 0, 0]];
        let mut image = bmp(32, [2, 1], &masks, &[9, 1, 2, 3, 8, 4, 5, 6]);
        image[30] = 3;
        let x = any_format::from_bytes("p", &image).unwrap();
        assert_eq!((x.ty().to_string().as_str(), x.bytes()), ("ui8[1, 2, 3]", &[1, 2, 3, 4, 5, 6][..]));
        // Method 6 has a mask of alpha too.
        image[30] = 6;
        let x = any_format::from_bytes("p", &image).unwrap();
        assert_eq!((x.ty().to_string().as_str(), x.bytes()), ("ui8[1, 2, 4]", &[1, 2, 3, 9, 4, 5, 6, 8][..]));
    }
}
