//! Writes HDF5 files with groups, arrays and strings: superblock 0, version 1 headers, links in the group's header,
//! contiguous arrays. Every HDF5 library since 1.8 reads them.

use super::SIGNATURE;
use systole_ir::{DType, Literal};

/// A group to write.
#[derive(Default)]
pub(crate) struct Hdf5Group {
    pub groups: Vec<(String, Hdf5Group)>,
    pub arrays: Vec<(String, Literal)>,
    pub attributes: Vec<(String, String)>,
}

impl Hdf5Group {
    /// Returns the subgroup at a path, creating it if needed.
    pub(crate) fn at(&mut self, path: &str) -> &mut Hdf5Group {
        let (first, rest) = path.split_once('/').unwrap_or((path, ""));
        let at = self.groups.iter().position(|(name, _)| name == first).unwrap_or_else(|| {
            self.groups.push((first.into(), Hdf5Group::default()));
            self.groups.len() - 1
        });
        let group = &mut self.groups[at].1;
        if rest.is_empty() { group } else { group.at(rest) }
    }
}

const UNDEFINED: [u8; 8] = [0xff; 8];
const SUPERBLOCK: usize = 96;

/// Returns the file of a root group.
pub(crate) fn file(root: &Hdf5Group) -> Vec<u8> {
    let mut out = vec![0; SUPERBLOCK];
    let at = group(&mut out, root);
    let mut head = SIGNATURE.to_vec();
    head.extend([0, 0, 0, 0, 0, 8, 8, 0, 4, 0, 16, 0, 0, 0, 0, 0]);
    head.extend(0u64.to_le_bytes());
    head.extend(UNDEFINED);
    head.extend((out.len() as u64).to_le_bytes());
    head.extend(UNDEFINED);
    head.extend(0u64.to_le_bytes());
    head.extend((at as u64).to_le_bytes());
    out[..head.len()].copy_from_slice(&head);
    out
}

/// Writes a group's members, then its header; returns the header's position.
fn group(out: &mut Vec<u8>, of: &Hdf5Group) -> usize {
    let mut links = Vec::new();
    links.extend(of.groups.iter().map(|(name, inner)| (name.clone(), group(out, inner))));
    links.extend(of.arrays.iter().map(|(name, value)| (name.clone(), array(out, value))));
    // Link info: no creation order, no heap, no tree.
    let mut messages = vec![(2u16, [&[0, 0][..], &UNDEFINED, &UNDEFINED].concat()), (0x0a, vec![0, 0])];
    messages.extend(links.iter().map(|(name, at)| (6, link(name, *at))));
    messages.extend(of.attributes.iter().map(|(name, text)| (0x0c, attribute(name, text))));
    header(out, &messages)
}

fn link(name: &str, at: usize) -> Vec<u8> {
    // UTF-8 names with a 2-byte length.
    let length = (name.len().min(1024) as u16).to_le_bytes();
    [&[1, 0x11, 1][..], &length, &name.as_bytes()[..name.len().min(1024)], &(at as u64).to_le_bytes()]
        .concat()
}

fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

/// Returns a scalar string attribute.
fn attribute(name: &str, text: &str) -> Vec<u8> {
    let name = [name.as_bytes(), &[0]].concat();
    let size = (text.len() + 1) as u32;
    // Zero-terminated, UTF-8.
    let ty = [&[0x13, 0x10, 0, 0][..], &size.to_le_bytes()].concat();
    let space = vec![1, 0, 0, 0, 0, 0, 0, 0];
    let lengths = [name.len() as u16, ty.len() as u16, space.len() as u16].map(u16::to_le_bytes).concat();
    [vec![1, 0], lengths, padded(name), padded(ty), space, text.as_bytes().to_vec(), vec![0]].concat()
}

fn array(out: &mut Vec<u8>, value: &Literal) -> usize {
    out.resize(out.len().next_multiple_of(8), 0);
    let (at, bytes) = (out.len() as u64, value.bytes());
    out.extend(bytes);
    let dims = value.shape().dims();
    let mut space = vec![1, dims.len() as u8, 0, 0, 0, 0, 0, 0];
    dims.iter().for_each(|d| space.extend((*d as u64).to_le_bytes()));
    let place = if bytes.is_empty() { UNDEFINED } else { at.to_le_bytes() };
    let layout = [&[3, 1][..], &place, &(bytes.len() as u64).to_le_bytes()].concat();
    // Fill value: late allocation, never written.
    let messages = [(1u16, space), (3, datatype(value.dtype())), (5, vec![2, 2, 2, 0]), (8, layout)];
    header(out, &messages)
}

/// Returns the datatype message of little-endian floats and integers.
fn datatype(dtype: DType) -> Vec<u8> {
    let size = dtype.size() as u32;
    let bits = (size * 8) as u16;
    let (exponent, mantissa, bias): (u8, u8, u32) = match dtype {
        DType::F16 => (5, 10, 15),
        DType::F64 => (11, 52, 1023),
        _ => (8, 23, 127),
    };
    if dtype.is_float() {
        let sign = (bits - 1) as u8;
        let mut out = vec![0x11, 0x20, sign, 0];
        out.extend(size.to_le_bytes());
        out.extend([0u16, bits].map(u16::to_le_bytes).concat());
        out.extend([mantissa, exponent, 0, mantissa]);
        out.extend(bias.to_le_bytes());
        return out;
    }
    let signed = matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
    let mut out = vec![0x10, if signed { 8 } else { 0 }, 0, 0];
    out.extend(size.to_le_bytes());
    out.extend([0u16, bits].map(u16::to_le_bytes).concat());
    out
}

/// Writes a version 1 object header.
fn header(out: &mut Vec<u8>, messages: &[(u16, Vec<u8>)]) -> usize {
    let mut body = Vec::new();
    for (kind, data) in messages {
        let data = padded(data.clone());
        body.extend(kind.to_le_bytes());
        body.extend((data.len() as u16).to_le_bytes());
        body.extend([0; 4]);
        body.extend(data);
    }
    out.resize(out.len().next_multiple_of(8), 0);
    let at = out.len();
    out.extend([1, 0]);
    out.extend((messages.len() as u16).to_le_bytes());
    out.extend(1u32.to_le_bytes());
    out.extend((body.len() as u32).to_le_bytes());
    out.extend([0; 4]);
    out.extend(body);
    at
}
