//! Detects train/test split folders (`train` and `val`, …) inside a folder of images or texts, as opposed to class folders.
//!
//! Two folders are splits if their names are the same except for a word that names the split (`train` and `val`,
//! `seg_train` and `seg_test`, `Training` and `Testing`) and the first one contains folders. Notes report the splits
//! and the skipped folders.

use std::path::{Path, PathBuf};
use systole_base::Result;
use systole_data::input_file::entries;

/// Words for the training split.
const TRAIN: [&str; 4] = ["train", "training", "trainset", "trn"];
/// Words for the test split, in order of preference.
const TEST: [&str; 10] =
    ["validation", "valid", "val", "dev", "test", "testing", "testset", "tst", "evaluation", "eval"];

/// Train and test folders.
pub(crate) struct FolderSplits {
    pub train: PathBuf,
    /// `None`: only the training folder has classes.
    pub test: Option<PathBuf>,
    /// Notes about the folders that are not used.
    pub notes: Vec<String>,
}

/// Folder whose name contains a split word.
struct SplitFolder {
    path: PathBuf,
    name: String,
    /// Index of its word in the list.
    rank: usize,
    /// Remaining words of the name.
    rest: String,
}

/// Returns the split folders; `None`: the subfolders are classes.
pub(crate) fn parts(root: &Path) -> Result<Option<FolderSplits>> {
    let folders: Vec<(PathBuf, String)> =
        entries(root)?.into_iter().filter(|e| e.is_dir).map(|e| (e.path, e.name)).collect();
    let mut train = candidates(&folders, &TRAIN);
    let mut tests = candidates(&folders, &TEST);
    train.retain(|t| tests.iter().any(|other| other.rest == t.rest) && has_folders(&t.path));
    let Some(train) = train.into_iter().next() else { return Ok(None) };
    tests.retain(|t| t.rest == train.rest);
    let test = tests.iter().position(|t| has_folders(&t.path)).map(|at| tests.remove(at));
    let mut notes = Vec::new();
    for other in &tests {
        notes.push(match (&test, has_folders(&other.path)) {
            (Some(test), true) => {
                format!("{} is skipped: testing uses {}", other.name, test.name)
            }
            _ => format!("{} is skipped: it has no class folders", other.name),
        });
    }
    let known = |name: &String| {
        *name == train.name
            || test.as_ref().is_some_and(|t| t.name == *name)
            || tests.iter().any(|t| t.name == *name)
    };
    let others: Vec<&str> =
        folders.iter().map(|(_, n)| n).filter(|n| !known(n)).map(String::as_str).collect();
    if !others.is_empty() {
        let beside =
            test.as_ref().map_or(train.name.clone(), |test| format!("{} and {}", train.name, test.name));
        let are = if others.len() == 1 { "is" } else { "are" };
        notes.push(format!(
            "{} {are} skipped: {beside} contain the training and test splits",
            others.join(", ")
        ));
    }
    let inner = |t: SplitFolder| innermost(t.path);
    Ok(Some(FolderSplits { train: innermost(train.path), test: test.map(inner), notes }))
}

/// Returns the folders with one of these words in their names, in order of preference.
fn candidates(folders: &[(PathBuf, String)], words: &[&str]) -> Vec<SplitFolder> {
    let of = |(path, name): &(PathBuf, String)| {
        let lower = name.to_lowercase();
        let parts: Vec<&str> =
            lower.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).collect();
        let at = parts.iter().position(|p| words.contains(p))?;
        let rank = words.iter().position(|w| *w == parts[at])?;
        let rest = [&parts[..at], &parts[at + 1..]].concat().join(" ");
        Some(SplitFolder { path: path.clone(), name: name.clone(), rank, rest })
    };
    let mut all: Vec<SplitFolder> = folders.iter().filter_map(of).collect();
    all.sort_by_key(|c| c.rank);
    all
}

fn has_folders(dir: &Path) -> bool {
    entries(dir).is_ok_and(|all| all.iter().any(|e| e.is_dir))
}

/// Unpacks repeated archive names: `seg_train/seg_train/forest`.
fn innermost(dir: PathBuf) -> PathBuf {
    let again = entries(&dir).ok().and_then(|all| match all.as_slice() {
        [only]
            if only.is_dir && dir.file_name().is_some_and(|n| n.eq_ignore_ascii_case(only.name.as_str())) =>
        {
            Some(only.path.clone())
        }
        _ => None,
    });
    match again {
        Some(inner) if has_folders(&inner) => innermost(inner),
        _ => dir,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn parts_of(name: &str, paths: &[&str]) -> (Option<FolderSplits>, PathBuf) {
        let root = std::env::temp_dir().join(format!("systole-parts-{name}-{}", std::process::id()));
        for path in paths {
            fs::create_dir_all(root.join(path)).unwrap();
        }
        let found = parts(&root).unwrap();
        fs::remove_dir_all(&root).unwrap();
        (found, root)
    }

    #[test]
    fn parts_are_known_by_a_word_of_their_names() {
        for (train, test) in [
            ("train", "validation"),
            ("Training", "Testing"),
            ("Train", "Val"),
            ("seg_train", "seg_test"),
            ("birds-train", "birds-valid"),
        ] {
            let (found, root) = parts_of(train, &[&format!("{train}/cat"), &format!("{test}/cat")]);
            let found = found.unwrap();
            assert_eq!((found.train, found.test), (root.join(train), Some(root.join(test))));
            assert!(found.notes.is_empty(), "{:?}", found.notes);
        }
        let (found, root) =
            parts_of("twice", &["seg_train/seg_train/sea", "seg_test/seg_test/sea", "seg_pred"]);
        let found = found.unwrap();
        assert_eq!(found.train, root.join("seg_train/seg_train"));
        assert_eq!(found.test, Some(root.join("seg_test/seg_test")));
        assert!(found.notes[0].contains("seg_pred is skipped: seg_train and seg_test"), "{:?}", found.notes);
    }

    #[test]
    fn what_is_left_out_is_told_and_classes_stay_classes() {
        let (found, root) = parts_of("three", &["train/a", "val/a", "test/a"]);
        let found = found.unwrap();
        assert_eq!(found.test, Some(root.join("val")));
        assert_eq!(found.notes, ["test is skipped: testing uses val"]);
        let (found, _) = parts_of("unlabelled", &["train/a", "test"]);
        let found = found.unwrap();
        assert!(found.test.is_none() && found.notes[0].contains("no class folders"), "{:?}", found.notes);
        // `train` as a vehicle class, and names that only contain a split word.
        assert!(parts_of("vehicles", &["train", "bus", "test"]).0.is_none());
        assert!(parts_of("stations", &["train station/x", "test/x"]).0.is_none());
        assert!(parts_of("alone", &["train/x"]).0.is_none());
    }
}
