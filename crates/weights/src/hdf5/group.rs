//! Reads the links of an HDF5 group: symbol tables (old groups) and link messages (new groups).

use super::bytes::{Hdf5Bytes, text_of, unoffered, wrong};
use super::header::{ObjectHeader, kind};
use systole_ir::{Result, ensure};

/// Maximum tree depth.
const LEVELS: u64 = 32;

/// Returns the names and addresses of a group's members, in file order. External links are skipped.
pub(crate) fn links(file: &Hdf5Bytes<'_>, header: &ObjectHeader) -> Result<Vec<(String, usize)>> {
    let mut found = Vec::new();
    if let Some((at, _)) = header.find(kind::SYMBOLS) {
        let (tree, heap) = (file.address(at)?, file.address(at + 8)?);
        file.signature(heap, b"HEAP")?;
        let names = file.address(heap + 24)?;
        nodes(file, tree, LEVELS, &mut |symbols| self::symbols(file, symbols, names, &mut found))?;
    }
    if let Some((at, _)) = header.find(kind::LINK_INFO) {
        let skip = if file.number(at + 1, 1)? & 1 == 1 { 10 } else { 2 };
        if file.number(at + skip, 8)? != u64::MAX {
            return Err(unoffered("a very large group in the format of libver=\"latest\""));
        }
    }
    for &(at, length) in header.all(kind::LINK) {
        found.extend(link(file, at, length)?);
    }
    Ok(found)
}

/// Visits the leaves of a group's B-tree.
fn nodes(
    file: &Hdf5Bytes<'_>,
    at: usize,
    levels: u64,
    leaf: &mut dyn FnMut(usize) -> Result<()>,
) -> Result<()> {
    file.visit()?;
    file.signature(at, b"TREE")?;
    let (kind, level, entries) = (file.number(at + 4, 1)?, file.number(at + 5, 1)?, file.size(at + 6, 2)?);
    ensure!(kind == 0 && level < levels, wrong("the B-tree of a group does not contain groups"));
    for i in 0..entries {
        let child = file.address(at + 24 + 8 + i * 16)?;
        if level == 0 { leaf(child)? } else { nodes(file, child, level, leaf)? }
    }
    Ok(())
}

fn symbols(file: &Hdf5Bytes<'_>, at: usize, names: usize, found: &mut Vec<(String, usize)>) -> Result<()> {
    file.visit()?;
    file.signature(at, b"SNOD")?;
    for i in 0..file.size(at + 6, 2)? {
        file.visit()?;
        let entry = at + 8 + i * 40;
        // Soft links have no header.
        if file.number(entry + 16, 4)? == 2 {
            continue;
        }
        let name =
            names.checked_add(file.size(entry, 8)?).ok_or_else(|| wrong("a name's address is invalid"))?;
        found.push((file.text(name)?, file.address(entry + 8)?));
    }
    Ok(())
}

fn link(file: &Hdf5Bytes<'_>, at: usize, length: usize) -> Result<Option<(String, usize)>> {
    file.visit()?;
    let flags = file.number(at + 1, 1)?;
    let mut next = at + 2;
    let mut hard = true;
    if flags & 8 != 0 {
        hard = file.number(next, 1)? == 0;
        next += 1;
    }
    next += if flags & 4 != 0 { 8 } else { 0 };
    next += if flags & 0x10 != 0 { 1 } else { 0 };
    let width = 1 << (flags & 3);
    let name = file.size(next, width)?;
    next += width;
    if !hard {
        return Ok(None);
    }
    ensure!(name <= 1024 && next + name + 8 <= at + length, wrong("a link exceeds its message"));
    Ok(Some((text_of(file.part(next, name)?), file.address(next + name)?)))
}
