//! Soak test: a pipeline that must stay within its memory budget for a long time.
//!
//! It produces far more data than the budget. `cargo run --release -p systole-data --example soak -- [seconds] [budget
//! MiB]` (defaults: 600 and 64). Prints the process's memory periodically, and fails if the budget was exceeded or
//! memory grew after the first tenth of the time.

use std::time::{Duration, Instant};
use systole_base::{DType, Error, ErrorKind, Literal, Result, TensorType};
use systole_data::{AUTOTUNE, Dataset, DatasetOptions, Sample};

/// Size of an element in bytes.
const ELEMENT: usize = 256 << 10;
/// Allowed memory growth in MiB, for the allocator itself.
const SLACK: f64 = 24.0;

fn main() -> Result<()> {
    let arg = |i: usize| std::env::args().nth(i).and_then(|s| s.parse::<f64>().ok());
    let time = Duration::from_secs_f64(arg(1).unwrap_or(600.0));
    let budget = arg(2).unwrap_or(64.0) as usize * (1 << 20);
    let mut iter = pipeline(budget).iter();
    let (start, mut told, mut bytes, mut n) = (Instant::now(), Instant::now(), 0u64, 0u64);
    let mut warm: Option<f64> = None;
    let mut most = 0f64;
    while start.elapsed() < time {
        let Some(batch) = iter.next() else { break };
        bytes += batch?.bytes() as u64;
        n += 1;
        // The consumer is slow at times, so that the queues fill up.
        if n.is_multiple_of(64) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let held = resident();
        if start.elapsed() > time / 10 {
            warm.get_or_insert(most.max(held));
        }
        most = most.max(held);
        if told.elapsed() > Duration::from_secs(30) {
            told = Instant::now();
            show(&format!(
                "{:>6.0} s, {} MiB made, {held:.0} MiB held",
                start.elapsed().as_secs_f64(),
                bytes >> 20
            ));
        }
    }
    let (report, warm) = (iter.report(), warm.unwrap_or(most));
    show(&format!(
        "{} s: {} MiB made, {:.1} times the budget; ahead at most {} of {} bytes; {warm:.0} MiB held after a tenth of \
         the time, {most:.0} MiB at most",
        start.elapsed().as_secs(),
        bytes >> 20,
        bytes as f64 / budget as f64,
        report.ram_peak,
        report.ram_budget,
    ));
    let wrong = |what: &str| Err(Error::new(ErrorKind::Numeric, what));
    match () {
        () if report.ram_peak > report.ram_budget => wrong("the budget was exceeded"),
        () if most > warm + SLACK => wrong("memory creeps"),
        () if (bytes as usize) < 20 * budget => wrong("less than 20 times the budget was made"),
        () => Ok(()),
    }
}

/// Elements of a quarter of a MiB from a stream, computed on threads, shuffled, batched, all prefetched.
fn pipeline(budget: usize) -> Dataset {
    let make = |s: Sample| {
        let i = s.get("value")?.get(0).as_i64();
        let zeros = Literal::zeros(TensorType::new(DType::U8, [ELEMENT - (i % 7) as usize * 1024]));
        Ok(s.with("large", zeros)) as Result<Sample>
    };
    Dataset::range(1 << 40)
        .map_parallel(make, AUTOTUNE)
        .filter(|_| true)
        .shuffle(32, 5)
        .map_parallel(|s| s.map("large", |x| x + 1), AUTOTUNE)
        .prefetch(AUTOTUNE)
        .with_options(DatasetOptions { ram_budget: Some(budget), ..DatasetOptions::default() })
}

/// Resident memory of the process in MiB; 0 if Linux does not report it.
fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|n| n.parse::<f64>().ok()).map_or(0.0, |pages| pages / 256.0)
}

#[allow(clippy::print_stdout)]
fn show(text: &str) {
    println!("{text}");
}
