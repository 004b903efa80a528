//! Directory entry of a local disk or an object store.

use std::path::PathBuf;

/// Entry of a directory on a local disk or in an object store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirectoryEntry {
    /// Full path: the directory's path and the name.
    pub path: PathBuf,
    /// Last component of the path.
    pub name: String,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Whether it is a symbolic link.
    pub is_link: bool,
}
