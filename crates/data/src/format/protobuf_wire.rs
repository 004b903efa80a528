//! Protocol buffer wire format for tf.train.Example and TensorBoard events: zero-copy field reader, and writers.

use systole_base::{Error, Result, ensure, err};

/// Value of a field as encoded in the message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ProtoFieldValue<'a> {
    Varint(u64),
    Fixed64([u8; 8]),
    Bytes(&'a [u8]),
    Fixed32([u8; 4]),
}

/// Iterator over the fields of a message.
pub(crate) struct ProtoFields<'a> {
    rest: &'a [u8],
}

impl<'a> ProtoFields<'a> {
    pub fn of(message: &'a [u8]) -> ProtoFields<'a> {
        ProtoFields { rest: message }
    }

    #[inline]
    fn field(&mut self) -> Result<(u64, ProtoFieldValue<'a>)> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => ProtoFieldValue::Varint(self.varint()?),
            1 => ProtoFieldValue::Fixed64(self.array()?),
            2 => {
                let len = self.varint()?;
                ProtoFieldValue::Bytes(self.take(usize::try_from(len).unwrap_or(usize::MAX))?)
            }
            5 => ProtoFieldValue::Fixed32(self.array()?),
            kind => return Err(broken(format!("a field has wire type {kind}"))),
        };
        Ok((tag >> 3, value))
    }

    /// Returns the next varint of a packed protobuf list; `None` at its end.
    pub fn packed(&mut self) -> Result<Option<u64>> {
        if self.rest.is_empty() { Ok(None) } else { self.varint().map(Some) }
    }

    #[inline]
    fn varint(&mut self) -> Result<u64> {
        // One byte is by far the most frequent.
        if let [byte @ 0..0x80, rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(u64::from(*byte));
        }
        self.long_varint()
    }

    fn long_varint(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for (i, &byte) in self.rest.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte < 0x80 {
                if i == 9 && byte > 1 {
                    break;
                }
                self.rest = &self.rest[i + 1..];
                return Ok(value);
            }
        }
        Err(broken("a varint is too long".into()))
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        ensure!(n <= self.rest.len(), too_short(n, self.rest.len()));
        let (taken, rest) = self.rest.split_at(n);
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let left = self.rest.len();
        let (array, rest) = self.rest.split_first_chunk().ok_or_else(|| too_short(N, left))?;
        self.rest = rest;
        Ok(*array)
    }
}

/// Yields number and value of each field.
impl<'a> Iterator for ProtoFields<'a> {
    type Item = Result<(u64, ProtoFieldValue<'a>)>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        (!self.rest.is_empty()).then(|| self.field())
    }
}

fn too_short(wanted: usize, left: usize) -> Error {
    broken(format!("a field needs {wanted} bytes, but only {left} remain"))
}

fn broken(why: String) -> Error {
    err!(Data, "invalid protocol buffer message")
        .because(why)
        .hint("check that the records are tf.train.Example messages")
}

/// Appends a varint.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a length-delimited field.
pub(crate) fn put_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    put_varint(out, field << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_read_back() {
        let mut message = Vec::new();
        put_varint(&mut message, 1 << 3);
        put_varint(&mut message, u64::MAX);
        put_bytes(&mut message, 200, b"abc");
        message.extend([3 << 3 | 5, 1, 2, 3, 4]);
        message.extend([4 << 3 | 1, 1, 2, 3, 4, 5, 6, 7, 8]);
        let mut fields = ProtoFields::of(&message);
        assert_eq!(fields.next().transpose().unwrap(), Some((1, ProtoFieldValue::Varint(u64::MAX))));
        assert_eq!(fields.next().transpose().unwrap(), Some((200, ProtoFieldValue::Bytes(b"abc"))));
        assert_eq!(fields.next().transpose().unwrap(), Some((3, ProtoFieldValue::Fixed32([1, 2, 3, 4]))));
        assert_eq!(
            fields.next().transpose().unwrap(),
            Some((4, ProtoFieldValue::Fixed64([1, 2, 3, 4, 5, 6, 7, 8])))
        );
        assert_eq!(fields.next().transpose().unwrap(), None);
    }

    #[test]
    fn nonsense_is_an_error() {
        for bad in [
            &[0x80][..],
            &[0xff; 11],
            &[2 << 3 | 2, 5, 1],
            &[1 << 3 | 3],
            &[1 << 3 | 5, 1],
            &[0x0a, 0xff, 0xff],
        ] {
            let mut fields = ProtoFields::of(bad);
            assert!(fields.next().is_some_and(|field| field.is_err()), "{bad:?}");
        }
    }
}
