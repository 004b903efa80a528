//! Reads data files from a local disk or an object store (`gs://BUCKET/KEY`, `s3://BUCKET/KEY`).
//!
//! Object stores require the feature `object-stores`. For writing, see [`crate::file_system`].

pub use crate::directory_entry::DirectoryEntry;
#[cfg(feature = "object-stores")]
use crate::objects;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use systole_base::{Error, Result};

/// Whether a path is in an object store.
pub fn is_remote(path: impl AsRef<Path>) -> bool {
    let path = path.as_ref();
    path.to_str().is_some_and(|p| p.starts_with("gs://") || p.starts_with("s3://"))
}

/// Returns the absolute path; object store paths are already absolute.
///
/// # Errors
/// If the current directory does not exist.
pub fn absolute(path: impl AsRef<Path>) -> Result<PathBuf> {
    let path = path.as_ref();
    if is_remote(path) {
        return Ok(path.into());
    }
    std::path::absolute(path).map_err(|e| Error::io("cannot resolve", path, e))
}

/// Open local file, or object in an object store.
pub struct InputFile(InputSource);

enum InputSource {
    File(File),
    #[cfg(feature = "object-stores")]
    Object(objects::ObjectReader),
}

#[cfg(not(feature = "object-stores"))]
fn not_built_in(path: &Path) -> io::Error {
    let e = Error::new(systole_base::ErrorKind::Unsupported, "this build does not support object stores")
        .at(path.display().to_string())
        .because("this build lacks the feature `object-stores`")
        .hint("build Systole with --features object-stores, or copy the files: gcloud storage rsync, aws s3 sync");
    io::Error::other(e)
}

impl InputFile {
    /// Opens a local file, or an object in an object store.
    ///
    /// # Errors
    /// Errors of the operating system or the store.
    pub fn open(path: impl AsRef<Path>) -> io::Result<InputFile> {
        let path = path.as_ref();
        match is_remote(path) {
            false => File::open(path).map(|f| InputFile(InputSource::File(f))),
            #[cfg(feature = "object-stores")]
            true => objects::ObjectReader::open(path).map(|o| Input(InputSource::Object(o))),
            #[cfg(not(feature = "object-stores"))]
            true => Err(not_built_in(path)),
        }
    }

    /// Returns the size of the file or object in bytes.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn size(&self) -> io::Result<u64> {
        match &self.0 {
            InputSource::File(file) => file.metadata().map(|m| m.len()),
            #[cfg(feature = "object-stores")]
            InputSource::Object(object) => Ok(object.size()),
        }
    }
}

impl Read for InputFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            InputSource::File(file) => file.read(buffer),
            #[cfg(feature = "object-stores")]
            InputSource::Object(object) => object.read(buffer),
        }
    }
}

impl Seek for InputFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match &mut self.0 {
            InputSource::File(file) => file.seek(to),
            #[cfg(feature = "object-stores")]
            InputSource::Object(object) => object.seek(to),
        }
    }
}

/// Reads a whole file, or object in an object store.
///
/// # Errors
/// Errors of the operating system or the store.
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let path = path.as_ref();
    if !is_remote(path) {
        return fs::read(path);
    }
    let mut bytes = Vec::new();
    InputFile::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a whole file, or object in an object store, as text.
///
/// # Errors
/// Like [`read`]; also if the content is not UTF-8.
pub fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// Returns the size of a file or object in bytes; `None` if it does not exist or is inaccessible.
pub fn size(path: impl AsRef<Path>) -> Option<u64> {
    let path = path.as_ref();
    match is_remote(path) {
        false => fs::metadata(path).ok().map(|m| m.len()),
        #[cfg(feature = "object-stores")]
        true => objects::size(path),
        #[cfg(not(feature = "object-stores"))]
        true => None,
    }
}

/// Whether a file or object exists. An unreachable object store yields false; reading reports the reason.
pub fn is_file(path: impl AsRef<Path>) -> bool {
    let path = path.as_ref();
    if is_remote(path) { size(path).is_some() } else { path.is_file() }
}

/// Whether a directory exists; in an object store, whether keys have this prefix.
pub fn is_dir(path: impl AsRef<Path>) -> bool {
    let path = path.as_ref();
    if is_remote(path) { entries(path).is_ok_and(|all| !all.is_empty()) } else { path.is_dir() }
}

/// Whether a link points to one of its parent directories, so that following it would never end.
pub fn leads_back(link: impl AsRef<Path>) -> bool {
    let link = link.as_ref();
    let Ok(target) = fs::canonicalize(link) else { return true };
    let here = |p: &Path| fs::canonicalize(if p.as_os_str().is_empty() { Path::new(".") } else { p });
    link.ancestors().skip(1).any(|above| here(above).is_ok_and(|above| above.starts_with(&target)))
}

/// Lists a directory, sorted; skips hidden names.
///
/// # Errors
/// If it cannot be read.
pub fn entries(dir: impl AsRef<Path>) -> Result<Vec<DirectoryEntry>> {
    let dir = dir.as_ref();
    let here = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let wrong = |e| Error::io("cannot read the folder", here, e);
    let mut all = match is_remote(dir) {
        false => entries_of_disk(dir, here).map_err(wrong)?,
        #[cfg(feature = "object-stores")]
        true => objects::entries(dir).map_err(wrong)?,
        #[cfg(not(feature = "object-stores"))]
        true => return Err(wrong(not_built_in(dir))),
    };
    all.retain(|e| !e.name.starts_with('.'));
    all.sort();
    Ok(all)
}

fn entries_of_disk(dir: &Path, here: &Path) -> io::Result<Vec<DirectoryEntry>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(here)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = dir.join(&name);
        let is_link = entry.file_type()?.is_symlink();
        all.push(DirectoryEntry { is_dir: path.is_dir(), path, name, is_link });
    }
    Ok(all)
}

// Names of the previous version.
systole_base::renamed! { Entry => DirectoryEntry }
#[doc(hidden)]
pub use self::InputFile as Input;
