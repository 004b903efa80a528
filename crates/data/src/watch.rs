//! Watching a run: how long each stage takes ([`Meter`]), or what each stage makes of one element ([`Trace`]).
//!
//! A watched stage's cursor or access is wrapped; where nothing watches there is no wrapper and no cost.

use crate::place::Place;
use crate::sample::Sample;
use crate::stage::{Access, Cursor, Node, Owner};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use systole_base::Result;

/// Who is watching.
#[derive(Clone, Default)]
pub(crate) enum Watch {
    #[default]
    Off,
    Meter(Arc<Meter>),
    Trace(Arc<Trace>),
}

/// The stages of a chain in the order in which elements pass them, with an id each.
pub(crate) struct Stages {
    pub labels: Vec<String>,
    ids: HashMap<usize, usize>,
}

impl Stages {
    pub fn of(node: &Node) -> Stages {
        let mut stages = Stages { labels: Vec::new(), ids: HashMap::new() };
        stages.add(node);
        stages
    }

    fn add(&mut self, node: &Node) {
        for up in node.inputs() {
            self.add(&up);
        }
        self.ids.entry(Owner::of(&**node).address).or_insert_with(|| {
            self.labels.push(node.label());
            self.labels.len() - 1
        });
    }

    pub fn id(&self, address: usize) -> Option<usize> {
        self.ids.get(&address).copied()
    }
}

impl Watch {
    pub fn meter(node: &Node) -> Watch {
        let stages = Stages::of(node);
        let rows = stages.labels.iter().map(|_| Row::default()).collect();
        Watch::Meter(Arc::new(Meter { stages, rows }))
    }

    pub fn trace(node: &Node) -> Watch {
        Watch::Trace(Arc::new(Trace { stages: Stages::of(node), seen: Mutex::default() }))
    }

    /// Whether each stage is looked at by itself.
    pub fn is_on(&self) -> bool {
        !matches!(self, Watch::Off)
    }

    pub fn is_trace(&self) -> bool {
        matches!(self, Watch::Trace(_))
    }

    pub fn access(&self, node: &Node, access: Box<dyn Access>) -> Box<dyn Access> {
        match self.id(Owner::of(&**node).address) {
            Some(id) => Box::new(Watched { inner: access, watch: self.clone(), id }),
            None => access,
        }
    }

    pub fn cursor(&self, node: &Node, cursor: Box<dyn Cursor>) -> Box<dyn Cursor> {
        match self.id(Owner::of(&**node).address) {
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

    /// Does not count time that the stage now being timed on this thread only waited.
    pub fn leave_out(&self, nanos: u64) {
        if let Watch::Meter(_) = self {
            ABOVE.set(ABOVE.get() + nanos);
        }
    }

    fn observe(&self, id: usize, next: impl FnOnce() -> Option<Result<Sample>>) -> Option<Result<Sample>> {
        match self {
            Watch::Off => next(),
            Watch::Meter(meter) => {
                let item = meter.time(id, next);
                if item.is_some() {
                    meter.rows[id].elements.fetch_add(1, Relaxed);
                }
                item
            }
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
}

#[derive(Default)]
struct Row {
    nanos: AtomicU64,
    elements: AtomicU64,
}

thread_local! {
    /// Time of the stages above, within the call that is being timed on this thread.
    static ABOVE: Cell<u64> = const { Cell::new(0) };
}

impl Meter {
    /// Adds what `work` takes, less what the stages above take within it.
    fn time<T>(&self, id: usize, work: impl FnOnce() -> T) -> T {
        let outer = ABOVE.replace(0);
        let start = Instant::now();
        let out = work();
        let all = start.elapsed().as_nanos() as u64;
        self.rows[id].nanos.fetch_add(all.saturating_sub(ABOVE.get()), Relaxed);
        ABOVE.set(outer + all);
        out
    }

    /// Label, own time and elements of each stage, sources first.
    pub fn rows(&self) -> Vec<(String, Duration, u64)> {
        let rows = self.stages.labels.iter().zip(&self.rows);
        rows.map(|(label, row)| {
            (label.clone(), Duration::from_nanos(row.nanos.load(Relaxed)), row.elements.load(Relaxed))
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
        item.unwrap_or_else(|| Ok(Sample::default()))
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

    fn save(&self) -> Place {
        self.inner.save()
    }

    fn restore(&mut self, place: &Place) -> Result<()> {
        self.inner.restore(place)
    }
}
