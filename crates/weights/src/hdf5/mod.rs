//! HDF5 without C, as far as h5py and Keras use it: superblocks 0 to 3, object headers 1 and 2, groups by symbol tables
//! and by links, contiguous, compact and chunked data (deflate, shuffle), attributes of text. Not offered: what only
//! `libver="latest"` writes for large groups and chunks.
//!
//! Layout: HDF5 File Format Specification, version 3.0. Every read is checked against the file; each structure is visited
//! a number of times that is bounded by the file's length, and arrays share one budget.

mod bytes;
mod data;
mod group;
mod header;
pub(crate) mod write;

use crate::arrays::UnpackLimit;
use bytes::Hdf5Bytes;
use header::{ObjectHeader, kind};
use std::collections::HashSet;
use systole_ir::{Literal, Result};

const SIGNATURE: [u8; 8] = *b"\x89HDF\r\n\x1a\n";
/// Groups in groups, at most.
const DEPTH: usize = 32;
/// Bytes of a path, at most.
const PATH: usize = 1024;

/// All that a file holds.
#[derive(Debug, Default)]
pub(crate) struct Hdf5Tree {
    /// Arrays by path (`layers/dense/vars/0`), in the order of the groups.
    pub arrays: Vec<(String, Literal)>,
    /// Texts of attributes: path of the object, name, values.
    pub attributes: Vec<(String, String, Vec<String>)>,
}

impl Hdf5Tree {
    /// The texts of an attribute.
    pub(crate) fn attribute(&self, path: &str, name: &str) -> Option<&[String]> {
        let found = self.attributes.iter().find(|(p, n, _)| p == path && n == name);
        found.map(|(_, _, values)| values.as_slice())
    }
}

/// Whether bytes begin as HDF5.
pub(crate) fn is_one(bytes: &[u8]) -> bool {
    bytes.starts_with(&SIGNATURE)
}

/// Reads all arrays and texts, but for groups at the root that `skip` names.
///
/// # Errors
/// When the file is damaged, cut, made to fill memory, or uses what is not offered.
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

/// Where the root's header is.
fn root(file: &Hdf5Bytes<'_>) -> Result<usize> {
    let version = file.number(8, 1)?;
    // Where the sizes of addresses, the root's address and the file's end stand.
    let (sizes, root, end) = match version {
        0 => (13, 24 + 32 + 8, 40),
        1 => (13, 28 + 32 + 8, 44),
        2 | 3 => (9, 12 + 24, 28),
        other => return Err(bytes::unoffered(&format!("superblock version {other}"))),
    };
    if file.number(sizes, 2)? != 0x0808 {
        return Err(bytes::unoffered("addresses of another size than 8 bytes"));
    }
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
            let why = if depth == 0 { "groups lie too deep in each other" } else { "a group lies in itself" };
            return Err(bytes::wrong(why).at(called(path)));
        }
        for (name, target) in group::links(self.file, &header).map_err(|e| e.at(called(path)))? {
            if path.is_empty() && self.skip.contains(&name.as_str()) {
                continue;
            }
            let inner = if path.is_empty() { name } else { format!("{path}/{name}") };
            if inner.len() > PATH {
                return Err(bytes::wrong(&format!("a path has more than {PATH} bytes")));
            }
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
