//! Which kernels XLA chose for a GPU: it tries several of each and takes the fastest, so two compilations of one program may give
//! other bits. Its choices are files, a few hundred bytes for each fusion; kept, they make a program again what it was, on
//! another machine with such a GPU too.
//!
//! Not here: the compiled programs themselves, which [`cache`](crate::cache) keeps. Files are written by renaming; a choice
//! that is lost is made anew.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Files with choices, by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Choices(BTreeMap<String, Vec<u8>>);

/// Files above this are none that XLA writes.
const MOST_BYTES: u64 = 1 << 20;

impl Choices {
    /// Those of a folder; none where there is no folder.
    pub(crate) fn read(folder: &Path) -> Choices {
        let file = |entry: fs::DirEntry| {
            let small = entry.metadata().is_ok_and(|m| m.is_file() && m.len() <= MOST_BYTES);
            let name = entry.file_name().into_string().ok().filter(|name| small && !name.starts_with('.'))?;
            Some((name, fs::read(entry.path()).ok()?))
        };
        Choices(fs::read_dir(folder).into_iter().flatten().flatten().filter_map(file).collect())
    }

    /// Writes those that the folder does not have.
    pub(crate) fn add_to(&self, folder: &Path) -> io::Result<()> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        fs::create_dir_all(folder)?;
        for (name, bytes) in &self.0 {
            let path = folder.join(name);
            if path.exists() {
                continue;
            }
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            let part = folder.join(format!(".{name}-{}-{n}", std::process::id()));
            fs::write(&part, bytes).and_then(|()| fs::rename(&part, &path)).inspect_err(|_| {
                let _ = fs::remove_file(&part);
            })?;
        }
        Ok(())
    }

    /// Whether no choice of one is another in the other.
    pub(crate) fn agree(&self, other: &Choices) -> bool {
        self.0.iter().all(|(name, bytes)| other.0.get(name).is_none_or(|b| b == bytes))
    }

    /// As bytes: of each file the lengths of name and content, and both.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut all = Vec::new();
        for part in self.0.iter().flat_map(|(name, bytes)| [name.as_bytes(), bytes]) {
            all.extend_from_slice(&(part.len() as u64).to_le_bytes());
            all.extend_from_slice(part);
        }
        all
    }

    /// What [`bytes`](Choices::bytes) wrote; `None` where these are others.
    pub(crate) fn from_bytes(mut bytes: &[u8]) -> Option<Choices> {
        let mut part = || {
            let (length, rest) = bytes.split_first_chunk::<8>()?;
            let (part, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
            bytes = rest;
            Some(part)
        };
        let mut all = BTreeMap::new();
        while let Some(name) = part() {
            all.insert(String::from_utf8(name.to_vec()).ok()?, part()?.to_vec());
        }
        bytes.is_empty().then_some(Choices(all))
    }
}

/// A folder of choices for one compilation: those that are known, to which XLA adds. It is gone when this is dropped.
pub(crate) struct Desk(PathBuf);

impl Desk {
    /// One with these choices.
    pub(crate) fn with(known: &Choices) -> io::Result<Desk> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let desk = Desk(std::env::temp_dir().join(format!("systole-choices-{}-{n}", std::process::id())));
        // One that a killed process of this number has left.
        let _ = fs::remove_dir_all(&desk.0);
        known.add_to(&desk.0)?;
        Ok(desk)
    }

    /// Where it is.
    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)]) -> Choices {
        Choices(files.iter().map(|(n, b)| (n.to_string(), b.as_bytes().to_vec())).collect())
    }

    #[test]
    fn choices_are_kept_and_never_changed() {
        let first = of(&[("a.textproto", "1"), ("b.textproto", "")]);
        let desk = Desk::with(&first).unwrap();
        assert_eq!(Choices::read(desk.folder()), first);
        let second = of(&[("a.textproto", "2"), ("c.textproto", "3")]);
        assert!(!second.agree(&first) && first.agree(&of(&[("c", "3")])));
        second.add_to(desk.folder()).unwrap();
        let both = Choices::read(desk.folder());
        assert_eq!(both, of(&[("a.textproto", "1"), ("b.textproto", ""), ("c.textproto", "3")]));
        let folder = desk.folder().to_path_buf();
        drop(desk);
        assert!(!folder.exists() && Choices::read(&folder) == Choices::default());
    }

    #[test]
    fn bytes_are_read_whole_or_not_at_all() {
        let choices = of(&[("a", "one"), ("longer name", "")]);
        let bytes = choices.bytes();
        assert_eq!(Choices::from_bytes(&bytes), Some(choices));
        assert_eq!(Choices::from_bytes(&[]), Some(Choices::default()));
        let whole = |n: &usize| Choices::from_bytes(&bytes[..*n]).is_some();
        // After nothing, after the first file, and at the end.
        assert_eq!((0..=bytes.len()).filter(whole).collect::<Vec<_>>(), [0, 20, bytes.len()]);
        assert_eq!(Choices::from_bytes(&[255; 16]), None);
    }
}
