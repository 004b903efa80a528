//! Per-kernel times, compared with the machine's roofline, and the kernels' spans in a trace.
//!
//! Steps are timed only if somebody asked for it (`SYSTOLE_LOG=2`, `--profile`, `--trace`). The lower bound of a
//! kernel's time is the larger of two: its operations at the peak rate of its element type (FMA, bf16, int8), and the
//! bytes that it must read and write at the bandwidth of the smallest cache that holds them. It counts one pass over
//! inputs and outputs, so a kernel whose data is in a nearer cache already can exceed 100 %.

use crate::kernel::{Program, StepTimes};
use crate::machine::peak::{Peak, peak};
use crate::machine::team;
use crate::machine::watch;
use crate::simd::level::Level;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use systole_compile::{Schedule, Step};
use systole_ir::{DType, TensorType};
use systole_runtime::trace;

/// Times of a program's steps.
pub(crate) struct Profile {
    steps: Vec<Times>,
    /// Per step: the arguments of its span in a trace, a JSON object.
    spans: OnceLock<Vec<String>>,
}

/// Times of one step.
#[derive(Default)]
struct Times {
    calls: AtomicU64,
    nanos: AtomicU64,
    /// Nanoseconds of the first call. It has page faults, so the mean leaves it out if there are others.
    first: AtomicU64,
    /// Whether it runs inside another kernel's parallel loop, so on one core.
    alone: AtomicBool,
}

impl Profile {
    pub(crate) fn new(steps: usize) -> Profile {
        Profile { steps: (0..steps).map(|_| Times::default()).collect(), spans: OnceLock::new() }
    }

    /// Called before step `i`.
    pub(crate) fn begin(&self, s: &Schedule, i: usize) -> Instant {
        if trace::is_on() && !team::inside() {
            watch::begin_kernel(s.steps[i].kernel.name(), self.span(s, i).to_string());
        }
        Instant::now()
    }

    /// Called after step `i`.
    pub(crate) fn end(&self, s: &Schedule, i: usize, start: Instant) {
        let nanos = start.elapsed().as_nanos() as u64;
        let times = &self.steps[i];
        if times.calls.fetch_add(1, Relaxed) == 0 {
            times.first.store(nanos, Relaxed);
            times.alone.store(team::inside(), Relaxed);
        }
        times.nanos.fetch_add(nanos, Relaxed);
        if trace::is_on() {
            if !team::inside() {
                watch::end_kernel();
            }
            trace::span("kernel", &s.steps[i].kernel.name(), Some(start), || self.span(s, i).to_string());
        }
    }

    /// Number of calls and mean time of step `i`; `None` if it did not run.
    pub(crate) fn times(&self, i: usize) -> Option<StepTimes> {
        times_of(&self.steps[i])
    }

    fn span(&self, s: &Schedule, i: usize) -> &str {
        &self.spans.get_or_init(|| s.steps.iter().map(span_of).collect())[i]
    }
}

fn span_of(step: &Step) -> String {
    let types = |types: &[TensorType]| {
        let all: Vec<String> = types.iter().map(|t| trace::quoted(&t.to_string())).collect();
        all.join(",")
    };
    format!(
        "{{\"layer\":{},\"inputs\":[{}],\"outputs\":[{}]}}",
        trace::quoted(&step.scope),
        types(&step.input_types),
        types(&step.output_types)
    )
}

/// Lower bound of a kernel's time in seconds, and the resource that sets it.
fn ceiling(peak: &Peak, step: &Step, bytes: f64) -> (f64, &'static str) {
    let tier = peak.tier(bytes);
    let factors = step.input_types.first().map(|t| t.dtype);
    let alike = step.is_product() && step.input_types.iter().take(2).all(|t| Some(t.dtype) == factors);
    let (name, rate) = match factors.filter(|_| alike) {
        Some(DType::BF16) if peak.bf16_gflops > peak.fma_gflops => ("bf16", peak.bf16_gflops),
        Some(DType::I8 | DType::U8) => ("int8", peak.int8_gflops),
        _ => ("FMA", peak.fma_gflops),
    };
    let (computing, moving) = (step.flops / rate / 1e9, bytes / tier.gb_per_s / 1e9);
    if computing > moving { (computing, name) } else { (moving, tier.name) }
}

/// One line of the table.
struct Row {
    /// Nesting depth of the program.
    depth: usize,
    kernel: String,
    calls: u64,
    /// Mean of one call.
    seconds: f64,
    /// All calls' part of the whole program's time.
    share: f64,
    flops: f64,
    bytes: f64,
    /// Lower bound divided by measured time, and the resource; `None` for kernels that only run nested programs.
    ceiling: Option<(f64, &'static str)>,
    result: String,
}

/// A table of all kernels with their times and how close these are to the lower bounds. Kernels of nested programs
/// follow the step that contains them. `None` if no run was timed.
pub(crate) fn table(program: &dyn Program, level: Level, threads: usize) -> Option<String> {
    let mut rows = Vec::new();
    let total = total_seconds(program);
    if total == 0.0 {
        return None;
    }
    collect(program, level, threads, total, 0, &mut rows);
    let all = peak(level, threads);
    let tiers: Vec<String> = all.tiers.iter().map(|t| format!("{} {:.0} GB/s", t.name, t.gb_per_s)).collect();
    let products = match all.bf16_gflops > all.fma_gflops {
        true => format!("FMA {:.0} GFLOP/s, bf16 {:.0} GFLOP/s", all.fma_gflops, all.bf16_gflops),
        false => format!("FMA {:.0} GFLOP/s", all.fma_gflops),
    };
    let products = format!("{products}, int8 {:.0} GFLOP/s", all.int8_gflops);
    let mut text = format!("ceilings of {threads} threads: {products}, {}\n", tiers.join(", "));
    text += &format!(
        "{:<34} {:>7} {:>9} {:>6} {:>8} {:>7} {:>13}  result\n",
        "kernel", "calls", "ms/call", "time", "GFLOP/s", "GB/s", "of ceiling"
    );
    for r in &rows {
        let of = r.ceiling.map_or(String::new(), |(share, name)| format!("{:.0} % {name}", 100.0 * share));
        text += &format!(
            "{:<34} {:>7} {:>9.3} {:>5.1}% {:>8.1} {:>7.1} {of:>13}  {}\n",
            format!("{}{}", "  ".repeat(r.depth), r.kernel),
            r.calls,
            r.seconds * 1e3,
            100.0 * r.share,
            r.flops / r.seconds / 1e9,
            r.bytes / r.seconds / 1e9,
            r.result,
        );
    }
    Some(text)
}

/// Calls and mean seconds per call; `None` if the step did not run.
fn times_of(times: &Times) -> Option<StepTimes> {
    let (calls, nanos, first) =
        (times.calls.load(Relaxed), times.nanos.load(Relaxed), times.first.load(Relaxed));
    let seconds = match calls {
        0 => return None,
        1 => nanos as f64 * 1e-9,
        n => nanos.saturating_sub(first) as f64 * 1e-9 / (n - 1) as f64,
    };
    Some(StepTimes { calls, seconds, alone: times.alone.load(Relaxed) })
}

fn total_seconds(program: &dyn Program) -> f64 {
    let timed = (0..program.steps().len()).filter_map(|i| program.times(i));
    timed.map(|t| t.calls as f64 * t.seconds).sum()
}

/// Appends a program's rows, longest total time first, each followed by those of its nested programs.
fn collect(
    program: &dyn Program,
    level: Level,
    threads: usize,
    total: f64,
    depth: usize,
    rows: &mut Vec<Row>,
) {
    let all = (0..program.steps().len()).filter_map(|i| program.times(i).map(|t| (i, t)));
    let mut timed: Vec<(usize, StepTimes)> = all.collect();
    let spent = |t: &StepTimes| t.calls as f64 * t.seconds;
    timed.sort_by(|a, b| spent(&b.1).total_cmp(&spent(&a.1)));
    for (i, StepTimes { calls, seconds, alone }) in timed {
        let step = &program.steps()[i];
        let inner = program.kernels()[i].inner();
        let (flops, bytes) = (step.flops, step.bytes_moved());
        let reached = || {
            let (least, name) = ceiling(&peak(level, if alone { 1 } else { threads }), step, bytes);
            (least / seconds, name)
        };
        let of = if step.scope.is_empty() { "" } else { " of " };
        rows.push(Row {
            depth,
            kernel: format!("{i} {}", step.kernel.name()),
            calls,
            seconds,
            share: calls as f64 * seconds / total,
            flops,
            bytes,
            ceiling: inner.is_empty().then(reached),
            result: format!(
                "{}{of}{}",
                step.output_types.first().map_or(String::new(), |t| t.to_string()),
                step.scope
            ),
        });
        for (_, program) in inner {
            collect(program, level, threads, total, depth + 1, rows);
        }
    }
}
