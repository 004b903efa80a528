//! Bytes → [`Module`].

mod attribute;
mod operation;
mod raise;
mod shardy;

pub(crate) use attribute::width;
use crate::bytes::{Bytes, wrong};
use crate::file::{Entry, File};
pub(crate) use raise::is_default;
use std::cell::Cell;
use systole_base::{Error, ErrorKind, Result};
use systole_mlir::syntax::Module;

/// Bytes of memory that a module may take for each byte that it was read from.
pub const MOST_BYTES_PER_BYTE: usize = 512;
/// Bytes of memory that any module may take.
pub const SPARE_BYTES: usize = 1 << 16;

/// Attributes, types and regions nested deeper are refused: as deep as text may be.
const MAX_DEPTH: usize = 32;

/// Reads a portable artifact.
///
/// # Errors
/// `Data` for bytes that are none, with their place; `Unsupported` for ops, attributes and types that are not known here.
pub fn parse(bytes: &[u8]) -> Result<Module> {
    let file = File::new(bytes)?;
    let budget = bytes.len().saturating_mul(MOST_BYTES_PER_BYTE).saturating_add(SPARE_BYTES);
    let reader = Reader { file, left: Cell::new(budget) };
    let module = operation::module(&reader);
    module.map_err(|e| match reader.file.producer {
        "" => e,
        producer => e.because(format!("it was written by {producer}")),
    })
}

/// What reads a file.
struct Reader<'a> {
    file: File<'a>,
    /// Bytes of memory that may still be taken.
    left: Cell<usize>,
}

/// An error about what is not known here.
fn unknown(what: impl Into<String>, at: usize) -> Error {
    Error::new(ErrorKind::Unsupported, what).at(format!("byte {at}"))
}

impl<'a> Reader<'a> {
    /// Counts memory that is about to be taken.
    fn charge(&self, bytes: usize) -> Result<()> {
        let left = self.left.get().checked_sub(bytes).ok_or_else(|| {
            Error::new(ErrorKind::Data, "cannot read the bytecode: it unfolds to too large a program")
                .because(format!("over {MOST_BYTES_PER_BYTE} bytes of memory for each of its bytes"))
        })?;
        self.left.set(left);
        Ok(())
    }

    /// Text of the file, to keep.
    fn text(&self, bytes: &mut Bytes<'a>) -> Result<String> {
        let n = bytes.number()?;
        let text = self.file.string(n, bytes.at)?;
        self.charge(text.len() + 24)?;
        Ok(text.to_owned())
    }

    /// The entry of a number.
    fn entry(entries: &[Entry<'a>], n: u64, what: &str, at: usize) -> Result<Entry<'a>> {
        let found = usize::try_from(n).ok().and_then(|n| entries.get(n)).copied();
        found.ok_or_else(|| wrong(at, format!("there is no {what} {n}")))
    }
}
