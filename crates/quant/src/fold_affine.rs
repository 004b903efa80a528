//! Folds per-channel affine maps, such as batch normalization in inference mode, into the preceding weights, or adds a
//! multiplication and an addition.

use crate::builder::TfliteBuilder;
use systole_ir::{Literal, Result, err};
use systole_tflite::{OptionField, TfliteOp, TfliteOperator};

/// Applies x · factor + offset per channel: `x: f32[…, C] → f32[…, C]`.
pub(crate) fn affine(
    b: &mut TfliteBuilder,
    name: &str,
    x: usize,
    factor: &[f64],
    offset: &[f64],
) -> Result<usize> {
    if factor.iter().chain(offset).any(|v| !v.is_finite()) {
        return Err(err!(Numeric, "the layer's statistics or weights are not finite")
            .because("a weight is NaN or infinite, or a variance is negative")
            .hint("load an earlier checkpoint, or train again"));
    }
    if fold(b, x, factor, offset)? {
        return Ok(x);
    }
    let narrow = |v: &[f64]| v.iter().map(|&v| v as f32).collect::<Vec<f32>>();
    let dims = b.dims(x);
    let factor = b.floats(format!("{name}/factor"), [factor.len()], &narrow(factor))?;
    let scaled =
        b.push(&format!("{name}/scaled"), dims.clone(), TfliteOperator::new(TfliteOp::Mul, [x, factor], []));
    let offset = b.floats(format!("{name}/offset"), [offset.len()], &narrow(offset))?;
    Ok(b.push(name, dims, TfliteOperator::new(TfliteOp::Add, [scaled, offset], [])))
}

/// Folds the map into the weights that compute `x`, if `x` is a linear operator's result that nothing else reads.
fn fold(b: &mut TfliteBuilder, x: usize, factor: &[f64], offset: &[f64]) -> Result<bool> {
    let Some(at) = b.maker(x) else { return Ok(false) };
    let o = &b.model.operators[at];
    let (weights, bias) = match o.op {
        TfliteOp::Conv2D | TfliteOp::DepthwiseConv2D | TfliteOp::FullyConnected => (1, 2),
        TfliteOp::TransposeConv => (1, 3),
        _ => return Ok(false),
    };
    let is_depthwise = o.op == TfliteOp::DepthwiseConv2D;
    if o.int(OptionField::Activation) != 0 {
        return Ok(false);
    }
    let (Some(Some(w)), Some(Some(bias))) = (o.inputs.get(weights).copied(), o.inputs.get(bias).copied())
    else {
        return Ok(false);
    };
    // Layers with the same name share weights.
    let readers = |t: usize| b.model.operators.iter().filter(|o| o.inputs.contains(&Some(t))).count();
    if readers(w) != 1 || readers(bias) != 1 {
        return Ok(false);
    }
    let mut scaled = floats_of(b, w)?;
    let channels = factor.len();
    if channels == 0 || !scaled.len().is_multiple_of(channels) {
        return Ok(false);
    }
    let per = scaled.len() / channels;
    for (i, v) in scaled.iter_mut().enumerate() {
        let channel = if is_depthwise { i % channels } else { i / per };
        *v = (f64::from(*v) * factor[channel]) as f32;
    }
    let moved: Vec<f32> = floats_of(b, bias)?
        .iter()
        .zip(factor.iter().zip(offset))
        .map(|(&v, (f, o))| (f64::from(v) * f + o) as f32)
        .collect();
    replace(b, w, &scaled)?;
    replace(b, bias, &moved)?;
    Ok(true)
}

fn floats_of(b: &TfliteBuilder, tensor: usize) -> Result<Vec<f32>> {
    let data = b.model.tensors[tensor].data.as_ref();
    Ok(data.map(|d| d.as_slice::<f32>()).transpose()?.unwrap_or(&[]).to_vec())
}

fn replace(b: &mut TfliteBuilder, tensor: usize, values: &[f32]) -> Result<()> {
    let t = &mut b.model.tensors[tensor];
    t.data = Some(Literal::from_slice(&t.ty.shape, values)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::DType;
    use systole_ir::ErrorKind;
    use systole_tflite::TfliteTensor;

    /// A dense layer of two units and three inputs; returns its weights, bias and output.
    fn dense(b: &mut TfliteBuilder) -> [usize; 3] {
        let x = b.tensor(TfliteTensor::new("x", [1, 3], DType::F32));
        let w = b.floats("w".into(), [2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        let bias = b.floats("bias".into(), [2], &[0.5, -1.0]).unwrap();
        [w, bias, b.push("y", [1, 2], TfliteOperator::new(TfliteOp::FullyConnected, [x, w, bias], []))]
    }

    fn values(b: &TfliteBuilder, tensor: usize) -> Vec<f32> {
        floats_of(b, tensor).unwrap()
    }

    #[test]
    fn maps_are_folded_into_the_weights_of_their_channel() {
        let mut b = TfliteBuilder::new();
        let [w, bias, y] = dense(&mut b);
        assert_eq!(affine(&mut b, "norm", y, &[2.0, -10.0], &[1.0, 3.0]).unwrap(), y);
        assert_eq!(values(&b, w), [2.0, 4.0, 6.0, -40.0, -50.0, -60.0]);
        assert_eq!(values(&b, bias), [2.0, 13.0]);
        let e = affine(&mut b, "norm", y, &[f64::NAN, 1.0], &[0.0, 0.0]).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Numeric);
    }

    #[test]
    fn shared_weights_and_biases_are_not_changed() {
        for shared in [1, 2] {
            let mut b = TfliteBuilder::new();
            let [w, bias, y] = dense(&mut b);
            let mut inputs = [0, w, bias];
            // The other layer has one of the two of its own.
            inputs[3 - shared] = match shared {
                1 => b.floats("other".into(), [2], &[0.0; 2]).unwrap(),
                _ => b.floats("other".into(), [2, 3], &[0.0; 6]).unwrap(),
            };
            b.push("z", [1, 2], TfliteOperator::new(TfliteOp::FullyConnected, inputs, []));
            let made = affine(&mut b, "norm", y, &[2.0, -10.0], &[1.0, 3.0]).unwrap();
            assert_ne!(made, y, "input {shared} has two readers");
            assert_eq!((values(&b, w)[0], values(&b, bias)[0]), (1.0, 0.5));
        }
    }
}
