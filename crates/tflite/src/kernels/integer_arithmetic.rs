//! Element-wise kernels of two operands without an int8 form: FLOOR_DIV, FLOOR_MOD, POW, ATAN2, shifts, and ADD_N.

use super::binary::numbers;
use super::call::OperatorCall;
use super::op_row::operators;
use crate::model::broken;
use systole_base::{DType, Literal, Result, ensure};

operators! {
    Pow "POW" 78; options 56 []; versions 1 1; NoInt8; |call| numbers(call, f32::powf, int_power)
    FloorDiv "FLOOR_DIV" 90; options 65 []; versions 1 1; NoInt8;
        |call| numbers(call, |x, y| (x / y).floor(), |x, y| x.checked_div_euclid(y).map(|q| floored(q, x, y)))
    FloorMod "FLOOR_MOD" 95; options 72 []; versions 1 1; NoInt8; |call| numbers(call, floor_mod, |x, y| {
        x.checked_rem(y).map(|r| if r != 0 && (r < 0) != (y < 0) { r + y } else { r })
    })
    AddN "ADD_N" 106; options 82 []; versions 1 1; NoInt8; add_n
    Atan2 "ATAN2" 156; options 122 []; versions 1 1; NoInt8; |call| numbers(call, f32::atan2, |_, _| None)
    BitwiseXor "BITWISE_XOR" 160; options 125 []; versions 1 1; NoInt8;
        |call| integers(call, |x, y| Some(x ^ y))
    RightShift "RIGHT_SHIFT" 161; options 126 []; versions 1 1; NoInt8;
        |call| integers(call, |x, y| Some(x >> y.clamp(0, 63)))
}

/// Rounds the Euclidean quotient down.
fn floored(q: i64, x: i64, y: i64) -> i64 {
    if y < 0 && x.rem_euclid(y) != 0 { q - 1 } else { q }
}

fn floor_mod(x: f32, y: f32) -> f32 {
    let r = x % y;
    if r != 0.0 && (r < 0.0) != (y < 0.0) { r + y } else { r }
}

fn int_power(x: i64, y: i64) -> Option<i64> {
    u32::try_from(y).ok().map(|y| x.wrapping_pow(y))
}

fn integers(call: &OperatorCall, of: fn(i64, i64) -> Option<i64>) -> Result<Vec<Literal>> {
    let dtype = call.input(0)?.dtype();
    ensure!(dtype != DType::F32, call.unsupported(format_args!("element type {dtype}")));
    numbers(call, |x, _| x, of)
}

/// Computes ADD_N: the sum of operands of one shape.
fn add_n(call: &OperatorCall) -> Result<Vec<Literal>> {
    let all = (0..call.operator.inputs.len()).map(|n| call.input(n)).collect::<Result<Vec<_>>>()?;
    let first = all.first().ok_or_else(|| broken("the operator has no operands".into()))?;
    let n = call.check_output(first.dims())?;
    let is_alike = all.iter().all(|x| x.ty() == first.ty());
    ensure!(is_alike, broken("the operands have several types".into()));
    if first.dtype() == DType::F32 {
        let mut y = vec![0f32; n];
        for x in &all {
            y.iter_mut().zip(x.elements::<f32>()?).for_each(|(y, x)| *y += x);
        }
        return call.made(&y);
    }
    let mut y = vec![0i64; n];
    for x in &all {
        y.iter_mut().zip(call.ints(x)?).for_each(|(y, x)| *y = y.wrapping_add(x));
    }
    call.made_ints(&y)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_are_rounded_down_and_remainders_have_the_divisors_sign() {
        for x in -7i64..8 {
            for y in [-3i64, -2, -1, 1, 2, 3] {
                let expected = (x as f64 / y as f64).floor() as i64;
                assert_eq!(floored(x.div_euclid(y), x, y), expected, "{x} / {y}");
                assert_eq!(floor_mod(x as f32, y as f32) as i64, x - expected * y, "{x} % {y}");
            }
        }
    }
}
