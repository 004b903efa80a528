//! Maximum decoded image size (`SYSTOLE_PICTURE_LIMIT`), checked before decoding; common image errors.

use systole_base::{Error, Result, err, knobs};

/// Default limit in bytes of pixels: 192 Mi, as for 8,192 × 8,192 in color.
const USUAL: usize = 192 << 20;
/// Limit for the fuzzer, which would spend most of its time on large gray images.
const FUZZED: usize = 16 << 10;

/// Returns the maximum size of a decoded image in bytes.
#[allow(unexpected_cfgs)]
pub(super) fn most_bytes() -> Result<usize> {
    if cfg!(fuzzing) { Ok(FUZZED) } else { Ok(knobs::PICTURE_LIMIT.get_bytes()?.unwrap_or(USUAL)) }
}

/// Whether an image of `bytes` exceeds the limit.
pub(super) fn is_too_large(bytes: usize) -> bool {
    bytes > most_bytes().unwrap_or(USUAL)
}

/// Returns the reason for rejecting an image, and how to change the limit.
pub(super) fn too_large() -> String {
    let (most, knob) = (most_bytes().unwrap_or(USUAL), knobs::PICTURE_LIMIT.name);
    format!("the limit is {most} bytes of pixels ({} MiB); {knob} changes it", most >> 20)
}

/// Returns the error for an image that is damaged, truncated, too large or unsupported.
pub(super) fn unreadable(name: &str, why: impl Into<String>) -> Error {
    err!(Data, "cannot read the image")
        .at(name)
        .because(why)
        .hint("open the image in another program and save it as PNG")
}
