//! Writes an [`MlirModule`] as MLIR bytecode.

mod attribute;
mod elements;
mod lower;
mod operation;
mod table;
mod writer;

use crate::StablehloVersion;
use crate::byte_io::ByteSink;
use crate::file::{MAGIC, NEWEST, section};
use crate::version::CURRENT;
use systole_base::{Result, err};
use systole_mlir::syntax::MlirModule;
use table::BytecodeTables;
use writer::ModuleWriter;

/// Oldest StableHLO version that can be written.
const OLDEST: StablehloVersion = StablehloVersion::new(1, 0, 0);

/// Writes a module as a StableHLO portable artifact of this version.
///
/// # Errors
/// `Unsupported` for ops, types or attributes that the version lacks (by name), or an unknown version; `Data` for an op
/// that lacks a required attribute.
pub fn write(module: &MlirModule, version: StablehloVersion) -> Result<Vec<u8>> {
    if version < OLDEST || version.ops() > CURRENT.ops() {
        return Err(err!(Unsupported, "cannot write StableHLO {version}")
            .hint(format!("choose a version from {OLDEST} to {CURRENT}")));
    }
    let mut writer = ModuleWriter { module, version, tables: BytecodeTables::default() };
    let ir = operation::module(&mut writer)?;
    Ok(writer.tables.file(version, &ir))
}

impl BytecodeTables {
    /// Returns the file with all sections.
    fn file(self, version: StablehloVersion, ir: &ByteSink) -> Vec<u8> {
        let mut out = ByteSink(MAGIC.to_vec());
        out.number(NEWEST);
        out.0.extend(format!("StableHLO_v{version}\0").bytes());
        let (content, sizes) = self.entries();
        out.section(section::DIALECTS, &self.dialects());
        out.section(section::ATTRIBUTES, &content);
        out.section(section::OFFSETS, &sizes);
        out.section(section::IR, ir);
        out.section(section::STRINGS, &self.strings());
        out.section(section::PROPERTIES, &self.properties());
        out.0
    }
}
