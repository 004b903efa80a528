//! Protocol buffer (protobuf) reader: iterates over the fields of a message in file order, without a schema.

use systole_ir::{Result, err};

/// Value of a protobuf field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ProtoValue<'a> {
    /// Varint or fixed-width number.
    Number(u64),
    /// Length-delimited value: string, bytes, message or packed list.
    Bytes(&'a [u8]),
}

/// Iterator over the fields of a protobuf message.
pub struct ProtoFieldIter<'a> {
    rest: &'a [u8],
}

/// Iterates over the fields of the protobuf message `bytes`.
pub fn fields(bytes: &[u8]) -> ProtoFieldIter<'_> {
    ProtoFieldIter { rest: bytes }
}

impl<'a> ProtoFieldIter<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(n)?;
        self.rest = rest;
        Some(head)
    }

    fn field(&mut self) -> Option<(u64, ProtoValue<'a>)> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => ProtoValue::Number(self.varint()?),
            1 => ProtoValue::Number(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            2 => {
                let n = usize::try_from(self.varint()?).ok()?;
                ProtoValue::Bytes(self.take(n)?)
            }
            5 => ProtoValue::Number(u32::from_le_bytes(self.take(4)?.try_into().ok()?).into()),
            _ => return None,
        };
        Some((tag >> 3, value))
    }
}

impl<'a> Iterator for ProtoFieldIter<'a> {
    type Item = Result<(u64, ProtoValue<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.rest = &[];
        }
        Some(field.ok_or_else(|| {
            err!(Data, "cannot parse the protocol buffer").because("the message is truncated or corrupt")
        }))
    }
}

impl<'a> ProtoValue<'a> {
    /// Returns the bytes of a length-delimited protobuf value; empty for numbers.
    pub fn bytes(self) -> &'a [u8] {
        if let ProtoValue::Bytes(b) = self { b } else { &[] }
    }

    /// Returns the protobuf value as UTF-8 text; empty if it is not UTF-8.
    pub fn text(self) -> &'a str {
        std::str::from_utf8(self.bytes()).unwrap_or("")
    }

    /// Returns the numbers of a repeated protobuf field, packed or not.
    pub fn numbers(self) -> Vec<u64> {
        match self {
            ProtoValue::Number(n) => vec![n],
            ProtoValue::Bytes(b) => {
                let mut f = fields(b);
                std::iter::from_fn(|| if f.rest.is_empty() { None } else { f.varint() }).collect()
            }
        }
    }
}

// Names of the previous version.
/// Builds a protobuf message field by field.
///
/// ```
/// use systole_runtime::protobuf::ProtoMessage;
/// assert_eq!(ProtoMessage::default().int(1, 150).text(2, "hi").done(), [8, 0x96, 1, 0x12, 2, b'h', b'i']);
/// ```
#[derive(Default)]
pub struct ProtoMessage(Vec<u8>);

impl ProtoMessage {
    /// Writes an integer; a negative one takes ten bytes.
    pub fn int(mut self, field: u32, value: i64) -> ProtoMessage {
        self.varint(u64::from(field << 3));
        self.varint(value as u64);
        self
    }

    /// Writes an f32.
    pub fn float(mut self, field: u32, value: f32) -> ProtoMessage {
        self.varint(u64::from(field << 3 | 5));
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Writes bytes, a string, or an encoded message.
    pub fn bytes(mut self, field: u32, value: &[u8]) -> ProtoMessage {
        self.varint(u64::from(field << 3 | 2));
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    /// Writes a string unless it is empty.
    pub fn text(self, field: u32, value: &str) -> ProtoMessage {
        if value.is_empty() { self } else { self.bytes(field, value.as_bytes()) }
    }

    /// Writes a nested message.
    pub fn message(self, field: u32, value: ProtoMessage) -> ProtoMessage {
        self.bytes(field, &value.0)
    }

    /// Writes a repeated field of messages.
    pub fn messages(self, field: u32, values: impl IntoIterator<Item = ProtoMessage>) -> ProtoMessage {
        values.into_iter().fold(self, |all, value| all.message(field, value))
    }

    /// Writes a repeated field of strings.
    pub fn texts(self, field: u32, values: &[String]) -> ProtoMessage {
        values.iter().fold(self, |all, value| all.bytes(field, value.as_bytes()))
    }

    /// Writes packed integers.
    pub fn packed(self, field: u32, values: impl IntoIterator<Item = i64>) -> ProtoMessage {
        let mut run = ProtoMessage::default();
        values.into_iter().for_each(|v| run.varint(v as u64));
        self.message(field, run)
    }

    /// Writes packed floats.
    pub fn floats(self, field: u32, values: &[f32]) -> ProtoMessage {
        let run: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.bytes(field, &run)
    }

    /// Returns the encoded message.
    pub fn done(self) -> Vec<u8> {
        self.0
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[doc(hidden)]
pub use self::{ProtoFieldIter as Fields, ProtoValue as Value};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_read_in_order_and_damage_is_an_error() {
        let message = [0x08, 0x96, 0x01, 0x12, 0x02, b'h', b'i', 0x1a, 0x03, 0x01, 0xac, 0x02];
        let read: Vec<_> = fields(&message).map(|f| f.unwrap()).collect();
        assert_eq!(read[0], (1, ProtoValue::Number(150)));
        assert_eq!((read[1].0, read[1].1.text()), (2, "hi"));
        assert_eq!(read[2].1.numbers(), [1, 300]);
        for end in [1, 2, 4, 6, 10] {
            assert!(fields(&message[..end]).any(|f| f.is_err()), "cut at {end}");
        }
        assert!(fields(&[0xff; 12]).any(|f| f.is_err()));
    }
}
