//! Integers of less than 8 bits and 8-bit floats (FP8, MX formats), which the IR holds in wider types.
//!
//! Sources: the StableHLO specification's list of types, the OCP formats FP8 and MX, and ml_dtypes, whose encodings
//! these are.

use systole_base::DType;

/// How a small float type encodes NaN and infinity, and how it handles overflow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NonFinite {
    /// Like IEEE 754: infinities (also for overflow) and NaN.
    Ieee,
    /// One NaN per sign, with all bits set, also for overflow; no infinity.
    Nan,
    /// One NaN, with the encoding of −0, also for overflow; no infinity.
    NanAtMinusZero,
    /// No NaN and no infinity: overflow saturates, NaN becomes −0.
    None,
    /// Only powers of two, and a NaN with all bits set, also for 0 and negative numbers.
    Powers,
}

/// Bit layout of a float type: exponent, mantissa and bias.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FloatLayout {
    /// Number of exponent bits.
    pub exponent: u32,
    /// Number of mantissa bits.
    pub mantissa: u32,
    /// Exponent bias.
    pub bias: i32,
    /// Largest finite number.
    pub max: f64,
    /// Encoding of NaN and infinity.
    pub special: NonFinite,
}

impl FloatLayout {
    /// Returns the exponent of the float type's smallest normal number.
    pub fn least(self) -> i32 {
        1 - self.bias
    }

    /// Returns the float type's smallest positive number.
    pub fn quantum(self) -> f64 {
        2f64.powi(self.least() - self.mantissa as i32)
    }
}

macro_rules! narrow_types {
    ($($ty:ident $name:literal $bits:literal $held:ident $format:expr;)*) => {
        /// A narrow type (below 8 bits, or 8-bit float) that the IR holds in a wider one, by its MLIR name.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[allow(missing_docs)]
        pub enum Narrow { $($ty),* }

        impl Narrow {
            /// All narrow types, below 8 bits or 8-bit float.
            pub const ALL: [Narrow; ROWS.len()] = [$(Narrow::$ty),*];
        }

        /// Name, bits, IR type that holds it, and float layout.
        const ROWS: [(&str, u32, DType, Option<FloatLayout>); 15] = [$(($name, $bits, DType::$held, $format)),*];
    };
}

const fn float(exponent: u32, mantissa: u32, bias: i32, max: f64, special: NonFinite) -> Option<FloatLayout> {
    Some(FloatLayout { exponent, mantissa, bias, max, special })
}

narrow_types! {
    I2 "i2" 2 I8 None;
    I4 "i4" 4 I8 None;
    U2 "ui2" 2 U8 None;
    U4 "ui4" 4 U8 None;
    F4E2M1FN "f4E2M1FN" 4 F32 float(2, 1, 1, 6.0, NonFinite::None);
    F6E2M3FN "f6E2M3FN" 6 F32 float(2, 3, 1, 7.5, NonFinite::None);
    F6E3M2FN "f6E3M2FN" 6 F32 float(3, 2, 3, 28.0, NonFinite::None);
    F8E3M4 "f8E3M4" 8 F32 float(3, 4, 3, 15.5, NonFinite::Ieee);
    F8E4M3 "f8E4M3" 8 F32 float(4, 3, 7, 240.0, NonFinite::Ieee);
    F8E4M3B11FNUZ "f8E4M3B11FNUZ" 8 F32 float(4, 3, 11, 30.0, NonFinite::NanAtMinusZero);
    F8E4M3FN "f8E4M3FN" 8 F32 float(4, 3, 7, 448.0, NonFinite::Nan);
    F8E4M3FNUZ "f8E4M3FNUZ" 8 F32 float(4, 3, 8, 240.0, NonFinite::NanAtMinusZero);
    F8E5M2 "f8E5M2" 8 F32 float(5, 2, 15, 57344.0, NonFinite::Ieee);
    F8E5M2FNUZ "f8E5M2FNUZ" 8 F32 float(5, 2, 16, 57344.0, NonFinite::NanAtMinusZero);
    // Up to 2¹²⁷.
    F8E8M0FNU "f8E8M0FNU" 8 F32 float(8, 0, 127, 170141183460469231731687303715884105728.0, NonFinite::Powers);
}

impl Narrow {
    fn row(self) -> (&'static str, u32, DType, Option<FloatLayout>) {
        ROWS[self as usize]
    }

    /// Returns the type's name in MLIR: `i4`, `f8E4M3FN`.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// Returns the narrow type with this MLIR name.
    pub fn parse(name: &str) -> Option<Narrow> {
        Narrow::ALL.into_iter().find(|n| n.name() == name)
    }

    /// Returns the number of bits per element.
    pub fn bits(self) -> u32 {
        self.row().1
    }

    /// Returns the IR type that holds every value of the narrow type exactly.
    pub fn held(self) -> DType {
        self.row().2
    }

    /// Returns the narrow type's float layout; `None` for an integer type.
    pub fn format(self) -> Option<FloatLayout> {
        self.row().3
    }

    /// Decodes the low bits of a byte to a number.
    pub fn decode(self, byte: u8) -> f64 {
        let Some(f) = self.format() else { return self.decode_int(byte) };
        let bits = byte & (((1u16 << self.bits()) - 1) as u8);
        if f.special == NonFinite::Powers {
            return if bits == 0xFF { f64::NAN } else { 2f64.powi(i32::from(bits) - f.bias) };
        }
        let sign_bit = 1 << (self.bits() - 1);
        let (negative, magnitude) = (bits & sign_bit != 0, bits & (sign_bit - 1));
        let (exponent, mantissa) =
            (i32::from(magnitude >> f.mantissa), f64::from(magnitude & ((1 << f.mantissa) - 1)));
        let top = exponent == (1 << f.exponent) - 1;
        let value = match f.special {
            NonFinite::Ieee if top && mantissa == 0.0 => f64::INFINITY,
            NonFinite::Ieee if top => f64::NAN,
            NonFinite::Nan if magnitude == sign_bit - 1 => f64::NAN,
            NonFinite::NanAtMinusZero if negative && magnitude == 0 => return f64::NAN,
            _ if exponent == 0 => mantissa * f.quantum(),
            _ => (1.0 + mantissa / f64::from(1u32 << f.mantissa)) * 2f64.powi(exponent - f.bias),
        };
        if negative { -value } else { value }
    }

    fn decode_int(self, byte: u8) -> f64 {
        let unused = 8 - self.bits();
        match self {
            Narrow::I2 | Narrow::I4 => f64::from((byte << unused) as i8 >> unused),
            _ => f64::from(byte << unused >> unused),
        }
    }

    /// Encodes the nearest number of the narrow type, ties to even; integers wrap around.
    pub fn encode(self, x: f64) -> u8 {
        let mask = ((1u16 << self.bits()) - 1) as u8;
        let Some(f) = self.format() else { return (x as i64) as u8 & mask };
        let sign_bit = 1u8 << (self.bits() - 1);
        let sign = if x.is_sign_negative() { sign_bit } else { 0 };
        if f.special == NonFinite::Powers {
            return encode_power(x);
        }
        let rounded = if x.is_finite() { round(x.abs(), f) } else { x.abs() };
        if rounded.is_nan() || rounded > f.max {
            let top = ((1u8 << f.exponent) - 1) << f.mantissa;
            return match f.special {
                NonFinite::Ieee if rounded.is_nan() => sign | top | 1 << (f.mantissa - 1),
                NonFinite::Ieee => sign | top,
                NonFinite::Nan => sign | (sign_bit - 1),
                NonFinite::None if rounded.is_nan() => sign_bit,
                NonFinite::None => sign | (sign_bit - 1),
                _ => sign_bit,
            };
        }
        let bits = rounded.to_bits() >> (52 - f.mantissa);
        let base = ((1023 - f.bias) as u64) << f.mantissa;
        let magnitude =
            if rounded < 2f64.powi(f.least()) { (rounded / f.quantum()) as u64 } else { bits - base };
        match f.special {
            NonFinite::NanAtMinusZero if magnitude == 0 => 0,
            _ => sign | magnitude as u8,
        }
    }
}

/// Rounds to the nearest multiple of the format's last bit at this magnitude.
fn round(x: f64, f: FloatLayout) -> f64 {
    let exponent = ((x.to_bits() >> 52) as i32 - 1023).max(f.least());
    let unit = 2f64.powi(exponent - f.mantissa as i32);
    (x / unit).round_ties_even() * unit
}

/// Encodes the nearest power of two, ties up.
fn encode_power(x: f64) -> u8 {
    if x.is_nan() || x <= 0.0 {
        return 0xFF;
    }
    // Like ml_dtypes: a value above the smallest power rounds up to the next one.
    if x < 2f64.powi(-126) {
        return u8::from(x > 2f64.powi(-127));
    }
    let exponent = ((x.to_bits() + (1 << 51)) >> 52) as i64 - 1023 + 127;
    if exponent > 254 { 0xFF } else { exponent as u8 }
}
