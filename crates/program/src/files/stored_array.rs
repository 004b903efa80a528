//! Arrays as stored in files, and each format's names of element types.

use systole_base::Shape;

/// An array as stored in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredArray {
    /// Possible element types by MLIR name; NumPy's `|V1` is ambiguous.
    pub elements: Vec<&'static str>,
    /// Dimension sizes.
    pub dims: Vec<usize>,
    /// Elements, little-endian and row-major.
    pub bytes: Vec<u8>,
}

impl StoredArray {
    /// Returns the array's type as text: `f32[2, 3]`, with the first possible element type.
    pub fn ty(&self) -> String {
        format!("{}{}", self.elements.first().unwrap_or(&"?"), Shape::new(&self.dims))
    }
}

/// An element type: MLIR name, size in bytes, NumPy's and safetensors' name.
pub(super) struct ElementFormat(pub &'static str, pub usize, pub &'static str, pub Option<&'static str>);

/// All element types, preferred meanings of an ambiguous name first. int4 takes one byte per element.
pub(super) const KNOWN: [ElementFormat; 28] = [
    ElementFormat("i1", 1, "|b1", Some("BOOL")),
    ElementFormat("i8", 1, "|i1", Some("I8")),
    ElementFormat("i16", 2, "<i2", Some("I16")),
    ElementFormat("i32", 4, "<i4", Some("I32")),
    ElementFormat("i64", 8, "<i8", Some("I64")),
    ElementFormat("ui8", 1, "|u1", Some("U8")),
    ElementFormat("ui16", 2, "<u2", Some("U16")),
    ElementFormat("ui32", 4, "<u4", Some("U32")),
    ElementFormat("ui64", 8, "<u8", Some("U64")),
    ElementFormat("f16", 2, "<f2", Some("F16")),
    ElementFormat("bf16", 2, "|V2", Some("BF16")),
    ElementFormat("f32", 4, "<f4", Some("F32")),
    ElementFormat("f64", 8, "<f8", Some("F64")),
    ElementFormat("complex<f32>", 8, "<c8", Some("C64")),
    ElementFormat("complex<f64>", 16, "<c16", None),
    ElementFormat("f8E4M3FN", 1, "|V1", Some("F8_E4M3")),
    ElementFormat("f8E5M2", 1, "|V1", Some("F8_E5M2")),
    ElementFormat("f8E8M0FNU", 1, "|V1", Some("F8_E8M0")),
    ElementFormat("f8E3M4", 1, "|V1", None),
    ElementFormat("f8E4M3", 1, "|V1", None),
    ElementFormat("f8E4M3FNUZ", 1, "|V1", None),
    ElementFormat("f8E4M3B11FNUZ", 1, "|V1", None),
    ElementFormat("f8E5M2FNUZ", 1, "|V1", None),
    ElementFormat("f4E2M1FN", 1, "|V1", None),
    ElementFormat("i4", 1, "|i1", Some("I8")),
    ElementFormat("ui4", 1, "|u1", Some("U8")),
    ElementFormat("i2", 1, "|i1", Some("I8")),
    ElementFormat("ui2", 1, "|u1", Some("U8")),
];
