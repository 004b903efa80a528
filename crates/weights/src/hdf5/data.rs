//! Reads HDF5 datasets and text attributes: datatypes, dataspaces, layouts (contiguous, compact, chunked), filters.

use super::bytes::{Hdf5Bytes, little, text_of, unoffered, wrong};
use super::header::{ObjectHeader, kind};
use crate::arrays::{self, UnpackLimit};
use flate2::read::ZlibDecoder;
use std::io::Read;
use systole_ir::{DType, Literal, Result, ensure};

const LEVELS: u64 = 32;

/// Class of an element type.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Hdf5Class {
    Number(DType),
    /// Fixed-length strings.
    Text,
    /// Variable-length strings, stored elsewhere in the file.
    VariableText,
    Other,
}

struct Hdf5Type {
    kind: Hdf5Class,
    size: usize,
    big: bool,
}

fn datatype(file: &Hdf5Bytes<'_>, at: usize) -> Result<Hdf5Type> {
    let (class, bits, size) = (file.number(at, 1)? & 15, file.number(at + 1, 3)?, file.size(at + 4, 4)?);
    let number = match (class, size, bits & 8 != 0) {
        (0, 1, true) => Some(DType::I8),
        (0, 2, true) => Some(DType::I16),
        (0, 4, true) => Some(DType::I32),
        (0, 8, true) => Some(DType::I64),
        (0, 1, false) => Some(DType::U8),
        (0, 2, false) => Some(DType::U16),
        (0, 4, false) => Some(DType::U32),
        (0, 8, false) => Some(DType::U64),
        (1, 2, _) => Some(DType::F16),
        (1, 4, _) => Some(DType::F32),
        (1, 8, _) => Some(DType::F64),
        // An enumeration of bytes: h5py's bools.
        (8, 1, _) => Some(DType::I8),
        _ => None,
    };
    let kind = match (number, class) {
        (Some(dtype), _) => Hdf5Class::Number(dtype),
        (None, 3) => Hdf5Class::Text,
        (None, 9) if bits & 15 == 1 => Hdf5Class::VariableText,
        _ => Hdf5Class::Other,
    };
    Ok(Hdf5Type { kind, size, big: class < 2 && bits & 1 == 1 })
}

/// Reads dimension sizes; a scalar has none. `None` for a null dataspace.
fn dataspace(file: &Hdf5Bytes<'_>, at: usize) -> Result<Option<Vec<usize>>> {
    let (version, rank) = (file.number(at, 1)?, file.size(at + 1, 1)?);
    let (start, kind) = match version {
        1 => (at + 8, 1),
        2 => (at + 4, file.number(at + 3, 1)?),
        _ => return Err(wrong("unknown dataspace version")),
    };
    ensure!(rank <= 16, wrong(&format!("an array has {rank} dimensions")));
    if kind == 2 {
        return Ok(None);
    }
    (0..rank).map(|i| file.size(start + i * 8, 8)).collect::<Result<Vec<_>>>().map(Some)
}

/// Reads the array of a dataset; `None` if its elements are not numbers.
pub(crate) fn array(
    file: &Hdf5Bytes<'_>,
    header: &ObjectHeader,
    budget: &mut UnpackLimit,
) -> Result<Option<Literal>> {
    let need = |kind, what: &str| header.find(kind).ok_or_else(|| wrong(&format!("a dataset has no {what}")));
    let ty = datatype(file, need(kind::DATATYPE, "type")?.0)?;
    let dims = dataspace(file, need(kind::DATASPACE, "shape")?.0)?;
    let (Hdf5Class::Number(dtype), Some(dims)) = (ty.kind, dims) else { return Ok(None) };
    let total = arrays::bytes_of(dtype, &dims)?;
    let (at, _) = need(kind::LAYOUT, "place")?;
    budget.take(total)?;
    let mut bytes = match layout(file, at, dims.len())? {
        Hdf5Layout::Inside(at, length) => {
            let bytes = file.part(at, length)?;
            bytes.get(..total).ok_or_else(|| wrong("an array is shorter than its shape"))?.to_vec()
        }
        Hdf5Layout::Nowhere => vec![0; total],
        Hdf5Layout::Chunks { tree, sizes } => {
            let filters = match header.find(kind::FILTERS) {
                Some((at, _)) => filters(file, at)?,
                None => Vec::new(),
            };
            let mut out =
                Hdf5Chunks { file, dims: &dims, size: ty.size, sizes: &sizes, filters, out: vec![0; total] };
            if let Some(tree) = tree.filter(|_| total > 0) {
                out.nodes(tree, LEVELS, budget)?;
            }
            out.out
        }
    };
    if ty.big {
        bytes.chunks_mut(ty.size).for_each(<[u8]>::reverse);
    }
    arrays::literal(dtype, &dims, &bytes).map(Some)
}

enum Hdf5Layout {
    Inside(usize, usize),
    /// Not allocated: never written.
    Nowhere,
    Chunks {
        tree: Option<usize>,
        sizes: Vec<usize>,
    },
}

fn layout(file: &Hdf5Bytes<'_>, at: usize, rank: usize) -> Result<Hdf5Layout> {
    let place = |at: usize| -> Result<Option<usize>> {
        if file.number(at, 8)? == u64::MAX { Ok(None) } else { file.address(at).map(Some) }
    };
    let sizes = |at: usize| (0..rank).map(|i| file.size(at + i * 4, 4)).collect::<Result<Vec<_>>>();
    let version = file.number(at, 1)?;
    match (version, file.number(at + 1, 1)?) {
        (3 | 4, 0) => Ok(Hdf5Layout::Inside(at + 4, file.size(at + 2, 2)?)),
        (3 | 4, 1) => Ok(match place(at + 2)? {
            Some(to) => Hdf5Layout::Inside(to, file.size(at + 10, 8)?),
            None => Hdf5Layout::Nowhere,
        }),
        (3, 2) => {
            if file.size(at + 2, 1)? != rank + 1 {
                return Err(wrong("the rank of a chunk differs from that of its array"));
            }
            let sizes = sizes(at + 11)?;
            ensure!(!sizes.contains(&0), wrong("a chunk has size 0"));
            Ok(Hdf5Layout::Chunks { tree: place(at + 3)?, sizes })
        }
        (1 | 2, _) => old_layout(file, at, rank, place),
        (4, 2) => Err(unoffered("chunks in the format of libver=\"latest\"")),
        _ => Err(unoffered("an unknown array layout")),
    }
}

fn old_layout(
    file: &Hdf5Bytes<'_>,
    at: usize,
    rank: usize,
    place: impl Fn(usize) -> Result<Option<usize>>,
) -> Result<Hdf5Layout> {
    let (n, class) = (file.size(at + 1, 1)?, file.number(at + 2, 1)?);
    let numbers = |at: usize, n: usize| (0..n).map(|i| file.size(at + i * 4, 4)).collect::<Result<Vec<_>>>();
    match class {
        1 => Ok(match place(at + 8)? {
            Some(to) => {
                let bytes = numbers(at + 16, n)?.iter().try_fold(1usize, |all, d| all.checked_mul(*d));
                // The last number is the element size.
                Hdf5Layout::Inside(to, bytes.ok_or_else(|| wrong("an array is too large"))?)
            }
            None => Hdf5Layout::Nowhere,
        }),
        2 if n == rank + 1 => {
            let sizes = numbers(at + 16, rank)?;
            ensure!(!sizes.contains(&0), wrong("a chunk has size 0"));
            Ok(Hdf5Layout::Chunks { tree: place(at + 8)?, sizes })
        }
        _ => Err(unoffered("an unknown array layout")),
    }
}

/// Reads the filter ids, in the order of application.
fn filters(file: &Hdf5Bytes<'_>, at: usize) -> Result<Vec<u64>> {
    let (version, n) = (file.number(at, 1)?, file.size(at + 1, 1)?);
    let mut next = at + if version == 1 { 8 } else { 2 };
    let mut found = Vec::new();
    for _ in 0..n {
        let id = file.number(next, 2)?;
        let named = version == 1 || id >= 256;
        let name = if named { file.size(next + 2, 2)? } else { 0 };
        next += if named { 4 } else { 2 };
        let values = file.size(next + 2, 2)?;
        next += 4 + if version == 1 { name.next_multiple_of(8) } else { name };
        next += values * 4 + if version == 1 && values % 2 == 1 { 4 } else { 0 };
        ensure!((1..=3).contains(&id), unoffered(&format!("chunks compressed by filter {id}")));
        found.push(id);
    }
    Ok(found)
}

struct Hdf5Chunks<'a> {
    file: &'a Hdf5Bytes<'a>,
    dims: &'a [usize],
    size: usize,
    sizes: &'a [usize],
    filters: Vec<u64>,
    out: Vec<u8>,
}

impl Hdf5Chunks<'_> {
    fn nodes(&mut self, at: usize, levels: u64, budget: &mut UnpackLimit) -> Result<()> {
        let file = self.file;
        file.visit()?;
        file.signature(at, b"TREE")?;
        let (kind, level, entries) =
            (file.number(at + 4, 1)?, file.number(at + 5, 1)?, file.size(at + 6, 2)?);
        ensure!(kind == 1 && level < levels, wrong("the B-tree of an array does not contain chunks"));
        let key = 8 + (self.dims.len() + 1) * 8;
        for i in 0..entries {
            file.visit()?;
            let from = at + 24 + i * (key + 8);
            let child = file.address(from + key)?;
            match level {
                0 => self.chunk(from, child, budget)?,
                _ => self.nodes(child, level, budget)?,
            }
        }
        Ok(())
    }

    fn chunk(&mut self, key: usize, at: usize, budget: &mut UnpackLimit) -> Result<()> {
        let packed = self.file.part(at, self.file.size(key, 4)?)?;
        let skipped = self.file.number(key + 4, 4)?;
        let offsets =
            (0..self.dims.len()).map(|i| self.file.size(key + 8 + i * 8, 8)).collect::<Result<Vec<_>>>()?;
        let bytes = self.sizes.iter().try_fold(self.size, |all, n| all.checked_mul(*n));
        let bytes = bytes.ok_or_else(|| wrong("a chunk is too large"))?;
        budget.take(bytes)?;
        let data = self.unpacked(packed, skipped, bytes)?;
        if data.len() != bytes {
            return Err(wrong(&format!("a chunk unpacks to {} bytes, expected {bytes}", data.len())));
        }
        self.place(&data, &offsets)
    }

    fn unpacked(&self, packed: &[u8], skipped: u64, bytes: usize) -> Result<Vec<u8>> {
        let mut data = packed.to_vec();
        for (i, filter) in self.filters.iter().enumerate().rev() {
            if skipped >> i & 1 == 1 {
                continue;
            }
            data = match filter {
                1 => {
                    let mut out = Vec::new();
                    // Four more bytes for a checksum; one more to detect excess data.
                    let mut limited = ZlibDecoder::new(&data[..]).take(bytes as u64 + 5);
                    limited
                        .read_to_end(&mut out)
                        .map_err(|e| wrong(&format!("cannot decompress a chunk: {e}")))?;
                    out
                }
                2 => unshuffled(&data, self.size),
                _ => data[..data.len().saturating_sub(4)].to_vec(),
            };
        }
        Ok(data)
    }

    /// Copies the rows of a chunk that are inside the array.
    fn place(&mut self, data: &[u8], offsets: &[usize]) -> Result<()> {
        if offsets.iter().zip(self.dims).any(|(o, d)| o >= d) && !self.dims.is_empty() {
            return Err(wrong("a chunk is outside its array"));
        }
        let row = self.sizes.last().copied().unwrap_or(1);
        let rank = self.dims.len();
        let width = row.min(self.dims.last().copied().unwrap_or(1) - offsets.last().copied().unwrap_or(0));
        for (i, line) in data.chunks(row * self.size).enumerate() {
            let (mut left, mut to, mut stride) = (i, offsets.last().copied().unwrap_or(0), 1);
            let mut inside = true;
            for d in (0..rank.saturating_sub(1)).rev() {
                stride *= self.dims[d + 1];
                let index = offsets[d] + left % self.sizes[d];
                left /= self.sizes[d];
                inside &= index < self.dims[d];
                to += index * stride;
            }
            if inside {
                let (from, to) = (&line[..width * self.size], to * self.size);
                self.out[to..to + from.len()].copy_from_slice(from);
            }
        }
        Ok(())
    }
}

/// Reverses the shuffle filter, which groups the first bytes of all elements, then the second, …
fn unshuffled(data: &[u8], size: usize) -> Vec<u8> {
    let n = data.len() / size.max(1);
    let mut out = data.to_vec();
    for (k, plane) in data.chunks(n.max(1)).take(size).enumerate() {
        plane.iter().enumerate().for_each(|(i, b)| out[i * size + k] = *b);
    }
    out
}

/// Reads the name and strings of an attribute; `None` if it is not text.
pub(crate) fn attribute(
    file: &Hdf5Bytes<'_>,
    at: usize,
    length: usize,
    budget: &mut UnpackLimit,
) -> Result<Option<(String, Vec<String>)>> {
    let version = file.number(at, 1)?;
    ensure!((1..=3).contains(&version), wrong("unknown attribute version"));
    let [name, ty, space] = [2, 4, 6].map(|k| file.size(at + k, 2));
    let padded = |n: usize| if version == 1 { n.next_multiple_of(8) } else { n };
    let (name, ty, space) = (name?, ty?, space?);
    let name_at = at + if version == 3 { 9 } else { 8 };
    let (ty_at, space_at) = (name_at + padded(name), name_at + padded(name) + padded(ty));
    let data = space_at + padded(space);
    let title = text_of(file.part(name_at, name)?);
    let ty = datatype(file, ty_at)?;
    let Some(dims) = dataspace(file, space_at)? else { return Ok(None) };
    let count = dims.iter().try_fold(1usize, |all, d| all.checked_mul(*d));
    let bytes = count.and_then(|n| n.checked_mul(ty.size)).filter(|n| data + n <= at + length);
    let (Some(count), Some(_)) = (count, bytes) else {
        return Err(wrong(&format!("attribute {title} exceeds its message")));
    };
    let text = |i: usize, budget: &mut UnpackLimit| -> Result<String> {
        file.visit()?;
        let at = data + i * ty.size;
        match ty.kind {
            Hdf5Class::Text => {
                budget.take(ty.size)?;
                Ok(text_of(file.part(at, ty.size)?))
            }
            _ => elsewhere(file, at, budget),
        }
    };
    match ty.kind {
        Hdf5Class::Text | Hdf5Class::VariableText if ty.size > 0 => {
            let values = (0..count).map(|i| text(i, budget)).collect::<Result<Vec<_>>>()?;
            Ok(Some((title, values)))
        }
        _ => Ok(None),
    }
}

/// Reads a string from a global heap: length, address of the heap, index in it.
fn elsewhere(file: &Hdf5Bytes<'_>, at: usize, budget: &mut UnpackLimit) -> Result<String> {
    let (length, index) = (file.size(at, 4)?, file.number(at + 12, 4)?);
    if length == 0 {
        return Ok(String::new());
    }
    budget.take(length)?;
    let collection = file.address(at + 4)?;
    file.signature(collection, b"GCOL")?;
    let size = file.size(collection + 8, 8)?;
    let all = file.part(collection, size)?;
    let mut next = 16;
    while let Some(head) = all.get(next..next + 16) {
        file.visit()?;
        let object = usize::try_from(little(&head[8..])).map_err(|_| wrong("a size is too large"))?;
        if little(&head[..2]) == index {
            let bytes = all.get(next + 16..).and_then(|b| b.get(..length.min(object)));
            return bytes.map(text_of).ok_or_else(|| wrong("a string exceeds its heap"));
        }
        if little(&head[..2]) == 0 {
            break;
        }
        next =
            next.saturating_add(16).saturating_add(object.checked_next_multiple_of(8).unwrap_or(usize::MAX));
        if next >= all.len() {
            break;
        }
    }
    Err(wrong(&format!("string {index} is missing in its heap")))
}
