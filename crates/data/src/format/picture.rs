//! Pictures of any format that is read, told by their first bytes.

use super::{jpeg, png};
use std::path::Path;
use systole_base::{Error, ErrorKind, Literal, Result};

/// Whether these first bytes (8 are enough) begin a picture that can be read.
pub fn is_picture(start: &[u8]) -> bool {
    is_jpeg(start) || start.starts_with(b"\x89PNG\r\n\x1a\n")
}

fn is_jpeg(start: &[u8]) -> bool {
    start.starts_with(&[0xff, 0xd8, 0xff])
}

/// Reads a JPEG or PNG from memory: `→ ui8[H, W, C]`, 1 to 4 channels. `name` stands for the file in messages.
///
/// # Errors
/// When it is neither, is damaged or cut, or too large.
pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<Literal> {
    if is_jpeg(bytes) { jpeg::from_bytes(name, bytes) } else { png::from_bytes(name, bytes) }
}

/// Reads a JPEG or PNG file.
///
/// # Errors
/// As [`from_bytes`]; `Io` when the file cannot be read.
pub fn read(path: impl AsRef<Path>) -> Result<Literal> {
    let path = path.as_ref();
    let bytes = std::fs::read(path)
        .map_err(|e| Error::io("cannot read", path, e).hint("check the path of the picture"))?;
    if bytes.is_empty() {
        return Err(Error::new(ErrorKind::Data, "the picture is empty").at(path.display().to_string()));
    }
    from_bytes(&path.display().to_string(), &bytes)
}
