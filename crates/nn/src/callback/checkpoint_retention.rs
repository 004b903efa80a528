//! Checkpoint retention: keeps the k best, assigns their names and deletes the rest.

use super::callback_trait::CallbackState;
use super::monitored_value::is_better;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use systole_data::file_system::FileSystem;
use systole_ir::{Error, Result, err};

/// Checkpoints of a run.
#[derive(Debug, Default)]
pub(super) struct RetainedCheckpoints {
    files: Vec<(PathBuf, Option<f64>)>,
    /// Files that existed when the run started.
    before: Vec<PathBuf>,
    /// Files to delete.
    others: Vec<PathBuf>,
}

impl RetainedCheckpoints {
    /// Returns the path for a checkpoint with this value if it is to be kept; may discard a worse one. `k` is -1 for
    /// all. Without values the newest are kept.
    pub fn take(
        &mut self,
        k: i64,
        path: PathBuf,
        value: Option<f64>,
        upward: bool,
        counts_versions: bool,
    ) -> Option<PathBuf> {
        // NaN is the worst.
        let worst = if upward { f64::NEG_INFINITY } else { f64::INFINITY };
        let value = value.map(|v| if v.is_nan() { worst } else { v });
        let full = usize::try_from(k).is_ok_and(|k| self.files.len() >= k);
        if k == 0 || (full && !self.beats_the_worst(value, upward)) {
            return None;
        }
        if full {
            let (gone, _) = self.files.remove(self.worst(upward));
            self.others.push(gone);
        }
        let path = if counts_versions { self.free(path) } else { path };
        self.others.retain(|other| *other != path);
        self.files.retain(|(other, _)| *other != path);
        self.files.push((path.clone(), value));
        Some(path)
    }

    /// Returns the index of the worst; the oldest of equal ones.
    fn worst(&self, upward: bool) -> usize {
        let mut worst = 0;
        for (i, (_, value)) in self.files.iter().enumerate() {
            if let (Some(value), Some(so_far)) = (value, self.files[worst].1)
                && is_better(so_far, Some(*value), upward, 0.0)
            {
                worst = i;
            }
        }
        worst
    }

    fn beats_the_worst(&self, value: Option<f64>, upward: bool) -> bool {
        let worst = self.files.get(self.worst(upward)).and_then(|(_, value)| *value);
        match (value, worst) {
            (Some(value), worst) => is_better(value, worst, upward, 0.0),
            (None, _) => true,
        }
    }

    /// Returns the path, or a numbered one if it is used: `-v1`.
    fn free(&self, path: PathBuf) -> PathBuf {
        let is_taken =
            |path: &PathBuf| self.before.contains(path) || self.files.iter().any(|(p, _)| p == path);
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let end = path.extension().map_or(String::new(), |end| format!(".{}", end.to_string_lossy()));
        let numbered = (1..).map(|n: u32| path.with_file_name(format!("{stem}-v{n}{end}")));
        std::iter::once(path.clone()).chain(numbered).find(|path| !is_taken(path)).unwrap_or(path)
    }

    /// Reserves the names of existing files in the folder.
    pub fn spare_files_of(&mut self, folder: &Path) {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        self.before = entries.map(|entry| entry.path()).collect();
        self.before.sort();
    }

    /// Deletes checkpoint files that are no longer kept.
    pub fn remove_others<F: FileSystem>(&mut self, files: &F) -> Result<()> {
        while let Some(path) = self.others.first() {
            match files.remove(path) {
                // A killed run may have deleted it.
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::io("cannot remove the checkpoint", path, e));
                }
                _ => drop(self.others.remove(0)),
            }
        }
        Ok(())
    }

    /// Returns the retention state, with names relative to `folder` if given, since it may be moved.
    pub fn state(&self, folder: Option<&Path>) -> Value {
        let text = |path: &PathBuf| {
            let within = folder.and_then(|folder| path.strip_prefix(folder).ok());
            within.unwrap_or(path).display().to_string()
        };
        let texts = |paths: &[PathBuf]| paths.iter().map(text).collect::<Vec<_>>();
        let files = self.files.iter().map(|(p, v)| json!([text(p), CallbackState::float(*v)]));
        json!({
            "files": files.collect::<Vec<_>>(),
            "before": texts(&self.before),
            "others": texts(&self.others),
        })
    }

    /// Restores the result of [`RetainedCheckpoints::state`]; empty if the state is absent.
    pub fn restored(state: &Value, folder: Option<&Path>) -> Result<RetainedCheckpoints> {
        let wrong = || err!(Data, "cannot read the checkpoints in a callback's state");
        let list = |name: &str| state[name].as_array().into_iter().flatten();
        let path = |value: &Value| {
            let name = value.as_str().ok_or_else(wrong)?;
            Ok(folder.map_or(PathBuf::from(name), |folder| folder.join(name)))
        };
        let file = |entry: &Value| -> Result<(PathBuf, Option<f64>)> {
            let value = match &entry[1] {
                Value::Null => None,
                value => Some(value.as_str().and_then(|v| v.parse().ok()).ok_or_else(wrong)?),
            };
            Ok((path(&entry[0])?, value))
        };
        Ok(RetainedCheckpoints {
            files: list("files").map(file).collect::<Result<_>>()?,
            before: list("before").map(path).collect::<Result<_>>()?,
            others: list("others").map(path).collect::<Result<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(kept: &RetainedCheckpoints) -> Vec<String> {
        kept.files.iter().map(|(p, _)| p.display().to_string()).collect()
    }

    #[test]
    fn the_best_stay_and_names_are_their_own() {
        let mut kept = RetainedCheckpoints::default();
        let take = |kept: &mut RetainedCheckpoints, name: &str, value: f64| {
            kept.take(2, name.into(), Some(value), false, true)
        };
        assert_eq!(take(&mut kept, "a.x", 0.5), Some("a.x".into()));
        assert_eq!(take(&mut kept, "a.x", 0.4), Some("a-v1.x".into()));
        assert_eq!(take(&mut kept, "b.x", f64::NAN), None);
        assert_eq!(take(&mut kept, "b.x", 0.5), None, "as good is no better");
        assert_eq!(take(&mut kept, "c.x", 0.45), Some("c.x".into()));
        assert_eq!((names(&kept), &kept.others), (vec!["a-v1.x".into(), "c.x".into()], &vec!["a.x".into()]));
        // Its name is free again, so it is not deleted.
        assert_eq!(take(&mut kept, "a.x", 0.1), Some("a.x".into()));
        assert_eq!(kept.others, [PathBuf::from("c.x")]);
        let again = RetainedCheckpoints::restored(&kept.state(None), None).unwrap();
        assert_eq!((again.state(None), names(&again)), (kept.state(None), names(&kept)));
        let moved = RetainedCheckpoints::restored(&kept.state(None), Some(Path::new("there"))).unwrap();
        assert_eq!(moved.state(Some(Path::new("there"))), kept.state(None));
        assert_eq!(moved.others, [PathBuf::from("there/c.x")]);
    }

    #[test]
    fn all_none_and_the_newest() {
        let mut all = RetainedCheckpoints::default();
        (0..3).for_each(|i| drop(all.take(-1, format!("{i}").into(), None, false, true)));
        assert_eq!(names(&all), ["0", "1", "2"]);
        assert_eq!(RetainedCheckpoints::default().take(0, "a".into(), Some(1.0), true, true), None);
        let mut newest = RetainedCheckpoints::default();
        (0..3).for_each(|i| drop(newest.take(1, format!("{i}").into(), None, false, true)));
        assert_eq!((names(&newest), newest.others.len()), (vec!["2".to_string()], 2));
        assert!(RetainedCheckpoints::restored(&json!({"files": [["a", "x"]]}), None).is_err());
    }
}
