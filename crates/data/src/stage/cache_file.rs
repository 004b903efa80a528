//! `cache_file` and `snapshot`: keep the elements of the first epoch in a file.
//!
//! They are yielded in every epoch and every run. Elements are written as they are produced, and only their positions
//! are in memory. An interrupted run leaves a partial file, which the next run completes. Errors are not cached.

use super::cache::frozen_chance;
use crate::Dataset;
use crate::pipeline::{
    DatasetStage, ElementCursor, IteratorState, PipelineRun, RandomAccess, StageNode, access, open,
};
use crate::sample::Sample;
use crate::sample_store::SampleStore;
use crate::stage::delegate::delegate;
use std::path::PathBuf;
use std::sync::Arc;
use systole_base::Result;
use systole_base::rng::hash_name;

impl Dataset {
    /// Keeps the elements of the first epoch in a file and yields them in every epoch, and in later runs.
    ///
    /// The file identifies the stages that produced it, not their functions: delete it when a function changes.
    pub fn cache_file(&self, path: impl Into<PathBuf>) -> Dataset {
        let made_by = format!("{self:?}");
        let store = Arc::new(SampleStore::new(path.into(), made_by));
        self.then(|up| CacheFileStage { up, label: "cache_file", store })
    }

    /// [`Dataset::cache_file`] in a folder, with a file name derived from the upstream stages and `version`: another
    /// pipeline or version gets its own file. Change the version when a function changes.
    pub fn snapshot(&self, folder: impl Into<PathBuf>, version: &str) -> Dataset {
        let made_by = format!("{self:?} {version}");
        let path = folder.into().join(format!("{:016x}.snapshot", hash_name(&made_by)));
        let store = Arc::new(SampleStore::new(path, made_by));
        self.then(|up| CacheFileStage { up, label: "snapshot", store })
    }
}

struct CacheFileStage {
    up: StageNode,
    label: &'static str,
    store: Arc<SampleStore>,
}

impl DatasetStage for CacheFileStage {
    delegate!(inputs, spec);

    fn label(&self) -> String {
        self.label.into()
    }

    fn access(&self, run: &PipelineRun) -> Result<Option<Box<dyn RandomAccess>>> {
        let Some(up) = access(&self.up, &run.at_epoch(0))? else { return Ok(None) };
        if let Some(n) = up.len() {
            // An earlier run may have been interrupted between the last element and the end marker.
            tell(run, self.store.finish(n));
        }
        Ok(Some(Box::new(CacheFileAccess { up, store: self.store.clone(), run: run.clone() })))
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        let up = open(&self.up, &run.at_epoch(0))?;
        Ok(Box::new(CacheFileCursor { up, above: 0, at: 0, store: self.store.clone(), run: run.clone() }))
    }

    fn is_random(&self) -> bool {
        false
    }

    fn warnings(&self) -> Vec<String> {
        frozen_chance(&self.up, self.label)
    }
}

/// Elements that cannot be cached are computed again in the next epoch; this is reported and does not end the run.
fn tell(run: &PipelineRun, kept: Result<()>) {
    if let Err(e) = kept {
        run.note(format!("the cache file is no longer written: {e}"));
    }
}

struct CacheFileAccess {
    up: Box<dyn RandomAccess>,
    store: Arc<SampleStore>,
    run: PipelineRun,
}

impl RandomAccess for CacheFileAccess {
    delegate!(len);

    fn get(&mut self, index: u64) -> Result<Sample> {
        if let Some(sample) = self.store.get(index)? {
            return Ok(sample);
        }
        let sample = self.up.get(index)?;
        tell(&self.run, self.store.put(index, &sample));
        if let Some(n) = self.up.len() {
            tell(&self.run, self.store.finish(n));
        }
        Ok(sample)
    }
}

struct CacheFileCursor {
    up: Box<dyn ElementCursor>,
    /// Position of the upstream stages; lags behind `at` while elements come from the file.
    above: u64,
    at: u64,
    store: Arc<SampleStore>,
    run: PipelineRun,
}

impl CacheFileCursor {
    fn read(&mut self) -> Result<Option<Sample>> {
        if let Some(sample) = self.store.get(self.at)? {
            return Ok(Some(sample));
        }
        if self.store.whole()?.is_some_and(|n| self.at >= n) {
            return Ok(None);
        }
        let behind = self.at - self.above;
        if self.up.skip(behind) < behind {
            return Ok(None);
        }
        self.above = self.at;
        let Some(item) = self.up.next() else {
            tell(&self.run, self.store.finish(self.at));
            return Ok(None);
        };
        self.above += 1;
        let sample = item?;
        tell(&self.run, self.store.put(self.at, &sample));
        Ok(Some(sample))
    }
}

impl ElementCursor for CacheFileCursor {
    fn next(&mut self) -> Option<Result<Sample>> {
        let item = self.read().transpose();
        self.at += item.is_some() as u64;
        item
    }

    fn save(&self) -> IteratorState {
        match self.at == self.above {
            true => IteratorState::at([self.at]).over(self.up.save()),
            false => IteratorState::at([self.at]),
        }
    }

    fn restore(&mut self, state: &IteratorState) -> Result<()> {
        self.at = state.number(0)?;
        if let Ok(above) = state.above(0) {
            self.up.restore(above)?;
            self.above = self.at;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::Dataset;
    use crate::stage::test::{ints, resumes, stream, values};
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use systole_base::ErrorKind;
    use systole_testing::assert_error;

    fn path(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("systole-cache-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    fn counted(d: &Dataset) -> (Dataset, Arc<AtomicUsize>) {
        let calls = Arc::new(AtomicUsize::new(0));
        let seen = calls.clone();
        let d = d.map(move |s| {
            seen.fetch_add(1, Ordering::Relaxed);
            s
        });
        (d, calls)
    }

    #[test]
    fn elements_are_computed_once_for_all_runs() {
        for (i, d) in [ints(9), stream(9)].iter().enumerate() {
            let path = path(&format!("once-{i}"));
            let (d, calls) = counted(d);
            for _ in 0..2 {
                let cached = d.cache_file(&path);
                assert_eq!(
                    values(&cached.repeat_n(2)),
                    [(0..9).collect::<Vec<_>>(), (0..9).collect()].concat()
                );
                resumes(&cached.shuffle(4, 1).batch(2).repeat_n(2));
                assert_eq!(calls.load(Ordering::Relaxed), 9);
            }
            let other = d.batch(2).cache_file(&path).iter().next().unwrap().unwrap_err();
            assert_error(&other, ErrorKind::Data, &[&path.display().to_string(), "batch(2)"]);
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn a_file_cut_anywhere_is_used_and_completed() {
        let path = path("cut");
        for d in [ints(6), stream(6)] {
            assert_eq!(values(&d.cache_file(&path)).len(), 6);
            let whole = std::fs::read(&path).unwrap();
            for cut in (0..whole.len()).step_by(3) {
                std::fs::write(&path, &whole[..cut]).unwrap();
                assert_eq!(values(&d.cache_file(&path)), [0, 1, 2, 3, 4, 5], "cut at {cut}");
                assert_eq!(std::fs::read(&path).unwrap(), whole, "cut at {cut}");
            }
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn errors_are_not_kept_and_a_snapshot_has_its_own_file() {
        let d = stream(3).map(|s| if s.get("x").unwrap().get(0).as_i64() == 1 { s.without("?") } else { s });
        let path = path("errors");
        let cached = d.cache_file(&path);
        for _ in 0..2 {
            assert_eq!(cached.iter().map(|s| s.is_ok()).collect::<Vec<_>>(), [true, false, true]);
        }
        std::fs::remove_file(&path).unwrap();
        for version in ["1", "2"] {
            assert_eq!(values(&ints(3).snapshot(&path, version)), [0, 1, 2]);
        }
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 2);
        std::fs::remove_dir_all(&path).unwrap();
    }
}
