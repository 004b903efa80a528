//! Decodes images of any supported format, detected by their first bytes; names unsupported formats.

#[cfg(feature = "gif")]
use super::gif;
#[cfg(feature = "webp")]
use super::webp;
use super::{bmp, exif, jpeg, png};
use crate::HostArray;
use crate::input_file::{self, InputFile};
use std::io::Read;
use std::path::Path;
use systole_base::{Error, Literal, Result, err};

/// Supported image format.
struct ImageFormat {
    begins: fn(&[u8]) -> bool,
    read: fn(&str, &[u8]) -> Result<Literal>,
    size: fn(&str, &[u8]) -> Result<[usize; 3]>,
}

const FORMATS: &[ImageFormat] = &[
    ImageFormat { begins: |b| b.starts_with(b"\xff\xd8\xff"), read: jpeg::from_bytes, size: jpeg::size },
    ImageFormat { begins: |b| b.starts_with(b"\x89PNG\r\n\x1a\n"), read: png::from_bytes, size: png::size },
    ImageFormat { begins: bmp::is_bmp, read: bmp::from_bytes, size: bmp::size },
    #[cfg(feature = "gif")]
    ImageFormat { begins: |b| b.starts_with(b"GIF8"), read: gif::from_bytes, size: gif::size },
    #[cfg(feature = "webp")]
    ImageFormat { begins: webp::is_webp, read: webp::from_bytes, size: webp::size },
];

impl ImageFormat {
    fn of(start: &[u8]) -> Option<&'static ImageFormat> {
        FORMATS.iter().find(|format| (format.begins)(start))
    }
}

/// Whether the first bytes (16 are enough) are those of a supported image.
pub fn is_picture(start: &[u8]) -> bool {
    ImageFormat::of(start).is_some()
}

/// Number of leading bytes that contain the image size, after thumbnails and color profiles.
const HEADERS: u64 = 1 << 20;

/// Unsupported image formats: offset of the signature, signature, name.
const OTHERS: [(usize, &[u8], &str); 12] = [
    (0, b"GIF8", "GIF"),
    (8, b"WEBP", "WebP"),
    (0, b"II*\0", "TIFF"),
    (0, b"MM\0*", "TIFF"),
    (4, b"ftyphei", "HEIC"),
    (4, b"ftypmif1", "HEIC"),
    (4, b"ftypavi", "AVIF"),
    (0, b"\xff\x0a", "JPEG XL"),
    (4, b"JXL ", "JPEG XL"),
    (4, b"jP  ", "JPEG 2000"),
    (0, b"<svg", "SVG"),
    (0, b"%PDF", "PDF"),
];

/// Returns the name of an unsupported image format, by a file's first bytes (16 are enough).
pub fn other_format(start: &[u8]) -> Option<&'static str> {
    if is_picture(start) {
        return None;
    }
    let begins =
        |(at, mark, _): &&(usize, &[u8], &str)| start.get(*at..).is_some_and(|s| s.starts_with(mark));
    OTHERS.iter().find(begins).map(|(_, _, name)| *name)
}

/// Decodes a JPEG, PNG or BMP from memory: `→ ui8[H, W, C]`, 1 to 4 channels. `name` is used in messages. Photos are
/// rotated by their EXIF orientation, unlike in TensorFlow.
///
/// # Errors
/// If the format is unsupported, or the image is damaged, truncated or too large.
pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<Literal> {
    let format = ImageFormat::of(bytes).ok_or_else(|| not_read(name, bytes))?;
    let picture = (format.read)(name, bytes)?;
    match exif::orientation(bytes) {
        1 => Ok(picture),
        turned => exif::upright(HostArray::from(picture), turned).into_literal(),
    }
}

fn not_read(name: &str, bytes: &[u8]) -> Error {
    let format = other_format(bytes);
    let is = format.map_or("an unknown format".to_string(), |format| format!("a {format} file"));
    let feature = match format {
        Some("GIF") => "build the program with --features gif, or ",
        Some("WebP") => "build the program with --features webp, or ",
        _ => "",
    };
    err!(Data, "expected a JPEG, PNG or BMP image, found {is}")
        .at(name)
        .because(format!("the first bytes of the file are {:02x?}", &bytes[..bytes.len().min(8)]))
        .hint(format!("{feature}open it in another program and save it as JPEG or PNG"))
}

/// Returns height, width and channels of an image file as [`read`] returns it, without decoding.
///
/// # Errors
/// Like [`read`], except for damage after the header.
pub fn size(path: impl AsRef<Path>) -> Result<[usize; 3]> {
    let path = path.as_ref();
    let mut bytes = Vec::new();
    let read = InputFile::open(path).and_then(|f| f.take(HEADERS).read_to_end(&mut bytes));
    read.map_err(|e| Error::io("cannot read", path, e))?;
    size_of_bytes(&path.display().to_string(), &bytes)
}

/// Like [`size`], for an image in memory.
///
/// # Errors
/// See [`size`].
pub fn size_of_bytes(name: &str, bytes: &[u8]) -> Result<[usize; 3]> {
    let format = ImageFormat::of(bytes).ok_or_else(|| not_read(name, bytes))?;
    let [height, width, channels] = (format.size)(name, bytes)?;
    let lies = exif::orientation(bytes) >= 5;
    Ok(if lies { [width, height, channels] } else { [height, width, channels] })
}

/// Reads a JPEG, PNG or BMP file.
///
/// # Errors
/// Like [`from_bytes`]; `Io` if the file cannot be read.
pub fn read(path: impl AsRef<Path>) -> Result<Literal> {
    let path = path.as_ref();
    let bytes = input_file::read(path)
        .map_err(|e| Error::io("cannot read", path, e).hint("check the path of the image file"))?;
    if bytes.is_empty() {
        return Err(err!(Data, "the image file is empty")
            .at(path.display().to_string())
            .hint("copy or download the image again"));
    }
    from_bytes(&path.display().to_string(), &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_base::ErrorKind;
    use systole_testing::assert_error;

    #[test]
    fn formats_that_are_not_read_are_named() {
        for (bytes, name) in [
            (&b"GIF89a\x01\0"[..], "GIF"),
            (b"RIFF\x10\0\0\0WEBPVP8 ", "WebP"),
            (b"\0\0\0\x18ftypheic\0\0", "HEIC"),
            (b"\0\0\0\x18ftypavif\0\0", "AVIF"),
            (b"II*\0\x08\0\0\0", "TIFF"),
        ] {
            if is_picture(bytes) {
                continue;
            }
            let e = from_bytes("album/1.x", bytes).unwrap_err().to_string();
            assert!(e.contains(name) && e.contains("album/1.x") && e.contains("JPEG or PNG"), "{e}");
            assert!(!is_picture(bytes));
        }
        assert_error(&from_bytes("a", b"hello").unwrap_err(), ErrorKind::Data, &["a", "68"]);
    }

    #[test]
    fn sizes_are_those_of_the_unpacked_pictures() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
        for name in ["gradient.jpg", "grey.jpg", "progressive.jpg"] {
            let path = fixtures.join(name);
            assert_eq!(size(&path).unwrap(), *read(&path).unwrap().shape().dims(), "{name}");
        }
        assert!(size(fixtures.join("two.npz")).is_err());
    }
}
