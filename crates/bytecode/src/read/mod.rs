//! Reads MLIR bytecode to an [`MlirModule`].

mod attribute;
mod operation;
mod raise;
mod reader;
mod shardy;

use crate::file::BytecodeFile;
pub(crate) use attribute::width;
pub(crate) use raise::is_default;
use reader::BytecodeReader;
pub use reader::{MOST_BYTES_PER_BYTE, SPARE_BYTES};
use std::cell::Cell;
use systole_base::Result;
use systole_mlir::syntax::MlirModule;

/// Reads a StableHLO portable artifact (MLIR bytecode).
///
/// # Errors
/// `Data` for invalid bytes, with their offset; `Unsupported` for unknown ops, attributes and types.
pub fn parse(bytes: &[u8]) -> Result<MlirModule> {
    let file = BytecodeFile::new(bytes)?;
    let budget = bytes.len().saturating_mul(MOST_BYTES_PER_BYTE).saturating_add(SPARE_BYTES);
    let reader = BytecodeReader { file, left: Cell::new(budget) };
    let module = operation::module(&reader);
    module.map_err(|e| match reader.file.producer {
        "" => e,
        producer => e.because(format!("the file was written by {producer}")),
    })
}
