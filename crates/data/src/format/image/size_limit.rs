//! How large a picture of any format may be: it is refused before it is unpacked.

use systole_base::{Error, ErrorKind, Result, knobs};

/// Bytes of pixels: 192 Mi, as 8,192 × 8,192 in colour, unless the knob says otherwise.
const USUAL: usize = 192 << 20;
/// The fuzzer's are small: grey for want of data, they would take most of its time.
const FUZZED: usize = 16 << 10;

/// The most bytes of pixels that a picture may have.
#[allow(unexpected_cfgs)]
pub(super) fn most_bytes() -> Result<usize> {
    match cfg!(fuzzing) {
        true => Ok(FUZZED),
        false => Ok(knobs::PICTURE_LIMIT.get_bytes()?.unwrap_or(USUAL)),
    }
}

/// Whether so many bytes are too many.
pub(super) fn is_too_large(bytes: usize) -> bool {
    bytes > most_bytes().unwrap_or(USUAL)
}

/// Why a picture is refused, and what could be done.
pub(super) fn too_large() -> String {
    let (most, knob) = (most_bytes().unwrap_or(USUAL), knobs::PICTURE_LIMIT.name);
    format!("at most {most} bytes of pixels ({} MiB) are unpacked; {knob} changes that", most >> 20)
}

/// The error of an image that is damaged, cut, too large or of a kind that is not read.
pub(super) fn unreadable(name: &str, why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Data, "this picture cannot be read")
        .at(name)
        .because(why)
        .hint("open the picture elsewhere and save it again as PNG")
}
