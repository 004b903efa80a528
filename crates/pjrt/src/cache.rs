//! On-disk cache of compiled programs: a directory per program with the request and the compiler's output.
//!
//! Requests are compared in full, so a hash collision costs a compilation but never returns a wrong program.
//! Directories are renamed into place when complete.
//!
//! Files are written directly, not with `systole-data`: they need not survive a power failure, since outputs have a
//! checksum or are JSON, and damaged entries are compiled again.

use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};
use std::{fs, io};

/// Name prefix of incomplete directories.
const PART: &str = "part-";
/// Age after which an incomplete directory is abandoned.
const FORSAKEN: Duration = Duration::from_secs(24 * 60 * 60);
/// Files of an entry: the executable, and its size and hash.
const BYTES: &str = "executable.bin";
const CHECK: &str = "check.txt";

/// On-disk cache of compiled programs with a size limit; the least recently used are evicted.
#[derive(Clone, Debug)]
pub struct CompileCache {
    folder: PathBuf,
    limit: u64,
}

/// A directory in the cache.
struct CacheEntry {
    path: PathBuf,
    used: SystemTime,
    bytes: u64,
}

impl CompileCache {
    /// Opens a cache of compiled programs in a directory, with at most `limit` bytes.
    pub fn new(folder: PathBuf, limit: u64) -> CompileCache {
        CompileCache { folder, limit }
    }

    /// Returns the directory of the compile cache.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the number of programs and their total bytes.
    pub fn usage(&self) -> (usize, u64) {
        let entries = self.entries();
        (entries.len(), entries.iter().map(|e| e.bytes).sum())
    }

    /// Returns a path for an incomplete directory on the same file system.
    pub(crate) fn part(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{PART}{name}"))
    }

    /// Returns the directory whose request files equal `asked` (names and contents).
    pub(crate) fn find(&self, asked: &[(&str, &[u8])]) -> Option<PathBuf> {
        let path = self.place(asked);
        let same = |(name, bytes): &(&str, &[u8])| fs::read(path.join(name)).is_ok_and(|kept| kept == *bytes);
        if !asked.iter().all(same) {
            return None;
        }
        if let Ok(file) = fs::File::options().write(true).open(path.join(asked.first()?.0)) {
            // A read-only cache still works.
            let _ = file.set_modified(SystemTime::now());
        }
        Some(path)
    }

    /// Returns the cached bytes for a request; damaged entries are removed.
    pub(crate) fn bytes(&self, asked: &[(&str, &[u8])]) -> Option<Vec<u8>> {
        let folder = self.find(asked)?;
        let bytes = fs::read(folder.join(BYTES)).unwrap_or_default();
        if fs::read_to_string(folder.join(CHECK)).is_ok_and(|kept| kept == check(&bytes)) {
            return Some(bytes);
        }
        self.forget(asked);
        None
    }

    /// Caches the bytes for a request.
    pub(crate) fn keep_bytes(&self, asked: &[(&str, &[u8])], bytes: &[u8]) -> io::Result<()> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let part =
            self.part(&format!("client-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        let check = check(bytes);
        let answer = [(BYTES, bytes), (CHECK, check.as_bytes())];
        let files = || asked.iter().chain(&answer);
        let written = fs::create_dir_all(&part)
            .and_then(|()| files().try_for_each(|(name, bytes)| fs::write(part.join(name), bytes)))
            .and_then(|()| self.keep(&part, asked, &files().map(|(name, _)| *name).collect::<Vec<_>>()));
        // Already moved if it was cached.
        let _ = fs::remove_dir_all(&part);
        written
    }

    /// Moves a complete directory into the cache, keeping only files with these names, and evicts the oldest entries.
    pub(crate) fn keep(&self, made: &Path, asked: &[(&str, &[u8])], names: &[&str]) -> io::Result<()> {
        for entry in fs::read_dir(made)?.flatten() {
            let path = entry.path();
            match names.iter().any(|n| entry.file_name() == *n) {
                true => {}
                false if path.is_dir() => fs::remove_dir_all(path)?,
                false => fs::remove_file(path)?,
            }
        }
        let place = self.place(asked);
        // The existing one is damaged, or has the same name by chance.
        let _ = fs::remove_dir_all(&place);
        fs::rename(made, &place)?;
        self.shrink();
        Ok(())
    }

    /// Removes a damaged entry.
    pub(crate) fn forget(&self, asked: &[(&str, &[u8])]) {
        let _ = fs::remove_dir_all(self.place(asked));
    }

    fn place(&self, asked: &[(&str, &[u8])]) -> PathBuf {
        let mut hasher = DefaultHasher::new();
        asked.iter().for_each(|(_, bytes)| hasher.write(bytes));
        self.folder.join(format!("{:016x}", hasher.finish()))
    }

    fn shrink(&self) {
        let mut entries = self.entries();
        entries.sort_by_key(|e| e.used);
        let mut bytes: u64 = entries.iter().map(|e| e.bytes).sum();
        for e in &entries {
            let in_the_making = e.path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(PART));
            let old = e.used.elapsed().is_ok_and(|age| age > FORSAKEN);
            if (bytes > self.limit && !in_the_making) || (in_the_making && old) {
                let _ = fs::remove_dir_all(&e.path);
                bytes -= e.bytes;
            }
        }
    }

    fn entries(&self) -> Vec<CacheEntry> {
        let folders = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        folders.filter(|e| e.path().is_dir()).map(|e| CacheEntry::of(e.path())).collect()
    }
}

/// Returns a fingerprint of a library build: size and modification time.
pub(crate) fn build(library: &Path) -> String {
    let file = fs::metadata(library).ok();
    let written = file.as_ref().and_then(|f| f.modified().ok()?.duration_since(SystemTime::UNIX_EPOCH).ok());
    format!("{} {}", file.map_or(0, |f| f.len()), written.map_or(0, |t| t.as_nanos()))
}

/// Returns a checksum. If the hash changes with a version, programs are compiled again.
fn check(bytes: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    format!("{} bytes, {:016x}\n", bytes.len(), hasher.finish())
}

impl CacheEntry {
    fn of(path: PathBuf) -> CacheEntry {
        let files = fs::read_dir(&path).into_iter().flatten().flatten().filter_map(|f| f.metadata().ok());
        let first = (SystemTime::UNIX_EPOCH, 0);
        let (used, bytes) = files.fold(first, |(used, bytes), file| {
            (used.max(file.modified().unwrap_or(used)), bytes + file.len())
        });
        CacheEntry { path, used, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("systole-cache-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn add(cache: &CompileCache, asked: &[u8], answer: &[u8]) {
        let part = cache.part("1");
        fs::create_dir_all(&part).unwrap();
        for (name, bytes) in [("asked", asked), ("answer", answer), ("log", b"words")] {
            fs::write(part.join(name), bytes).unwrap();
        }
        cache.keep(&part, &[("asked", asked)], &["asked", "answer"]).unwrap();
    }

    #[test]
    fn what_was_asked_is_found_and_nothing_else() {
        let cache = CompileCache::new(scratch("find"), 1 << 20);
        assert!(cache.find(&[("asked", b"one")]).is_none());
        add(&cache, b"one", b"first");
        let found = cache.find(&[("asked", b"one")]).unwrap();
        assert_eq!(fs::read(found.join("answer")).unwrap(), b"first");
        assert!(!found.join("log").exists());
        assert!(cache.find(&[("asked", b"two")]).is_none());
        // Another request with the same name.
        fs::write(found.join("asked"), b"other").unwrap();
        assert!(cache.find(&[("asked", b"one")]).is_none());
        add(&cache, b"one", b"again");
        assert_eq!(cache.usage(), (1, 8));
        cache.forget(&[("asked", b"one")]);
        assert_eq!(cache.usage(), (0, 0));
        fs::remove_dir_all(cache.folder()).unwrap();
    }

    #[test]
    fn bytes_come_back_whole_or_not_at_all() {
        let cache = CompileCache::new(scratch("bytes"), 1 << 20);
        let asked: [(&str, &[u8]); 2] = [("client.json", b"{}"), ("program.mlir", b"text")];
        assert!(cache.bytes(&asked).is_none());
        for damage in [&b""[..], b"compile", b"compiled.", b"Compiled"] {
            cache.keep_bytes(&asked, b"compiled").unwrap();
            assert_eq!(cache.bytes(&asked).as_deref(), Some(&b"compiled"[..]));
            fs::write(cache.find(&asked).unwrap().join(BYTES), damage).unwrap();
            assert!(cache.bytes(&asked).is_none() && cache.usage().0 == 0);
        }
        fs::remove_dir_all(cache.folder()).unwrap();
    }

    /// Whoever writes last, readers find complete entries.
    #[test]
    fn many_write_and_read_at_once() {
        let cache = CompileCache::new(scratch("many"), 1 << 20);
        let asked: [(&str, &[u8]); 1] = [("program.mlir", b"text")];
        let bytes = vec![7; 10_000];
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..25 {
                        // Another thread may have been faster.
                        let _ = cache.keep_bytes(&asked, &bytes);
                        assert!(cache.bytes(&asked).is_none_or(|found| found == bytes));
                    }
                });
            }
        });
        cache.keep_bytes(&asked, &bytes).unwrap();
        assert_eq!(cache.bytes(&asked), Some(bytes));
        assert_eq!(cache.usage().0, 1);
        fs::remove_dir_all(cache.folder()).unwrap();
    }

    #[test]
    fn the_oldest_go_first() {
        let cache = CompileCache::new(scratch("size"), 250);
        for (i, asked) in [b"a", b"b", b"c"].into_iter().enumerate() {
            add(&cache, asked, &[0; 99]);
            let Some(path) = cache.find(&[("asked", asked)]) else { panic!("{i}") };
            for name in ["asked", "answer"] {
                let file = fs::File::options().write(true).open(path.join(name)).unwrap();
                file.set_modified(SystemTime::now() - Duration::from_secs(100 - i as u64)).unwrap();
            }
            if i == 1 {
                // Used again, so it is the younger of the two.
                assert!(cache.find(&[("asked", b"a")]).is_some());
            }
        }
        assert!(cache.find(&[("asked", b"a")]).is_some());
        assert!(cache.find(&[("asked", b"b")]).is_none());
        assert!(cache.find(&[("asked", b"c")]).is_some());
        fs::remove_dir_all(cache.folder()).unwrap();
    }
}
