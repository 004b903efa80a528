//! Watching a run: how long each stage takes ([`Meter`]), or what each stage makes of one element ([`Trace`]).
//!
//! A watched stage's cursor or access is wrapped; where nothing watches there is no wrapper and no cost.

use super::cursor::{Access, Cursor};
use super::stage_ids::Stages;
use crate::pipeline::IteratorState;
use crate::sample::Sample;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use systole_base::{Error, ErrorKind, Result};

/// Who is watching.
#[derive(Clone, Default)]
pub(crate) enum Watch {
    #[default]
    Off,
    Meter(Arc<Meter>),
    Trace(Arc<Trace>),
}

impl Watch {
    /// Times one of `every` calls that no other contains.
    pub fn meter(stages: Stages, every: u32) -> Watch {
        let rows = stages.labels.iter().map(|_| Row::default()).collect();
        let zero = || AtomicU64::new(0);
        Watch::Meter(Arc::new(Meter { stages, rows, every: every.max(1), calls: zero(), timed: zero() }))
    }

    pub fn trace(stages: Stages) -> Watch {
        Watch::Trace(Arc::new(Trace { stages, seen: Mutex::default() }))
    }

    pub fn is_trace(&self) -> bool {
        matches!(self, Watch::Trace(_))
    }

    /// The access of the stage at `address`, watched.
    pub fn access(&self, address: usize, access: Box<dyn Access>) -> Box<dyn Access> {
        match self.id(address) {
            Some(id) => Box::new(Watched { inner: access, watch: self.clone(), id }),
            None => access,
        }
    }

    /// The cursor of the stage at `address`, watched.
    pub fn cursor(&self, address: usize, cursor: Box<dyn Cursor>) -> Box<dyn Cursor> {
        match self.id(address) {
            Some(id) => Box::new(Watched { inner: cursor, watch: self.clone(), id }),
            None => cursor,
        }
    }

    /// `None`: not watched, or a stage that was made while running (inside flat_map or interleave).
    pub fn id(&self, address: usize) -> Option<usize> {
        match self {
            Watch::Off => None,
            Watch::Meter(meter) => meter.stages.id(address),
            Watch::Trace(trace) => trace.stages.id(address),
        }
    }

    /// Work of stage `id` that is done outside its cursor, on a thread of its own.
    pub fn aside<T>(&self, id: Option<usize>, work: impl FnOnce() -> T) -> T {
        match (self, id) {
            (Watch::Meter(meter), Some(id)) => meter.time(id, work),
            _ => work(),
        }
    }

    /// One element's work of stage `id`, done within that of another stage.
    pub fn within<T>(&self, id: Option<usize>, work: impl FnOnce() -> T) -> T {
        let (Watch::Meter(meter), Some(id)) = (self, id) else { return work() };
        meter.time(id, || {
            if TIMING.get() == Timing::Timed {
                meter.rows[id].elements.fetch_add(1, Relaxed);
            }
            work()
        })
    }

    /// Does not count time that the stage now being timed on this thread only waited.
    pub fn leave_out(&self, nanos: u64) {
        if let Watch::Meter(_) = self {
            ABOVE.set(ABOVE.get() + nanos);
        }
    }

    fn observe(&self, id: usize, next: impl FnOnce() -> Option<Result<Sample>>) -> Option<Result<Sample>> {
        match self {
            Watch::Off => next(),
            Watch::Meter(meter) => meter.time(id, || {
                let item = next();
                if item.is_some() && TIMING.get() == Timing::Timed {
                    meter.rows[id].elements.fetch_add(1, Relaxed);
                }
                item
            }),
            Watch::Trace(trace) => {
                let item = next()?;
                let mut seen = trace.seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.push((id, item.clone()));
                Some(item)
            }
        }
    }
}

/// Time and elements of each stage.
pub(crate) struct Meter {
    stages: Stages,
    rows: Vec<Row>,
    /// Of the calls that no other contains one of so many is timed, with all that it contains.
    every: u32,
    calls: AtomicU64,
    timed: AtomicU64,
}

#[derive(Default)]
struct Row {
    nanos: AtomicU64,
    elements: AtomicU64,
}

thread_local! {
    /// Time of the stages above, within the call that is being timed on this thread.
    static ABOVE: Cell<u64> = const { Cell::new(0) };
    /// Whether the call that runs on this thread is timed, and how many calls that no other contains there were.
    static TIMING: Cell<Timing> = const { Cell::new(Timing::Outside) };
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// Whether a thread is inside a call of a stage, and whether that one is timed.
#[derive(Clone, Copy, PartialEq)]
enum Timing {
    Outside,
    Timed,
    Skipped,
}

impl Meter {
    /// Times a call, or leaves it out with all that it contains.
    fn time<T>(&self, id: usize, work: impl FnOnce() -> T) -> T {
        match TIMING.get() {
            Timing::Skipped => return work(),
            Timing::Timed => return self.add(id, work),
            Timing::Outside => {}
        }
        let number = CALLS.replace(CALLS.get().wrapping_add(1));
        let is_timed = number.is_multiple_of(self.every);
        self.calls.fetch_add(1, Relaxed);
        TIMING.set(if is_timed { Timing::Timed } else { Timing::Skipped });
        let out = match is_timed {
            true => {
                self.timed.fetch_add(1, Relaxed);
                self.add(id, work)
            }
            false => work(),
        };
        TIMING.set(Timing::Outside);
        out
    }

    /// Adds what `work` takes, less what the stages above take within it.
    fn add<T>(&self, id: usize, work: impl FnOnce() -> T) -> T {
        let outer = ABOVE.replace(0);
        let start = Instant::now();
        let out = work();
        let all = start.elapsed().as_nanos() as u64;
        self.rows[id].nanos.fetch_add(all.saturating_sub(ABOVE.get()), Relaxed);
        ABOVE.set(outer + all);
        out
    }

    /// Label, own time and elements of each stage, sources first; estimates where not every call was timed.
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

/// What stages yielded, in the order in which they did.
pub(crate) struct Trace {
    stages: Stages,
    seen: Mutex<Vec<(usize, Result<Sample>)>>,
}

impl Trace {
    /// Takes what was seen since the last call: (label, element).
    pub fn drain(&self) -> Vec<(String, Result<Sample>)> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.drain(..).map(|(id, item)| (self.stages.labels[id].clone(), item)).collect()
    }
}

struct Watched<U> {
    inner: U,
    watch: Watch,
    id: usize,
}

impl Access for Watched<Box<dyn Access>> {
    fn len(&self) -> Option<u64> {
        self.inner.len()
    }

    fn get(&mut self, index: u64) -> Result<Sample> {
        let inner = &mut self.inner;
        let item = self.watch.observe(self.id, || Some(inner.get(index)));
        item.unwrap_or_else(|| Err(Error::new(ErrorKind::Bug, "a watched element was lost")))
    }
}

impl Cursor for Watched<Box<dyn Cursor>> {
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
    use crate::Options;
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
            let watched = d.with_options(Options { measure: Some(every), ..Options::default() });
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
