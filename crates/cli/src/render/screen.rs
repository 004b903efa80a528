//! Terminal output: results for people go to standard output, or to standard error if `--json` reserves standard
//! output.

use super::version::added_features;
use clap::builder::StyledStr;
use std::io::{ErrorKind, IsTerminal, Write, stderr, stdout};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
pub(crate) use systole_data::shell_quoted as quoted;
use systole_ir::knobs::{self, EnvVar};
use systole_nn::Logs;
use systole_progress::terminal;

/// Output settings of a command.
pub(crate) struct Screen {
    /// Whether standard output carries only JSON.
    pub(crate) json: bool,
    /// Whether to hide progress.
    pub(crate) quiet: bool,
    /// Whether to print additional details.
    pub(crate) verbose: bool,
    /// Whether to hide results as well, because the calling command prints them.
    is_silent: bool,
}

impl Screen {
    pub(crate) fn new(json: bool, quiet: bool, verbose: bool) -> Screen {
        Screen { json, quiet, verbose, is_silent: false }
    }

    /// Returns a screen that prints only errors.
    pub(crate) fn silent(&self) -> Screen {
        Screen { json: self.json, quiet: true, verbose: false, is_silent: true }
    }

    /// Prints one or several lines of text.
    pub(crate) fn line(&self, text: impl AsRef<str>) {
        if self.is_silent {
            return;
        }
        let text = text.as_ref();
        if self.json {
            note(text);
        } else {
            out(text);
        }
    }

    /// Prints a line that `--quiet` hides.
    pub(crate) fn detail(&self, text: impl AsRef<str>) {
        if !self.quiet {
            self.line(text);
        }
    }

    /// Prints part of a line and flushes it.
    pub(crate) fn piece(&self, text: &str) {
        if !self.is_silent && !self.json && !IS_CLOSED.load(Ordering::Relaxed) {
            terminal::clear();
            let text = if stdout().is_terminal() { harmless(text) } else { text.into() };
            written(write!(stdout().lock(), "{text}").and_then(|()| stdout().flush()));
        }
    }

    /// Prints one line of JSON.
    pub(crate) fn object(&self, value: &serde_json::Value) {
        if !self.is_silent {
            out(&value.to_string());
        }
    }

    /// Prints an error after its kind: `error[KIND]: text`. The head is red on a terminal.
    pub(crate) fn error(&self, kind: &str, text: &str) {
        let (on, off) = if has_colors() { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
        note(&format!("{on}error[{kind}]{off}: {text}"));
    }
}

/// Prints an error in the command line, formatted by clap, with its kind.
pub(crate) fn usage_error(message: &StyledStr, kind: &str) {
    let text = if has_colors() { message.ansi().to_string() } else { message.to_string() };
    note(text.replacen("error:", &format!("error[{kind}]:"), 1).trim_end());
}

fn has_colors() -> bool {
    stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// Whether the reader of standard output has closed the pipe.
static IS_CLOSED: AtomicBool = AtomicBool::new(false);
/// Whether a closed pipe ends the program, because the command only prints.
static ENDS_WITH_READER: AtomicBool = AtomicBool::new(false);

/// Sets whether a closed pipe ends the program. Otherwise the command continues without output, so that its files are
/// written.
pub(crate) fn end_with_reader(ends: bool) {
    ENDS_WITH_READER.store(ends, Ordering::Relaxed);
}

/// Prints to standard output.
fn out(text: &str) {
    if IS_CLOSED.load(Ordering::Relaxed) || terminal::is_taken(terminal::OutputStream::Out, text) {
        return;
    }
    terminal::clear();
    written(writeln!(stdout().lock(), "{text}").and_then(|()| stdout().flush()));
}

/// Replaces control characters that would act on the terminal.
fn harmless(text: &str) -> String {
    let is_order = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    text.chars().map(|c| if is_order(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Whether the command continues when nobody reads its output.
static IGNORES_CLOSED_OUTPUT: AtomicBool = AtomicBool::new(false);

/// Continues when standard output is closed, as a process does whose launcher or terminal is gone, until it has saved.
#[cfg(feature = "launch")]
pub(crate) fn ignore_closed_output() {
    IGNORES_CLOSED_OUTPUT.store(true, Ordering::Relaxed);
}

fn written(result: std::io::Result<()>) {
    if let Err(e) = result
        && !IGNORES_CLOSED_OUTPUT.load(Ordering::Relaxed)
    {
        if e.kind() == ErrorKind::BrokenPipe {
            if ENDS_WITH_READER.load(Ordering::Relaxed) {
                std::process::exit(0);
            }
            return IS_CLOSED.store(true, Ordering::Relaxed);
        }
        note(&format!(
            "error[io]: cannot write to standard output\n  why: {e}\n  try: check the disk or the pipe that the output goes to"
        ));
        std::process::exit(1);
    }
}

/// Prints to standard error; a failure to do so is ignored.
pub(crate) fn note(text: &str) {
    terminal::print(text);
}

/// Highest log level that is printed; events of higher levels are only recorded.
static SHOWN: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Prints log events up to this level.
pub(crate) fn show_events(level: usize) {
    SHOWN.store(level, Ordering::Relaxed);
}

/// Profiles recorded so far.
static PROFILES: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Prefix of a program's profile event.
const PROFILE: &str = "kernels of ";

/// Returns the profiles recorded so far, one per program.
pub(crate) fn profiles() -> Vec<String> {
    PROFILES.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Value of an environment variable for display; a secret is not shown.
pub(crate) fn shown_value(variable: &EnvVar) -> String {
    match variable.get() {
        value if variable.name == knobs::SECRET.name && !value.is_empty() => "set".into(),
        value => value,
    }
}

/// Prints a log event if its level is enabled, and records profiles.
pub(crate) fn log_event(level: usize, message: &str) {
    if message.starts_with(PROFILE) {
        PROFILES.lock().unwrap_or_else(PoisonError::into_inner).push(message.into());
    }
    if level <= SHOWN.load(Ordering::Relaxed) {
        note(&if level == 0 { format!("note: {message}") } else { format!("[{level}] {message}") });
    }
}

/// Formats logs as `loss 0.3921, sparse_categorical_accuracy 0.8690`, with names mapped by `pick`.
pub(crate) fn values(logs: &Logs, pick: impl Fn(&str) -> Option<String>) -> String {
    let shown = logs.iter().filter_map(|(name, v)| Some(format!("{} {v:.4}", pick(name)?)));
    shown.collect::<Vec<_>>().join(", ")
}

use std::fmt::Display;
pub(crate) use systole_nn::{counted, grouped};
pub(crate) use systole_progress::terminal::wrapped;

/// Formats a count without thousands separators: `1 record`, `1200 records`.
pub(crate) fn number_of(n: impl Display, thing: &str) -> String {
    let n = n.to_string();
    let end = if n == "1" { "" } else { "s" };
    format!("{n} {thing}{end}")
}

/// Returns the command that started this program, to paste into a shell: `cargo run …` or a path.
pub(crate) fn program() -> String {
    let called = PathBuf::from(std::env::args_os().next().unwrap_or_else(|| "systole".into()));
    let by_cargo =
        std::env::var_os("CARGO_MANIFEST_DIR").and_then(|_| run_by_cargo(&called, &added_features()));
    by_cargo.unwrap_or_else(|| quoted(called))
}

/// Returns the `cargo run` command for a program path below `target/`, or `None` for other paths.
fn run_by_cargo(called: &Path, features: &[&str]) -> Option<String> {
    if called.is_absolute() || called.starts_with(".") {
        return None;
    }
    let profile = match called.parent()?.file_name()?.to_str()? {
        "debug" => String::new(),
        "release" => " --release".into(),
        other => format!(" --profile {other}"),
    };
    let features = match features {
        [] => String::new(),
        some => format!(" --features {}", some.join(",")),
    };
    Some(format!("cargo run{profile}{features} --"))
}

/// Formats rows as aligned columns; the last column is not padded.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |k: usize| rows.iter().filter_map(|r| r.get(k)).map(|c| c.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(c, &w)| format!("{c:<w$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_survive_a_shell() {
        assert_eq!(quoted("runs/a-b_1.png"), "runs/a-b_1.png");
        assert_eq!(quoted("my runs"), "'my runs'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("$HOME;x"), "'$HOME;x'");
    }

    #[test]
    fn what_a_model_makes_gives_a_terminal_no_orders() {
        assert_eq!(harmless("a\tb\n\u{1b}[2Jc\r\u{9b}1mé"), "a\tb\n\u{fffd}[2Jc\u{fffd}\u{fffd}1mé");
    }

    #[test]
    fn commands_to_paste_are_written_as_this_one_was() {
        let told = |path: &str, features: &[&str]| run_by_cargo(Path::new(path), features);
        assert_eq!(told("target/release/systole", &[]).as_deref(), Some("cargo run --release --"));
        assert_eq!(told("target/debug/systole", &[]).as_deref(), Some("cargo run --"));
        assert_eq!(told("target/tiny/systole", &[]).as_deref(), Some("cargo run --profile tiny --"));
        assert_eq!(
            told("target/release/systole", &["parquet"]).as_deref(),
            Some("cargo run --release --features parquet --")
        );
        for path in ["/usr/bin/systole", "./target/release/systole", "systole"] {
            assert_eq!(told(path, &[]), None, "{path}");
        }
    }

    #[test]
    fn one_of_a_thing_is_not_many() {
        assert_eq!([0, 1, 1000].map(|n| counted(n, "step")), ["0 steps", "1 step", "1,000 steps"]);
        assert_eq!([0, 1, 1000].map(|n| number_of(n, "step")), ["0 steps", "1 step", "1000 steps"]);
    }

    #[test]
    fn long_lines_break_at_spaces() {
        assert_eq!(wrapped("  one two three", 9), "  one two\n    three");
        assert_eq!(wrapped("\na b", 9), "\na b");
        assert_eq!(wrapped("unbreakable", 3), "unbreakable");
    }

    #[test]
    fn numbers_and_columns_read_well() {
        assert_eq!([7, 60_000, 1_234_567].map(grouped), ["7", "60,000", "1,234,567"]);
        let rows = [["a", "long", "x"], ["bbb", "c", ""]].map(|r| r.map(String::from).to_vec());
        assert_eq!(table(&rows), "a    long  x\nbbb  c");
    }
}
