//! [`ParallelPrefetch`]: worker threads that compute elements ahead and deliver them in order.
//!
//! Workers take turns at the source for a few elements at a time (to amortize the lock), compute them in parallel, and
//! store them in numbered slots; the consumer empties the slots in order. So the stream is the same for any number of
//! threads and any queue length. If order is not required (`deterministic: false`), the consumer takes any ready slot,
//! and its state records which elements those were.
//!
//! Threads start with the first element (so that seeking needs none) and end soon after it is dropped. Errors are
//! delivered as elements, panics as panics of the consumer. The memory budget applies to everything that is computed
//! ahead; only the one element that the consumer is waiting for is computed unconditionally.

use super::autotune::{MemoryLease, StageGauge, ThreadCount};
use super::batching::Batching;
use super::cursor::{ElementCursor, RandomAccess};
use super::map_fn::{MapFn, apply};
use super::position::{IteratorState, foreign};
use super::run::PipelineRun;
use super::stage_ids::StageId;
use crate::mutex::lock;
use crate::sample::Sample;
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use systole_base::{Error, Result, ensure, err};

/// Maximum number of elements that a worker takes at a time.
const CHUNK: usize = 64;
/// Maximum size of a chunk in bytes: for large elements the lock is cheap, and larger chunks would exceed the caches.
const CHUNK_BYTES: usize = 256 << 10;
/// Chunks that take less time than this are enlarged, chunks that take longer than the maximum are reduced.
const SHORT: Duration = Duration::from_micros(100);
const LONG: Duration = Duration::from_millis(2);
/// Maximum number of slots allocated in advance.
const AT_ONCE: usize = 1 << 12;
/// Minimum distance in elements between saved source states, since saving has a cost.
const ANCHORS: u64 = 64;

/// Opens another random access to the same elements.
pub(crate) type OpenAccess = Box<dyn Fn() -> Result<Option<Box<dyn RandomAccess>>> + Send + Sync>;

/// Builder: stage, run and thread count of a prefetch.
pub(crate) struct PrefetchBuilder {
    owner: StageId,
    run: PipelineRun,
    gauge: Arc<StageGauge>,
}

/// Consumer side of the prefetch.
pub(crate) struct ParallelPrefetch {
    engine: Arc<PrefetchShared>,
    /// Source, before the threads are started.
    idle: Option<PrefetchIntake>,
    over: bool,
    current: VecDeque<Result<Sample>>,
    current_seq: u64,
    lease: Option<MemoryLease>,
    /// Size in bytes of the element delivered last, which may still be in use.
    handed_out: usize,
    progress: DeliveryProgress,
    /// Index after the last batch, and how many elements it lacks.
    short: Option<(u64, u64)>,
}

/// State shared by workers and consumer.
struct PrefetchShared {
    owner: StageId,
    /// For random access: opens another access for another worker.
    open: Option<OpenAccess>,
    run: PipelineRun,
    gauge: Arc<StageGauge>,
    f: Option<MapFn>,
    /// Workers deliver batches of `f`'s results, stacked by the worker that computed them.
    batching: Option<Batching>,
    intake: Mutex<PrefetchIntake>,
    state: Mutex<PrefetchState>,
    /// Signals the workers: room in the queue, or the end.
    room: Condvar,
    /// Signals the consumer: a slot is filled, or no more will follow.
    ready: Condvar,
    ordered: bool,
}

/// Source of the elements, used by one worker at a time.
struct PrefetchIntake {
    feed: PrefetchFeed,
    /// Index of the next element.
    seq: u64,
    /// Index of the first element that needs a saved source state.
    anchor_due: u64,
    /// Ranges already delivered ahead of others in an unordered run: (first, end).
    gaps: VecDeque<(u64, u64)>,
    ended: bool,
}

enum PrefetchFeed {
    Cursor(Box<dyn ElementCursor>),
    /// Indices below the length; the first worker uses the access that is already open.
    Access(Option<Box<dyn RandomAccess>>, Option<u64>),
}

enum PrefetchWork {
    Items(u64, Vec<Result<Sample>>),
    Indices(u64, u64),
}

#[derive(Default)]
struct PrefetchState {
    slots: VecDeque<PrefetchSlot>,
    /// Index of the first slot.
    base: u64,
    /// Number of elements claimed and not yet consumed.
    in_flight: usize,
    chunk: usize,
    live: usize,
    ended: bool,
    stop: bool,
}

struct PrefetchSlot {
    seq: u64,
    anchor: Option<IteratorState>,
    /// Number of elements that its last batch lacks.
    lacking: u64,
    content: SlotContent,
}

enum SlotContent {
    Pending,
    Ready(Vec<Result<Sample>>, MemoryLease),
    Panic(Box<dyn Any + Send>),
    Taken,
}

/// Delivered elements.
#[derive(Default)]
struct DeliveryProgress {
    /// All elements before this index are delivered.
    low: u64,
    /// Further delivered ranges: first → end. Empty for ordered runs.
    beyond: BTreeMap<u64, u64>,
    /// Source states by element index: the last one at or before `low`, and later ones.
    anchors: VecDeque<(u64, IteratorState)>,
}

impl DeliveryProgress {
    fn took(&mut self, seq: u64) {
        if seq == self.low {
            self.low += 1;
            while let Some(end) = self.beyond.remove(&self.low) {
                self.low = end;
            }
            while self.anchors.get(1).is_some_and(|(at, _)| *at <= self.low) {
                self.anchors.pop_front();
            }
        } else if let Some((_, end)) = self.beyond.range_mut(..=seq).next_back().filter(|(_, e)| **e == seq) {
            *end += 1;
        } else {
            self.beyond.insert(seq, seq + 1);
        }
    }

    fn anchor(&mut self, seq: u64, state: IteratorState) {
        let at = self.anchors.partition_point(|(s, _)| *s <= seq);
        self.anchors.insert(at, (seq, state));
    }
}

impl PrefetchBuilder {
    /// Creates a prefetching stage; `ahead`: number of elements, tuned if `None`.
    pub fn new(
        owner: StageId,
        run: &PipelineRun,
        threads: ThreadCount,
        ahead: Option<usize>,
    ) -> PrefetchBuilder {
        PrefetchBuilder { gauge: run.tuner().gauge(&owner, threads, ahead), owner, run: run.clone() }
    }

    /// Prefetches from random access: workers compute elements in parallel, each through its own access.
    pub fn over_access(self, first: Box<dyn RandomAccess>, open: OpenAccess) -> ParallelPrefetch {
        let len = first.len();
        self.over(Some(open), (None, None), PrefetchFeed::Access(Some(first), len))
    }

    /// Prefetches from a stream: one worker at a time reads from `up`; `f` runs in parallel.
    pub fn over_cursor(self, up: Box<dyn ElementCursor>, f: Option<MapFn>) -> ParallelPrefetch {
        self.over(None, (f, None), PrefetchFeed::Cursor(up))
    }

    /// Applies `f` and batches on the worker threads (fused map-and-batch); `map` is the id of the map stage. Saved
    /// states equal those of `batch` after `map_parallel`.
    pub fn over_batches(
        self,
        up: Box<dyn ElementCursor>,
        (f, map): (MapFn, Option<usize>),
        batching: Batching,
    ) -> ParallelPrefetch {
        let watch = self.run.watch().clone();
        // The report still lists the function's own time.
        let f: MapFn = Arc::new(move |s| watch.within(map, || f(s)));
        self.over(None, (Some(f), Some(batching)), PrefetchFeed::Cursor(up))
    }

    fn over(
        self,
        open: Option<OpenAccess>,
        (f, batching): (Option<MapFn>, Option<Batching>),
        feed: PrefetchFeed,
    ) -> ParallelPrefetch {
        let PrefetchBuilder { owner, run, gauge } = self;
        let mut progress = DeliveryProgress::default();
        if let PrefetchFeed::Cursor(up) = &feed {
            progress.anchor(0, up.save());
        }
        let intake = || PrefetchIntake {
            feed: PrefetchFeed::Access(None, Some(0)),
            seq: 0,
            anchor_due: ANCHORS,
            gaps: VecDeque::new(),
            ended: true,
        };
        let idle = PrefetchIntake { feed, ended: false, ..intake() };
        let engine = PrefetchShared {
            ordered: run.is_deterministic(),
            owner,
            open,
            run,
            gauge,
            f,
            batching,
            intake: Mutex::new(intake()),
            state: Mutex::new(PrefetchState { chunk: 1, ..PrefetchState::default() }),
            room: Condvar::new(),
            ready: Condvar::new(),
        };
        engine.run.budget().enter();
        ParallelPrefetch {
            engine: Arc::new(engine),
            idle: Some(idle),
            over: false,
            current: VecDeque::new(),
            current_seq: 0,
            lease: None,
            handed_out: 0,
            progress,
            short: None,
        }
    }
}

impl ParallelPrefetch {
    fn start(&mut self) -> Result<()> {
        let Some(mut idle) = self.idle.take() else { return Ok(()) };
        idle.seq = self.progress.low;
        *lock(&self.engine.intake) = idle;
        self.spawn()
    }

    /// Starts threads up to the gauge's number; surplus threads end by themselves.
    fn spawn(&mut self) -> Result<()> {
        let wanted = self.engine.gauge.threads();
        loop {
            let mut state = lock(&self.engine.state);
            if state.live >= wanted || state.ended {
                return Ok(());
            }
            state.live += 1;
            let first = state.live == 1;
            drop(state);
            let engine = self.engine.clone();
            let spawned = thread::Builder::new().name("systole-data".into()).spawn(move || engine.work());
            if let Err(e) = spawned {
                lock(&self.engine.state).live -= 1;
                // One thread also does all the work, only slower.
                return if first { Err(no_thread(e)) } else { Ok(()) };
            }
        }
    }

    /// Waits for the next chunk; `None` at the end.
    fn take(&mut self) -> Option<Result<()>> {
        if let Err(e) = self.start().and_then(|()| self.spawn()) {
            self.over = true;
            return Some(Err(e));
        }
        let engine = self.engine.clone();
        let mut state = lock(&engine.state);
        let mut waiting: Option<Instant> = None;
        let at = loop {
            match state.next(engine.ordered) {
                Some(at) => break at,
                None if state.ended && state.slots.is_empty() => {
                    self.over = true;
                    return None;
                }
                None => {
                    waiting.get_or_insert_with(Instant::now);
                    state = engine.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        let slot = &mut state.slots[at];
        let (seq, anchor, lacking) = (slot.seq, slot.anchor.take(), slot.lacking);
        match std::mem::replace(&mut slot.content, SlotContent::Taken) {
            SlotContent::Ready(items, lease) => {
                self.current = items.into();
                self.lease = Some(lease);
            }
            SlotContent::Panic(panic) => {
                drop(state);
                self.over = true;
                resume_unwind(panic)
            }
            SlotContent::Pending | SlotContent::Taken => {}
        }
        state.in_flight -= self.current.len();
        state.drop_taken();
        drop(state);
        engine.room.notify_all();
        self.current_seq = seq;
        if lacking > 0 {
            self.short = Some((seq + self.current.len() as u64, lacking));
        }
        if let Some(state) = anchor {
            self.progress.anchor(seq, state);
        }
        let gauge = &engine.gauge;
        if let Some(since) = waiting {
            let waited = since.elapsed().as_nanos() as u64;
            gauge.waited.fetch_add(waited, Relaxed);
            engine.run.watch().leave_out(waited);
        }
        gauge.elements.fetch_add(self.current.len() as u64, Relaxed);
        gauge.consider(engine.run.tuner());
        Some(Ok(()))
    }
}

impl ElementCursor for ParallelPrefetch {
    fn next(&mut self) -> Option<Result<Sample>> {
        loop {
            if let Some(item) = self.current.pop_front() {
                if let Some(lease) = &mut self.lease {
                    lease.give_back(self.handed_out);
                }
                self.handed_out = item.as_ref().map_or(0, Sample::bytes);
                self.progress.took(self.current_seq);
                self.current_seq += 1;
                return Some(item);
            }
            if self.over {
                return None;
            }
            self.lease = None;
            self.handed_out = 0;
            if let Err(e) = self.take()? {
                return Some(Err(e));
            }
        }
    }

    fn skip(&mut self, n: u64) -> u64 {
        match &mut self.idle {
            Some(idle) if idle.gaps.is_empty() => {
                let skipped = match (&mut idle.feed, self.engine.batching) {
                    (PrefetchFeed::Cursor(up), None) => up.skip(n),
                    (PrefetchFeed::Cursor(up), Some(b)) => b.skip(&mut **up, n),
                    (PrefetchFeed::Access(_, len), _) => n.min(len.unwrap_or(u64::MAX) - self.progress.low),
                };
                self.progress.low += skipped;
                if let PrefetchFeed::Cursor(up) = &idle.feed {
                    self.progress.anchors = [(self.progress.low, up.save())].into();
                }
                skipped
            }
            _ => (0..n).take_while(|_| self.next().is_some()).count() as u64,
        }
    }

    fn save(&self) -> IteratorState {
        let low = self.progress.low;
        let mut saved = match (self.progress.anchors.front(), self.engine.batching) {
            (Some((at, anchor)), None) => IteratorState::at([low.saturating_sub(*at)]).over(anchor.clone()),
            (Some((at, anchor)), Some(b)) => {
                let lacking = self.short.filter(|(end, _)| *end == low).map_or(0, |(_, n)| n);
                let past = low.saturating_sub(*at).saturating_mul(b.size as u64).saturating_sub(lacking);
                IteratorState::at([low]).over(IteratorState::at([past]).over(anchor.clone()))
            }
            (None, _) => IteratorState::at([low]),
        };
        for (&first, &end) in &self.progress.beyond {
            saved.numbers.extend([first - low, end - low]);
        }
        saved
    }

    fn restore(&mut self, state: &IteratorState) -> Result<()> {
        let Some(idle) = &mut self.idle else { return Err(foreign()) };
        let past = state.number(0)?;
        match &mut idle.feed {
            PrefetchFeed::Cursor(up) if self.engine.batching.is_some() => {
                let inside = state.above(0)?;
                up.restore(inside.above(0)?)?;
                ensure!(up.skip(inside.number(0)?) >= inside.number(0)?, foreign());
                self.progress =
                    DeliveryProgress { anchors: [(past, up.save())].into(), ..DeliveryProgress::default() };
                self.progress.low = past;
                return Ok(());
            }
            PrefetchFeed::Cursor(up) => {
                up.restore(state.above(0)?)?;
                self.progress =
                    DeliveryProgress { anchors: [(0, up.save())].into(), ..DeliveryProgress::default() };
                ensure!(up.skip(past) >= past, foreign());
                self.progress.low = past;
            }
            PrefetchFeed::Access(_, Some(len)) if past > *len => return Err(foreign()),
            PrefetchFeed::Access(..) => self.progress.low = past,
        }
        for pair in state.numbers[1..].chunks(2) {
            let [first, end] = *pair else { return Err(foreign()) };
            ensure!(first < end, foreign());
            let (first, end) = (past.saturating_add(first), past.saturating_add(end));
            idle.gaps.push_back((first, end));
            self.progress.beyond.insert(first, end);
        }
        Ok(())
    }
}

impl Drop for ParallelPrefetch {
    fn drop(&mut self) {
        self.engine.run.budget().leave();
        lock(&self.engine.state).stop = true;
        self.engine.room.notify_all();
    }
}

impl PrefetchState {
    /// Returns the slot to consume next.
    fn next(&self, ordered: bool) -> Option<usize> {
        let is_filled =
            |s: &PrefetchSlot| matches!(s.content, SlotContent::Ready(..) | SlotContent::Panic(_));
        match ordered {
            true => self.slots.front().is_some_and(is_filled).then_some(0),
            false => self.slots.iter().position(is_filled),
        }
    }

    fn drop_taken(&mut self) {
        while self.slots.front().is_some_and(|s| matches!(s.content, SlotContent::Taken)) {
            self.slots.pop_front();
            self.base += 1;
        }
    }
}

/// Worker's claim: the slot to fill, and the elements to compute.
struct WorkerClaim {
    number: u64,
    work: PrefetchWork,
    lease: MemoryLease,
}

impl PrefetchShared {
    fn work(&self) {
        let mut access = None;
        loop {
            let Some(mut claim) = self.claim(&mut access) else { return };
            let start = Instant::now();
            let id = self.run.watch().id(self.owner.address);
            let compute = || self.run.watch().aside(id, || self.compute(claim.work, &mut access));
            let content = match catch_unwind(AssertUnwindSafe(compute)) {
                Ok(items) => {
                    let bytes = items.iter().flatten().map(Sample::bytes);
                    let (all, most) = bytes.fold((0usize, 0), |(a, m), b| (a.saturating_add(b), m.max(b)));
                    self.gauge.element_bytes.fetch_max(most, Relaxed);
                    self.run.budget().note(most);
                    claim.lease.settle(all);
                    SlotContent::Ready(items, claim.lease)
                }
                Err(panic) => SlotContent::Panic(panic),
            };
            self.deliver(claim.number, content, start.elapsed());
        }
    }

    /// Waits for access to the source and for room, and claims a few elements. `None`: the worker should end.
    fn claim(&self, access: &mut Option<Box<dyn RandomAccess>>) -> Option<WorkerClaim> {
        let mut intake = lock(&self.intake);
        let (wanted, lease) = if intake.ended { None } else { self.room() }.or_else(|| {
            lock(&self.state).live -= 1;
            None
        })?;
        if let PrefetchFeed::Access(first @ Some(_), _) = &mut intake.feed
            && access.is_none()
        {
            *access = first.take();
        }
        let seq = intake.next_seq();
        let anchor = intake.due_anchor(seq, self.ordered);
        let pulled = catch_unwind(AssertUnwindSafe(|| intake.pull(seq, wanted, self.batching)));
        let mut state = lock(&self.state);
        let claim = match pulled {
            Ok((work, count)) => {
                state.in_flight += count;
                intake.seq = seq + count as u64;
                (count > 0).then_some((work, SlotContent::Pending))
            }
            Err(panic) => {
                intake.ended = true;
                Some((PrefetchWork::Items(seq, Vec::new()), SlotContent::Panic(panic)))
            }
        };
        let ended = intake.ended;
        let number = state.base + state.slots.len() as u64;
        let claim = claim.map(|(work, content)| {
            let panicked = matches!(content, SlotContent::Panic(_));
            let lacking = match (&work, self.batching) {
                (PrefetchWork::Items(_, items), Some(b)) => b.lacking(items.len()),
                _ => 0,
            };
            state.slots.push_back(PrefetchSlot { seq, anchor, lacking, content });
            (work, panicked)
        });
        state.ended |= ended;
        self.gauge.deepest.fetch_max(state.in_flight, Relaxed);
        if ended {
            self.ready.notify_all();
        }
        match claim {
            Some((work, false)) => Some(WorkerClaim { number, work, lease }),
            _ => {
                state.live -= 1;
                None
            }
        }
    }

    /// Waits until elements may be computed; returns their number and memory lease. `None`: stop.
    fn room(&self) -> Option<(usize, MemoryLease)> {
        let mut state = lock(&self.state);
        let mut since = None;
        let found = loop {
            if state.stop || state.live > self.gauge.threads() {
                break None;
            }
            let bytes = self.gauge.element_bytes.load(Relaxed);
            if state.in_flight == 0 {
                break Some((1, self.run.budget().insist(bytes)));
            }
            let chunk = state.chunk;
            if bytes > 0 && state.in_flight + chunk <= self.gauge.ahead() {
                if let Some(lease) = self.run.budget().lease(bytes.saturating_mul(chunk)) {
                    break Some((chunk, lease));
                }
                self.gauge.short_of_memory.fetch_add(1, Relaxed);
                state.chunk = 1;
                since.get_or_insert_with(Instant::now);
                // Another stage may return memory without notifying this one.
                let wait = self.room.wait_timeout(state, Duration::from_millis(2));
                state = wait.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            since.get_or_insert_with(Instant::now);
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        if let Some(since) = since {
            self.gauge.blocked.fetch_add(since.elapsed().as_nanos() as u64, Relaxed);
        }
        found
    }

    fn compute(&self, work: PrefetchWork, access: &mut Option<Box<dyn RandomAccess>>) -> Vec<Result<Sample>> {
        match work {
            PrefetchWork::Items(seq, items) => {
                let f = |item: Result<Sample>| match &self.f {
                    Some(f) => item.and_then(|s| apply(f, s)),
                    None => item,
                };
                match self.batching {
                    Some(batching) => batching.stack(seq, items.into_iter().map(f)),
                    None => items.into_iter().map(f).collect(),
                }
            }
            PrefetchWork::Indices(first, end) => {
                if let (None, Some(open)) = (&access, &self.open) {
                    match open() {
                        Ok(opened) => *access = opened,
                        Err(e) => return (first..end).map(|_| Err(e.clone())).collect(),
                    }
                }
                (first..end).map(|i| access.as_mut().map_or_else(|| Err(gone()), |a| a.get(i))).collect()
            }
        }
    }

    fn deliver(&self, number: u64, content: SlotContent, took: Duration) {
        self.gauge.busy.fetch_add(took.as_nanos() as u64, Relaxed);
        let mut state = lock(&self.state);
        let threads = self.gauge.threads();
        if took > LONG {
            state.chunk = (state.chunk / 2).max(1);
        } else if took < SHORT && state.chunk < CHUNK {
            let larger = 2 * state.chunk;
            let bytes = self.gauge.element_bytes.load(Relaxed).saturating_mul(larger);
            // Several chunks must fit into the queue; otherwise the threads would wait for each other.
            if bytes <= CHUNK_BYTES && self.gauge.stretch(4 * larger * threads) {
                state.chunk = larger;
            }
        }
        let at = (number - state.base) as usize;
        if let Some(slot) = state.slots.get_mut(at) {
            slot.content = content;
        }
        drop(state);
        self.ready.notify_one();
        self.room.notify_all();
    }
}

impl PrefetchIntake {
    /// Returns the index of the next element not yet delivered.
    fn next_seq(&mut self) -> u64 {
        let mut seq = self.seq;
        while let Some(&(first, end)) = self.gaps.front().filter(|(first, _)| *first <= seq) {
            if let PrefetchFeed::Cursor(up) = &mut self.feed {
                up.skip(end.saturating_sub(first.max(seq)));
            }
            seq = end.max(seq);
            self.gaps.pop_front();
        }
        seq
    }

    /// Returns the source's state before element `seq`, if one is due.
    fn due_anchor(&mut self, seq: u64, ordered: bool) -> Option<IteratorState> {
        let PrefetchFeed::Cursor(up) = &self.feed else { return None };
        // In an unordered run any chunk may be the first missing one.
        if ordered && seq < self.anchor_due {
            return None;
        }
        let state = up.save();
        // An expensive state is saved less often.
        self.anchor_due = seq + (state.size() as u64).max(ANCHORS);
        Some(state)
    }

    fn pull(&mut self, seq: u64, wanted: usize, batching: Option<Batching>) -> (PrefetchWork, usize) {
        let until = self.gaps.front().map_or(u64::MAX, |(first, _)| first - seq);
        let wanted = until.min(wanted as u64);
        match &mut self.feed {
            PrefetchFeed::Cursor(up) => {
                let wanted = (wanted as usize).saturating_mul(batching.map_or(1, |b| b.size));
                let mut items = Vec::with_capacity(wanted.min(AT_ONCE));
                items.extend(std::iter::from_fn(|| up.next()).take(wanted));
                self.ended = items.len() < wanted;
                let count = batching.map_or(items.len(), |b| b.batches(items.len() as u64) as usize);
                (PrefetchWork::Items(seq, items), count)
            }
            PrefetchFeed::Access(_, len) => {
                let len = len.unwrap_or(u64::MAX);
                let end = seq.saturating_add(wanted).min(len);
                self.ended = end == len;
                (PrefetchWork::Indices(seq, end), (end - seq) as usize)
            }
        }
    }
}

/// [`ParallelPrefetch`] from a stream on the calling thread; the saved states are the same.
pub(crate) struct InlinePrefetch {
    pub up: Box<dyn ElementCursor>,
    pub f: Option<MapFn>,
}

impl ElementCursor for InlinePrefetch {
    fn next(&mut self) -> Option<Result<Sample>> {
        let item = self.up.next()?;
        Some(match &self.f {
            Some(f) => item.and_then(|s| apply(f, s)),
            None => item,
        })
    }

    fn skip(&mut self, n: u64) -> u64 {
        self.up.skip(n)
    }

    fn save(&self) -> IteratorState {
        IteratorState::at([0]).over(self.up.save())
    }

    fn restore(&mut self, state: &IteratorState) -> Result<()> {
        self.up.restore(state.above(0)?)?;
        let past = state.number(0)?;
        ensure!(state.numbers.len() <= 1 && self.up.skip(past) >= past, foreign());
        Ok(())
    }
}

fn gone() -> Error {
    err!(Data, "random access to the pipeline is no longer available")
}

fn no_thread(e: std::io::Error) -> Error {
    err!(Io, "cannot start a thread of the input pipeline")
        .because(e.to_string())
        .hint("raise the limits of the process (ulimit -u, ulimit -v), or run the pipeline with .debug()")
}

#[cfg(test)]
mod tests {
    use crate::stage::test::{ints, stream, values, values_of};
    use crate::{AUTOTUNE, Dataset, DatasetOptions, PipelinePosition, Sample};
    use std::time::Duration;
    use systole_base::{DType, TensorType};

    /// Takes a different time for each element, so that threads overtake each other.
    fn uneven(s: Sample) -> Sample {
        let i = s.get("x").unwrap().get(0).as_i64() as u64;
        std::thread::sleep(Duration::from_micros(i * 7919 % 300));
        s
    }

    #[test]
    fn the_stream_is_the_same_with_any_threads_depth_and_cache() {
        let of = |d: &Dataset, threads, depth, cache| {
            let d = d.map_parallel(uneven, threads).shuffle(20, 3);
            let d = if cache { d.cache() } else { d };
            values(&d.batch(4).prefetch(depth).repeat_n(2))
        };
        for d in [ints(60), stream(60)] {
            for cache in [false, true] {
                let plain = of(&d.debug(), 1, 1, cache);
                for threads in [1, 2, 8, AUTOTUNE] {
                    for depth in [1, 8, 32, AUTOTUNE] {
                        assert_eq!(of(&d, threads, depth, cache), plain, "{threads} threads, {depth} ahead");
                    }
                }
            }
        }
    }

    #[test]
    fn without_order_no_element_is_lost_or_repeated_not_even_by_a_resume() {
        for d in [ints(120), stream(120)] {
            let d = d.map_parallel(uneven, 4).deterministic(false);
            let sorted = |mut v: Vec<i64>| {
                v.sort();
                v
            };
            let all: Vec<i64> = (0..120).collect();
            assert_eq!(sorted(values(&d)), all);
            for taken in [0, 1, 17, 63, 119, 120] {
                let mut iter = d.iter();
                let first = values_of(iter.by_ref().take(taken));
                let position: PipelinePosition = iter.position().to_string().parse().unwrap();
                let rest = values_of(d.iter_at(&position));
                assert_eq!(sorted([first, rest].concat()), all, "resumed at {position}");
            }
        }
    }

    #[test]
    fn the_memory_budget_holds_for_all_stages_together() {
        let large =
            |s: Sample| s.with("large", systole_base::Literal::zeros(TensorType::new(DType::U8, [1 << 16])));
        for d in [ints(200), stream(200)] {
            let options = DatasetOptions { ram_budget: Some(6 << 16), ..DatasetOptions::default() };
            let d = d.map_parallel(large, 3).batch(1).prefetch(100).with_options(options);
            let mut iter = d.iter();
            let mut n = 0;
            for s in iter.by_ref() {
                s.unwrap();
                n += 1;
                if n % 50 == 0 {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            let report = iter.report();
            assert!(n == 200 && report.ram_peak <= report.ram_budget, "{report}");
            assert!(report.queues.iter().any(|q| q.short_of_memory > 0), "{report}");
        }
    }

    #[test]
    fn frozen_sizes_are_used_as_they_are() {
        let d = ints(50).map_parallel(uneven, AUTOTUNE).batch(2).prefetch(AUTOTUNE);
        let mut iter = d.iter();
        assert_eq!(values_of(iter.by_ref()).len(), 50);
        let frozen = iter.freeze();
        assert_eq!(frozen.to_string().parse::<crate::PipelineTuning>().unwrap(), frozen);
        let told = frozen.to_string().replace("threads = 1", "threads = 3");
        let options = DatasetOptions { tuning: Some(told.parse().unwrap()), ..DatasetOptions::default() };
        let mut iter = d.with_options(options).iter();
        iter.next().unwrap().unwrap();
        assert!(iter.report().queues.iter().all(|q| !q.tuned), "{}", iter.report());
    }
}
