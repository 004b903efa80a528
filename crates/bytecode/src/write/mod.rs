//! [`Module`] → bytes.

mod attribute;
mod elements;
mod lower;
mod operation;
mod table;

use crate::Version;
use crate::bytes::Sink;
use crate::file::{MAGIC, NEWEST, section};
use crate::version::CURRENT;
use systole_base::{Error, ErrorKind, Result};
use systole_mlir::syntax::Module;
use table::Tables;

/// Regions, lists and types nested deeper are refused, as where they are read.
const MAX_DEPTH: usize = 32;
/// The oldest version that is written.
const OLDEST: Version = Version::new(1, 0, 0);

/// A module as a portable artifact of a version.
///
/// # Errors
/// `Unsupported`: an op, a type or an attribute that the version does not have, by name; a version that is not known here.
/// `Data`: an op without an attribute that it must have.
pub fn write(module: &Module, version: Version) -> Result<Vec<u8>> {
    if version < OLDEST || version.ops() > CURRENT.ops() {
        return Err(Error::new(ErrorKind::Unsupported, format!("StableHLO {version} is not written"))
            .because(format!("the ops of versions {OLDEST} to {CURRENT} are known here")));
    }
    let mut writer = Writer { module, version, tables: Tables::default() };
    let ir = operation::module(&mut writer)?;
    Ok(writer.tables.file(version, &ir))
}

/// What writes a module.
struct Writer<'m> {
    module: &'m Module,
    version: Version,
    tables: Tables,
}

/// An error about what a version does not have.
fn refused(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, what)
}

impl Writer<'_> {
    /// Whether the version has what is there since another.
    fn since(&self, since: (u16, u16), what: &str) -> Result<()> {
        if self.version.ops() >= since {
            return Ok(());
        }
        let what = format!("{what} is there since StableHLO {}.{}.0", since.0, since.1);
        Err(refused(what).because(format!("the program is written for {}", self.version)))
    }
}

impl Tables {
    /// All sections.
    fn file(self, version: Version, ir: &Sink) -> Vec<u8> {
        let mut out = Sink(MAGIC.to_vec());
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
