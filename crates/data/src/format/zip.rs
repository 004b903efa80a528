//! ZIP archives, for `.npz` and model files.
//!
//! Reads stored and deflated entries with ZIP64 sizes, verifies checksums; writes stored entries.

use flate2::Crc;
use flate2::read::DeflateDecoder;
use std::borrow::Cow;
use std::io::Read;
use systole_base::{Error, Result, ensure, err};

const END: [u8; 4] = *b"PK\x05\x06";
const END64: [u8; 4] = *b"PK\x06\x06";
const LOCATOR: [u8; 4] = *b"PK\x06\x07";
const CENTRAL: [u8; 4] = *b"PK\x01\x02";
const LOCAL: [u8; 4] = *b"PK\x03\x04";

/// Reads the names and contents of all files in an archive.
///
/// # Errors
/// If it is damaged, truncated, encrypted or uses a compression other than deflate.
pub(crate) fn entries(bytes: &[u8]) -> Result<Vec<(String, Vec<u8>)>> {
    let zip = ZipBytes(bytes);
    let (mut at, count) = zip.directory()?;
    let mut out = Vec::new();
    for _ in 0..count {
        let (entry, next) = zip.entry(at)?;
        out.push((entry.name.clone(), zip.content(&entry)?));
        at = next;
    }
    Ok(out)
}

/// ZIP archive whose entries are decompressed on demand.
///
/// ```
/// use systole_data::format::zip::{StoredZipEntry, ZipArchive, archive};
/// let bytes = archive(vec![StoredZipEntry { name: "a.txt".into(), head: b"hello".to_vec(), data: &[] }]).concat();
/// let archive = ZipArchive::open(&bytes)?;
/// assert_eq!(archive.names().collect::<Vec<_>>(), ["a.txt"]);
/// assert_eq!(archive.read("a.txt", 100)?.unwrap(), b"hello");
/// # Ok::<(), systole_base::Error>(())
/// ```
pub struct ZipArchive<'a> {
    zip: ZipBytes<'a>,
    entries: Vec<ZipEntry>,
}

impl<'a> ZipArchive<'a> {
    /// Opens a ZIP archive: reads its central directory.
    ///
    /// # Errors
    /// If it is damaged, truncated or encrypted.
    pub fn open(bytes: &'a [u8]) -> Result<ZipArchive<'a>> {
        let zip = ZipBytes(bytes);
        let (mut at, count) = zip.directory()?;
        let mut entries = Vec::new();
        for _ in 0..count {
            let (entry, next) = zip.entry(at)?;
            entries.push(entry);
            at = next;
        }
        Ok(ZipArchive { zip, entries })
    }

    /// Returns the names of the ZIP archive's entries, in directory order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|e| e.name.as_str())
    }

    /// Reads an entry of the ZIP archive; `None` if there is none with this name.
    ///
    /// # Errors
    /// If it is damaged, or its size exceeds `limit` bytes.
    pub fn read(&self, name: &str, limit: usize) -> Result<Option<Vec<u8>>> {
        let Some(entry) = self.entries.iter().find(|e| e.name == name) else { return Ok(None) };
        if entry.size > limit {
            return Err(wrong(&format!("{name} has {} bytes, more than the limit of {limit}", entry.size)));
        }
        self.zip.content(entry).map(Some)
    }
}

struct ZipEntry {
    name: String,
    method: u64,
    crc: u32,
    packed: usize,
    size: usize,
    offset: usize,
}

struct ZipBytes<'a>(&'a [u8]);

impl ZipBytes<'_> {
    fn part(&self, at: usize, len: usize) -> Result<&[u8]> {
        at.checked_add(len)
            .and_then(|end| self.0.get(at..end))
            .ok_or_else(|| wrong("the archive is truncated"))
    }

    /// Reads a little-endian integer of up to 8 bytes.
    fn number(&self, at: usize, len: usize) -> Result<u64> {
        Ok(self.part(at, len)?.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)))
    }

    fn size(&self, at: usize, len: usize) -> Result<usize> {
        usize::try_from(self.number(at, len)?).map_err(|_| wrong("a size is too large"))
    }

    /// Returns the offset of the list of entries, and their number.
    fn directory(&self) -> Result<(usize, usize)> {
        let last = self.0.len().saturating_sub(22 + 65_535);
        let end = (last..self.0.len()).rev().find(|&at| self.0[at..].starts_with(&END));
        let end = end.ok_or_else(|| wrong("it has no central directory"))?;
        self.part(end, 22)?;
        let (mut count, mut at) = (self.size(end + 10, 2)?, self.size(end + 16, 4)?);
        if end >= 20 && self.0[end - 20..].starts_with(&LOCATOR) {
            let large = self.size(end - 12, 8)?;
            ensure!(self.part(large, 4)? == END64, wrong("its central directory is damaged"));
            (count, at) = (self.size(large + 32, 8)?, self.size(large + 48, 8)?);
        }
        // An entry has at least 46 bytes.
        ensure!(count <= self.0.len() / 46, wrong("its central directory is damaged"));
        Ok((at, count))
    }

    fn entry(&self, at: usize) -> Result<(ZipEntry, usize)> {
        ensure!(self.part(at, 4)? == CENTRAL, wrong("its central directory is damaged"));
        let (name, extra, comment) = (self.size(at + 28, 2)?, self.size(at + 30, 2)?, self.size(at + 32, 2)?);
        let text = String::from_utf8_lossy(self.part(at + 46, name)?).into_owned();
        let mut entry = ZipEntry {
            name: text,
            method: self.number(at + 10, 2)?,
            crc: self.number(at + 16, 4)? as u32,
            packed: self.size(at + 20, 4)?,
            size: self.size(at + 24, 4)?,
            offset: self.size(at + 42, 4)?,
        };
        ensure!(self.number(at + 8, 2)? & 1 != 1, wrong("it is encrypted"));
        let extra_at = at + 46 + name;
        self.large_sizes(&mut entry, extra_at, extra)?;
        Ok((entry, extra_at + extra + comment))
    }

    /// Reads ZIP64 sizes, which are in an extra field, in this order, if the 32-bit one is all ones.
    fn large_sizes(&self, entry: &mut ZipEntry, mut at: usize, len: usize) -> Result<()> {
        let end = at + len;
        while at + 4 <= end {
            let (kind, size) = (self.number(at, 2)?, self.size(at + 2, 2)?);
            if kind == 1 {
                let mut from = at + 4;
                for value in [&mut entry.size, &mut entry.packed, &mut entry.offset] {
                    if *value == 0xffff_ffff {
                        *value = self.size(from, 8)?;
                        from += 8;
                    }
                }
            }
            at += 4 + size;
        }
        Ok(())
    }

    fn content(&self, entry: &ZipEntry) -> Result<Vec<u8>> {
        if self.part(entry.offset, 4)? != LOCAL {
            return Err(wrong("an entry is not at the offset in the directory"));
        }
        let start = entry.offset + 30 + self.size(entry.offset + 26, 2)? + self.size(entry.offset + 28, 2)?;
        let packed = self.part(start, entry.packed)?;
        let mut data = Vec::new();
        match entry.method {
            0 => data.extend(packed),
            8 => {
                // One extra byte reveals a wrong size; memory grows with the data that arrives.
                let limit = (entry.size as u64).saturating_add(1);
                let unpacked = DeflateDecoder::new(packed).take(limit).read_to_end(&mut data);
                unpacked.map_err(|e| wrong(&e.to_string()))?;
            }
            other => return Err(wrong(&format!("compression method {other} is not supported"))),
        }
        let mut crc = Crc::new();
        crc.update(&data);
        if data.len() != entry.size || crc.sum() != entry.crc {
            return Err(wrong(&format!("the content of {} does not match its checksum", entry.name)));
        }
        Ok(data)
    }
}

/// File to store in a ZIP archive uncompressed.
pub struct StoredZipEntry<'a> {
    /// Name in the archive.
    pub name: String,
    /// First bytes of the content.
    pub head: Vec<u8>,
    /// Remaining bytes of the content.
    pub data: &'a [u8],
}

/// Sizes from this value on are stored in an extra field (ZIP64).
const LARGE: u64 = 0xffff_ffff;

/// Returns consecutive parts of a ZIP archive with these files.
pub fn archive(files: Vec<StoredZipEntry<'_>>) -> Vec<Cow<'_, [u8]>> {
    let (mut parts, mut directory, mut at) = (Vec::new(), Vec::new(), 0u64);
    let count = files.len() as u64;
    for StoredZipEntry { name, head, data } in files {
        let mut crc = Crc::new();
        crc.update(&head);
        crc.update(data);
        let size = head.len() as u64 + data.len() as u64;
        let is_large = size >= LARGE;
        let sizes = if is_large { [size, size].map(u64::to_le_bytes).concat() } else { Vec::new() };
        let begin = entry(&LOCAL, &[], &name, crc.sum(), size, &sizes, &[]);
        let offset = if at >= LARGE { at.to_le_bytes().to_vec() } else { Vec::new() };
        // Attributes and disk number are 0.
        let place = [&[0; 10][..], &(at.min(LARGE) as u32).to_le_bytes()].concat();
        directory.extend(entry(
            &CENTRAL,
            &[45, 0],
            &name,
            crc.sum(),
            size,
            &[sizes, offset].concat(),
            &place,
        ));
        at += (begin.len() + head.len() + data.len()) as u64;
        parts.extend([Cow::Owned(begin), Cow::Owned(head), Cow::Borrowed(data)]);
    }
    parts.push(Cow::Owned([&directory[..], &end(count, directory.len() as u64, at)].concat()));
    parts
}

/// Returns the header before a file, or its entry in the central directory.
fn entry(magic: &[u8; 4], by: &[u8], name: &str, crc: u32, size: u64, large: &[u8], place: &[u8]) -> Vec<u8> {
    let short = (size.min(LARGE) as u32).to_le_bytes();
    let field = match large.len() {
        0 => Vec::new(),
        n => [&[1, 0][..], &(n as u16).to_le_bytes(), large].concat(),
    };
    // Version 4.5, no flags, stored, 1 January 1980.
    let common = [&[45, 0, 0, 0, 0, 0, 0, 0, 33, 0][..], &crc.to_le_bytes(), &short, &short].concat();
    let lengths = [name.len() as u16, field.len() as u16].map(u16::to_le_bytes).concat();
    [magic, by, &common, &lengths, place, name.as_bytes(), &field].concat()
}

/// Returns the end of an archive whose central directory of `count` files has `size` bytes at offset `at`.
fn end(count: u64, size: u64, at: u64) -> Vec<u8> {
    let mut out = Vec::new();
    if count >= 0xffff || size >= LARGE || at >= LARGE {
        out.extend([&END64[..], &44u64.to_le_bytes(), &[45, 0, 45, 0], &[0; 8]].concat());
        out.extend([count, count, size, at].map(u64::to_le_bytes).concat());
        out.extend([&LOCATOR[..], &[0; 4], &(at + size).to_le_bytes(), &1u32.to_le_bytes()].concat());
    }
    let short = (count.min(0xffff) as u16).to_le_bytes();
    out.extend([&END[..], &[0; 4], &short, &short].concat());
    out.extend([size, at].map(|n| (n.min(LARGE) as u32).to_le_bytes()).concat());
    out.extend([0, 0]);
    out
}

fn wrong(why: &str) -> Error {
    err!(Data, "invalid ZIP archive").because(why).hint("download the file again")
}

// Names of the previous version.
#[doc(hidden)]
pub use self::{StoredZipEntry as Stored, ZipArchive as Archive};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::npy;
    use systole_base::ErrorKind;
    use systole_base::Literal;

    /// numpy.savez_compressed(a=arange(3, dtype="i4"), b=ones(2, "f4")).
    const NPZ: &[u8] = include_bytes!("../../fixtures/two.npz");

    #[test]
    fn an_archive_of_numpy_is_read() {
        let arrays = npy::npz_from_bytes("two.npz", NPZ).unwrap();
        assert_eq!(arrays[0], ("a".into(), Literal::from_slice([3], &[0i32, 1, 2]).unwrap()));
        assert_eq!(arrays[1], ("b".into(), Literal::from_slice([2], &[1f32, 1.0]).unwrap()));
    }

    #[test]
    fn damage_is_found_and_never_a_panic() {
        let whole = entries(NPZ).unwrap();
        for bit in 0..NPZ.len() * 8 {
            let mut bad = NPZ.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            // Times, versions and names are not covered by a checksum; contents are.
            if let Ok(read) = entries(&bad) {
                assert!(read.iter().zip(&whole).all(|(a, b)| a.1 == b.1), "bit {bit}");
            }
        }
        for cut in 0..NPZ.len() {
            assert!(entries(&NPZ[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn an_entry_may_have_as_many_bytes_as_the_limit() {
        let file = StoredZipEntry { name: "a".into(), head: b"hello".to_vec(), data: &[] };
        let bytes = archive(vec![file]).concat();
        let zip = ZipArchive::open(&bytes).unwrap();
        assert_eq!(zip.read("a", 5).unwrap().unwrap(), b"hello");
        assert_eq!(zip.read("a", 4).unwrap_err().kind(), ErrorKind::Data);
    }

    #[test]
    fn sizes_and_offsets_of_64_bits_are_read() {
        let mut crc = Crc::new();
        crc.update(b"hello");
        let before = archive(vec![StoredZipEntry { name: "b".into(), head: vec![1; 9], data: &[] }]).concat();
        let (crc, offset) = (crc.sum(), before.len() as u64);
        let words = |values: &[u64]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let local = entry(&LOCAL, &[], "a", crc, LARGE, &words(&[5, 5]), &[]);
        let place = [&[0; 10][..], &u32::MAX.to_le_bytes()].concat();
        let directory = entry(&CENTRAL, &[45, 0], "a", crc, LARGE, &words(&[5, 5, offset]), &place);
        let at = offset + local.len() as u64 + 5;
        let bytes = [before, local, b"hello".to_vec(), directory.clone(), end(1, directory.len() as u64, at)];
        assert_eq!(entries(&bytes.concat()).unwrap(), [("a".to_string(), b"hello".to_vec())]);
    }
}
