//! Trace spans of kernels and workers, and whether runs must be timed.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use systole_runtime::{events, trace};

/// Whether kernel runs must be timed (events or traces are on).
#[inline]
pub fn wanted() -> bool {
    events::wanted(2) || trace::is_on()
}

/// Name and trace arguments of the running kernels, innermost last, for the spans of workers.
static RUNNING: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

fn running() -> MutexGuard<'static, Vec<(String, String)>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records the start of a kernel, with its trace arguments (a JSON object).
pub fn begin_kernel(name: String, args: String) {
    running().push((name, args));
}

/// Records the end of the kernel that started last.
pub fn end_kernel() {
    running().pop();
}

/// Records the span of a worker's share of the current kernel, or of a loop outside all kernels.
pub fn worker_span(start: Option<Instant>) {
    if start.is_none() {
        return;
    }
    match running().last().cloned() {
        Some((name, args)) => trace::span("kernel", &name, start, || args),
        // Weight packing and array conversion run outside kernels.
        None => trace::span("loop", "parallel loop", start, || "{}".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_outside_of_kernels_leave_the_trace_whole() {
        let path = std::env::temp_dir().join(format!("systole-watch-{}.json", std::process::id()));
        trace::start(&path).unwrap();
        worker_span(trace::begin());
        begin_kernel("outer".into(), "{\"layer\":\"a\"}".into());
        begin_kernel("inner".into(), "{\"layer\":\"b\"}".into());
        end_kernel();
        worker_span(trace::begin());
        end_kernel();
        trace::finish().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(text.contains("\"parallel loop\"") && text.contains("{\"layer\":\"a\"}"), "{text}");
        assert!(!text.contains("\"args\":}") && !text.contains("\"name\":\"\""), "{text}");
    }
}
