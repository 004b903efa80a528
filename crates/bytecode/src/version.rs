//! StableHLO version numbers, and the version of a portable artifact.

use std::fmt;

/// Newest supported StableHLO version.
pub const CURRENT: StablehloVersion = StablehloVersion::new(1, 20, 0);

/// A StableHLO version: `1.17.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StablehloVersion {
    /// Major version: raised if old programs can no longer be read.
    pub major: u16,
    /// Minor version: raised with every change of the ops.
    pub minor: u16,
    /// Patch version: raised with every release.
    pub patch: u16,
}

impl StablehloVersion {
    /// Creates the version `major.minor.patch`.
    pub const fn new(major: u16, minor: u16, patch: u16) -> StablehloVersion {
        StablehloVersion { major, minor, patch }
    }

    /// Parses `1.17.0`; `None` if the text is not a version.
    pub fn from_text(text: &str) -> Option<StablehloVersion> {
        let mut parts = text.split('.').map(|part| part.parse().ok());
        let version = StablehloVersion::new(parts.next()??, parts.next()??, parts.next()??);
        parts.next().is_none().then_some(version)
    }

    /// Returns the part of the version that determines the available ops.
    pub(crate) fn ops(self) -> (u16, u16) {
        (self.major, self.minor)
    }
}

impl fmt::Display for StablehloVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Returns the StableHLO version of a portable artifact; `None` if the bytes are not one.
pub fn version_of(bytes: &[u8]) -> Option<StablehloVersion> {
    let producer = crate::file::producer(bytes)?;
    StablehloVersion::from_text(producer.strip_prefix("StableHLO_v")?)
}
