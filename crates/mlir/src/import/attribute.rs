//! Converts MLIR attributes to the attribute values that Systole's IR ops read.

use super::types::{element, narrow, tensor_type, wrong};
use crate::interface::{ProgramPort, SourceElement};
use crate::narrow_types::Narrow;
use crate::syntax::{
    Attribute, DenseElements, ElementData, MlirModule, MlirType, NamedAttributes, Operation, closed,
};
use systole_base::{DType, Literal, Result, TensorType, ensure};
use systole_ir::op::op_source::AttrValue;
use systole_ir::op::{AttrField, ConvDims};
use systole_ir::text::parse_element;

/// Number of equal elements from which on a constant is imported as a scalar that is broadcast.
const MANY_EQUAL: usize = 1024;

/// Maximum size in bytes of an expanded splat.
const MOST_SPLAT_BYTES: usize = 1 << 32;

/// Attributes whose value is an array; for all others, old writers use a dense array for a list of numbers.
const ARRAYS: [&str; 5] =
    ["value", "padding", "replica_groups", "source_target_pairs", "known_expanding_dimensions"];

/// Returns all attributes of an op that its rules may read.
pub(super) fn all(op: &Operation, module: &MlirModule) -> Result<Vec<(String, AttrValue)>> {
    op.attributes.iter().map(|(name, value)| Ok((name.clone(), one(name, value, module)?))).collect()
}

fn one(name: &str, value: &Attribute, module: &MlirModule) -> Result<AttrValue> {
    Ok(match value {
        Attribute::Bool(b) => AttrValue::Bool(*b),
        Attribute::Int(i) => AttrValue::Int(int(*i)?),
        Attribute::String(text) => AttrValue::Str(text.clone()),
        Attribute::Array(element, items) if element == "i1" => AttrValue::Bools(bools(items)?),
        Attribute::Array(_, items) => AttrValue::Ints(ints(items)?),
        Attribute::List(items) if is_pairs(items) => AttrValue::Dense(pairs(items)?),
        Attribute::List(items) if items.iter().all(|i| matches!(i, Attribute::Int(_))) => match name {
            // `reverse = [1, 0]` in older text.
            "window_reversal" => AttrValue::Bools(bools(items)?),
            _ => AttrValue::Ints(ints(items)?),
        },
        Attribute::List(items) if items.iter().all(|i| matches!(i, Attribute::Bool(_))) => {
            AttrValue::Bools(bools(items)?)
        }
        Attribute::Dense(dense) => {
            let literal = literal(dense, module)?;
            let is_list = literal.shape().rank() <= 1 && !ARRAYS.contains(&name);
            match literal.dtype() {
                DType::Bool if is_list => AttrValue::Bools(literal.to_bools()),
                DType::I64 if is_list => AttrValue::Ints(literal.as_slice::<i64>()?.to_vec()),
                _ => AttrValue::Dense(literal),
            }
        }
        Attribute::Keyword(kind, word) => AttrValue::Keyword(kind_of(name, kind), word.clone()),
        Attribute::Struct(kind, fields) => AttrValue::Struct(kind.clone(), fields_of(fields)?),
        Attribute::Convolution(layouts) => AttrValue::Conv(ConvDims::of_layouts(layouts).map_err(wrong)?),
        Attribute::Sharding(_, dims) => AttrValue::Split(closed(dims)),
        _ => AttrValue::Other,
    })
}

/// Returns the kind in `#stablehlo<kind WORD>`, which pretty forms leave out.
fn kind_of(name: &str, kind: &str) -> String {
    match name {
        "compare_type" => "comparison_type".into(),
        _ => kind.into(),
    }
}

fn int(i: i128) -> Result<i64> {
    i64::try_from(i).map_err(|_| wrong(format!("integer {i} is too large")))
}

fn ints(items: &[Attribute]) -> Result<Vec<i64>> {
    let one = |item: &Attribute| match item {
        Attribute::Int(i) => int(*i),
        other => Err(wrong(format!("expected a list of numbers, found {other:?}"))),
    };
    items.iter().map(one).collect()
}

fn bools(items: &[Attribute]) -> Result<Vec<bool>> {
    let one = |item: &Attribute| match item {
        Attribute::Bool(b) => Ok(*b),
        Attribute::Int(i @ (0 | 1)) => Ok(*i == 1),
        other => Err(wrong(format!("expected a list of bools, found {other:?}"))),
    };
    items.iter().map(one).collect()
}

fn is_pairs(items: &[Attribute]) -> bool {
    !items.is_empty() && items.iter().all(|i| matches!(i, Attribute::List(pair) if pair.len() == 2))
}

/// Converts `[[1, 2], [3, 4]]` like `dense<…> : tensor<2x2xi64>`.
fn pairs(items: &[Attribute]) -> Result<Literal> {
    let mut all = Vec::new();
    for item in items {
        if let Attribute::List(pair) = item {
            all.extend(ints(pair)?);
        }
    }
    Literal::from_slice([items.len(), 2], &all)
}

fn fields_of(fields: &NamedAttributes) -> Result<Vec<(String, AttrField)>> {
    let mut all = Vec::new();
    for (name, value) in fields {
        let field = match value {
            Attribute::Int(i) => AttrField::Int(int(*i)?),
            Attribute::List(items) => AttrField::List(ints(items)?),
            Attribute::Array(_, items) => AttrField::List(ints(items)?),
            _ => continue,
        };
        all.push((name.clone(), field));
    }
    Ok(all)
}

/// Returns one element of a large array of equal elements as a scalar; `None` for other arrays.
pub(super) fn one_for_all(dense: &DenseElements) -> Option<DenseElements> {
    let MlirType::Tensor(ranked) = &dense.ty else { return None };
    let held = element(&dense.ty).ok()?.held();
    let size: usize = held.iter().map(|dtype| dtype.size()).sum();
    let n = ranked.dims.iter().try_fold(1usize, |n, d| n.checked_mul(usize::try_from((*d)?).ok()?))?;
    let is_splat = match &dense.elements {
        ElementData::Splat(_) => true,
        // Other bytes of bools are bits.
        ElementData::Bytes(bytes) => bytes.len() == size,
        _ => false,
    };
    let mut one = ranked.clone();
    one.dims.clear();
    (is_splat && n > MANY_EQUAL)
        .then(|| DenseElements { ty: MlirType::Tensor(one), elements: dense.elements.clone() })
}

/// Returns the IR arrays that hold a dense array; a complex one has two (real, imaginary).
pub(super) fn literals(dense: &DenseElements, module: &MlirModule) -> Result<Vec<Literal>> {
    if !matches!(element(&dense.ty)?, SourceElement::Complex(_)) {
        return Ok(vec![literal(dense, module)?]);
    }
    let MlirType::Tensor(ranked) = &dense.ty else {
        return Err(wrong(format!("expected a tensor type, got {}", dense.ty)));
    };
    let dtype = element(&dense.ty)?.held()[0];
    // Real and imaginary part as a last dimension.
    let mut pairs = ranked.clone();
    pairs.element = dtype.name().into();
    pairs.dims.push(Some(2));
    let bytes = match &dense.elements {
        ElementData::Splat(words) => {
            let ty = tensor_type(&MlirType::Tensor(pairs))?;
            ensure!(ty.bytes() <= MOST_SPLAT_BYTES, wrong(format!("{} splat is too large", dense.ty)));
            let [re, im] = words.as_slice() else { return Err(wrong("a complex element must be a pair")) };
            let mut one = Vec::new();
            for word in [re, im] {
                let bits = parse_element(word, dtype).map_err(wrong)?;
                one.extend_from_slice(&bits.to_le_bytes()[..dtype.size()]);
            }
            one.repeat(ty.elements() / 2)
        }
        elements => {
            let elements = match elements {
                ElementData::List(dims, words) => {
                    ElementData::List(dims.iter().copied().chain([2]).collect(), words.clone())
                }
                ElementData::Bytes(bytes) => {
                    ElementData::Bytes(splat_bytes(bytes, dtype.size() * 2, &pairs)?)
                }
                other => other.clone(),
            };
            literal(&DenseElements { ty: MlirType::Tensor(pairs), elements }, module)?.bytes().to_vec()
        }
    };
    let dims = ranked.dims.iter().flatten().map(|d| *d as usize).collect();
    ProgramPort { dims, element: SourceElement::Complex(dtype), first: 0 }.split(&bytes)
}

/// Repeats one element's bytes for all elements.
fn splat_bytes(bytes: &[u8], size: usize, pairs: &crate::syntax::RankedTensorType) -> Result<Vec<u8>> {
    let ty = tensor_type(&MlirType::Tensor(pairs.clone()))?;
    if bytes.len() != size || ty.elements() == 2 {
        return Ok(bytes.to_vec());
    }
    ensure!(ty.bytes() <= MOST_SPLAT_BYTES, wrong(format!("{ty} splat is too large")));
    Ok(bytes.repeat(ty.elements() / 2))
}

/// Returns elements of a narrow type in the array that holds them.
fn narrow_literal(dense: &DenseElements, narrow: Narrow, module: &MlirModule) -> Result<Literal> {
    let ty = tensor_type(&dense.ty)?;
    let face = ProgramPort { dims: ty.shape.to_vec(), element: SourceElement::Narrow(narrow), first: 0 };
    let of_words =
        |words: &[String]| words.iter().map(|w| narrow_bits(w, narrow)).collect::<Result<Vec<u8>>>();
    let bytes = match &dense.elements {
        ElementData::None => Vec::new(),
        ElementData::Splat(words) => of_words(words)?,
        ElementData::List(dims, words) if dims[..] == ty.shape[..] => of_words(words)?,
        ElementData::List(dims, _) => {
            return Err(wrong(format!("the list has shape {dims:?}, expected that of {}", dense.ty)));
        }
        ElementData::Bytes(bytes) => bytes.clone(),
        ElementData::Resource(name) => {
            module.resource(name).cloned().ok_or_else(|| wrong(format!("unknown resource {name}")))?
        }
    };
    let bytes = match bytes.as_slice() {
        [one] if ty.bytes() <= MOST_SPLAT_BYTES => vec![*one; ty.elements()],
        _ => bytes,
    };
    let held = face.split(&bytes)?.pop();
    held.ok_or_else(|| wrong("the array has no elements"))
}

/// Parses an element: `0x38` is bits, other words are numbers.
fn narrow_bits(word: &str, narrow: Narrow) -> Result<u8> {
    let unknown = || wrong(format!("invalid element `{word}` for type {}", narrow.name()));
    if let Some(hex) = word.strip_prefix("0x") {
        let bits = u8::from_str_radix(hex, 16).map_err(|_| unknown())?;
        return if u32::from(bits) < 1 << narrow.bits() { Ok(bits) } else { Err(unknown()) };
    }
    if narrow.format().is_some() {
        let plain = word.bytes().all(|b| matches!(b, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'));
        let value: f64 = word.parse().ok().filter(|_| plain).ok_or_else(unknown)?;
        return Ok(narrow.encode(value));
    }
    let value: i64 = word.parse().map_err(|_| unknown())?;
    let bits = narrow.encode(value as f64);
    if narrow.decode(bits) == value as f64 { Ok(bits) } else { Err(unknown()) }
}

/// Returns a dense array that one IR array holds.
pub(super) fn literal(dense: &DenseElements, module: &MlirModule) -> Result<Literal> {
    if let Some(narrow) = narrow(&dense.ty) {
        return narrow_literal(dense, narrow, module);
    }
    let ty = tensor_type(&dense.ty)?;
    match &dense.elements {
        ElementData::None if ty.elements() == 0 => Literal::from_bytes(ty, &[]),
        ElementData::None => Err(wrong(format!("no elements for {ty}"))),
        ElementData::Splat(words) => {
            ensure!(ty.bytes() <= MOST_SPLAT_BYTES, wrong(format!("{ty} splat is too large")));
            let [word] = words.as_slice() else { return Err(wrong("expected one value for all elements")) };
            splat(ty, word)
        }
        ElementData::List(dims, words) => {
            if dims[..] != ty.shape[..] {
                return Err(wrong(format!("the list has shape {dims:?}, expected that of {ty}")));
            }
            let size = ty.dtype.size();
            let mut bytes = Vec::with_capacity(ty.bytes());
            for word in words {
                let bits = parse_element(word, ty.dtype).map_err(wrong)?;
                bytes.extend_from_slice(&bits.to_le_bytes()[..size]);
            }
            Literal::from_bytes(ty, &bytes)
        }
        ElementData::Bytes(bytes) => of_bytes(ty, bytes),
        ElementData::Resource(name) => {
            of_bytes(ty, module.resource(name).ok_or_else(|| wrong(format!("unknown resource {name}")))?)
        }
    }
}

fn splat(ty: TensorType, word: &str) -> Result<Literal> {
    let bits = parse_element(word, ty.dtype).map_err(wrong)?;
    let size = ty.dtype.size();
    Literal::from_bytes(ty.clone(), &bits.to_le_bytes()[..size].repeat(ty.elements()))
}

/// Decodes little-endian elements, or one for all; i1 is bit-packed if there are fewer bytes than elements.
fn of_bytes(ty: TensorType, bytes: &[u8]) -> Result<Literal> {
    let (n, size) = (ty.elements(), ty.dtype.size());
    if ty.dtype == DType::Bool {
        if bytes.len() == n.div_ceil(8) && bytes.len() != n {
            let bit = |i: usize| bytes.get(i / 8).is_some_and(|b| b >> (i % 8) & 1 == 1);
            return Literal::from_bools(ty.shape.clone(), &(0..n).map(bit).collect::<Vec<_>>());
        }
        if bytes.len() == 1 && n != 1 {
            return Literal::from_bools(ty.shape.clone(), &vec![bytes[0] != 0; n]);
        }
        return Literal::from_bools(ty.shape.clone(), &bytes.iter().map(|b| *b != 0).collect::<Vec<_>>());
    }
    if bytes.len() == size && n != 1 {
        ensure!(ty.bytes() <= MOST_SPLAT_BYTES, wrong(format!("{ty} splat is too large")));
        return Literal::from_bytes(ty.clone(), &bytes.repeat(n));
    }
    Literal::from_bytes(ty, bytes)
}

/// Returns the IR arrays that hold an array attribute; empty if it is missing.
pub(super) fn elements(op: &Operation, name: &str) -> Result<Vec<Literal>> {
    match crate::syntax::find(&op.attributes, name) {
        Some(Attribute::Dense(dense)) => literals(dense, &MlirModule::default()),
        _ => Ok(Vec::new()),
    }
}

/// Returns a string attribute.
pub(super) fn text<'a>(op: &'a Operation, name: &str) -> Option<&'a str> {
    match crate::syntax::find(&op.attributes, name) {
        Some(Attribute::String(text)) => Some(text),
        _ => None,
    }
}

/// Returns a list of non-negative integers.
pub(super) fn sizes(op: &Operation, name: &str) -> Result<Vec<usize>> {
    let value = crate::syntax::find(&op.attributes, name)
        .ok_or_else(|| wrong(format!("missing attribute `{name}`")))?;
    match one(name, value, &MlirModule::default())? {
        AttrValue::Ints(all) => {
            let sizes = all.into_iter().map(usize::try_from).collect::<Result<Vec<_>, _>>();
            sizes.map_err(|_| wrong(format!("attribute `{name}` has a negative entry")))
        }
        _ => Err(wrong(format!("attribute `{name}` must be a list of integers"))),
    }
}

/// Returns an attribute of the op, or of the dictionary that JAX adds to custom calls (`mhlo.attributes`).
fn own<'a>(op: &'a Operation, name: &str) -> Option<&'a Attribute> {
    crate::syntax::find(&op.attributes, name).or_else(|| {
        match crate::syntax::find(&op.attributes, "mhlo.attributes") {
            Some(Attribute::Dictionary(all)) => crate::syntax::find(all, name),
            _ => None,
        }
    })
}

/// Returns a non-negative integer attribute; `None` if it is absent.
pub(super) fn size(op: &Operation, name: &str) -> Result<Option<usize>> {
    let Some(given) = own(op, name) else { return Ok(None) };
    let size = if let Attribute::Int(i) = given { usize::try_from(*i).ok() } else { None };
    size.map(Some)
        .ok_or_else(|| wrong(format!("attribute `{name}` must be a non-negative integer, got {given:?}")))
}

/// Returns the number of devices a module is written for; 1 if it does not state one.
pub(super) fn device_count(module: &MlirModule) -> Result<usize> {
    let count = match crate::syntax::find(&module.attributes, "mhlo.num_partitions") {
        None => Some(1),
        Some(Attribute::Int(n)) => usize::try_from(*n).ok(),
        Some(_) => None,
    };
    count.ok_or_else(|| wrong("`mhlo.num_partitions` must be a number of devices"))
}

/// Returns a bool attribute, or the default if it is absent.
pub(super) fn flag(op: &Operation, name: &str, default: bool) -> Result<bool> {
    match own(op, name) {
        None => Ok(default),
        Some(Attribute::Bool(b)) => Ok(*b),
        Some(other) => Err(wrong(format!("attribute `{name}` must be true or false, got {other:?}"))),
    }
}

/// Returns WORD of `#stablehlo<kind WORD>`.
pub(super) fn keyword<'a>(op: &'a Operation, name: &str) -> Option<&'a str> {
    match crate::syntax::find(&op.attributes, name) {
        Some(Attribute::Keyword(_, word)) => Some(word),
        _ => None,
    }
}

/// Returns the target of a custom call; `None` for other ops or if no target is given.
pub(super) fn target(op: &Operation) -> Option<&str> {
    if op.name == "stablehlo.custom_call" { text(op, "call_target_name") } else { None }
}
