//! Stores the clap definition of the whole command line, for the commands that print it (`man`, `completions`).

use clap::Command;
use std::sync::OnceLock;

static ROOT: OnceLock<fn() -> Command> = OnceLock::new();

/// Sets the function that builds the command line.
pub(crate) fn set(root: fn() -> Command) {
    // The first call of a process wins; later calls would set the same function.
    let _ = ROOT.set(root);
}

/// Returns the definition of every command with its options.
pub(crate) fn command() -> Command {
    ROOT.get().map_or_else(|| Command::new("systole"), |root| root())
}
