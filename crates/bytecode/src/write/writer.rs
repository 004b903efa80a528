//! State of the bytecode writer: module, target version and tables.

use super::table::BytecodeTables;
use crate::StablehloVersion;
use systole_base::{Error, ErrorKind, Result};
use systole_mlir::syntax::MlirModule;

/// Maximum nesting of regions, lists and types, as in the reader.
pub(super) const MAX_DEPTH: usize = 32;

/// Writes a module.
pub(super) struct ModuleWriter<'m> {
    pub(super) module: &'m MlirModule,
    pub(super) version: StablehloVersion,
    pub(super) tables: BytecodeTables,
}

/// Returns an error about a feature that the target version lacks.
pub(super) fn refused(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, what)
}

impl ModuleWriter<'_> {
    /// Checks that the target version has a feature introduced in `since`.
    pub(super) fn since(&self, since: (u16, u16), what: &str) -> Result<()> {
        if self.version.ops() >= since {
            return Ok(());
        }
        let what = format!("{what} requires StableHLO {}.{}.0", since.0, since.1);
        Err(refused(what).because(format!("the program is written for StableHLO {}", self.version)))
    }
}
