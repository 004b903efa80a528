//! One operand, element by element: int8 by a table of 256 entries, or by a multiplier and a clamp.

use super::call::Call;
use crate::fixed::{
    activation_range, divide_by_power, multiply_by_quantized_multiplier, quantize_multiplier,
};
use crate::op::{Activation, Field, Op};
use systole_base::{DType, Literal, Result};

/// Functions that go through floats.
pub(super) fn function(call: &Call) -> Result<Vec<Literal>> {
    let x = call.input(0)?;
    call.check_output(x.dims())?;
    let (op, approximate) = (call.operator.op, call.operator.is(Field::Approximate));
    match x.dtype() {
        DType::F32 => {
            let y: Vec<f32> = x.elements::<f32>()?.iter().map(|&x| value(op, approximate, x)).collect();
            call.made(&y)
        }
        DType::I8 => {
            let ((own, own_zero), (scale, zero)) = (x.tensor.scale()?, call.output_scale()?);
            let inverse = 1.0 / scale;
            let entry = |q: i32| {
                let y = value(op, approximate, own * (q - own_zero) as f32);
                ((y * inverse).round() + zero as f32).clamp(-128.0, 127.0) as i8
            };
            let entries: Vec<i8> = (-128..128).map(entry).collect();
            let y: Vec<i8> =
                x.elements::<i8>()?.iter().map(|&q| entries[(i32::from(q) + 128) as usize]).collect();
            call.made(&y)
        }
        other => Err(call.unsupported(format_args!("elements of type {other}"))),
    }
}

fn value(op: Op, approximate: bool, x: f32) -> f32 {
    match op {
        Op::Logistic => 1.0 / (1.0 + (-x).exp()),
        Op::Tanh => x.tanh(),
        Op::Elu => {
            if x < 0.0 {
                x.exp_m1()
            } else {
                x
            }
        }
        Op::Exp => x.exp(),
        Op::Sqrt => x.sqrt(),
        Op::Rsqrt => 1.0 / x.sqrt(),
        Op::Neg => -x,
        _ if approximate => {
            let inner = std::f32::consts::FRAC_2_SQRT_PI
                * std::f32::consts::FRAC_1_SQRT_2
                * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        _ => 0.5 * x * erfc(x * -std::f32::consts::FRAC_1_SQRT_2),
    }
}

/// 1 − erf x: by the series of erf near 0 and a continued fraction far from it, in doubles.
fn erfc(x: f32) -> f32 {
    let x = f64::from(x);
    let a = x.abs();
    let of_positive = if a < 2.5 {
        let (mut term, mut sum) = (a, a);
        for n in 1..60 {
            term *= -a * a / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        1.0 - sum * std::f64::consts::FRAC_2_SQRT_PI
    } else {
        let fraction = (1..60).rev().fold(a, |below, k| a + f64::from(k) / 2.0 / below);
        (-a * a).exp() / (fraction * std::f64::consts::PI.sqrt())
    };
    (if x < 0.0 { 2.0 - of_positive } else { of_positive }) as f32
}

/// RELU and its kin, LEAKY_RELU, HARD_SWISH.
pub(super) fn clamped(call: &Call) -> Result<Vec<Literal>> {
    let x = call.input(0)?;
    call.check_output(x.dims())?;
    let activation = match call.operator.op {
        Op::Relu => Activation::Relu,
        Op::ReluN1To1 => Activation::ReluN1To1,
        Op::Relu6 => Activation::Relu6,
        _ => Activation::None,
    };
    let alpha = call.operator.number(Field::Alpha) as f32;
    match x.dtype() {
        DType::F32 => {
            let (low, high) = activation.bounds();
            let of = |&x: &f32| match call.operator.op {
                Op::LeakyRelu => {
                    if x > 0.0 {
                        x
                    } else {
                        x * alpha
                    }
                }
                Op::HardSwish => x * (x + 3.0).clamp(0.0, 6.0) / 6.0,
                _ => x.max(low).min(high),
            };
            call.made(&x.elements::<f32>()?.iter().map(of).collect::<Vec<f32>>())
        }
        DType::I8 => {
            let ((own, own_zero), (scale, zero)) = (x.tensor.scale()?, call.output_scale()?);
            let of: Box<dyn Fn(i8) -> i8> = match call.operator.op {
                Op::LeakyRelu => leaky(own, own_zero, scale, zero, alpha),
                Op::HardSwish => hard_swish(own, own_zero, scale, zero),
                _ => {
                    let (m, shift) = quantize_multiplier(f64::from(own / scale));
                    let (low, high) = activation_range(activation, scale, zero);
                    Box::new(move |q| {
                        let y = multiply_by_quantized_multiplier(i32::from(q) - own_zero, m, shift);
                        y.saturating_add(zero).max(low).min(high) as i8
                    })
                }
            };
            call.made(&x.elements::<i8>()?.iter().map(|&q| of(q)).collect::<Vec<i8>>())
        }
        other => Err(call.unsupported(format_args!("elements of type {other}"))),
    }
}

fn leaky(own: f32, own_zero: i32, scale: f32, zero: i32, alpha: f32) -> Box<dyn Fn(i8) -> i8> {
    let same = quantize_multiplier(f64::from(own / scale));
    let below = quantize_multiplier(f64::from(own * alpha / scale));
    Box::new(move |q| {
        let x = i32::from(q) - own_zero;
        let (m, shift) = if x >= 0 { same } else { below };
        multiply_by_quantized_multiplier(x, m, shift).saturating_add(zero).clamp(-128, 127) as i8
    })
}

/// x · relu6(x + 3) / 6 in 16 bits.
fn hard_swish(own: f32, own_zero: i32, scale: f32, zero: i32) -> Box<dyn Fn(i8) -> i8> {
    let narrow = |m: i32| if m >= i32::MAX - (1 << 15) { i16::MAX } else { ((m + (1 << 15)) >> 16) as i16 };
    let fine = own / 128.0;
    let (m, shift) = quantize_multiplier(f64::from(fine / scale));
    let (r, r_shift) = quantize_multiplier(f64::from(fine / (3.0 / 32768.0)));
    let (m, r) = (narrow(m), narrow(r));
    Box::new(move |q| {
        let x = (i32::from(q) - own_zero) * 128;
        let at_output = high_mul_16(x as i16, m, true);
        let mut reluish = x as i16;
        if r_shift > 0 {
            reluish = saturated_left(reluish, r_shift - 1);
        }
        reluish = high_mul_16(reluish, r, true);
        if r_shift > 0 {
            reluish = saturated_left(reluish, 1);
        } else if r_shift < 0 {
            reluish = divide_by_power(reluish.into(), -r_shift) as i16;
        }
        let share = ((i32::from(reluish) + (1 << 15)) >> 1) as i16;
        let y = i32::from(high_mul_16(share, at_output, false));
        divide_by_power(y, -shift).saturating_add(zero).clamp(-128, 127) as i8
    })
}

/// The high half of `2ab` of 16 bits, rounded or cut.
fn high_mul_16(a: i16, b: i16, rounded: bool) -> i16 {
    if a == i16::MIN && b == i16::MIN {
        return i16::MAX;
    }
    let ab = i32::from(a) * i32::from(b);
    let nudge = match (rounded, ab >= 0) {
        (false, _) => 0,
        (true, true) => 1 << 14,
        (true, false) => 1 - (1 << 14),
    };
    ((ab + nudge) / (1 << 15)) as i16
}

fn saturated_left(x: i16, exponent: i32) -> i16 {
    (i64::from(x) << exponent.clamp(0, 31)).clamp(i16::MIN.into(), i16::MAX.into()) as i16
}
