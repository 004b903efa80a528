//! Training progress on standard error: a live progress line on a terminal, one plain line per epoch elsewhere.

pub mod debug_build;
pub mod progress;
pub mod recorder;
pub mod terminal;
#[cfg(all(feature = "tui", unix))]
pub mod tui;
