//! What a command is, and how it ends: [`RunCommand`], [`CommandResult`], [`CommandError`].

use crate::args::common::CommonArgs;
use crate::render::screen::Screen;
use std::path::Path;
use systole_config::ConfigError;
use systole_ir::{Error, ErrorKind};

/// A command: its arguments, which clap has read.
pub(crate) trait RunCommand {
    /// Does what the command is for.
    fn run(self, common: &CommonArgs, screen: &Screen) -> CommandResult;

    /// Whether the work is done by children of this process, which are given its options.
    fn starts_children(&self) -> bool {
        false
    }

    /// Devices that its own options name, beside `--device`, with commas between them.
    fn own_devices(&self) -> Option<&str> {
        None
    }

    /// Whether `--trace` is written by the command, and not by this process for its own threads.
    fn writes_its_own_trace(&self) -> bool {
        self.starts_children()
    }
}

/// Why a command did not succeed.
pub(crate) struct CommandError {
    pub(crate) error: Error,
    /// What the program exits with.
    pub(crate) code: u8,
}

/// What a command that was not refused exits with: 0, or 128 and the number of the signal that ended it.
pub(crate) type CommandResult = Result<u8, CommandError>;

impl From<Error> for CommandError {
    fn from(error: Error) -> CommandError {
        CommandError { error, code: 1 }
    }
}

impl From<ConfigError> for CommandError {
    fn from(refused: ConfigError) -> CommandError {
        CommandError { code: if refused.in_setting { 2 } else { 1 }, error: refused.error }
    }
}

impl CommandError {
    /// An argument makes no sense.
    pub(crate) fn usage(error: Error) -> CommandError {
        CommandError { error, code: 2 }
    }
}

/// An earlier file is replaced only when that was asked for.
pub(crate) fn check_out(out: &Path, force: bool) -> Result<(), CommandError> {
    if out.exists() && !force {
        let e = Error::new(ErrorKind::Io, format!("{} exists already", out.display()));
        return Err(e.hint("choose another file with --out, or --force to replace it").into());
    }
    Ok(())
}
