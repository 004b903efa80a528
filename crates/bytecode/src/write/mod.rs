//! [`Module`] → bytes.

use crate::Version;
use systole_base::Result;
use systole_mlir::syntax::Module;

/// A module as a portable artifact of a version.
///
/// # Errors
/// `Unsupported`: an op, a type or an attribute that the version has not.
pub fn write(_module: &Module, _version: Version) -> Result<Vec<u8>> {
    Err(systole_base::Error::new(systole_base::ErrorKind::Unsupported, "x"))
}
