//! Instrumentation of a run: time of each stage ([`StageMeter`]), or the outputs of each stage for one element ([`ElementTrace`]).
//!
//! An instrumented stage's cursor or access is wrapped; without instrumentation there is no wrapper and no cost.

use super::cursor::{ElementCursor, RandomAccess};
use super::stage_ids::StageList;
use crate::pipeline::IteratorState;
use crate::sample::Sample;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use systole_base::{Result, err};

/// Instrumentation of a run.
#[derive(Clone, Default)]
pub(crate) enum RunObserver {
    #[default]
    Off,
    Meter(Arc<StageMeter>),
    Trace(Arc<ElementTrace>),
}

impl RunObserver {
    /// Creates an observer that times one of `every` outermost calls of a pipeline's stages.
    pub fn meter(stages: StageList, every: u32) -> RunObserver {
        let rows = stages.labels.iter().map(|_| StageTime::default()).collect();
        let zero = || AtomicU64::new(0);
        RunObserver::Meter(Arc::new(StageMeter {
            stages,
            rows,
            every: every.max(1),
            calls: zero(),
            timed: zero(),
        }))
    }

    pub fn trace(stages: StageList) -> RunObserver {
        RunObserver::Trace(Arc::new(ElementTrace { stages, seen: Mutex::default() }))
    }

    pub fn is_trace(&self) -> bool {
        matches!(self, RunObserver::Trace(_))
    }

    /// Instruments the random access of the stage at `address`.
    pub fn access(&self, address: usize, access: Box<dyn RandomAccess>) -> Box<dyn RandomAccess> {
        match self.id(address) {
            Some(id) => Box::new(ObservedStage { inner: access, watch: self.clone(), id }),
            None => access,
        }
    }

    /// Instruments the cursor of the stage at `address`.
    pub fn cursor(&self, address: usize, cursor: Box<dyn ElementCursor>) -> Box<dyn ElementCursor> {
        match self.id(address) {
            Some(id) => Box::new(ObservedStage { inner: cursor, watch: self.clone(), id }),
            None => cursor,
        }
    }

    /// Returns the stage's id; `None`: not instrumented, or a stage created while running (inside flat_map or
    /// interleave).
    pub fn id(&self, address: usize) -> Option<usize> {
        match self {
            RunObserver::Off => None,
            RunObserver::Meter(meter) => meter.stages.id(address),
            RunObserver::Trace(trace) => trace.stages.id(address),
        }
    }

    /// Measures work of stage `id` that runs outside its cursor, on another thread.
    pub fn aside<T>(&self, id: Option<usize>, work: impl FnOnce() -> T) -> T {
        match (self, id) {
            (RunObserver::Meter(meter), Some(id)) => meter.time(id, work),
            _ => work(),
        }
    }

    /// Measures one element's work of stage `id` that runs within another stage.
    pub fn within<T>(&self, id: Option<usize>, work: impl FnOnce() -> T) -> T {
        let (RunObserver::Meter(meter), Some(id)) = (self, id) else { return work() };
        meter.time(id, || {
            if TIMING.get() == ThreadTiming::Timed {
                meter.rows[id].elements.fetch_add(1, Relaxed);
            }
            work()
        })
    }

    /// Excludes time that the stage being timed on this thread only waited.
    pub fn leave_out(&self, nanos: u64) {
        if let RunObserver::Meter(_) = self {
            ABOVE.set(ABOVE.get() + nanos);
        }
    }

    fn observe(&self, id: usize, next: impl FnOnce() -> Option<Result<Sample>>) -> Option<Result<Sample>> {
        match self {
            RunObserver::Off => next(),
            RunObserver::Meter(meter) => meter.time(id, || {
                let item = next();
                if item.is_some() && TIMING.get() == ThreadTiming::Timed {
                    meter.rows[id].elements.fetch_add(1, Relaxed);
                }
                item
            }),
            RunObserver::Trace(trace) => {
                let item = next()?;
                let mut seen = trace.seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.push((id, item.clone()));
                Some(item)
            }
        }
    }
}

/// Time and element count of each stage.
pub(crate) struct StageMeter {
    stages: StageList,
    rows: Vec<StageTime>,
    /// Sampling interval: one of this many outermost calls is timed, including nested calls.
    every: u32,
    calls: AtomicU64,
    timed: AtomicU64,
}

#[derive(Default)]
struct StageTime {
    nanos: AtomicU64,
    elements: AtomicU64,
}

thread_local! {
    /// Time of upstream stages within the call being timed on this thread.
    static ABOVE: Cell<u64> = const { Cell::new(0) };
    /// Whether the current call on this thread is timed, and the number of outermost calls.
    static TIMING: Cell<ThreadTiming> = const { Cell::new(ThreadTiming::Outside) };
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// Whether a thread is inside a stage call, and whether that call is timed.
#[derive(Clone, Copy, PartialEq)]
enum ThreadTiming {
    Outside,
    Timed,
    Skipped,
}

impl StageMeter {
    /// Times a call, or skips it including nested calls.
    fn time<T>(&self, id: usize, work: impl FnOnce() -> T) -> T {
        match TIMING.get() {
            ThreadTiming::Skipped => return work(),
            ThreadTiming::Timed => return self.add(id, work),
            ThreadTiming::Outside => {}
        }
        let number = CALLS.replace(CALLS.get().wrapping_add(1));
        let is_timed = number.is_multiple_of(self.every);
        self.calls.fetch_add(1, Relaxed);
        TIMING.set(if is_timed { ThreadTiming::Timed } else { ThreadTiming::Skipped });
        let out = match is_timed {
            true => {
                self.timed.fetch_add(1, Relaxed);
                self.add(id, work)
            }
            false => work(),
        };
        TIMING.set(ThreadTiming::Outside);
        out
    }

    /// Adds the time of `work`, less that of upstream stages within it.
    fn add<T>(&self, id: usize, work: impl FnOnce() -> T) -> T {
        let outer = ABOVE.replace(0);
        let start = Instant::now();
        let out = work();
        let all = start.elapsed().as_nanos() as u64;
        self.rows[id].nanos.fetch_add(all.saturating_sub(ABOVE.get()), Relaxed);
        ABOVE.set(outer + all);
        out
    }

    /// Returns label, own time and elements of each stage, sources first; estimates if not every call was timed.
    pub fn rows(&self) -> Vec<(String, Duration, u64)> {
        let scale = self.calls.load(Relaxed) as f64 / self.timed.load(Relaxed).max(1) as f64;
        let whole = |x: &AtomicU64| (x.load(Relaxed) as f64 * scale) as u64;
        let rows = self.stages.labels.iter().zip(&self.rows);
        rows.map(|(label, row)| {
            (label.clone(), Duration::from_nanos(whole(&row.nanos)), whole(&row.elements))
        })
        .collect()
    }
}

/// Outputs of stages, in order.
pub(crate) struct ElementTrace {
    stages: StageList,
    seen: Mutex<Vec<(usize, Result<Sample>)>>,
}

impl ElementTrace {
    /// Returns and clears the recorded outputs: (label, element).
    pub fn drain(&self) -> Vec<(String, Result<Sample>)> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.drain(..).map(|(id, item)| (self.stages.labels[id].clone(), item)).collect()
    }
}

struct ObservedStage<U> {
    inner: U,
    watch: RunObserver,
    id: usize,
}

impl RandomAccess for ObservedStage<Box<dyn RandomAccess>> {
    fn len(&self) -> Option<u64> {
        self.inner.len()
    }

    fn get(&mut self, index: u64) -> Result<Sample> {
        let inner = &mut self.inner;
        let item = self.watch.observe(self.id, || Some(inner.get(index)));
        item.unwrap_or_else(|| Err(err!(Bug, "an instrumented pipeline element was lost")))
    }

    /// `None` while elements are recorded, so that each is seen.
    fn gather(&mut self, indices: &[u64]) -> Option<Result<Sample>> {
        let inner = &mut self.inner;
        match &self.watch {
            RunObserver::Off => inner.gather(indices),
            RunObserver::Trace(_) => None,
            RunObserver::Meter(meter) => meter.time(self.id, || {
                let batch = inner.gather(indices)?;
                if TIMING.get() == ThreadTiming::Timed {
                    meter.rows[self.id].elements.fetch_add(indices.len() as u64, Relaxed);
                }
                Some(batch)
            }),
        }
    }
}

impl ElementCursor for ObservedStage<Box<dyn ElementCursor>> {
    fn next(&mut self) -> Option<Result<Sample>> {
        let inner = &mut self.inner;
        self.watch.observe(self.id, || inner.next())
    }

    fn skip(&mut self, n: u64) -> u64 {
        self.inner.skip(n)
    }

    fn save(&self) -> IteratorState {
        self.inner.save()
    }

    fn restore(&mut self, state: &IteratorState) -> Result<()> {
        self.inner.restore(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DatasetOptions;
    use crate::stage::test::ints;
    use std::time::Duration;

    #[test]
    fn some_calls_tell_about_all() {
        let slow = |s: Sample| {
            std::thread::sleep(Duration::from_micros(200));
            s
        };
        let d = ints(64).map(slow).batch(1);
        let rows = |every| {
            let watched =
                d.with_options(DatasetOptions { measure: Some(every), ..DatasetOptions::default() });
            let mut iter = watched.iter();
            assert_eq!(iter.by_ref().count(), 64);
            iter.report().stages
        };
        assert!(rows(0).is_empty());
        for every in [1, 8] {
            let rows = rows(every);
            let map = rows.iter().find(|r| r.label == "map").unwrap();
            // 64 elements; the call that finds the end is one more, and may or may not be timed.
            assert!((56..=72).contains(&map.elements), "{every}: {rows:?}");
            assert!(map.time >= Duration::from_millis(10), "{every}: {rows:?}");
        }
    }
}
