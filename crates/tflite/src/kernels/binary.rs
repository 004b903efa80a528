//! Two operands, element by element; sizes of 1 are repeated.

use super::call::{Arg, Call};
use crate::fixed::{
    activation_range, multiply_by_quantized_multiplier, quantize_multiplier, sum_multipliers,
};
use crate::model::broken;
use crate::op::Op;
use systole_base::{DType, Literal, Result};

/// The shape that two shapes have together.
pub(super) fn common_shape(a: &[usize], b: &[usize]) -> Result<Vec<usize>> {
    let rank = a.len().max(b.len());
    let size = |dims: &[usize], i: usize| (i + dims.len()).checked_sub(rank).map_or(1, |i| dims[i]);
    let one = |i: usize| match (size(a, i), size(b, i)) {
        (x, y) if x == y || y == 1 => Ok(x),
        (1, y) => Ok(y),
        _ => Err(broken(format!("shapes {a:?} and {b:?} do not go together"))),
    };
    (0..rank).map(one).collect()
}

/// For each element of `dims`, which element of a tensor of shape `own` belongs to it.
pub(super) fn sources(own: &[usize], dims: &[usize]) -> Vec<usize> {
    let mut at = vec![0usize];
    let mut stride: usize = own.iter().product();
    for (i, &size) in dims.iter().enumerate() {
        let mine = (i + own.len()).checked_sub(dims.len()).map_or(1, |i| own[i]);
        stride /= mine.max(1);
        let step = if mine == 1 { 0 } else { stride };
        at = at.iter().flat_map(|&base| (0..size).map(move |k| base + k * step)).collect();
    }
    at
}

fn zip<T: Copy, U>(a: &Arg, b: &Arg, dims: &[usize], xs: (&[T], &[T]), of: impl Fn(T, T) -> U) -> Vec<U> {
    let (x, y) = xs;
    if a.dims() == b.dims() {
        return x.iter().zip(y).map(|(&x, &y)| of(x, y)).collect();
    }
    let (i, j) = (sources(a.dims(), dims), sources(b.dims(), dims));
    i.iter().zip(&j).map(|(&i, &j)| of(x[i], y[j])).collect()
}

pub(super) fn binary(call: &Call) -> Result<Vec<Literal>> {
    let (a, b) = (call.input(0)?, call.input(1)?);
    let dims = common_shape(a.dims(), b.dims())?;
    call.check_output(&dims)?;
    match (a.dtype(), b.dtype()) {
        (DType::I8, DType::I8) => {
            let of = integers(call, &a, &b)?;
            call.made(&zip(&a, &b, &dims, (a.elements::<i8>()?, b.elements::<i8>()?), of))
        }
        (DType::F32, DType::F32) => {
            let (low, high) = call.operator.activation()?.bounds();
            let op = call.operator.op;
            let of = move |x: f32, y: f32| float(op, x, y).max(low).min(high);
            call.made(&zip(&a, &b, &dims, (a.elements::<f32>()?, b.elements::<f32>()?), of))
        }
        (a, b) => Err(call.unsupported(format_args!("elements of types {a} and {b}"))),
    }
}

fn float(op: Op, x: f32, y: f32) -> f32 {
    match op {
        Op::Add => x + y,
        Op::Sub => x - y,
        Op::Mul => x * y,
        Op::Div => x / y,
        Op::Maximum => x.max(y),
        Op::Minimum => x.min(y),
        Op::SquaredDifference => (x - y) * (x - y),
        // PRELU: y is the slope.
        _ if x >= 0.0 => x,
        _ => x * y,
    }
}

type Pair = Box<dyn Fn(i8, i8) -> i8>;

fn integers(call: &Call, a: &Arg, b: &Arg) -> Result<Pair> {
    let ((sa, za), (sb, zb)) = (a.tensor.scale()?, b.tensor.scale()?);
    let (scale, zero) = call.output_scale()?;
    let (low, high) = activation_range(call.operator.activation()?, scale, zero);
    let end = move |y: i32| y.saturating_add(zero).max(low).min(high) as i8;
    let op = call.operator.op;
    Ok(match op {
        Op::Maximum => Box::new(|x: i8, y: i8| x.max(y)),
        Op::Minimum => Box::new(|x: i8, y: i8| x.min(y)),
        Op::Add | Op::Sub => {
            let [ma, mb, m] = sum_multipliers(sa, sb, scale);
            let sign = if op == Op::Sub { -1 } else { 1 };
            Box::new(move |x, y| {
                let scaled = |q: i8, zero: i32, (m, shift): (i32, i32)| {
                    multiply_by_quantized_multiplier((i32::from(q) - zero) * (1 << 20), m, shift)
                };
                let sum = scaled(x, za, ma).wrapping_add(scaled(y, zb, mb).wrapping_mul(sign));
                end(multiply_by_quantized_multiplier(sum, m.0, m.1))
            })
        }
        Op::Mul => {
            let (m, shift) = quantize_multiplier(f64::from(sa * sb / scale));
            Box::new(move |x, y| {
                let product = (i32::from(x) - za) * (i32::from(y) - zb);
                end(multiply_by_quantized_multiplier(product, m, shift))
            })
        }
        Op::SquaredDifference => {
            let twice = 2.0 * f64::from(sa.max(sb));
            let (ma, mb) =
                (quantize_multiplier(f64::from(sa) / twice), quantize_multiplier(f64::from(sb) / twice));
            let m = quantize_multiplier(twice * twice / ((1 << 14) as f64 * f64::from(scale)));
            Box::new(move |x, y| {
                let scaled = |q: i8, zero: i32, (m, shift): (i32, i32)| {
                    multiply_by_quantized_multiplier((i32::from(q) - zero) * (1 << 7), m, shift)
                };
                let d = scaled(x, za, ma).wrapping_sub(scaled(y, zb, mb));
                end(multiply_by_quantized_multiplier(d.wrapping_mul(d), m.0, m.1))
            })
        }
        Op::Prelu => {
            let one = quantize_multiplier(f64::from(sa / scale));
            let two = quantize_multiplier(f64::from(sa * sb / scale));
            Box::new(move |x, slope| {
                let x = i32::from(x) - za;
                let (x, (m, shift)) = if x >= 0 { (x, one) } else { (x * (i32::from(slope) - zb), two) };
                end(multiply_by_quantized_multiplier(x, m, shift))
            })
        }
        _ => return Err(call.unsupported("integers")),
    })
}
