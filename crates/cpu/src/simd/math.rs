//! Elementary functions of f32 (exp, log, tanh, erf …) as straight-line code that the compiler vectorizes.
//!
//! Branches are selects, and NaN propagates. If f32 arithmetic would cost more than a few ulp, a function computes in
//! f64: half the lanes per vector, but a short polynomial and a result that is nearly always correctly rounded. Results
//! are deterministic for an instruction set; they differ between levels with and without FMA.

use crate::simd::level::Isa;

/// Calls a macro with the vector form of every unary op of f32 that has one: the op, and its value at `x` on `I`.
macro_rules! f32_functions {
    ($callback:ident) => {
        $callback! {
            Abs: |x, I| x.abs();
            Cbrt: |x, I| math::cbrt::<I>(x);
            Ceil: |x, I| x.ceil();
            Erf: |x, I| math::erf::<I>(x);
            Erfc: |x, I| math::erfc::<I>(x);
            ErfInv: |x, I| math::erf_inv::<I>(x);
            Exponential: |x, I| math::exp::<I>(x);
            ExponentialMinusOne: |x, I| math::expm1::<I>(x);
            Floor: |x, I| x.floor();
            Log: |x, I| math::log::<I>(x);
            LogPlusOne: |x, I| math::log1p::<I>(x);
            Logistic: |x, I| math::logistic::<I>(x);
            Negate: |x, I| -x;
            RoundNearestAfz: |x, I| x.round();
            RoundNearestEven: |x, I| x.round_ties_even();
            Rsqrt: |x, I| 1.0 / x.sqrt();
            Sign: |x, I| if x == 0.0 || x.is_nan() { x } else { 1f32.copysign(x) };
            Sqrt: |x, I| x.sqrt();
            Tanh: |x, I| math::tanh::<I>(x);
        }
    };
}
pub(super) use f32_functions;

/// Returns `a·b + c`, fused if the instruction set has FMA.
#[inline(always)]
pub fn mul_add<I: Isa>(a: f32, b: f32, c: f32) -> f32 {
    if I::FMA { a.mul_add(b, c) } else { a * b + c }
}

#[inline(always)]
pub fn mul_add64<I: Isa>(a: f64, b: f64, c: f64) -> f64 {
    if I::FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Evaluates a polynomial by Horner's rule, highest power first.
#[inline(always)]
fn poly<I: Isa, const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut y = c[0];
    let mut k = 1;
    while k < N {
        y = mul_add::<I>(y, x, c[k]);
        k += 1;
    }
    y
}

#[inline(always)]
pub fn poly64<I: Isa, const N: usize>(x: f64, c: [f64; N]) -> f64 {
    let mut y = c[0];
    let mut k = 1;
    while k < N {
        y = mul_add64::<I>(y, x, c[k]);
        k += 1;
    }
    y
}

/// Constant that rounds a float to an integer when added and subtracted; the integer is also in the low bits of the
/// sum.
pub const MAGIC: f32 = 12_582_912.0;
pub const MAGIC64: f64 = 6_755_399_441_055_744.0;

/// Returns 2ᵏ for normal exponents.
#[inline(always)]
fn power_of_two(k: i32) -> f32 {
    f32::from_bits((k.wrapping_add(127) as u32) << 23)
}

/// ln 2 = high − low; multiples of the high part by small integers are exact.
pub const LN_2_HIGH: f32 = 0.693_359_4;
pub const LN_2_LOW: f32 = 2.121_944_4e-4;

/// Range of x for eˣ in f32: below it eˣ is 0, above it infinite.
pub const EXP_RANGE: (f32, f32) = (-104.0, 89.0);

/// Polynomial (eʳ − 1 − r) / r² for exp, from Cephes `expf`.
pub const EXP: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];

/// Polynomial for log, from Cephes `logf`.
pub const LOG: [f32; 9] = [
    7.037_683_6e-2,
    -1.151_461e-1,
    1.167_699_9e-1,
    -1.242_014_1e-1,
    1.424_932_3e-1,
    -1.666_805_7e-1,
    2.000_071_5e-1,
    -2.499_999_4e-1,
    3.333_333e-1,
];

/// Polynomial for tanh, from Cephes `tanhf`, without the leading 1.
pub const TANH: [f32; 5] = [-5.704_988_7e-3, 2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1];

/// Numerator and denominator of erf (coefficients as in Eigen and XLA).
pub const ERF_TOP: [f32; 7] = [
    -2.726_142_3e-10,
    2.770_681_4e-8,
    -2.101_024e-6,
    -5.692_506_4e-5,
    -7.349_906_3e-4,
    -2.954_6e-3,
    -1.609_603_3e-2,
];
pub const ERF_BOTTOM: [f32; 5] =
    [-1.456_607_2e-5, -2.133_740_6e-4, -1.682_827e-3, -7.373_329_2e-3, -1.426_473_9e-2];

/// Returns `(y, k)` with eˣ = y·2ᵏ, as in Cephes `expf`: x = k·ln 2 + r, and a polynomial in r.
#[inline(always)]
fn exp_parts<I: Isa>(x: f32) -> (f32, i32) {
    let shifted = mul_add::<I>(x, std::f32::consts::LOG2_E, MAGIC);
    let n = shifted - MAGIC;
    let k = (shifted.to_bits() as i32).wrapping_sub(MAGIC.to_bits() as i32);
    let r = mul_add::<I>(n, -LN_2_HIGH, x);
    let r = mul_add::<I>(n, LN_2_LOW, r);
    let p = poly::<I, 6>(r, EXP);
    (mul_add::<I>(p, r * r, r) + 1.0, k)
}

/// Returns eˣ. 2ᵏ is applied in two factors, so that subnormal results are correct.
#[inline(always)]
pub fn exp<I: Isa>(x: f32) -> f32 {
    // Selects instead of min and max, so that NaN passes: its k is meaningless, but y is NaN as well.
    let (least, most) = EXP_RANGE;
    let x = if x > most { most } else { x };
    let x = if x < least { least } else { x };
    let (y, k) = exp_parts::<I>(x);
    let half = k >> 1;
    y * power_of_two(half) * power_of_two(k.wrapping_sub(half))
}

/// Returns ln x, as in Cephes `logf`: mantissa in [√½, √2), polynomial, and exponent times ln 2 in two parts.
#[inline(always)]
pub fn log<I: Isa>(x: f32) -> f32 {
    let denormal = x < f32::MIN_POSITIVE;
    let scaled = if denormal { x * 8_388_608.0 } else { x };
    let bits = scaled.to_bits();
    let mantissa = f32::from_bits((bits & 0x007f_ffff) | 0x3f00_0000);
    let exponent = ((bits >> 23) & 0xff) as i32 - 126 - if denormal { 23 } else { 0 };
    let low = mantissa < std::f32::consts::FRAC_1_SQRT_2;
    let e = (exponent - low as i32) as f32;
    let m = if low { mantissa + mantissa } else { mantissa } - 1.0;
    let z = m * m;
    let p = poly::<I, 9>(m, LOG);
    let y = mul_add::<I>(e, -LN_2_LOW, p * m * z);
    let y = mul_add::<I>(z, -0.5, y);
    let y = mul_add::<I>(e, LN_2_HIGH, m + y);
    // Compared as bits: negative numbers and NaN are above infinity.
    let (bits, infinity) = (x.to_bits(), f32::INFINITY.to_bits());
    let y = if bits == infinity { x } else { y };
    let y = if bits > infinity { f32::NAN } else { y };
    if x == 0.0 { f32::NEG_INFINITY } else { y }
}

/// Returns eˣ in f64 for |x| ≤ 300; relative error below 1e-13.
#[inline(always)]
fn exp_wide<I: Isa>(x: f64) -> f64 {
    let shifted = mul_add64::<I>(x, std::f64::consts::LOG2_E, MAGIC64);
    let n = shifted - MAGIC64;
    let k = (shifted.to_bits() as i64).wrapping_sub(MAGIC64.to_bits() as i64);
    let r = mul_add64::<I>(n, -std::f64::consts::LN_2, x);
    // Taylor series; |r| ≤ 0.347.
    let y = poly64::<I, 12>(
        r,
        [
            1.0 / 39_916_800.0,
            1.0 / 3_628_800.0,
            1.0 / 362_880.0,
            1.0 / 40_320.0,
            1.0 / 5_040.0,
            1.0 / 720.0,
            1.0 / 120.0,
            1.0 / 24.0,
            1.0 / 6.0,
            0.5,
            1.0,
            1.0,
        ],
    );
    y * f64::from_bits((k.wrapping_add(1023) as u64) << 52)
}

/// Returns ln x in f64 for positive, normal, finite x; relative error about 1e-14. ln m = 2·artanh((m−1)/(m+1)).
#[inline(always)]
fn log_wide<I: Isa>(x: f64) -> f64 {
    let bits = x.to_bits();
    // Brings the mantissa into [√½, √2) by integer arithmetic alone.
    let shifted = bits.wrapping_sub(0x3fe6_a09e_667f_3bcd);
    let k = (shifted as i64) >> 52;
    let m = f64::from_bits(bits.wrapping_sub((k as u64) << 52));
    // Converts i64 to f64 without AVX-512: the exponent is small.
    let e = f64::from_bits(MAGIC64.to_bits().wrapping_add(k as u64)) - MAGIC64;
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let p = poly64::<I, 9>(
        z,
        [
            2.0 / 19.0,
            2.0 / 17.0,
            2.0 / 15.0,
            2.0 / 13.0,
            2.0 / 11.0,
            2.0 / 9.0,
            2.0 / 7.0,
            2.0 / 5.0,
            2.0 / 3.0,
        ],
    );
    let y = mul_add64::<I>(p * z, s, 2.0 * s);
    mul_add64::<I>(e, std::f64::consts::LN_2, y)
}

#[inline(always)]
fn clamp_wide(x: f32, bound: f64) -> f64 {
    let x = x as f64;
    let x = if x > bound { bound } else { x };
    if x < -bound { -bound } else { x }
}

/// Returns eˣ − 1.
#[inline(always)]
pub fn expm1<I: Isa>(x: f32) -> f32 {
    let w = clamp_wide(x, 110.0);
    let y = (exp_wide::<I>(w) - 1.0) as f32;
    // For smaller x the subtraction cancels in f64 too; x + x²/2 is exact enough there. Keeps −0.
    let small = (w * w * 0.5 + w) as f32;
    let y = if w.abs() < 1e-7 { small } else { y };
    if x.is_nan() || x == 0.0 { x } else { y }
}

/// Returns ln(1 + x).
#[inline(always)]
pub fn log1p<I: Isa>(x: f32) -> f32 {
    let w = x as f64;
    let y = log_wide::<I>(1.0 + w) as f32;
    let small = (w - w * w * 0.5) as f32;
    let y = if w.abs() < 1e-7 { small } else { y };
    let y = if x == f32::INFINITY || x == 0.0 { x } else { y };
    let y = if x == -1.0 { f32::NEG_INFINITY } else { y };
    if x >= -1.0 { y } else { f32::NAN }
}

/// Returns 1 / (1 + e⁻ˣ), from e^−|x|, so that small results keep their precision.
#[inline(always)]
pub fn logistic<I: Isa>(x: f32) -> f32 {
    let e = exp::<I>(-x.abs());
    let top = if x < 0.0 { e } else { 1.0 };
    top / (1.0 + e)
}

/// Returns tanh x, as in Cephes `tanhf`: an odd polynomial near 0, 1 − 2 / (e²ˣ + 1) elsewhere.
#[inline(always)]
pub fn tanh<I: Isa>(x: f32) -> f32 {
    let z = x * x;
    let p = poly::<I, 5>(z, TANH);
    let near = x * mul_add::<I>(p, z, 1.0);
    let twice = 2.0 * x.abs();
    let (y, k) = exp_parts::<I>(if twice > 40.0 { 40.0 } else { twice });
    let far = 1.0 - 2.0 / mul_add::<I>(y, power_of_two(k), 1.0);
    if x.abs() > 0.625 { far.copysign(x) } else { near }
}

/// Returns erf x as an odd rational function; the argument is clamped to where erf is 1 in f32.
#[inline(always)]
pub fn erf<I: Isa>(x: f32) -> f32 {
    let w = if x > ERF_IS_ONE { ERF_IS_ONE } else { x };
    let w = if w < -ERF_IS_ONE { -ERF_IS_ONE } else { w };
    let z = w * w;
    let a = poly::<I, 7>(z, ERF_TOP);
    let b = poly::<I, 5>(z, ERF_BOTTOM);
    w * (a / b)
}

/// ln(erfc(x) / t) + x² in t = 1 / (1 + x/2), for x ≥ 0 (Press et al., Numerical Recipes in C, 6.2).
const ERFC: [f64; 10] = [
    0.170_872_77,
    -0.822_152_23,
    1.488_515_87,
    -1.135_203_98,
    0.278_868_07,
    -0.186_288_06,
    0.096_784_18,
    0.374_091_96,
    1.000_023_68,
    -1.265_512_23,
];

/// Returns 1 − erf x, with a relative error below 1.2e-7 for any magnitude.
#[inline(always)]
pub fn erfc<I: Isa>(x: f32) -> f32 {
    // The limits where it is 0 in f32, and where erf is −1.
    let w = clamp_wide(x, 10.2);
    let a = w.abs();
    let t = 1.0 / (1.0 + 0.5 * a);
    let y = t * exp_wide::<I>(poly64::<I, 10>(t, ERFC) - a * a);
    let y = if w < 0.0 { 2.0 - y } else { y };
    if x.is_nan() { x } else { y as f32 }
}

/// erf⁻¹ in terms of w = −ln(1 − x²), for w < 5 and w ≥ 5 (Giles, "Approximating the erfinv function", 2010).
const ERF_INV_NEAR: [f32; 9] = [
    2.810_226_4e-8,
    3.432_739_4e-7,
    -3.523_387_7e-6,
    -4.391_506_5e-6,
    2.185_808_7e-4,
    -1.253_725e-3,
    -4.177_681_6e-3,
    2.466_407_3e-1,
    1.501_409_4,
];
const ERF_INV_FAR: [f32; 9] = [
    -2.002_142_6e-4,
    1.009_505_6e-4,
    1.349_343_2e-3,
    -3.673_428_4e-3,
    5.739_507_7e-3,
    -7.622_461_3e-3,
    9.438_870_5e-3,
    1.001_674,
    2.832_976_8,
];

/// Returns the inverse of [`erf`]: ±∞ at ±1, NaN beyond.
#[inline(always)]
pub fn erf_inv<I: Isa>(x: f32) -> f32 {
    // (1 − x)(1 + x) instead of 1 − x², which cancels near 1.
    let w = -log::<I>((1.0 - x) * (1.0 + x));
    let near = poly::<I, 9>(w - 2.5, ERF_INV_NEAR);
    let far = poly::<I, 9>(w.sqrt() - 3.0, ERF_INV_FAR);
    let y = x * if w < 5.0 { near } else { far };
    if x.abs() == 1.0 { f32::INFINITY.copysign(x) } else { y }
}

/// Smallest x for which erf is 1 in f32.
pub const ERF_IS_ONE: f32 = 3.832_507;

/// Largest |x| for which the argument reduction of [`sin_cos`] is accurate enough.
pub const TRIG_LIMIT: f32 = 1e5;

/// Returns sin r, cos r and k with x = r + k·π/2, for |x| ≤ [`TRIG_LIMIT`]: reduction and polynomials of fdlibm, in
/// f64.
#[inline(always)]
fn trig_parts<I: Isa>(x: f32) -> (f64, f64, i64) {
    let w = x as f64;
    let shifted = w * std::f64::consts::FRAC_2_PI + MAGIC64;
    let n = shifted - MAGIC64;
    let k = (shifted.to_bits() as i64).wrapping_sub(MAGIC64.to_bits() as i64);
    // The first part of π/2 has 33 bits, so that its product with n is exact.
    let r = (w - n * 1.570_796_326_734_125_6) - n * 6.077_100_506_506_192e-11;
    let z = r * r;
    let sin = poly64::<I, 5>(
        z,
        [
            2.755_731_370_707_006_8e-6,
            -1.984_126_982_985_795e-4,
            8.333_333_333_322_49e-3,
            -1.666_666_666_666_663_2e-1,
            1.0,
        ],
    ) * r;
    let cos = poly64::<I, 6>(
        z,
        [
            -2.755_731_435_139_066_3e-7,
            2.480_158_728_947_673e-5,
            -1.388_888_888_887_411e-3,
            4.166_666_666_666_66e-2,
            -0.5,
            1.0,
        ],
    );
    (sin, cos, k)
}

/// Returns sin x (`quarter` 0) or cos x (`quarter` 1) for |x| ≤ [`TRIG_LIMIT`].
#[inline(always)]
pub fn sin_cos<I: Isa>(x: f32, quarter: i64) -> f32 {
    let (sin, cos, k) = trig_parts::<I>(x);
    let k = k.wrapping_add(quarter);
    let y = if k & 1 == 0 { sin } else { cos };
    let y = if k & 2 == 0 { y } else { -y };
    // Keeps −0, which the reduction turns into +0.
    if quarter == 0 && x == 0.0 { x } else { y as f32 }
}

/// Returns tan x for |x| ≤ [`TRIG_LIMIT`].
#[inline(always)]
pub fn tan<I: Isa>(x: f32) -> f32 {
    let (sin, cos, k) = trig_parts::<I>(x);
    let is_odd = k & 1 != 0;
    let y = if is_odd { -cos } else { sin } / if is_odd { sin } else { cos };
    if x == 0.0 { x } else { y as f32 }
}

/// Returns the cube root of x, as e^(⅓ ln|x|) in f64.
#[inline(always)]
pub fn cbrt<I: Isa>(x: f32) -> f32 {
    let y = exp_wide::<I>(log_wide::<I>(x.abs() as f64) * (1.0 / 3.0)) as f32;
    if x == 0.0 || !x.is_finite() { x } else { y.copysign(x) }
}

/// Whether [`remainder`] supports these operands; other operands are left to the standard library.
#[inline(always)]
pub fn remainder_is_plain(a: f32, b: f32) -> bool {
    // The quotient, rounded down, is exact in f64, and so is its product with b.
    (a as f64).abs() < (b as f64).abs() * 268_435_456.0 && b.is_finite()
}

/// Returns the remainder of a / b with the sign of a, for operands accepted by [`remainder_is_plain`].
#[inline(always)]
pub fn remainder<I: Isa>(a: f32, b: f32) -> f32 {
    let (x, y) = ((a as f64).abs(), (b as f64).abs());
    let q = x / y;
    let n = (q + MAGIC64) - MAGIC64;
    let n = if n > q { n - 1.0 } else { n };
    ((x - n * y) as f32).copysign(a)
}

/// Whether [`pow`] supports these operands; other operands are left to the standard library.
#[inline(always)]
pub fn pow_is_plain(a: f32, b: f32) -> bool {
    a > 0.0 && a < f32::INFINITY && b.abs() < 1e30
}

/// Returns aᵇ for operands accepted by [`pow_is_plain`].
#[inline(always)]
pub fn pow<I: Isa>(a: f32, b: f32) -> f32 {
    let y = b as f64 * log_wide::<I>(a as f64);
    let y = if y > 110.0 { 110.0 } else { y };
    let y = if y < -110.0 { -110.0 } else { y };
    exp_wide::<I>(y) as f32
}

/// IEEE 754-2019 `maximum`: NaN propagates, and +0 > −0.
#[inline(always)]
pub fn maximum(a: f32, b: f32) -> f32 {
    let m = if a > b { a } else { b };
    let m = if a == b { f32::from_bits(a.to_bits() & b.to_bits()) } else { m };
    if a.is_nan() { a } else { m }
}

/// IEEE 754-2019 `minimum`: NaN propagates, and −0 < +0.
#[inline(always)]
pub fn minimum(a: f32, b: f32) -> f32 {
    let m = if a < b { a } else { b };
    let m = if a == b { f32::from_bits(a.to_bits() | b.to_bits()) } else { m };
    if a.is_nan() { a } else { m }
}

/// IEEE 754-2019 `maximum` of f64: like [`maximum`].
#[inline(always)]
pub fn maximum64(a: f64, b: f64) -> f64 {
    let m = if a > b { a } else { b };
    let m = if a == b { f64::from_bits(a.to_bits() & b.to_bits()) } else { m };
    if a.is_nan() { a } else { m }
}

/// IEEE 754-2019 `minimum` of f64: like [`minimum`].
#[inline(always)]
pub fn minimum64(a: f64, b: f64) -> f64 {
    let m = if a < b { a } else { b };
    let m = if a == b { f64::from_bits(a.to_bits() | b.to_bits()) } else { m };
    if a.is_nan() { a } else { m }
}

/// Converts f32 to bf16 bits, round to nearest even; NaN stays NaN.
#[inline(always)]
pub fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    if x.is_nan() { ((bits >> 16) | 0x40) as u16 } else { rounded as u16 }
}

/// Converts bf16 bits to f32, exactly.
#[inline(always)]
pub fn from_bf16(x: u16) -> f32 {
    f32::from_bits((x as u32) << 16)
}

/// Converts f32 to f16 bits, round to nearest even, including subnormals, without branches. The bits equal those of the
/// instruction (VCVTPS2PH): a NaN becomes quiet and keeps its upper bits.
#[inline(always)]
pub fn to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let abs = bits & 0x7fff_ffff;
    // Normal results: rebias the exponent and round off 13 bits.
    let odd = (abs >> 13) & 1;
    let normal = abs.wrapping_sub(112 << 23).wrapping_add(0xfff + odd) >> 13;
    // Subnormal results: adding ½ aligns the mantissa, so that the addition itself rounds to nearest even.
    let denormal = (f32::from_bits(abs) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let y = if abs < 113 << 23 { denormal } else { normal };
    let y = if abs >= 143 << 23 { 0x7c00 } else { y };
    let y = if abs > 0x7f80_0000 { 0x7e00 | (abs >> 13 & 0x3ff) } else { y };
    (y.min(0x7fff) | sign) as u16
}

/// Converts f16 bits to f32, exactly; a NaN becomes quiet, as with the instruction (VCVTPH2PS).
#[inline(always)]
pub fn from_f16(x: u16) -> f32 {
    let sign = (x as u32 & 0x8000) << 16;
    let abs = (x as u32 & 0x7fff) << 13;
    let normal = f32::from_bits(abs + (112 << 23));
    let quiet = if abs > 0x1f << 23 { 0x40_0000 } else { 0 };
    let special = f32::from_bits(abs | 0x7f80_0000 | quiet);
    // Subnormals: read as if with exponent −14, then subtract the implicit one.
    let denormal = f32::from_bits(abs + (113 << 23)) - f32::from_bits(113 << 23);
    let y = if abs < 1 << 23 { denormal } else { normal };
    let y = if abs >= 0x1f << 23 { special } else { y };
    f32::from_bits(y.to_bits() | sign)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::level::Portable;
    use systole_ir::op::{Binary, Unary};
    use systole_ir::{bf16, f16};

    fn ulps(a: f32, b: f32) -> u32 {
        if a.is_nan() && b.is_nan() || a == b {
            return 0;
        }
        let key = |x: f32| {
            if x.is_sign_negative() { -((x.to_bits() & 0x7fff_ffff) as i64) } else { x.to_bits() as i64 }
        };
        (key(a) - key(b)).unsigned_abs().min(u32::MAX as u64) as u32
    }

    fn check(op: Unary, f: fn(f32) -> f32, sample: impl Fn(f32) -> bool) {
        let exact = op.row().float.unwrap();
        let mut worst = (0, 0.0);
        // Every 1021st bit pattern: all exponents, subnormals, infinities and NaN.
        for bits in (0..=u32::MAX).step_by(1021).chain([0, 0x8000_0000, 0x7f80_0000, 0xff80_0000, 1]) {
            let x = f32::from_bits(bits);
            let d = ulps(f(x), exact(x as f64) as f32);
            if sample(x) && d > worst.0 {
                worst = (d, x);
            }
        }
        assert!(worst.0 <= op.row().ulp, "{}: {} ulp at {}", op.name(), worst.0, worst.1);
    }

    #[test]
    fn functions_keep_their_bounds_over_all_floats() {
        check(Unary::Exponential, exp::<Portable>, |_| true);
        check(Unary::Log, log::<Portable>, |_| true);
        check(Unary::ExponentialMinusOne, expm1::<Portable>, |_| true);
        check(Unary::LogPlusOne, log1p::<Portable>, |_| true);
        check(Unary::Logistic, logistic::<Portable>, |_| true);
        check(Unary::Tanh, tanh::<Portable>, |_| true);
        check(Unary::Erf, erf::<Portable>, |_| true);
        check(Unary::Erfc, erfc::<Portable>, |_| true);
        check(Unary::ErfInv, erf_inv::<Portable>, |_| true);
        check(Unary::Sine, |x| sin_cos::<Portable>(x, 0), |x| x.abs() <= TRIG_LIMIT);
        check(Unary::Cosine, |x| sin_cos::<Portable>(x, 1), |x| x.abs() <= TRIG_LIMIT);
        check(Unary::Tan, tan::<Portable>, |x| x.abs() <= TRIG_LIMIT);
        check(Unary::Cbrt, cbrt::<Portable>, |_| true);
        let (a, b) = (Binary::Power.row().float.unwrap(), Binary::Power.row().ulp);
        for i in 0..200_000u32 {
            let x = f32::from_bits(0x0080_0000 + i.wrapping_mul(10_007) % 0x7f00_0000);
            let y = (i % 1009) as f32 * 0.01 - 5.0;
            assert!(ulps(pow::<Portable>(x, y), a(x as f64, y as f64) as f32) <= b, "{x} ^ {y}");
        }
    }

    #[test]
    fn remainders_are_exact() {
        let at = |i: u32| f32::from_bits(i.wrapping_mul(2_654_435_761));
        let mut plain = 0;
        for i in 0..400_000 {
            let (x, scale) = (at(i), at(i.wrapping_add(1)));
            // Half of the divisors are near the dividend, so that quotients are small integers.
            let y = if i % 2 == 0 { scale } else { x / (1.0 + (i % 977) as f32) };
            if remainder_is_plain(x, y) {
                assert_eq!(remainder::<Portable>(x, y).to_bits(), (x % y).to_bits(), "{x} % {y}");
                plain += 1;
            }
        }
        assert!(plain > 200_000);
    }

    #[test]
    fn half_conversions_match_the_library() {
        for bits in 0..=u16::MAX {
            let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
            assert!(same(from_f16(bits), f16::from_bits(bits).to_f32()), "{bits:#x}");
            assert!(same(from_bf16(bits), bf16::from_bits(bits).to_f32()), "{bits:#x}");
        }
        for bits in (0..=u32::MAX).step_by(509) {
            let x = f32::from_bits(bits);
            if x.is_nan() {
                assert!(f16::from_bits(to_f16(x)).is_nan() && bf16::from_bits(to_bf16(x)).is_nan());
                continue;
            }
            assert_eq!(to_f16(x), f16::from_f32(x).to_bits(), "{x}");
            assert_eq!(to_bf16(x), bf16::from_f32(x).to_bits(), "{x}");
        }
    }
}
