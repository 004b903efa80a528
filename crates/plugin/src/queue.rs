//! Runs programs asynchronously and in order, on one thread per client.

use crate::call::{CallError, CallResult};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Maximum number of queued runs; further calls block.
const MOST_WAITING: usize = 32;

type QueuedRun = Box<dyn FnOnce() + Send>;

/// Queue of runs; its thread starts with the first run.
#[derive(Default)]
pub(crate) struct RunQueue(Mutex<Option<RunThread>>);

struct RunThread {
    jobs: SyncSender<QueuedRun>,
    thread: JoinHandle<()>,
}

impl RunQueue {
    fn line(&self) -> MutexGuard<'_, Option<RunThread>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a run to the queue.
    pub(crate) fn push(&self, job: impl FnOnce() + Send + 'static) -> CallResult {
        let jobs = {
            let mut line = self.line();
            match &*line {
                Some(line) => line.jobs.clone(),
                None => {
                    let (jobs, own) = sync_channel::<QueuedRun>(MOST_WAITING);
                    let work = move || own.into_iter().for_each(|job| job());
                    let thread = Builder::new().name("runs".into()).spawn(work);
                    let thread =
                        thread.map_err(|e| CallError::exhausted(format!("cannot start a thread: {e}")))?;
                    *line = Some(RunThread { jobs: jobs.clone(), thread });
                    jobs
                }
            }
        };
        jobs.send(Box::new(job)).map_err(|_| CallError::invalid("the client is closed"))
    }
}

impl Drop for RunQueue {
    /// Finishes the queued runs.
    fn drop(&mut self) {
        if let Some(RunThread { jobs, thread }) = self.line().take() {
            drop(jobs);
            let _ = thread.join();
        }
    }
}
