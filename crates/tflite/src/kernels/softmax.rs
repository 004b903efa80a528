//! TFLite kernels over the last dimension: SOFTMAX, L2_NORMALIZATION.

use super::call::OperatorCall;
use super::op_row::operators;
use crate::fixed_point::{
    divide_by_power, exp_on_negative_values, high_mul, quantize_multiplier, reciprocal,
};
use crate::kernels::call::KernelOperand;
use crate::model::broken;
use crate::op::OptionField;
use systole_base::{DType, Literal, Result, ensure};

operators! {
    L2Normalization "L2_NORMALIZATION" 11; options 12 [0 Activation]; versions 1 2; NoInt8; l2_normalization
    Softmax "SOFTMAX" 25; options 9 [0 Beta]; versions 1 2; Fixed(1.0 / 256.0, -128); softmax
    LogSoftmax "LOG_SOFTMAX" 50; options 36 []; versions 1 1; NoInt8; log_softmax
}

/// Computes SOFTMAX, `x: T[…, N] → T[…, N]`: eᵝˣ / Σ eᵝˣ.
fn softmax(call: &OperatorCall) -> Result<Vec<Literal>> {
    let x = call.input(0)?;
    call.check_output(x.dims())?;
    let n = row_size(&x)?;
    let beta = call.operator.number(OptionField::Beta);
    match x.dtype() {
        DType::F32 => {
            let beta = beta as f32;
            let mut y = Vec::with_capacity(x.ty().elements());
            for row in x.elements::<f32>()?.chunks_exact(n) {
                let greatest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let e: Vec<f32> = row.iter().map(|v| ((v - greatest) * beta).exp()).collect();
                let sum: f32 = e.iter().sum();
                y.extend(e.iter().map(|e| e / sum));
            }
            call.made(&y)
        }
        DType::I8 => {
            let scale = x.tensor.scale()?.0;
            let (out_scale, out_zero) = call.output_scale()?;
            if (f64::from(out_scale) * 256.0 - 1.0).abs() > 1e-3 || out_zero != -128 {
                return Err(broken(format!("the output has scale {out_scale} and zero point {out_zero}"))
                    .hint("give the output of SOFTMAX scale 1/256 and zero point -128"));
            }
            let softmax = IntegerSoftmax::new(scale, beta);
            let mut y = vec![0; x.ty().elements()];
            for (row, y) in x.elements::<i8>()?.chunks_exact(n).zip(y.chunks_exact_mut(n)) {
                softmax.row(row, y);
            }
            call.made(&y)
        }
        other => Err(call.unsupported(format_args!("element type {other}"))),
    }
}

/// From this row length on, results are looked up in a table of all 256 values.
const TABULATED: usize = 64;

/// int8 SOFTMAX kernel; the result has scale 1/256 and zero point −128.
#[derive(Clone, Debug, PartialEq)]
pub struct IntegerSoftmax {
    /// e^−d for a value `d` below the maximum; `None` if it rounds to 0.
    exps: Vec<Option<i32>>,
    /// Contribution of each value to a row's sum.
    parts: Vec<i32>,
    /// Whether contributions fall monotonically: after the first result of 0 all are 0.
    falls: bool,
}

impl IntegerSoftmax {
    /// Creates the softmax kernel for rows with this scale, multiplied by `beta`.
    pub fn new(scale: f32, beta: f64) -> IntegerSoftmax {
        let real = (beta * f64::from(scale) * f64::from(1 << 26)).min(((1i64 << 31) - 1) as f64);
        let (m, shift) = quantize_multiplier(real);
        let shift = shift.clamp(0, 30) as u32;
        let radius = (31.0 * f64::from(1 << 26) / (1i64 << shift) as f64).floor() as i32;
        let one = |below: i32| {
            (below <= radius).then(|| exp_on_negative_values(high_mul((-below).wrapping_shl(shift), m)))
        };
        let exps: Vec<Option<i32>> = (0..256).map(one).collect();
        let parts = exps.iter().map(|e| e.map_or(0, |e| divide_by_power(e, 12))).collect();
        let falls = exps.iter().flatten().all(|e| *e >= 0) && exps.windows(2).all(|two| two[1] <= two[0]);
        IntegerSoftmax { exps, parts, falls }
    }

    /// Computes the softmax of a row of at least one value; `y` has the same length.
    pub fn row(&self, x: &[i8], y: &mut [i8]) {
        let greatest = x.iter().copied().max().map_or(0, i32::from);
        let below = |q: i8| (greatest - i32::from(q)) as usize & 255;
        let sum = x.iter().fold(0i32, |sum, &q| sum.wrapping_add(self.parts[below(q)]));
        let (factor, over) = reciprocal(sum);
        let end = |e: Option<i32>| {
            let end = |e| divide_by_power(high_mul(factor, e), over + 23).saturating_sub(128);
            e.map_or(-128, |e| end(e).clamp(-128, 127) as i8)
        };
        if x.len() < TABULATED || !self.falls || factor < 0 {
            y.iter_mut().zip(x).for_each(|(y, &q)| *y = end(self.exps[below(q)]));
            return;
        }
        let table = falling(|below| end(self.exps[below]));
        y.iter_mut().zip(x).for_each(|(y, &q)| *y = table[below(q)]);
    }
}

/// Tabulates a non-increasing function that ends at −128, using binary search for runs of equal values.
fn falling(of: impl Fn(usize) -> i8) -> [i8; 256] {
    let mut table = [-128; 256];
    let (mut at, mut y) = (0, of(0));
    while y > -128 {
        let is_alike = |at: usize| at < 256 && of(at) == y;
        let (mut last, mut step) = (at, 1);
        while is_alike(last + step) {
            last += step;
            step *= 2;
        }
        // The differing value was found where nothing was equal.
        step /= 2;
        while step > 0 {
            last += if is_alike(last + step) { step } else { 0 };
            step /= 2;
        }
        table[at..=last].fill(y);
        at = last + 1;
        y = if at < 256 { of(at) } else { -128 };
    }
    table
}

/// Returns the size of the last dimension.
fn row_size(x: &KernelOperand) -> Result<usize> {
    let last = x.dims().last().copied().filter(|&n| n > 0);
    last.ok_or_else(|| broken("the last dimension is empty".into()))
}

/// Computes L2_NORMALIZATION, `x: f32[…, N] → f32[…, N]`: rows of length 1.
fn l2_normalization(call: &OperatorCall) -> Result<Vec<Literal>> {
    let x = call.input(0)?;
    call.check_output(x.dims())?;
    let n = row_size(&x)?;
    ensure!(x.dtype() == DType::F32, call.unsupported(format_args!("element type {}", x.dtype())));
    let rows = x.elements::<f32>()?.chunks_exact(n);
    let row = |row: &[f32]| {
        let length = row.iter().map(|v| v * v).sum::<f32>().sqrt().max(1e-6);
        row.iter().map(|v| v / length).collect::<Vec<f32>>()
    };
    call.made(&rows.flat_map(row).collect::<Vec<f32>>())
}

/// Computes LOG_SOFTMAX, `x: f32[…, N] → f32[…, N]`.
fn log_softmax(call: &OperatorCall) -> Result<Vec<Literal>> {
    let x = call.input(0)?;
    call.check_output(x.dims())?;
    let n = row_size(&x)?;
    ensure!(x.dtype() == DType::F32, call.unsupported(format_args!("element type {}", x.dtype())));
    let mut y = Vec::with_capacity(x.ty().elements());
    for row in x.elements::<f32>()?.chunks_exact(n) {
        let greatest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum = row.iter().map(|v| (v - greatest).exp()).sum::<f32>().ln();
        y.extend(row.iter().map(|v| v - greatest - sum));
    }
    call.made(&y)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_what_falls_are_what_each_value_says() {
        // In single steps, in long ones, to −128 at once, never there, and mixed.
        let functions: [&dyn Fn(usize) -> i32; 7] = [
            &|at| 127 - at as i32,
            &|at| 100 - at as i32 / 50,
            &|_| -128,
            &|_| 5,
            &|at| if at < 3 { 127 } else { 126 - 2 * at as i32 },
            &|at| if at == 0 { 127 } else { -127 },
            &|at| (200.0 * (-(at as f64) / 17.0).exp()) as i32 - 128,
        ];
        for (n, f) in functions.iter().enumerate() {
            let of = |at: usize| f(at).clamp(-128, 127) as i8;
            assert_eq!(falling(of), std::array::from_fn(of), "function {n}");
        }
    }
}
