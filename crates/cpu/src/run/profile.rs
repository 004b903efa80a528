//! Kernel profiling: times of steps, and their trace spans.
//!
//! Steps are timed only on request (`SYSTOLE_LOG=2`, `--profile`, `--trace`).

use crate::kernel::KernelTimes;
use crate::machine::{thread_pool, trace_spans};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use systole_compile::{ProgramSchedule, Step};
use systole_ir::TensorType;
use systole_runtime::layer_times::location;
use systole_runtime::trace;

/// Accumulated times of a program's steps.
pub(crate) struct ProgramProfile {
    steps: Vec<AccumulatedTimes>,
    /// Per step: trace arguments of its span, a JSON object.
    spans: OnceLock<Vec<String>>,
}

/// Accumulated times of one step.
#[derive(Default)]
struct AccumulatedTimes {
    calls: AtomicU64,
    nanos: AtomicU64,
    /// Nanoseconds of the first call. It includes page faults, so the mean excludes it if there are other calls.
    first: AtomicU64,
    /// Whether it runs inside another kernel's parallel loop, and so on one core.
    alone: AtomicBool,
}

impl ProgramProfile {
    pub(crate) fn new(steps: usize) -> ProgramProfile {
        ProgramProfile {
            steps: (0..steps).map(|_| AccumulatedTimes::default()).collect(),
            spans: OnceLock::new(),
        }
    }

    /// Records the start of step `i`.
    pub(crate) fn begin(&self, s: &ProgramSchedule, i: usize) -> Instant {
        if trace::is_on() && !thread_pool::inside() {
            trace_spans::begin_kernel(s.steps[i].kernel.name(), self.span(s, i).to_string());
        }
        Instant::now()
    }

    /// Records the end of step `i`.
    pub(crate) fn end(&self, s: &ProgramSchedule, i: usize, start: Instant) {
        let nanos = start.elapsed().as_nanos() as u64;
        let times = &self.steps[i];
        if times.calls.fetch_add(1, Relaxed) == 0 {
            times.first.store(nanos, Relaxed);
            times.alone.store(thread_pool::inside(), Relaxed);
        }
        times.nanos.fetch_add(nanos, Relaxed);
        if trace::is_on() {
            let step = &s.steps[i];
            let path = || location(&step.scope, step.scope.is_derivative, &step.kernel.name());
            trace::kernel(start, || (step.kernel.name().to_string(), path()));
            if !thread_pool::inside() {
                trace_spans::end_kernel();
            }
            trace::span("kernel", &s.steps[i].kernel.name(), Some(start), || self.span(s, i).to_string());
        }
    }

    /// Returns the number of calls and the mean time of step `i`; `None` if it did not run.
    pub(crate) fn times(&self, i: usize) -> Option<KernelTimes> {
        times_of(&self.steps[i])
    }

    fn span(&self, s: &ProgramSchedule, i: usize) -> &str {
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

/// Returns the calls and mean seconds per call; `None` if the step did not run.
fn times_of(times: &AccumulatedTimes) -> Option<KernelTimes> {
    let (calls, nanos, first) =
        (times.calls.load(Relaxed), times.nanos.load(Relaxed), times.first.load(Relaxed));
    let seconds = match calls {
        0 => return None,
        1 => nanos as f64 * 1e-9,
        n => nanos.saturating_sub(first) as f64 * 1e-9 / (n - 1) as f64,
    };
    Some(KernelTimes { calls, seconds, alone: times.alone.load(Relaxed) })
}
