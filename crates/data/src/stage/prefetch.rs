//! `prefetch`: computes elements ahead in background threads, through a bounded queue.
//!
//! The stream is the same at any depth. With random access, the threads requested by upstream stages (`map_parallel`)
//! compute whole elements in parallel. Over a stream one thread runs ahead, except with AUTOTUNE after a stage that has
//! its own threads.

use crate::AUTOTUNE;
use crate::Dataset;
use crate::pipeline::{
    DatasetStage, ElementCursor, InlinePrefetch, PipelineRun, PrefetchBuilder, StageId, StageNode,
    ThreadCount, access, open, prefetch_access, stream,
};
use crate::stage::delegate::delegate;
use systole_base::Result;

impl Dataset {
    /// Computes up to `n` elements ahead in background threads ([`crate::AUTOTUNE`]: tuned). The stream does not
    /// change.
    ///
    /// The threads start with the first element and end soon after the iterator is dropped. `n = 0` has no effect.
    pub fn prefetch(&self, n: usize) -> Dataset {
        self.then(|up| PrefetchStage { up, depth: n })
    }
}

pub(crate) struct PrefetchStage {
    pub up: StageNode,
    /// 0: no prefetch; [`AUTOTUNE`]: tuned.
    pub depth: usize,
}

impl DatasetStage for PrefetchStage {
    delegate!(inputs, spec);

    fn label(&self) -> String {
        if self.depth == AUTOTUNE { "prefetch(AUTOTUNE)".into() } else { format!("prefetch({})", self.depth) }
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        let owner = StageId::of(self);
        let ahead = Some(self.depth).filter(|&n| n != AUTOTUNE);
        let is_ahead = run.has_threads() && self.depth > 0;
        if let Some(first) = access(&self.up, run)? {
            if !is_ahead {
                return open(&self.up, run);
            }
            let threads = self.up.threads().unwrap_or(ThreadCount::Fixed(1));
            let ahead = PrefetchBuilder::new(owner, run, threads, ahead);
            return Ok(Box::new(prefetch_access(&self.up, run, ahead, first)));
        }
        let up = stream(&self.up, run)?;
        if !is_ahead || (self.depth == AUTOTUNE && self.up.is_ahead(run)) {
            return Ok(Box::new(InlinePrefetch { up, f: None }));
        }
        Ok(Box::new(PrefetchBuilder::new(owner, run, ThreadCount::Fixed(1), ahead).over_cursor(up, None)))
    }
}

#[cfg(test)]
mod tests {
    use crate::stage::test::{ints, values};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn runs_ahead_no_further_than_its_depth_and_ends_when_dropped() {
        let alive = Arc::new(());
        let guard = alive.clone();
        let made = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = made.clone();
        let d = ints(100).map(move |s| {
            let _ = &guard;
            count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            s
        });
        let mut iter = d.prefetch(3).iter();
        drop(d);
        iter.next().unwrap().unwrap();
        let made = || made.load(std::sync::atomic::Ordering::SeqCst);
        wait_until("three ahead of the one taken", || made() == 4);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(made(), 4);
        drop(iter);
        wait_until("the thread still runs", || Arc::strong_count(&alive) == 1);
    }

    #[test]
    fn carries_errors_in_place_and_panics_over() {
        let d = ints(5).map(|s| {
            let i = s.get("x").unwrap().get(0).as_i64();
            assert!(i != 3, "three!");
            if i == 1 { s.without("nothing") } else { s }
        });
        let mut iter = d.prefetch(4).iter();
        assert!(iter.next().unwrap().is_ok());
        assert!(iter.next().unwrap().is_err());
        assert!(iter.next().unwrap().is_ok());
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| iter.next())).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"three!"));
        assert!(iter.next().is_none());
    }

    #[test]
    fn is_transparent() {
        assert_eq!(values(&ints(5).prefetch(2)), [0, 1, 2, 3, 4]);
        assert_eq!(ints(5).prefetch(2).element_spec().unwrap().to_string(), "x: i32[]");
    }
}
