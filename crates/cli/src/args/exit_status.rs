//! Trait of a subcommand ([`RunCommand`]) and its result: exit code ([`CommandResult`]) or error ([`CommandError`]).

use crate::args::common::CommonArgs;
use crate::render::screen::Screen;
use std::path::Path;
use systole_config::ConfigError;
use systole_ir::{Error, ErrorKind, err};

/// A subcommand: its parsed arguments.
pub(crate) trait RunCommand {
    /// Runs the command.
    fn run(self, common: &CommonArgs, screen: &Screen) -> CommandResult;

    /// Whether child processes do the work and inherit the options.
    fn starts_children(&self) -> bool {
        false
    }

    /// Comma-separated devices that the command's own options name, in addition to `--device`.
    fn own_devices(&self) -> Option<&str> {
        None
    }

    /// Whether the command only prints, so that it ends when the reader of its output closes the pipe (`| head`). Other
    /// commands finish their work.
    fn only_prints(&self) -> bool {
        false
    }

    /// Whether the command writes the `--trace` file itself, rather than this process for its own threads.
    fn writes_its_own_trace(&self) -> bool {
        self.starts_children()
    }
}

/// Error of a command, with the exit code.
pub(crate) struct CommandError {
    pub(crate) error: Error,
    /// Exit code of the program.
    pub(crate) code: u8,
}

/// Exit code of `quantize` if the accuracy drops by more than accepted.
pub(crate) const ACCURACY_LOST: u8 = 3;

/// Exit code of a command: 0, [`ACCURACY_LOST`], or 128 plus the number of the signal that ended it.
pub(crate) type CommandResult<T = u8> = Result<T, CommandError>;

impl From<Error> for CommandError {
    fn from(error: Error) -> CommandError {
        CommandError { error, code: 1 }
    }
}

impl From<ConfigError> for CommandError {
    fn from(refused: ConfigError) -> CommandError {
        let error =
            refused.error.hint("correct the value: `systole init` writes a file that explains the keys");
        CommandError { code: if refused.in_setting { 2 } else { 1 }, error }
    }
}

impl CommandError {
    /// Creates the error for an invalid argument.
    pub(crate) fn usage(error: Error) -> CommandError {
        CommandError { error, code: 2 }
    }

    /// Returns the stable code of the error, which determines the exit code: `usage` for an invalid argument (2),
    /// otherwise the name of the [`ErrorKind`] (1). Shown as `error[KIND]`, and as `kind` with `--json`.
    pub(crate) fn kind(&self) -> String {
        match self.code {
            2 => "usage".into(),
            _ => kind_name(self.error.kind()),
        }
    }
}

/// Returns the name of an error kind in the program's output.
pub(crate) fn kind_name(kind: ErrorKind) -> String {
    format!("{kind:?}").to_lowercase()
}

/// Whether an output file has one of these extensions.
pub(crate) fn has_extension(out: &Path, endings: &[&str]) -> bool {
    let name = out.display().to_string();
    endings.iter().any(|ending| name.ends_with(ending))
}

/// Rejects an output file whose name has none of these extensions.
pub(crate) fn check_extension(out: &Path, endings: &[&str]) -> CommandResult<()> {
    if has_extension(out, endings) {
        return Ok(());
    }
    let what = format!("{} has the wrong extension for this format", out.display());
    let hint = format!("use the extension {}", endings.join(" or "));
    Err(CommandError::usage(Error::new(ErrorKind::Config, what).at("--out").hint_command(hint)))
}

/// Rejects an output file that exists, unless `force` is set.
pub(crate) fn check_out(out: &Path, force: bool) -> CommandResult<()> {
    if out.exists() && !force {
        let e = err!(Io, "{} already exists", out.display());
        return Err(e.hint_command("choose another file with --out, or pass --force to replace it").into());
    }
    Ok(())
}
