//! Extracts .tar.gz archives: rejects paths outside the target folder, skips links and limits the unpacked size.

use crate::file_system::{FileSystem, OsFileSystem, write_all};
use crate::format::tar::TarReader;
use flate2::read::MultiGzDecoder;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use systole_base::{Error, ErrorKind, Result};

/// Selection of an archive's files, and the bound of their size.
#[derive(Clone, Copy, Debug)]
pub struct ExtractOptions<'a> {
    /// Top folder of the archive, which is left out of the extracted paths. Files elsewhere are skipped; empty: none.
    pub top: &'a str,
    /// Prefixes of paths below `top` that are skipped.
    pub skip: &'a [&'a str],
    /// Maximum size of the unpacked archive in bytes.
    pub limit: u64,
}

/// Extracts the regular files of the .tar.gz archive `archive` into `folder`, and returns their number. Links, devices
/// and empty folders are skipped. `progress` gets the number of archive bytes read so far.
///
/// # Errors
/// `Data` if the archive is damaged, larger than the limit, or has a path outside of the folder; `Io` if a file cannot
/// be written.
pub fn extract_tar_gz(
    archive: &Path,
    folder: &Path,
    options: ExtractOptions,
    progress: &dyn Fn(u64),
) -> Result<usize> {
    let file = File::open(archive).map_err(|e| Error::io("cannot open", archive, e))?;
    let consumed = Arc::new(AtomicU64::new(0));
    let counted = CountedReader { input: file, consumed: consumed.clone() };
    let unpacked = MultiGzDecoder::new(BufReader::with_capacity(1 << 16, counted));
    let name = archive.display().to_string();
    let mut tar = TarReader::new(&name, LimitedReader { input: unpacked, left: options.limit }, 0);
    let mut count = 0;
    while let Some(entry) = tar.next() {
        let entry = entry?;
        let relative = safe_path(&entry.path).ok_or_else(|| {
            Error::new(ErrorKind::Data, "the archive has a path outside of its folder")
                .at(format!("{name}, byte {}", entry.offset))
                .because(format!("`{}` is not a relative path without `..`", entry.path))
                .hint("download the archive again, from its publisher")
        })?;
        progress(consumed.load(Relaxed));
        let Ok(below) = relative.strip_prefix(options.top) else { continue };
        let is_skipped = options.skip.iter().any(|prefix| below.starts_with(prefix));
        if below.as_os_str().is_empty() || is_skipped {
            continue;
        }
        write(&folder.join(below), &entry.data)?;
        count += 1;
    }
    Ok(count)
}

fn write(path: &Path, data: &[u8]) -> Result<()> {
    let parent = path.parent().unwrap_or(Path::new(""));
    fs::create_dir_all(parent).map_err(|e| Error::io("cannot create", parent, e))?;
    let written = OsFileSystem.create(path).and_then(|mut file| write_all(&OsFileSystem, &mut file, data));
    written.map_err(|e| Error::io("cannot write", path, e))
}

/// Returns an archive's path if it is relative and does not leave its folder; `./` is dropped.
fn safe_path(path: &str) -> Option<PathBuf> {
    let is_foreign = path.contains(['\\', ':', '\0']);
    let mut safe = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => safe.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    (!is_foreign).then_some(safe)
}

/// Counts the bytes read from the archive.
struct CountedReader {
    input: File,
    consumed: Arc<AtomicU64>,
}

impl Read for CountedReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.input.read(buffer)?;
        self.consumed.fetch_add(n as u64, Relaxed);
        Ok(n)
    }
}

/// Fails when more bytes arrive than the limit.
struct LimitedReader<R> {
    input: R,
    left: u64,
}

impl<R: Read> Read for LimitedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.input.read(buffer)?;
        match self.left.checked_sub(n as u64) {
            Some(left) => self.left = left,
            None => return Err(io::Error::other("it is larger than expected")),
        }
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;
    use systole_testing::assert_error;

    /// A TAR header of a file (`0`), a link (`2`) or a folder (`5`).
    fn header(path: &str, size: usize, kind: u8) -> [u8; 512] {
        let mut header = [0; 512];
        header[..path.len()].copy_from_slice(path.as_bytes());
        header[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
        header[156] = kind;
        if kind == b'2' {
            header[157..168].copy_from_slice(b"/etc/passwd");
        }
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|&b| u32::from(b)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        header
    }

    fn archive(folder: &Path, entries: &[(&str, &str, u8)]) -> PathBuf {
        let mut bytes = Vec::new();
        for (path, text, kind) in entries {
            bytes.extend(header(path, text.len(), *kind));
            bytes.extend(text.as_bytes());
            bytes.resize(bytes.len().next_multiple_of(512), 0);
        }
        bytes.resize(bytes.len() + 1024, 0);
        let path = folder.join("a.tar.gz");
        let mut gzip = GzEncoder::new(File::create(&path).unwrap(), Compression::default());
        gzip.write_all(&bytes).unwrap();
        gzip.finish().unwrap();
        path
    }

    fn temp(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("systole-archive-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    const OPTIONS: ExtractOptions<'_> = ExtractOptions { top: "set", skip: &["train/unsup"], limit: 1 << 20 };

    #[test]
    fn files_below_the_top_folder_are_extracted_and_links_are_skipped() {
        let dir = temp("whole");
        let entries = [
            ("set/", "", b'5'),
            ("./set/train/a.txt", "first", b'0'),
            ("set/train/unsup/b.txt", "skipped", b'0'),
            ("set/link", "", b'2'),
            ("elsewhere/c.txt", "skipped", b'0'),
            ("set/d", "", 0),
        ];
        let path = archive(&dir, &entries);
        let read = AtomicU64::new(0);
        let progress = |n| read.store(n, Relaxed);
        assert_eq!(extract_tar_gz(&path, &dir.join("to"), OPTIONS, &progress).unwrap(), 2);
        assert_eq!(fs::read_to_string(dir.join("to/train/a.txt")).unwrap(), "first");
        assert_eq!(fs::read_dir(dir.join("to")).unwrap().count(), 2);
        assert_eq!(fs::read_dir(dir.join("to/train")).unwrap().count(), 1);
        assert!(read.load(Relaxed) > 0);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn paths_outside_and_large_contents_are_rejected() {
        let dir = temp("outside");
        for path in ["set/../../escape", "/escape", "set/c:\\escape"] {
            let made = archive(&dir, &[(path, "text", b'0')]);
            let e = extract_tar_gz(&made, &dir.join("to"), OPTIONS, &|_| ()).unwrap_err();
            assert_error(&e, ErrorKind::Data, &["a.tar.gz", path]);
            assert!(!dir.join("escape").exists() && !dir.join("to").exists());
        }
        let made = archive(&dir, &[("set/a", &"x".repeat(3000), b'0')]);
        let small = ExtractOptions { limit: 2048, ..OPTIONS };
        let e = extract_tar_gz(&made, &dir.join("to"), small, &|_| ()).unwrap_err();
        assert_error(&e, ErrorKind::Data, &["a.tar.gz"]);
        fs::remove_dir_all(dir).unwrap();
    }
}
