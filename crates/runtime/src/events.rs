//! Log events: libraries emit messages, the program installs one sink that shows them. Levels are the values of the
//! environment variable `SYSTOLE_LOG`.

use std::sync::OnceLock;

/// Callback that receives log events: `(level, message)`.
pub type EventSink = fn(level: usize, message: &str);

static SINK: OnceLock<(usize, EventSink)> = OnceLock::new();

/// Installs the callback for log messages up to `level`. Only the first call has an effect.
pub fn install(level: usize, sink: EventSink) {
    let _ = SINK.set((level, sink));
}

/// Whether log messages of `level` are wanted; check before building expensive ones.
pub fn wanted(level: usize) -> bool {
    SINK.get().is_some_and(|(limit, _)| level <= *limit)
}

/// Logs a message if its level is enabled.
pub fn emit(level: usize, message: impl FnOnce() -> String) {
    if let Some((limit, sink)) = SINK.get()
        && level <= *limit
    {
        sink(level, &message());
    }
}

// Names of the previous version.
systole_ir::renamed! { Sink => EventSink }
