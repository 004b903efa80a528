//! Binary element-wise kernels (ADD, MUL, MAXIMUM, PRELU …) with broadcasting.

use super::call::{KernelOperand, OperatorCall};
use super::op_row::{OperandTypes, operators};
use crate::fixed_point::{
    activation_range, multiply_by_quantized_multiplier, quantize_multiplier, sum_multipliers,
};
use crate::model::{TfliteTensor, broken};
use crate::op::FusedActivation;
use systole_base::{DType, Literal, Result};

operators! {
    Add "ADD" 0; options 11 [0 Activation]; versions 1 2; Free;
        |call| binary(call, |x, y| x + y, |x, y| Some(x.wrapping_add(y)), |s| sum(s, 1))
    Mul "MUL" 18; options 21 [0 Activation]; versions 1 2 or |t| if is_amplified(t) { 3 } else { t.base }; Free;
        |call| binary(call, |x, y| x * y, |x, y| Some(x.wrapping_mul(y)), product)
    Sub "SUB" 41; options 28 [0 Activation]; versions 1 2; Free;
        |call| binary(call, |x, y| x - y, |x, y| Some(x.wrapping_sub(y)), |s| sum(s, -1))
    Div "DIV" 42; options 29 [0 Activation]; versions 1 1; NoInt8; |call| numbers(call, |x, y| x / y, i64::checked_div)
    Prelu "PRELU" 54; options 0 []; versions 1 1; Free;
        |call| binary(call, |x, slope| if x >= 0.0 { x } else { x * slope }, |_, _| None, prelu)
    Maximum "MAXIMUM" 55; options 39 []; versions 1 2; Same;
        |call| binary(call, f32::max, |x, y| Some(x.max(y)), |_| Box::new(|x, y| x.max(y)))
    Minimum "MINIMUM" 57; options 39 []; versions 1 2; Same;
        |call| binary(call, f32::min, |x, y| Some(x.min(y)), |_| Box::new(|x, y| x.min(y)))
    SquaredDifference "SQUARED_DIFFERENCE" 99; options 76 []; versions 1 2; Free;
        |call| binary(call, |x, y| (x - y) * (x - y), |x, y| {
            let d = x.wrapping_sub(y);
            Some(d.wrapping_mul(d))
        }, squared_difference)
}

/// Whether the product of the operands' scales exceeds the result's: requires another version.
fn is_amplified(t: &OperandTypes) -> bool {
    let scale = |t: Option<&TfliteTensor>| t.and_then(|t| t.scale().ok()).map(|(s, _)| s);
    match (scale(t.input(0)), scale(t.input(1)), scale(t.output())) {
        (Some(a), Some(b), Some(y)) => t.is_int8 && a * b / y >= 1.0,
        _ => false,
    }
}

/// Returns the broadcast shape of two shapes.
pub(super) fn common_shape(a: &[usize], b: &[usize]) -> Result<Vec<usize>> {
    let rank = a.len().max(b.len());
    let size = |dims: &[usize], i: usize| (i + dims.len()).checked_sub(rank).map_or(1, |i| dims[i]);
    let one = |i: usize| match (size(a, i), size(b, i)) {
        (x, y) if x == y || y == 1 => Ok(x),
        (1, y) => Ok(y),
        _ => Err(broken(format!("cannot broadcast shapes {a:?} and {b:?}"))),
    };
    (0..rank).map(one).collect()
}

/// Returns, for each element of `dims`, its source element in a tensor of shape `own`.
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

fn zip<T: Copy, U>(
    a: &KernelOperand,
    b: &KernelOperand,
    dims: &[usize],
    xs: (&[T], &[T]),
    of: impl Fn(T, T) -> U,
) -> Vec<U> {
    let (x, y) = xs;
    if a.dims() == b.dims() {
        return x.iter().zip(y).map(|(&x, &y)| of(x, y)).collect();
    }
    let (i, j) = (sources(a.dims(), dims), sources(b.dims(), dims));
    i.iter().zip(&j).map(|(&i, &j)| of(x[i], y[j])).collect()
}

/// A function of two int8 values.
type Int8BinaryFn = Box<dyn Fn(i8, i8) -> i8>;

/// Scales, zero points and the output range.
struct BinaryQuantization {
    a: (f32, i32),
    b: (f32, i32),
    scale: f32,
    zero: i32,
    range: (i32, i32),
}

impl BinaryQuantization {
    /// Wraps a function with the output's zero point and range.
    fn ended(&self, of: impl Fn(i32, i32) -> i32 + 'static) -> Int8BinaryFn {
        let (zero, (low, high), (za, zb)) = (self.zero, self.range, (self.a.1, self.b.1));
        Box::new(move |x, y| {
            of(i32::from(x) - za, i32::from(y) - zb).saturating_add(zero).max(low).min(high) as i8
        })
    }
}

/// Computes `a: T[…], b: T[…] → T[…]`: f32 and integers with a function each, int8 with one that is made from the scales.
fn binary(
    call: &OperatorCall,
    float: impl Fn(f32, f32) -> f32,
    int: fn(i64, i64) -> Option<i64>,
    int8: impl FnOnce(&BinaryQuantization) -> Int8BinaryFn,
) -> Result<Vec<Literal>> {
    let (a, b) = (call.input(0)?, call.input(1)?);
    if (a.dtype(), b.dtype()) != (DType::I8, DType::I8) {
        return numbers(call, float, int);
    }
    let dims = common_shape(a.dims(), b.dims())?;
    call.check_output(&dims)?;
    let ((own_a, own_b), (scale, zero)) = ((a.tensor.scale()?, b.tensor.scale()?), call.output_scale()?);
    let range = activation_range(call.operator.activation()?, scale, zero);
    let of = int8(&BinaryQuantization { a: own_a, b: own_b, scale, zero, range });
    call.made(&zip(&a, &b, &dims, (a.elements::<i8>()?, b.elements::<i8>()?), of))
}

/// Like [`binary`], for f32 and integers without a scale; `int` returns nothing if the result is undefined.
pub(super) fn numbers(
    call: &OperatorCall,
    float: impl Fn(f32, f32) -> f32,
    int: fn(i64, i64) -> Option<i64>,
) -> Result<Vec<Literal>> {
    let (a, b) = (call.input(0)?, call.input(1)?);
    let dims = common_shape(a.dims(), b.dims())?;
    call.check_output(&dims)?;
    let activation = call.operator.activation()?;
    match (a.dtype(), b.dtype()) {
        (DType::F32, DType::F32) => {
            let (low, high) = activation.bounds();
            let of = |x: f32, y: f32| float(x, y).max(low).min(high);
            call.made(&zip(&a, &b, &dims, (a.elements::<f32>()?, b.elements::<f32>()?), of))
        }
        (own, other) if own == other => {
            let (x, y) = (call.ints(&a)?, call.ints(&b)?);
            let made: Option<Vec<i64>> = zip(&a, &b, &dims, (&x[..], &y[..]), int).into_iter().collect();
            let mut made =
                made.ok_or_else(|| call.unsupported(format_args!("these values of type {own}")))?;
            if activation != FusedActivation::None {
                let (low, high) = activation.bounds();
                made.iter_mut().for_each(|v| *v = (*v).max(low as i64).min(high as i64));
            }
            call.made_ints(&made)
        }
        (a, b) => Err(call.unsupported(format_args!("element types {a} and {b}"))),
    }
}

/// Applies `(m, shift)` to a value with additional fractional bits.
fn scaled(x: i32, bits: u32, (m, shift): (i32, i32)) -> i32 {
    multiply_by_quantized_multiplier(x * (1 << bits), m, shift)
}

fn sum(s: &BinaryQuantization, sign: i32) -> Int8BinaryFn {
    let [ma, mb, m] = sum_multipliers(s.a.0, s.b.0, s.scale);
    s.ended(move |x, y| scaled(scaled(x, 20, ma).wrapping_add(scaled(y, 20, mb).wrapping_mul(sign)), 0, m))
}

fn product(s: &BinaryQuantization) -> Int8BinaryFn {
    let m = quantize_multiplier(f64::from(s.a.0 * s.b.0 / s.scale));
    s.ended(move |x, y| scaled(x * y, 0, m))
}

fn squared_difference(s: &BinaryQuantization) -> Int8BinaryFn {
    let twice = 2.0 * f64::from(s.a.0.max(s.b.0));
    let [ma, mb] = [s.a.0, s.b.0].map(|own| quantize_multiplier(f64::from(own) / twice));
    let m = quantize_multiplier(twice * twice / ((1 << 14) as f64 * f64::from(s.scale)));
    s.ended(move |x, y| {
        let d = scaled(x, 7, ma).wrapping_sub(scaled(y, 7, mb));
        scaled(d.wrapping_mul(d), 0, m)
    })
}

/// The second operand is the slope below 0.
fn prelu(s: &BinaryQuantization) -> Int8BinaryFn {
    let one = quantize_multiplier(f64::from(s.a.0 / s.scale));
    let two = quantize_multiplier(f64::from(s.a.0 * s.b.0 / s.scale));
    s.ended(move |x, slope| if x >= 0 { scaled(x, 0, one) } else { scaled(x * slope, 0, two) })
}
