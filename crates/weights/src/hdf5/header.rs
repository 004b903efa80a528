//! Reads HDF5 object headers: the messages that describe an object.

use super::bytes::{Hdf5Bytes, unoffered, wrong};
use std::collections::HashMap;
use systole_ir::{Result, ensure};

/// Message types.
pub(crate) mod kind {
    pub(crate) const DATASPACE: u64 = 0x01;
    pub(crate) const LINK_INFO: u64 = 0x02;
    pub(crate) const DATATYPE: u64 = 0x03;
    pub(crate) const LINK: u64 = 0x06;
    pub(crate) const LAYOUT: u64 = 0x08;
    pub(crate) const FILTERS: u64 = 0x0b;
    pub(crate) const ATTRIBUTE: u64 = 0x0c;
    pub(crate) const CONTINUATION: u64 = 0x10;
    pub(crate) const SYMBOLS: u64 = 0x11;
    pub(crate) const ATTRIBUTE_INFO: u64 = 0x15;
}

/// Message flag: stored elsewhere and shared.
const SHARED: u64 = 2;

/// Positions of an object's messages, by type.
pub(crate) struct ObjectHeader {
    messages: HashMap<u64, Vec<(usize, usize)>>,
}

impl ObjectHeader {
    pub(crate) fn find(&self, kind: u64) -> Option<(usize, usize)> {
        self.all(kind).first().copied()
    }

    pub(crate) fn all(&self, kind: u64) -> &[(usize, usize)] {
        self.messages.get(&kind).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn read(file: &Hdf5Bytes<'_>, at: usize) -> Result<ObjectHeader> {
        file.visit()?;
        let mut header = ObjectHeader { messages: HashMap::new() };
        match file.part(at, 4)? {
            b"OHDR" => header.second(file, at)?,
            [1, ..] => header.first(file, at)?,
            other => return Err(wrong(&format!("expected an object header at {at}, found {other:02x?}"))),
        }
        if let Some((at, _)) = header.find(kind::ATTRIBUTE_INFO) {
            // Flags, then two bytes if the creation order is tracked; address of a heap, or all ones.
            let skip = if file.number(at + 1, 1)? & 1 == 1 { 4 } else { 2 };
            ensure!(file.number(at + skip, 8)? == u64::MAX, unoffered("very many attributes on one object"));
        }
        Ok(header)
    }

    fn add(&mut self, kind: u64, flags: u64, at: usize, length: usize) -> Result<()> {
        let matters = [kind::DATASPACE, kind::DATATYPE, kind::LAYOUT, kind::FILTERS, kind::ATTRIBUTE];
        ensure!(flags & SHARED == 0 || !matters.contains(&kind), unoffered("shared datatypes"));
        self.messages.entry(kind).or_default().push((at, length));
        Ok(())
    }

    fn first(&mut self, file: &Hdf5Bytes<'_>, at: usize) -> Result<()> {
        let mut left = file.number(at + 2, 2)?;
        let mut blocks = vec![(at + 16, file.size(at + 8, 4)?)];
        while let Some((mut at, length)) = blocks.pop() {
            file.part(at, length)?;
            let end = at + length;
            while at + 8 <= end && left > 0 {
                file.visit()?;
                left -= 1;
                let (kind, length, flags) =
                    (file.number(at, 2)?, file.size(at + 2, 2)?, file.number(at + 4, 1)?);
                ensure!(length <= end - at - 8, wrong("a message exceeds its header"));
                match kind {
                    kind::CONTINUATION => blocks.push((file.address(at + 8)?, file.size(at + 16, 8)?)),
                    _ => self.add(kind, flags, at + 8, length)?,
                }
                at += 8 + length;
            }
        }
        Ok(())
    }

    fn second(&mut self, file: &Hdf5Bytes<'_>, at: usize) -> Result<()> {
        let flags = file.number(at + 5, 1)?;
        let mut start = at + 6;
        start += if flags & 0x20 != 0 { 16 } else { 0 };
        start += if flags & 0x10 != 0 { 4 } else { 0 };
        let width = 1 << (flags & 3);
        let ordered = if flags & 4 != 0 { 2 } else { 0 };
        let mut blocks = vec![(start + width, file.size(start, width)?)];
        while let Some((mut at, length)) = blocks.pop() {
            file.part(at, length)?;
            let end = at + length;
            while at + 4 + ordered <= end {
                file.visit()?;
                let (kind, length, flags) =
                    (file.number(at, 1)?, file.size(at + 1, 2)?, file.number(at + 3, 1)?);
                let body = at + 4 + ordered;
                ensure!(length <= end - body, wrong("a message exceeds its header"));
                match kind {
                    kind::CONTINUATION => {
                        let (to, size) = (file.address(body)?, file.size(body + 8, 8)?);
                        file.signature(to, b"OCHK")?;
                        // Without signature and checksum.
                        blocks.push((
                            to + 4,
                            size.checked_sub(8).ok_or_else(|| wrong("a header block is too short"))?,
                        ));
                    }
                    _ => self.add(kind, flags, body, length)?,
                }
                at = body + length;
            }
        }
        Ok(())
    }
}
