//! Reads and writes safetensors files: 8-byte header length, JSON header, array bytes.

use super::stored_array::{ElementFormat, KNOWN, StoredArray};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use systole_base::{Error, Result, err};

/// Maximum header size, as in the reference library.
const MAX_HEADER: usize = 100_000_000;

fn wrong(what: impl Into<String>) -> Error {
    err!(Data, "the array file is invalid or truncated")
        .because(what)
        .hint("use .npz or .npy (NumPy), or .safetensors files")
}

/// Reads every array, in header order.
pub(super) fn read(bytes: &[u8]) -> Result<Vec<(String, StoredArray)>> {
    let length = bytes.first_chunk::<8>().map(|b| u64::from_le_bytes(*b));
    let length = length.ok_or_else(|| wrong(format!("it has {} bytes", bytes.len())))?;
    let length = usize::try_from(length).ok().filter(|n| *n <= MAX_HEADER.min(bytes.len() - 8));
    let length = length.ok_or_else(|| wrong("its header length is invalid"))?;
    let (header, data) = bytes[8..].split_at(length);
    let header: Map<String, Value> =
        serde_json::from_slice(header).map_err(|e| wrong(format!("cannot parse its header: {e}")))?;
    let entries = header.into_iter().filter(|(name, _)| name != "__metadata__");
    entries
        .map(|(name, entry)| {
            let read = array(&entry, data).map_err(|e| e.at(name.clone()))?;
            Ok((name, read))
        })
        .collect()
}

fn array(entry: &Value, data: &[u8]) -> Result<StoredArray> {
    let word = entry.get("dtype").and_then(Value::as_str).ok_or_else(|| wrong("an array has no dtype"))?;
    let elements: Vec<&'static str> = KNOWN.iter().filter(|k| k.3 == Some(word)).map(|k| k.0).collect();
    let size = KNOWN.iter().find(|k| k.3 == Some(word)).map(|k| k.1).ok_or_else(|| {
        err!(Data, "unsupported element type {word}").hint("convert the array before saving")
    })?;
    let numbers = |key: &str| -> Option<Vec<usize>> {
        entry.get(key)?.as_array()?.iter().map(|n| usize::try_from(n.as_u64()?).ok()).collect()
    };
    let dims = numbers("shape").ok_or_else(|| wrong("an array has no shape"))?;
    let offsets = numbers("data_offsets").ok_or_else(|| wrong("an array has no data_offsets"))?;
    let bytes = match offsets[..] {
        [begin, end] => data.get(begin..end),
        _ => None,
    };
    let bytes =
        bytes.ok_or_else(|| wrong(format!("an array exceeds the file's {} data bytes", data.len())))?;
    if dims.iter().try_fold(size, |n, d| n.checked_mul(*d)) != Some(bytes.len()) {
        return Err(wrong(format!("{word} of shape {dims:?} does not have {} bytes", bytes.len())));
    }
    Ok(StoredArray { elements, dims, bytes: bytes.to_vec() })
}

/// Returns the parts of a file in order. Wide elements come first, so that all are aligned.
pub(super) fn parts(arrays: &[(String, StoredArray)]) -> Vec<Cow<'_, [u8]>> {
    let known = |x: &StoredArray| KNOWN.iter().find(|k| x.elements.first() == Some(&k.0));
    let size = |x: &StoredArray| known(x).map_or(0, |k: &ElementFormat| k.1);
    let mut order: Vec<&(String, StoredArray)> = arrays.iter().collect();
    order.sort_by_key(|(_, x)| std::cmp::Reverse(size(x)));
    let (mut header, mut at) = (Map::new(), 0);
    for (name, x) in &order {
        let word = known(x).and_then(|k| k.3).unwrap_or_default();
        let offsets = [at, at + x.bytes.len()];
        header.insert(name.clone(), json!({"dtype": word, "shape": x.dims, "data_offsets": offsets}));
        at += x.bytes.len();
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let length = (text.len() as u64).to_le_bytes().to_vec();
    let mut parts = vec![Cow::Owned(length), Cow::Owned(text)];
    parts.extend(order.iter().map(|(_, x)| Cow::Borrowed(&x.bytes[..])));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::stored;

    fn two() -> Vec<u8> {
        let arrays = [
            ("a".to_string(), stored("i8", &[3], vec![1, 2, 3]).unwrap()),
            ("b".to_string(), stored("f32", &[1, 2], vec![0, 0, 128, 63, 0, 0, 0, 64]).unwrap()),
        ];
        parts(&arrays).concat()
    }

    #[test]
    fn the_library_reads_what_is_written() {
        let bytes = two();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let b = file.tensor("b").unwrap();
        assert_eq!((b.dtype(), b.shape(), b.data()[3]), (safetensors::Dtype::F32, &[1, 2][..], 63));
        assert_eq!(file.tensor("a").unwrap().data(), [1, 2, 3]);
    }

    #[test]
    fn damage_is_an_error_and_never_a_panic() {
        let good = two();
        assert_eq!(read(&good).unwrap().len(), 2);
        for cut in 0..good.len() {
            assert!(read(&good[..cut]).is_err(), "cut at {cut}");
        }
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let _ = read(&bad);
        }
    }
}
