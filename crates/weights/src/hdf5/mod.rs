//! HDF5 reader and writer in Rust for the subset that h5py and Keras use: superblocks 0 to 3, object headers 1 and 2,
//! symbol-table and link groups, contiguous, compact and chunked data (deflate, shuffle), text attributes. Not
//! supported: large groups and chunks in the `libver="latest"` format.
//!
//! Source: HDF5 File Format Specification, version 3.0. Every access is bounds-checked, the number of visited
//! structures is limited by the file size, and all arrays share one memory limit.

mod bytes;
mod data;
mod group;
mod header;
pub(crate) mod write;

use crate::arrays::UnpackLimit;
use bytes::Hdf5Bytes;
use header::{ObjectHeader, kind};
use std::collections::HashSet;
use systole_ir::{Literal, Result, ensure};

const SIGNATURE: [u8; 8] = *b"\x89HDF\r\n\x1a\n";
/// Maximum group depth.
const DEPTH: usize = 32;
/// Maximum path length in bytes.
const PATH: usize = 1024;

/// Contents of a file.
#[derive(Debug, Default)]
pub(crate) struct Hdf5Tree {
    /// Arrays by path (`layers/dense/vars/0`), in the order of the groups.
    pub arrays: Vec<(String, Literal)>,
    /// Text attributes: path of the object, name, values.
    pub attributes: Vec<(String, String, Vec<String>)>,
}

impl Hdf5Tree {
    /// Returns the strings of an attribute.
    pub(crate) fn attribute(&self, path: &str, name: &str) -> Option<&[String]> {
        let found = self.attributes.iter().find(|(p, n, _)| p == path && n == name);
        found.map(|(_, _, values)| values.as_slice())
    }
}

/// Whether the bytes start like HDF5.
pub(crate) fn is_one(bytes: &[u8]) -> bool {
    bytes.starts_with(&SIGNATURE)
}

/// Reads all arrays and text attributes, except root groups named in `skip`.
///
/// # Errors
/// If the file is damaged, truncated, malicious, or uses an unsupported feature.
pub(crate) fn read(bytes: &[u8], skip: &[&str]) -> Result<Hdf5Tree> {
    let file = Hdf5Bytes::new(bytes);
    let root = root(&file)?;
    let mut walk = Hdf5Walk {
        file: &file,
        budget: UnpackLimit::of(bytes.len()),
        groups: HashSet::new(),
        tree: Hdf5Tree::default(),
        skip,
    };
    walk.object(root, "", DEPTH)?;
    Ok(walk.tree)
}

/// Returns the address of the root header.
fn root(file: &Hdf5Bytes<'_>) -> Result<usize> {
    let version = file.number(8, 1)?;
    // Positions of the address size, the root address and the end of file.
    let (sizes, root, end) = match version {
        0 => (13, 24 + 32 + 8, 40),
        1 => (13, 28 + 32 + 8, 44),
        2 | 3 => (9, 12 + 24, 28),
        other => return Err(bytes::unoffered(&format!("superblock version {other}"))),
    };
    ensure!(file.number(sizes, 2)? == 0x0808, bytes::unoffered("addresses that do not have 8 bytes"));
    file.part(0, file.size(end, 8)?)?;
    file.address(root)
}

struct Hdf5Walk<'a> {
    file: &'a Hdf5Bytes<'a>,
    budget: UnpackLimit,
    groups: HashSet<usize>,
    tree: Hdf5Tree,
    skip: &'a [&'a str],
}

impl Hdf5Walk<'_> {
    fn object(&mut self, at: usize, path: &str, depth: usize) -> Result<()> {
        let header = ObjectHeader::read(self.file, at).map_err(|e| e.at(called(path)))?;
        self.attributes(&header, path).map_err(|e| e.at(called(path)))?;
        if header.find(kind::LAYOUT).is_some() {
            let value = data::array(self.file, &header, &mut self.budget).map_err(|e| e.at(called(path)))?;
            if let Some(value) = value {
                self.tree.arrays.push((path.into(), value));
            }
            return Ok(());
        }
        if depth == 0 || !self.groups.insert(at) {
            let why = if depth == 0 { "groups are nested too deeply" } else { "a group contains itself" };
            return Err(bytes::wrong(why).at(called(path)));
        }
        for (name, target) in group::links(self.file, &header).map_err(|e| e.at(called(path)))? {
            if path.is_empty() && self.skip.contains(&name.as_str()) {
                continue;
            }
            let inner = if path.is_empty() { name } else { format!("{path}/{name}") };
            ensure!(inner.len() <= PATH, bytes::wrong(&format!("a path has more than {PATH} bytes")));
            self.object(target, &inner, depth - 1)?;
        }
        Ok(())
    }

    fn attributes(&mut self, header: &ObjectHeader, path: &str) -> Result<()> {
        for &(at, length) in header.all(kind::ATTRIBUTE) {
            if let Some((name, values)) = data::attribute(self.file, at, length, &mut self.budget)? {
                self.tree.attributes.push((path.into(), name, values));
            }
        }
        Ok(())
    }
}

fn called(path: &str) -> String {
    if path.is_empty() { "the root".into() } else { path.into() }
}
