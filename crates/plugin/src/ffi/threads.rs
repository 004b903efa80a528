//! Threads for the tasks that FFI handlers schedule.

use super::context::lock;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Condvar, LazyLock, Mutex, PoisonError};
use std::thread::Builder;

/// A task: a function and its argument.
pub(super) struct FfiTask(pub(super) unsafe extern "C" fn(*mut c_void), pub(super) *mut c_void);

// SAFETY: handlers pass tasks that run on any thread.
unsafe impl Send for FfiTask {}

impl FfiTask {
    fn run(self) {
        // SAFETY: the handler's function and argument; it is called once.
        unsafe { (self.0)(self.1) };
    }
}

#[derive(Default)]
struct TaskQueue {
    tasks: Mutex<VecDeque<FfiTask>>,
    added: Condvar,
}

static QUEUE: LazyLock<&'static TaskQueue> = LazyLock::new(|| {
    let queue: &'static TaskQueue = Box::leak(Box::default());
    for _ in 0..num_threads() {
        let _ = Builder::new().name("ffi".into()).spawn(move || {
            loop {
                let mut tasks = lock(&queue.tasks);
                let task = loop {
                    match tasks.pop_front() {
                        Some(task) => break task,
                        None => tasks = queue.added.wait(tasks).unwrap_or_else(PoisonError::into_inner),
                    }
                };
                drop(tasks);
                task.run();
            }
        });
    }
    queue
});

pub(super) fn num_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs a task on another thread.
pub(super) fn schedule(task: FfiTask) {
    lock(&QUEUE.tasks).push_back(task);
    QUEUE.added.notify_one();
}
