//! Encodes array elements as tensor bytes: one element for a splat; i1 is bit-packed.

use crate::read::width;
use systole_base::{DType, Error, ErrorKind, Result, Scalar};
use systole_mlir::narrow_types::Narrow;
use systole_mlir::syntax::{Attribute, DenseElements, ElementData, MlirModule, MlirType, RankedTensorType};

fn wrong(what: String) -> Error {
    Error::new(ErrorKind::Data, what)
}

/// Returns the bytes of an array.
pub(super) fn bytes(dense: &DenseElements, module: &MlirModule) -> Result<Vec<u8>> {
    let MlirType::Tensor(ranked) = &dense.ty else {
        return Err(wrong(format!("expected a tensor type, got {}", dense.ty)));
    };
    let count = ranked.dims.iter().try_fold(1u64, |n, d| n.checked_mul((*d)?));
    let count = count.and_then(|n| usize::try_from(n).ok());
    let count = count.ok_or_else(|| wrong(format!("{} has unknown sizes", dense.ty)))?;
    let fits = |n: usize| n == count || n == 1;
    let element = storage(&ranked.element)?;
    let all = match &dense.elements {
        ElementData::None => Vec::new(),
        ElementData::Splat(words) | ElementData::List(_, words) => {
            let parts = if element.complex { 2 } else { 1 };
            if words.len() % parts != 0 || !fits(words.len() / parts) {
                return Err(wrong(format!("got {} elements for {}", words.len(), dense.ty)));
            }
            of_words(words, &element)?
        }
        ElementData::Bytes(bytes) => unpacked(bytes, count, &element),
        ElementData::Resource(name) => {
            let bytes = module.resource(name).ok_or_else(|| wrong(format!("unknown resource {name}")))?;
            unpacked(bytes, count, &element)
        }
    };
    if count > 0 && !fits(all.len() / element.size()) || all.len() % element.size() != 0 {
        return Err(wrong(format!("got {} bytes for {}", all.len(), dense.ty)));
    }
    Ok(shortest(all, count, &element))
}

/// Memory layout of an element.
struct ElementStorage {
    /// Type; of a complex element, the type of its parts.
    part: String,
    complex: bool,
    bytes: usize,
}

impl ElementStorage {
    fn size(&self) -> usize {
        self.bytes << u32::from(self.complex)
    }
}

fn storage(element: &str) -> Result<ElementStorage> {
    let part = element.strip_prefix("complex<").and_then(|rest| rest.strip_suffix('>'));
    let (part, complex) = part.map_or((element, false), |part| (part, true));
    let bits = width(part).ok_or_else(|| wrong(format!("cannot write elements of type {element}")))?;
    Ok(ElementStorage { part: part.into(), complex, bytes: bits.div_ceil(8) as usize })
}

/// Returns one byte per i1, from either encoding.
fn unpacked(bytes: &[u8], count: usize, element: &ElementStorage) -> Vec<u8> {
    if element.part == "i1" && bytes.len() == count.div_ceil(8) && bytes.len() != count {
        return (0..count).map(|i| bytes.get(i / 8).map_or(0, |b| b >> (i % 8) & 1)).collect();
    }
    bytes.to_vec()
}

/// Shortens a splat to one element and packs eight i1 into a byte.
fn shortest(mut all: Vec<u8>, count: usize, element: &ElementStorage) -> Vec<u8> {
    let size = element.size();
    let first = all.get(..size).map(<[u8]>::to_vec).unwrap_or_default();
    if all.chunks(size).all(|chunk| chunk == first) {
        all.truncate(size);
    }
    if element.part != "i1" || element.complex {
        return all;
    }
    match all.as_slice() {
        [one] if count > 1 => vec![if *one != 0 { 0xFF } else { 0 }],
        _ => {
            let byte = |chunk: &[u8]| chunk.iter().rev().fold(0, |bits, b| bits << 1 | u8::from(*b != 0));
            all.chunks(8).map(byte).collect()
        }
    }
}

fn of_words(words: &[String], element: &ElementStorage) -> Result<Vec<u8>> {
    let mut all = Vec::with_capacity(words.len() * element.bytes);
    for word in words {
        let bits = bits_of(word, &element.part);
        let bits =
            bits.ok_or_else(|| wrong(format!("invalid element `{word}` for type {}", element.part)))?;
        all.extend(bits.to_le_bytes().iter().take(element.bytes));
    }
    Ok(all)
}

/// Returns the bits of a number.
pub(super) fn bits_of(word: &str, ty: &str) -> Option<u64> {
    if ty == "i1" {
        return match word {
            "true" | "1" | "-1" => Some(1),
            "false" | "0" => Some(0),
            _ => None,
        };
    }
    let mask = u64::MAX >> (64 - width(ty)?);
    if let Some(hex) = word.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok().filter(|bits| bits & !mask == 0);
    }
    if !ty.starts_with(['f', 'b', 't']) {
        return word.parse::<i128>().ok().map(|n| n as u64 & mask);
    }
    let value: f64 = word.parse().ok()?;
    match ty {
        "f32" => Some(word.parse::<f32>().ok()?.to_bits().into()),
        "f64" => Some(value.to_bits()),
        "f16" | "bf16" => Some(Scalar::Float(value).to_bits(DType::parse(ty)?)),
        // Infinities and NaN are written as bits.
        _ => Some(Narrow::parse(ty)?.encode(value).into()),
    }
}

/// Returns integers as a one-dimensional array.
pub(super) fn of_ints(items: &[Attribute], element: &str) -> Option<DenseElements> {
    let word = |item: &Attribute| match item {
        Attribute::Int(n) => Some(n.to_string()),
        Attribute::Bool(b) => Some(b.to_string()),
        _ => None,
    };
    let words = items.iter().map(word).collect::<Option<Vec<_>>>()?;
    let ty =
        RankedTensorType { dims: vec![Some(words.len() as u64)], element: element.into(), encoding: None };
    let elements =
        if words.is_empty() { ElementData::None } else { ElementData::List(vec![words.len()], words) };
    Some(DenseElements { ty: MlirType::Tensor(ty), elements })
}
