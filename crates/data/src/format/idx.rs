//! IDX files, the array format of MNIST, plain or gzip.
//!
//! Layout: magic `00 00 TT RR`, RR big-endian u32 sizes, then big-endian elements. Gzip is detected by content, not by
//! name.
//!
//! All header values are validated before use: memory stays within what the file can hold.

use crate::file_system::{OsFileSystem, write_atomically};
use crate::input_file::InputFile;
use flate2::bufread::MultiGzDecoder;
use flate2::{Compression, GzBuilder};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use systole_base::{DType, Error, ErrorKind, Literal, Result, Shape, TensorType, err};

/// Maximum rank; a larger rank byte means that the file is not IDX.
const MAX_RANK: u8 = 8;
/// Maximum expansion factor of deflate (about 1,032).
const MAX_EXPANSION: u64 = 1040;
/// Size up to which an array is allocated from the header; beyond it, memory grows with the data that arrives. Low in
/// tests, so that small files cover both paths.
const TRUSTED: usize = if cfg!(test) { 32 } else { 64 << 20 };

/// Reads an IDX file, plain or gzip: `→ T[…]` with T one of u8, i8, i16, i32, f32, f64.
///
/// # Errors
/// `Io` if the file cannot be read; `Data` if it is invalid: wrong magic, sizes that the file cannot hold, too few or
/// too many bytes, damaged gzip. Each with file, byte offset, expected and found value.
pub fn read(path: impl AsRef<Path>) -> Result<Literal> {
    let path = path.as_ref();
    let file = InputFile::open(path).map_err(|e| {
        Error::io("cannot open", path, e)
            .hint("check the path; compressed (.gz) and uncompressed files are supported")
    })?;
    let size = file.size().map_err(|e| Error::io("cannot read", path, e))?;
    parse(&path.display().to_string(), size, BufReader::with_capacity(1 << 16, file))
}

/// Reads IDX data, plain or gzip, from memory; `name` is used in messages.
pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<Literal> {
    parse(name, bytes.len() as u64, bytes)
}

/// Writes an array as an IDX file. `gzip` compresses without a time stamp, so equal arrays yield equal files.
///
/// # Errors
/// If IDX does not support the element type, a size exceeds u32, or the file cannot be written.
pub fn write(path: impl AsRef<Path>, x: &Literal, gzip: bool) -> Result<()> {
    write_atomically(&OsFileSystem, path.as_ref(), &[&to_bytes(x, gzip)?])
}

/// Returns the bytes of an IDX file.
pub fn to_bytes(x: &Literal, gzip: bool) -> Result<Vec<u8>> {
    let code = TYPES.iter().find(|(_, d)| *d == x.dtype()).map(|(code, _)| *code);
    let code = code.filter(|_| x.ty().rank() <= MAX_RANK as usize).ok_or_else(|| {
        err!(Data, "IDX does not support arrays of type {}", x.ty())
            .hint("use an element type of ui8, i8, i16, i32, f32 or f64, and a rank of at most 8")
    })?;
    let mut out = vec![0, 0, code, x.ty().rank() as u8];
    for &d in x.shape().iter() {
        let d = u32::try_from(d).map_err(|_| err!(Data, "IDX sizes are 32-bit, but {} is larger", x.ty()))?;
        out.extend(d.to_be_bytes());
    }
    let start = out.len();
    out.extend(x.bytes());
    swap(&mut out[start..], x.dtype().size());
    if !gzip {
        return Ok(out);
    }
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::default());
    let packed = encoder.write_all(&out).and_then(|()| encoder.finish());
    packed.map_err(|e| err!(Io, "cannot compress").because(e.to_string()))
}

/// Checks that labels match images: `images: T[N, …], labels: integer[N]`, each label in `0..num_classes`.
///
/// # Errors
/// If the counts differ (names both files) or a label is out of range (with its index and byte offset in the IDX file).
pub fn check_labels(
    (images_name, images): (&str, &Literal),
    (labels_name, labels): (&str, &Literal),
    num_classes: usize,
) -> Result<()> {
    let n = match (images.shape().first(), labels.shape().dims()) {
        (Some(&m), &[n]) if m == n && labels.dtype().is_int() => n,
        _ => {
            return Err(err!(Data, "images and labels do not match")
                .at(format!("{images_name} and {labels_name}"))
                .because(format!("the images are {}, but the labels are {}", images.ty(), labels.ty()))
                .hint("use two files of the same split (train or t10k)"));
        }
    };
    let label = |i: usize| labels.get(i).as_i64();
    let wrong = match labels.as_slice::<u8>() {
        Ok(bytes) => bytes.iter().position(|&b| b as usize >= num_classes),
        Err(_) => (0..n).find(|&i| usize::try_from(label(i)).map_or(true, |l| l >= num_classes)),
    };
    match wrong {
        None => Ok(()),
        Some(i) => Err(err!(Data, "label {} is out of range", label(i))
            .at(format!("{labels_name}, label {i}, byte {}", 8 + i * labels.dtype().size()))
            .because(format!(
                "the dataset has {num_classes} classes, so labels must be 0 to {}",
                num_classes.saturating_sub(1)
            ))
            .hint("check the file: it is damaged or belongs to another dataset")),
    }
}

const TYPES: [(u8, DType); 6] = [
    (0x08, DType::U8),
    (0x09, DType::I8),
    (0x0B, DType::I16),
    (0x0C, DType::I32),
    (0x0D, DType::F32),
    (0x0E, DType::F64),
];

fn parse(name: &str, size: u64, mut input: impl BufRead) -> Result<Literal> {
    let start = input.fill_buf().map_err(|e| Error::io("cannot read", name, e))?;
    if start.is_empty() {
        return Err(err!(Data, "the IDX file is empty").at(name).hint("download the IDX file again"));
    }
    // An IDX file cannot start with 1f, so a file truncated after one byte is reported as gzip.
    if start[0] == 0x1f {
        let mut at = IdxByteSource { name, packed: true, reader: MultiGzDecoder::new(input), offset: 0 };
        at.array(size.saturating_mul(MAX_EXPANSION))
    } else {
        IdxByteSource { name, packed: false, reader: input, offset: 0 }.array(size)
    }
}

struct IdxByteSource<'a, R> {
    name: &'a str,
    packed: bool,
    reader: R,
    /// Offset in the uncompressed data.
    offset: u64,
}

impl<R: Read> IdxByteSource<'_, R> {
    /// Reads the array; `limit` is the maximum number of bytes that can follow.
    fn array(&mut self, limit: u64) -> Result<Literal> {
        let ty = self.header()?;
        let expected = ty.shape.checked_elements().and_then(|n| n.checked_mul(ty.dtype.size()));
        let bytes = match expected.filter(|&n| n as u64 <= limit.saturating_sub(self.offset)) {
            Some(n) => n,
            None => {
                let found = limit.saturating_sub(self.offset);
                let promised =
                    expected.map_or("more bytes than can be counted".into(), |n| format!("{n} bytes"));
                return Err(self.lie(
                    format!("the header specifies {promised} of data"),
                    format!("type {ty}; the file can hold at most {found}"),
                ));
            }
        };
        let mut x = self.body(&ty, bytes)?;
        self.end(bytes)?;
        swap(x.bytes_mut(), ty.dtype.size());
        Ok(x)
    }

    fn body(&mut self, ty: &TensorType, bytes: usize) -> Result<Literal> {
        let short = |found: usize| {
            (
                "the file is truncated".into(),
                format!("{ty} needs {bytes} bytes after the header, found {found}"),
            )
        };
        if bytes <= TRUSTED {
            let mut x = Literal::zeros(ty.clone());
            let (found, result) = read_into(&mut self.reader, x.bytes_mut());
            self.offset += found as u64;
            result.map_err(|e| self.failed(e))?;
            let (what, why) = short(found);
            return if found == bytes { Ok(x) } else { Err(self.lie(what, why)) };
        }
        let mut data = Vec::new();
        self.fill(&mut data, bytes as u64)?;
        if data.len() < bytes {
            let (what, why) = short(data.len());
            return Err(self.lie(what, why));
        }
        Literal::from_bytes(ty.clone(), &data)
    }

    fn header(&mut self) -> Result<TensorType> {
        let magic: [u8; 4] = self.exact("the magic number")?;
        let dtype = TYPES.iter().find(|(code, _)| *code == magic[2]).map(|(_, d)| *d);
        let (Some(dtype), [0, 0, _, rank @ 1..=MAX_RANK]) = (dtype, magic) else {
            self.offset = 0;
            return Err(self.lie(
                "this is not an IDX file".into(),
                format!(
                    "expected 00 00, a type of 08 09 0b 0c 0d 0e and a rank of 1 to {MAX_RANK}, found {:02x} {:02x} {:02x} {:02x}",
                    magic[0], magic[1], magic[2], magic[3]
                ),
            ));
        };
        let dims: Result<Vec<usize>> = (0..rank)
            .map(|_| Ok(u32::from_be_bytes(self.exact("the sizes in the header")?) as usize))
            .collect();
        Ok(TensorType::new(dtype, Shape::from(dims?)))
    }

    fn exact<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let mut bytes = Vec::new();
        self.fill(&mut bytes, N as u64)?;
        bytes.try_into().map_err(|bytes: Vec<u8>| {
            self.lie(
                "the file is truncated".into(),
                format!("{what}: expected {N} bytes, found {}", bytes.len()),
            )
        })
    }

    /// Appends up to `n` bytes; the vector grows with the data that arrives.
    fn fill(&mut self, into: &mut Vec<u8>, n: u64) -> Result<()> {
        let before = into.len();
        let result = (&mut self.reader).take(n).read_to_end(into);
        self.offset += (into.len() - before) as u64;
        result.map(drop).map_err(|e| self.failed(e))
    }

    fn end(&mut self, bytes: usize) -> Result<()> {
        let at = self.offset;
        let mut more = Vec::new();
        // Reading past the last byte also makes gzip verify its checksum.
        self.fill(&mut more, 1)?;
        if more.is_empty() {
            return Ok(());
        }
        self.offset = at;
        Err(self.lie(
            "the file has more data than its header specifies".into(),
            format!("the header specifies {bytes} bytes"),
        ))
    }

    fn failed(&self, e: io::Error) -> Error {
        if !self.packed {
            return Error::io("cannot read", self.name, e);
        }
        let what = if e.kind() == io::ErrorKind::UnexpectedEof { "is truncated" } else { "is damaged" };
        self.lie(format!("the gzip file {what}"), e.to_string())
    }

    fn lie(&self, what: String, why: String) -> Error {
        let unpacked = if self.packed { " of the uncompressed data" } else { "" };
        Error::new(ErrorKind::Data, what)
            .at(format!("{}, byte {}{unpacked}", self.name, self.offset))
            .because(why)
            .hint("download the IDX file again")
    }
}

/// Fills `buffer` as far as possible; returns the bytes read, and the error that ended reading, if any.
fn read_into(reader: &mut impl Read, buffer: &mut [u8]) -> (usize, io::Result<()>) {
    let mut at = 0;
    while at < buffer.len() {
        match reader.read(&mut buffer[at..]) {
            Ok(0) => break,
            Ok(n) => at += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return (at, Err(e)),
        }
    }
    (at, Ok(()))
}

/// Swaps the byte order.
fn swap(bytes: &mut [u8], size: usize) {
    if size > 1 {
        bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_testing::assert_error;

    fn sample() -> Literal {
        Literal::from_slice([3, 4, 5], &(0..60).collect::<Vec<u8>>()).unwrap()
    }

    #[test]
    fn every_element_type_round_trips_plain_and_packed() {
        for (_, dtype) in TYPES {
            for shape in [Shape::from([2, 3]), Shape::from([0, 7]), Shape::from([1, 1, 1, 1, 1, 1, 1, 6])] {
                let n = shape.elements();
                let x = Literal::from_slice(shape, &[-3.0, 0.0, 1.0, 2.0, 100.0, 127.0][..n])
                    .unwrap()
                    .convert(dtype);
                for gzip in [false, true] {
                    assert_eq!(from_bytes("x", &to_bytes(&x, gzip).unwrap()).unwrap(), x);
                }
            }
        }
        let i16s = to_bytes(&Literal::from_slice([1], &[0x0102i16]).unwrap(), false).unwrap();
        assert_eq!(i16s, [0, 0, 0x0b, 1, 0, 0, 0, 1, 1, 2]);
        assert!(to_bytes(&Literal::from_slice([1], &[1u64]).unwrap(), false).is_err());
    }

    #[test]
    fn gzip_is_told_by_content() {
        let dir = std::env::temp_dir().join(format!("systole-idx-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("no-gz-in-the-name");
        write(&path, &sample(), true).unwrap();
        assert_eq!(read(&path).unwrap(), sample());
        let e = read(dir.join("absent")).unwrap_err();
        assert!(e.kind() == ErrorKind::Io && e.to_string().contains("absent"));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn lies_are_told_with_place_expected_and_found() {
        let good = to_bytes(&sample(), false).unwrap();
        let with = |at: usize, byte: u8| {
            let mut bad = good.clone();
            bad[at] = byte;
            bad
        };
        let longer = [&good[..], &[9]].concat();
        let cases: [(&str, &[u8], &[&str]); 8] = [
            ("magic", &with(1, 7), &["not an IDX file", "byte 0", "00 07 08 03"]),
            ("type", &with(2, 0x0a), &["not an IDX file", "byte 0"]),
            ("rank", &with(3, 200), &["not an IDX file", "c8"]),
            ("cut", &good[..30], &["specifies 60 bytes", "at most 14", "byte 16"]),
            ("header", &good[..9], &["truncated", "byte 9"]),
            ("longer", &longer, &["more data", "byte 76", "60"]),
            (
                "absurd",
                &[&[0, 0, 8, 4][..], &[0xff; 16], &[1, 2]].concat(),
                &["more bytes than can be counted"],
            ),
            ("empty", &[], &["empty"]),
        ];
        for (name, bytes, parts) in cases {
            let e = from_bytes(name, bytes).unwrap_err();
            let text = e.to_string();
            assert!(text.contains(name) && e.kind() == ErrorKind::Data && e.hint_text().is_some(), "{text}");
            assert!(parts.iter().all(|p| text.contains(p)), "{text}");
        }
        let packed = to_bytes(&sample(), true).unwrap();
        let trailing = [&packed[..], b"rubbish"].concat();
        assert!(from_bytes("t", &trailing).unwrap_err().to_string().contains("gzip"));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_an_error_or_harmless() {
        let small = Literal::from_slice([3, 2, 3], &(0..18).collect::<Vec<u8>>()).unwrap();
        for (x, gzip) in [(sample(), true), (sample(), false), (small.clone(), true), (small, false)] {
            let good = to_bytes(&x, gzip).unwrap();
            let mut harmless = 0;
            for bit in 0..good.len() * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                match from_bytes("flipped", &bad) {
                    Ok(y) if y == x => harmless += 1,
                    // Without a checksum, a flipped bit in an element is not detected.
                    Ok(y) => assert!(!gzip && (bit / 8 >= 16 || y.dtype() == DType::I8), "bit {bit}"),
                    Err(e) => assert!(e.to_string().contains("flipped"), "{e}"),
                }
            }
            assert!(gzip || harmless == 0);
            for cut in 0..good.len() {
                assert!(from_bytes("cut", &good[..cut]).is_err(), "cut at {cut}");
            }
        }
    }

    #[test]
    fn labels_must_fit_images_and_classes() {
        let images = sample();
        let labels = |l: &[u8]| Literal::from_slice([l.len()], l).unwrap();
        let check = |l: &[u8]| check_labels(("images", &images), ("labels", &labels(l)), 10);
        check(&[0, 9, 3]).unwrap();
        let e = check(&[0, 9]).unwrap_err();
        assert_error(&e, ErrorKind::Data, &["images", "labels", "ui8[3, 4, 5]", "ui8[2]"]);
        let e = check(&[0, 10, 3]).unwrap_err().to_string();
        assert!(e.contains("label 10") && e.contains("byte 9") && e.contains("10 classes"), "{e}");
        let negative = labels(&[1, 2, 3]).convert(DType::I32);
        let mut negative = negative;
        negative.as_mut_slice::<i32>().unwrap()[2] = -1;
        assert!(
            check_labels(("i", &images), ("l", &negative), 10).unwrap_err().to_string().contains("byte 16")
        );
    }
}
