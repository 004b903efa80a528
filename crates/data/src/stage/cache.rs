//! `cache`: keeps the elements of the first epoch in memory and yields them in every epoch.
//!
//! The cache is shared by all iterators of the dataset. Random upstream stages are frozen, as in tf.data. Errors are
//! not cached.
//!
//! With random access each element is cached when first read, so a later shuffle still seeks; a stream is cached once
//! it has been read to its end.

use crate::Dataset;
use crate::pipeline::{
    DatasetStage, ElementCursor, IteratorState, PipelineRun, RandomAccess, StageNode, access, open, replay,
};
use crate::sample::Sample;
use crate::stage::delegate::delegate;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use systole_base::Result;

impl Dataset {
    /// Keeps the elements of the first epoch in memory and yields them in every epoch.
    pub fn cache(&self) -> Dataset {
        self.then(CacheStage::new)
    }
}

type CacheSlots = Arc<RwLock<HashMap<u64, Sample>>>;

pub(crate) struct CacheStage {
    up: StageNode,
    slots: CacheSlots,
    walked: Arc<OnceLock<Vec<Sample>>>,
}

impl CacheStage {
    pub fn new(up: StageNode) -> CacheStage {
        CacheStage { up, slots: Arc::default(), walked: Arc::default() }
    }
}

impl DatasetStage for CacheStage {
    delegate!(inputs, spec);

    fn label(&self) -> String {
        "cache".into()
    }

    fn access(&self, run: &PipelineRun) -> Result<Option<Box<dyn RandomAccess>>> {
        let Some(up) = access(&self.up, &run.at_epoch(0))? else { return Ok(None) };
        Ok(Some(Box::new(CacheAccess { up, slots: self.slots.clone() })))
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        if self.walked.get().is_some() {
            return Ok(Box::new(CacheReplayCursor { kept: self.walked.clone(), at: 0 }));
        }
        let up = open(&self.up, &run.at_epoch(0))?;
        Ok(Box::new(CacheRecordingCursor { up, kept: self.walked.clone(), seen: Some(Vec::new()), at: 0 }))
    }

    fn is_random(&self) -> bool {
        false
    }

    fn warnings(&self) -> Vec<String> {
        frozen_chance(&self.up, "cache")
    }
}

/// Adds a warning to those of a chain if a caching stage would freeze random upstream stages.
pub(crate) fn frozen_chance(up: &StageNode, keeper: &str) -> Vec<String> {
    let mut warnings = up.warnings();
    if up.is_random() {
        warnings.push(format!(
            "{keeper} freezes the random stages before it in their state of the first epoch ({}): every later epoch is the \
             same; move {keeper} before them",
            up.name()
        ));
    }
    warnings
}

struct CacheAccess {
    up: Box<dyn RandomAccess>,
    slots: CacheSlots,
}

impl RandomAccess for CacheAccess {
    delegate!(len);

    fn get(&mut self, index: u64) -> Result<Sample> {
        // A writer cannot leave the map inconsistent, so poisoning can be ignored.
        if let Some(sample) = self.slots.read().unwrap_or_else(PoisonError::into_inner).get(&index) {
            return Ok(sample.clone());
        }
        let sample = self.up.get(index)?;
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        Ok(slots.entry(index).or_insert(sample).clone())
    }
}

struct CacheRecordingCursor {
    up: Box<dyn ElementCursor>,
    kept: Arc<OnceLock<Vec<Sample>>>,
    /// `None` once an element failed: an incomplete epoch must not be cached.
    seen: Option<Vec<Sample>>,
    at: u64,
}

impl ElementCursor for CacheRecordingCursor {
    fn next(&mut self) -> Option<Result<Sample>> {
        let item = self.up.next();
        self.at += item.is_some() as u64;
        match item {
            Some(Ok(sample)) => {
                if let Some(seen) = &mut self.seen {
                    seen.push(sample.clone());
                }
                Some(Ok(sample))
            }
            Some(Err(e)) => {
                self.seen = None;
                Some(Err(e))
            }
            None => {
                if let Some(seen) = self.seen.take() {
                    self.kept.get_or_init(|| seen);
                }
                None
            }
        }
    }

    fn save(&self) -> IteratorState {
        IteratorState::at([self.at]).over(self.up.save())
    }

    fn restore(&mut self, state: &IteratorState) -> Result<()> {
        let at = state.number(0)?;
        match state.above(0) {
            Ok(above) if at > 0 => {
                // Earlier elements are missing, so this round cannot be cached.
                self.seen = None;
                self.at = at;
                self.up.restore(above)
            }
            _ => replay(self, state),
        }
    }
}

struct CacheReplayCursor {
    kept: Arc<OnceLock<Vec<Sample>>>,
    at: usize,
}

impl ElementCursor for CacheReplayCursor {
    fn next(&mut self) -> Option<Result<Sample>> {
        let sample = self.kept.get()?.get(self.at)?.clone();
        self.at += 1;
        Some(Ok(sample))
    }

    fn skip(&mut self, n: u64) -> u64 {
        let left = (self.kept.get().map_or(0, Vec::len) - self.at) as u64;
        self.at += n.min(left) as usize;
        n.min(left)
    }

    fn save(&self) -> IteratorState {
        IteratorState::at([self.at as u64])
    }

    fn restore(&mut self, state: &IteratorState) -> Result<()> {
        replay(self, state)
    }
}

#[cfg(test)]
mod tests {
    use crate::stage::test::{ints, stream, values};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn computes_each_element_once() {
        for d in [ints(10), stream(10)] {
            let calls = Arc::new(AtomicUsize::new(0));
            let seen = calls.clone();
            let cached = d
                .map(move |s| {
                    seen.fetch_add(1, Ordering::Relaxed);
                    s
                })
                .cache();
            let shuffled = cached.shuffle(10, 1).repeat_n(3);
            assert_eq!(values(&shuffled).len(), 30);
            assert_eq!(values(&cached), (0..10).collect::<Vec<_>>());
            assert_eq!(calls.load(Ordering::Relaxed), 10);
        }
    }

    #[test]
    fn an_epoch_with_an_error_is_not_kept() {
        let d = stream(3).map(|s| if s.get("x").unwrap().get(0).as_i64() == 1 { s.without("?") } else { s });
        let c = d.cache();
        for _ in 0..2 {
            let ok: Vec<bool> = c.iter().map(|s| s.is_ok()).collect();
            assert_eq!(ok, [true, false, true]);
        }
    }
}
