//! A timeline of what every thread did, as a file that <https://ui.perfetto.dev> and `chrome://tracing` show.
//!
//! Off, asking costs one relaxed load. On, spans go through a small buffer into the file, which is whole JSON after
//! every write, so also when the program is killed. Format: Chrome's "Trace Event Format", an array of complete
//! events (`"ph": "X"`) with times in microseconds.

use std::cell::Cell;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use systole_ir::{Error, ErrorKind, Result};

static ON: AtomicBool = AtomicBool::new(false);
static TIMELINE: Mutex<Option<Timeline>> = Mutex::new(None);
static TRACKS: AtomicU32 = AtomicU32::new(1);

thread_local! {
    /// Number of this thread's track; 0 before its first span.
    static TRACK: Cell<u32> = const { Cell::new(0) };
}

/// Written at once when the buffer holds so many bytes …
const BUFFER: usize = 64 << 10;
/// … or was written so long ago.
const INTERVAL: Duration = Duration::from_millis(500);
/// Then the file is some 100 MB and viewers become slow.
const MOST_SPANS: usize = 500_000;
const END: &str = "\n]\n";

struct Timeline {
    path: PathBuf,
    file: File,
    began: Instant,
    buffer: String,
    written: Instant,
    /// Where the closing bracket stands in the file.
    end: u64,
    left: usize,
    failed: Option<Error>,
}

/// Begins a timeline in the file `path`, which is replaced.
///
/// # Errors
/// When the file cannot be written, or a timeline has begun already.
pub fn start(path: impl AsRef<Path>) -> Result<()> {
    let mut timeline = lock();
    if timeline.is_some() {
        return Err(Error::new(ErrorKind::Config, "a trace is being written already"));
    }
    let path = path.as_ref().to_path_buf();
    let file = File::create(&path).map_err(|e| Error::io("cannot write the trace", &path, e))?;
    let now = Instant::now();
    let buffer =
        "[\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":1,\"tid\":0,\"args\":{\"name\":\"systole\"}}"
            .into();
    let mut new =
        Timeline { path, file, began: now, buffer, written: now, end: 0, left: MOST_SPANS, failed: None };
    new.flush();
    if let Some(error) = new.failed.take() {
        return Err(error);
    }
    *timeline = Some(new);
    ON.store(true, Relaxed);
    Ok(())
}

/// Whether spans are wanted.
#[inline]
pub fn is_on() -> bool {
    ON.load(Relaxed)
}

/// The time now, where spans are wanted: what [`span`] takes later.
#[inline]
pub fn begin() -> Option<Instant> {
    is_on().then(Instant::now)
}

/// Something that this thread did from `start` until now. `args` is a JSON object.
pub fn span(category: &str, name: &str, start: Option<Instant>, args: impl FnOnce() -> String) {
    let (Some(start), true) = (start, is_on()) else { return };
    let now = Instant::now();
    if let Some(timeline) = lock().as_mut() {
        timeline.span(category, name, start, now, &args());
    }
}

/// Ends the timeline and writes what is left of it.
///
/// # Errors
/// When some of it could not be written.
pub fn finish() -> Result<()> {
    ON.store(false, Relaxed);
    let Some(mut timeline) = lock().take() else { return Ok(()) };
    timeline.flush();
    timeline.failed.map_or(Ok(()), Err)
}

/// A text as a JSON string, quotes included.
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn lock() -> MutexGuard<'static, Option<Timeline>> {
    TIMELINE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Timeline {
    fn span(&mut self, category: &str, name: &str, start: Instant, now: Instant, args: &str) {
        if self.left == 0 {
            return;
        }
        let track = self.track();
        let micros = |d: Duration| d.as_nanos() as f64 / 1e3;
        let (at, took) = (start.saturating_duration_since(self.began), now.saturating_duration_since(start));
        let _ = write!(
            self.buffer,
            ",\n{{\"ph\":\"X\",\"cat\":\"{category}\",\"name\":{},\"pid\":1,\"tid\":{track},\"ts\":{:.3},\"dur\":{:.3},\"args\":{args}}}",
            quoted(name),
            micros(at),
            micros(took),
        );
        self.left -= 1;
        if self.left == 0 {
            let text = format!("the trace is full: its first {MOST_SPANS} spans are here");
            let _ = write!(
                self.buffer,
                ",\n{{\"ph\":\"i\",\"s\":\"g\",\"name\":\"{text}\",\"pid\":1,\"tid\":{track},\"ts\":{:.3}}}",
                micros(at)
            );
        }
        if self.buffer.len() > BUFFER || now - self.written > INTERVAL || self.left == 0 {
            self.flush();
        }
    }

    /// The number of this thread's track, which gets the thread's name at its first span.
    fn track(&mut self) -> u32 {
        if TRACK.get() == 0 {
            let track = TRACKS.fetch_add(1, Relaxed);
            TRACK.set(track);
            let thread = std::thread::current();
            let name = quoted(thread.name().unwrap_or("thread"));
            let _ = write!(
                self.buffer,
                ",\n{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":{track},\"args\":{{\"name\":{name}}}}}"
            );
        }
        TRACK.get()
    }

    /// Writes the buffer over the closing bracket, and a new bracket, in one call.
    fn flush(&mut self) {
        let length = self.buffer.len() as u64;
        self.buffer.push_str(END);
        let at = SeekFrom::Start(self.end);
        let result = self.file.seek(at).and_then(|_| self.file.write_all(self.buffer.as_bytes()));
        match result {
            Ok(()) => self.end += length,
            Err(e) => {
                // Training goes on; the program tells of it at the end.
                self.failed.get_or_insert(Error::io("cannot write the trace", &self.path, e));
                self.left = 0;
            }
        }
        self.buffer.clear();
        self.written = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_whole_before_and_after_every_span() {
        let path = std::env::temp_dir().join(format!("systole-trace-{}.json", std::process::id()));
        assert!(start("/nowhere/trace.json").is_err() && !is_on());
        start(&path).unwrap();
        assert!(start(&path).unwrap_err().to_string().contains("already"));
        let whole = |what: &str| {
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text.starts_with("[\n{") && text.ends_with("}\n]\n"), "{what}: {text}");
            text
        };
        whole("new");
        for i in 0..3000 {
            span("kernel", &format!("\"{i}\""), begin(), || "{\"layer\":\"dense\"}".into());
        }
        let written = whole("running");
        let other = std::thread::Builder::new().name("other".into());
        other.spawn(|| span("step", "step", begin(), || "{}".into())).unwrap().join().unwrap();
        finish().unwrap();
        let text = whole("done");
        assert!(text.len() > written.len() && text.contains("\"name\":\"\\\"2999\\\"\""), "{text}");
        assert!(text.contains("{\"name\":\"other\"}"));
        assert_eq!(text.matches("\"cat\":\"kernel\"").count(), 3000);
        span("kernel", "late", begin(), || unreachable!("nobody wants it"));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn texts_are_escaped() {
        assert_eq!(quoted("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000a\"");
    }
}
