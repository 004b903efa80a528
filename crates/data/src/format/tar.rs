//! Reads TAR archives (ustar, GNU, pax) sequentially.

use std::io::{self, Read};
use systole_base::{Error, Result, ensure, err};

const BLOCK: usize = 512;
/// Maximum length of a name.
const LONGEST_NAME: u64 = 1 << 16;

/// Sequential reader of the files of a TAR archive.
pub struct TarReader<R> {
    input: R,
    name: String,
    /// Number of bytes read.
    offset: u64,
}

/// File in a TAR archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TarEntry {
    /// Path in the archive.
    pub path: String,
    /// Content of the file.
    pub data: Vec<u8>,
    /// Byte offset in the archive.
    pub offset: u64,
}

impl<R: Read> TarReader<R> {
    /// Creates a TAR reader of `input`, which is at byte `offset` of the archive; `name` is used in messages.
    pub fn new(name: &str, input: R, offset: u64) -> TarReader<R> {
        TarReader { input, name: name.into(), offset }
    }

    /// Returns the next file of the TAR archive, or `None` at the end; skips directories, links etc.
    ///
    /// # Errors
    /// If the archive is damaged or truncated: nothing after that can be read.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<Result<TarEntry>> {
        self.read().map_err(|e| e.at(format!("{}, byte {}", self.name, self.offset))).transpose()
    }

    fn read(&mut self) -> Result<Option<TarEntry>> {
        let (begin, mut long_name) = (self.offset, None);
        loop {
            let mut header = [0; BLOCK];
            match self.fill(&mut header)? {
                0 => return Ok(None),
                BLOCK if header.iter().all(|&b| b == 0) => return Ok(None),
                BLOCK => {}
                _ => return Err(damaged("the archive is truncated")),
            }
            let expected = octal(&header[148..156])
                .ok_or_else(|| damaged("the checksum in a header is not a number"))?;
            let sum: u64 = header.iter().map(|&b| u64::from(b)).sum::<u64>()
                - header[148..156].iter().map(|&b| u64::from(b)).sum::<u64>()
                + 8 * u64::from(b' ');
            if sum != expected {
                return Err(damaged("a header does not match its checksum")
                    .because(format!("expected the header checksum {expected}, found {sum}")));
            }
            let size =
                octal(&header[124..136]).ok_or_else(|| damaged("the size of a file is not a number"))?;
            match header[156] {
                b'L' => {
                    let text = self.text(size)?;
                    long_name = Some(text.trim_end_matches('\0').to_string());
                }
                b'x' => long_name = pax_path(&self.text(size)?).or(long_name),
                0 | b'0' => {
                    let path = long_name.take().unwrap_or_else(|| ustar_path(&header));
                    return Ok(Some(TarEntry { path, data: self.content(size)?, offset: begin }));
                }
                _ => {
                    long_name = None;
                    self.leave_out(size)?;
                }
            }
        }
    }

    fn text(&mut self, size: u64) -> Result<String> {
        ensure!(size <= LONGEST_NAME, damaged("a name is too long"));
        Ok(String::from_utf8_lossy(&self.content(size)?).into_owned())
    }

    /// Reads a file's content and the padding after it. Memory grows with the data that arrives.
    fn content(&mut self, size: u64) -> Result<Vec<u8>> {
        let mut data = Vec::new();
        let got = (&mut self.input).take(size).read_to_end(&mut data).map_err(unreadable)?;
        self.offset += got as u64;
        if (got as u64) < size {
            return Err(
                damaged("the archive is truncated").because(format!("a file of {size} bytes has only {got}"))
            );
        }
        self.leave_out_padding(size)?;
        Ok(data)
    }

    fn leave_out(&mut self, size: u64) -> Result<()> {
        let got = io::copy(&mut (&mut self.input).take(size), &mut io::sink()).map_err(unreadable)?;
        self.offset += got;
        self.leave_out_padding(size)
    }

    fn leave_out_padding(&mut self, size: u64) -> Result<()> {
        let padding = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
        let got = io::copy(&mut (&mut self.input).take(padding), &mut io::sink()).map_err(unreadable)?;
        self.offset += got;
        if got < padding { Err(damaged("the archive is truncated")) } else { Ok(()) }
    }

    fn fill(&mut self, block: &mut [u8; BLOCK]) -> Result<usize> {
        let mut n = 0;
        while n < BLOCK {
            match self.input.read(&mut block[n..]) {
                Ok(0) => break,
                Ok(k) => n += k,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(unreadable(e)),
            }
        }
        self.offset += n as u64;
        Ok(n)
    }
}

fn damaged(what: &str) -> Error {
    err!(Data, "cannot read the TAR archive: {what}").hint("copy or download the archive again")
}

fn unreadable(e: io::Error) -> Error {
    damaged(&e.to_string())
}

/// Parses an octal number, or GNU's binary form if the first bit is set.
fn octal(field: &[u8]) -> Option<u64> {
    if let Some((first, rest)) = field.split_first().filter(|(first, _)| **first >= 0x80) {
        let (high, low) = rest.split_at(rest.len().saturating_sub(8));
        let is_small = *first == 0x80 && high.iter().all(|&b| b == 0);
        return is_small.then(|| low.iter().fold(0, |n, &b| n << 8 | u64::from(b)));
    }
    let text = std::str::from_utf8(field).ok()?.trim_matches(['\0', ' ']);
    if text.is_empty() { Some(0) } else { u64::from_str_radix(text, 8).ok() }
}

fn ustar_path(header: &[u8; BLOCK]) -> String {
    let text = |field: &[u8]| String::from_utf8_lossy(field).trim_end_matches('\0').to_string();
    let zero = |field: &[u8]| field.iter().position(|&b| b == 0).unwrap_or(field.len());
    let name = text(&header[..zero(&header[..100])]);
    let prefix = &header[345..500];
    let prefix = text(&prefix[..zero(prefix)]);
    let is_posix = &header[257..263] == b"ustar\0";
    if is_posix && !prefix.is_empty() { format!("{prefix}/{name}") } else { name }
}

/// Returns the path in a pax header's lines `LENGTH key=value`.
fn pax_path(text: &str) -> Option<String> {
    text.lines().find_map(|l| Some(l.split_once(' ')?.1.strip_prefix("path=")?.to_string()))
}

/// Returns the TAR archive entry of a file: header and padded data.
pub fn frame(path: &str, data: &[u8]) -> Vec<u8> {
    let mut header = [0u8; BLOCK];
    let name = &path.as_bytes()[..path.len().min(100)];
    header[..name.len()].copy_from_slice(name);
    header[100..108].copy_from_slice(b"0000644\0");
    header[124..136].copy_from_slice(format!("{:011o}\0", data.len()).as_bytes());
    header[136..148].copy_from_slice(b"00000000000\0");
    header[148..156].fill(b' ');
    header[156] = b'0';
    header[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u64 = header.iter().map(|&b| u64::from(b)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let padding = (BLOCK - data.len() % BLOCK) % BLOCK;
    [&header[..], data, &vec![0; padding]].concat()
}

// Names of the previous version.
systole_base::renamed! { Entry => TarEntry }
#[doc(hidden)]
pub use self::TarReader as Reader;

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Vec<Result<(String, Vec<u8>), String>> {
        let mut reader = TarReader::new("t.tar", bytes, 0);
        let next = || reader.next().map(|e| e.map(|e| (e.path, e.data)).map_err(|e| e.to_string()));
        // A damaged archive ends with its error.
        let mut over = false;
        std::iter::from_fn(next).take_while(|e| !std::mem::replace(&mut over, e.is_err())).collect()
    }

    fn archive() -> Vec<u8> {
        [frame("a/1.txt", b"one"), frame("b", &[7; 600]), frame("empty", b""), vec![0; 1024]].concat()
    }

    #[test]
    fn files_read_back() {
        let read = all(&archive());
        let expected = [("a/1.txt", b"one".to_vec()), ("b", vec![7; 600]), ("empty", vec![])];
        assert_eq!(read, expected.map(|(n, d)| Ok((n.to_string(), d))));
        let long = "x".repeat(150);
        let mut gnu = frame("././@LongLink", format!("{long}\0").as_bytes());
        gnu[156] = b'L';
        gnu[148..156].fill(b' ');
        let sum: u64 = gnu[..512].iter().map(|&b| u64::from(b)).sum();
        gnu[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        assert_eq!(all(&[gnu, frame("short", b"1")].concat()), [Ok((long, b"1".to_vec()))]);
    }

    #[test]
    fn damage_is_an_error_or_other_content_and_never_a_panic() {
        let good = archive();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            // A space is equivalent to a leading zero of a number, or to its end.
            let in_header = [0..512, 1024..1536, 2560..3584].iter().any(|r| r.contains(&(bit / 8)));
            let read = all(&bad);
            assert!(!in_header || read == all(&good) || read.iter().any(Result::is_err), "bit {bit}");
        }
        for cut in 0..3072 {
            let bounds = [0, 1024, 2560];
            assert_eq!(all(&good[..cut]).iter().any(Result::is_err), !bounds.contains(&cut), "cut at {cut}");
        }
    }
}
