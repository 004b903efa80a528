//! Reduction kernels: MEAN, SUM, REDUCE_MAX, ARG_MAX, CUMSUM and others.

use super::call::OperatorCall;
use super::op_row::operators;
use crate::fixed_point::{mean_multiplier, multiply_by_quantized_multiplier, quantize_multiplier};
use crate::model::broken;
use crate::op::OptionField;
use systole_base::{DType, Literal, Result, ensure};

operators! {
    Mean "MEAN" 40; options 27 [0 KeepDims]; versions 1 2; Free; |call| reduce(call, TfliteReduction::Mean)
    ArgMax "ARG_MAX" 56; options 40 [0 OutputType]; versions 1 2; NoInt8; |call| arg_best(call, |a, b| a > b)
    Sum "SUM" 74; options 27 [0 KeepDims]; versions 1 2; Free; |call| reduce(call, TfliteReduction::Sum)
    ArgMin "ARG_MIN" 79; options 57 [0 OutputType]; versions 1 2; NoInt8; |call| arg_best(call, |a, b| a < b)
    ReduceProd "REDUCE_PROD" 81; options 27 [0 KeepDims]; versions 1 2; NoInt8;
        |call| reduce(call, TfliteReduction::Product)
    ReduceMax "REDUCE_MAX" 82; options 27 [0 KeepDims]; versions 1 2; Same; |call| reduce(call, TfliteReduction::Max)
    ReduceMin "REDUCE_MIN" 89; options 27 [0 KeepDims]; versions 1 2; Same; |call| reduce(call, TfliteReduction::Min)
    ReduceAny "REDUCE_ANY" 91; options 27 [0 KeepDims]; versions 1 1; NoInt8;
        |call| reduce(call, TfliteReduction::Max)
    Cumsum "CUMSUM" 128; options 102 [0 Exclusive, 1 Reverse]; versions 1 1; NoInt8; cumsum
    ReduceAll "REDUCE_ALL" 140; options 27 [0 KeepDims]; versions 1 1; NoInt8;
        |call| reduce(call, TfliteReduction::Min)
}

/// Kind of reduction; of bools, `Max` is any and `Min` is all.
#[derive(Clone, Copy, PartialEq)]
enum TfliteReduction {
    Mean,
    Sum,
    Product,
    Max,
    Min,
}

impl TfliteReduction {
    /// Returns the start of a reduction of floats, and its step.
    fn of_floats(self) -> (f32, fn(f32, f32) -> f32) {
        match self {
            TfliteReduction::Mean | TfliteReduction::Sum => (0.0, |y, v| y + v),
            TfliteReduction::Product => (1.0, |y, v| y * v),
            TfliteReduction::Max => (f32::NEG_INFINITY, f32::max),
            TfliteReduction::Min => (f32::INFINITY, f32::min),
        }
    }

    /// Returns the start of a reduction of integers, and its step.
    fn of_ints(self) -> (i64, fn(i64, i64) -> i64) {
        match self {
            TfliteReduction::Mean | TfliteReduction::Sum => (0, i64::wrapping_add),
            TfliteReduction::Product => (1, i64::wrapping_mul),
            TfliteReduction::Max => (i64::MIN, i64::max),
            TfliteReduction::Min => (i64::MAX, i64::min),
        }
    }
}

/// A reduction: for each element of the operand the index of its result, and the number of elements of each result.
struct ReductionPlan {
    targets: Vec<usize>,
    outputs: usize,
    n: usize,
}

impl ReductionPlan {
    fn new(call: &OperatorCall) -> Result<ReductionPlan> {
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
        Ok(ReductionPlan { targets: super::binary::sources(&kept, x.dims()), outputs, n })
    }

    fn fold<T: Copy>(&self, x: &[T], (start, step): (T, fn(T, T) -> T)) -> Vec<T> {
        let mut y = vec![start; self.outputs];
        x.iter().zip(&self.targets).for_each(|(&v, &t)| y[t] = step(y[t], v));
        y
    }
}

/// Computes MEAN, SUM and other reductions, `x: T[…] → T[…]`, without the reduced axes or with size 1.
fn reduce(call: &OperatorCall, fold: TfliteReduction) -> Result<Vec<Literal>> {
    let x = call.input(0)?;
    let plan = ReductionPlan::new(call)?;
    let n = plan.n;
    match x.dtype() {
        DType::I8 if fold == TfliteReduction::Max => {
            call.made(&plan.fold(x.elements::<i8>()?, (i8::MIN, i8::max)))
        }
        DType::I8 if fold == TfliteReduction::Min => {
            call.made(&plan.fold(x.elements::<i8>()?, (i8::MAX, i8::min)))
        }
        DType::I8 if fold != TfliteReduction::Product => {
            let wide: Vec<i32> = x.elements::<i8>()?.iter().map(|&q| q.into()).collect();
            let sums = plan.fold(&wide, (0, i32::wrapping_add));
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
            let mut y = plan.fold(x.elements::<f32>()?, fold.of_floats());
            if fold == TfliteReduction::Mean {
                y.iter_mut().for_each(|v| *v /= n as f32);
            }
            call.made(&y)
        }
        _ => {
            let mut y = plan.fold(&call.ints(&x)?, fold.of_ints());
            if fold == TfliteReduction::Mean {
                y.iter_mut().for_each(|v| *v /= n as i64);
            }
            call.made_ints(&y)
        }
    }
}

/// Computes CUMSUM, the running sums along an axis.
fn cumsum(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (x, axis) = (call.input(0)?, call.input(1)?.indices()?);
    let &[axis] = &axis[..] else { return Err(broken("the axis must be a scalar".into())) };
    let axis = call.axis(axis, x.dims().len())?;
    call.check_output(x.dims())?;
    let (n, inner): (usize, usize) = (x.dims()[axis], x.dims()[axis + 1..].iter().product());
    let options = (call.operator.is(OptionField::Exclusive), call.operator.is(OptionField::Reverse));
    match x.dtype() {
        DType::F32 => call.made(&running(x.elements::<f32>()?, (n, inner), options, 0.0, |a, b| a + b)),
        _ => call.made_ints(&running(&call.ints(&x)?, (n, inner), options, 0, i64::wrapping_add)),
    }
}

/// Sums along a dimension of `n` elements with `inner` elements behind it; `exclusive` sums leave out their own element.
fn running<T: Copy>(
    x: &[T],
    (n, inner): (usize, usize),
    (exclusive, reverse): (bool, bool),
    zero: T,
    add: fn(T, T) -> T,
) -> Vec<T> {
    let mut y = x.to_vec();
    for start in (0..x.len()).step_by((n * inner).max(1)) {
        for i in 0..inner {
            let mut sum = zero;
            for k in 0..n {
                let place = if reverse { n - 1 - k } else { k };
                let at = start + place * inner + i;
                let with = add(sum, x[at]);
                y[at] = if exclusive { sum } else { with };
                sum = with;
            }
        }
    }
    y
}

/// Computes ARG_MAX and ARG_MIN, the first index of the best element along an axis: `x: T[…] → i32[…]` or `i64[…]`.
fn arg_best(call: &OperatorCall, is_better: fn(f64, f64) -> bool) -> Result<Vec<Literal>> {
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
            y.push((1..n).fold(0, |best, k| if is_better(at(k), at(best)) { k } else { best }) as i64);
        }
    }
    match call.output()?.ty.dtype {
        DType::I64 => call.made(&y),
        DType::I32 => call.made(&y.iter().map(|&v| v as i32).collect::<Vec<_>>()),
        other => Err(call.unsupported(format_args!("result type {other}"))),
    }
}
