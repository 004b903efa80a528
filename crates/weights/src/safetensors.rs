//! The safetensors format as its library writes and reads it: 8 bytes of header length, a JSON header, the arrays' bytes.

use crate::arrays::{self, UnpackLimit};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use systole_ir::{Error, ErrorKind, Literal, Result, ResultExt, bug};

/// Longer headers are refused, as the library does.
const MAX_HEADER: usize = 100_000_000;

fn wrong(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Data, "this is no whole safetensors file").because(why).hint("get the file again")
}

/// Whether bytes begin as such a file does.
pub(crate) fn is_one(bytes: &[u8]) -> bool {
    bytes.get(8) == Some(&b'{')
}

/// Every array, in the order of the header. Arrays may lie on each other; together they may take eight times the file.
pub(crate) fn read(bytes: &[u8]) -> Result<Vec<(String, Literal)>> {
    let length = bytes.first_chunk::<8>().map(|b| u64::from_le_bytes(*b));
    let length = length.ok_or_else(|| wrong(format!("it has {} bytes", bytes.len())))?;
    let length = usize::try_from(length).ok().filter(|n| *n <= MAX_HEADER.min(bytes.len() - 8));
    let length = length.ok_or_else(|| wrong("its first 8 bytes are the length of no header"))?;
    let (header, data) = bytes[8..].split_at(length);
    let header: Map<String, Value> =
        serde_json::from_slice(header).map_err(|e| wrong(format!("its header cannot be read: {e}")))?;
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
    let word = entry.get("dtype").and_then(Value::as_str).ok_or_else(|| wrong("an array has no type"))?;
    let dtype = arrays::dtype(word).ok_or_else(|| {
        Error::new(ErrorKind::Data, format!("arrays of type {word} are not read"))
            .hint("convert the array to F32 before it is saved")
    })?;
    let numbers = |key: &str| -> Option<Vec<usize>> {
        entry.get(key)?.as_array()?.iter().map(|n| usize::try_from(n.as_u64()?).ok()).collect()
    };
    let dims = numbers("shape").filter(|d| d.len() <= 16).ok_or_else(|| wrong("an array has no shape"))?;
    let bytes = match numbers("data_offsets").as_deref() {
        Some([begin, end]) => data.get(*begin..*end),
        _ => None,
    };
    let bytes = bytes.ok_or_else(|| wrong(format!("an array ends after its {} bytes", data.len())))?;
    if arrays::bytes_of(dtype, &dims)? != bytes.len() {
        return Err(wrong(format!("{word} of {dims:?} has not {} bytes", bytes.len())));
    }
    budget.take(bytes.len())?;
    arrays::literal(dtype, &dims, bytes)
}

/// The parts of a file of these arrays. Wide elements come first, so that all are aligned.
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
