//! Arrays as files hold them, and the words of the formats for element types.

use systole_base::Shape;

/// An array as a file holds it, or is to hold it.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredArray {
    /// What its elements may be, by the names that programs have for them: a file's `|V1` may be one of several.
    pub elements: Vec<&'static str>,
    /// Sizes of its dimensions.
    pub dims: Vec<usize>,
    /// Its elements, little endian and row-major.
    pub bytes: Vec<u8>,
}

impl StoredArray {
    /// `f32[2, 3]`; of several possible types the first.
    pub fn ty(&self) -> String {
        format!("{}{}", self.elements.first().unwrap_or(&"?"), Shape::new(&self.dims))
    }
}

/// An element type of programs, and what the formats call it: bytes of one, NumPy's and safetensors' word.
pub(super) struct ElementFormat(pub &'static str, pub usize, pub &'static str, pub Option<&'static str>);

/// Of what a format's word may mean, the first comes first. Four bits lie in a byte each.
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
