//! Measures step times: warm-up, repetitions, median and percentiles.

use crate::run::run_summary::{peak_rss_mib, threads};
use std::time::{Duration, Instant};
use systole_ir::Result;
use systole_runtime::ReadyEvent;

/// Result of a measurement.
#[derive(Clone, Debug, Default)]
pub(super) struct BenchTiming {
    /// Median step time.
    pub(super) median_ms: f64,
    /// Minimum step time.
    pub(super) best_ms: f64,
    /// 10th and 90th percentile of the step times.
    pub(super) tenths_ms: (f64, f64),
    /// Share of the time that runnable threads waited for a core used by other programs, if the system reports it.
    pub(super) core_wait: Option<f64>,
    /// CPU time of all threads per step, if the system reports it.
    pub(super) cpu_ms: Option<f64>,
    /// Number of timed steps.
    pub(super) steps: usize,
    /// Floating-point operations per step.
    pub(super) flops: f64,
    /// Minimum memory traffic of a step in bytes, for bandwidth-bound workloads.
    pub(super) bytes: Option<f64>,
    /// Images or tokens per step.
    pub(super) items: f64,
    /// Peak memory of the process after the last step.
    pub(super) peak_rss_mib: Option<f64>,
    /// Time from the first trace to an executable program.
    pub(super) compile_ms: f64,
}

/// Minimum number of timed steps.
const FEWEST: usize = 3;
/// Number of warm-up steps: the first touches new memory, the second may still grow pools.
const WARM_UP: usize = 2;

/// Times steps for `time` after a warm-up of up to a fifth of it. The caller fills in compile time and work.
///
/// `step` returns the event of an asynchronous step; each step is awaited before the next starts.
pub(super) fn measure(
    time: Duration,
    mut step: impl FnMut() -> Result<Option<ReadyEvent>>,
) -> Result<BenchTiming> {
    let mut step = || step()?.map_or(Ok(()), |event| event.wait().map(drop));
    let began = Instant::now();
    let mut warm = 0;
    while warm < WARM_UP || began.elapsed() < time / 5 {
        step()?;
        warm += 1;
    }
    let (cpu, waited) = (systole_cpu::process_cpu_seconds(), core_wait_seconds());
    let began = Instant::now();
    let mut each = Vec::new();
    let mut last = began;
    while each.len() < FEWEST || last - began < time {
        step()?;
        let now = Instant::now();
        each.push((now - last).as_secs_f64() * 1e3);
        last = now;
    }
    let all = (last - began).as_secs_f64() * threads() as f64;
    let core_wait =
        waited.zip(core_wait_seconds()).filter(|_| all > 0.1).map(|(a, b)| ((b - a) / all).clamp(0.0, 1.0));
    let spent = systole_cpu::process_cpu_seconds();
    let cpu_ms = cpu.zip(spent).map(|(a, b)| (b - a) * 1e3 / each.len() as f64);
    each.sort_by(f64::total_cmp);
    Ok(BenchTiming {
        median_ms: median(&each),
        best_ms: each[0],
        tenths_ms: (tenth(&each), each[each.len() - 1 - each.len() / 10]),
        core_wait,
        cpu_ms,
        steps: each.len(),
        peak_rss_mib: peak_rss_mib(),
        ..BenchTiming::default()
    })
}

/// Returns the 10th percentile of sorted values.
fn tenth(sorted: &[f64]) -> f64 {
    sorted[sorted.len() / 10]
}

/// Total time that the threads of this process have waited for a core, in seconds.
fn core_wait_seconds() -> Option<f64> {
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    let waited = |task: std::fs::DirEntry| {
        // Fields: nanoseconds on a core, nanoseconds waiting for one, number of time slices.
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse::<f64>().ok()
    };
    let each: Vec<f64> = tasks.flatten().filter_map(waited).collect();
    (!each.is_empty()).then(|| each.iter().sum::<f64>() / 1e9)
}

/// Returns the median of sorted values.
fn median(sorted: &[f64]) -> f64 {
    let n = sorted.len();
    (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0
}

/// Runs `f` and measures its time in ms.
pub(super) fn timed<T>(f: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let start = Instant::now();
    let value = f()?;
    Ok((value, start.elapsed().as_secs_f64() * 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warm_up_is_left_out_and_the_median_is_the_middle() {
        let mut calls = 0;
        let m = measure(Duration::ZERO, || {
            calls += 1;
            Ok(None)
        })
        .unwrap();
        assert_eq!((calls, m.steps), (WARM_UP + FEWEST, FEWEST));
        assert!(m.best_ms <= m.median_ms);
        assert!(m.best_ms <= m.tenths_ms.0 && m.tenths_ms.0 <= m.median_ms && m.median_ms <= m.tenths_ms.1);
        assert_eq!((median(&[1.0, 2.0, 9.0]), median(&[1.0, 2.0, 4.0, 9.0])), (2.0, 3.0));
    }

    /// Times are those of finished steps: the device takes its time for each.
    #[test]
    fn a_step_that_goes_on_after_its_call_is_timed_until_its_end() {
        const EACH: Duration = Duration::from_millis(5);
        let (begin, device) = std::sync::mpsc::channel::<ReadyEvent>();
        let device = std::thread::spawn(move || {
            for step in device {
                std::thread::sleep(EACH);
                step.done(Ok(()));
            }
        });
        let mut begun: Vec<ReadyEvent> = Vec::new();
        let m = measure(Duration::ZERO, || {
            assert!(begun.iter().all(|e| e.finished().is_some()), "two steps are timed at once");
            let event = ReadyEvent::new(1);
            begun.push(event.clone());
            begin.send(event.clone()).unwrap();
            Ok(Some(event))
        })
        .unwrap();
        assert!(begun.iter().all(|e| e.finished().is_some()), "a step is under way after the measurement");
        assert!(m.steps >= FEWEST && m.best_ms >= EACH.as_secs_f64() * 1e3, "{m:?}");
        drop(begin);
        device.join().unwrap();
    }
}
