//! Downloads a set of published files to a folder: finds it, verifies files that the user put there, downloads the rest,
//! and reports what to get from where if that fails.

use crate::data_dir::{DataDir, roots};
use crate::download::{self, RemoteFile};
use std::path::{Path, PathBuf};
use systole_base::{Error, ErrorKind, Result, knobs};

/// Set of published files, stored together in a folder.
#[derive(Clone, Debug)]
pub struct PublishedFiles<'a> {
    /// Name in messages: `cifar10`, `keras:ResNet50`.
    pub name: String,
    /// Folder below the cache.
    pub folder: String,
    /// Files to download.
    pub files: Vec<RemoteFile<'a>>,
    /// Base addresses, the official one first; a file's name follows.
    pub sources: Vec<String>,
    /// Header fields of each request, such as `Authorization`. Other hosts do not get them.
    pub fields: Vec<(String, String)>,
    /// Paths that a complete folder contains.
    pub contents: Vec<&'a str>,
}

impl PublishedFiles<'_> {
    /// Returns the folder in the first location that has it: `SYSTOLE_DATA`, then the cache.
    pub fn locate(&self, dir: &DataDir) -> Option<PathBuf> {
        roots(dir).into_iter().find_map(|root| self.folder_in(&root))
    }

    /// Returns the folder below `root` if it is complete.
    pub fn folder_in(&self, root: &Path) -> Option<PathBuf> {
        let folder = root.join(&self.folder);
        let is_complete = self.contents.iter().all(|path| folder.join(path).exists())
            && !folder.join(download::MARK).exists();
        is_complete.then_some(folder)
    }

    /// Returns the folder, after a download to the cache if no location has it. `finish` completes a downloaded folder.
    ///
    /// # Errors
    /// `Io` if the files cannot be downloaded: what to get, where, and where to put it; `Data` if they are damaged.
    pub fn fetch(&self, dir: &DataDir, finish: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        if let Some(folder) = self.locate(dir) {
            return Ok(folder);
        }
        let root = dir.named().map(Path::to_path_buf).or_else(|| dir.cache_folder()).ok_or_else(|| {
            Error::new(ErrorKind::Io, format!("there is no folder to download `{}` to", self.name))
                .because("neither a cache folder nor a home directory is set")
                .hint_command(format!("set {} to a writable folder", knobs::CACHE.name))
        })?;
        self.fetch_into(&root, dir, finish)
    }

    /// Returns the folder below `root`, after a download if it is not complete. Files that the user put there are verified
    /// and used instead of a download.
    ///
    /// # Errors
    /// See [`PublishedFiles::fetch`].
    pub fn fetch_into(
        &self,
        root: &Path,
        dir: &DataDir,
        finish: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        if let Some(folder) = self.folder_in(root) {
            return Ok(folder);
        }
        let folder = root.join(&self.folder);
        let is_lacking = self.files.iter().any(|file| !folder.join(file.file).is_file());
        if is_lacking && !dir.downloads() {
            let offline = Error::new(ErrorKind::Io, "downloads are disabled");
            return Err(self.unavailable(&folder, dir, &offline));
        }
        self.download(root, dir, finish).map_err(|e| self.unavailable(&folder, dir, &e))?;
        self.folder_in(root).ok_or_else(|| {
            let lacking = self.contents.iter().find(|path| !folder.join(path).exists());
            Error::new(ErrorKind::Data, format!("the download of `{}` is incomplete", self.name))
                .at(folder.display().to_string())
                .because(format!("it has no `{}`", lacking.unwrap_or(&"")))
                .hint("remove the folder and repeat the command")
        })
    }

    /// Downloads the missing files into the folder below `root`, and completes it.
    pub(crate) fn download(
        &self,
        root: &Path,
        dir: &DataDir,
        finish: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<()> {
        let folder = root.join(&self.folder);
        let has_data = || self.contents.iter().any(|path| folder.join(path).exists());
        download::locked(&folder, has_data, || {
            let progress = |file: &str, done, all| dir.report(&format!("downloading {file}"), done, all);
            for file in &self.files {
                let path = folder.join(file.file);
                if path.is_file() {
                    download::verify(file, &path)?;
                }
            }
            let from = (&self.sources[..], &self.fields[..]);
            download::fetch_missing(&self.files, from, &folder, dir.patience(), &progress)?;
            finish(&folder)
        })
    }

    /// Adds to a failed download which files to get, from where, and where to put them.
    fn unavailable(&self, folder: &Path, dir: &DataDir, cause: &Error) -> Error {
        let place = folder.display();
        let mut e = Error::new(cause.kind(), format!("cannot fetch `{}`", self.name)).at(place.to_string());
        let places = cause.places().iter().map(|place| format!("in {place}"));
        let reasons = cause.reasons().iter().cloned();
        for why in std::iter::once(cause.what().to_string()).chain(places).chain(reasons) {
            e = e.because(why);
        }
        for file in &self.files {
            let addresses: Vec<String> =
                self.sources.iter().map(|base| format!("{base}{}", file.file)).collect();
            let size = file.size.map(|size| format!("{size} bytes"));
            let digest = file.digests.first().map(|d| format!("{} {}", d.algorithm(), d.hex()));
            let facts: Vec<String> = size.into_iter().chain(digest).collect();
            let facts = if facts.is_empty() { String::new() } else { format!(" ({})", facts.join(", ")) };
            e = e.because(format!("needed: {}{facts} from {}", file.file, addresses.join(" or ")));
        }
        e.hint(match cause.kind() {
            ErrorKind::Data => format!("remove the damaged files in {place} if there are any, and repeat the command"),
            _ => {
                let online = match dir.downloads() {
                    true => "check the network and repeat the command, which resumes the download",
                    false => "allow downloads",
                };
                format!("{online}; or get the files on another machine, put them in {place}, and repeat the command")
            }
        })
    }
}
