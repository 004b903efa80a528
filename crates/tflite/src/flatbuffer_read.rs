//! Reads untrusted flatbuffers: every offset is checked before it is read, and the total size of all vectors is
//! limited, however often the file refers to them.

use crate::model::broken;
use std::cell::Cell;
use systole_base::Result;

/// The bytes of a file.
pub(crate) struct FlatbufferBytes<'a> {
    all: &'a [u8],
    /// Remaining bytes of vectors that may be read.
    left: Cell<usize>,
    /// Remaining bytes of tensors that the file does not store whole.
    dense_left: Cell<usize>,
}

/// A flatbuffer table in the file.
#[derive(Clone, Copy)]
pub(crate) struct FlatbufferTable<'a> {
    file: &'a FlatbufferBytes<'a>,
    at: usize,
    vtable: usize,
    vtable_size: usize,
    size: usize,
}

impl<'a> FlatbufferBytes<'a> {
    pub(crate) fn new(all: &'a [u8]) -> FlatbufferBytes<'a> {
        // Vectors shared by several tables are read for each of them.
        let room = |times: usize| Cell::new(all.len().saturating_mul(times).saturating_add(1 << 16));
        FlatbufferBytes { all, left: room(4), dense_left: room(8) }
    }

    fn take<const N: usize>(&self, at: usize) -> Result<[u8; N]> {
        let end = at.checked_add(N);
        let found = end.and_then(|end| self.all.get(at..end)).and_then(|b| b.try_into().ok());
        found.ok_or_else(|| broken(format!("the file ends before byte {at}")))
    }

    fn u16(&self, at: usize) -> Result<usize> {
        Ok(u16::from_le_bytes(self.take(at)?).into())
    }

    fn u32(&self, at: usize) -> Result<usize> {
        Ok(u32::from_le_bytes(self.take(at)?) as usize)
    }

    /// Returns the target of the offset at `at`.
    fn follow(&self, at: usize) -> Result<usize> {
        Ok(at.saturating_add(self.u32(at)?))
    }

    pub(crate) fn root(&'a self) -> Result<FlatbufferTable<'a>> {
        self.table(self.follow(0)?)
    }

    pub(crate) fn identifier(&self) -> Option<&[u8]> {
        self.all.get(4..8)
    }

    fn table(&'a self, at: usize) -> Result<FlatbufferTable<'a>> {
        let back = i32::from_le_bytes(self.take(at)?);
        let vtable = usize::try_from(at as i64 - i64::from(back))
            .map_err(|_| broken(format!("the table at byte {at} has no vtable")))?;
        let (vtable_size, size) = (self.u16(vtable)?, self.u16(vtable.saturating_add(2))?);
        Ok(FlatbufferTable { file: self, at, vtable, vtable_size, size })
    }

    fn spend(&self, bytes: usize) -> Result<()> {
        let left = self.left.get().checked_sub(bytes);
        let left = left.ok_or_else(|| broken("its vectors expand to many times the file size".into()))?;
        self.left.set(left);
        Ok(())
    }

    /// Returns start and length of the vector at `at`.
    fn vector(&self, at: usize, width: usize) -> Result<(usize, usize)> {
        let length = self.u32(at)?;
        let start = at.saturating_add(4);
        let bytes = length
            .checked_mul(width)
            .filter(|b| start.checked_add(*b).is_some_and(|end| end <= self.all.len()));
        let bytes = bytes.ok_or_else(|| {
            broken(format!("the vector at byte {at} has {length} elements, more than the file"))
        })?;
        self.spend(bytes.saturating_add(1))?;
        Ok((start, length))
    }
}

impl<'a> FlatbufferTable<'a> {
    /// Counts the bytes of a tensor that the file does not store whole: a sparse one, or the state of a layer.
    pub(crate) fn spend_dense(&self, bytes: usize) -> Result<()> {
        let left = self.file.dense_left.get().checked_sub(bytes);
        let left = left.ok_or_else(|| broken("its sparse tensors are many times the file's size".into()))?;
        self.file.dense_left.set(left);
        Ok(())
    }

    /// Returns the position of a field; `None` if it has its default.
    fn place(&self, id: u16) -> Result<Option<usize>> {
        let slot = 4 + 2 * usize::from(id);
        if slot + 2 > self.vtable_size {
            return Ok(None);
        }
        let offset = self.file.u16(self.vtable.saturating_add(slot))?;
        if offset >= self.size && offset != 0 {
            return Err(broken(format!("field {id} of the table at byte {} is outside the table", self.at)));
        }
        Ok((offset != 0).then(|| self.at.saturating_add(offset)))
    }

    pub(crate) fn byte(&self, id: u16) -> Result<Option<u8>> {
        Ok(self.place(id)?.map(|at| self.file.take::<1>(at)).transpose()?.map(|[b]| b))
    }

    pub(crate) fn word(&self, id: u16) -> Result<Option<u32>> {
        Ok(self.place(id)?.map(|at| self.file.take(at)).transpose()?.map(u32::from_le_bytes))
    }

    pub(crate) fn int(&self, id: u16) -> Result<Option<i32>> {
        Ok(self.word(id)?.map(|w| w as i32))
    }

    fn target(&self, id: u16) -> Result<Option<usize>> {
        self.place(id)?.map(|at| self.file.follow(at)).transpose()
    }

    pub(crate) fn table(&self, id: u16) -> Result<Option<FlatbufferTable<'a>>> {
        self.target(id)?.map(|at| self.file.table(at)).transpose()
    }

    pub(crate) fn tables(&self, id: u16) -> Result<Vec<FlatbufferTable<'a>>> {
        let Some(at) = self.target(id)? else { return Ok(Vec::new()) };
        let (start, length) = self.file.vector(at, 4)?;
        (0..length).map(|i| self.file.table(self.file.follow(start + 4 * i)?)).collect()
    }

    pub(crate) fn bytes(&self, id: u16) -> Result<Option<&'a [u8]>> {
        let Some(at) = self.target(id)? else { return Ok(None) };
        let (start, length) = self.file.vector(at, 1)?;
        Ok(self.file.all.get(start..start + length))
    }

    pub(crate) fn text(&self, id: u16) -> Result<String> {
        Ok(self.bytes(id)?.map_or(String::new(), |b| String::from_utf8_lossy(b).into_owned()))
    }

    pub(crate) fn ints(&self, id: u16) -> Result<Vec<i32>> {
        self.elements(id, i32::from_le_bytes)
    }

    pub(crate) fn shorts(&self, id: u16) -> Result<Vec<u16>> {
        self.elements(id, u16::from_le_bytes)
    }

    pub(crate) fn longs(&self, id: u16) -> Result<Vec<i64>> {
        self.elements(id, i64::from_le_bytes)
    }

    pub(crate) fn floats(&self, id: u16) -> Result<Vec<f32>> {
        self.elements(id, f32::from_le_bytes)
    }

    fn elements<T, const N: usize>(&self, id: u16, of: impl Fn([u8; N]) -> T) -> Result<Vec<T>> {
        let Some(at) = self.target(id)? else { return Ok(Vec::new()) };
        let (start, length) = self.file.vector(at, N)?;
        (0..length).map(|i| Ok(of(self.file.take(start + N * i)?))).collect()
    }
}
