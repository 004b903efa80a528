//! What a command is, and how it ends: [`Run`], [`Outcome`], [`Failure`].

use crate::args::common::Common;
use crate::render::screen::Screen;
use std::path::Path;
use systole_config::Refused;
use systole_ir::{Error, ErrorKind};

/// A command: its arguments, which clap has read.
pub(crate) trait Run {
    /// Does what the command is for.
    fn run(self, common: &Common, screen: &Screen) -> Outcome;

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
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// What the program exits with.
    pub(crate) code: u8,
}

/// What a command that was not refused exits with: 0, or 128 and the number of the signal that ended it.
pub(crate) type Outcome = Result<u8, Failure>;

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { error, code: 1 }
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Failure {
        Failure { code: if refused.in_setting { 2 } else { 1 }, error: refused.error }
    }
}

impl Failure {
    /// An argument makes no sense.
    pub(crate) fn usage(error: Error) -> Failure {
        Failure { error, code: 2 }
    }
}

/// An earlier file is replaced only when that was asked for.
pub(crate) fn check_out(out: &Path, force: bool) -> Result<(), Failure> {
    if out.exists() && !force {
        let e = Error::new(ErrorKind::Io, format!("{} exists already", out.display()));
        return Err(e.hint("choose another file with --out, or --force to replace it").into());
    }
    Ok(())
}
