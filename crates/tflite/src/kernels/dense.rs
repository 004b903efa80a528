//! Matrix product kernels: FULLY_CONNECTED and BATCH_MATMUL.

use super::call::OperatorCall;
use super::conv::{dot_f32, dot_i16};
use super::op_row::{OperandTypes, operators};
use crate::fixed_point::{activation_range, multiply_by_quantized_multiplier, quantize_multiplier};
use crate::model::broken;
use crate::op::OptionField;
use systole_base::{DType, Literal, Result, ensure};

operators! {
    FullyConnected "FULLY_CONNECTED" 9;
        options 8 [0 Activation, 1 WeightsFormat, 2 KeepNumDims, 3 AsymmetricInputs];
        versions 1 4 or fully_connected_version; Weights; fully_connected
    BatchMatmul "BATCH_MATMUL" 126; options 101 [0 AdjX, 1 AdjY, 2 AsymmetricInputs]; versions 1 2; Free; batch_matmul
}

fn fully_connected_version(t: &OperandTypes) -> i32 {
    match t.operator.inputs.len() {
        2 => 6,
        _ if t.operator.is(OptionField::KeepNumDims) => 5,
        _ if t.is_hybrid() => 3,
        _ => t.base,
    }
}

/// Computes FULLY_CONNECTED: `x: T[…, in]`, weights `[out, in]`, bias `[out] → T[rows, out]`.
fn fully_connected(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (x, w) = (call.input(0)?, call.input(1)?);
    let [out, own] = w.of_rank::<2>()?;
    if own == 0
        || !x.ty().elements().is_multiple_of(own)
        || call.operator.int(OptionField::WeightsFormat) != 0
    {
        return Err(broken(format!("weights {} do not match input {}", w.ty(), x.ty())));
    }
    let rows = x.ty().elements() / own;
    let mut dims = vec![rows, out];
    if call.operator.is(OptionField::KeepNumDims) {
        dims = x.dims().to_vec();
        *dims.last_mut().ok_or_else(|| broken("the input is a scalar".into()))? = out;
    }
    call.check_output(&dims)?;
    match (x.dtype(), w.dtype()) {
        (DType::I8, DType::I8) => integers(call, own, out),
        (DType::F32, DType::F32 | DType::I8) => {
            let (floats, rounded);
            let x = match w.dtype() {
                DType::F32 => x.elements::<f32>()?,
                _ => {
                    let around_0 = !call.operator.is(OptionField::AsymmetricInputs);
                    rounded = super::quantize_cast::rounded(x.elements::<f32>()?, rows, around_0);
                    &rounded
                }
            };
            let w = match w.dtype() {
                DType::F32 => w.elements::<f32>()?,
                _ => {
                    floats = super::quantize_cast::dequantized(&w, out)?;
                    &floats
                }
            };
            let bias = call.bias::<f32>(2, out)?;
            let (low, high) = call.operator.activation()?.bounds();
            let mut y = Vec::with_capacity(rows * out);
            for row in x.chunks_exact(own) {
                for (o, w) in w.chunks_exact(own).enumerate() {
                    y.push((dot_f32(row, w) + bias.map_or(0.0, |b| b[o])).max(low).min(high));
                }
            }
            call.made(&y)
        }
        (x, w) => Err(call.unsupported(format_args!("element type {x} and weight type {w}"))),
    }
}

/// The reference kernel scales sums with a double, not with a fixed-point multiplier.
fn integers(call: &OperatorCall, own: usize, out: usize) -> Result<Vec<Literal>> {
    let (x, w, output) = (call.input(0)?, call.input(1)?, call.output()?);
    let ((x_scale, x_zero), (scale, zero)) = (x.tensor.scale()?, output.scale()?);
    let q = w.tensor.quantization.as_ref().ok_or_else(|| broken("the weights have no scale".into()))?;
    let (w_zero, per_channel) = match q.scale.len() {
        1 => (w.tensor.scale()?.1, false),
        n if n == out && q.dimension == 0 => (0, true),
        n => return Err(broken(format!("got {n} scales for {out} weight rows"))),
    };
    let factor = |&s: &f32| f64::from(x_scale) * f64::from(s) / f64::from(scale);
    let factors: Vec<f64> = q.scale.iter().map(factor).collect();
    let (low, high) = activation_range(call.operator.activation()?, scale, zero);
    let bias = call.bias::<i32>(2, out)?;
    let x: Vec<i16> = x.elements::<i8>()?.iter().map(|&v| i16::from(v) - x_zero as i16).collect();
    let w: Vec<i16> = w.elements::<i8>()?.iter().map(|&v| i16::from(v) - w_zero as i16).collect();
    let mut y = Vec::with_capacity(x.len() / own * out);
    for row in x.chunks_exact(own) {
        for (o, w) in w.chunks_exact(own).enumerate() {
            let sum = dot_i16(row, w).wrapping_add(bias.map_or(0, |b| b[o]));
            let scaled = (f64::from(sum) * factors[if per_channel { o } else { 0 }]).round() as i32;
            y.push(scaled.saturating_add(zero).max(low).min(high) as i8);
        }
    }
    call.made(&y)
}

/// Computes BATCH_MATMUL, `a: T[…, M, K], b: T[…, K, N] → T[…, M, N]`; leading dimensions broadcast, and either operand
/// may be transposed.
fn batch_matmul(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (a, b) = (call.input(0)?, call.input(1)?);
    let too_few = || broken("operands must have at least two dimensions".into());
    let (lead_a, [a0, a1]) = a.dims().split_last_chunk::<2>().ok_or_else(too_few)?;
    let (lead_b, [b0, b1]) = b.dims().split_last_chunk::<2>().ok_or_else(too_few)?;
    let (adj_a, adj_b) = (call.operator.is(OptionField::AdjX), call.operator.is(OptionField::AdjY));
    let ((m, k), (k2, n)) =
        (if adj_a { (*a1, *a0) } else { (*a0, *a1) }, if adj_b { (*b1, *b0) } else { (*b0, *b1) });
    let rank = lead_a.len().max(lead_b.len());
    let padded = |lead: &[usize]| [vec![1; rank - lead.len()], lead.to_vec()].concat();
    let (lead_a, lead_b) = (padded(lead_a), padded(lead_b));
    let fits = k == k2 && lead_a.iter().zip(&lead_b).all(|(a, b)| a == b || *a == 1 || *b == 1);
    ensure!(fits, broken(format!("cannot multiply {} and {}", a.ty(), b.ty())));
    let lead: Vec<usize> = lead_a.iter().zip(&lead_b).map(|(&a, &b)| if a == 1 { b } else { a }).collect();
    let dims = [lead.clone(), vec![m, n]].concat();
    call.check_output(&dims)?;
    let batches: usize = lead.iter().product();
    let plan = MatrixProducts { lead, lead_a, lead_b, m, k, n, adj_a, adj_b, batches };
    match a.dtype() {
        DType::I8 => {
            let ((sa, za), (sb, zb)) = (a.tensor.scale()?, b.tensor.scale()?);
            let (scale, zero) = call.output_scale()?;
            let factor = f64::from(sa * sb) / f64::from(scale);
            let (multiplier, shift) = quantize_multiplier(factor);
            let wide =
                |q: &[i8], zero: i32| q.iter().map(|&q| i16::from(q) - zero as i16).collect::<Vec<_>>();
            let (a, b) = (wide(a.elements()?, za), wide(b.elements()?, zb));
            let y = plan.each(&a, &b, |row, column| {
                let y = multiply_by_quantized_multiplier(dot_i16(row, column), multiplier, shift);
                y.saturating_add(zero).clamp(-128, 127) as i8
            });
            call.made(&y)
        }
        DType::F32 => call.made(&plan.each(a.elements::<f32>()?, b.elements::<f32>()?, dot_f32)),
        other => Err(call.unsupported(format_args!("element type {other}"))),
    }
}

struct MatrixProducts {
    lead: Vec<usize>,
    lead_a: Vec<usize>,
    lead_b: Vec<usize>,
    m: usize,
    k: usize,
    n: usize,
    adj_a: bool,
    adj_b: bool,
    batches: usize,
}

impl MatrixProducts {
    fn each<T: Copy, U>(&self, a: &[T], b: &[T], of: impl Fn(&[T], &[T]) -> U) -> Vec<U> {
        let (m, k, n) = (self.m, self.k, self.n);
        let mut y = Vec::with_capacity(self.batches * m * n);
        for batch in 0..self.batches {
            let a = self.matrix(a, batch, &self.lead_a, (m, k), self.adj_a);
            let b = self.matrix(b, batch, &self.lead_b, (n, k), !self.adj_b);
            for i in 0..m {
                for j in 0..n {
                    y.push(of(&a[i * k..(i + 1) * k], &b[j * k..(j + 1) * k]));
                }
            }
        }
        y
    }

    /// Returns a matrix of a batch as `rows` of length `k`; it is stored transposed if `turned`.
    fn matrix<T: Copy>(
        &self,
        x: &[T],
        batch: usize,
        lead: &[usize],
        (rows, k): (usize, usize),
        turned: bool,
    ) -> Vec<T> {
        let (mut rest, mut at, mut stride) = (batch, 0, 1);
        for (size, own) in self.lead.iter().zip(lead).rev() {
            if *own != 1 {
                at += rest % size * stride;
            }
            rest /= size;
            stride *= own;
        }
        let x = &x[at * rows * k..(at + 1) * rows * k];
        match turned {
            false => x.to_vec(),
            true => (0..rows).flat_map(|r| (0..k).map(move |i| x[i * rows + r])).collect(),
        }
    }
}
