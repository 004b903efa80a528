//! `prefetch`: computes elements ahead on a thread, through a bounded queue. The stream is the same at any depth.
//!
//! The thread starts with the first element (so that seeking needs none), carries errors over as elements and
//! a panic as a panic of the consumer, and ends after the element in work when the iterator is dropped.

use super::{Cursor, Node, Stage, open};
use crate::dataset::Cardinality;
use crate::sample::{ElementSpec, Sample};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use systole_base::{Error, ErrorKind, Result};

pub(crate) struct Prefetch {
    pub up: Node,
    pub depth: usize,
}

impl Stage for Prefetch {
    fn name(&self) -> String {
        format!("{}.prefetch({})", self.up.name(), self.depth)
    }

    fn cardinality(&self) -> Cardinality {
        self.up.cardinality()
    }

    fn stream(&self, epoch: u64) -> Result<Box<dyn Cursor>> {
        let up = open(&self.up, epoch)?;
        if self.depth == 0 {
            return Ok(up);
        }
        Ok(Box::new(Ahead { state: State::Idle(up), depth: self.depth }))
    }

    fn spec(&self) -> Result<ElementSpec> {
        self.up.spec()
    }
}

enum Message {
    Item(Result<Sample>),
    Panic(Box<dyn Any + Send>),
}

enum State {
    Idle(Box<dyn Cursor>),
    Running(Receiver<Message>),
    Over,
}

struct Ahead {
    state: State,
    depth: usize,
}

impl Ahead {
    fn start(&mut self) -> Result<()> {
        if let State::Idle(up) = std::mem::replace(&mut self.state, State::Over) {
            // The thread holds one element outside the queue.
            let (sender, receiver) = sync_channel(self.depth - 1);
            thread::Builder::new()
                .name("systole-prefetch".into())
                .spawn(move || produce(up, sender))
                .map_err(|e| {
                    Error::new(ErrorKind::Io, "cannot start the prefetch thread")
                        .because(e.to_string())
                        .hint("raise the limit on threads, or leave prefetch out")
                })?;
            self.state = State::Running(receiver);
        }
        Ok(())
    }
}

fn produce(mut up: Box<dyn Cursor>, sender: SyncSender<Message>) {
    loop {
        let message = match catch_unwind(AssertUnwindSafe(|| up.next())) {
            Ok(None) => return,
            Ok(Some(item)) => Message::Item(item),
            Err(panic) => {
                // Nobody is there to hear it when the iterator is gone.
                let _ = sender.send(Message::Panic(panic));
                return;
            }
        };
        if sender.send(message).is_err() {
            return;
        }
    }
}

impl Cursor for Ahead {
    fn next(&mut self) -> Option<Result<Sample>> {
        if let State::Idle(_) = self.state
            && let Err(e) = self.start()
        {
            return Some(Err(e));
        }
        let State::Running(receiver) = &self.state else { return None };
        match receiver.recv() {
            Ok(Message::Item(item)) => Some(item),
            Ok(Message::Panic(panic)) => {
                self.state = State::Over;
                resume_unwind(panic)
            }
            Err(_) => {
                self.state = State::Over;
                None
            }
        }
    }

    fn skip(&mut self, n: u64) -> u64 {
        match &mut self.state {
            State::Idle(up) => up.skip(n),
            _ => (0..n).take_while(|_| self.next().is_some()).count() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::stage::test::{ints, values};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn runs_ahead_no_further_than_its_depth_and_ends_when_dropped() {
        let alive = Arc::new(());
        let guard = alive.clone();
        let made = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = made.clone();
        let d = ints(100).map(move |s| {
            let _ = &guard;
            count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            s
        });
        let mut iter = d.prefetch(3).iter();
        drop(d);
        iter.next().unwrap().unwrap();
        let made = || made.load(std::sync::atomic::Ordering::SeqCst);
        wait_until("three ahead of the one taken", || made() == 4);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(made(), 4);
        drop(iter);
        wait_until("the thread still runs", || Arc::strong_count(&alive) == 1);
    }

    #[test]
    fn carries_errors_in_place_and_panics_over() {
        let d = ints(5).map(|s| {
            let i = s.get("x").unwrap().get(0).as_i64();
            assert!(i != 3, "three!");
            if i == 1 { s.without("nothing") } else { s }
        });
        let mut iter = d.prefetch(4).iter();
        assert!(iter.next().unwrap().is_ok());
        assert!(iter.next().unwrap().is_err());
        assert!(iter.next().unwrap().is_ok());
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| iter.next())).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"three!"));
        assert!(iter.next().is_none());
    }

    #[test]
    fn is_transparent() {
        assert_eq!(values(&ints(5).prefetch(2)), [0, 1, 2, 3, 4]);
        assert_eq!(ints(5).prefetch(2).element_spec().unwrap().to_string(), "x: i32[]");
    }
}
