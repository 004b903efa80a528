//! The whole command line, for commands that describe it: they are part of it, and are told.

use clap::Command;
use std::sync::OnceLock;

static ROOT: OnceLock<fn() -> Command> = OnceLock::new();

/// Says what makes it.
pub(crate) fn set(root: fn() -> Command) {
    // Once for a process; another time would be the same.
    let _ = ROOT.set(root);
}

/// Every command with its options.
pub(crate) fn command() -> Command {
    ROOT.get().map_or_else(|| Command::new("systole"), |root| root())
}
