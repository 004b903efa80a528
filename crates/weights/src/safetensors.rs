//! Reads and writes safetensors files: 8-byte header length, JSON header, array bytes.

use crate::arrays::{self, UnpackLimit};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use systole_ir::{Error, Literal, Result, ResultExt, bug, err};

/// Maximum header size, as in the reference library.
const MAX_HEADER: usize = 100_000_000;

fn wrong(why: impl Into<String>) -> Error {
    err!(Data, "the safetensors file is invalid or truncated").because(why).hint("download the file again")
}

/// Whether the bytes start like safetensors.
pub(crate) fn is_one(bytes: &[u8]) -> bool {
    bytes.get(8) == Some(&b'{')
}

/// Reads every array, in header order. Arrays may overlap; together they may take eight times the file size.
pub(crate) fn read(bytes: &[u8]) -> Result<Vec<(String, Literal)>> {
    let length = bytes.first_chunk::<8>().map(|b| u64::from_le_bytes(*b));
    let length = length.ok_or_else(|| wrong(format!("it has {} bytes", bytes.len())))?;
    let length = usize::try_from(length).ok().filter(|n| *n <= MAX_HEADER.min(bytes.len() - 8));
    let length = length.ok_or_else(|| wrong("its header length is invalid"))?;
    let (header, data) = bytes[8..].split_at(length);
    let header: Map<String, Value> =
        serde_json::from_slice(header).map_err(|e| wrong(format!("cannot parse its header: {e}")))?;
    let mut budget = UnpackLimit::of(bytes.len());
    let entries = header.into_iter().filter(|(name, _)| name != "__metadata__");
    entries
        .map(|(name, entry)| {
            let value = array(&entry, data, &mut budget).at(|| format!("tensor {name}"))?;
            Ok((name, value))
        })
        .collect()
}

fn array(entry: &Value, data: &[u8], budget: &mut UnpackLimit) -> Result<Literal> {
    let word = entry.get("dtype").and_then(Value::as_str).ok_or_else(|| wrong("an array has no dtype"))?;
    let dtype = arrays::dtype(word).ok_or_else(|| {
        err!(Data, "unsupported array type {word}").hint("convert the array to F32 before saving")
    })?;
    let numbers = |key: &str| -> Option<Vec<usize>> {
        entry.get(key)?.as_array()?.iter().map(|n| usize::try_from(n.as_u64()?).ok()).collect()
    };
    let dims = numbers("shape").filter(|d| d.len() <= 16).ok_or_else(|| wrong("an array has no shape"))?;
    let bytes = match numbers("data_offsets").as_deref() {
        Some([begin, end]) => data.get(*begin..*end),
        _ => None,
    };
    let bytes =
        bytes.ok_or_else(|| wrong(format!("an array exceeds the file's {} data bytes", data.len())))?;
    if arrays::bytes_of(dtype, &dims)? != bytes.len() {
        return Err(wrong(format!("{word} of shape {dims:?} does not have {} bytes", bytes.len())));
    }
    budget.take(bytes.len())?;
    arrays::literal(dtype, &dims, bytes)
}

/// Returns the parts of a file. Wide elements come first, so that all are aligned.
pub(crate) fn parts<'a>(tensors: &'a [(String, Literal)], format: &str) -> Vec<Cow<'a, [u8]>> {
    let mut order: Vec<&(String, Literal)> = tensors.iter().collect();
    order.sort_by_key(|(_, x)| std::cmp::Reverse(x.dtype().size()));
    let (mut header, mut at) = (Map::new(), 0);
    header.insert("__metadata__".into(), json!({"format": format}));
    for (name, x) in &order {
        let end = at + x.bytes().len();
        let dtype = x.dtype();
        let word = arrays::dtype_name(dtype).unwrap_or_else(|| bug!("safetensors has no {}", dtype.name()));
        header.insert(
            name.clone(),
            json!({"dtype": word, "shape": x.shape().dims(), "data_offsets": [at, end]}),
        );
        at = end;
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut parts = vec![Cow::Owned((text.len() as u64).to_le_bytes().to_vec()), Cow::Owned(text)];
    parts.extend(order.into_iter().map(|(_, x)| Cow::Borrowed(x.bytes())));
    parts
}
