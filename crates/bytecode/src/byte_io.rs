//! Reads and writes the primitives of MLIR bytecode: variable-width integers, strings, blobs, sections.

use systole_base::{Error, Result, err};

/// Reader over a slice of the file.
#[derive(Clone, Copy)]
pub(crate) struct ByteReader<'a> {
    rest: &'a [u8],
    /// Offset of `rest` in the file.
    pub(crate) at: usize,
}

/// Returns an error about the bytes at a file offset.
pub(crate) fn wrong(at: usize, what: impl Into<String>) -> Error {
    let e = err!(Data, "cannot read the bytecode: {}", what.into());
    e.at(format!("byte {at}")).hint("write or download the file again: it is truncated or damaged")
}

impl<'a> ByteReader<'a> {
    pub(crate) fn new(rest: &'a [u8], at: usize) -> ByteReader<'a> {
        ByteReader { rest, at }
    }

    pub(crate) fn len(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn wrong(&self, what: impl Into<String>) -> Error {
        wrong(self.at, what)
    }

    /// Reads the next `n` bytes.
    pub(crate) fn take(&mut self, n: usize) -> Result<ByteReader<'a>> {
        let Some((taken, rest)) = self.rest.split_at_checked(n) else {
            return Err(self.wrong(format!("expected {n} bytes, only {} are left", self.rest.len())));
        };
        let at = self.at;
        *self = ByteReader { rest, at: at + n };
        Ok(ByteReader { rest: taken, at })
    }

    /// Returns all remaining bytes.
    pub(crate) fn all(self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?.rest.first().copied().unwrap_or_default())
    }

    /// Reads a variable-width integer: the trailing zeros of its first byte count the bytes that follow.
    pub(crate) fn number(&mut self) -> Result<u64> {
        let first = self.byte()?;
        let more = first.trailing_zeros() as usize;
        let mut all = [0; 8];
        for (to, from) in all.iter_mut().skip(usize::from(more < 8)).zip(self.take(more)?.rest) {
            *to = *from;
        }
        if more == 8 {
            return Ok(u64::from_le_bytes(all));
        }
        all[0] = first;
        Ok(u64::from_le_bytes(all) >> (more + 1))
    }

    /// Reads an integer with a flag in its lowest bit.
    pub(crate) fn flagged(&mut self) -> Result<(u64, bool)> {
        let n = self.number()?;
        Ok((n >> 1, n & 1 == 1))
    }

    /// Reads a zigzag-style integer whose lowest bit is the sign.
    pub(crate) fn signed(&mut self) -> Result<i64> {
        let n = self.number()?;
        Ok((n >> 1) as i64 ^ -((n & 1) as i64))
    }

    /// Reads the number of entries that follow; each has at least one byte.
    pub(crate) fn count(&mut self) -> Result<usize> {
        let n = self.number()?;
        self.fits(n)
    }

    /// Checks that `n` entries of at least one byte each can follow.
    pub(crate) fn fits(&self, n: u64) -> Result<usize> {
        let fits = usize::try_from(n).ok().filter(|n| *n <= self.rest.len());
        fits.ok_or_else(|| {
            self.wrong(format!("expected {n} entries, but only {} bytes are left", self.rest.len()))
        })
    }

    /// Reads a count and that many entries.
    pub(crate) fn list<T>(&mut self, mut one: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        (0..self.count()?).map(|_| one(self)).collect()
    }

    /// Reads a count and that many bytes.
    pub(crate) fn blob(&mut self) -> Result<ByteReader<'a>> {
        let n = self.count()?;
        self.take(n)
    }

    /// Reads a zero-terminated string.
    pub(crate) fn text(&mut self) -> Result<&'a str> {
        let n = self.rest.iter().position(|b| *b == 0).ok_or_else(|| self.wrong("unterminated string"))?;
        let text = std::str::from_utf8(self.take(n)?.rest).map_err(|_| self.wrong("string is not UTF-8"));
        self.byte()?;
        text
    }

    /// Reads a section: its id and its bytes.
    pub(crate) fn section(&mut self) -> Result<(u8, ByteReader<'a>)> {
        let id = self.byte()?;
        let length = self.number()?;
        if id & 0x80 != 0 {
            let alignment = self.number()?;
            self.align(alignment)?;
        }
        let length = self.fits(length)?;
        Ok((id & 0x7F, self.take(length)?))
    }

    /// Skips padding up to a multiple of `alignment`.
    pub(crate) fn align(&mut self, alignment: u64) -> Result<()> {
        let n = usize::try_from(alignment).ok().filter(|n| n.is_power_of_two());
        let n = n.ok_or_else(|| self.wrong(format!("invalid alignment {alignment}")))?;
        self.take((n - self.at % n) % n).map(drop)
    }
}

/// Output buffer of bytes.
#[derive(Default)]
pub(crate) struct ByteSink(pub(crate) Vec<u8>);

impl ByteSink {
    /// Returns a buffer with these integers.
    pub(crate) fn of<const N: usize>(numbers: [u64; N]) -> ByteSink {
        let mut out = ByteSink::default();
        out.numbers_of(numbers);
        out
    }

    pub(crate) fn numbers_of<const N: usize>(&mut self, all: [u64; N]) {
        all.into_iter().for_each(|n| self.number(n));
    }

    pub(crate) fn byte(&mut self, b: u8) {
        self.0.push(b);
    }

    pub(crate) fn number(&mut self, n: u64) {
        let bits = 64 - n.leading_zeros() as usize;
        let more = bits.saturating_sub(1) / 7;
        if more >= 8 {
            self.0.push(0);
            self.0.extend(n.to_le_bytes());
            return;
        }
        let all = (n << 1 | 1) << more;
        self.0.extend(&all.to_le_bytes()[..=more]);
    }

    pub(crate) fn flagged(&mut self, n: u64, flag: bool) {
        self.number(n << 1 | u64::from(flag));
    }

    pub(crate) fn signed(&mut self, n: i64) {
        self.number((n << 1 ^ n >> 63) as u64);
    }

    pub(crate) fn signeds(&mut self, all: &[i64]) {
        self.number(all.len() as u64);
        all.iter().for_each(|n| self.signed(*n));
    }

    pub(crate) fn numbers(&mut self, all: &[u64]) {
        self.number(all.len() as u64);
        all.iter().for_each(|n| self.number(*n));
    }

    pub(crate) fn blob(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend(bytes);
    }

    pub(crate) fn section(&mut self, id: u8, content: &ByteSink) {
        self.byte(id);
        self.blob(&content.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_take_the_bytes_that_they_need() {
        for shift in 0..64 {
            for n in [1u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
                let mut sink = ByteSink::default();
                sink.number(n);
                sink.signed(n as i64);
                let needed = (64 - n.leading_zeros() as usize).max(1).div_ceil(7).min(9);
                let mut bytes = ByteReader::new(&sink.0, 0);
                assert_eq!(bytes.number().unwrap(), n);
                assert_eq!(bytes.at, needed, "{n:#x}");
                assert_eq!(bytes.signed().unwrap(), n as i64);
                assert!(bytes.is_empty());
                assert!(bytes.number().is_err());
            }
        }
        assert_eq!(ByteReader::new(&[0x57], 0).flagged().unwrap(), (21, true));
    }
}
