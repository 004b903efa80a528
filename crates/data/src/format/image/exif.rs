//! EXIF orientation of JPEG and WebP photos: reads the tag and rotates images upright. Reads no other EXIF data.

use crate::HostArray;

const APP1: u8 = 0xe1;
const START_OF_SCAN: u8 = 0xda;
const ORIENTATION: u16 = 0x0112;

/// Returns the EXIF orientation of a JPEG file, 1 to 8; 1 (unrotated) if it is missing or unreadable.
pub(crate) fn orientation(jpeg: &[u8]) -> u8 {
    tiff_block(jpeg).and_then(of_tiff).filter(|o| (1..=8).contains(o)).unwrap_or(1)
}

/// Returns the orientation from an EXIF block, as in WebP.
#[cfg(feature = "webp")]
pub(crate) fn orientation_of_block(block: &[u8]) -> u8 {
    let tiff = block.strip_prefix(b"Exif\0\0").unwrap_or(block);
    of_tiff(tiff).filter(|o| (1..=8).contains(o)).unwrap_or(1)
}

/// Rotates and flips `x: T[H, W, C]` upright.
pub(crate) fn upright(x: HostArray, orientation: u8) -> HostArray {
    match orientation {
        2 => x.flip_left_right(),
        3 => x.rot90(2),
        4 => x.flip_up_down(),
        5 => x.flip_left_right().rot90(1),
        6 => x.rot90(3),
        7 => x.flip_left_right().rot90(3),
        8 => x.rot90(1),
        _ => x,
    }
}

/// Returns the TIFF structure in the EXIF segment.
fn tiff_block(jpeg: &[u8]) -> Option<&[u8]> {
    let mut rest = jpeg.get(2..)?;
    loop {
        let [0xff, marker, high, low, ..] = *rest else { return None };
        let length = usize::from(u16::from_be_bytes([high, low]));
        let content = rest.get(4..2 + length)?;
        match marker {
            APP1 if content.starts_with(b"Exif\0\0") => return content.get(6..),
            START_OF_SCAN => return None,
            _ => rest = rest.get(2 + length..)?,
        }
    }
}

fn of_tiff(tiff: &[u8]) -> Option<u8> {
    let is_little = tiff.starts_with(b"II");
    let short = |at: usize| {
        let bytes: [u8; 2] = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if is_little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let long = |at: usize| {
        let bytes: [u8; 4] = tiff.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if is_little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    };
    let table = long(4)? as usize;
    let entries = usize::from(short(table)?);
    let at = (0..entries).map(|i| table + 2 + 12 * i).find(|at| short(*at) == Some(ORIENTATION))?;
    u8::try_from(short(at + 8)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::any_format;
    use systole_base::Literal;

    const PHOTO: &[u8] = include_bytes!("../../../fixtures/gradient.jpg");

    /// The fixture with an EXIF block prepended, as phones write it.
    fn turned(orientation: u16, is_little: bool) -> Vec<u8> {
        let short = |v: u16| if is_little { v.to_le_bytes() } else { v.to_be_bytes() };
        let long = |v: u32| if is_little { v.to_le_bytes() } else { v.to_be_bytes() };
        let mut block = b"Exif\0\0".to_vec();
        block.extend(if is_little { b"II" } else { b"MM" });
        block.extend([&short(42)[..], &long(8), &short(2)].concat());
        // Another entry before it: the camera's maker.
        block.extend([&short(0x010f)[..], &short(2), &long(4), b"abc\0"].concat());
        block.extend([&short(0x0112)[..], &short(3), &long(1), &short(orientation), &[0, 0]].concat());
        let length = (block.len() as u16 + 2).to_be_bytes();
        [&PHOTO[..2], &[0xff, APP1], &length, &block, &PHOTO[2..]].concat()
    }

    fn read(bytes: &[u8]) -> Literal {
        static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let n = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("systole-exif-{}-{n}.jpg", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let (x, size) = (any_format::read(&path).unwrap(), any_format::size(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(size, *x.shape().dims());
        x
    }

    #[test]
    fn photos_are_turned_as_they_were_seen() {
        let stored = any_format::from_bytes("p", PHOTO).unwrap();
        let (h, w) = (stored.shape()[0], stored.shape()[1]);
        let at =
            |x: &Literal, y: usize, column: usize| x.bytes()[3 * (y * x.shape()[1] + column)..][..3].to_vec();
        // The stored pixels at the displayed upper left and upper right corners.
        let corners = [
            ((0, 0), (0, w - 1)),
            ((0, w - 1), (0, 0)),
            ((h - 1, w - 1), (h - 1, 0)),
            ((h - 1, 0), (h - 1, w - 1)),
            ((0, 0), (h - 1, 0)),
            ((h - 1, 0), (0, 0)),
            ((h - 1, w - 1), (0, w - 1)),
            ((0, w - 1), (h - 1, w - 1)),
        ];
        for (i, (left, right)) in corners.into_iter().enumerate() {
            let o = i as u16 + 1;
            for is_little in [true, false] {
                let x = read(&turned(o, is_little));
                // Bytes in records and WebDataset and files in folders decode alike.
                assert!(x == any_format::from_bytes("bytes", &turned(o, is_little)).unwrap(), "{o}");
                let expected = if o < 5 { [h, w, 3] } else { [w, h, 3] };
                assert_eq!(*x.shape().dims(), expected, "{o}");
                assert_eq!(at(&x, 0, 0), at(&stored, left.0, left.1), "{o}");
                assert_eq!(at(&x, 0, expected[1] - 1), at(&stored, right.0, right.1), "{o}");
            }
        }
    }

    #[test]
    fn what_makes_no_sense_leaves_the_picture_as_it_is() {
        for o in [0, 9, 300] {
            assert_eq!(orientation(&turned(o, true)), 1);
        }
        let good = turned(6, true);
        assert_eq!((orientation(&good), orientation(PHOTO), orientation(b"")), (6, 1, 1));
        for cut in 0..good.len().min(80) {
            assert!((1..=8).contains(&orientation(&good[..cut])));
        }
        for bit in 0..80 * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!((1..=8).contains(&orientation(&bad)));
        }
    }

    #[test]
    fn segments_before_the_exif_block_are_skipped() {
        let photo = turned(6, false);
        let jfif = [&[0xff, 0xe0, 0, 16][..], b"JFIF\0", &[1, 1, 0, 0, 1, 0, 1, 0, 0]].concat();
        assert_eq!(orientation(&[&photo[..2], &jfif, &photo[2..]].concat()), 6);
        assert_eq!(orientation(&[&photo[..2], &jfif, &jfif, &photo[2..]].concat()), 6);
    }
}
