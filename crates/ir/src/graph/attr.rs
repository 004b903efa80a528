//! Attributes of ops as data: [`AttrList`] is what an op says of itself.

use super::ConvDims;
use systole_base::Literal;

/// An attribute value in the forms that StableHLO text uses.
#[derive(Clone, Debug, PartialEq)]
pub enum Attr {
    /// `3 : i64`
    Int(i64),
    /// `3 : i32`
    Int32(i32),
    /// Only its name: `use_global_device_ids`.
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

/// A field of an [`Attr::Struct`].
#[derive(Clone, Debug, PartialEq)]
pub enum AttrField {
    /// `[0, 1]`; printed only when not empty.
    List(Vec<i64>),
    /// A single number.
    Int(i64),
}

/// Named attributes, in the order they are printed. Names with a dialect (`systole.trip_count`) are ours: other
/// readers of StableHLO skip them.
pub type AttrList = Vec<(&'static str, Attr)>;

/// Widens sizes to the i64 of attributes.
pub fn ints(values: &[usize]) -> Attr {
    Attr::Ints(values.iter().map(|&v| v as i64).collect())
}
