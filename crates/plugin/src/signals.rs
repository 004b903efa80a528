//! Signals and forks of the process: Ctrl-C interrupts long runs, and a forked child, which lacks the engine's threads,
//! must not run programs.

use crate::call::{CallError, CallResult};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use systole_cpu::note_interrupt;
use systole_ir::ensure;
use systole_pjrt::sys::code;

const SIGINT: i32 = 2;

unsafe extern "C" {
    fn signal(number: i32, handler: usize) -> usize;
    fn siginterrupt(number: i32, on: i32) -> i32;
    fn pthread_atfork(prepare: usize, parent: usize, child: Option<extern "C" fn()>) -> i32;
}

/// The handler that was installed before, which is called too.
static PREVIOUS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_interrupt(number: i32) {
    note_interrupt();
    let previous = PREVIOUS.load(Ordering::Relaxed);
    // 0 and 1 are the system's default and no handler.
    if previous > 1 {
        // SAFETY: the address of a handler, which `signal` returned.
        let previous = unsafe { std::mem::transmute::<usize, extern "C" fn(i32)>(previous) };
        previous(number);
    }
}

/// Makes Ctrl-C end runs that take 0.3 seconds longer, before Python's own handler acts. Python's package calls this if
/// the handler is Python's usual one; a handler that is installed later replaces it.
#[unsafe(no_mangle)]
pub extern "C" fn systole_watch_interrupts() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: installs a handler that only counts and calls the previous one. System calls end with an error after the
        // signal, as Python expects.
        let previous = unsafe { signal(SIGINT, on_interrupt as *const () as usize) };
        PREVIOUS.store(previous, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { siginterrupt(SIGINT, 1) };
    });
}

/// Whether this process is a forked child of one with a client.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    IS_CHILD.store(true, Ordering::Relaxed);
}

/// Notices forks from now on.
pub(crate) fn watch_forks() {
    static ONCE: Once = Once::new();
    // SAFETY: the function only stores a flag.
    ONCE.call_once(|| {
        let _ = unsafe { pthread_atfork(0, 0, Some(in_child)) };
    });
}

/// Fails in a forked child.
pub(crate) fn check_fork() -> CallResult {
    let message = "Systole cannot run programs in a forked child process, which lacks its threads; start processes \
                   with multiprocessing's `spawn` method";
    ensure!(
        !IS_CHILD.load(Ordering::Relaxed),
        CallError { code: code::UNAVAILABLE, message: message.into() }
    );
    Ok(())
}
