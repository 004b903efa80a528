//! The clock: repeats a step, leaves the warm-up out, takes the median.

use crate::run::run_summary::{peak_rss_mib, threads};
use std::time::{Duration, Instant};
use systole_ir::Result;
use systole_runtime::ReadyEvent;

/// What a measurement found.
#[derive(Clone, Debug, Default)]
pub(super) struct BenchTiming {
    /// Median time of a step.
    pub(super) median_ms: f64,
    /// Time of the fastest step.
    pub(super) best_ms: f64,
    /// Time that a tenth of the steps stay below, and that a tenth exceed.
    pub(super) tenths_ms: (f64, f64),
    /// Share of the time that the threads could have run and had no core, where the system says so: other programs had it.
    pub(super) core_wait: Option<f64>,
    /// Processor time of all threads for each step, where the system says so.
    pub(super) cpu_ms: Option<f64>,
    /// Steps that were timed.
    pub(super) steps: usize,
    /// Arithmetic operations of a step.
    pub(super) flops: f64,
    /// Bytes that a step must at least read and write, where that is what is measured.
    pub(super) bytes: Option<f64>,
    /// Images or tokens of a step.
    pub(super) items: f64,
    /// The most memory that the process has used when the last step was done.
    pub(super) peak_rss_mib: Option<f64>,
    /// From the first trace to a program ready to run.
    pub(super) compile_ms: f64,
}

/// Steps that are timed however short the time is.
const FEWEST: usize = 3;
/// Steps that are not timed: the first touches new memory, the second may still grow pools.
const WARM_UP: usize = 2;

/// Takes steps for `time` after a warm-up of up to a fifth of it. Compile time and work are the caller's to fill in.
/// `step` gives the event of a step that goes on after its call: each is waited for, as they say little one by one where
/// they overlap.
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

/// The value that a tenth of sorted values stay below.
fn tenth(sorted: &[f64]) -> f64 {
    sorted[sorted.len() / 10]
}

/// How long the threads of this process have waited for a core so far, all together, in seconds.
fn core_wait_seconds() -> Option<f64> {
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    let waited = |task: std::fs::DirEntry| {
        // Nanoseconds on a core, nanoseconds waiting for one, number of turns.
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse::<f64>().ok()
    };
    let each: Vec<f64> = tasks.flatten().filter_map(waited).collect();
    (!each.is_empty()).then(|| each.iter().sum::<f64>() / 1e9)
}

/// The middle of sorted values.
fn median(sorted: &[f64]) -> f64 {
    let n = sorted.len();
    (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0
}

/// Runs `f` and says how many milliseconds it took.
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
