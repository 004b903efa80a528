//! [`DirectoryEntry`]: one name in a folder of a disk or of an object store.

use std::path::PathBuf;

/// What a folder holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirectoryEntry {
    /// The folder's path and the name.
    pub path: PathBuf,
    /// The last part of the path.
    pub name: String,
    /// Whether it is a folder.
    pub is_dir: bool,
    /// Whether it is a link to elsewhere.
    pub is_link: bool,
}
