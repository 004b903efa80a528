//! State of the bytecode reader: the file and the remaining memory budget.

use crate::byte_io::{ByteReader, wrong};
use crate::file::{BytecodeFile, UnparsedEntry};
use std::cell::Cell;
use systole_base::{Error, ErrorKind, Result, err};

/// Maximum bytes of memory per byte of input for a module.
pub const MOST_BYTES_PER_BYTE: usize = 512;
/// Bytes of memory allowed for any module.
pub const SPARE_BYTES: usize = 1 << 16;

/// Maximum nesting of attributes, types and regions, as in text.
pub(super) const MAX_DEPTH: usize = 32;

/// Reads a bytecode file.
pub(super) struct BytecodeReader<'a> {
    pub(super) file: BytecodeFile<'a>,
    /// Remaining memory budget in bytes.
    pub(super) left: Cell<usize>,
}

/// Returns an error about an unsupported feature.
pub(super) fn unknown(what: impl Into<String>, at: usize) -> Error {
    Error::new(ErrorKind::Unsupported, what).at(format!("byte {at}"))
}

impl<'a> BytecodeReader<'a> {
    /// Charges memory to the budget before allocating it.
    pub(super) fn charge(&self, bytes: usize) -> Result<()> {
        let left = self.left.get().checked_sub(bytes).ok_or_else(|| {
            err!(Data, "cannot read the bytecode: it expands to too large a program").because(format!(
                "the program needs more than {MOST_BYTES_PER_BYTE} bytes of memory per input byte"
            ))
        })?;
        self.left.set(left);
        Ok(())
    }

    /// Reads a string and charges its memory.
    pub(super) fn text(&self, bytes: &mut ByteReader<'a>) -> Result<String> {
        let n = bytes.number()?;
        let text = self.file.string(n, bytes.at)?;
        self.charge(text.len() + 24)?;
        Ok(text.to_owned())
    }

    /// Returns an entry by number.
    pub(super) fn entry(
        entries: &[UnparsedEntry<'a>],
        n: u64,
        what: &str,
        at: usize,
    ) -> Result<UnparsedEntry<'a>> {
        let found = usize::try_from(n).ok().and_then(|n| entries.get(n)).copied();
        found.ok_or_else(|| wrong(at, format!("{what} {n} does not exist")))
    }
}
