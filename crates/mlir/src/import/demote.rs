//! Demotes results of narrow types (int4, float8) that the IR computes in wider ones: wraps integers and rounds floats
//! after each op that may leave the type's range.

use super::complex_number::copysign;
use super::types::{held, narrow, wrong};
use super::value::ImportedValue;
use crate::narrow_types::{FloatLayout, Narrow, NonFinite};
use crate::syntax::{MlirType, Operation};
use systole_base::{DType, Literal, Result, TensorType};
use systole_ir::Tensor;

/// Rounds a result to its type; with `keeps`, the op's results already are elements of the type.
pub(super) fn fitted(keeps: bool, given: ImportedValue, ty: &MlirType) -> ImportedValue {
    match (given, narrow(ty)) {
        (ImportedValue::Array(t), Some(to)) if !keeps && t.dtype() == to.held() => {
            ImportedValue::Array(fit(&t, to))
        }
        (given, _) => given,
    }
}

/// Rounds to the nearest element: integers wrap, floats round.
pub(super) fn fit(x: &Tensor, to: Narrow) -> Tensor {
    let unused = x.scalar_like(f64::from(8 - to.bits()));
    match (to.format(), to.held()) {
        (Some(format), _) => round(x, format),
        (None, DType::I8) => x.shift_left(&unused).shift_right_arithmetic(&unused),
        (None, _) => x.and(&x.scalar_like(f64::from((1u32 << to.bits()) - 1))),
    }
}

/// Imports conversions and ops that read bits; `None` if no narrow type is involved.
pub(super) fn write(
    op: &Operation,
    operands: &[ImportedValue],
    from: &[&MlirType],
    to: &[&MlirType],
) -> Result<Option<ImportedValue>> {
    let (Some(ImportedValue::Array(x)), Some(from), Some(said)) =
        (operands.first(), from.first(), to.first())
    else {
        return Ok(None);
    };
    let (from, to) = (narrow(from), narrow(said));
    let of_bools = op.name == "stablehlo.bitcast_convert"
        && (x.dtype() == DType::Bool)
            != (held(said).is_ok_and(|ty| ty.iter().any(|ty| ty.dtype == DType::Bool)));
    if from.is_none() && to.is_none() && !of_bools {
        return Ok(None);
    }
    let whole = from.filter(|n| n.format().is_none());
    let mask = |n: Narrow| x.and(&x.scalar_like(f64::from((1u32 << n.bits()) - 1)));
    let written = match (op.name.as_str(), to, whole) {
        ("stablehlo.convert", Some(to), _) => convert(x, to),
        ("stablehlo.bitcast_convert", ..) => {
            let ty = held(said)?.pop().ok_or_else(|| wrong("a result has no type"))?;
            cast(x, from, to, &ty)?
        }
        ("stablehlo.popcnt", _, Some(n)) => mask(n).popcnt(),
        ("stablehlo.count_leading_zeros", _, Some(n)) => {
            mask(n).count_leading_zeros() - f64::from(8 - n.bits())
        }
        ("stablehlo.shift_right_logical", _, Some(n)) => {
            let by = operands.get(1).ok_or_else(|| wrong("an operand is missing"))?.clone().array()?;
            mask(n).shift_right_logical(&by)
        }
        _ => return Ok(None),
    };
    Ok(Some(ImportedValue::Array(written)))
}

/// Imports `convert`: floats saturate when converted to integers, as in the IR.
fn convert(x: &Tensor, to: Narrow) -> Tensor {
    match to.format() {
        Some(format) => {
            let wide = if x.dtype() == DType::F64 { x.clone() } else { x.convert(DType::F32) };
            round(&wide, format).convert(DType::F32)
        }
        None if x.dtype().is_float() => {
            let bits = to.bits() as i32;
            let (low, high) = match to.held() {
                DType::I8 => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
                _ => (0, (1 << bits) - 1),
            };
            let limit = |v: i32| x.scalar_like(f64::from(v));
            x.clamp(&limit(low), &limit(high)).convert(to.held())
        }
        None => fit(&x.convert(to.held()), to),
    }
}

/// Rounds f32 or f64 to the nearest number of a float format, ties to even.
fn round(x: &Tensor, f: FloatLayout) -> Tensor {
    if f.special == NonFinite::Powers {
        return power(x);
    }
    let number = |v: f64| x.scalar_like(v);
    let (size, exponent) = (x.abs(), if x.dtype() == DType::F64 { 11 } else { 8 });
    // Subnormal numbers have one unit: the last bit of a large number.
    let digits = if x.dtype() == DType::F64 { 52 } else { 23 };
    let magic = 1.5 * f.quantum() * 2f64.powi(digits);
    let small = &(&size + magic) - magic;
    let normal = size.reduce_precision(exponent, f.mantissa);
    let near = size.less(&number(2f64.powi(f.least()))).select(&small, &normal);
    let (nan, over) = (x.not_equal(x), near.greater(&number(f.max)));
    let ended = match f.special {
        NonFinite::Ieee => over.select(&number(f64::INFINITY), &near),
        NonFinite::None => over.select(&number(f.max), &near),
        _ => over.select(&number(f64::NAN), &near),
    };
    let signed = copysign(&ended, x);
    match f.special {
        // 0 has no sign in this encoding.
        NonFinite::NanAtMinusZero => signed.equal(&number(0.0)).select(&number(0.0), &signed),
        NonFinite::None => nan.select(&number(-0.0), &signed),
        _ => nan.select(x, &signed),
    }
}

/// Rounds to the nearest power of two, ties up; NaN unless positive.
fn power(x: &Tensor) -> Tensor {
    let bits = x.convert(DType::F32).bitcast_convert(DType::I32);
    let number = |v: i32| bits.scalar_like(f64::from(v));
    let near = (&bits + &number(0x40_0000)).and(&number(0x7F80_0000));
    // Subnormal f32, like ml_dtypes: values above 2⁻¹²⁷ become 2⁻¹²⁶.
    let small = bits.less_equal(&number(0x40_0000)).select(&number(0x40_0000), &number(0x80_0000));
    let least = bits.less(&number(0x80_0000)).select(&small, &near);
    let is_power = bits.greater(&number(0)).and(&near.less(&number(0x7F80_0000)));
    let is_power = is_power.and(&bits.less(&number(0x7F80_0000)));
    let value = is_power.select(&least, &number(0x7FC0_0000)).bitcast_convert(DType::F32);
    value.convert(x.dtype())
}

/// Encodes elements as bytes.
fn encode(x: &Tensor, from: Narrow) -> Tensor {
    let Some(f) = from.format() else {
        let bytes = if x.dtype() == DType::U8 { x.clone() } else { x.bitcast_convert(DType::U8) };
        return bytes.and(&bytes.scalar_like(f64::from((1u32 << from.bits()) - 1)));
    };
    let bits = x.bitcast_convert(DType::I32);
    let number = |v: i32| bits.scalar_like(f64::from(v));
    if f.special == NonFinite::Powers {
        let exponent = bits.shift_right_logical(&number(23));
        return x.not_equal(x).select(&number(0xFF), &exponent).convert(DType::U8);
    }
    let sign_bit = 1 << (from.bits() - 1);
    let sign = bits.less(&number(0)).select(&number(sign_bit), &number(0));
    let size = x.abs();
    let magnitude = size.bitcast_convert(DType::I32).shift_right_logical(&number(23 - f.mantissa as i32));
    let normal = &magnitude - &number((127 - f.bias) << f.mantissa);
    let small = (&size * (1.0 / f.quantum())).convert(DType::I32);
    let is_small = size.less(&x.scalar_like(2f64.powi(f.least())));
    let finite = is_small.select(&small, &normal);
    let top = ((1 << f.exponent) - 1) << f.mantissa;
    let infinite = size.equal(&x.scalar_like(f64::INFINITY)).select(&number(top), &finite);
    let all = &infinite + &sign;
    let nan = match f.special {
        NonFinite::Ieee => &number(top | 1 << (f.mantissa.max(1) - 1)) + &sign,
        NonFinite::Nan => &number(sign_bit - 1) + &sign,
        _ => number(sign_bit),
    };
    x.not_equal(x).select(&nan, &all).convert(DType::U8)
}

/// Decodes bytes to elements with a lookup table.
fn decode(bytes: &Tensor, to: Narrow) -> Result<Tensor> {
    if to.format().is_none() {
        let held = if to.held() == DType::I8 { bytes.bitcast_convert(DType::I8) } else { bytes.clone() };
        return Ok(fit(&held, to));
    }
    let table: Vec<f32> = (0..=255u8).map(|b| to.decode(b) as f32).collect();
    let table = bytes.builder().constant(Literal::from_slice([256], &table)?);
    Ok(table.take(&bytes.convert(DType::I32)))
}

/// Bitcasts to another type, by way of bytes that each hold as many bits as the narrower element.
fn cast(x: &Tensor, from: Option<Narrow>, to: Option<Narrow>, ty: &TensorType) -> Result<Tensor> {
    let width = |n: Option<Narrow>, d: DType| n.map_or(d.bits(), Narrow::bits) as usize;
    let (a, b) = (width(from, x.dtype()), width(to, ty.dtype));
    let of_elements = |n: usize, w: usize| n.checked_mul(w);
    let even = a.max(b).is_multiple_of(a.min(b));
    if !even || of_elements(x.ty().elements(), a) != of_elements(ty.elements(), b) {
        return Err(wrong(format!("cannot bitcast {} to {ty}: the numbers of bits differ", x.ty())));
    }
    let unit = a.min(b).min(8);
    let flat = x.reshape([x.ty().elements()]);
    let bytes = match from {
        Some(n) => encode(&flat, n),
        None if flat.dtype() == DType::Bool => flat.convert(DType::U8),
        None => flat.bitcast_convert(DType::U8),
    };
    let bytes = bytes.reshape([bytes.ty().elements()]);
    let units = apart(&bytes, a.min(8), unit);
    let bytes = together(&units, unit, b.min(8));
    let elements = match to {
        Some(n) => decode(&bytes, n)?,
        None if ty.dtype == DType::Bool => bytes.not_equal(&bytes.scalar_like(0.0)),
        None => {
            let per = ty.dtype.size();
            let shape = if per == 1 { vec![ty.elements()] } else { vec![ty.elements(), per] };
            bytes.reshape(shape).bitcast_convert(ty.dtype)
        }
    };
    Ok(elements.reshape(ty.shape.clone()))
}

/// Splits values of `width` bits into values of `unit` bits, low bits first.
fn apart(bytes: &Tensor, width: usize, unit: usize) -> Tensor {
    if width <= unit {
        return bytes.clone();
    }
    let (n, k) = (bytes.ty().elements(), width / unit);
    let part = |i: usize| {
        let low = bytes.shift_right_logical(&bytes.scalar_like((i * unit) as f64));
        low.and(&bytes.scalar_like(((1u32 << unit) - 1).into())).reshape([n, 1])
    };
    let parts: Vec<Tensor> = (0..k).map(part).collect();
    Tensor::concatenate(&parts.iter().collect::<Vec<_>>(), 1).reshape([n * k])
}

/// Joins values of `unit` bits into values of `width` bits.
fn together(units: &Tensor, unit: usize, width: usize) -> Tensor {
    if width <= unit {
        return units.clone();
    }
    let k = width / unit;
    let n = units.ty().elements() / k;
    let rows = units.reshape([n, k]);
    let part = |i: usize| rows.slice_dim(1, i, i + 1).shift_left(&units.scalar_like((i * unit) as f64));
    (1..k).fold(part(0), |all, i| all.or(&part(i))).reshape([n])
}
