//! TFLite unary element-wise kernels: int8 with a 256-entry lookup table, or with a multiplier and a clamp.

use super::call::OperatorCall;
use super::op_row::operators;
use crate::fixed_point::{
    activation_range, divide_by_power, multiply_by_quantized_multiplier, quantize_multiplier,
};
use crate::op::{FusedActivation, OptionField};
use systole_base::{DType, Literal, Result, ensure};

operators! {
    Floor "FLOOR" 8; options 0 []; versions 1 1; NoInt8; |call| float_function(call, f32::floor)
    Logistic "LOGISTIC" 14; options 0 []; versions 1 2; Fixed(1.0 / 256.0, -128);
        |call| function(call, |x| 1.0 / (1.0 + (-x).exp()))
    Relu "RELU" 19; options 0 []; versions 1 2; Free; |call| clamped(call, FusedActivation::Relu)
    ReluN1To1 "RELU_N1_TO_1" 20; options 0 []; versions 1 1; Free; |call| clamped(call, FusedActivation::ReluN1To1)
    Relu6 "RELU6" 21; options 0 []; versions 1 2; Free; |call| clamped(call, FusedActivation::Relu6)
    Tanh "TANH" 28; options 0 []; versions 1 2; Fixed(1.0 / 128.0, 0); |call| function(call, f32::tanh)
    Exp "EXP" 47; options 33 []; versions 1 2; Free; |call| function(call, f32::exp)
    Neg "NEG" 59; options 42 []; versions 1 2; NoInt8; |call| numeric(call, |x| -x, i64::wrapping_neg)
    Sin "SIN" 66; options 0 []; versions 1 1; NoInt8; |call| float_function(call, f32::sin)
    Log "LOG" 73; options 0 []; versions 1 2; Free; |call| function(call, f32::ln)
    Sqrt "SQRT" 75; options 0 []; versions 1 2; Free; |call| function(call, f32::sqrt)
    Rsqrt "RSQRT" 76; options 0 []; versions 1 2; Free; |call| function(call, |x| 1.0 / x.sqrt())
    Square "SQUARE" 92; options 66 []; versions 1 1; NoInt8; |call| numeric(call, |x| x * x, |x| x.wrapping_mul(x))
    ZerosLike "ZEROS_LIKE" 93; options 67 []; versions 1 1; NoInt8; |call| numeric(call, |_| 0.0, |_| 0)
    LeakyRelu "LEAKY_RELU" 98; options 75 [0 Alpha]; versions 1 2; Free; leaky_relu
    Abs "ABS" 101; options 78 []; versions 1 1; NoInt8; |call| numeric(call, f32::abs, i64::wrapping_abs)
    Ceil "CEIL" 104; options 0 []; versions 1 1; NoInt8; |call| float_function(call, f32::ceil)
    Cos "COS" 108; options 84 []; versions 1 1; NoInt8; |call| float_function(call, f32::cos)
    Elu "ELU" 111; options 0 []; versions 1 1; Free; |call| function(call, |x| if x < 0.0 { x.exp_m1() } else { x })
    Round "ROUND" 116; options 0 []; versions 1 1; NoInt8; |call| float_function(call, f32::round_ties_even)
    HardSwish "HARD_SWISH" 117; options 91 []; versions 1 1; Free; hard_swish
    Gelu "GELU" 150; options 116 [0 Approximate]; versions 1 2; Free; gelu
    Relu0To1 "RELU_0_TO_1" 152; options 0 []; versions 1 1; NoInt8; |call| float_function(call, |x| x.clamp(0.0, 1.0))
    Sign "SIGN" 158; options 123 []; versions 1 1; NoInt8; |call| numeric(call, sign, i64::signum)
}

/// Scale and zero point of operand and output: `(own, own_zero), (scale, zero)`.
type UnaryQuantization = [(f32, i32); 2];

/// Computes `x: T[…] → T[…]`: f32 with one function, int8 with one that is made from the scales.
fn mapped<I: Fn(i8) -> i8>(
    call: &OperatorCall,
    float: impl Fn(f32) -> f32,
    int8: impl FnOnce(UnaryQuantization) -> I,
) -> Result<Vec<Literal>> {
    let x = call.input(0)?;
    call.check_output(x.dims())?;
    match x.dtype() {
        DType::F32 => call.made(&x.elements::<f32>()?.iter().map(|&x| float(x)).collect::<Vec<f32>>()),
        DType::I8 => {
            let of = int8([x.tensor.scale()?, call.output_scale()?]);
            call.made(&x.elements::<i8>()?.iter().map(|&q| of(q)).collect::<Vec<i8>>())
        }
        other => Err(call.unsupported(format_args!("element type {other}"))),
    }
}

/// Applies a function of f32; int8 is dequantized and requantized.
fn function(call: &OperatorCall, of: impl Fn(f32) -> f32) -> Result<Vec<Literal>> {
    mapped(call, &of, |[(own, own_zero), (scale, zero)]| {
        let inverse = 1.0 / scale;
        let entry = |q: i32| {
            let y = of(own * (q - own_zero) as f32);
            ((y * inverse).round() + zero as f32).clamp(-128.0, 127.0) as i8
        };
        let entries: Vec<i8> = (-128..128).map(entry).collect();
        move |q| entries[(i32::from(q) + 128) as usize]
    })
}

/// Applies a function to f32 only.
fn float_function(call: &OperatorCall, of: impl Fn(f32) -> f32) -> Result<Vec<Literal>> {
    let x = call.input(0)?;
    ensure!(x.dtype() == DType::F32, call.unsupported(format_args!("element type {}", x.dtype())));
    function(call, of)
}

/// Applies a function to floats, and one to integers without a scale.
fn numeric(call: &OperatorCall, float: fn(f32) -> f32, int: fn(i64) -> i64) -> Result<Vec<Literal>> {
    let x = call.input(0)?;
    if x.dtype() == DType::F32 || x.tensor.quantization.is_some() {
        return function(call, float);
    }
    call.check_output(x.dims())?;
    call.made_ints(&call.ints(&x)?.into_iter().map(int).collect::<Vec<_>>())
}

/// 0 for 0, where `f32::signum` is 1.
fn sign(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { x.signum() }
}

fn gelu(call: &OperatorCall) -> Result<Vec<Literal>> {
    if call.operator.is(OptionField::Approximate) {
        return function(call, |x| {
            let inner = std::f32::consts::FRAC_2_SQRT_PI
                * std::f32::consts::FRAC_1_SQRT_2
                * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        });
    }
    function(call, |x| 0.5 * x * erfc(x * -std::f32::consts::FRAC_1_SQRT_2))
}

/// Computes 1 − erf x in f64: series near 0, continued fraction elsewhere.
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

/// Computes RELU and similar: clamps to an activation's bounds.
fn clamped(call: &OperatorCall, activation: FusedActivation) -> Result<Vec<Literal>> {
    let (low, high) = activation.bounds();
    mapped(
        call,
        |x| x.max(low).min(high),
        |[(own, own_zero), (scale, zero)]| {
            let (m, shift) = quantize_multiplier(f64::from(own / scale));
            let (low, high) = activation_range(activation, scale, zero);
            move |q| {
                let y = multiply_by_quantized_multiplier(i32::from(q) - own_zero, m, shift);
                y.saturating_add(zero).max(low).min(high) as i8
            }
        },
    )
}

fn leaky_relu(call: &OperatorCall) -> Result<Vec<Literal>> {
    let alpha = call.operator.number(OptionField::Alpha) as f32;
    mapped(
        call,
        |x| if x > 0.0 { x } else { x * alpha },
        |[(own, own_zero), (scale, zero)]| {
            let same = quantize_multiplier(f64::from(own / scale));
            let below = quantize_multiplier(f64::from(own * alpha / scale));
            move |q| {
                let x = i32::from(q) - own_zero;
                let (m, shift) = if x >= 0 { same } else { below };
                multiply_by_quantized_multiplier(x, m, shift).saturating_add(zero).clamp(-128, 127) as i8
            }
        },
    )
}

/// Computes x · relu6(x + 3) / 6; int8 in 16 bits.
fn hard_swish(call: &OperatorCall) -> Result<Vec<Literal>> {
    mapped(
        call,
        |x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0,
        |[(own, own_zero), (scale, zero)]| {
            let narrow =
                |m: i32| if m >= i32::MAX - (1 << 15) { i16::MAX } else { ((m + (1 << 15)) >> 16) as i16 };
            let fine = own / 128.0;
            let (m, shift) = quantize_multiplier(f64::from(fine / scale));
            let (r, r_shift) = quantize_multiplier(f64::from(fine / (3.0 / 32768.0)));
            let (m, r) = (narrow(m), narrow(r));
            move |q| {
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
            }
        },
    )
}

/// Returns the high half of `2ab` of int16, rounded or truncated.
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
