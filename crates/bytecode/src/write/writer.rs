//! What the files of this folder share: the module that is written, for which version, and the tables that it fills.

use super::table::BytecodeTables;
use crate::StablehloVersion;
use systole_base::{Error, ErrorKind, Result};
use systole_mlir::syntax::MlirModule;

/// Regions, lists and types nested deeper are refused, as where they are read.
pub(super) const MAX_DEPTH: usize = 32;

/// What writes a module.
pub(super) struct ModuleWriter<'m> {
    pub(super) module: &'m MlirModule,
    pub(super) version: StablehloVersion,
    pub(super) tables: BytecodeTables,
}

/// An error about what a version does not have.
pub(super) fn refused(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, what)
}

impl ModuleWriter<'_> {
    /// Whether the version has what is there since another.
    pub(super) fn since(&self, since: (u16, u16), what: &str) -> Result<()> {
        if self.version.ops() >= since {
            return Ok(());
        }
        let what = format!("{what} is there since StableHLO {}.{}.0", since.0, since.1);
        Err(refused(what).because(format!("the program is written for {}", self.version)))
    }
}
