//! Training progress on standard error: a line that redraws itself on a terminal, one plain line for each epoch elsewhere.

pub mod debug_build;
pub mod progress;
pub mod recorder;
pub mod terminal;
#[cfg(feature = "tui")]
pub mod tui;
