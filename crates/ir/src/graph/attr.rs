//! Op attributes as data: named values ([`AttrList`]) in the forms that StableHLO text uses.

use super::ConvDims;
use systole_base::Literal;

/// Value of an op attribute, in the forms that StableHLO text uses.
#[derive(Clone, Debug, PartialEq)]
pub enum Attr {
    /// `3 : i64`
    Int(i64),
    /// `3 : i32`
    Int32(i32),
    /// Unit attribute, only its name is printed: `use_global_device_ids`.
    Unit,
    /// `true`
    Bool(bool),
    /// `"text"`
    Str(String),
    /// `array<i64: 1, 2>`
    Ints(Vec<i64>),
    /// `array<i1: true, false>`
    Bools(Vec<bool>),
    /// `dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>`
    Pairs(Vec<[i64; 2]>),
    /// `dense<…> : tensor<…>`
    Dense(Literal),
    /// `#stablehlo<comparison_direction LT>`: kind and value.
    Enum(&'static str, String),
    /// `[#stablehlo<precision DEFAULT>, …]`
    Enums(&'static str, Vec<String>),
    /// `#stablehlo.gather<offset_dims = [0], index_vector_dim = 1>`: mnemonic and fields.
    Struct(&'static str, Vec<(&'static str, AttrField)>),
    /// `#stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>`
    Conv(ConvDims),
}

/// A field of a struct attribute ([`Attr::Struct`]).
#[derive(Clone, Debug, PartialEq)]
pub enum AttrField {
    /// `[0, 1]`; printed only if not empty.
    List(Vec<i64>),
    /// A single integer.
    Int(i64),
}

/// Named attributes in print order. Names with a dialect prefix (`systole.trip_count`) are Systole's extensions; other
/// StableHLO readers ignore them.
pub type AttrList = Vec<(&'static str, Attr)>;

/// Converts sizes to a list of i64.
pub fn ints(values: &[usize]) -> Attr {
    Attr::Ints(values.iter().map(|&v| v as i64).collect())
}

systole_base::renamed! { Attrs => AttrList, Field => AttrField }
