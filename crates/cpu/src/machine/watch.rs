//! Whether runs are being observed (events or traces), and the trace spans of workers.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use systole_runtime::{event, trace};

/// Whether runs have to be timed.
#[inline]
pub fn wanted() -> bool {
    event::wanted(2) || trace::is_on()
}

/// Name and trace arguments of the current kernel, for the spans of the workers that take part in it.
static CURRENT: Mutex<(String, String)> = Mutex::new((String::new(), String::new()));

/// Sets the current kernel's name and its trace arguments (a JSON object).
pub fn begin_kernel(name: String, args: String) {
    *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = (name, args);
}

/// Records the span of a worker's share of the current kernel.
pub fn worker_span(start: Option<Instant>) {
    if start.is_some() {
        let (name, args) = CURRENT.lock().unwrap_or_else(PoisonError::into_inner).clone();
        trace::span("kernel", &name, start, || args);
    }
}
