//! Whether somebody watches runs, and the spans of workers that help with a kernel.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use systole_runtime::{event, trace};

/// Whether runs are to be timed.
#[inline]
pub fn wanted() -> bool {
    event::wanted(2) || trace::is_on()
}

/// The kernel that runs now and what a trace shows of it: for the spans of the workers that help.
static CURRENT: Mutex<(String, String)> = Mutex::new((String::new(), String::new()));

/// Names the kernel that runs from now on, with what a trace shows of it: a JSON object.
pub fn begin_kernel(name: String, args: String) {
    *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = (name, args);
}

/// What a worker did of the current kernel.
pub fn worker_span(start: Option<Instant>) {
    if start.is_some() {
        let (name, args) = CURRENT.lock().unwrap_or_else(PoisonError::into_inner).clone();
        trace::span("kernel", &name, start, || args);
    }
}
