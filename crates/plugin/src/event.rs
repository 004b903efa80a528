//! PJRT events: completion of runs and transfers, with callbacks; optionally simulates a device's latency.

use crate::call::{ApiCall, CallError, CallResult, error, handle, list, seen};
use std::ffi::c_void;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, sleep};
use std::time::Duration;
use systole_pjrt::sys::{self, OpaquePtr};

/// A completion event; clones share it. The object behind `PJRT_Event*` is one of them. `None`: already completed.
#[derive(Clone)]
pub(crate) struct PluginEvent(Option<Arc<EventState>>);

pub(crate) struct EventState {
    state: Mutex<EventProgress>,
    changed: Condvar,
}

struct EventProgress {
    /// Outcome; `None` while pending.
    outcome: Option<CallResult>,
    /// Callbacks for completion.
    callbacks: Vec<ReadyCallback>,
}

type ReadyCallback = Box<dyn FnOnce(&CallResult) + Send>;

/// A caller's C callback with its argument.
struct CCallback {
    function: sys::EventCallback,
    argument: *mut c_void,
}

// SAFETY: the C API lets plugins call back from any thread.
unsafe impl Send for CCallback {}

impl CCallback {
    fn call(self, outcome: &CallResult) {
        let object = outcome.as_ref().err().map_or(std::ptr::null_mut(), |f| error(f.clone()));
        // SAFETY: the caller's function, called once, with its argument and an error that it destroys.
        unsafe { (self.function)(object, self.argument) };
    }
}

/// Event object for completed events, which allocates nothing.
static PAST: PluginEvent = PluginEvent(None);

impl PluginEvent {
    /// Returns a completed event.
    pub(crate) fn past() -> PluginEvent {
        PluginEvent(None)
    }

    /// Returns a pending event.
    pub(crate) fn coming() -> PluginEvent {
        let state = Mutex::new(EventProgress { outcome: None, callbacks: Vec::new() });
        PluginEvent(Some(Arc::new(EventState { state, changed: Condvar::new() })))
    }

    /// Returns an event object, which the caller destroys.
    pub(crate) fn object(&self) -> OpaquePtr {
        match &self.0 {
            None => (&raw const PAST).cast_mut().cast(),
            Some(_) => Box::into_raw(Box::new(self.clone())).cast(),
        }
    }

    /// Completes the event. Only the first call has an effect.
    pub(crate) fn happens(&self, outcome: CallResult) {
        let Some(own) = &self.0 else { return };
        let mut state = own.state();
        if state.outcome.is_some() {
            return;
        }
        let told = outcome.clone();
        state.outcome = Some(outcome);
        own.changed.notify_all();
        let callbacks = std::mem::take(&mut state.callbacks);
        drop(state);
        callbacks.into_iter().for_each(|callback| callback(&told));
    }

    /// Returns the outcome; `None` while pending.
    pub(crate) fn outcome(&self) -> Option<CallResult> {
        self.0.as_ref().map_or(Some(Ok(())), |own| own.state().outcome.clone())
    }

    /// Waits for completion.
    pub(crate) fn wait(&self) -> CallResult {
        let Some(own) = &self.0 else { return Ok(()) };
        let waiting = |state: &mut EventProgress| state.outcome.is_none();
        let state = own.changed.wait_while(own.state(), waiting).unwrap_or_else(PoisonError::into_inner);
        state.outcome.clone().unwrap_or(Ok(()))
    }

    /// Calls `callback` on completion; immediately if completed.
    pub(crate) fn on_ready(&self, callback: impl FnOnce(&CallResult) + Send + 'static) {
        let Some(own) = &self.0 else { return callback(&Ok(())) };
        let mut state = own.state();
        match state.outcome.clone() {
            Some(outcome) => {
                drop(state);
                callback(&outcome);
            }
            None => state.callbacks.push(Box::new(callback)),
        }
    }
}

impl EventState {
    fn state(&self) -> MutexGuard<'_, EventProgress> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Simulated latency of a client's runs.
#[derive(Clone)]
pub(crate) enum SimulatedLatency {
    /// Runs are complete when their calls return.
    AtOnce,
    /// Runs complete later, one after the other, like those of an asynchronous device.
    Later(Sender<PluginEvent>),
}

impl SimulatedLatency {
    /// Creates the latency per run; 0 means none.
    pub(crate) fn new(each: Duration) -> std::io::Result<SimulatedLatency> {
        if each.is_zero() {
            return Ok(SimulatedLatency::AtOnce);
        }
        let (begin, runs): (_, Receiver<PluginEvent>) = channel();
        let device = move || {
            for run in runs {
                sleep(each);
                run.happens(Ok(()));
            }
        };
        Builder::new().name("device".into()).spawn(device)?;
        Ok(SimulatedLatency::Later(begin))
    }

    /// Returns the completion event of a run whose work is done.
    pub(crate) fn end_of_run(&self) -> PluginEvent {
        let SimulatedLatency::Later(begin) = self else { return PluginEvent::past() };
        let event = PluginEvent::coming();
        if begin.send(event.clone()).is_err() {
            event.happens(Ok(()));
        }
        event
    }
}

impl ApiCall for sys::Event_Destroy {
    unsafe fn handle(&mut self) -> CallResult {
        if !self.event.is_null() && !std::ptr::eq(self.event.cast(), &raw const PAST) {
            // SAFETY: created by `Event::object`, and returned once.
            drop(unsafe { Box::from_raw(self.event.cast::<PluginEvent>()) });
        }
        Ok(())
    }
}

impl ApiCall for sys::Event_Create {
    unsafe fn handle(&mut self) -> CallResult {
        self.event = PluginEvent::coming().object();
        Ok(())
    }
}

handle! {
    Event_IsReady: |args, event: PluginEvent| event => { args.is_ready = event.outcome().is_some(); }
    Event_Error: |_args, event: PluginEvent| event => { event.outcome().unwrap_or(Ok(()))?; }
    Event_Await: |_args, event: PluginEvent| event => { event.clone().wait()?; }
    Event_OnReady: |args, event: PluginEvent| event => {
        if let Some(function) = args.callback {
            let told = CCallback { function, argument: args.user_arg };
            // The callback may destroy the event, so a clone is used.
            event.clone().on_ready(move |outcome| told.call(outcome));
        }
    }
    Event_Set: |args, event: PluginEvent| event => {
        event.clone().happens(match args.error_code {
            0 => Ok(()),
            code => {
                // SAFETY: the message has the length stored next to it.
                let message = unsafe { list(args.error_message, args.error_message_size) };
                Err(CallError { code, message: String::from_utf8_lossy(message).into_owned() })
            }
        });
    }
}
