//! Attributes as the IR's ops read them.

use super::types::{tensor_type, wrong};
use crate::syntax::{Attribute, Attributes, Dense, Elements, Module, Operation};
use systole_base::{DType, Literal, Result, TensorType};
use systole_ir::op::source::Value;
use systole_ir::op::{ConvDims, Field};
use systole_ir::text::parse_element;

/// Bytes that one splat may unfold to.
const MOST_SPLAT_BYTES: usize = 1 << 32;

/// Attributes that are arrays by themselves; elsewhere old writers mean a list of numbers by a dense array.
const ARRAYS: [&str; 5] =
    ["value", "padding", "replica_groups", "source_target_pairs", "known_expanding_dimensions"];

/// All attributes of an op that its rules may read.
pub(super) fn all(op: &Operation, module: &Module) -> Result<Vec<(String, Value)>> {
    op.attributes.iter().map(|(name, value)| Ok((name.clone(), one(name, value, module)?))).collect()
}

fn one(name: &str, value: &Attribute, module: &Module) -> Result<Value> {
    Ok(match value {
        Attribute::Bool(b) => Value::Bool(*b),
        Attribute::Int(i) => Value::Int(int(*i)?),
        Attribute::String(text) => Value::Str(text.clone()),
        Attribute::Array(element, items) if element == "i1" => Value::Bools(bools(items)),
        Attribute::Array(_, items) => Value::Ints(ints(items)?),
        Attribute::List(items) if is_pairs(items) => Value::Dense(pairs(items)?),
        Attribute::List(items) if items.iter().all(|i| matches!(i, Attribute::Int(_))) => match name {
            // `reverse = [1, 0]` in older text.
            "window_reversal" => Value::Bools(bools(items)),
            _ => Value::Ints(ints(items)?),
        },
        Attribute::List(items) if items.iter().all(|i| matches!(i, Attribute::Bool(_))) => {
            Value::Bools(bools(items))
        }
        Attribute::Dense(dense) => {
            let literal = literal(dense, module)?;
            let is_list = literal.shape().rank() <= 1 && !ARRAYS.contains(&name);
            match literal.dtype() {
                DType::Bool if is_list => Value::Bools(literal.to_bools()),
                DType::I64 if is_list => Value::Ints(literal.as_slice::<i64>()?.to_vec()),
                _ => Value::Dense(literal),
            }
        }
        Attribute::Keyword(kind, word) => Value::Keyword(kind_of(name, kind), word.clone()),
        Attribute::Struct(kind, fields) => Value::Struct(kind.clone(), fields_of(fields)?),
        Attribute::Convolution(layouts) => Value::Conv(ConvDims::of_layouts(layouts).map_err(wrong)?),
        Attribute::Sharding(_, dims) => Value::Split(dims.clone()),
        _ => Value::Other,
    })
}

/// `#stablehlo<kind WORD>` names kinds that pretty forms leave out.
fn kind_of(name: &str, kind: &str) -> String {
    match name {
        "compare_type" => "comparison_type".into(),
        _ => kind.into(),
    }
}

fn int(i: i128) -> Result<i64> {
    i64::try_from(i).map_err(|_| wrong(format!("{i} is too large a number")))
}

fn ints(items: &[Attribute]) -> Result<Vec<i64>> {
    let one = |item: &Attribute| match item {
        Attribute::Int(i) => int(*i),
        other => Err(wrong(format!("{other:?} stands in a list of numbers"))),
    };
    items.iter().map(one).collect()
}

fn bools(items: &[Attribute]) -> Vec<bool> {
    items.iter().map(|i| matches!(i, Attribute::Bool(true) | Attribute::Int(1))).collect()
}

fn is_pairs(items: &[Attribute]) -> bool {
    !items.is_empty() && items.iter().all(|i| matches!(i, Attribute::List(pair) if pair.len() == 2))
}

/// `[[1, 2], [3, 4]]` as `dense<…> : tensor<2x2xi64>`.
fn pairs(items: &[Attribute]) -> Result<Literal> {
    let mut all = Vec::new();
    for item in items {
        if let Attribute::List(pair) = item {
            all.extend(ints(pair)?);
        }
    }
    Literal::from_slice([items.len(), 2], &all)
}

fn fields_of(fields: &Attributes) -> Result<Vec<(String, Field)>> {
    let mut all = Vec::new();
    for (name, value) in fields {
        let field = match value {
            Attribute::Int(i) => Field::Int(int(*i)?),
            Attribute::List(items) => Field::List(ints(items)?),
            Attribute::Array(_, items) => Field::List(ints(items)?),
            _ => continue,
        };
        all.push((name.clone(), field));
    }
    Ok(all)
}

/// The elements of an array.
pub(super) fn literal(dense: &Dense, module: &Module) -> Result<Literal> {
    let ty = tensor_type(&dense.ty)?;
    match &dense.elements {
        Elements::None if ty.elements() == 0 => Literal::from_bytes(ty, &[]),
        Elements::None => Err(wrong(format!("no elements for {ty}"))),
        Elements::Splat(words) => {
            if ty.bytes() > MOST_SPLAT_BYTES {
                return Err(wrong(format!("{ty} of one value is too large")));
            }
            let [word] = words.as_slice() else { return Err(wrong("more than one value")) };
            splat(ty, word)
        }
        Elements::List(dims, words) => {
            if dims[..] != ty.shape[..] {
                return Err(wrong(format!("the list has the shape {dims:?}, not that of {ty}")));
            }
            let size = ty.dtype.size();
            let mut bytes = Vec::with_capacity(ty.bytes());
            for word in words {
                let bits = parse_element(word, ty.dtype).map_err(wrong)?;
                bytes.extend_from_slice(&bits.to_le_bytes()[..size]);
            }
            Literal::from_bytes(ty, &bytes)
        }
        Elements::Bytes(bytes) => of_bytes(ty, bytes),
        Elements::Resource(name) => {
            let found = module.resources.iter().find(|(n, _)| n == name).map(|(_, bytes)| bytes);
            of_bytes(ty, found.ok_or_else(|| wrong(format!("there is no resource {name}")))?)
        }
    }
}

fn splat(ty: TensorType, word: &str) -> Result<Literal> {
    let bits = parse_element(word, ty.dtype).map_err(wrong)?;
    let size = ty.dtype.size();
    Literal::from_bytes(ty.clone(), &bits.to_le_bytes()[..size].repeat(ty.elements()))
}

/// Little-endian elements, or one for all; bits of i1 are packed where they are fewer than bytes.
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
        if ty.bytes() > MOST_SPLAT_BYTES {
            return Err(wrong(format!("{ty} of one value is too large")));
        }
        return Literal::from_bytes(ty.clone(), &bytes.repeat(n));
    }
    Literal::from_bytes(ty, bytes)
}

/// An array that stands in an attribute.
pub(super) fn elements(op: &Operation, name: &str) -> Result<Option<Literal>> {
    match crate::text::find(&op.attributes, name) {
        Some(Attribute::Dense(dense)) => literal(dense, &Module::default()).map(Some),
        _ => Ok(None),
    }
}

/// A string attribute.
pub(super) fn text<'a>(op: &'a Operation, name: &str) -> Option<&'a str> {
    match crate::text::find(&op.attributes, name) {
        Some(Attribute::String(text)) => Some(text),
        _ => None,
    }
}

/// A list of whole numbers.
pub(super) fn sizes(op: &Operation, name: &str) -> Result<Vec<usize>> {
    let value = crate::text::find(&op.attributes, name)
        .ok_or_else(|| wrong(format!("the attribute `{name}` is missing")))?;
    match one(name, value, &Module::default())? {
        Value::Ints(all) => {
            let sizes = all.into_iter().map(usize::try_from).collect::<Result<Vec<_>, _>>();
            sizes.map_err(|_| wrong(format!("`{name}` has a negative entry")))
        }
        _ => Err(wrong(format!("the attribute `{name}` is no list of numbers"))),
    }
}

/// An attribute of an op, or of those that JAX keeps beside a custom call (`mhlo.attributes`).
fn own<'a>(op: &'a Operation, name: &str) -> Option<&'a Attribute> {
    crate::text::find(&op.attributes, name).or_else(|| {
        match crate::text::find(&op.attributes, "mhlo.attributes") {
            Some(Attribute::Dictionary(all)) => crate::text::find(all, name),
            _ => None,
        }
    })
}

/// A whole number that is not negative.
pub(super) fn size(op: &Operation, name: &str) -> Option<usize> {
    match own(op, name) {
        Some(Attribute::Int(i)) => usize::try_from(*i).ok(),
        _ => None,
    }
}

/// A bool.
pub(super) fn flag(op: &Operation, name: &str) -> Option<bool> {
    match own(op, name) {
        Some(Attribute::Bool(b)) => Some(*b),
        _ => None,
    }
}

/// The word of `#stablehlo<kind WORD>`.
pub(super) fn keyword<'a>(op: &'a Operation, name: &str) -> Option<&'a str> {
    match crate::text::find(&op.attributes, name) {
        Some(Attribute::Keyword(_, word)) => Some(word),
        _ => None,
    }
}
