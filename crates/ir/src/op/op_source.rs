//! Parsed form of an op: attributes by name, bodies and types. The op table rebuilds ops from it.

use crate::graph::attr::AttrField;
use crate::graph::{ConvDims, Graph};
use std::sync::Arc;
use systole_base::{Dims, Literal, TensorType};

/// Attribute value of an op, parsed from text. See [`OpSource`].
#[derive(Clone, Debug, PartialEq)]
pub enum AttrValue {
    /// `3 : i64`, `3 : i32`, `3`
    Int(i64),
    /// `true`
    Bool(bool),
    /// `"text"`
    Str(String),
    /// `array<i64: 1, 2>`
    Ints(Vec<i64>),
    /// `array<i1: true, false>`
    Bools(Vec<bool>),
    /// `dense<…> : tensor<…>`
    Dense(Literal),
    /// `#stablehlo<comparison_direction LT>`: kind and value.
    Keyword(String, String),
    /// `#stablehlo.gather<offset_dims = [0], index_vector_dim = 1>`: mnemonic and fields.
    Struct(String, Vec<(String, AttrField)>),
    /// `#stablehlo.conv<…>`
    Conv(ConvDims),
    /// `#sdy.sharding<@mesh, [{"data"}, {}]>`: mesh axes that split each dimension.
    Split(Vec<Vec<String>>),
    /// A list, a dictionary or `unit`: not used by any op.
    Other,
}

/// Parsed form of an op: attributes, bodies and types. The op table rebuilds ops from it.
///
/// Errors of the getters name the attribute.
pub struct OpSource<'a> {
    /// Attributes by name.
    pub attrs: &'a [(String, AttrValue)],
    /// Bodies; their first parameters are the captured values.
    pub regions: Vec<Arc<Graph>>,
    /// Number of leading operands that the bodies capture.
    pub captures: usize,
    /// Types of the operands, including captures.
    pub operands: Vec<TensorType>,
    /// Types of the results.
    pub results: Vec<TensorType>,
}

/// Result of rebuilding an op; the error is a message.
pub type OpParseResult<T> = Result<T, String>;

impl OpSource<'_> {
    fn find(&self, name: &str) -> Option<&AttrValue> {
        self.attrs.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }

    fn get<T>(&self, name: &str, form: &str, read: impl FnOnce(&AttrValue) -> Option<T>) -> OpParseResult<T> {
        let value = self.find(name).ok_or_else(|| format!("attribute `{name}` is missing"))?;
        read(value).ok_or_else(|| format!("attribute `{name}` must be {form}"))
    }

    /// Whether the parsed op has an attribute of this name.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Returns a non-negative integer attribute of the parsed op.
    pub fn size(&self, name: &str) -> OpParseResult<usize> {
        self.get(name, "a non-negative integer", |v| match v {
            AttrValue::Int(i) => usize::try_from(*i).ok(),
            _ => None,
        })
    }

    /// Returns a bool attribute of the parsed op; `false` if missing.
    pub fn flag(&self, name: &str) -> OpParseResult<bool> {
        if !self.has(name) {
            return Ok(false);
        }
        self.get(name, "true or false", |v| match v {
            AttrValue::Bool(b) => Some(*b),
            _ => None,
        })
    }

    /// Returns an attribute `array<i64: …>` of the parsed op.
    pub fn ints(&self, name: &str) -> OpParseResult<Vec<i64>> {
        self.get(name, "an array of i64", |v| match v {
            AttrValue::Ints(v) => Some(v.clone()),
            _ => None,
        })
    }

    /// Returns an attribute `array<i64: …>` without negative entries.
    pub fn sizes(&self, name: &str) -> OpParseResult<Dims> {
        let sizes = self.ints(name)?.into_iter().map(usize::try_from).collect::<Result<Dims, _>>();
        sizes.map_err(|_| format!("attribute `{name}` has a negative entry"))
    }

    /// Returns an attribute `array<i64: …>`; `n` ones if missing.
    pub fn sizes_or_ones(&self, name: &str, n: usize) -> OpParseResult<Dims> {
        if self.has(name) { self.sizes(name) } else { Ok(Dims::from_elem(1, n)) }
    }

    /// Returns an attribute `array<i1: …>`; `n` times false if missing.
    pub fn flags(&self, name: &str, n: usize) -> OpParseResult<Vec<bool>> {
        if !self.has(name) {
            return Ok(vec![false; n]);
        }
        self.get(name, "an array of i1", |v| match v {
            AttrValue::Bools(v) => Some(v.clone()),
            _ => None,
        })
    }

    /// Returns an attribute `dense<…> : tensor<Nx2xi64>`; `n` pairs of zeros if missing.
    pub fn pairs(&self, name: &str, n: usize) -> OpParseResult<Vec<[i64; 2]>> {
        if !self.has(name) {
            return Ok(vec![[0, 0]; n]);
        }
        self.get(name, "pairs of i64 below 2³¹", |v| match v {
            AttrValue::Dense(l) if l.shape().rank() == 2 && l.shape()[1] == 2 => {
                let ints = l.as_slice::<i64>().ok()?;
                let small = ints.iter().all(|i| i.unsigned_abs() <= 1 << 31);
                small.then(|| ints.chunks_exact(2).map(|p| [p[0], p[1]]).collect())
            }
            _ => None,
        })
    }

    /// Returns an attribute `dense<…> : tensor<…>` of the parsed op.
    pub fn dense(&self, name: &str) -> OpParseResult<Literal> {
        self.get(name, "a dense array", |v| match v {
            AttrValue::Dense(l) => Some(l.clone()),
            _ => None,
        })
    }

    /// Returns an attribute `"text"` of the parsed op; empty if missing.
    pub fn text(&self, name: &str) -> OpParseResult<String> {
        if !self.has(name) {
            return Ok(String::new());
        }
        self.get(name, "a string", |v| match v {
            AttrValue::Str(text) => Some(text.clone()),
            _ => None,
        })
    }

    /// Returns the value of `#stablehlo<kind value>`; the names of attribute and kind may differ.
    pub fn keyword(&self, name: &str, kind: &str) -> OpParseResult<&str> {
        let value = self.find(name).ok_or_else(|| format!("attribute `{name}` is missing"))?;
        match value {
            AttrValue::Keyword(k, word) if k == kind => Ok(word),
            _ => Err(format!("attribute `{name}` must be #stablehlo<{kind} …>")),
        }
    }

    /// Returns a field of a struct attribute as a list; empty if missing.
    pub fn field(&self, name: &str, kind: &str, field: &str) -> OpParseResult<Dims> {
        match self.find_field(name, kind, field)? {
            None => Ok(Dims::new()),
            Some(AttrField::List(v)) => v
                .iter()
                .map(|&i| usize::try_from(i))
                .collect::<Result<Dims, _>>()
                .map_err(|_| format!("field `{field}` of `{name}` has a negative entry")),
            Some(AttrField::Int(_)) => Err(format!("field `{field}` of `{name}` must be a list")),
        }
    }

    /// Returns a field of a struct attribute as a number; 0 if missing.
    pub fn field_size(&self, name: &str, kind: &str, field: &str) -> OpParseResult<usize> {
        match self.find_field(name, kind, field)? {
            None => Ok(0),
            Some(AttrField::Int(i)) if *i >= 0 => Ok(*i as usize),
            Some(_) => Err(format!("field `{field}` of `{name}` must be a non-negative integer")),
        }
    }

    fn find_field(&self, name: &str, kind: &str, field: &str) -> OpParseResult<Option<&AttrField>> {
        match self.find(name) {
            Some(AttrValue::Struct(k, fields)) if k == kind => {
                Ok(fields.iter().find(|(f, _)| f == field).map(|(_, v)| v))
            }
            Some(_) => Err(format!("attribute `{name}` must be #stablehlo.{kind}<…>")),
            None => Err(format!("attribute `{name}` is missing")),
        }
    }

    /// Returns an attribute `#stablehlo.conv<…>` of the parsed op.
    pub fn conv(&self, name: &str) -> OpParseResult<ConvDims> {
        self.get(name, "#stablehlo.conv<…>", |v| match v {
            AttrValue::Conv(c) => Some(c.clone()),
            _ => None,
        })
    }

    /// Returns body `i` of the parsed op.
    pub fn region(&self, i: usize) -> OpParseResult<Arc<Graph>> {
        self.regions.get(i).cloned().ok_or_else(|| format!("expected at least {} regions", i + 1))
    }

    /// Returns the type of result `i` of the parsed op.
    pub fn result(&self, i: usize) -> OpParseResult<&TensorType> {
        self.results.get(i).ok_or_else(|| format!("expected at least {} results", i + 1))
    }
}

// Names of the previous version.
systole_base::renamed! { Value => AttrValue }
#[doc(hidden)]
pub use self::{OpParseResult as Unread, OpSource as Source};
