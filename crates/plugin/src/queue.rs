//! Runs that go on after their calls: one thread for each client, which takes them in order.

use crate::call::CallError;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// More runs than this do not wait: the call that would add one waits itself.
const MOST_WAITING: usize = 32;

type QueuedRun = Box<dyn FnOnce() + Send>;

/// The thread is started with the first run.
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

    /// Runs after those that were given before.
    pub(crate) fn push(&self, job: impl FnOnce() + Send + 'static) -> Result<(), CallError> {
        let jobs = {
            let mut line = self.line();
            match &*line {
                Some(line) => line.jobs.clone(),
                None => {
                    let (jobs, own) = sync_channel::<QueuedRun>(MOST_WAITING);
                    let work = move || own.into_iter().for_each(|job| job());
                    let thread = Builder::new().name("runs".into()).spawn(work);
                    let thread = thread.map_err(|e| CallError::exhausted(format!("no thread: {e}")))?;
                    *line = Some(RunThread { jobs: jobs.clone(), thread });
                    jobs
                }
            }
        };
        jobs.send(Box::new(job)).map_err(|_| CallError::invalid("the client is closed"))
    }
}

impl Drop for RunQueue {
    /// What was begun is ended.
    fn drop(&mut self) {
        if let Some(RunThread { jobs, thread }) = self.line().take() {
            drop(jobs);
            let _ = thread.join();
        }
    }
}
