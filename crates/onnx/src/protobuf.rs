//! Reads protobuf fields of ONNX files: repeated fields, and fields of an expected type. See [`systole_runtime::protobuf`].

use crate::model::broken;
use systole_base::{Result, ensure};
use systole_runtime::protobuf::ProtoValue;

/// Appends a repeated integer, packed or not.
pub(crate) fn add_ints(to: &mut Vec<i64>, value: ProtoValue) -> Result<()> {
    let numbers = value.numbers();
    // Each integer ends with a byte without the continuation bit.
    let promised = match value {
        ProtoValue::Number(_) => 1,
        ProtoValue::Bytes(b) => b.iter().filter(|b| **b < 0x80).count(),
    };
    let is_open = matches!(value, ProtoValue::Bytes([.., last]) if *last >= 0x80);
    ensure!(numbers.len() == promised && !is_open, broken("a list of integers is truncated or damaged"));
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
    use systole_runtime::protobuf::{ProtoMessage, fields};

    #[test]
    fn integers_are_read_packed_and_single() {
        let values = [0, 1, 127, 128, 256, 16_384, i64::MAX, -1];
        let message = ProtoMessage::default().packed(8, values);
        let message = values.iter().fold(message, |message, &v| message.int(8, v)).done();
        let mut found = Vec::new();
        fields(&message).try_for_each(|field| add_ints(&mut found, field?.1)).unwrap();
        assert_eq!(found, [values, values].concat());
        for damaged in [&[0x80][..], &[1, 0xff], &[0xff; 11]] {
            let e = add_ints(&mut Vec::new(), ProtoValue::Bytes(damaged)).unwrap_err();
            assert_eq!(e.kind(), systole_base::ErrorKind::Data);
        }
    }
}
