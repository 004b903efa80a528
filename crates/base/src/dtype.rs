//! Element types ([`DType`]) and single elements of any type ([`Scalar`]).
//!
//! [`Scalar`] is the interpreter's element: wide enough to hold any value of any [`DType`] exactly. It is not optimized for speed.

use bytemuck::{cast_slice, cast_slice_mut};
use half::{bf16, f16, slice::HalfBitsSliceExt, slice::HalfFloatSliceExt};
use std::fmt;

/// Element type, named as in StableHLO text (`i1`, `ui8`, `bf16`, …).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum DType {
    Bool,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F16,
    BF16,
    F32,
    F64,
}

use DType::*;

/// StableHLO and NumPy names, in declaration order.
#[rustfmt::skip]
const NAMES: [(&str, &str); 13] = [
    ("i1", "bool"), ("i8", "int8"), ("i16", "int16"), ("i32", "int32"), ("i64", "int64"), ("ui8", "uint8"),
    ("ui16", "uint16"), ("ui32", "uint32"), ("ui64", "uint64"), ("f16", "float16"), ("bf16", "bfloat16"),
    ("f32", "float32"), ("f64", "float64"),
];

impl DType {
    /// Every element type, in declaration order.
    pub const ALL: [DType; 13] = [Bool, I8, I16, I32, I64, U8, U16, U32, U64, F16, BF16, F32, F64];

    /// Size in bytes. `Bool` takes one byte, 0 or 1.
    pub const fn size(self) -> usize {
        match self {
            Bool | I8 | U8 => 1,
            I16 | U16 | F16 | BF16 => 2,
            I32 | U32 | F32 => 4,
            I64 | U64 | F64 => 8,
        }
    }

    /// Number of value bits: 1 for `Bool`, otherwise eight times [`DType::size`].
    pub const fn bits(self) -> u32 {
        match self {
            Bool => 1,
            _ => self.size() as u32 * 8,
        }
    }

    /// Whether this is `f16`, `bf16`, `f32` or `f64`.
    pub const fn is_float(self) -> bool {
        matches!(self, F16 | BF16 | F32 | F64)
    }

    /// Whether this is a signed integer type.
    pub const fn is_signed_int(self) -> bool {
        matches!(self, I8 | I16 | I32 | I64)
    }

    /// Whether this is an unsigned integer type; `Bool` is not.
    pub const fn is_unsigned_int(self) -> bool {
        matches!(self, U8 | U16 | U32 | U64)
    }

    /// Whether this is a signed or unsigned integer type; `Bool` is not.
    pub const fn is_int(self) -> bool {
        self.is_signed_int() || self.is_unsigned_int()
    }

    /// The StableHLO name: `i1`, `i8`, `ui8`, `f16`, `bf16`, `f32`, …
    pub const fn name(self) -> &'static str {
        NAMES[self as usize].0
    }

    /// Parses a StableHLO or NumPy name (`bool`, `int32`, `uint8`, `bfloat16`, `float32`, …).
    pub fn parse(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| {
            let (stablehlo, numpy) = NAMES[*d as usize];
            stablehlo == name || numpy == name
        })
    }

    /// Largest finite value, as f64 (exact for all but 64-bit integers).
    pub fn max_value(self) -> Scalar {
        match self {
            Bool => Scalar::Bool(true),
            I8 | I16 | I32 | I64 => Scalar::Int(i64::MAX >> (64 - self.bits())),
            U8 | U16 | U32 | U64 => Scalar::Uint(u64::MAX >> (64 - self.bits())),
            F16 => Scalar::Float(f16::MAX.to_f64()),
            BF16 => Scalar::Float(bf16::MAX.to_f64()),
            F32 => Scalar::Float(f32::MAX.into()),
            F64 => Scalar::Float(f64::MAX),
        }
    }

    /// Smallest value: `-inf` for floats, the minimum for integers, `false` for bool.
    pub fn lowest(self) -> Scalar {
        match self {
            Bool => Scalar::Bool(false),
            I8 | I16 | I32 | I64 => Scalar::Int(i64::MIN >> (64 - self.bits())),
            U8 | U16 | U32 | U64 => Scalar::Uint(0),
            F16 | BF16 | F32 | F64 => Scalar::Float(f64::NEG_INFINITY),
        }
    }

    /// Largest value: `+inf` for floats, the maximum for integers, `true` for bool.
    pub fn highest(self) -> Scalar {
        if self.is_float() { Scalar::Float(f64::INFINITY) } else { self.max_value() }
    }
}

impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One element of any [`DType`]: represents every value of the type exactly.
///
/// Floats of all widths are stored as f64. Arithmetic in f64 followed by [`Scalar::round_to`] gives the correctly
/// rounded result of f32, f16 and bf16 `+ - * / sqrt` (f64 has more than twice their digits).
#[derive(Clone, Copy, PartialEq, Debug)]
#[allow(missing_docs)]
pub enum Scalar {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
}

impl Scalar {
    /// Converts to f64; 64-bit integers are rounded.
    pub fn as_f64(self) -> f64 {
        match self {
            Scalar::Bool(b) => b as u8 as f64,
            Scalar::Int(i) => i as f64,
            Scalar::Uint(u) => u as f64,
            Scalar::Float(f) => f,
        }
    }

    /// Converts to i64: floats truncate and saturate, unsigned values wrap.
    pub fn as_i64(self) -> i64 {
        match self {
            Scalar::Bool(b) => b as i64,
            Scalar::Int(i) => i,
            Scalar::Uint(u) => u as i64,
            Scalar::Float(f) => f as i64,
        }
    }

    /// Converts to bool: true if the value is not zero. NaN is true.
    pub fn as_bool(self) -> bool {
        match self {
            Scalar::Bool(b) => b,
            Scalar::Int(i) => i != 0,
            Scalar::Uint(u) => u != 0,
            Scalar::Float(f) => f != 0.0,
        }
    }

    /// Rounds a value of the right family to `dtype`: floats round to nearest even, integers wrap.
    pub fn round_to(self, dtype: DType) -> Scalar {
        match (dtype, self) {
            (Bool, s) => Scalar::Bool(s.as_bool()),
            (F16, s) => Scalar::Float(f16::from_f64(s.as_f64()).to_f64()),
            (BF16, s) => Scalar::Float(bf16::from_bits(bf16_bits(s.as_f64())).to_f64()),
            (F32, s) => Scalar::Float(s.as_f64() as f32 as f64),
            (F64, s) => Scalar::Float(s.as_f64()),
            (d, s) if d.is_signed_int() => {
                let shift = 64 - d.bits();
                Scalar::Int((s.as_i64() << shift) >> shift)
            }
            (d, s) => {
                let shift = 64 - d.bits();
                let bits = match s {
                    Scalar::Uint(u) => u,
                    Scalar::Float(f) => f as u64,
                    other => other.as_i64() as u64,
                };
                Scalar::Uint((bits << shift) >> shift)
            }
        }
    }

    /// Converts like StableHLO `convert`: float → integer truncates toward zero and saturates, anything → bool is `!= 0`.
    pub fn convert_to(self, dtype: DType) -> Scalar {
        match self {
            Scalar::Float(f) if dtype.is_int() => match dtype {
                I8 => Scalar::Int(f as i8 as i64),
                I16 => Scalar::Int(f as i16 as i64),
                I32 => Scalar::Int(f as i32 as i64),
                I64 => Scalar::Int(f as i64),
                U8 => Scalar::Uint(f as u8 as u64),
                U16 => Scalar::Uint(f as u16 as u64),
                U32 => Scalar::Uint(f as u32 as u64),
                _ => Scalar::Uint(f as u64),
            },
            // 64-bit integers convert directly to f32: through f64 they would round twice.
            Scalar::Int(i) if dtype == F32 => Scalar::Float(i as f32 as f64),
            Scalar::Uint(u) if dtype == F32 => Scalar::Float(u as f32 as f64),
            s => s.round_to(dtype),
        }
    }

    /// Converts `value` to an element of `dtype` (see [`Scalar::convert_to`]).
    pub fn of(dtype: DType, value: f64) -> Scalar {
        Scalar::Float(value).convert_to(dtype)
    }

    /// Raw little-endian bits of the value stored as `dtype`, in the low bytes.
    pub fn to_bits(self, dtype: DType) -> u64 {
        match dtype {
            Bool => self.as_bool() as u64,
            F16 => f16::from_f64(self.as_f64()).to_bits() as u64,
            BF16 => bf16_bits(self.as_f64()) as u64,
            F32 => (self.as_f64() as f32).to_bits() as u64,
            F64 => self.as_f64().to_bits(),
            d => {
                let shift = 64 - d.bits();
                let bits = match self {
                    Scalar::Uint(u) => u,
                    s => s.as_i64() as u64,
                };
                (bits << shift) >> shift
            }
        }
    }

    /// Decodes an element from its raw bits; ignores bits above the type's width. The inverse of [`Scalar::to_bits`].
    pub fn from_bits(dtype: DType, bits: u64) -> Scalar {
        match dtype {
            Bool => Scalar::Bool(bits & 1 != 0),
            F16 => Scalar::Float(f16::from_bits(bits as u16).to_f64()),
            BF16 => Scalar::Float(bf16::from_bits(bits as u16).to_f64()),
            F32 => Scalar::Float(f32::from_bits(bits as u32) as f64),
            F64 => Scalar::Float(f64::from_bits(bits)),
            d if d.is_signed_int() => Scalar::Int(bits as i64).round_to(d),
            d => Scalar::Uint(bits).round_to(d),
        }
    }
}

/// Converts f64 to bf16 with one rounding (through f32 it would round twice).
fn bf16_bits(x: f64) -> u16 {
    let nearest = x as f32;
    if !nearest.is_finite() || nearest as f64 == x {
        return bf16::from_f32(nearest).to_bits();
    }
    // Round to odd in f32: preserves the sticky bit for the second rounding.
    let bits = nearest.to_bits();
    let toward_zero = if (nearest as f64).abs() > x.abs() { bits - 1 } else { bits };
    bf16::from_f32(f32::from_bits(toward_zero | 1)).to_bits()
}

/// Rust types that can be elements of a [`crate::Literal`].
///
/// `Bool` literals are bytes: read them with [`crate::Literal::bytes`] or [`crate::Literal::to_bools`].
pub trait Element: Copy + PartialEq + PartialOrd + fmt::Debug + Send + Sync + 'static {
    /// Element type of this Rust type.
    const DTYPE: DType;
    /// Views elements as their bytes.
    fn as_bytes(elements: &[Self]) -> &[u8];
    /// Views bytes as elements. Aligned bytes of whole elements only: it panics otherwise.
    fn from_bytes(bytes: &[u8]) -> &[Self];
    /// Like [`Element::from_bytes`], for writing.
    fn from_bytes_mut(bytes: &mut [u8]) -> &mut [Self];
}

macro_rules! elements {
    ($($t:ty: $bits:ty => $d:ident $($half:ident $half_mut:ident)?),*) => { $(impl Element for $t {
        const DTYPE: DType = DType::$d;
        fn as_bytes(elements: &[Self]) -> &[u8] { cast_slice(elements $(.$half())?) }
        fn from_bytes(bytes: &[u8]) -> &[Self] { cast_slice::<u8, $bits>(bytes) $(.$half())? }
        fn from_bytes_mut(bytes: &mut [u8]) -> &mut [Self] { cast_slice_mut::<u8, $bits>(bytes) $(.$half_mut())? }
    })* };
}
elements!(i8: i8 => I8, i16: i16 => I16, i32: i32 => I32, i64: i64 => I64, u8: u8 => U8, u16: u16 => U16,
          u32: u32 => U32, u64: u64 => U64, f32: f32 => F32, f64: f64 => F64,
          f16: u16 => F16 reinterpret_cast reinterpret_cast_mut, bf16: u16 => BF16 reinterpret_cast reinterpret_cast_mut);

#[cfg(test)]
#[path = "../tests/unit/dtype.rs"]
mod tests;
