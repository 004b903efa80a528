//! A timeline of what every thread did, as a file that <https://ui.perfetto.dev> and `chrome://tracing` show.
//!
//! Off, asking costs one relaxed load. On, spans go through a small buffer into the file, which is whole JSON at every
//! instant from its first event on, so also when the program is killed. Format: Chrome's "Trace Event Format", an array
//! of complete events (`"ph": "X"`) with times in microseconds.
//!
//! A kill can cut a write between two pages of memory, never within one. So spaces stand before the closing bracket,
//! events are written over them with one write for each page, and once they are used up a longer file takes the place
//! of this one under its name. What is no file of a disk (a pipe, a terminal) is written in order.

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};
use systole_ir::{Error, ErrorKind, Result};

/// Whether spans are wanted: for the timeline, for [`collect`], or for both.
static ON: AtomicU8 = AtomicU8::new(0);
const TIMELINE_ON: u8 = 1;
const COLLECTED: u8 = 2;
/// Kernels since [`collect`].
static KERNELS: Mutex<Vec<KernelSpan>> = Mutex::new(Vec::new());
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
/// A write that stays within so many bytes, counted from the file's beginning, is done whole or not at all.
const PAGE: u64 = 4096;

struct Timeline {
    path: PathBuf,
    file: File,
    /// Whether the file may be read again and replaced: see the top.
    whole: bool,
    began: Instant,
    /// Events that are not in the file yet; each begins with the comma that parts it from the one before.
    buffer: String,
    written: Instant,
    /// Where the events in the file end.
    end: u64,
    /// Where the spaces after them end.
    room: u64,
    left: usize,
    failed: Option<Error>,
    /// Number of the track of what a device does by itself; 0 before its first span.
    device: u32,
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
    let path = path.as_ref();
    let open = || {
        let file = File::create(path)?;
        let whole = file.metadata()?.is_file();
        // What a link leads to is replaced, not the link.
        let path = if whole { fs::canonicalize(path)? } else { path.to_path_buf() };
        Ok((file, path, whole))
    };
    let (file, path, whole) = open().map_err(|e| Error::io("cannot write the trace", path, e))?;
    let now = Instant::now();
    let buffer =
        "[\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":1,\"tid\":0,\"args\":{\"name\":\"systole\"}}"
            .into();
    let mut new = Timeline {
        path,
        file,
        whole,
        began: now,
        buffer,
        written: now,
        end: 0,
        room: 0,
        left: MOST_SPANS,
        failed: None,
        device: 0,
    };
    new.flush();
    if let Some(error) = new.failed.take() {
        return Err(error);
    }
    *timeline = Some(new);
    ON.fetch_or(TIMELINE_ON, Relaxed);
    Ok(())
}

/// Whether spans are wanted.
#[inline]
pub fn is_on() -> bool {
    ON.load(Relaxed) != 0
}

/// The time now, where spans are wanted: what [`span`] takes later.
#[inline]
pub fn begin() -> Option<Instant> {
    is_on().then(Instant::now)
}

/// Something that this thread did from `start` until now. `args` is a JSON object; nothing stands for an empty one.
pub fn span(category: &str, name: &str, start: Option<Instant>, args: impl FnOnce() -> String) {
    let (Some(start), true) = (start, is_on()) else { return };
    let now = Instant::now();
    if let Some(timeline) = lock().as_mut() {
        timeline.span(Timeline::track, category, name, (start, now), &args());
    }
}

/// Something that a device did by itself, while this thread may have done something else. One follows the other.
pub fn device_span(category: &str, name: &str, start: Instant, end: Instant) {
    if !is_on() {
        return;
    }
    if let Some(timeline) = lock().as_mut() {
        timeline.span(Timeline::device_track, category, name, (start, end), "");
    }
}

/// A kernel that ran, for whoever collects them.
#[derive(Clone, Debug)]
pub struct KernelSpan {
    /// The kernel.
    pub name: String,
    /// The layer's path and the op: `dense/dot_general`.
    pub path: String,
    /// When it began.
    pub start: Instant,
    /// When it ended.
    pub end: Instant,
    /// The thread that it ran on; one that runs others ends after them.
    pub thread: ThreadId,
    /// The program that it was part of, where [`within`] says so.
    pub program: Option<Arc<str>>,
}

thread_local! {
    /// The program that this thread runs.
    static PROGRAM: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

/// The program that this thread runs, for threads that help it.
pub fn program() -> Option<Arc<str>> {
    PROGRAM.with_borrow(Clone::clone)
}

/// Runs `f` as a part of a program: the kernels that are collected meanwhile, on this thread and on those that help it, are its own.
///
/// ```
/// use systole_runtime::trace::{program, within};
/// assert_eq!(within(&"step".into(), program).as_deref(), Some("step"));
/// assert_eq!(program(), None);
/// ```
pub fn within<R>(name: &Arc<str>, f: impl FnOnce() -> R) -> R {
    /// Puts back what was there, after a panic too.
    struct RestoreThreadName(Option<Arc<str>>);
    impl Drop for RestoreThreadName {
        fn drop(&mut self) {
            PROGRAM.set(self.0.take());
        }
    }
    let _back = RestoreThreadName(PROGRAM.replace(Some(name.clone())));
    f()
}

/// Begins to collect kernels in memory, at most as many as a timeline holds; those that were collected before are forgotten.
pub fn collect() {
    KERNELS.lock().unwrap_or_else(PoisonError::into_inner).clear();
    ON.fetch_or(COLLECTED, Relaxed);
}

/// Ends that; what was collected.
pub fn collected() -> Vec<KernelSpan> {
    ON.fetch_and(!COLLECTED, Relaxed);
    std::mem::take(&mut KERNELS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A kernel that this thread ran from `start` until now, for [`collect`].
pub fn kernel(start: Instant, what: impl FnOnce() -> (String, String)) {
    if ON.load(Relaxed) & COLLECTED == 0 {
        return;
    }
    let end = Instant::now();
    let mut kernels = KERNELS.lock().unwrap_or_else(PoisonError::into_inner);
    if kernels.len() < MOST_SPANS {
        let (name, path) = what();
        let thread = std::thread::current().id();
        kernels.push(KernelSpan { name, path, start, end, thread, program: program() });
    }
}

/// Ends the timeline and writes what is left of it.
///
/// # Errors
/// When some of it could not be written.
pub fn finish() -> Result<()> {
    ON.fetch_and(!TIMELINE_ON, Relaxed);
    let Some(mut timeline) = lock().take() else { return Ok(()) };
    timeline.finish();
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
    fn span(
        &mut self,
        track: fn(&mut Timeline) -> u32,
        category: &str,
        name: &str,
        (start, now): (Instant, Instant),
        args: &str,
    ) {
        if self.left == 0 {
            return;
        }
        let track = track(self);
        let micros = |d: Duration| d.as_nanos() as f64 / 1e3;
        let (at, took) = (start.saturating_duration_since(self.began), now.saturating_duration_since(start));
        // One span without would break the whole file.
        let args = if args.is_empty() { "{}" } else { args };
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
        let since = now.saturating_duration_since(self.written);
        if self.buffer.len() > BUFFER || since > INTERVAL || self.left == 0 {
            self.flush();
        }
    }

    /// The number of this thread's track, which gets the thread's name at its first span.
    fn track(&mut self) -> u32 {
        if TRACK.get() == 0 {
            let thread = std::thread::current();
            TRACK.set(self.new_track(thread.name().unwrap_or("thread")));
        }
        TRACK.get()
    }

    fn device_track(&mut self) -> u32 {
        if self.device == 0 {
            self.device = self.new_track("device");
        }
        self.device
    }

    fn new_track(&mut self, name: &str) -> u32 {
        let (track, name) = (TRACKS.fetch_add(1, Relaxed), quoted(name));
        let _ = write!(
            self.buffer,
            ",\n{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":{track},\"args\":{{\"name\":{name}}}}}"
        );
        track
    }

    /// Writes the buffer into the file.
    fn flush(&mut self) {
        let written = if !self.whole {
            self.file.write_all(self.buffer.as_bytes()).map(|()| self.buffer.clear())
        } else {
            self.fill().and_then(|()| {
                // Twice as long each time: every event is copied once on average.
                let room = (self.end + self.buffer.len() as u64).max(BUFFER as u64);
                if self.buffer.is_empty() { Ok(()) } else { self.replace(room) }
            })
        };
        self.note(written);
    }

    /// Writes what is left of the buffer, and the file's end.
    fn finish(&mut self) {
        let written = if self.failed.is_some() {
            Ok(())
        } else if self.whole {
            self.replace(0)
        } else {
            self.file.write_all((std::mem::take(&mut self.buffer) + END).as_bytes())
        };
        self.note(written);
    }

    /// Training goes on without a timeline that cannot be written; the program tells of it at the end.
    fn note(&mut self, written: io::Result<()>) {
        if let Err(e) = written {
            self.failed.get_or_insert(Error::io("cannot write the trace", &self.path, e));
            self.left = 0;
            self.buffer.clear();
        }
        self.written = Instant::now();
    }

    /// Writes events over the spaces, page by page, and leaves in the buffer what they have no room for.
    fn fill(&mut self) -> io::Result<()> {
        let mut done = 0;
        while done < self.buffer.len() {
            let lines = &self.buffer[done..];
            let page = (self.end / PAGE + 1) * PAGE;
            let fits = whole_lines(lines, (page.min(self.room) - self.end) as usize);
            if fits > 0 {
                self.file.seek(SeekFrom::Start(self.end))?;
                self.file.write_all(&lines.as_bytes()[..fits])?;
                self.end += fits as u64;
                done += fits;
            } else if !self.end.is_multiple_of(PAGE) && page < self.room {
                self.end = page;
            } else {
                break;
            }
        }
        self.buffer.drain(..done);
        Ok(())
    }

    /// A new file with all events and `room` bytes of spaces, which takes the place of the old one.
    fn replace(&mut self, room: u64) -> io::Result<()> {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{}.part", std::process::id()));
        let part = PathBuf::from(name);
        let end = self.end + self.buffer.len() as u64;
        let written = self.copy(&part, room).and_then(|file| fs::rename(&part, &self.path).map(|()| file));
        match written {
            Ok(file) => (self.file, self.end, self.room) = (file, end, end + room),
            Err(e) => {
                let _ = fs::remove_file(&part);
                return Err(e);
            }
        }
        self.buffer.clear();
        Ok(())
    }

    fn copy(&mut self, to: &Path, room: u64) -> io::Result<File> {
        let mut out = BufWriter::new(File::create(to)?);
        if self.end > 0 {
            io::copy(&mut File::open(&self.path)?.take(self.end), &mut out)?;
        }
        out.write_all(self.buffer.as_bytes())?;
        io::copy(&mut io::repeat(b' ').take(room), &mut out)?;
        out.write_all(END.as_bytes())?;
        out.into_inner().map_err(io::IntoInnerError::into_error)
    }
}

/// How many bytes the most lines have that begin `text`, each a newline behind a comma, and are at most `most` together.
fn whole_lines(text: &str, most: usize) -> usize {
    if text.len() <= most {
        return text.len();
    }
    let bytes = &text.as_bytes()[..text.len().min(most + 2)];
    bytes.windows(2).rposition(|w| w == b",\n").unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_whole(text: &str) -> bool {
        serde_json::from_str::<serde_json::Value>(text).is_ok_and(|v| v.is_array())
    }

    #[test]
    fn the_file_is_whole_before_and_after_every_span() {
        let path = std::env::temp_dir().join(format!("systole-trace-{}.json", std::process::id()));
        assert!(start("/nowhere/trace.json").is_err() && !is_on());
        start(&path).unwrap();
        assert!(start(&path).unwrap_err().to_string().contains("already"));
        let whole = |what: &str| {
            let text = fs::read_to_string(&path).unwrap();
            assert!(is_whole(&text), "{what}: {text}");
            text
        };
        whole("new");
        for i in 0..3000 {
            span("kernel", &format!("\"{i}\""), begin(), || "{\"layer\":\"dense\"}".into());
        }
        let written = whole("running");
        let other = std::thread::Builder::new().name("other".into());
        other.spawn(|| span("step", "step", begin(), String::new)).unwrap().join().unwrap();
        let kernel = |name: &str| kernel(Instant::now(), || (name.into(), "dense/add".into()));
        kernel("before");
        collect();
        kernel("one");
        finish().unwrap();
        assert!(is_on(), "kernels are still collected");
        kernel("two");
        let names: Vec<String> = collected().into_iter().map(|k| k.name).collect();
        kernel("after");
        assert_eq!((names, is_on()), (vec!["one".to_string(), "two".to_string()], false));
        let text = whole("done");
        assert!(text.len() > written.trim_end_matches([' ', '\n', ']']).len(), "{text}");
        assert!(text.contains("\"name\":\"\\\"2999\\\"\"") && text.ends_with("}\n]\n"), "{text}");
        assert!(text.contains("{\"name\":\"other\"}"));
        assert_eq!(text.matches("\"cat\":\"kernel\"").count(), 3000);
        span("kernel", "late", begin(), || unreachable!("nobody wants it"));
        fs::remove_file(&path).unwrap();
    }

    /// A timeline of its own, beside the one of the process.
    fn timeline(name: &str, room: u64) -> (Timeline, String) {
        let name = format!("systole-trace-{name}-{}.json", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = File::create(&path).unwrap();
        let now = Instant::now();
        let mut new = Timeline {
            path,
            file,
            whole: true,
            began: now,
            buffer: "[\n{\"n\":0}".into(),
            written: now,
            end: 0,
            room: 0,
            left: MOST_SPANS,
            failed: None,
            device: 0,
        };
        new.replace(room).unwrap();
        let text = fs::read_to_string(&new.path).unwrap();
        (new, text)
    }

    /// What a kill leaves: the writes are redone one by one on a copy, and the copy is looked at after each.
    #[test]
    fn every_write_stays_within_a_page_and_leaves_the_file_whole() {
        let (mut timeline, mut old) = timeline("pages", 5 * PAGE);
        assert!(is_whole(&old), "{old}");
        for i in 0..400 {
            let text = "x".repeat(i * 7 % 600);
            let _ = write!(timeline.buffer, ",\n{{\"n\":{i},\"text\":\"{text}\"}}");
            if i % 9 > 0 {
                continue;
            }
            timeline.flush();
            assert!(timeline.failed.is_none() && timeline.buffer.is_empty());
            let new = fs::read_to_string(&timeline.path).unwrap();
            assert!(is_whole(&new), "{i}: {new}");
            if new.len() == old.len() {
                let mut between = old.into_bytes();
                for (page, bytes) in new.as_bytes().chunks(PAGE as usize).enumerate() {
                    let at = page * PAGE as usize;
                    between[at..at + bytes.len()].copy_from_slice(bytes);
                    let text = std::str::from_utf8(&between).unwrap();
                    assert!(is_whole(text), "{i}, page {page}: {text}");
                }
            }
            old = new;
        }
        timeline.finish();
        let text = fs::read_to_string(&timeline.path).unwrap();
        assert!(is_whole(&text) && text.ends_with("}\n]\n"), "{text}");
        assert_eq!(text.matches("\"text\"").count(), 400);
        fs::remove_file(&timeline.path).unwrap();
    }

    #[test]
    fn a_line_longer_than_a_page_is_written_with_a_new_file() {
        let (mut timeline, _) = timeline("long", 5 * PAGE);
        let _ = write!(timeline.buffer, ",\n{{\"text\":\"{}\"}}", "x".repeat(2 * PAGE as usize));
        let room = timeline.room;
        timeline.flush();
        assert!(timeline.failed.is_none() && timeline.room > room);
        let text = fs::read_to_string(&timeline.path).unwrap();
        assert!(is_whole(&text) && text.contains("xxx"), "{text}");
        fs::remove_file(&timeline.path).unwrap();
    }

    #[test]
    fn texts_are_escaped() {
        assert_eq!(quoted("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000a\"");
    }
}
