//! [`Report`]: what the stages of a run did, what was tuned and why, and a verdict in plain words.

use super::autotune::{Gauge, Tuning};
use super::options::WITH_OPTIONS;
use super::run::Run;
use super::watch::Watch;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Below this share of the time the taker did not really wait.
const NO_WAIT: f64 = 0.05;

/// What the stages of a run did. Shown as lines of text.
#[derive(Clone, Debug)]
pub struct Report {
    /// Elements that the run yielded.
    pub elements: u64,
    /// Time that the taker waited for them.
    pub waited: Duration,
    /// Time since the run began.
    pub elapsed: Duration,
    /// Bytes that elements computed ahead may take, and the most that they took.
    pub ram_budget: usize,
    /// The most that elements computed ahead took.
    pub ram_peak: usize,
    /// Threads that tuned stages may use.
    pub core_budget: usize,
    /// Stages with their own time, sources first. Empty unless [`crate::Options::measure`] is set.
    pub stages: Vec<StageReport>,
    /// Stages that compute ahead.
    pub queues: Vec<QueueReport>,
    /// What went wrong without ending the run, one sentence each.
    pub notes: Vec<String>,
    /// The sizes that they have now, for [`crate::Options::tuning`].
    pub tuning: Tuning,
}

/// One stage's own time, without the stages above it.
#[derive(Clone, Debug)]
pub struct StageReport {
    /// As it was written: `batch(128)`.
    pub label: String,
    /// Own time, of all threads together.
    pub time: Duration,
    /// Elements that it yielded.
    pub elements: u64,
}

/// One stage that computes ahead.
#[derive(Clone, Debug)]
pub struct QueueReport {
    /// Number in the chain and label.
    pub label: String,
    /// Threads now.
    pub threads: usize,
    /// Elements that it may be ahead now.
    pub ahead: usize,
    /// The most that it was ahead.
    pub deepest: usize,
    /// Elements that it handed out.
    pub elements: u64,
    /// Bytes of its largest element.
    pub element_bytes: usize,
    /// Time that its taker waited.
    pub waited: Duration,
    /// Time that its threads worked, all together.
    pub busy: Duration,
    /// Times that the memory budget held it back.
    pub short_of_memory: u64,
    /// Whether its sizes are tuned, and the last decisions.
    pub tuned: bool,
    /// The last decisions, oldest first.
    pub reasons: Vec<String>,
}

impl Report {
    pub(crate) fn of(run: &Run, elements: u64, waited: Duration, elapsed: Duration) -> Report {
        let stages = match run.watch() {
            Watch::Meter(meter) => meter.rows(),
            _ => Vec::new(),
        };
        let does_work = |label: &String| label != WITH_OPTIONS;
        let stages = stages.into_iter().filter(|(label, ..)| does_work(label));
        let stages = stages.map(|(label, time, elements)| StageReport { label, time, elements }).collect();
        let queues = run.tuner().gauges().into_iter().map(|(label, g)| QueueReport::of(label, &g)).collect();
        Report {
            elements,
            waited,
            elapsed,
            ram_budget: run.budget().limit(),
            ram_peak: run.budget().peak(),
            core_budget: run.tuner().cores(),
            stages,
            queues,
            notes: run.notes(),
            tuning: run.tuner().tuning(),
        }
    }

    /// The stage that takes most time, where stages were measured.
    pub fn slowest(&self) -> Option<&StageReport> {
        self.stages.iter().max_by_key(|s| s.time)
    }

    /// Whether the consumer waited for data, why, and what helps. `share`: of its time that it waited.
    pub fn verdict(&self, share: f64) -> String {
        if share < NO_WAIT {
            return format!("compute-bound: {:.1} % of the time went to waiting for data", 100.0 * share);
        }
        let slow = match self.slowest() {
            Some(stage) => format!("; the slowest stage is {}", stage.label),
            None => String::new(),
        };
        format!(
            "input-bound: {:.1} % of the time went to waiting for data{slow}; {}",
            100.0 * share,
            self.remedy()
        )
    }

    fn remedy(&self) -> String {
        if self.queues.is_empty() {
            return "end the pipeline with prefetch(AUTOTUNE)".into();
        }
        if let Some(q) = self.queues.iter().find(|q| q.short_of_memory > 0) {
            return format!("{} was held back by the memory budget: raise ram_budget", q.label);
        }
        let threads: usize = self.queues.iter().map(|q| q.threads).sum();
        if threads < self.core_budget {
            return "use map_parallel(f, AUTOTUNE) for the slow stage".into();
        }
        "all threads that the core budget allows are busy: raise core_budget, or cache what can be kept"
            .into()
    }
}

impl QueueReport {
    fn of(label: String, g: &Gauge) -> QueueReport {
        let time = |nanos: u64| Duration::from_nanos(nanos);
        QueueReport {
            label,
            threads: g.threads(),
            ahead: g.ahead(),
            deepest: g.deepest.load(Relaxed),
            elements: g.elements.load(Relaxed),
            element_bytes: g.element_bytes.load(Relaxed),
            waited: time(g.waited.load(Relaxed)),
            busy: time(g.busy.load(Relaxed)),
            short_of_memory: g.short_of_memory.load(Relaxed),
            tuned: g.is_tuned(),
            reasons: g.reasons(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.elapsed.as_secs_f64();
        writeln!(
            f,
            "{} elements in {seconds:.2} s ({:.0} a second), waited {:.2} s",
            self.elements,
            self.elements as f64 / seconds.max(1e-9),
            self.waited.as_secs_f64(),
        )?;
        writeln!(
            f,
            "memory ahead: at most {} of {} MiB; core budget {}",
            self.ram_peak.div_ceil(1 << 20),
            self.ram_budget >> 20,
            self.core_budget
        )?;
        let all: f64 = self.stages.iter().map(|s| s.time.as_secs_f64()).sum();
        for s in &self.stages {
            let (time, each) =
                (s.time.as_secs_f64(), s.time.as_nanos() as f64 / s.elements.max(1) as f64 / 1e3);
            let share = 100.0 * time / all.max(1e-9);
            writeln!(f, "{:<36} {time:>8.3} s {share:>4.0} %  {:>9} × {each:.1} µs", s.label, s.elements)?;
        }
        for q in &self.queues {
            writeln!(
                f,
                "{}: {} threads, {} ahead{} (deepest {}), taker waited {:.2} s, threads worked {:.2} s",
                q.label,
                q.threads,
                q.ahead,
                if q.tuned { ", tuned" } else { "" },
                q.deepest,
                q.waited.as_secs_f64(),
                q.busy.as_secs_f64(),
            )?;
            if q.short_of_memory > 0 {
                writeln!(f, "  held back {} times by the memory budget", q.short_of_memory)?;
            }
            q.reasons.iter().try_for_each(|r| writeln!(f, "  {r}"))?;
        }
        self.notes.iter().try_for_each(|n| writeln!(f, "{n}"))
    }
}
