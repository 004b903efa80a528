//! What the files of this folder share: the file that is read, and how much memory it may still take.

use crate::byte_io::{ByteReader, wrong};
use crate::file::{BytecodeFile, UnparsedEntry};
use std::cell::Cell;
use systole_base::{Error, ErrorKind, Result};

/// Bytes of memory that a module may take for each byte that it was read from.
pub const MOST_BYTES_PER_BYTE: usize = 512;
/// Bytes of memory that any module may take.
pub const SPARE_BYTES: usize = 1 << 16;

/// Attributes, types and regions nested deeper are refused: as deep as text may be.
pub(super) const MAX_DEPTH: usize = 32;

/// What reads a file.
pub(super) struct BytecodeReader<'a> {
    pub(super) file: BytecodeFile<'a>,
    /// Bytes of memory that may still be taken.
    pub(super) left: Cell<usize>,
}

/// An error about what is not known here.
pub(super) fn unknown(what: impl Into<String>, at: usize) -> Error {
    Error::new(ErrorKind::Unsupported, what).at(format!("byte {at}"))
}

impl<'a> BytecodeReader<'a> {
    /// Counts memory that is about to be taken.
    pub(super) fn charge(&self, bytes: usize) -> Result<()> {
        let left = self.left.get().checked_sub(bytes).ok_or_else(|| {
            Error::new(ErrorKind::Data, "cannot read the bytecode: it unfolds to too large a program")
                .because(format!("over {MOST_BYTES_PER_BYTE} bytes of memory for each of its bytes"))
        })?;
        self.left.set(left);
        Ok(())
    }

    /// Text of the file, to keep.
    pub(super) fn text(&self, bytes: &mut ByteReader<'a>) -> Result<String> {
        let n = bytes.number()?;
        let text = self.file.string(n, bytes.at)?;
        self.charge(text.len() + 24)?;
        Ok(text.to_owned())
    }

    /// The entry of a number.
    pub(super) fn entry(
        entries: &[UnparsedEntry<'a>],
        n: u64,
        what: &str,
        at: usize,
    ) -> Result<UnparsedEntry<'a>> {
        let found = usize::try_from(n).ok().and_then(|n| entries.get(n)).copied();
        found.ok_or_else(|| wrong(at, format!("there is no {what} {n}")))
    }
}
