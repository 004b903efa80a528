//! Seekable reader of an object in an object store: reads byte ranges, with read-ahead.

use super::{Bucket, block_on};
use object_store::{GetOptions, GetRange, ObjectStoreExt};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

/// Size of the first range: enough to detect the format, and all of a small object.
const FIRST: u64 = 256 << 10;
/// Maximum range size, reached by sequential reads. Two ranges are in memory at a time.
const LARGEST: u64 = 8 << 20;

/// Open object of an object store.
pub struct ObjectReader {
    source: Arc<OpenedObject>,
    position: u64,
    /// Start of the range in memory, and its bytes.
    start: u64,
    bytes: Vec<u8>,
    ahead: Option<RangeReadAhead>,
}

/// Version of an object at the time it was opened.
struct OpenedObject {
    bucket: Arc<Bucket>,
    key: object_store::path::Path,
    size: u64,
    /// Entity tag that identifies the version.
    tag: Option<String>,
}

/// Range that another thread is reading.
struct RangeReadAhead {
    start: u64,
    bytes: Receiver<io::Result<Vec<u8>>>,
}

impl ObjectReader {
    /// Opens an object and reads its first range, which also yields its size.
    pub(crate) fn open(path: &Path) -> io::Result<ObjectReader> {
        let (bucket, key) = Bucket::of(path).map_err(io::Error::other)?;
        let (source, bytes) = match get(&bucket, &key, 0..FIRST, None) {
            Ok((meta, bytes)) => (OpenedObject { size: meta.size, tag: meta.e_tag, bucket, key }, bytes),
            Err(e) => match block_on(bucket.store.head(&key)) {
                // Stores reject any range of an empty object.
                Ok(meta) if meta.size == 0 => {
                    (OpenedObject { size: 0, tag: meta.e_tag, bucket, key }, Vec::new())
                }
                _ => return Err(bucket.explain("open", key.as_ref(), None, &e)),
            },
        };
        Ok(ObjectReader { source: Arc::new(source), position: 0, start: 0, bytes, ahead: None })
    }

    /// Returns the size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.source.size
    }

    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Loads the range at the current position, and requests the next one if reading is sequential.
    fn turn(&mut self) -> io::Result<()> {
        let in_order = self.position == self.end();
        let length = if in_order { (self.bytes.len() as u64 * 4).clamp(FIRST, LARGEST) } else { FIRST };
        self.bytes = match self.ahead.take().filter(|a| a.start == self.position) {
            // The thread sends before it ends.
            Some(ahead) => ahead.bytes.recv().unwrap_or_else(|e| Err(io::Error::other(e)))?,
            None => self.source.range(self.position, length)?,
        };
        self.start = self.position;
        if in_order && self.end() < self.source.size {
            self.ahead = Some(RangeReadAhead::of(self.source.clone(), self.end(), (length * 4).min(LARGEST)));
        }
        Ok(())
    }
}

impl RangeReadAhead {
    fn of(source: Arc<OpenedObject>, start: u64, length: u64) -> RangeReadAhead {
        let (sender, bytes) = sync_channel(1);
        thread::spawn(move || {
            // The receiver may be gone.
            let _ = sender.send(source.range(start, length));
        });
        RangeReadAhead { start, bytes }
    }
}

impl OpenedObject {
    fn range(&self, start: u64, length: u64) -> io::Result<Vec<u8>> {
        let range = start..(start + length).min(self.size);
        let place = || Some(format!("bytes {} to {} of {}", range.start, range.end, self.size));
        let read = get(&self.bucket, &self.key, range.clone(), self.tag.clone());
        let (_, bytes) = read.map_err(|e| self.bucket.explain("read", self.key.as_ref(), place(), &e))?;
        match bytes.len() as u64 == range.end - range.start {
            true => Ok(bytes),
            false => Err(io::Error::other(format!("the store sent {} bytes for {range:?}", bytes.len()))),
        }
    }
}

fn get(
    bucket: &Bucket,
    key: &object_store::path::Path,
    range: Range<u64>,
    tag: Option<String>,
) -> object_store::Result<(object_store::ObjectMeta, Vec<u8>)> {
    let options =
        GetOptions { range: Some(GetRange::Bounded(range)), if_match: tag, ..GetOptions::default() };
    block_on(async {
        let result = bucket.store.get_opts(key, options).await?;
        let meta = result.meta.clone();
        Ok((meta, result.bytes().await?.to_vec()))
    })
}

impl Read for ObjectReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() || self.position >= self.source.size {
            return Ok(0);
        }
        if !(self.start..self.end()).contains(&self.position) {
            self.turn()?;
        }
        let there = (self.position.checked_sub(self.start)).and_then(|at| self.bytes.get(at as usize..));
        let there = there.filter(|bytes| !bytes.is_empty()).ok_or(io::ErrorKind::UnexpectedEof)?;
        let n = there.len().min(buffer.len());
        buffer[..n].copy_from_slice(&there[..n]);
        self.position += n as u64;
        Ok(n)
    }
}

impl Seek for ObjectReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let to = match to {
            SeekFrom::Start(n) => Some(n),
            SeekFrom::Current(n) => self.position.checked_add_signed(n),
            SeekFrom::End(n) => self.source.size.checked_add_signed(n),
        };
        self.position = to.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}
