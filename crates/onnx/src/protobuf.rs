//! Writes protobuf messages of ONNX files field by field, and reads repeated fields. For single fields see
//! [`systole_runtime::proto`].

use crate::model::broken;
use systole_base::Result;
use systole_runtime::protobuf::{ProtoValue, fields};

/// Builds a protobuf message.
#[derive(Default)]
pub(crate) struct ProtoWriter(Vec<u8>);

impl ProtoWriter {
    /// Writes a protobuf integer field; a negative value takes ten bytes.
    pub fn int(&mut self, field: u32, value: i64) {
        self.varint(u64::from(field << 3));
        self.varint(value as u64);
    }

    /// Writes a protobuf f32 field.
    pub fn float(&mut self, field: u32, value: f32) {
        self.varint(u64::from(field << 3 | 5));
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes a protobuf bytes field.
    pub fn bytes(&mut self, field: u32, value: &[u8]) {
        self.varint(u64::from(field << 3 | 2));
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
    }

    /// Writes a protobuf string field unless the string is empty.
    pub fn text(&mut self, field: u32, value: &str) {
        if !value.is_empty() {
            self.bytes(field, value.as_bytes());
        }
    }

    /// Writes a nested protobuf message.
    pub fn message(&mut self, field: u32, value: ProtoWriter) {
        self.bytes(field, &value.0);
    }

    /// Writes a protobuf field of packed integers.
    pub fn ints(&mut self, field: u32, values: &[i64]) {
        let mut run = ProtoWriter::default();
        values.iter().for_each(|&v| run.varint(v as u64));
        self.message(field, run);
    }

    /// Writes a protobuf field of packed floats.
    pub fn floats(&mut self, field: u32, values: &[f32]) {
        let run: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.bytes(field, &run);
    }

    /// Returns the bytes of the protobuf message.
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

/// Calls `each` with every field of a message.
pub(crate) fn each<'a>(
    bytes: &'a [u8],
    mut each: impl FnMut(u64, ProtoValue<'a>) -> Result<()>,
) -> Result<()> {
    fields(bytes).try_for_each(|f| f.and_then(|(field, value)| each(field, value)))
}

/// Appends a repeated integer, packed or not.
pub(crate) fn add_ints(to: &mut Vec<i64>, value: ProtoValue) -> Result<()> {
    let numbers = value.numbers();
    // Each integer ends with a byte without the continuation bit.
    let promised = match value {
        ProtoValue::Number(_) => 1,
        ProtoValue::Bytes(b) => b.iter().filter(|b| **b < 0x80).count(),
    };
    let is_open = matches!(value, ProtoValue::Bytes([.., last]) if *last >= 0x80);
    if numbers.len() != promised || is_open {
        return Err(broken("a list of integers is truncated or damaged"));
    }
    to.extend(numbers.into_iter().map(|n| n as i64));
    Ok(())
}

/// Appends `N`-byte numbers, packed or not.
pub(crate) fn add_fixed<const N: usize>(to: &mut Vec<u8>, value: ProtoValue) {
    match value {
        ProtoValue::Number(n) => to.extend_from_slice(n.to_le_bytes().get(..N).unwrap_or_default()),
        ProtoValue::Bytes(b) => to.extend_from_slice(b),
    }
}

/// Returns an integer field.
pub(crate) fn number(value: ProtoValue) -> Result<i64> {
    match value {
        ProtoValue::Number(n) => Ok(n as i64),
        ProtoValue::Bytes(_) => Err(broken("expected a number, got bytes")),
    }
}

/// Returns the bytes of a field or nested message.
pub(crate) fn content(value: ProtoValue<'_>) -> Result<&[u8]> {
    match value {
        ProtoValue::Bytes(bytes) => Ok(bytes),
        ProtoValue::Number(_) => Err(broken("expected bytes, got a number")),
    }
}

/// Returns a string, replacing invalid UTF-8.
pub(crate) fn text(value: ProtoValue) -> Result<String> {
    Ok(String::from_utf8_lossy(content(value)?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_packed_and_single() {
        let values = [0, 1, 127, 128, 256, 16_384, i64::MAX, -1];
        let mut message = ProtoWriter::default();
        message.ints(8, &values);
        values.iter().for_each(|&v| message.int(8, v));
        let mut found = Vec::new();
        each(&message.done(), |_, value| add_ints(&mut found, value)).unwrap();
        assert_eq!(found, [values, values].concat());
        for damaged in [&[0x80][..], &[1, 0xff], &[0xff; 11]] {
            let e = add_ints(&mut Vec::new(), ProtoValue::Bytes(damaged)).unwrap_err();
            assert_eq!(e.kind(), systole_base::ErrorKind::Data);
        }
    }
}
