//! Imports inverse trigonometric and hyperbolic functions, bessel_i1e, next_after and mulhi. In real functions `x` is
//! f32 or f64.
//!
//! Sources: CHLO's decomposition for the formulas; Cephes (bessel_i1e) for the coefficients.

use systole_base::{DType, Literal, Scalar, TensorType};
use systole_ir::Tensor;
use systole_ir::op::Binary;

fn one(x: &Tensor) -> Tensor {
    x.scalar_like(1.0)
}

fn atan2(y: &Tensor, x: &Tensor) -> Tensor {
    y.atan2(x)
}

/// Computes √(1 − x²) without cancellation near 1.
fn cosine_of_asin(x: &Tensor) -> Tensor {
    ((one(x) - x) * (one(x) + x)).sqrt()
}

pub(super) fn acos(x: &Tensor) -> Tensor {
    atan2(&cosine_of_asin(x), x)
}

pub(super) fn asin(x: &Tensor) -> Tensor {
    atan2(x, &(cosine_of_asin(x) + 1.0)) * 2.0
}

pub(super) fn atan(x: &Tensor) -> Tensor {
    atan2(x, &one(x))
}

/// Computes ln(x + √(x² − 1)): with log1p near 1, and as ln 2 + ln x if x² would overflow.
pub(super) fn acosh(x: &Tensor) -> Tensor {
    let low = (x - 1.0).sqrt();
    let usual = (&low * &((x + 1.0).sqrt() + &low)).log1p();
    let large = x.log() + std::f64::consts::LN_2;
    x.greater_equal(&x.scalar_like(greatest(x) / 2.0)).select(&large, &usual)
}

/// Computes sign x · ln(|x| + √(x² + 1)): with log1p, and as ln 2 + ln |x| if x² would overflow.
pub(super) fn asinh(x: &Tensor) -> Tensor {
    let a = x.abs();
    let square = &a * &a;
    let usual = (&a + &(&square / &((&square + 1.0).sqrt() + 1.0))).log1p();
    let large = a.log() + std::f64::consts::LN_2;
    let root = x.scalar_like(greatest(x).sqrt());
    x.sign() * a.greater_equal(&root).select(&large, &usual)
}

pub(super) fn atanh(x: &Tensor) -> Tensor {
    let inside = (x.log1p() - (-x).log1p()) * 0.5;
    x.abs().greater(&one(x)).select(&x.scalar_like(f64::NAN), &inside)
}

/// Computes (eˣ + e⁻ˣ) / 2 with the factor ½ in the exponent, to avoid early overflow.
pub(super) fn cosh(x: &Tensor) -> Tensor {
    let half = 0.5f64.ln();
    (x + half).exp() + (-x + half).exp()
}

/// Computes e^(−|x|) · I₁(x) with Chebyshev polynomials. Cephes, i1.c and i1f.c.
pub(super) fn bessel_i1e(x: &Tensor) -> Tensor {
    let z = x.abs();
    let (near, far) = match x.dtype() {
        DType::F64 => (&I1E_NEAR[..], &I1E_FAR[..]),
        // Coefficients that matter in f32.
        _ => (&I1E_NEAR[12..], &I1E_FAR[18..]),
    };
    let small = &z * &chebyshev(&(&z * 0.5 - 2.0), near);
    let large = chebyshev(&(32.0 / &z - 2.0), far) / z.sqrt();
    x.sign() * z.less_equal(&x.scalar_like(8.0)).select(&small, &large)
}

fn chebyshev(x: &Tensor, coefficients: &[f64]) -> Tensor {
    let zero = x.zeros_like();
    let (mut b0, mut b1, mut b2) = (zero.clone(), zero.clone(), zero);
    for &c in coefficients {
        (b2, b1) = (b1, b0);
        b0 = &(x * &b1) - &b2 + c;
    }
    let _ = b1;
    (b0 - b2) * 0.5
}

#[rustfmt::skip]
const I1E_NEAR: [f64; 29] = [
    2.777_914_112_761_046_4e-18, -2.111_421_214_358_166e-17, 1.553_631_957_736_200_5e-16, -1.105_596_947_735_386_2e-15,
    7.600_684_294_735_408e-15, -5.042_185_504_727_912e-14, 3.223_793_365_945_575e-13, -1.983_974_397_764_943_6e-12,
    1.173_618_629_889_090_1e-11, -6.663_489_723_502_027e-11, 3.625_590_281_552_117e-10, -1.887_249_751_722_829_4e-9,
    9.381_537_386_495_773e-9, -4.445_059_128_796_328e-8, 2.003_294_753_552_135_3e-7, -8.568_720_264_695_455e-7,
    3.470_251_308_137_678_5e-6, -1.327_316_365_603_943_6e-5, 4.781_565_107_550_054e-5, -1.617_608_158_258_967_4e-4,
    5.122_859_561_685_758e-4, -1.513_572_450_631_253_2e-3, 4.156_422_944_312_888e-3, -1.056_408_489_462_619_7e-2,
    2.472_644_903_062_651_6e-2, -5.294_598_120_809_499e-2, 1.026_436_586_898_471e-1, -1.764_165_183_578_340_6e-1,
    2.525_871_864_436_336_5e-1,
];

#[rustfmt::skip]
const I1E_FAR: [f64; 25] = [
    7.517_296_310_842_105e-18, 4.414_348_323_071_708e-18, -4.650_305_368_489_359e-17, -3.209_525_921_993_424e-17,
    2.962_628_997_645_95e-16, 3.308_202_310_920_929e-16, -1.880_354_775_510_782_5e-15, -3.814_403_072_437_008e-15,
    1.042_027_698_412_880_4e-14, 4.272_440_016_711_951e-14, -2.101_541_842_772_664_3e-14, -4.083_551_111_092_197e-13,
    -7.198_551_776_245_908e-13, 2.035_628_544_147_089_6e-12, 1.412_580_743_661_378e-11, 3.252_603_583_015_488e-11,
    -1.897_495_812_350_541_3e-11, -5.589_743_462_196_584e-10, -3.835_380_385_964_237e-9, -2.631_468_846_889_519_6e-8,
    -2.512_236_237_870_209e-7, -3.882_564_808_877_691e-6, -1.105_889_387_626_237_1e-4, -9.761_097_491_361_469e-3,
    7.785_762_350_182_801e-1,
];

/// Returns the unsigned type with the same number of bits.
fn bits_of(dtype: DType) -> DType {
    match dtype.bits() {
        8 => DType::U8,
        16 => DType::U16,
        32 => DType::U32,
        _ => DType::U64,
    }
}

/// Returns `T[]`: an exact integer, which `f64` may not represent.
fn whole(x: &Tensor, value: u64) -> Tensor {
    let ty = TensorType::scalar(x.dtype());
    x.builder().constant(Literal::splat(ty, Scalar::from_bits(x.dtype(), value)))
}

/// Computes the next number after x towards y by incrementing its bits. NaN if either is NaN; y if both are equal.
pub(super) fn next_after(x: &Tensor, y: &Tensor) -> Option<Tensor> {
    if !x.dtype().is_float() || x.ty() != y.ty() {
        return None;
    }
    let unsigned = bits_of(x.dtype());
    let (a, b) = (x.bitcast_convert(unsigned), y.bitcast_convert(unsigned));
    let sign = whole(&a, 1 << (x.dtype().bits() - 1));
    let rest = whole(&a, (1 << (x.dtype().bits() - 1)) - 1);
    let (zero, unit) = (whole(&a, 0), whole(&a, 1));
    let (a_size, b_size) = (a.and(&rest), b.and(&rest));
    let shrinks = a_size.greater(&b_size).or(&a.and(&sign).not_equal(&b.and(&sign)));
    let stepped = shrinks.select(&(&a - &unit), &(&a + &unit));
    // From zero: the smallest number with y's sign; to zero: y itself.
    let from_zero = b_size.equal(&zero).select(&b, &b.and(&sign).or(&unit));
    let stepped = a_size.equal(&zero).select(&from_zero, &stepped);
    let stepped = x.equal(y).select(&b, &stepped).bitcast_convert(x.dtype());
    let is_nan = x.not_equal(x).or(&y.not_equal(y));
    Some(is_nan.select(&x.scalar_like(f64::NAN), &stepped))
}

/// Computes the high half of an integer product.
pub(super) fn high_product(x: &Tensor, y: &Tensor) -> Option<Tensor> {
    let dtype = x.dtype();
    if !dtype.is_int() || x.ty() != y.ty() {
        return None;
    }
    if dtype.bits() < 64 {
        let wide = if dtype.is_signed_int() { DType::I64 } else { DType::U64 };
        let product = x.convert(wide) * y.convert(wide);
        let by = product.scalar_like(f64::from(dtype.bits()));
        return Some(product.shift_right_arithmetic(&by).convert(dtype));
    }
    let (a, b) = (x.bitcast_convert(DType::U64), y.bitcast_convert(DType::U64));
    let high = high_unsigned(&a, &b);
    if dtype == DType::U64 {
        return Some(high);
    }
    // A negative factor represents itself plus 2⁶⁴.
    let excess =
        |sign: &Tensor, other: &Tensor| sign.less(&sign.scalar_like(0.0)).select(other, &other.zeros_like());
    Some((high - excess(x, &b) - excess(y, &a)).bitcast_convert(dtype))
}

/// Computes the high 64 bits of a product of 64-bit numbers, by halves.
fn high_unsigned(a: &Tensor, b: &Tensor) -> Tensor {
    let (low, by) = (whole(a, 0xffff_ffff), whole(a, 32));
    let high = |t: &Tensor| t.shift_right_logical(&by);
    let (a0, a1, b0, b1) = (a.and(&low), high(a), b.and(&low), high(b));
    let middle = &a0 * &b1 + high(&(&a0 * &b0));
    let other = &a1 * &b0 + middle.and(&low);
    a1 * b1 + high(&middle) + high(&other)
}

/// Returns the binary op with this name.
pub(super) fn binary(name: &str) -> Option<Binary> {
    Binary::ALL.iter().copied().find(|b| systole_ir::op::Op::from(*b).name() == name)
}

/// Returns `T[]`: the largest finite number of the type.
fn greatest(x: &Tensor) -> f64 {
    if x.dtype() == DType::F64 { f64::MAX } else { f64::from(f32::MAX) }
}
