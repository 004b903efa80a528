//! [`PipelineReport`]: statistics of a run's stages and queues, tuning decisions, and a verdict (input-bound or compute-bound).

use super::autotune::{PipelineTuning, StageGauge, threads_told};
use super::options::WITH_OPTIONS;
use super::run::PipelineRun;
use super::run_observer::RunObserver;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::available_parallelism;
use std::time::Duration;

/// Below this fraction of the time, waiting is negligible.
const NO_WAIT: f64 = 0.05;
/// From this fraction on, the consumer is input-bound, whether anything helps or not.
const BOUND: f64 = 0.2;
/// Threads that work for this fraction of the time are fully used.
const BUSY: f64 = 0.9;

/// Statistics of a pipeline run. Displays as lines of text.
#[derive(Clone, Debug)]
pub struct PipelineReport {
    /// Number of elements yielded.
    pub elements: u64,
    /// Time that the consumer waited for elements.
    pub waited: Duration,
    /// Time since the start of the run.
    pub elapsed: Duration,
    /// Memory budget in bytes for elements computed ahead.
    pub ram_budget: usize,
    /// Peak size in bytes of elements computed ahead.
    pub ram_peak: usize,
    /// Maximum number of threads of tuned stages.
    pub core_budget: usize,
    /// Number of cores available to this process.
    pub cores: usize,
    /// Stages with their own time, sources first. Empty unless [`crate::DatasetOptions::measure`] is set.
    pub stages: Vec<StageReport>,
    /// Stages that compute ahead.
    pub queues: Vec<QueueReport>,
    /// Problems that did not end the run, one sentence each.
    pub notes: Vec<String>,
    /// Current sizes, for [`crate::DatasetOptions::tuning`].
    pub tuning: PipelineTuning,
}

/// Time of one pipeline stage, excluding upstream stages.
#[derive(Clone, Debug)]
pub struct StageReport {
    /// Label: `batch(128)`.
    pub label: String,
    /// Own time, summed over all threads.
    pub time: Duration,
    /// Number of elements yielded.
    pub elements: u64,
}

/// Statistics of one pipeline stage that computes ahead.
#[derive(Clone, Debug)]
pub struct QueueReport {
    /// Index in the chain, and label.
    pub label: String,
    /// Current number of threads.
    pub threads: usize,
    /// Current maximum number of elements ahead.
    pub ahead: usize,
    /// Peak number of elements ahead.
    pub deepest: usize,
    /// Number of elements yielded.
    pub elements: u64,
    /// Size in bytes of the largest element.
    pub element_bytes: usize,
    /// Time that the consumer waited.
    pub waited: Duration,
    /// Time that the threads worked, summed.
    pub busy: Duration,
    /// Number of times that the memory budget limited the queue.
    pub short_of_memory: u64,
    /// Whether its sizes are tuned.
    pub tuned: bool,
    /// Last tuning decisions, oldest first.
    pub reasons: Vec<String>,
}

impl PipelineReport {
    pub(crate) fn of(
        run: &PipelineRun,
        elements: u64,
        waited: Duration,
        elapsed: Duration,
    ) -> PipelineReport {
        let stages = match run.watch() {
            RunObserver::Meter(meter) => meter.rows(),
            _ => Vec::new(),
        };
        let does_work = |label: &String| label != WITH_OPTIONS;
        let stages = stages.into_iter().filter(|(label, ..)| does_work(label));
        let stages = stages.map(|(label, time, elements)| StageReport { label, time, elements }).collect();
        let queues = run.tuner().gauges().into_iter().map(|(label, g)| QueueReport::of(label, &g)).collect();
        PipelineReport {
            elements,
            waited,
            elapsed,
            ram_budget: run.budget().limit(),
            ram_peak: run.budget().peak(),
            core_budget: run.tuner().cores(),
            cores: available_parallelism().map_or(1, usize::from),
            stages,
            queues,
            notes: run.notes(),
            tuning: run.tuner().tuning(),
        }
    }

    /// Returns the stage with the largest time, if stages were measured; not a prefetch, which only waits for others.
    pub fn slowest(&self) -> Option<&StageReport> {
        self.stages.iter().filter(|s| !s.label.starts_with("prefetch")).max_by_key(|s| s.time)
    }

    /// Describes whether the consumer waited for data, why, and a remedy if there is one. `share`: fraction of its time
    /// that the consumer waited.
    pub fn verdict(&self, share: f64) -> String {
        match self.remedy().filter(|_| share >= NO_WAIT) {
            Some(remedy) => format!("input-bound: {}; {remedy}", self.waiting(share)),
            None => self.finding(share),
        }
    }

    /// Describes whether the consumer waited for data, and the slowest stage.
    pub fn finding(&self, share: f64) -> String {
        match share {
            s if s < NO_WAIT => format!("compute-bound: {}", went_to_waiting(share)),
            s if s < BOUND => format!("mostly compute-bound: {}", self.waiting(share)),
            _ => format!("input-bound: {}", self.waiting(share)),
        }
    }

    fn waiting(&self, share: f64) -> String {
        let slow = match self.slowest() {
            Some(stage) => format!("; the slowest stage is {}", stage.label),
            None => String::new(),
        };
        format!("{}{slow}", went_to_waiting(share))
    }

    /// Suggests a change that should reduce waiting; `None` if unknown.
    pub fn remedy(&self) -> Option<String> {
        if self.queues.is_empty() {
            return Some(
                "use map_parallel(f, AUTOTUNE) for slow maps, and end the pipeline with prefetch(AUTOTUNE)"
                    .into(),
            );
        }
        let idle =
            |q: &&QueueReport| q.busy.as_secs_f64() < BUSY * q.threads as f64 * self.elapsed.as_secs_f64();
        if let Some(q) = self.queues.iter().filter(|q| q.short_of_memory > 0).find(idle) {
            let budget = self.ram_budget >> 20;
            return Some(format!(
                "{} was limited by the memory budget: raise DatasetOptions::ram_budget above {budget} MiB",
                q.label
            ));
        }
        if self.core_budget > 1 && self.slowest().is_some_and(|s| s.label == "map" && self.is_most(s)) {
            return Some("use map_parallel(f, AUTOTUNE) for it".into());
        }
        let auto: Vec<&QueueReport> = self.queues.iter().filter(|q| q.tuned && q.threads > 0).collect();
        let works = auto.iter().any(|q| !idle(q) && q.threads >= self.core_budget);
        (works && self.core_budget + 1 < self.cores).then(|| {
            format!(
                "raise DatasetOptions::core_budget above {}: there are {} cores",
                self.core_budget, self.cores
            )
        })
    }

    /// Whether a stage takes more time than all others together.
    fn is_most(&self, stage: &StageReport) -> bool {
        let all: Duration = self.stages.iter().map(|s| s.time).sum();
        2 * stage.time > all
    }
}

/// Formats `10.0 % of the time went to waiting for data`.
fn went_to_waiting(share: f64) -> String {
    format!("{:.1} % of the time went to waiting for data", 100.0 * share)
}

impl QueueReport {
    fn of(label: String, g: &StageGauge) -> QueueReport {
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

impl fmt::Display for PipelineReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.elapsed.as_secs_f64();
        writeln!(
            f,
            "{} elements in {seconds:.2} s ({:.0} per second), waited {:.2} s",
            self.elements,
            self.elements as f64 / seconds.max(1e-9),
            self.waited.as_secs_f64(),
        )?;
        writeln!(
            f,
            "memory for elements ahead: at most {} of {} MiB; core budget {}",
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
                "{}: {}, {} ahead{} (peak {}), consumer waited {:.2} s, threads worked {:.2} s",
                q.label,
                threads_told(q.threads),
                q.ahead,
                if q.tuned { ", tuned" } else { "" },
                q.deepest,
                q.waited.as_secs_f64(),
                q.busy.as_secs_f64(),
            )?;
            if q.short_of_memory > 0 {
                writeln!(f, "  limited {} times by the memory budget", q.short_of_memory)?;
            }
            q.reasons.iter().try_for_each(|r| writeln!(f, "  {r}"))?;
        }
        self.notes.iter().try_for_each(|n| writeln!(f, "{n}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AUTOTUNE, Dataset, DatasetOptions, Sample};
    use std::thread::sleep;
    use std::time::Instant;
    use systole_base::Literal;

    fn numbers(n: i32) -> Dataset {
        let values: Vec<i32> = (0..n).collect();
        Dataset::from_tensor_slices([("x", Literal::from_slice([values.len()], &values).unwrap())]).unwrap()
    }

    fn slow(ms: u64) -> impl Fn(Sample) -> Sample + Send + Sync + Clone + 'static {
        move |s| {
            sleep(Duration::from_millis(ms));
            s
        }
    }

    /// Returns the waiting fraction of a consumer that works on each element for `work`, in bursts, and the report.
    fn taken(data: &Dataset, work: Duration, burst: usize) -> (f64, PipelineReport) {
        let data = data.with_options(DatasetOptions { measure: Some(1), ..DatasetOptions::default() });
        let (mut waited, began) = (Duration::ZERO, Instant::now());
        let mut elements = data.iter();
        for i in 1.. {
            let asked = Instant::now();
            if elements.next().is_none() {
                break;
            }
            waited += asked.elapsed();
            if i % burst == 0 {
                sleep(work * burst as u32);
            }
        }
        (waited.as_secs_f64() / began.elapsed().as_secs_f64(), elements.report())
    }

    /// Less than two thirds, so that an improvement shows even on a busy machine.
    fn less(after: f64, before: f64) {
        assert!(after < before * 0.66, "{before} of the time was waiting, then {after}");
    }

    const WORK: Duration = Duration::from_millis(4);

    #[test]
    fn making_elements_ahead_is_told_where_none_are_and_helps() {
        let (before, report) = taken(&numbers(60).map(slow(4)), WORK, 1);
        let told = report.verdict(before);
        assert!(told.contains("input-bound") && told.contains("prefetch(AUTOTUNE)"), "{told}");
        less(taken(&numbers(60).map(slow(4)).prefetch(AUTOTUNE), WORK, 1).0, before);
    }

    #[test]
    fn a_parallel_map_is_told_where_one_is_slow_and_helps() {
        let cores = DatasetOptions { core_budget: Some(6), ..DatasetOptions::default() };
        let (before, report) =
            taken(&numbers(100).map(slow(8)).prefetch(2).with_options(cores.clone()), WORK, 1);
        let told = report.verdict(before);
        assert!(told.contains("use map_parallel(f, AUTOTUNE)"), "{told}");
        let parallel = numbers(100).map_parallel(slow(8), AUTOTUNE).prefetch(2).with_options(cores);
        less(taken(&parallel, WORK, 1).0, before);
    }

    #[test]
    fn the_core_budget_is_told_where_cores_are_left_and_helps() {
        let data = numbers(120).map_parallel(slow(8), AUTOTUNE);
        let with =
            |n| data.with_options(DatasetOptions { core_budget: Some(n), ..DatasetOptions::default() });
        let (before, mut report) = taken(&with(1), WORK / 2, 1);
        report.cores = 8;
        let told = report.verdict(before);
        assert!(told.contains("Options::core_budget above 1"), "{told}");
        less(taken(&with(6), WORK / 2, 1).0, before);
        // If the budget is the whole machine, no remedy is known and none is reported.
        report.cores = 2;
        let told = report.verdict(before);
        assert!(told.starts_with("input-bound") && told.ends_with("is map_parallel(AUTOTUNE)"), "{told}");
        let told = report.verdict(0.1);
        assert!(told.starts_with("mostly compute-bound: 10.0 %") && !told.contains("raise"), "{told}");
    }

    #[test]
    fn the_memory_budget_is_told_where_it_holds_back_and_helps() {
        let big = |s: Sample| {
            sleep(Duration::from_millis(2));
            s.with("y", Literal::from_slice([1 << 18], &vec![1i32; 1 << 18]).unwrap())
        };
        let data = numbers(96).map(big).prefetch(16);
        let with = |mib: usize| {
            data.with_options(DatasetOptions { ram_budget: Some(mib << 20), ..DatasetOptions::default() })
        };
        let (before, report) = taken(&with(3), WORK, 16);
        let told = report.verdict(before);
        assert!(told.contains("Options::ram_budget above 3 MiB"), "{told}");
        less(taken(&with(64), WORK, 16).0, before);
    }
}
