//! Autotuning of threads and queue sizes of a running pipeline, within a memory budget.
//!
//! A stage that computes ahead has a [`StageGauge`], which its consumer evaluates periodically: if the consumer waits, the
//! stage gets another thread or a longer queue; if threads are idle, one is removed. The elements and their order do
//! not change.

use super::stage_ids::{StageId, StageList};
use crate::mutex::lock;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use systole_base::{Error, Result, err, knobs};

/// Interval between evaluations of a gauge.
const WINDOW: Duration = Duration::from_millis(50);
/// Number of windows after which a thread count that gained nothing is tried again.
const FORGET: u32 = 200;
/// Number of decisions kept for [`StageGauge::reasons`].
const REASONS: usize = 8;
/// Maximum queue length chosen by tuning.
const MOST_AHEAD: usize = 4096;

/// Value of a size or thread count that lets the pipeline tune it, as in tf.data.
pub const AUTOTUNE: usize = usize::MAX;

/// Requested number of threads of a pipeline stage: fixed or tuned.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ThreadCount {
    /// Fixed number.
    Fixed(usize),
    /// Tuned, within the core budget.
    Auto,
}

impl ThreadCount {
    /// Converts a number or [`AUTOTUNE`] to a requested thread count.
    pub fn of(n: usize) -> ThreadCount {
        if n == AUTOTUNE { ThreadCount::Auto } else { ThreadCount::Fixed(n) }
    }
}

/// Memory budget in bytes for elements computed ahead, shared by all stages of a run.
pub(crate) struct MemoryBudget {
    limit: usize,
    used: AtomicUsize,
    peak: AtomicUsize,
    /// Number of stages that compute ahead or hold elements, and the size of their largest element.
    stages: AtomicUsize,
    largest: AtomicUsize,
}

impl MemoryBudget {
    pub fn new(limit: usize) -> MemoryBudget {
        let zero = || AtomicUsize::new(0);
        MemoryBudget { limit, used: zero(), peak: zero(), stages: zero(), largest: zero() }
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    pub fn peak(&self) -> usize {
        self.peak.load(Relaxed)
    }

    /// Registers a pipeline stage that computes ahead or holds elements; `leave` unregisters it.
    pub fn enter(&self) {
        self.stages.fetch_add(1, Relaxed);
    }

    pub fn leave(&self) {
        self.stages.fetch_sub(1, Relaxed);
    }

    /// Records an element's size for the memory budget.
    pub fn note(&self, bytes: usize) {
        self.largest.fetch_max(bytes, Relaxed);
    }

    /// Reserves `bytes` of the memory budget if available, leaving room for one more element per stage: a stage may
    /// need one while its consumer holds another.
    pub fn lease(self: &Arc<MemoryBudget>, bytes: usize) -> Option<MemoryLease> {
        let kept = self.largest.load(Relaxed).saturating_mul(2 * self.stages.load(Relaxed));
        let take = |used: usize| {
            used.checked_add(bytes).filter(|n| n.checked_add(kept).is_some_and(|all| all <= self.limit))
        };
        let before = self.used.fetch_update(Relaxed, Relaxed, take).ok()?;
        self.peak.fetch_max(before + bytes, Relaxed);
        Some(MemoryLease { budget: self.clone(), bytes })
    }

    /// Reserves `bytes` of the memory budget unconditionally, for the one element without which no progress is
    /// possible.
    pub fn insist(self: &Arc<MemoryBudget>, bytes: usize) -> MemoryLease {
        let before = self.used.fetch_add(bytes, Relaxed);
        self.peak.fetch_max(before.saturating_add(bytes), Relaxed);
        MemoryLease { budget: self.clone(), bytes }
    }
}

/// Reserved bytes of the budget, returned when dropped.
pub(crate) struct MemoryLease {
    budget: Arc<MemoryBudget>,
    bytes: usize,
}

impl MemoryLease {
    /// Adjusts the memory reservation to the actual size.
    pub fn settle(&mut self, bytes: usize) {
        if bytes > self.bytes {
            let before = self.budget.used.fetch_add(bytes - self.bytes, Relaxed);
            self.budget.peak.fetch_max(before + bytes - self.bytes, Relaxed);
        } else {
            self.budget.used.fetch_sub(self.bytes - bytes, Relaxed);
        }
        self.bytes = bytes;
    }

    /// Returns a part of the memory reservation early.
    pub fn give_back(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.budget.used.fetch_sub(bytes, Relaxed);
        self.bytes -= bytes;
    }
}

impl Drop for MemoryLease {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Relaxed);
    }
}

/// Returns the bytes that this process may still allocate: the free memory of the machine and its control group,
/// limited by `SYSTOLE_MEMORY_LIMIT`. One GiB if unknown.
pub fn free_memory() -> usize {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let number = |path: &str| read(path)?.trim().parse::<usize>().ok();
    let machine = read("/proc/meminfo").and_then(|text| {
        let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok().map(|k| k << 10)
    });
    let group = number("/sys/fs/cgroup/memory.max")
        .zip(number("/sys/fs/cgroup/memory.current"))
        .map(|(max, current)| max.saturating_sub(current));
    let knob = knobs::MEMORY_LIMIT.get_bytes().ok().flatten();
    machine.into_iter().chain(group).chain(knob).min().unwrap_or(1 << 30)
}

/// Gauges of one run.
pub(crate) struct PipelineTuner {
    stages: StageList,
    cores: usize,
    /// Number of threads granted to tuned stages.
    granted: AtomicUsize,
    frozen: PipelineTuning,
    gauges: Mutex<BTreeMap<String, Arc<StageGauge>>>,
}

impl PipelineTuner {
    pub fn new(stages: StageList, cores: usize, frozen: Option<PipelineTuning>) -> PipelineTuner {
        PipelineTuner { stages, cores, frozen: frozen.unwrap_or_default(), ..PipelineTuner::idle() }
    }

    /// Creates a tuner that changes nothing, for runs that only inspect the first element.
    pub fn idle() -> PipelineTuner {
        PipelineTuner {
            stages: StageList::default(),
            cores: 1,
            granted: AtomicUsize::new(0),
            frozen: PipelineTuning::default(),
            gauges: Mutex::default(),
        }
    }

    /// Returns the tuning gauge of a stage; the same one in every epoch, so that tuning continues.
    pub fn gauge(&self, owner: &StageId, threads: ThreadCount, ahead: Option<usize>) -> Arc<StageGauge> {
        let id = self.stages.id(owner.address);
        let key = id.map_or_else(|| owner.label.clone(), |id| format!("{id} {}", owner.label));
        let mut gauges = lock(&self.gauges);
        let make = || Arc::new(self.new_gauge(&key, threads, ahead));
        gauges.entry(key.clone()).or_insert_with(make).clone()
    }

    fn new_gauge(&self, key: &str, threads: ThreadCount, ahead: Option<usize>) -> StageGauge {
        let frozen = self.frozen.0.get(key);
        let threads = frozen.map_or(threads, |size| ThreadCount::Fixed(size.threads));
        let ahead = frozen.map_or(ahead, |size| Some(size.ahead));
        let (count, auto_threads) = match threads {
            ThreadCount::Fixed(n) => (n.max(1), false),
            ThreadCount::Auto => (self.grant(self.cores), true),
        };
        StageGauge {
            auto_threads,
            auto_ahead: ahead.is_none(),
            threads: AtomicUsize::new(count),
            ahead: AtomicUsize::new(ahead.unwrap_or(2 * count).max(1)),
            ..StageGauge::default()
        }
    }

    /// Grants up to `wanted` threads of the core budget, at least one.
    fn grant(&self, wanted: usize) -> usize {
        let granted = self.granted.load(Relaxed);
        let count = wanted.min(self.cores.saturating_sub(granted)).max(1);
        self.granted.fetch_add(count, Relaxed);
        count
    }

    /// Returns the tuned thread counts and queue lengths, for a configuration.
    pub fn tuning(&self) -> PipelineTuning {
        let gauges = lock(&self.gauges);
        let size =
            |g: &StageGauge| TunedSize { threads: g.threads.load(Relaxed), ahead: g.ahead.load(Relaxed) };
        PipelineTuning(gauges.iter().map(|(key, g)| (key.clone(), size(g))).collect())
    }

    /// Returns key and tuning gauge of each stage that computes ahead.
    pub fn gauges(&self) -> Vec<(String, Arc<StageGauge>)> {
        lock(&self.gauges).iter().map(|(k, g)| (k.clone(), g.clone())).collect()
    }

    pub fn cores(&self) -> usize {
        self.cores
    }
}

/// Thread counts and queue lengths of the stages that compute ahead, as tuned in a run. Displays as and parses from
/// lines of TOML.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PipelineTuning(BTreeMap<String, TunedSize>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct TunedSize {
    threads: usize,
    ahead: usize,
}

impl fmt::Display for PipelineTuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, size) in &self.0 {
            writeln!(f, "{key:?} = {{ threads = {}, ahead = {} }}", size.threads, size.ahead)?;
        }
        Ok(())
    }
}

impl FromStr for PipelineTuning {
    type Err = Error;
    fn from_str(text: &str) -> Result<PipelineTuning> {
        let lines = text.lines().filter(|l| !l.trim().is_empty());
        lines.map(|l| size_line(l).ok_or_else(|| bad_line(l))).collect::<Result<_>>().map(PipelineTuning)
    }
}

fn size_line(line: &str) -> Option<(String, TunedSize)> {
    let (key, rest) = line.trim().strip_prefix('"')?.rsplit_once("\" = { threads = ")?;
    let (threads, ahead) = rest.strip_suffix(" }")?.split_once(", ahead = ")?;
    Some((key.to_string(), TunedSize { threads: threads.parse().ok()?, ahead: ahead.parse().ok()? }))
}

fn bad_line(line: &str) -> Error {
    err!(Config, "invalid stage size `{line}`")
        .because("the expected form is \"3 prefetch\" = { threads = 2, ahead = 8 }")
        .hint("use the text returned by freeze()")
}

/// Sizes and statistics of one stage that computes ahead.
#[derive(Default)]
pub(crate) struct StageGauge {
    auto_threads: bool,
    auto_ahead: bool,
    threads: AtomicUsize,
    ahead: AtomicUsize,
    /// Number of elements yielded.
    pub elements: AtomicU64,
    /// Nanoseconds that the consumer waited.
    pub waited: AtomicU64,
    /// Nanoseconds that threads worked, and that they waited for room in the queue.
    pub busy: AtomicU64,
    pub blocked: AtomicU64,
    /// Number of times that the memory budget, not the length, limited the queue.
    pub short_of_memory: AtomicU64,
    pub deepest: AtomicUsize,
    /// Size in bytes of the largest element so far.
    pub element_bytes: AtomicUsize,
    window: Mutex<TuningWindow>,
}

#[derive(Default)]
struct TuningWindow {
    start: Option<Instant>,
    elements: u64,
    waited: u64,
    blocked: u64,
    grew_from: Option<(usize, f64)>,
    /// More threads than this gained nothing; forgotten after a while.
    ceiling: Option<(usize, u32)>,
    /// Fewer threads than this were too few.
    floor: usize,
    reasons: VecDeque<String>,
}

impl StageGauge {
    pub fn threads(&self) -> usize {
        self.threads.load(Relaxed)
    }

    pub fn ahead(&self) -> usize {
        self.ahead.load(Relaxed)
    }

    pub fn is_tuned(&self) -> bool {
        self.auto_threads || self.auto_ahead
    }

    /// Raises the stage's queue length to at least `ahead`; returns whether that is allowed.
    pub fn stretch(&self, ahead: usize) -> bool {
        if self.auto_ahead {
            self.ahead.fetch_max(ahead.min(MOST_AHEAD), Relaxed);
        }
        self.ahead() >= ahead
    }

    /// Returns the last tuning decisions, oldest first.
    pub fn reasons(&self) -> Vec<String> {
        lock(&self.window).reasons.iter().cloned().collect()
    }

    /// Evaluates the last measuring window, if it is over, and changes one thread count or queue length.
    pub fn consider(&self, tuner: &PipelineTuner) {
        if !self.is_tuned() {
            return;
        }
        let mut w = lock(&self.window);
        let now = Instant::now();
        let Some(start) = w.start else {
            w.start = Some(now);
            return;
        };
        let span = now - start;
        if span < WINDOW {
            return;
        }
        let (elements, waited, blocked) =
            (self.elements.load(Relaxed), self.waited.load(Relaxed), self.blocked.load(Relaxed));
        let nanos = span.as_nanos() as f64;
        let fared = WindowStats {
            rate: (elements - w.elements) as f64 / nanos,
            starved: (waited - w.waited) as f64 / nanos,
            idle: (blocked - w.blocked) as f64 / (nanos * self.threads() as f64),
        };
        (w.start, w.elements, w.waited, w.blocked) = (Some(now), elements, waited, blocked);
        self.decide(&mut w, fared, tuner);
    }

    fn decide(&self, w: &mut TuningWindow, fared: WindowStats, tuner: &PipelineTuner) {
        let WindowStats { rate, starved, idle } = fared;
        let threads = self.threads();
        let percent = |x: f64| format!("{:.0} %", 100.0 * x.clamp(0.0, 1.0));
        w.ceiling = w.ceiling.and_then(|(n, age)| (age < FORGET).then_some((n, age + 1)));
        if let Some((before, old_rate)) = w.grew_from.take()
            && rate < 1.03 * old_rate
        {
            self.set_threads(before, tuner);
            w.ceiling = Some((before, 0));
            w.say(format!("back to {}: another thread gained nothing", threads_told(before)));
        } else if self.auto_threads
            && starved > 0.1
            && w.ceiling.is_none_or(|(n, _)| threads < n)
            && tuner.granted.load(Relaxed) < tuner.cores
        {
            w.grew_from = Some((threads, rate));
            w.floor = threads + 1;
            self.set_threads(threads + 1, tuner);
            let more = threads_told(threads + 1);
            w.say(format!("{more}: the consumer waited {} of the time", percent(starved)));
        } else if self.auto_ahead && starved > 0.02 && idle > 0.1 && self.ahead() < MOST_AHEAD {
            let ahead = 2 * self.ahead();
            self.ahead.store(ahead, Relaxed);
            w.say(format!(
                "{ahead} elements ahead: elements arrive in bursts (waiting {})",
                percent(starved)
            ));
        } else if self.auto_threads && starved < 0.01 && idle > 0.6 && threads > w.floor.max(1) {
            self.set_threads(threads - 1, tuner);
            let fewer = threads_told(threads - 1);
            w.say(format!("{fewer}: threads were idle {} of the time", percent(idle)));
        }
    }

    fn set_threads(&self, n: usize, tuner: &PipelineTuner) {
        let before = self.threads.swap(n, Relaxed);
        tuner.granted.fetch_add(n, Relaxed);
        tuner.granted.fetch_sub(before, Relaxed);
    }
}

/// Statistics of a stage in a window: elements per nanosecond, fractions of the time.
struct WindowStats {
    rate: f64,
    starved: f64,
    idle: f64,
}

impl TuningWindow {
    fn say(&mut self, reason: String) {
        if self.reasons.len() == REASONS {
            self.reasons.pop_front();
        }
        self.reasons.push_back(reason);
    }
}

/// Formats `1 thread`, `2 threads`.
pub(super) fn threads_told(n: usize) -> String {
    format!("{n} thread{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_base::ErrorKind;
    use systole_testing::assert_error;

    #[test]
    fn a_budget_is_not_exceeded_unless_one_insists() {
        let budget = Arc::new(MemoryBudget::new(100));
        let a = budget.lease(60).unwrap();
        assert!(budget.lease(41).is_none());
        let mut b = budget.lease(40).unwrap();
        b.settle(10);
        let c = budget.lease(30).unwrap();
        assert_eq!(budget.peak(), 100);
        drop((a, b, c));
        assert_eq!(budget.used.load(Relaxed), 0);
        let over = budget.insist(500);
        assert!(budget.lease(1).is_none());
        drop(over);
        assert!(budget.lease(100).is_some());
    }

    #[test]
    fn sizes_are_text_and_parse_back() {
        let text =
            "\"1 map_parallel\" = { threads = 3, ahead = 48 }\n\"4 prefetch\" = { threads = 1, ahead = 2 }\n";
        let tuning: PipelineTuning = text.parse().unwrap();
        assert_eq!(tuning.to_string(), text);
        for bad in ["x", "\"a\" = { threads = x, ahead = 1 }", "\"a\" = 3"] {
            let e = bad.parse::<PipelineTuning>().unwrap_err();
            assert_error(&e, ErrorKind::Config, &[&format!("`{bad}`")]);
        }
    }

    fn gauge(threads: usize) -> StageGauge {
        let set = AtomicUsize::new;
        StageGauge {
            auto_threads: true,
            auto_ahead: true,
            threads: set(threads),
            ahead: set(4),
            ..StageGauge::default()
        }
    }

    #[test]
    fn waiting_brings_threads_and_idleness_takes_them() {
        let tuner = PipelineTuner { cores: 3, ..PipelineTuner::idle() };
        tuner.granted.store(1, Relaxed);
        let (g, mut w) = (gauge(1), TuningWindow::default());
        let starving = |rate| WindowStats { rate, starved: 0.9, idle: 0.0 };
        g.decide(&mut w, starving(1.0), &tuner);
        g.decide(&mut w, starving(1.9), &tuner);
        assert_eq!(g.threads(), 3);
        g.decide(&mut w, starving(1.91), &tuner);
        assert_eq!(g.threads(), 2, "the third gained nothing");
        g.decide(&mut w, starving(1.9), &tuner);
        assert_eq!((g.threads(), tuner.granted.load(Relaxed)), (2, 2), "and is not tried at once again");
        let mut calm = TuningWindow::default();
        g.decide(&mut calm, WindowStats { rate: 1.0, starved: 0.0, idle: 0.9 }, &tuner);
        assert_eq!(g.threads(), 1);
        g.decide(&mut calm, WindowStats { rate: 1.0, starved: 0.05, idle: 0.5 }, &tuner);
        assert_eq!(g.ahead(), 8, "bursts bring a longer queue");
        assert_eq!(calm.reasons.len(), 2);
    }
}
