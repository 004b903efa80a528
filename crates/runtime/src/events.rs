//! What happened, for whoever wants to show it: libraries emit, the program installs one sink.
//! Levels are those of the knob `SYSTOLE_LOG`.

use std::sync::OnceLock;

/// Receives `(level, message)`.
pub type EventSink = fn(level: usize, message: &str);

static SINK: OnceLock<(usize, EventSink)> = OnceLock::new();

/// Installs the sink for messages up to `level`; the first call wins.
pub fn install(level: usize, sink: EventSink) {
    let _ = SINK.set((level, sink));
}

/// Whether messages of `level` are wanted; check before making expensive ones.
pub fn wanted(level: usize) -> bool {
    SINK.get().is_some_and(|(limit, _)| level <= *limit)
}

/// Sends a message.
pub fn emit(level: usize, message: impl FnOnce() -> String) {
    if let Some((limit, sink)) = SINK.get()
        && level <= *limit
    {
        sink(level, &message());
    }
}
