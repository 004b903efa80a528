//! Bounds-checked access to the bytes of an HDF5 file, with a limit on visited structures.

use std::cell::Cell;
use systole_ir::{Error, Result, err};

pub(crate) struct Hdf5Bytes<'a> {
    bytes: &'a [u8],
    /// Remaining number of structures that may be visited; stops circular references.
    fuel: Cell<usize>,
}

pub(crate) fn wrong(why: &str) -> Error {
    err!(Data, "the HDF5 file is invalid or truncated").because(why).hint("download or save the file again")
}

pub(crate) fn unoffered(what: &str) -> Error {
    err!(Data, "the HDF5 file has {what}, which is not supported")
        .hint("save the file with the defaults of h5py or Keras, without libver=\"latest\"")
}

impl<'a> Hdf5Bytes<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Hdf5Bytes<'a> {
        Hdf5Bytes { bytes, fuel: Cell::new(bytes.len() / 4 + 64) }
    }

    /// Counts a visited structure.
    pub(crate) fn visit(&self) -> Result<()> {
        match self.fuel.get().checked_sub(1) {
            Some(left) => {
                self.fuel.set(left);
                Ok(())
            }
            None => Err(wrong("its structures refer to each other in a cycle")),
        }
    }

    pub(crate) fn part(&self, at: usize, length: usize) -> Result<&'a [u8]> {
        at.checked_add(length)
            .and_then(|end| self.bytes.get(at..end))
            .ok_or_else(|| wrong(&format!("{length} bytes at {at} exceed its {} bytes", self.bytes.len())))
    }

    /// Reads a little-endian integer of up to 8 bytes.
    pub(crate) fn number(&self, at: usize, length: usize) -> Result<u64> {
        Ok(little(self.part(at, length)?))
    }

    pub(crate) fn size(&self, at: usize, length: usize) -> Result<usize> {
        usize::try_from(self.number(at, length)?).map_err(|_| wrong("a size is too large"))
    }

    /// Reads an 8-byte address inside the file.
    pub(crate) fn address(&self, at: usize) -> Result<usize> {
        let address = self.number(at, 8)?;
        let inside = usize::try_from(address).ok().filter(|a| *a < self.bytes.len());
        inside.ok_or_else(|| {
            wrong(&format!("address {address:#x} at {at} exceeds its {} bytes", self.bytes.len()))
        })
    }

    pub(crate) fn signature(&self, at: usize, name: &[u8]) -> Result<()> {
        if self.part(at, name.len())? != name {
            return Err(wrong(&format!("expected {} at {at}", String::from_utf8_lossy(name))));
        }
        Ok(())
    }

    /// Reads a zero-terminated string of at most 1,024 bytes.
    pub(crate) fn text(&self, at: usize) -> Result<String> {
        let rest = self.bytes.get(at..).unwrap_or_default();
        let end =
            rest.iter().take(1025).position(|b| *b == 0).ok_or_else(|| wrong("a name is not terminated"))?;
        Ok(String::from_utf8_lossy(&rest[..end]).into_owned())
    }
}

pub(crate) fn little(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b))
}

pub(crate) fn text_of(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
