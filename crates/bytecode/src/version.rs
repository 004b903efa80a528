//! Versions of StableHLO.

use std::fmt;

/// The newest version whose ops are known here.
pub const CURRENT: StablehloVersion = StablehloVersion::new(1, 20, 0);

/// A version of StableHLO: `1.17.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StablehloVersion {
    /// Raised where old programs are no longer read.
    pub major: u16,
    /// Raised with every change of the ops.
    pub minor: u16,
    /// Raised with every release.
    pub patch: u16,
}

impl StablehloVersion {
    /// `major.minor.patch`
    pub const fn new(major: u16, minor: u16, patch: u16) -> StablehloVersion {
        StablehloVersion { major, minor, patch }
    }

    /// `1.17.0` as a version; `None`: the text is none.
    pub fn from_text(text: &str) -> Option<StablehloVersion> {
        let mut parts = text.split('.').map(|part| part.parse().ok());
        let version = StablehloVersion::new(parts.next()??, parts.next()??, parts.next()??);
        parts.next().is_none().then_some(version)
    }

    /// What decides which ops there are.
    pub(crate) fn ops(self) -> (u16, u16) {
        (self.major, self.minor)
    }
}

impl fmt::Display for StablehloVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The version that a portable artifact says it is of; `None`: it is no portable artifact.
pub fn version_of(bytes: &[u8]) -> Option<StablehloVersion> {
    let producer = crate::file::producer(bytes)?;
    StablehloVersion::from_text(producer.strip_prefix("StableHLO_v")?)
}
