//! Events: what has happened, and what a device that takes its time will tell.

use crate::device::seen;
use crate::table::{Answer, Handle};
use std::ffi::c_void;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, sleep};
use std::time::Duration;
use systole_pjrt::sys::{self, Object};

/// Something that happens. Copies are of the same; the object behind `PJRT_Event*` is one of them.
#[derive(Clone)]
pub(crate) struct Event(Arc<Happening>);

struct Happening {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    has_happened: bool,
    /// To be called when it happens.
    callbacks: Vec<Callback>,
}

struct Callback {
    function: sys::EventCallback,
    argument: *mut c_void,
}

// SAFETY: the C API lets plugins call back from any thread.
unsafe impl Send for Callback {}

impl Callback {
    fn call(self) {
        // SAFETY: the caller's function, once, with the caller's argument and no error.
        unsafe { (self.function)(std::ptr::null_mut(), self.argument) };
    }
}

impl Event {
    fn new(has_happened: bool) -> Event {
        let state = Mutex::new(State { has_happened, callbacks: Vec::new() });
        Event(Arc::new(Happening { state, changed: Condvar::new() }))
    }

    /// Of work that is done.
    pub(crate) fn past() -> Event {
        Event::new(true)
    }

    /// For callers, who give it back.
    pub(crate) fn object(&self) -> Object {
        Box::into_raw(Box::new(self.clone())).cast()
    }

    fn happens(&self) {
        let mut state = self.state();
        state.has_happened = true;
        self.0.changed.notify_all();
        let callbacks = std::mem::take(&mut state.callbacks);
        drop(state);
        callbacks.into_iter().for_each(Callback::call);
    }

    fn wait(&self) {
        let waiting = |state: &mut State| !state.has_happened;
        drop(self.0.changed.wait_while(self.state(), waiting).unwrap_or_else(PoisonError::into_inner));
    }

    fn on_ready(&self, callback: Callback) {
        let mut state = self.state();
        if state.has_happened {
            drop(state);
            return callback.call();
        }
        state.callbacks.push(callback);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long a client's runs take beside their work.
#[derive(Clone)]
pub(crate) enum Pace {
    /// They are over when their calls return.
    AtOnce,
    /// They go on after that, one after the other, as those of a device that works by itself.
    Later(Sender<Event>),
}

impl Pace {
    /// Runs that take that much longer; 0: at once.
    pub(crate) fn new(each: Duration) -> std::io::Result<Pace> {
        if each.is_zero() {
            return Ok(Pace::AtOnce);
        }
        let (begin, runs): (_, Receiver<Event>) = channel();
        let device = move || {
            for run in runs {
                sleep(each);
                run.happens();
            }
        };
        Builder::new().name("device".into()).spawn(device)?;
        Ok(Pace::Later(begin))
    }

    /// The end of a run whose work is done.
    pub(crate) fn end_of_run(&self) -> Event {
        let event = Event::new(matches!(self, Pace::AtOnce));
        if let Pace::Later(begin) = self
            && begin.send(event.clone()).is_err()
        {
            event.happens();
        }
        event
    }
}

impl Handle for sys::Event_Destroy {
    unsafe fn handle(&mut self) -> Answer {
        if !self.event.is_null() {
            // SAFETY: made by `Event::object`, and given back once.
            drop(unsafe { Box::from_raw(self.event.cast::<Event>()) });
        }
        Ok(())
    }
}

impl Handle for sys::Event_IsReady {
    unsafe fn handle(&mut self) -> Answer {
        // SAFETY: callers hand back what they were given.
        self.is_ready = unsafe { seen::<Event>(self.event)? }.state().has_happened;
        Ok(())
    }
}

impl Handle for sys::Event_Error {
    unsafe fn handle(&mut self) -> Answer {
        Ok(())
    }
}

impl Handle for sys::Event_Await {
    unsafe fn handle(&mut self) -> Answer {
        // SAFETY: callers hand back what they were given.
        unsafe { seen::<Event>(self.event)? }.wait();
        Ok(())
    }
}

impl Handle for sys::Event_OnReady {
    unsafe fn handle(&mut self) -> Answer {
        // SAFETY: callers hand back what they were given. The callback may give the event back: a copy is used here.
        let event = unsafe { seen::<Event>(self.event)? }.clone();
        if let Some(function) = self.callback {
            event.on_ready(Callback { function, argument: self.user_arg });
        }
        Ok(())
    }
}
