//! Reduction kernels: MEAN, SUM, REDUCE_MAX, ARG_MAX.

use super::call::OperatorCall;
use super::op_row::operators;
use crate::fixed_point::{mean_multiplier, multiply_by_quantized_multiplier, quantize_multiplier};
use crate::model::broken;
use crate::op::OptionField;
use systole_base::{DType, Literal, Result, ensure};

operators! {
    Mean "MEAN" 40; options 27 [0 KeepDims]; versions 1 2; Free; |call| reduce(call, TfliteReduction::Mean)
    ArgMax "ARG_MAX" 56; options 40 [0 OutputType]; versions 1 2; NoInt8; arg_max
    Sum "SUM" 74; options 27 [0 KeepDims]; versions 1 2; Free; |call| reduce(call, TfliteReduction::Sum)
    ReduceMax "REDUCE_MAX" 82; options 27 [0 KeepDims]; versions 1 2; Same; |call| reduce(call, TfliteReduction::Max)
}

/// Kind of reduction.
#[derive(Clone, Copy, PartialEq)]
enum TfliteReduction {
    Mean,
    Sum,
    Max,
}

/// Computes MEAN, SUM, REDUCE_MAX, `x: T[…] → T[…]`, without the reduced axes or with size 1.
fn reduce(call: &OperatorCall, fold: TfliteReduction) -> Result<Vec<Literal>> {
    let x = call.input(0)?;
    let rank = x.dims().len();
    let mut gone = vec![false; rank];
    for axis in call.input(1)?.indices()? {
        gone[call.axis(axis, rank)?] = true;
    }
    let kept: Vec<usize> = x.dims().iter().zip(&gone).map(|(&d, &g)| if g { 1 } else { d }).collect();
    let left = x.dims().iter().zip(&gone).filter(|(_, g)| !**g).map(|(&d, _)| d);
    let dims: Vec<usize> =
        if call.operator.is(OptionField::KeepDims) { kept.clone() } else { left.collect() };
    let outputs = call.check_output(&dims)?;
    let n: usize = x.dims().iter().zip(&gone).filter(|(_, g)| **g).map(|(&d, _)| d).product();
    ensure!(n != 0 && n <= i32::MAX as usize, broken(format!("cannot reduce {n} elements")));
    let targets = super::binary::sources(&kept, x.dims());
    match x.dtype() {
        DType::I8 if fold == TfliteReduction::Max => {
            let mut y = vec![i8::MIN; outputs];
            x.elements::<i8>()?.iter().zip(&targets).for_each(|(&q, &t)| y[t] = y[t].max(q));
            call.made(&y)
        }
        DType::I8 => {
            let mut sums = vec![0i32; outputs];
            x.elements::<i8>()?
                .iter()
                .zip(&targets)
                .for_each(|(&q, &t)| sums[t] = sums[t].wrapping_add(q.into()));
            let ((own, own_zero), (scale, zero)) = (x.tensor.scale()?, call.output_scale()?);
            let (m, shift) = match fold {
                TfliteReduction::Mean => mean_multiplier(own, scale, n),
                _ => quantize_multiplier(f64::from(own) / f64::from(scale)),
            };
            let one = |&sum: &i32| {
                let centred = sum.wrapping_sub(own_zero.wrapping_mul(n as i32));
                multiply_by_quantized_multiplier(centred, m, shift).saturating_add(zero).clamp(-128, 127)
                    as i8
            };
            call.made(&sums.iter().map(one).collect::<Vec<i8>>())
        }
        DType::F32 => {
            let start = if fold == TfliteReduction::Max { f32::NEG_INFINITY } else { 0.0 };
            let mut y = vec![start; outputs];
            for (&v, &t) in x.elements::<f32>()?.iter().zip(&targets) {
                y[t] = if fold == TfliteReduction::Max { y[t].max(v) } else { y[t] + v };
            }
            if fold == TfliteReduction::Mean {
                y.iter_mut().for_each(|v| *v /= n as f32);
            }
            call.made(&y)
        }
        other => Err(call.unsupported(format_args!("element type {other}"))),
    }
}

/// Computes ARG_MAX, the first index of the maximum along an axis: `x: T[…] → i32[…]` or `i64[…]`.
fn arg_max(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (x, axis) = (call.input(0)?, call.input(1)?.indices()?);
    let &[axis] = &axis[..] else { return Err(broken("the axis must be a scalar".into())) };
    let axis = call.axis(axis, x.dims().len())?;
    let (before, after) = (&x.dims()[..axis], &x.dims()[axis + 1..]);
    call.check_output(&[before, after].concat())?;
    let (n, inner): (usize, usize) = (x.dims()[axis], after.iter().product());
    let outer: usize = before.iter().product();
    let values = x.value.to_f64s();
    let mut y = Vec::with_capacity(outer * inner);
    for o in 0..outer {
        for i in 0..inner {
            let at = |k: usize| values[(o * n + k) * inner + i];
            y.push((1..n).fold(0, |best, k| if at(k) > at(best) { k } else { best }) as i64);
        }
    }
    match call.output()?.ty.dtype {
        DType::I64 => call.made(&y),
        DType::I32 => call.made(&y.iter().map(|&v| v as i32).collect::<Vec<_>>()),
        other => Err(call.unsupported(format_args!("result type {other}"))),
    }
}
