//! Writes a timeline of all threads in Chrome's Trace Event Format, for <https://ui.perfetto.dev> and
//! `chrome://tracing`.
//!
//! When tracing is off, a check costs one relaxed load. When it is on, spans go through a small buffer into the file.
//! The file is valid JSON at every moment after its first event, even if the process is killed. It is an array of
//! complete events (`"ph": "X"`) with times in microseconds.
//!
//! A kill can split a write between two memory pages but never within one. Therefore the closing bracket is preceded by
//! spaces, and events overwrite the spaces with one write per page. When the spaces are used up, a longer file replaces
//! this one under the same name. Pipes and terminals are written sequentially.

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};
use systole_ir::{Error, Result, ensure, err};

/// Which consumers record spans: the timeline, [`collect`], or both (bit flags).
static ON: AtomicU8 = AtomicU8::new(0);
const TIMELINE_ON: u8 = 1;
const COLLECTED: u8 = 2;
/// Kernels recorded since [`collect`].
static KERNELS: Mutex<Vec<KernelSpan>> = Mutex::new(Vec::new());
static TIMELINE: Mutex<Option<Timeline>> = Mutex::new(None);
static TRACKS: AtomicU32 = AtomicU32::new(1);

thread_local! {
    /// Track number of this thread; 0 before its first span.
    static TRACK: Cell<u32> = const { Cell::new(0) };
}

/// The buffer is written when it reaches this size …
const BUFFER: usize = 64 << 10;
/// … or after this interval.
const INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of spans: the file is then about 100 MB, and viewers become slow.
const MOST_SPANS: usize = 500_000;
const END: &str = "\n]\n";
/// Page size: a write within one page of the file is atomic with respect to kills.
const PAGE: u64 = 4096;

struct Timeline {
    path: PathBuf,
    file: File,
    /// Whether this is a regular file, which can be read and replaced (see the module documentation).
    whole: bool,
    began: Instant,
    /// Events not yet written; each starts with the comma that separates it from the previous one.
    buffer: String,
    written: Instant,
    /// End offset of the events in the file.
    end: u64,
    /// End offset of the spaces after them.
    room: u64,
    left: usize,
    failed: Option<Error>,
    /// Track number for asynchronous device work; 0 before its first span.
    device: u32,
}

/// Starts a timeline (Chrome trace) in the file `path`, replacing it.
///
/// # Errors
/// If the file cannot be written, or a timeline is already active.
pub fn start(path: impl AsRef<Path>) -> Result<()> {
    let mut timeline = lock();
    ensure!(timeline.is_none(), err!(Config, "another trace is already active"));
    let path = path.as_ref();
    let open = || {
        let file = File::create(path)?;
        let whole = file.metadata()?.is_file();
        // Replaces the target of a symbolic link, not the link.
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

/// Whether spans are recorded for a timeline.
#[inline]
pub fn is_on() -> bool {
    ON.load(Relaxed) != 0
}

/// Returns the start time for [`span`], or `None` if spans are not recorded.
#[inline]
pub fn begin() -> Option<Instant> {
    is_on().then(Instant::now)
}

/// Records a span of this thread from `start` until now. `args` is a JSON object, or empty.
pub fn span(category: &str, name: &str, start: Option<Instant>, args: impl FnOnce() -> String) {
    let (Some(start), true) = (start, is_on()) else { return };
    let now = Instant::now();
    if let Some(timeline) = lock().as_mut() {
        timeline.span(Timeline::track, category, name, (start, now), &args());
    }
}

/// Records a span of asynchronous device work, independent of this thread. Device spans do not overlap.
pub fn device_span(category: &str, name: &str, start: Instant, end: Instant) {
    if !is_on() {
        return;
    }
    if let Some(timeline) = lock().as_mut() {
        timeline.span(Timeline::device_track, category, name, (start, end), "");
    }
}

/// One kernel execution recorded by [`collect`]: name, start and end.
#[derive(Clone, Debug)]
pub struct KernelSpan {
    /// Name of the kernel.
    pub name: String,
    /// Layer path and op: `dense/dot_general`.
    pub path: String,
    /// Start time.
    pub start: Instant,
    /// End time.
    pub end: Instant,
    /// Thread that ran the kernel; a kernel that runs nested ones ends after them.
    pub thread: ThreadId,
    /// Name of the program, if set with [`within`].
    pub program: Option<Arc<str>>,
}

thread_local! {
    /// The program running on this thread.
    static PROGRAM: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

/// Returns the program running on this thread, to pass it on to helper threads.
pub fn program() -> Option<Arc<str>> {
    PROGRAM.with_borrow(Clone::clone)
}

/// Runs `f` as part of program `name`: kernels collected during `f`, on this thread and its helper threads, are
/// attributed to it.
///
/// ```
/// use systole_runtime::trace::{program, within};
/// assert_eq!(within(&"step".into(), program).as_deref(), Some("step"));
/// assert_eq!(program(), None);
/// ```
pub fn within<R>(name: &Arc<str>, f: impl FnOnce() -> R) -> R {
    /// Restores the previous program name, also on panic.
    struct RestoreThreadName(Option<Arc<str>>);
    impl Drop for RestoreThreadName {
        fn drop(&mut self) {
            PROGRAM.set(self.0.take());
        }
    }
    let _back = RestoreThreadName(PROGRAM.replace(Some(name.clone())));
    f()
}

/// Starts recording kernels in memory, up to the span limit of a timeline; discards earlier records.
pub fn collect() {
    KERNELS.lock().unwrap_or_else(PoisonError::into_inner).clear();
    ON.fetch_or(COLLECTED, Relaxed);
}

/// Stops recording kernels and returns them.
pub fn collected() -> Vec<KernelSpan> {
    ON.fetch_and(!COLLECTED, Relaxed);
    std::mem::take(&mut KERNELS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Records a kernel that this thread ran from `start` until now, for [`collect`].
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

/// Ends the timeline (Chrome trace) and flushes it.
///
/// # Errors
/// If part of it could not be written.
pub fn finish() -> Result<()> {
    ON.fetch_and(!TIMELINE_ON, Relaxed);
    let Some(mut timeline) = lock().take() else { return Ok(()) };
    timeline.finish();
    timeline.failed.map_or(Ok(()), Err)
}

/// Quotes text as a JSON string.
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
        // A span without arguments would make the whole file invalid.
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
            let text = format!("trace limit reached: only the first {MOST_SPANS} spans were recorded");
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

    /// Track number of this thread. The first call names the track after the thread.
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

    /// Writes the buffer to the file.
    fn flush(&mut self) {
        let written = if !self.whole {
            self.file.write_all(self.buffer.as_bytes()).map(|()| self.buffer.clear())
        } else {
            self.fill().and_then(|()| {
                // Doubles each time, so that every event is copied once on average.
                let room = (self.end + self.buffer.len() as u64).max(BUFFER as u64);
                if self.buffer.is_empty() { Ok(()) } else { self.replace(room) }
            })
        };
        self.note(written);
    }

    /// Writes the rest of the buffer and the end of the file.
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

    /// Remembers a write error: training continues, and [`finish`] reports it.
    fn note(&mut self, written: io::Result<()>) {
        if let Err(e) = written {
            self.failed.get_or_insert(Error::io("cannot write the trace", &self.path, e));
            self.left = 0;
            self.buffer.clear();
        }
        self.written = Instant::now();
    }

    /// Writes events over the spaces, page by page; events that do not fit stay in the buffer.
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

    /// Replaces the file by a new one with all events and `room` bytes of spaces.
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

/// Length of the longest prefix of `text` that consists of whole lines (each ends with a comma and a newline) and has
/// at most `most` bytes.
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

    /// Creates a timeline separate from that of the process.
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

    /// Simulates kills: replays the writes one by one on a copy of the file and checks it after each.
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
