//! Writing to the two streams: what is for people goes to standard output, or to standard error where `--json` keeps
//! that for programs.

use std::io::{ErrorKind, IsTerminal, Write, stderr, stdout};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
pub(crate) use systole_data::shell_quoted as quoted;
use systole_nn::Logs;
use systole_progress::terminal;

/// Where output goes.
pub(crate) struct Screen {
    /// Whether standard output is for JSON only.
    pub(crate) json: bool,
    /// Whether to leave progress out.
    pub(crate) quiet: bool,
    /// Whether to say more than usual.
    pub(crate) verbose: bool,
    /// Whether to say nothing of results either: another command tells them.
    is_silent: bool,
}

impl Screen {
    pub(crate) fn new(json: bool, quiet: bool, verbose: bool) -> Screen {
        Screen { json, quiet, verbose, is_silent: false }
    }

    /// One that says nothing but what went wrong.
    pub(crate) fn silent(&self) -> Screen {
        Screen { json: self.json, quiet: true, verbose: false, is_silent: true }
    }

    /// A line (or several) for people.
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

    /// A line that `--quiet` leaves out.
    pub(crate) fn detail(&self, text: impl AsRef<str>) {
        if !self.quiet {
            self.line(text);
        }
    }

    /// A part of a line, shown at once.
    pub(crate) fn piece(&self, text: &str) {
        if !self.is_silent && !self.json {
            terminal::clear();
            let text = if stdout().is_terminal() { harmless(text) } else { text.into() };
            written(write!(stdout().lock(), "{text}").and_then(|()| stdout().flush()));
        }
    }

    /// One line of JSON for programs.
    pub(crate) fn object(&self, value: &serde_json::Value) {
        if !self.is_silent {
            out(&value.to_string());
        }
    }

    /// An error, the first word in red on a terminal.
    pub(crate) fn error(&self, text: &str) {
        let colours = stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        let head = if colours { "\x1b[1;31merror\x1b[0m" } else { "error" };
        note(&format!("{head}: {text}"));
    }
}

/// To standard output. A reader that has gone away (`systole ops | head`) ends the program quietly.
fn out(text: &str) {
    if terminal::is_taken(terminal::OutputStream::Out, text) {
        return;
    }
    terminal::clear();
    written(writeln!(stdout().lock(), "{text}").and_then(|()| stdout().flush()));
}

/// Without characters that would tell a terminal to do something.
fn harmless(text: &str) -> String {
    let is_order = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    text.chars().map(|c| if is_order(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

fn written(result: std::io::Result<()>) {
    if let Err(e) = result {
        if e.kind() == ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        note(&format!("error: cannot write to standard output: {e}"));
        std::process::exit(1);
    }
}

/// To standard error; where even that fails there is nobody to tell.
pub(crate) fn note(text: &str) {
    terminal::print(text);
}

/// The highest level of events that are shown, and not only kept.
static SHOWN: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Shows events up to this level.
pub(crate) fn show_events(level: usize) {
    SHOWN.store(level, Ordering::Relaxed);
}

/// What `--profile` has told so far.
static PROFILES: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// What a program's profile begins with.
const PROFILE: &str = "kernels of ";

/// What `--profile` has told so far, of each program.
pub(crate) fn profiles() -> Vec<String> {
    PROFILES.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Shows what `SYSTOLE_LOG` asks for.
pub(crate) fn log_event(level: usize, message: &str) {
    if message.starts_with(PROFILE) {
        PROFILES.lock().unwrap_or_else(PoisonError::into_inner).push(message.into());
    }
    if level <= SHOWN.load(Ordering::Relaxed) {
        note(&format!("[{level}] {message}"));
    }
}

/// `loss 0.3921, sparse_categorical_accuracy 0.8690` of the values that `pick` renames.
pub(crate) fn values(logs: &Logs, pick: impl Fn(&str) -> Option<String>) -> String {
    let shown = logs.iter().filter_map(|(name, v)| Some(format!("{} {v:.4}", pick(name)?)));
    shown.collect::<Vec<_>>().join(", ")
}

use std::fmt::Display;
pub(crate) use systole_nn::{counted, grouped};
pub(crate) use systole_progress::terminal::wrapped;

/// A number of things without commas, as programs and earlier versions write it: `1 record`, `1200 records`.
pub(crate) fn number_of(n: impl Display, thing: &str) -> String {
    let n = n.to_string();
    let end = if n == "1" { "" } else { "s" };
    format!("{n} {thing}{end}")
}

/// This program as it was called, for commands to paste: by `cargo run` or by its path.
pub(crate) fn program() -> String {
    let called = PathBuf::from(std::env::args_os().next().unwrap_or_else(|| "systole".into()));
    let by_cargo = std::env::var_os("CARGO_MANIFEST_DIR").and_then(|_| run_by_cargo(&called, &features()));
    by_cargo.unwrap_or_else(|| quoted(called))
}

/// Features that the program was built with and cargo must be told again.
fn features() -> Vec<&'static str> {
    let all = [
        ("object-stores", cfg!(feature = "object-stores")),
        ("parquet", cfg!(feature = "parquet")),
        ("parquet-zstd", cfg!(feature = "parquet-zstd")),
        ("gif", cfg!(feature = "gif")),
        ("webp", cfg!(feature = "webp")),
    ];
    all.into_iter().filter(|(_, on)| *on).map(|(name, _)| name).collect()
}

/// The `cargo run` that starts a program by this path, which it gives from the folder where it was called.
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

/// Rows as columns, the last one ragged.
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
