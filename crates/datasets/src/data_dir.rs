//! Search path of the datasets: a given directory, `SYSTOLE_DATA`, the cache, and whether downloads are allowed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use systole_base::knobs;
use systole_runtime::cache_folder;

/// Search path for a dataset: one given directory, or `SYSTOLE_DATA`, the cache (`SYSTOLE_CACHE`) and finally a
/// download.
///
/// A given directory is the dataset's own or its parent; no other location is searched then.
#[derive(Clone)]
pub struct DataDir {
    dir: Option<PathBuf>,
    cache: Option<PathBuf>,
    download: bool,
    timeout: Duration,
    progress: DownloadProgressFn,
    mirror: Option<String>,
}

/// Progress callback: description, amount done, total.
pub(super) type DownloadProgressFn = Arc<dyn Fn(&str, u64, u64) + Send + Sync>;

impl Default for DataDir {
    fn default() -> DataDir {
        DataDir {
            dir: None,
            cache: None,
            download: true,
            timeout: Duration::from_secs(3),
            progress: Arc::new(|_, _, _| ()),
            mirror: None,
        }
    }
}

impl DataDir {
    /// Searches for the dataset only in this directory: the dataset's own, or its parent.
    pub fn at(path: impl Into<PathBuf>) -> DataDir {
        DataDir { dir: Some(path.into()), download: false, ..DataDir::default() }
    }

    /// Whether a directory was given.
    pub(super) fn is_named(&self) -> bool {
        self.dir.is_some()
    }

    /// Returns the directory that was given.
    pub(super) fn named(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// Returns the same options with another directory.
    pub(super) fn moved(&self, dir: &Path) -> DataDir {
        DataDir { dir: Some(dir.to_path_buf()), ..self.clone() }
    }

    /// Returns the folder for downloads: the given cache, or the default one.
    pub(super) fn cache_folder(&self) -> Option<PathBuf> {
        self.cache.clone().or_else(cache_folder)
    }

    /// Whether downloads are allowed.
    pub fn downloads(&self) -> bool {
        self.download
    }

    /// Returns the address that replaces the published ones.
    pub fn mirror_address(&self) -> Option<&str> {
        self.mirror.as_deref()
    }

    /// Returns the mirror's address, or else these published ones.
    pub fn sources(&self, published: &[&str]) -> Vec<String> {
        match self.mirror_address() {
            Some(mirror) => vec![mirror.to_string()],
            None => published.iter().map(|base| base.to_string()).collect(),
        }
    }

    /// Returns the timeout for a server's answer.
    pub fn patience(&self) -> Duration {
        self.timeout
    }

    /// Reports progress.
    pub(super) fn report(&self, what: &str, done: u64, all: u64) {
        (self.progress)(what, done, all);
    }

    /// Disables downloads of the dataset.
    pub fn offline(self) -> DataDir {
        DataDir { download: false, ..self }
    }

    /// Allows downloads of the dataset into the directory that was given.
    pub fn allow_downloads(self) -> DataDir {
        DataDir { download: true, ..self }
    }

    /// Stores downloads of the dataset in this directory instead of the default cache.
    pub fn cache(self, path: impl Into<PathBuf>) -> DataDir {
        DataDir { cache: Some(path.into()), ..self }
    }

    /// Downloads the dataset's files from the folder at this address instead of the published ones; sizes and digests are
    /// checked as usual.
    pub fn mirror(self, address: impl Into<String>) -> DataDir {
        let address: String = address.into();
        DataDir { mirror: Some(format!("{}/", address.trim_end_matches('/'))), ..self }
    }

    /// Sets the timeout for a server's answer (default: 3 seconds).
    pub fn timeout(self, timeout: Duration) -> DataDir {
        DataDir { timeout, ..self }
    }

    /// Sets the progress callback `f`: description (`downloading FILE`, `reading images`), amount done, total.
    pub fn progress(self, f: impl Fn(&str, u64, u64) + Send + Sync + 'static) -> DataDir {
        DataDir { progress: Arc::new(f), ..self }
    }
}

impl<P: Into<PathBuf>> From<P> for DataDir {
    fn from(path: P) -> DataDir {
        DataDir::at(path)
    }
}

/// Returns the directories to search: the given one, or the default ones.
pub(super) fn roots(dir: &DataDir) -> Vec<PathBuf> {
    if let Some(named) = &dir.dir {
        return vec![named.clone()];
    }
    let data = Some(knobs::DATA.get()).filter(|v| !v.is_empty()).map(PathBuf::from);
    data.into_iter().chain(dir.cache_folder()).collect()
}
