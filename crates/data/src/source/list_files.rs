//! `list_files`: paths that match a glob pattern, as `path: ui8[n]`, sorted or shuffled.

use crate::input_file::{DirectoryEntry, entries, is_dir, is_file, is_remote, leads_back};
use crate::pipeline::{Cardinality, DatasetStage, PipelineRun, RandomAccess};
use crate::sample::{Sample, SampleOrigin};
use crate::{Dataset, HostArray};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use systole_base::{Literal, Result, err};

impl Dataset {
    /// Lists the files that match a pattern (`*`, `?`, `[a-c]` within a name, `**` for any directories): `path:
    /// ui8[n]`, sorted, so that the order does not depend on the file system. [`crate::Sample::text`] returns the path.
    ///
    /// # Errors
    /// If a directory cannot be read, or nothing matches.
    pub fn list_files(pattern: &str) -> Result<Dataset> {
        Ok(Dataset::files(glob(pattern)?))
    }

    /// [`Dataset::list_files`] in an order that is a pure function of seed and epoch.
    pub fn list_files_shuffled(pattern: &str, seed: u64) -> Result<Dataset> {
        Ok(Dataset::list_files(pattern)?.shuffle(usize::MAX, seed))
    }

    /// Creates a dataset of the given paths: `path: ui8[n]`.
    pub fn files<P: Into<PathBuf>>(paths: impl IntoIterator<Item = P>) -> Dataset {
        let paths = paths.into_iter().map(Into::into).collect();
        Dataset::new(FileListStage { paths: Arc::new(paths) })
    }
}

struct FileListStage {
    paths: Arc<Vec<PathBuf>>,
}

impl DatasetStage for FileListStage {
    fn label(&self) -> String {
        format!("files({})", self.paths.len())
    }

    fn cardinality(&self) -> Cardinality {
        Cardinality::Finite(self.paths.len() as u64)
    }

    fn access(&self, _run: &PipelineRun) -> Result<Option<Box<dyn RandomAccess>>> {
        Ok(Some(Box::new(FileListAccess { paths: self.paths.clone(), source: self.label().into() })))
    }
}

struct FileListAccess {
    paths: Arc<Vec<PathBuf>>,
    source: Arc<str>,
}

impl RandomAccess for FileListAccess {
    fn len(&self) -> Option<u64> {
        Some(self.paths.len() as u64)
    }

    fn get(&mut self, index: u64) -> Result<Sample> {
        let path = &self.paths[index as usize];
        let text = path_text(path)?;
        let bytes = Literal::from_slice([text.len()], text.as_bytes())?;
        let origin = SampleOrigin { source: self.source.clone(), index };
        Ok(Sample::from_parts(vec![("path".into(), HostArray::from(bytes))], Some(origin)))
    }
}

pub(crate) fn path_text(path: &Path) -> Result<&str> {
    path.to_str()
        .ok_or_else(|| err!(Data, "the path {} is not UTF-8", path.display()).hint("rename the file"))
}

/// Returns the files that match a pattern, sorted.
pub(crate) fn glob(pattern: &str) -> Result<Vec<PathBuf>> {
    // A file may have a name that looks like a pattern: `data[1].csv`.
    if pattern.contains(['*', '?', '[']) && is_file(pattern) {
        return Ok(vec![pattern.into()]);
    }
    let (root, below) = root_of(pattern);
    let parts: Vec<&str> = below.split('/').filter(|p| !p.is_empty()).collect();
    let mut found = Vec::new();
    expand(root.clone(), &parts, &mut found)?;
    found.sort();
    found.dedup();
    if !found.is_empty() {
        return Ok(found);
    }
    let mut hint = "check the pattern; it is relative to the current folder unless it starts with /";
    if is_remote(pattern) {
        // An unreachable store looked empty so far: report the reason now.
        let plain = below.split(['*', '?', '[']).next().unwrap_or_default();
        let folder = plain.rsplit_once('/').map_or("", |(folder, _)| folder);
        entries(root.join(folder.trim_start_matches('/')))?;
        hint = "check the bucket and the pattern: gcloud storage ls, aws s3 ls";
    }
    Err(err!(Io, "no file matches `{pattern}`").hint_command(hint))
}

/// Returns the root of a pattern (`/`, a bucket, or the current directory) and the rest.
fn root_of(pattern: &str) -> (PathBuf, &str) {
    if is_remote(pattern) {
        // `gs://` and `s3://` have the same length.
        let end = pattern[5..].find('/').map_or(pattern.len(), |i| 5 + i);
        return (pattern[..end].into(), &pattern[end..]);
    }
    (if pattern.starts_with('/') { "/".into() } else { PathBuf::new() }, pattern)
}

fn expand(dir: PathBuf, parts: &[&str], found: &mut Vec<PathBuf>) -> Result<()> {
    let Some((part, rest)) = parts.split_first() else { return Ok(()) };
    let is_pattern = part.contains(['*', '?', '[']);
    if !is_pattern {
        let path = dir.join(part);
        if rest.is_empty() {
            if is_file(&path) {
                found.push(path);
            }
            return Ok(());
        }
        return if is_dir(&path) { expand(path, rest, found) } else { Ok(()) };
    }
    if *part == "**" {
        expand(dir.clone(), rest, found)?;
    }
    for DirectoryEntry { path, name, is_dir, is_link } in entries(&dir)? {
        if *part == "**" {
            if is_dir && !(is_link && leads_back(&path)) {
                expand(path, parts, found)?;
            }
        } else if matches(part.as_bytes(), name.as_bytes()) {
            if rest.is_empty() && !is_dir {
                found.push(path);
            } else if !rest.is_empty() && is_dir {
                expand(path, rest, found)?;
            }
        }
    }
    Ok(())
}

/// Whether a name matches a pattern. Backtracks only to the last star, so the time is at most the product of the
/// lengths.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match one(&pattern[p..], name[n]) {
            Some(_) if pattern[p] == b'*' => {
                star = Some((p, n));
                p += 1;
            }
            Some(width) => {
                p += width;
                n += 1;
            }
            None => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    (p, n) = (at + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&b| b == b'*')
}

/// Matches the pattern's first item against a byte; returns the item's length.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern.first()? {
        b'*' | b'?' => Some(1),
        b'[' => {
            let end = pattern.iter().skip(2).position(|&b| b == b']')? + 2;
            let (set, negated) = match &pattern[1..end] {
                [b'!' | b'^', rest @ ..] => (rest, true),
                all => (all, false),
            };
            let mut i = 0;
            let mut inside = false;
            while i < set.len() {
                if set.len() > i + 2 && set[i + 1] == b'-' {
                    inside |= (set[i]..=set[i + 2]).contains(&byte);
                    i += 3;
                } else {
                    inside |= set[i] == byte;
                    i += 1;
                }
            }
            (inside != negated).then_some(end + 1)
        }
        &b => (b == byte).then_some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_as_a_shell_does() {
        for (pattern, name, expected) in [
            ("*.png", "a.png", true),
            ("*.png", "a.png.txt", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-c]*", "beta", true),
            ("[!a-c]*", "beta", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b*", "xxbxxaxx", false),
            ("**", "any", true),
            ("", "", true),
            ("part-[0-9][0-9]", "part-07", true),
            ("[", "[", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
        let hard = "*a".repeat(30);
        assert!(!matches(hard.as_bytes(), "a".repeat(29).as_bytes()));
    }

    #[test]
    #[cfg(not(feature = "object-stores"))]
    fn a_bucket_that_cannot_be_asked_is_not_said_to_be_empty() {
        for pattern in ["gs://bucket", "gs://bucket/*.csv", "s3://bucket/a/b.csv"] {
            let e = glob(pattern).unwrap_err().to_string();
            assert!(e.contains("--features object-stores") && !e.contains("matches"), "{e}");
        }
    }

    #[test]
    fn files_are_sorted_and_shuffled_by_the_seed() {
        let dir = std::env::temp_dir().join(format!("systole-glob-{}", std::process::id()));
        for name in ["b/2.txt", "a/1.txt", "a/3.txt", "a/deep/4.txt", "5.png", "a/.hidden.txt"] {
            let path = dir.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let list = |pattern: &str| {
            let d = Dataset::list_files(&format!("{}/{pattern}", dir.display())).unwrap();
            let name = |s: Result<Sample>| {
                s.unwrap().text("path").unwrap().strip_prefix(dir.to_str().unwrap()).unwrap()[1..].to_string()
            };
            d.iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(list("*/*.txt"), ["a/1.txt", "a/3.txt", "b/2.txt"]);
        assert_eq!(list("**/*.txt"), ["a/1.txt", "a/3.txt", "a/deep/4.txt", "b/2.txt"]);
        assert_eq!(list("5.png"), ["5.png"]);
        std::fs::write(dir.join("b/2[1].txt"), "").unwrap();
        assert_eq!(list("b/2[1].txt"), ["b/2[1].txt"], "a name that looks like a pattern");
        std::fs::remove_file(dir.join("b/2[1].txt")).unwrap();
        assert!(Dataset::list_files(&format!("{}/*.jpg", dir.display())).is_err());
        let shuffled = Dataset::list_files_shuffled(&format!("{}/**/*", dir.display()), 3).unwrap();
        let order = |epoch| {
            shuffled
                .iter_epoch(epoch)
                .map(|s| s.unwrap().text("path").unwrap().to_string())
                .collect::<Vec<_>>()
        };
        assert!(order(0).len() == 5 && order(0) == order(0) && (1..9).any(|e| order(e) != order(0)));
        #[cfg(unix)]
        {
            let link = |to: &str, at: &str| std::os::unix::fs::symlink(dir.join(to), dir.join(at)).unwrap();
            link("b", "a/deep/linked");
            link("a", "a/deep/back");
            let all = ["a/1.txt", "a/3.txt", "a/deep/4.txt", "a/deep/linked/2.txt", "b/2.txt"];
            assert_eq!(list("**/*.txt"), all);
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
