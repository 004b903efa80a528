//! Raises VHLO attributes to StableHLO attributes: drops defaults, collects struct fields, converts tensors to arrays.

use super::attribute::{bad, little};
use super::reader::BytecodeReader;
use crate::vhlo_tables::{LAYOUTS, VhloAttributeKind, VhloDefault, default, gathered, kind};
use systole_base::Result;
use systole_mlir::syntax::{Attribute, DenseElements, ElementData, MlirType, NamedAttributes, find, take};

impl BytecodeReader<'_> {
    /// Returns an op's attributes with their StableHLO names and forms, in order of name.
    pub(super) fn raise(&self, op: &str, mut from: NamedAttributes, at: usize) -> Result<NamedAttributes> {
        let both_empty = |all: &NamedAttributes| {
            let is_empty =
                |name: &str| matches!(find(all, name), Some(Attribute::List(items)) if items.is_empty());
            is_empty("operand_layouts") && is_empty("result_layouts")
        };
        let no_layouts = both_empty(&from);
        let mut to = NamedAttributes::new();
        for g in gathered(op) {
            let fields: Vec<_> = g.fields.split_ascii_whitespace().collect();
            let given = fields.iter().filter_map(|field| Some((*field, take(&mut from, field)?)));
            let given: Vec<_> = given.collect();
            if g.kind == "dot_algorithm" && given.iter().all(|(_, value)| is_none_type(value)) {
                continue;
            }
            let mut kept = NamedAttributes::new();
            for (name, value) in given {
                match self.field(value).ok_or_else(|| bad(at, op, name))? {
                    Attribute::List(items) if items.is_empty() => {}
                    Attribute::Int(0) if name == "index_vector_dim" => {}
                    value => kept.push((name.to_owned(), value)),
                }
            }
            to.push((g.name.into(), Attribute::Struct(g.kind.into(), kept)));
        }
        if matches!(op, "convolution" | "dynamic_conv") {
            to.push(("dimension_numbers".into(), self.layouts(op, &mut from, at)?));
        }
        let channel_type = take(&mut from, "channel_type").map(plain);
        for (name, value) in from {
            let is_layout = matches!(name.as_str(), "operand_layouts" | "result_layouts");
            let drop = if is_layout {
                no_layouts
            } else {
                default(op, &name).is_some_and(|d| is_default(&value, d))
            };
            if drop || op == "dynamic_conv" && name == "padding" {
                continue;
            }
            if name == "channel_id" {
                let kind = channel_type.clone().unwrap_or(Attribute::Int(0));
                let fields = vec![("handle".into(), plain(value)), ("type".into(), kind)];
                to.push(("channel_handle".into(), Attribute::Struct("channel_handle".into(), fields)));
                continue;
            }
            let value = self.special(&name, value).ok_or_else(|| bad(at, op, &name))?;
            to.push((name, value));
        }
        to.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(to)
    }

    /// Converts an attribute that StableHLO writes differently; `None` if it does not have the expected kind.
    fn special(&self, name: &str, value: Attribute) -> Option<Attribute> {
        let symbol = |value| match value {
            Attribute::String(name) | Attribute::Symbol(name) => Some(Attribute::Symbol(name)),
            _ => None,
        };
        match (kind(name), value) {
            (VhloAttributeKind::Ints, Attribute::Dense(dense)) => {
                Some(Attribute::Array("i64".into(), self.ints(&dense)?))
            }
            (VhloAttributeKind::Bools, Attribute::Dense(dense)) => {
                Some(Attribute::Array("i1".into(), bools(&dense)?))
            }
            (VhloAttributeKind::Ints | VhloAttributeKind::Bools, value @ Attribute::Array(..)) => Some(value),
            (VhloAttributeKind::Unit, Attribute::Bool(true) | Attribute::Unit) => Some(Attribute::Unit),
            (VhloAttributeKind::Symbol, value) => symbol(value),
            (VhloAttributeKind::Symbols, Attribute::List(items)) => {
                Some(Attribute::List(items.into_iter().map(symbol).collect::<Option<_>>()?))
            }
            (
                VhloAttributeKind::Ints
                | VhloAttributeKind::Bools
                | VhloAttributeKind::Unit
                | VhloAttributeKind::Symbols,
                _,
            ) => None,
            (_, value) => Some(plain(value)),
        }
    }

    /// Converts a field of a struct attribute.
    fn field(&self, value: Attribute) -> Option<Attribute> {
        match value {
            Attribute::Dense(dense) => Some(Attribute::List(self.ints(&dense)?)),
            value => Some(plain(value)),
        }
    }

    /// Returns the integers of a one-dimensional tensor.
    fn ints(&self, dense: &DenseElements) -> Option<Vec<Attribute>> {
        let count = count(dense)?;
        let numbers: Vec<i64> = match &dense.elements {
            ElementData::None => Vec::new(),
            ElementData::Bytes(bytes) if bytes.len() == 8 => vec![little(bytes); self.fill(count)?],
            ElementData::Bytes(bytes) => bytes.chunks_exact(8).map(little).collect(),
            _ => return None,
        };
        self.charge(numbers.len() * size_of::<Attribute>()).ok()?;
        Some(numbers.into_iter().map(|n| Attribute::Int(n.into())).collect())
    }

    /// Returns the repeat count of a splat; attributes with many dimensions are rejected.
    fn fill(&self, count: usize) -> Option<usize> {
        self.charge(count.checked_mul(size_of::<Attribute>())?).ok()?;
        Some(count)
    }

    fn layouts(&self, op: &str, from: &mut NamedAttributes, at: usize) -> Result<Attribute> {
        let mut layouts: [Vec<String>; 3] = [const { Vec::new() }; 3];
        for (layout, parts) in layouts.iter_mut().zip(LAYOUTS) {
            let mut given = Vec::new();
            for (letter, name) in parts {
                let value = take(from, name).and_then(|v| self.field(v)).ok_or_else(|| bad(at, op, name))?;
                match value {
                    Attribute::Int(d) => given.push((d, letter.to_owned())),
                    Attribute::List(dims) => {
                        given.extend(dims.into_iter().enumerate().filter_map(|(i, d)| match d {
                            Attribute::Int(d) => Some((d, i.to_string())),
                            _ => None,
                        }))
                    }
                    _ => return Err(bad(at, op, name)),
                }
            }
            given.sort();
            if !given.iter().enumerate().all(|(i, (d, _))| *d == i as i128) {
                return Err(bad(at, op, "dimension_numbers"));
            }
            *layout = given.into_iter().map(|(_, letter)| letter).collect();
        }
        Ok(Attribute::Convolution(layouts))
    }
}

/// Drops the types of integers, except in dictionaries, whose readers may need them.
pub(super) fn plain(value: Attribute) -> Attribute {
    let all =
        |fields: NamedAttributes| fields.into_iter().map(|(name, value)| (name, plain(value))).collect();
    match value {
        Attribute::Other(name, digits) => match digits.parse() {
            Ok(n) if super::attribute::width(&name).is_some() => Attribute::Int(n),
            _ => Attribute::Other(name, digits),
        },
        Attribute::List(items) => Attribute::List(items.into_iter().map(plain).collect()),
        Attribute::Struct(kind, fields) => Attribute::Struct(kind, all(fields)),
        value => value,
    }
}

fn is_none_type(value: &Attribute) -> bool {
    matches!(value, Attribute::Type(MlirType::Scalar(name)) if name == "none")
}

/// Returns the number of elements of a tensor.
fn count(dense: &DenseElements) -> Option<usize> {
    let MlirType::Tensor(ranked) = &dense.ty else { return None };
    let count = ranked.dims.iter().try_fold(1u64, |n, d| n.checked_mul((*d)?))?;
    usize::try_from(count).ok()
}

/// Returns the bools of a small one-dimensional tensor.
fn bools(dense: &DenseElements) -> Option<Vec<Attribute>> {
    let n = count(dense).filter(|n| *n <= 64)?;
    match &dense.elements {
        ElementData::None => Some(Vec::new()),
        ElementData::Splat(words) => Some(vec![Attribute::Bool(words.first()? == "true"); n]),
        ElementData::Bytes(bytes) => {
            let bit = |i: usize| Some(Attribute::Bool(bytes.get(i / 8)? >> (i % 8) & 1 == 1));
            (0..n).map(bit).collect()
        }
        _ => None,
    }
}

/// Whether an attribute equals its default.
pub(crate) fn is_default(value: &Attribute, default: VhloDefault) -> bool {
    let splat = |n: i64| match value {
        Attribute::Dense(DenseElements { elements: ElementData::Bytes(bytes), .. }) => {
            !bytes.is_empty() && bytes.chunks(8).all(|chunk| chunk.len() == 8 && little(chunk) == n)
        }
        _ => false,
    };
    match (default, value) {
        (VhloDefault::False, Attribute::Bool(flag)) => !flag,
        (VhloDefault::Int(n), Attribute::Int(i)) => *i == i128::from(n),
        (VhloDefault::Int(n), Attribute::Other(_, digits)) => digits.parse() == Ok(n),
        (VhloDefault::Int(0), Attribute::Keyword(_, word)) => word == "NOTYPE",
        (VhloDefault::List, Attribute::List(items)) => items.is_empty(),
        (VhloDefault::Empty, Attribute::Dense(dense)) => dense.elements == ElementData::None,
        (VhloDefault::Text, Attribute::String(text)) => text.is_empty(),
        (VhloDefault::Text | VhloDefault::Dictionary, Attribute::Dictionary(entries)) => entries.is_empty(),
        (VhloDefault::Each(n), _) => splat(n),
        (VhloDefault::Pairs, _) => splat(0),
        (VhloDefault::Falses, Attribute::Dense(dense)) => match &dense.elements {
            ElementData::Splat(words) => words.iter().all(|w| w == "false"),
            ElementData::Bytes(bytes) => bytes.iter().all(|b| *b == 0),
            _ => false,
        },
        (VhloDefault::Precision, Attribute::List(items)) => {
            items.iter().all(|item| matches!(item, Attribute::Keyword(_, word) if word == "DEFAULT"))
        }
        (VhloDefault::Accuracy, Attribute::Struct(_, fields)) => {
            fields.iter().all(|(_, value)| match value {
                Attribute::Float(digits, _) => digits.parse() == Ok(0.0),
                Attribute::Int(n) => *n == 0,
                Attribute::Other(_, word) => word == "DEFAULT",
                _ => false,
            })
        }
        (VhloDefault::None, value) => is_none_type(value),
        _ => false,
    }
}
