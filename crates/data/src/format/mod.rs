//! File formats: bytes to arrays and back. Every lie of a file is an error with file, offset, expected and found.

pub mod idx;
pub mod png;
