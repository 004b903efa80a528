//! Terminal dashboard during training: curves, progress bars, wait times, memory and log.
//!
//! It uses the terminal's alternate screen and restores the terminal when it ends: with the training, an error, a panic
//! or a stop request, after which plain lines are printed again. There is no dashboard if standard output or standard
//! error is not a terminal, or if `TERM` is `dumb`.

mod canvas;
mod draw;
mod screen;
mod state;

use crate::progress;
use crate::recorder::recorded;
use crate::terminal::{self, OutputStream};
use screen::AlternateScreen;
use state::DashboardState;
use std::io::{IsTerminal, Result, Write, stderr, stdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread::JoinHandle;
use systole_nn::progress::ProgressEvent;

/// State of the dashboard; `None` while there is none.
static SHOWN: Mutex<Option<DashboardShared>> = Mutex::new(None);

struct DashboardShared {
    state: DashboardState,
    /// Captured lines, written to their streams when the dashboard ends.
    kept: Vec<(OutputStream, String)>,
}

fn shown() -> MutexGuard<'static, Option<DashboardShared>> {
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running terminal dashboard; dropping it restores the terminal.
///
/// ```no_run
/// use std::sync::{Arc, atomic::AtomicBool};
/// use systole::prelude::*;
/// # let (mut model, data) = (Sequential::new([dense(1)]), Dataset::range(8));
/// let stop = Arc::new(AtomicBool::new(false));
/// let dashboard = systole_progress::tui::Dashboard::start(stop.clone());
/// let history = model.fit(&data, Fit { epochs: 3, stop: Some(stop), ..default() });
/// drop(dashboard); // the terminal is as it was
/// # Ok::<(), Error>(())
/// ```
pub struct Dashboard {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Dashboard {
    /// Shows the training of this process from now on. `q` and Ctrl-C set `stop`, to be passed as
    /// [`Fit::stop`](systole_nn::Fit::stop); the dashboard ends with it. Returns `None` without a suitable terminal.
    pub fn start(stop: Arc<AtomicBool>) -> Option<Dashboard> {
        let asked = stop.clone();
        Dashboard::start_with(stop, move || asked.store(true, Ordering::SeqCst))
    }

    /// Like [`Dashboard::start`], but `q` and Ctrl-C call `quit`.
    pub fn start_with(stop: Arc<AtomicBool>, quit: impl Fn() + Send + 'static) -> Option<Dashboard> {
        if !is_possible() || shown().is_some() {
            return None;
        }
        let terminal = take_terminal().inspect_err(|_| screen::leave()).ok()?;
        *shown() = Some(DashboardShared { state: DashboardState::new(), kept: Vec::new() });
        terminal::set_sink(Some(takes_line));
        progress::set_watcher(Some(take));
        let ends = Arc::new(AtomicBool::new(false));
        let ended = ends.clone();
        let show = move || watch(terminal, &stop, &ended, quit);
        let thread = std::thread::Builder::new().name("systole-tui".into()).spawn(show).ok();
        if thread.is_none() {
            end();
            return None;
        }
        Some(Dashboard { ends, thread })
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
        end();
    }
}

/// Whether both streams are a terminal that supports drawing.
fn is_possible() -> bool {
    let term = std::env::var("TERM").unwrap_or_default();
    !(term.is_empty() || term == "dumb") && stdout().is_terminal() && stderr().is_terminal()
}

/// Switches to the alternate screen and raw key input.
fn take_terminal() -> Result<AlternateScreen> {
    static HOOK: Once = Once::new();
    // Restore the terminal before a panic message is printed.
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // The panicking thread may hold the lock.
            match SHOWN.try_lock().map(|mut shown| shown.take()) {
                Ok(None) => {}
                Ok(Some(was)) => hand_back_from(was),
                Err(_) => screen::leave(),
            }
            before(panic);
        }));
    });
    AlternateScreen::enter()
}

/// Restores the screen and prints the captured lines.
fn hand_back_from(was: DashboardShared) {
    terminal::set_sink(None);
    progress::set_watcher(None);
    screen::leave();
    for (stream, text) in was.kept {
        let _ = match stream {
            OutputStream::Out => writeln!(stdout().lock(), "{text}"),
            OutputStream::Err => writeln!(stderr().lock(), "{text}"),
        };
    }
    let _ = stdout().flush();
}

/// Draws until a stop is requested or the training ends.
fn watch(mut terminal: AlternateScreen, stop: &AtomicBool, ends: &AtomicBool, quit: impl Fn()) {
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    while !ends.load(Ordering::SeqCst) && !stop.load(Ordering::SeqCst) {
        if let Some(shown) = shown().as_mut() {
            shown.state.by_step = recorded().by_step;
            shown.state.memory = memory();
            // A terminal that is gone must not end the training.
            let _ = terminal.draw(|canvas| draw::draw(canvas, &shown.state, is_plain));
        }
        if terminal.reads_quit() {
            quit();
        }
    }
    end();
}

/// Restores the terminal and prints the captured lines, once.
fn end() {
    let was = shown().take();
    was.into_iter().for_each(hand_back_from);
}

/// Captures a line; returns `false` if there is no dashboard.
fn takes_line(stream: OutputStream, text: &str) -> bool {
    let mut shown = shown();
    let Some(shown) = shown.as_mut() else { return false };
    shown.state.line(text);
    shown.kept.push((stream, text.into()));
    true
}

/// Handles a progress event.
fn take(event: &ProgressEvent<'_>) {
    if let Some(shown) = shown().as_mut() {
        // Notes are also printed, so they arrive as lines.
        if !matches!(event, ProgressEvent::Note(_)) {
            shown.state.take(event);
        }
    }
}

/// Resident memory of the process in MiB, if the system reports it.
fn memory() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok().map(|kib| kib / 1024.0)
}
