//! TFRecord reader and writer, plain or with gzip or zlib, with recovery after damaged records.
//!
//! A record is its length (u64), a checksum of the length, the data, and a checksum of the data; all little endian, the
//! checksums TensorFlow's masked CRC-32C. Both checksums are always verified. A length is used only if its checksum
//! matches and the file is large enough; memory grows with the data that arrives. After a damaged length the next
//! record is searched byte by byte.

use crate::compression::{Compressor, StreamCompression, decompress};
use crate::file_system::{AtomicFile, FileSystem, OsFileSystem, append};
use crate::input_file::InputFile;
use crate::mutex::lock;
use std::collections::HashSet;
use std::fmt;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use systole_base::{Error, ErrorKind, Result, ensure, err};

/// Number of bytes before a TFRecord record's data.
pub const HEADER: usize = 12;
/// Number of bytes after a TFRecord record's data.
pub const FOOTER: usize = 4;
/// Read block size: blocks of a few files together fit into a core's cache until their records are copied. The fuzzer's
/// inputs are small and should also cross block boundaries.
#[allow(unexpected_cfgs)]
const BLOCK: usize = if cfg!(fuzzing) { 256 } else { 64 << 10 };
/// Maximum size to which data in memory is decompressed; limited for the fuzzer.
#[allow(unexpected_cfgs)]
const UNPACKED: u64 = if cfg!(fuzzing) { 4 << 10 } else { u64::MAX };

/// Compression of a TFRecord file: none, gzip or zlib.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TfRecordCompression {
    /// Detected by the first bytes when reading; writes plain files.
    #[default]
    Auto,
    /// No compression.
    None,
    /// gzip.
    Gzip,
    /// zlib.
    Zlib,
}

impl TfRecordCompression {
    fn stream(self) -> Option<StreamCompression> {
        match self {
            TfRecordCompression::Auto | TfRecordCompression::None => None,
            TfRecordCompression::Gzip => Some(StreamCompression::Gzip),
            TfRecordCompression::Zlib => Some(StreamCompression::Zlib),
        }
    }
}

/// Policy for damaged TFRecord records: fail, skip or quarantine.
#[derive(Clone, Default)]
pub enum OnCorrupt {
    /// Yield an error in the record's position. Later records follow if they can be found without guessing.
    #[default]
    Fail,
    /// Skip up to `quota` damaged records in one pass over the source; the next one is an error.
    Skip {
        /// Maximum number of damaged records to skip.
        quota: u64,
    },
    /// Like `Skip`, and append a line with file, byte, record, problem, expected and found value to a report file.
    Quarantine(Quarantine),
    /// Skip all damaged records and pass each to a function.
    Report(Arc<dyn Fn(&CorruptRecord) + Send + Sync>),
}

impl fmt::Debug for OnCorrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OnCorrupt::Fail => f.write_str("Fail"),
            OnCorrupt::Skip { quota } => write!(f, "Skip({quota})"),
            OnCorrupt::Quarantine(q) => write!(f, "Quarantine({}, {})", q.path.display(), q.quota),
            OnCorrupt::Report(_) => f.write_str("Report"),
        }
    }
}

/// Report file for damaged TFRecord records.
#[derive(Clone, Debug)]
pub struct Quarantine {
    path: Arc<PathBuf>,
    quota: u64,
    /// Records already reported, so that later epochs do not report them again.
    reported: Arc<Mutex<HashSet<(String, u64)>>>,
}

impl OnCorrupt {
    /// Returns [`OnCorrupt::Quarantine`] with this report file and at most `quota` records in one pass over the source.
    pub fn quarantine(path: impl Into<PathBuf>, quota: u64) -> OnCorrupt {
        OnCorrupt::Quarantine(Quarantine { path: Arc::new(path.into()), quota, reported: Arc::default() })
    }

    fn quota(&self) -> Option<u64> {
        match self {
            OnCorrupt::Fail => None,
            OnCorrupt::Skip { quota } => Some(*quota),
            OnCorrupt::Quarantine(q) => Some(q.quota),
            OnCorrupt::Report(_) => Some(u64::MAX),
        }
    }
}

impl Quarantine {
    fn report(&self, damage: &CorruptRecord) -> Result<()> {
        // Held while writing, so that lines of several threads do not mix.
        let mut reported = lock(&self.reported);
        if !reported.insert((damage.file.to_string(), damage.offset)) {
            return Ok(());
        }
        append(&OsFileSystem, &self.path, damage.line().as_bytes())
            .map_err(|e| Error::io("cannot write the quarantine report", &*self.path, e))
    }
}

/// Damaged TFRecord record: location, problem, and checksums if they differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorruptRecord {
    /// Name of the file.
    pub file: Arc<str>,
    /// Byte offset of the record in the (uncompressed) file.
    pub offset: u64,
    /// Index of the record, counting damaged ones.
    pub record: u64,
    /// Description of the problem.
    pub what: String,
    /// Stored and computed checksum.
    pub crc: Option<(u32, u32)>,
    /// Whether the next record's position is known.
    framed: bool,
}

impl CorruptRecord {
    fn line(&self) -> String {
        let (expected, found) = self.crc.map_or((String::new(), String::new()), |(e, f)| (hex(e), hex(f)));
        format!("{}\t{}\t{}\t{}\t{expected}\t{found}\n", self.file, self.offset, self.record, self.what)
    }
}

fn hex(crc: u32) -> String {
    format!("{crc:#010x}")
}

impl From<CorruptRecord> for Error {
    fn from(d: CorruptRecord) -> Error {
        let e = Error::new(ErrorKind::Data, d.what.clone())
            .at(format!("the damaged record is in {}, record {}, byte {}", d.file, d.record, d.offset));
        let e = match d.crc {
            Some((expected, found)) => {
                e.because(format!("expected the checksum CRC {}, found {}", hex(expected), hex(found)))
            }
            None => e,
        };
        e.hint("download the file again, or read it with OnCorrupt::Skip or OnCorrupt::quarantine")
    }
}

/// Parses up to eight little-endian bytes.
pub(crate) fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Computes TensorFlow's masked CRC-32C.
pub fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Reader of the records of one TFRecord file.
pub struct TfRecordReader {
    file: Arc<str>,
    window: ReadWindow,
    record: u64,
    on_corrupt: OnCorrupt,
    left_out: u64,
    over: bool,
}

impl TfRecordReader {
    /// Opens a TFRecord file.
    ///
    /// # Errors
    /// `Io` if it cannot be opened or read.
    pub fn open(
        path: impl AsRef<Path>,
        compression: TfRecordCompression,
        on_corrupt: OnCorrupt,
    ) -> Result<TfRecordReader> {
        let path = path.as_ref();
        let wrong = |e| Error::io("cannot open", path, e).hint("check the path of the TFRecord file");
        let mut file = InputFile::open(path).map_err(wrong)?;
        let size = file.size().map_err(wrong)?;
        let kind = match compression {
            TfRecordCompression::Auto => {
                let mut start = [0; HEADER];
                let n = read_up_to(&mut file, &mut start).map_err(wrong)?;
                file.seek(SeekFrom::Start(0)).map_err(wrong)?;
                detect(&start[..n])
            }
            told => told,
        };
        let name = path.display().to_string();
        let input = match kind.stream() {
            Some(stream) => RecordBytes::Packed(decompress(stream, file)),
            None => RecordBytes::Plain(file, size),
        };
        Ok(TfRecordReader::new(name, input, on_corrupt))
    }

    /// Opens a plain file that is still being appended to; [`TfRecordReader::seek`] also reaches new records.
    pub(crate) fn open_growing(path: &Path) -> Result<TfRecordReader> {
        let file = InputFile::open(path).map_err(|e| Error::io("cannot open", path, e))?;
        Ok(TfRecordReader::new(
            path.display().to_string(),
            RecordBytes::Plain(file, u64::MAX),
            OnCorrupt::Fail,
        ))
    }

    /// Reads TFRecord records from memory; `name` is used in messages.
    pub fn from_bytes(name: &str, bytes: Vec<u8>, on_corrupt: OnCorrupt) -> TfRecordReader {
        let packed = |input| TfRecordReader::new(name.into(), RecordBytes::Packed(input), on_corrupt);
        match detect(&bytes).stream() {
            Some(stream) => packed(Box::new(decompress(stream, io::Cursor::new(bytes)).take(UNPACKED))),
            None => {
                let mut reader = packed(Box::new(io::empty()));
                (reader.window.end, reader.window.bytes, reader.window.ended) = (bytes.len(), bytes, true);
                reader
            }
        }
    }

    fn new(name: String, input: RecordBytes, on_corrupt: OnCorrupt) -> TfRecordReader {
        let window = ReadWindow { input, bytes: Vec::new(), start: 0, end: 0, offset: 0, ended: false };
        TfRecordReader { file: name.into(), window, record: 0, on_corrupt, left_out: 0, over: false }
    }

    /// Returns the data of the next TFRecord record; `None` at the end.
    ///
    /// # Errors
    /// A damaged record, unless the policy skips it; I/O errors.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<Result<&[u8]>> {
        loop {
            if self.over {
                return None;
            }
            match self.read() {
                Ok(Some(range)) => {
                    self.record += 1;
                    return Some(Ok(&self.window.bytes[range]));
                }
                Ok(None) => {
                    self.over = true;
                    return None;
                }
                Err(RecordFault::System(e)) => {
                    self.over = true;
                    return Some(Err(e));
                }
                Err(RecordFault::Damage(damage)) => {
                    if let Err(e) = self.handle(damage) {
                        return Some(Err(e));
                    }
                }
            }
        }
    }

    /// Returns byte offset and index of the next record, and the number of records skipped before it.
    pub fn place(&self) -> [u64; 3] {
        [self.window.offset, self.record, self.left_out]
    }

    /// Counts damaged records that were skipped elsewhere against the quota.
    pub fn carry(&mut self, left_out: u64) {
        self.left_out = left_out;
    }

    /// Whether the file is compressed (or in memory), so that seeking backward is impossible.
    pub fn is_packed(&self) -> bool {
        self.window.is_packed()
    }

    /// Seeks to a position returned by [`TfRecordReader::place`] for the same file.
    ///
    /// # Errors
    /// If the file does not have this position.
    pub fn seek(&mut self, [offset, record, left_out]: [u64; 3]) -> Result<()> {
        self.window.go_to(offset).map_err(|e| {
            err!(Data, "the position is beyond the end of the file")
                .at(format!("{}, byte {offset}", self.file))
                .because(e.to_string())
                .hint("resume with the same data files")
        })?;
        (self.record, self.left_out, self.over) = (record, left_out, false);
        Ok(())
    }

    fn read(&mut self) -> Result<Option<std::ops::Range<usize>>, RecordFault> {
        let header = self.fill(HEADER)?;
        if header == 0 {
            return Ok(None);
        }
        if header < HEADER {
            return Err(
                self.damage(format!("the file ends within a record header: {header} of 12 bytes"), None)
            );
        }
        let (len, crc) = self.window.header(0);
        let found = masked_crc(&self.window.unread()[..8]);
        if found != crc {
            return Err(
                self.damage("a record's length does not match its checksum".into(), Some((crc, found)))
            );
        }
        if self.window.left().is_some_and(|left| len > left.saturating_sub((HEADER + FOOTER) as u64)) {
            return Err(self.cut(len, self.window.left().unwrap_or(0)));
        }
        let whole = usize::try_from(len).ok().and_then(|n| n.checked_add(HEADER + FOOTER));
        let whole = whole.ok_or_else(|| self.cut(len, 0))?;
        let there = self.fill(whole)?;
        ensure!(there >= whole, self.cut(len, there as u64));
        let bytes = self.window.unread();
        let (data, footer) = bytes[HEADER..whole].split_at(whole - HEADER - FOOTER);
        let expected = little_endian(footer) as u32;
        let found = masked_crc(data);
        if found != expected {
            let mut damage =
                self.damage("a record's data does not match its checksum".into(), Some((expected, found)));
            if let RecordFault::Damage(d) = &mut damage {
                d.framed = true;
            }
            self.window.consume(whole);
            return Err(damage);
        }
        let start = self.window.start + HEADER;
        self.window.consume(whole);
        Ok(Some(start..start + whole - HEADER - FOOTER))
    }

    fn fill(&mut self, n: usize) -> Result<usize, RecordFault> {
        self.window.fill(n).map_err(|e| match e.kind() {
            // Damaged or truncated gzip stream: nothing after it can be read.
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof => {
                self.window.ended = true;
                self.damage(format!("cannot decompress the data: {e}"), None)
            }
            _ => RecordFault::System(Error::io("cannot read", &*self.file, e)),
        })
    }

    fn cut(&self, len: u64, left: u64) -> RecordFault {
        self.damage(
            format!("the file is truncated: a record has {len} bytes, but only {left} remain including its checksum"),
            None,
        )
    }

    fn damage(&self, what: String, crc: Option<(u32, u32)>) -> RecordFault {
        RecordFault::Damage(CorruptRecord {
            file: self.file.clone(),
            offset: self.window.offset,
            record: self.record,
            what,
            crc,
            framed: false,
        })
    }

    /// Applies the policy: `Err` is returned to the caller, `Ok` continues with the next record.
    fn handle(&mut self, damage: CorruptRecord) -> Result<()> {
        let framed = damage.framed;
        self.record += 1;
        let Some(quota) = self.on_corrupt.quota() else {
            self.over = !framed;
            return Err(damage.into());
        };
        self.left_out += 1;
        if self.left_out > quota {
            self.over = true;
            return Err(Error::from(damage).because(format!("{quota} damaged records were already skipped")));
        }
        match &self.on_corrupt {
            OnCorrupt::Quarantine(q) => q.report(&damage)?,
            OnCorrupt::Report(tell) => tell(&damage),
            _ => {}
        }
        if !framed && !self.resync().map_err(|e| Error::io("cannot read", &*self.file, e))? {
            self.over = true;
        }
        Ok(())
    }

    /// Searches the next position where both checksums of a record match. Returns false if there is none.
    fn resync(&mut self) -> io::Result<bool> {
        loop {
            self.window.consume(1.min(self.window.end - self.window.start));
            let there = match self.window.fill(HEADER) {
                Ok(n) => n,
                Err(e) if self.window.is_packed() && e.kind() != io::ErrorKind::Other => return Ok(false),
                Err(e) => return Err(e),
            };
            if there < HEADER {
                return Ok(false);
            }
            let (len, crc) = self.window.header(0);
            if masked_crc(&self.window.unread()[..8]) != crc {
                continue;
            }
            let Some(whole) = usize::try_from(len).ok().and_then(|n| n.checked_add(HEADER + FOOTER)) else {
                continue;
            };
            if self.window.left().is_some_and(|left| whole as u64 > left) || self.window.fill(whole)? < whole
            {
                continue;
            }
            let data = &self.window.unread()[HEADER..whole - FOOTER];
            let footer = &self.window.unread()[whole - FOOTER..whole];
            if masked_crc(data).to_le_bytes() == footer {
                return Ok(true);
            }
        }
    }
}

enum RecordFault {
    Damage(CorruptRecord),
    System(Error),
}

/// Source of the bytes; the size of a plain file is known.
enum RecordBytes {
    Plain(InputFile, u64),
    Packed(Box<dyn Read + Send>),
}

/// Part of the file in memory: `bytes[start..end]` is read and not consumed.
struct ReadWindow {
    input: RecordBytes,
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// Offset of `start` in the uncompressed file.
    offset: u64,
    ended: bool,
}

impl ReadWindow {
    fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn consume(&mut self, n: usize) {
        self.start += n;
        self.offset += n as u64;
    }

    fn is_packed(&self) -> bool {
        matches!(self.input, RecordBytes::Packed(_))
    }

    /// Number of bytes up to the end of the file, if known.
    fn left(&self) -> Option<u64> {
        match self.input {
            RecordBytes::Plain(_, size) => Some(size.saturating_sub(self.offset)),
            RecordBytes::Packed(_) => None,
        }
    }

    /// Returns the length and its checksum of a record `at` bytes ahead, which must be in memory.
    fn header(&self, at: usize) -> (u64, u32) {
        let bytes = &self.unread()[at..at + HEADER];
        let (len, crc) = bytes.split_at(8);
        (little_endian(len), little_endian(crc) as u32)
    }

    /// Reads until at least `n` bytes are available or the file ends; returns the number available, at most `n`.
    fn fill(&mut self, n: usize) -> io::Result<usize> {
        while self.end - self.start < n && !self.ended {
            if self.start > 0 {
                self.bytes.copy_within(self.start..self.end, 0);
                self.end -= self.start;
                self.start = 0;
            }
            // Grows with the data that arrives, not with an unverified length.
            if self.bytes.len() < self.end + BLOCK {
                self.bytes.resize(self.end + BLOCK, 0);
            }
            let room = &mut self.bytes[self.end..];
            let got = match &mut self.input {
                RecordBytes::Plain(file, _) => file.read(room),
                RecordBytes::Packed(reader) => reader.read(room),
            };
            match got {
                Ok(0) => self.ended = true,
                Ok(k) => self.end += k,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok((self.end - self.start).min(n))
    }

    /// Seeks to a byte at or after the current one (any byte in a plain file).
    fn go_to(&mut self, offset: u64) -> io::Result<()> {
        let cut = || io::Error::new(io::ErrorKind::UnexpectedEof, "the file is too short");
        if let RecordBytes::Plain(file, size) = &mut self.input {
            // Data in memory is not read again.
            if let Some(ahead) =
                offset.checked_sub(self.offset).filter(|&n| n < (self.end - self.start) as u64)
            {
                self.ended = false;
                self.consume(ahead as usize);
                return Ok(());
            }
            ensure!(offset <= *size, cut());
            file.seek(SeekFrom::Start(offset))?;
            (self.start, self.end, self.offset, self.ended) = (0, 0, offset, false);
            return Ok(());
        }
        while self.offset < offset {
            let n = usize::try_from(offset - self.offset).unwrap_or(usize::MAX).min(BLOCK);
            let there = self.fill(n)?;
            ensure!(there != 0, cut());
            self.consume(there);
        }
        Ok(())
    }
}

fn read_up_to(file: &mut InputFile, bytes: &mut [u8]) -> io::Result<usize> {
    let mut n = 0;
    while n < bytes.len() {
        match file.read(&mut bytes[n..]) {
            Ok(0) => break,
            Ok(k) => n += k,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(n)
}

/// A record whose length matches its checksum is plain, whatever else its first bytes may mean.
fn detect(start: &[u8]) -> TfRecordCompression {
    let is_record = start.len() >= HEADER && masked_crc(&start[..8]).to_le_bytes() == start[8..HEADER];
    match start {
        _ if is_record => TfRecordCompression::None,
        [0x1f, 0x8b, ..] => TfRecordCompression::Gzip,
        [a, b, ..] if a & 0x0f == 8 && (u16::from(*a) << 8 | u16::from(*b)) % 31 == 0 => {
            TfRecordCompression::Zlib
        }
        _ => TfRecordCompression::None,
    }
}

/// Writer of the records of one TFRecord file, under a temporary name until it is complete.
pub struct TfRecordWriter<F: FileSystem = OsFileSystem> {
    out: TfRecordOutput<F>,
    path: PathBuf,
}

enum TfRecordOutput<F: FileSystem> {
    Plain(BufWriter<AtomicFile<F>>),
    Compressed(Compressor<BufWriter<AtomicFile<F>>>),
}

impl TfRecordWriter {
    /// Starts a TFRecord file, which appears under its name on [`TfRecordWriter::finish`].
    pub fn create(path: impl AsRef<Path>, compression: TfRecordCompression) -> Result<TfRecordWriter> {
        TfRecordWriter::create_on(OsFileSystem, path, compression)
    }
}

impl<F: FileSystem> TfRecordWriter<F> {
    /// Like [`TfRecordWriter::create`], on a given file system.
    pub fn create_on(
        files: F,
        path: impl AsRef<Path>,
        compression: TfRecordCompression,
    ) -> Result<TfRecordWriter<F>> {
        let path = path.as_ref().to_path_buf();
        let file = BufWriter::with_capacity(BLOCK, AtomicFile::create_partial(files, &path)?);
        let out = match compression.stream() {
            None => TfRecordOutput::Plain(file),
            Some(stream) => TfRecordOutput::Compressed(
                Compressor::new(stream, file).map_err(|e| Error::io("cannot write", &path, e))?,
            ),
        };
        Ok(TfRecordWriter { out, path })
    }

    /// Appends a record to the TFRecord file.
    pub fn write(&mut self, data: &[u8]) -> Result<()> {
        let written = match &mut self.out {
            TfRecordOutput::Plain(w) => frame(w, data),
            TfRecordOutput::Compressed(w) => frame(w.stream(), data),
        };
        written.map_err(|e| {
            Error::io("cannot write", &self.path, e).hint("free disk space, or write to another disk")
        })
    }

    /// Syncs the TFRecord file and renames it to its final name.
    pub fn finish(self) -> Result<()> {
        let buffered = match self.out {
            TfRecordOutput::Plain(w) => Ok(w),
            TfRecordOutput::Compressed(w) => w.finish(),
        };
        let file = buffered.and_then(|w| w.into_inner().map_err(io::IntoInnerError::into_error));
        let wrong =
            |e| Error::io("cannot write", &self.path, e).hint("free disk space, or write to another disk");
        file.map_err(wrong)?.publish()
    }
}

/// Writes one TFRecord record with its length and checksums.
pub fn frame(out: &mut (impl Write + ?Sized), data: &[u8]) -> io::Result<()> {
    let len = (data.len() as u64).to_le_bytes();
    out.write_all(&len)?;
    out.write_all(&masked_crc(&len).to_le_bytes())?;
    out.write_all(data)?;
    out.write_all(&masked_crc(data).to_le_bytes())
}

// Names of the previous version.
systole_base::renamed! { Compression => TfRecordCompression, Damage => CorruptRecord, Reader => TfRecordReader }
#[doc(hidden)]
pub use self::TfRecordWriter as Writer;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_system::{FaultInjectingFileSystem, InjectedFault};

    fn file(records: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        records.iter().for_each(|r| frame(&mut out, r).unwrap());
        out
    }

    fn read_all(mut reader: TfRecordReader) -> Vec<Result<Vec<u8>, String>> {
        let mut out = Vec::new();
        while let Some(item) = reader.next() {
            out.push(item.map(<[u8]>::to_vec).map_err(|e| e.to_string()));
        }
        out
    }

    fn all(bytes: &[u8], on_corrupt: OnCorrupt) -> Vec<Result<Vec<u8>, String>> {
        read_all(TfRecordReader::from_bytes("f", bytes.to_vec(), on_corrupt))
    }

    #[test]
    fn bytes_are_tensorflows() {
        // tf.io.TFRecordWriter, one record b"systole".
        let expected = [
            7, 0, 0, 0, 0, 0, 0, 0, 187, 215, 159, 17, b's', b'y', b's', b't', b'o', b'l', b'e', 149, 212,
            153, 184,
        ];
        assert_eq!(file(&[b"systole"]), expected);
        assert_eq!(masked_crc(b""), 0xa282_ead8);
        assert_eq!(masked_crc(b"123456789"), 0xe306_9283u32.rotate_right(15).wrapping_add(0xa282_ead8));
    }

    #[test]
    fn written_files_read_back_in_every_wrapping() {
        let dir = std::env::temp_dir().join(format!("systole-tfrecord-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let records: Vec<Vec<u8>> = (0..50).map(|i| vec![i as u8; i * 31]).collect();
        for kind in [TfRecordCompression::None, TfRecordCompression::Gzip, TfRecordCompression::Zlib] {
            let path = dir.join(format!("{kind:?}"));
            let mut w = TfRecordWriter::create(&path, kind).unwrap();
            records.iter().for_each(|r| w.write(r).unwrap());
            assert!(!path.exists(), "not before it is whole");
            w.finish().unwrap();
            for told in [TfRecordCompression::Auto, kind] {
                let read = read_all(TfRecordReader::open(&path, told, OnCorrupt::Fail).unwrap());
                assert_eq!(read.into_iter().map(Result::unwrap).collect::<Vec<_>>(), records);
            }
            let mut r = TfRecordReader::open(&path, kind, OnCorrupt::Fail).unwrap();
            (0..20).for_each(|_| drop(r.next()));
            let place = r.place();
            let mut again = TfRecordReader::open(&path, kind, OnCorrupt::Fail).unwrap();
            again.seek(place).unwrap();
            assert_eq!(again.next().unwrap().unwrap(), records[20]);
            assert!(again.seek([1 << 40, 0, 0]).is_err());
        }
        drop(TfRecordWriter::create(dir.join("given-up"), TfRecordCompression::None).unwrap());
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 3);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn whichever_call_of_a_writer_fails_there_is_the_earlier_file_or_the_new_one() {
        let dir = std::env::temp_dir().join(format!("systole-writer-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("f");
        let write = |files: &FaultInjectingFileSystem, byte: u8, kind| -> Result<()> {
            let mut w = TfRecordWriter::create_on(files, &path, kind)?;
            (0..3).try_for_each(|i| w.write(&vec![byte; (i + 1) * BLOCK / 2]))?;
            w.finish()
        };
        for kind in [TfRecordCompression::None, TfRecordCompression::Gzip, TfRecordCompression::Zlib] {
            let healthy = FaultInjectingFileSystem::never();
            write(&healthy, 2, kind).unwrap();
            let (calls, new) = (healthy.calls(), std::fs::read(&path).unwrap());
            for fault in [
                InjectedFault::Error(io::ErrorKind::StorageFull),
                InjectedFault::Io,
                InjectedFault::Interrupted,
                InjectedFault::Short,
            ] {
                for n in 0..calls.len() {
                    std::fs::write(&path, "old").unwrap();
                    let failed = write(&FaultInjectingFileSystem::at(n, fault), 2, kind).is_err();
                    let is_error = matches!(fault, InjectedFault::Error(_) | InjectedFault::Io);
                    assert_eq!(failed, is_error, "{fault:?} in call {n} of {calls:?}");
                    let found = std::fs::read(&path).unwrap();
                    let is_new = !is_error || n + 1 == calls.len();
                    assert!(
                        found == if is_new { &new[..] } else { b"old" },
                        "{fault:?} in call {n} of {calls:?}"
                    );
                    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1, "{fault:?} in call {n}");
                }
            }
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn damage_is_reported_with_file_record_byte_and_checksums() {
        let good = file(&[b"one", b"two", b"three"]);
        let mut bad = good.clone();
        bad[19 + 12] ^= 1;
        let read = all(&bad, OnCorrupt::Fail);
        assert_eq!(read.len(), 3);
        let e = read[1].as_ref().unwrap_err();
        let crc = format!("{:#010x}", masked_crc(b"two"));
        assert!(e.contains("f, record 1, byte 19") && e.contains(&crc) && e.contains("found"), "{e}");
        assert_eq!(read[2].as_ref().unwrap(), b"three");
        let read = all(&bad, OnCorrupt::Skip { quota: 1 });
        assert_eq!(read.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [&b"one"[..], b"three"]);
        assert!(all(&bad, OnCorrupt::Skip { quota: 0 })[1].is_err());
    }

    #[test]
    fn after_a_damaged_length_the_next_record_is_found() {
        let good = file(&[b"one", b"two", b"three", b"four"]);
        let mut bad = good.clone();
        bad[19] ^= 4;
        let failed = all(&bad, OnCorrupt::Fail);
        assert!(failed.len() == 2 && failed[1].as_ref().unwrap_err().contains("length"), "no guessing");
        let read = all(&bad, OnCorrupt::Skip { quota: 3 });
        assert_eq!(
            read.into_iter().map(Result::unwrap).collect::<Vec<_>>(),
            [&b"one"[..], b"three", b"four"]
        );
    }

    #[test]
    fn the_quarantine_file_names_each_record_once() {
        let path = std::env::temp_dir().join(format!("systole-quarantine-{}", std::process::id()));
        let mut bad = file(&[b"one", b"two"]);
        bad[12] ^= 1;
        let policy = OnCorrupt::quarantine(&path, 5);
        for _ in 0..2 {
            assert_eq!(all(&bad, policy.clone()).len(), 1);
        }
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text.lines().count(), 1);
        assert!(text.starts_with("f\t0\t0\ta record's data") && text.contains("\t0x"), "{text}");
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let good = file(&[b"first", &[7; 100], b"", b"last one"]);
        let whole = all(&good, OnCorrupt::Fail);
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let read = all(&bad, OnCorrupt::Fail);
            assert!(read.iter().any(Result::is_err), "bit {bit}");
            for (i, item) in read.iter().enumerate() {
                assert!(item.is_err() || *item == whole[i], "bit {bit}: another record {i}");
            }
            let rest = all(&bad, OnCorrupt::Skip { quota: 9 });
            assert!(rest.len() == 3 && rest.iter().all(|r| whole.contains(r)), "bit {bit}");
        }
        let starts = [0, 21, 137, 153, good.len()];
        for cut in 0..good.len() {
            let read = all(&good[..cut], OnCorrupt::Fail);
            assert_eq!(read.iter().any(Result::is_err), !starts.contains(&cut), "cut at {cut}");
        }
        let mut packed = Vec::new();
        let mut gz = flate2::write::GzEncoder::new(&mut packed, flate2::Compression::fast());
        gz.write_all(&good).unwrap();
        gz.finish().unwrap();
        assert_eq!(all(&packed, OnCorrupt::Fail), whole);
        for cut in 1..packed.len() {
            assert!(all(&packed[..cut], OnCorrupt::Fail).iter().any(Result::is_err), "gzip cut at {cut}");
        }
    }

    #[test]
    fn an_absurd_length_takes_no_memory() {
        for len in [u64::MAX, 1 << 40] {
            let mut bytes = len.to_le_bytes().to_vec();
            bytes.extend(masked_crc(&len.to_le_bytes()).to_le_bytes());
            bytes.extend([0; 100]);
            let mut r = TfRecordReader::from_bytes("f", bytes, OnCorrupt::Fail);
            assert!(r.next().unwrap().unwrap_err().to_string().contains("truncated"));
            assert!(r.window.bytes.len() <= 2 * BLOCK);
        }
    }

    #[test]
    fn the_last_record_of_a_file_is_found_after_damage() {
        let path = std::env::temp_dir().join(format!("systole-last-record-{}", std::process::id()));
        let mut bad = file(&[b"one", b"two", b"three"]);
        bad[19] ^= 4;
        std::fs::write(&path, &bad).unwrap();
        let skip = OnCorrupt::Skip { quota: 3 };
        let read = read_all(TfRecordReader::open(&path, TfRecordCompression::None, skip).unwrap());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [&b"one"[..], b"three"]);
    }
}
