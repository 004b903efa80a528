//! TFRecord files: each record is its length (u64), a checksum of the length, the bytes, a checksum of the bytes; all
//! little endian, the checksums CRC-32C, "masked" as TensorFlow does. Plain, gzip or zlib around the whole file.
//!
//! Both checksums are always checked. A length is only believed when its checksum fits and the file can hold so much,
//! and memory grows with what really comes. After a damaged length the next record is looked for byte by byte.

use crate::file_system::{AtomicFile, FileSystem, OsFileSystem, append};
use crate::input_file::InputFile;
use crate::mutex::lock;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use std::collections::HashSet;
use std::fmt;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use systole_base::{Error, ErrorKind, Result};

/// Bytes before and after a record's data.
pub const HEADER: usize = 12;
/// Bytes after a record's data.
pub const FOOTER: usize = 4;
/// Bytes that are read at a time: of a few files together they stay in a core's cache until their records are copied.
/// The fuzzer's inputs are small, and are to meet the ends of blocks too.
#[allow(unexpected_cfgs)]
const BLOCK: usize = if cfg!(fuzzing) { 256 } else { 64 << 10 };
/// Most that bytes in memory are unpacked to: the fuzzer learns nothing from the rest.
#[allow(unexpected_cfgs)]
const UNPACKED: u64 = if cfg!(fuzzing) { 4 << 10 } else { u64::MAX };

/// What is around a TFRecord file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TfRecordCompression {
    /// Told by the first bytes; for reading. Writes plain files.
    #[default]
    Auto,
    /// Nothing.
    None,
    /// gzip.
    Gzip,
    /// zlib.
    Zlib,
}

/// What to do about a damaged record.
#[derive(Clone, Default)]
pub enum OnCorrupt {
    /// It is an error in its place. The records after it follow, if they can be found without guessing.
    #[default]
    Fail,
    /// It is left out, up to `quota` of them in one pass over the source; the next one is an error.
    Skip {
        /// How many may be left out.
        quota: u64,
    },
    /// As `Skip`, and each is reported once in a file: one line with file, byte, record, what, expected and found.
    Quarantine(Quarantine),
    /// It is left out and told to a function, however many there are.
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

/// Where damaged records are reported.
#[derive(Clone, Debug)]
pub struct Quarantine {
    path: Arc<PathBuf>,
    quota: u64,
    /// A record that is read again in the next epoch is not reported again.
    reported: Arc<Mutex<HashSet<(String, u64)>>>,
}

impl OnCorrupt {
    /// [`OnCorrupt::Quarantine`] into this file, at most `quota` records in one pass over the source.
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
        // Held while writing: lines of several threads do not mix.
        let mut reported = lock(&self.reported);
        if !reported.insert((damage.file.to_string(), damage.offset)) {
            return Ok(());
        }
        append(&OsFileSystem, &self.path, damage.line().as_bytes())
            .map_err(|e| Error::io("cannot write the quarantine report", &*self.path, e))
    }
}

/// A damaged record: where, what, and the checksums where they are what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorruptRecord {
    /// The file.
    pub file: Arc<str>,
    /// Where the record begins: bytes from the start of the (unpacked) file.
    pub offset: u64,
    /// Which record it is, counted from 0 with the damaged ones.
    pub record: u64,
    /// What is wrong.
    pub what: String,
    /// The checksum that the file has, and the one of what is there.
    pub crc: Option<(u32, u32)>,
    /// Whether the next record's place is known.
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
            .at(format!("{}, record {}, byte {}", d.file, d.record, d.offset));
        let e = match d.crc {
            Some((expected, found)) => {
                e.because(format!("expected CRC {}, found {}", hex(expected), hex(found)))
            }
            None => e,
        };
        e.hint("get the file again, or read it with OnCorrupt::Skip or OnCorrupt::quarantine")
    }
}

/// Up to eight bytes as a number.
pub(crate) fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// TensorFlow's masked CRC-32C.
pub fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Reads the records of one file.
pub struct TfRecordReader {
    file: Arc<str>,
    window: ReadWindow,
    record: u64,
    on_corrupt: OnCorrupt,
    left_out: u64,
    over: bool,
}

impl TfRecordReader {
    /// Opens a file.
    ///
    /// # Errors
    /// `Io` when it cannot be opened or read.
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
        let input = match kind {
            TfRecordCompression::Gzip => RecordBytes::Packed(Box::new(MultiGzDecoder::new(file))),
            TfRecordCompression::Zlib => RecordBytes::Packed(Box::new(ZlibDecoder::new(file))),
            _ => RecordBytes::Plain(file, size),
        };
        Ok(TfRecordReader::new(name, input, on_corrupt))
    }

    /// Opens a plain file that somebody appends to: what was not there at first is read too, by [`TfRecordReader::seek`].
    pub(crate) fn open_growing(path: &Path) -> Result<TfRecordReader> {
        let file = InputFile::open(path).map_err(|e| Error::io("cannot open", path, e))?;
        Ok(TfRecordReader::new(
            path.display().to_string(),
            RecordBytes::Plain(file, u64::MAX),
            OnCorrupt::Fail,
        ))
    }

    /// Reads from memory; `name` stands for the file in messages.
    pub fn from_bytes(name: &str, bytes: Vec<u8>, on_corrupt: OnCorrupt) -> TfRecordReader {
        let packed = |input| TfRecordReader::new(name.into(), RecordBytes::Packed(input), on_corrupt);
        match detect(&bytes) {
            TfRecordCompression::Gzip => {
                packed(Box::new(MultiGzDecoder::new(io::Cursor::new(bytes)).take(UNPACKED)))
            }
            TfRecordCompression::Zlib => {
                packed(Box::new(ZlibDecoder::new(io::Cursor::new(bytes)).take(UNPACKED)))
            }
            _ => {
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

    /// The next record's bytes; `None` at the end.
    ///
    /// # Errors
    /// A damaged record, unless the policy leaves it out; reading errors of the system.
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

    /// File, byte and number of the next record, and how many were left out before it.
    pub fn place(&self) -> [u64; 3] {
        [self.window.offset, self.record, self.left_out]
    }

    /// Counts records that were left out elsewhere against the quota.
    pub fn carry(&mut self, left_out: u64) {
        self.left_out = left_out;
    }

    /// Whether the file is compressed (or in memory), so that places before the present one are out of reach.
    pub fn is_packed(&self) -> bool {
        self.window.is_packed()
    }

    /// Goes to a place that [`TfRecordReader::place`] gave for the same file.
    ///
    /// # Errors
    /// When the file has no such place any more.
    pub fn seek(&mut self, [offset, record, left_out]: [u64; 3]) -> Result<()> {
        self.window.go_to(offset).map_err(|e| {
            Error::new(ErrorKind::Data, "the data position is not in this file")
                .at(format!("{}, byte {offset}", self.file))
                .because(e.to_string())
                .hint("resume with the data that the position was taken from")
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
                self.damage(format!("the file ends within a record's header: {header} of 12 bytes"), None)
            );
        }
        let (len, crc) = self.window.header(0);
        let found = masked_crc(&self.window.unread()[..8]);
        if found != crc {
            return Err(self.damage("a record's length does not fit its checksum".into(), Some((crc, found))));
        }
        if self.window.left().is_some_and(|left| len > left.saturating_sub((HEADER + FOOTER) as u64)) {
            return Err(self.cut(len, self.window.left().unwrap_or(0)));
        }
        let whole = usize::try_from(len).ok().and_then(|n| n.checked_add(HEADER + FOOTER));
        let whole = whole.ok_or_else(|| self.cut(len, 0))?;
        let there = self.fill(whole)?;
        if there < whole {
            return Err(self.cut(len, there as u64));
        }
        let bytes = self.window.unread();
        let (data, footer) = bytes[HEADER..whole].split_at(whole - HEADER - FOOTER);
        let expected = little_endian(footer) as u32;
        let found = masked_crc(data);
        if found != expected {
            let mut damage =
                self.damage("a record's data do not fit their checksum".into(), Some((expected, found)));
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
            // A damaged or cut gzip stream: nothing after it can be read.
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof => {
                self.window.ended = true;
                self.damage(format!("the compressed data cannot be unpacked: {e}"), None)
            }
            _ => RecordFault::System(Error::io("cannot read", &*self.file, e)),
        })
    }

    fn cut(&self, len: u64, left: u64) -> RecordFault {
        self.damage(
            format!("the file is cut short: a record of {len} bytes, and {left} are left with its frame"),
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

    /// Applies the policy: `Err` is handed out, `Ok` goes on with the next record.
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
            return Err(Error::from(damage).because(format!("{quota} damaged records were left out already")));
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

    /// Looks for the next place where both checksums of a record fit. False: there is none.
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

/// Where bytes come from; a plain file has so many of them.
enum RecordBytes {
    Plain(InputFile, u64),
    Packed(Box<dyn Read + Send>),
}

/// A part of the file in memory: `bytes[start..end]` are read and not consumed.
struct ReadWindow {
    input: RecordBytes,
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// Of `start`, in the unpacked file.
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

    /// Bytes from here to the end of the file, where that is known.
    fn left(&self) -> Option<u64> {
        match self.input {
            RecordBytes::Plain(_, size) => Some(size.saturating_sub(self.offset)),
            RecordBytes::Packed(_) => None,
        }
    }

    /// Length and its checksum of a record that begins `at` bytes from here; they must be there.
    fn header(&self, at: usize) -> (u64, u32) {
        let bytes = &self.unread()[at..at + HEADER];
        let (len, crc) = bytes.split_at(8);
        (little_endian(len), little_endian(crc) as u32)
    }

    /// Reads until at least `n` bytes are unread or the file ends; says how many there are, at most `n`.
    fn fill(&mut self, n: usize) -> io::Result<usize> {
        while self.end - self.start < n && !self.ended {
            if self.start > 0 {
                self.bytes.copy_within(self.start..self.end, 0);
                self.end -= self.start;
                self.start = 0;
            }
            // Grows with what comes, not with what a length promises.
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

    /// To a byte at or after this one (any, in a plain file).
    fn go_to(&mut self, offset: u64) -> io::Result<()> {
        let cut = || io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter");
        if let RecordBytes::Plain(file, size) = &mut self.input {
            // What is in memory already is not read again.
            if let Some(ahead) =
                offset.checked_sub(self.offset).filter(|&n| n < (self.end - self.start) as u64)
            {
                self.ended = false;
                self.consume(ahead as usize);
                return Ok(());
            }
            if offset > *size {
                return Err(cut());
            }
            file.seek(SeekFrom::Start(offset))?;
            (self.start, self.end, self.offset, self.ended) = (0, 0, offset, false);
            return Ok(());
        }
        while self.offset < offset {
            let n = usize::try_from(offset - self.offset).unwrap_or(usize::MAX).min(BLOCK);
            let there = self.fill(n)?;
            if there == 0 {
                return Err(cut());
            }
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

/// A record whose length fits its checksum is plain, whatever else its first bytes may mean.
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

/// Writes the records of one file, under another name until it is whole.
pub struct TfRecordWriter<F: FileSystem = OsFileSystem> {
    out: TfRecordOutput<F>,
    path: PathBuf,
}

enum TfRecordOutput<F: FileSystem> {
    Plain(BufWriter<AtomicFile<F>>),
    Gzip(GzEncoder<BufWriter<AtomicFile<F>>>),
    Zlib(ZlibEncoder<BufWriter<AtomicFile<F>>>),
}

impl TfRecordWriter {
    /// Starts a file. It appears under its name with [`TfRecordWriter::finish`].
    pub fn create(path: impl AsRef<Path>, compression: TfRecordCompression) -> Result<TfRecordWriter> {
        TfRecordWriter::create_on(OsFileSystem, path, compression)
    }
}

impl<F: FileSystem> TfRecordWriter<F> {
    /// As [`TfRecordWriter::create`] on a given file system.
    pub fn create_on(
        files: F,
        path: impl AsRef<Path>,
        compression: TfRecordCompression,
    ) -> Result<TfRecordWriter<F>> {
        let path = path.as_ref().to_path_buf();
        let file = BufWriter::with_capacity(BLOCK, AtomicFile::create_partial(files, &path)?);
        let level = flate2::Compression::default();
        let out = match compression {
            TfRecordCompression::Auto | TfRecordCompression::None => TfRecordOutput::Plain(file),
            TfRecordCompression::Gzip => TfRecordOutput::Gzip(GzEncoder::new(file, level)),
            TfRecordCompression::Zlib => TfRecordOutput::Zlib(ZlibEncoder::new(file, level)),
        };
        Ok(TfRecordWriter { out, path })
    }

    /// Appends a record.
    pub fn write(&mut self, data: &[u8]) -> Result<()> {
        let written = match &mut self.out {
            TfRecordOutput::Plain(w) => frame(w, data),
            TfRecordOutput::Gzip(w) => frame(w, data),
            TfRecordOutput::Zlib(w) => frame(w, data),
        };
        written.map_err(|e| Error::io("cannot write", &self.path, e).hint("make room, or write elsewhere"))
    }

    /// Makes the file durable and gives it its name.
    pub fn finish(self) -> Result<()> {
        let buffered = match self.out {
            TfRecordOutput::Plain(w) => Ok(w),
            TfRecordOutput::Gzip(w) => w.finish(),
            TfRecordOutput::Zlib(w) => w.finish(),
        };
        let file = buffered.and_then(|w| w.into_inner().map_err(io::IntoInnerError::into_error));
        let wrong = |e| Error::io("cannot write", &self.path, e).hint("make room, or write elsewhere");
        file.map_err(wrong)?.publish()
    }
}

/// A record as it stands in the file.
pub fn frame(out: &mut (impl Write + ?Sized), data: &[u8]) -> io::Result<()> {
    let len = (data.len() as u64).to_le_bytes();
    out.write_all(&len)?;
    out.write_all(&masked_crc(&len).to_le_bytes())?;
    out.write_all(data)?;
    out.write_all(&masked_crc(data).to_le_bytes())
}

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
        assert!(
            all(&bad, OnCorrupt::Skip { quota: 0 })[1].as_ref().unwrap_err().contains("left out already")
        );
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
        let mut gz = GzEncoder::new(&mut packed, flate2::Compression::fast());
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
            assert!(r.next().unwrap().unwrap_err().to_string().contains("cut short"));
            assert!(r.window.bytes.len() <= 2 * BLOCK);
        }
    }
}
