//! Pictures of any format that is read, told by their first bytes; those of other formats are told by name.

#[cfg(feature = "gif")]
use super::gif;
#[cfg(feature = "webp")]
use super::webp;
use super::{bmp, exif, jpeg, png};
use crate::HostArray;
use crate::input::{self, Input};
use std::io::Read;
use std::path::Path;
use systole_base::{Error, ErrorKind, Literal, Result};

/// Formats that are read.
enum Format {
    Jpeg,
    Png,
    Bmp,
    #[cfg(feature = "gif")]
    Gif,
    #[cfg(feature = "webp")]
    WebP,
}

impl Format {
    fn of(start: &[u8]) -> Option<Format> {
        match start {
            [0xff, 0xd8, 0xff, ..] => Some(Format::Jpeg),
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some(Format::Png),
            start if bmp::is_bmp(start) => Some(Format::Bmp),
            #[cfg(feature = "gif")]
            [b'G', b'I', b'F', b'8', ..] => Some(Format::Gif),
            #[cfg(feature = "webp")]
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Format::WebP),
            _ => None,
        }
    }
}

/// Whether these first bytes (16 are enough) begin a picture that can be read.
pub fn is_picture(start: &[u8]) -> bool {
    Format::of(start).is_some()
}

/// Bytes at the start of a file that tell the picture's size, thumbnails and colour profiles included.
const HEADERS: u64 = 1 << 20;

/// Formats of pictures that are not read: where their mark stands, the mark, the name.
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

/// The name of a picture format that is not read, by a file's first bytes (16 are enough).
pub fn other_format(start: &[u8]) -> Option<&'static str> {
    if is_picture(start) {
        return None;
    }
    let begins =
        |(at, mark, _): &&(usize, &[u8], &str)| start.get(*at..).is_some_and(|s| s.starts_with(mark));
    OTHERS.iter().find(begins).map(|(_, _, name)| *name)
}

/// Reads a JPEG, PNG or BMP from memory: `→ ui8[H, W, C]`, 1 to 4 channels. `name` stands for the file in messages. A photo is
/// turned the way up that its EXIF block says, wherever its bytes come from; TensorFlow does not look at that.
///
/// # Errors
/// When it is none of these, is damaged or cut, or too large.
pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<Literal> {
    let picture = match Format::of(bytes) {
        Some(Format::Jpeg) => jpeg::from_bytes(name, bytes)?,
        Some(Format::Bmp) => bmp::from_bytes(name, bytes)?,
        Some(Format::Png) => png::from_bytes(name, bytes)?,
        #[cfg(feature = "gif")]
        Some(Format::Gif) => gif::from_bytes(name, bytes)?,
        #[cfg(feature = "webp")]
        Some(Format::WebP) => webp::from_bytes(name, bytes)?,
        None => return Err(not_read(name, bytes)),
    };
    match exif::orientation(bytes) {
        1 => Ok(picture),
        turned => exif::upright(HostArray::from(picture), turned).into_literal(),
    }
}

fn not_read(name: &str, bytes: &[u8]) -> Error {
    let format = other_format(bytes);
    let is = format.map_or("no picture".to_string(), |format| format!("a {format} file"));
    let feature = match format {
        Some("GIF") => "build the program with --features gif, or ",
        Some("WebP") => "build the program with --features webp, or ",
        _ => "",
    };
    Error::new(ErrorKind::Data, format!("this is {is}: only JPEG, PNG and BMP are read"))
        .at(name)
        .because(format!("it begins with {:02x?}", &bytes[..bytes.len().min(8)]))
        .hint(format!("{feature}open it elsewhere and save it as JPEG or PNG"))
}

/// Height, width and channels of a picture file as [`read`] gives it, without unpacking it.
///
/// # Errors
/// As [`read`], but for damage after the header.
pub fn size(path: impl AsRef<Path>) -> Result<[usize; 3]> {
    let path = path.as_ref();
    let mut bytes = Vec::new();
    let read = Input::open(path).and_then(|f| f.take(HEADERS).read_to_end(&mut bytes));
    read.map_err(|e| Error::io("cannot read", path, e))?;
    size_of_bytes(&path.display().to_string(), &bytes)
}

/// [`size`] of a picture in memory.
///
/// # Errors
/// As [`size`].
pub fn size_of_bytes(name: &str, bytes: &[u8]) -> Result<[usize; 3]> {
    let [height, width, channels] = match Format::of(bytes) {
        Some(Format::Jpeg) => jpeg::size(name, bytes)?,
        Some(Format::Bmp) => bmp::size(name, bytes)?,
        Some(Format::Png) => png::size(name, bytes)?,
        #[cfg(feature = "gif")]
        Some(Format::Gif) => gif::size(name, bytes)?,
        #[cfg(feature = "webp")]
        Some(Format::WebP) => webp::size(name, bytes)?,
        None => return Err(not_read(name, bytes)),
    };
    let lies = exif::orientation(bytes) >= 5;
    Ok(if lies { [width, height, channels] } else { [height, width, channels] })
}

/// Reads a JPEG, PNG or BMP file.
///
/// # Errors
/// As [`from_bytes`]; `Io` when the file cannot be read.
pub fn read(path: impl AsRef<Path>) -> Result<Literal> {
    let path = path.as_ref();
    let bytes = input::read(path)
        .map_err(|e| Error::io("cannot read", path, e).hint("check the path of the picture"))?;
    if bytes.is_empty() {
        return Err(Error::new(ErrorKind::Data, "the picture is empty").at(path.display().to_string()));
    }
    from_bytes(&path.display().to_string(), &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(from_bytes("a", b"hello").unwrap_err().to_string().contains("no picture"));
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
