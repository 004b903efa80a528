//! Terminal on standard error: width, a redrawable last line, text wrapping.
//!
//! While a redrawable line is shown, the cursor is in its first column. If the terminal becomes narrower, it either
//! wraps the line (with the cursor still at its start) or truncates it. Either way the next write, which clears the
//! screen behind itself, removes the line.

use std::io::{IsTerminal, Write, stderr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Whether a redrawable last line is shown.
static DRAWN: AtomicBool = AtomicBool::new(false);
/// Columns of a terminal of unknown width.
const USUAL: usize = 80;

/// Output stream of a line: standard output or standard error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutputStream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Callback that receives a line instead of its stream; returns `false` to decline it.
pub type LineSink = fn(OutputStream, &str) -> bool;

/// Receiver of lines while the dashboard is on the screen.
static SINK: Mutex<Option<LineSink>> = Mutex::new(None);

fn sink() -> Option<LineSink> {
    *SINK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the callback that receives output lines; `None` writes them to their streams.
pub fn set_sink(sink: Option<LineSink>) {
    *SINK.lock().unwrap_or_else(PoisonError::into_inner) = sink;
}

/// Whether the line callback accepted the line, so that it must not be written.
pub fn is_taken(stream: OutputStream, text: &str) -> bool {
    sink().is_some_and(|takes| takes(stream, text))
}

/// Maximum line width on standard error; `None` without a terminal or on a dumb one (notebooks and editors, which keep
/// redrawn lines). The last column stays free: some terminals wrap as soon as it is written.
pub fn width() -> Option<usize> {
    let err = stderr();
    let is_dumb = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
    (err.is_terminal() && !is_dumb).then(|| columns_of(&err).unwrap_or(USUAL) - 1)
}

#[cfg(unix)]
fn columns_of(terminal: &impl std::os::fd::AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(terminal).ok()?;
    (size.ws_col > 0).then_some(size.ws_col.into())
}

#[cfg(not(unix))]
fn columns_of<T>(_: &T) -> Option<usize> {
    None
}

/// Draws a line that the next drawn line replaces; does nothing without a terminal.
pub fn draw(line: &str) {
    if sink().is_some() {
        return;
    }
    let Some(width) = width() else { return };
    DRAWN.store(true, Relaxed);
    // Wrapping is off while drawing: the terminal may have become narrower since its width was read.
    put(&format!("\r\x1b[?7l{}\x1b[J\x1b[?7h\r", cut(line, width)));
}

/// Prints one or several permanent lines above the redrawable line.
pub fn print(text: &str) {
    if is_taken(OutputStream::Err, text) {
        return;
    }
    let clear = if DRAWN.swap(false, Relaxed) { "\r\x1b[J" } else { "" };
    put(&format!("{clear}{text}\n"));
}

/// Prints a permanent line, wrapped at spaces to the terminal's width.
pub fn tell(text: &str) {
    match width() {
        Some(width) => print(&wrapped(text, width)),
        None => print(text),
    }
}

/// Erases the redrawable line of the terminal.
pub fn clear() {
    if DRAWN.swap(false, Relaxed) {
        put("\r\x1b[J");
    }
}

/// Writes the text at once, so that no other thread's text comes in between. Errors of standard error are ignored.
fn put(text: &str) {
    let mut err = stderr().lock();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}

/// Returns the display width of a text in columns.
pub fn columns(text: &str) -> usize {
    text.chars().map(columns_of_char).sum()
}

/// Returns 2 for East Asian characters and emoji, 0 for combining marks, otherwise 1.
fn columns_of_char(c: char) -> usize {
    match c as u32 {
        0x300..=0x36f | 0x200b..=0x200f | 0xfe00..=0xfe0f => 0,
        0x1100..=0x115f | 0x2e80..=0xa4cf | 0xac00..=0xd7a3 | 0xf900..=0xfaff | 0xfe30..=0xfe6f => 2,
        0xff00..=0xff60 | 0xffe0..=0xffe6 | 0x1f300..=0x1faff | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

/// Wraps lines at spaces; continuation lines are indented by two more columns.
pub fn wrapped(text: &str, width: usize) -> String {
    let one = |line: &str| {
        let lead = line.chars().take_while(|c| *c == ' ').count();
        let mut lines = vec![" ".repeat(lead)];
        for word in line.split_whitespace() {
            let last = lines.last().map_or(0, |l| l.chars().count());
            let first = lines.last().is_some_and(|l| l.trim().is_empty());
            if !first && last + 1 + word.chars().count() > width {
                lines.push(format!("{}{word}", " ".repeat(lead + 2)));
            } else if let Some(line) = lines.last_mut() {
                line.push_str(if first { "" } else { " " });
                line.push_str(word);
            }
        }
        lines.join("\n")
    };
    text.lines().map(one).collect::<Vec<_>>().join("\n")
}

/// Truncates a line to a display width.
pub fn cut(line: &str, width: usize) -> String {
    let mut left = width;
    let fits = |c: &char| {
        let enough = columns_of_char(*c) <= left;
        left -= columns_of_char(*c).min(left);
        enough
    };
    line.chars().take_while(fits).collect()
}

/// Formats a name followed by a text, and drops the start of the name if both do not fit.
pub fn told_of(name: &str, told: &str, width: usize) -> String {
    let room = width.saturating_sub(columns(told));
    if columns(name) <= room {
        return format!("{name}{told}");
    }
    let mut end = name;
    while columns(end) + 1 > room && !end.is_empty() {
        end = &end[end.chars().next().map_or(0, char::len_utf8)..];
    }
    format!("…{end}{told}")
}

// Names of the previous version.
#[doc(hidden)]
pub use self::{LineSink as Sink, OutputStream as Stream};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_measured_and_cut_by_columns() {
        assert_eq!(["loss", "图片", "e\u{301}"].map(columns), [4, 4, 1]);
        assert_eq!(cut("loss: 1", 5), "loss:");
        assert_eq!(cut("图片", 3), "图", "no half of a character");
        assert_eq!(cut("ab", 0), "");
    }

    #[test]
    fn the_end_of_a_name_is_what_tells() {
        let name = "downloading train-images.gz";
        assert_eq!(told_of(name, ": 9 %", 80), format!("{name}: 9 %"));
        let short = told_of(name, ": 9 %", 20);
        assert_eq!(short, "…rain-images.gz: 9 %");
        assert_eq!(columns(&short), 20);
        assert_eq!(told_of("图片图片", ": 9 %", 10), "…图片: 9 %");
        assert_eq!(told_of("name", ": 100 %", 3), "…: 100 %");
    }
}
