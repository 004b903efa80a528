//! TFLite matrix products and sums shared by the lowering of dense, attention and recurrent layers.

use crate::builder::TfliteBuilder;
use systole_ir::Result;
use systole_tflite::{OptionField, TfliteOp, TfliteOperator};

/// Computes `x · kernel + bias`: `x: f32[…, in] → f32[…, out]`, `kernel: [in, out]`.
pub(super) fn product(
    b: &mut TfliteBuilder,
    name: &str,
    x: usize,
    kernel: &[f32],
    bias: &[f32],
) -> Result<usize> {
    let mut output = b.dims(x);
    let (units, own) = (bias.len(), kernel.len() / bias.len().max(1));
    if let Some(last) = output.last_mut() {
        *last = units;
    }
    let turned: Vec<f32> =
        (0..units).flat_map(|o| (0..own).map(move |i| i * units + o)).map(|at| kernel[at]).collect();
    let w = b.floats(format!("{name}/kernel"), [units, own], &turned)?;
    let bias = b.floats(format!("{name}/bias"), [units], bias)?;
    let keeps = f64::from(u8::from(output.len() > 2));
    let operator =
        TfliteOperator::new(TfliteOp::FullyConnected, [x, w, bias], []).with(OptionField::KeepNumDims, keeps);
    Ok(b.push(name, output, operator))
}

/// Adds two tensors of equal shape.
pub(super) fn sum(b: &mut TfliteBuilder, name: &str, x: usize, y: usize) -> usize {
    let dims = b.dims(x);
    b.apply(name, TfliteOp::Add, &[x, y], dims)
}

/// Multiplies two tensors of equal shape element by element.
pub(super) fn times(b: &mut TfliteBuilder, name: &str, x: usize, y: usize) -> usize {
    let dims = b.dims(x);
    b.apply(name, TfliteOp::Mul, &[x, y], dims)
}

/// Splits a dimension into equal parts.
pub(super) fn parts(
    b: &mut TfliteBuilder,
    name: &str,
    x: usize,
    axis: usize,
    n: usize,
) -> Result<Vec<usize>> {
    if n == 1 {
        return Ok(vec![x]);
    }
    let at = b.ints(format!("{name}/axis"), [] as [usize; 0], &[axis as i32])?;
    let mut dims = b.dims(x);
    dims[axis] /= n;
    let operator = TfliteOperator::new(TfliteOp::Split, [at, x], []).with(OptionField::NumSplits, n as f64);
    Ok(b.push_several(name, &dims, n, operator))
}
