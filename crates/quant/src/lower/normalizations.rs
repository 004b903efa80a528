//! Lowers normalization layers to TFLite: batch normalization as an affine map, layer normalization with run-time
//! moments.

use super::call::QuantLayerCall;
use crate::builder::TfliteBuilder;
use crate::fold_affine::affine;
use systole_ir::{Error, Result, err};
use systole_tflite::{OptionField, TfliteOp, TfliteOperator};

pub(super) fn batch(
    call: &mut QuantLayerCall,
    axis: i64,
    epsilon: f64,
    [scale, center]: [bool; 2],
) -> Result<usize> {
    let rank = call.dims().len() as i64;
    if axis != -1 && axis != rank - 1 {
        return Err(err!(Unsupported, "BatchNormalization over axis {axis} is not supported")
            .hint("normalize over the last axis"));
    }
    let values = |name: &str| {
        Ok::<_, Error>(call.weight(name)?.to_f32s().iter().map(|&v| f64::from(v)).collect::<Vec<_>>())
    };
    let (mean, variance) = (values("moving_mean")?, values("moving_variance")?);
    let ones = vec![1.0; mean.len()];
    let gamma = if scale { values("gamma")? } else { ones };
    let beta = if center { values("beta")? } else { vec![0.0; mean.len()] };
    let factor: Vec<f64> = gamma.iter().zip(&variance).map(|(g, v)| g / (v + epsilon).sqrt()).collect();
    let offset: Vec<f64> = beta.iter().zip(mean.iter().zip(&factor)).map(|(b, (m, f))| b - m * f).collect();
    let (name, x) = (call.name(), call.input());
    affine(call.b, &name, x, &factor, &offset)
}

/// Lowers `x · scale + offset` with a value for each channel, or one for all.
///
/// # Errors
/// If there is another number of channels.
pub(super) fn rescaling(call: &mut QuantLayerCall, scale: &[f64], offset: &[f64]) -> Result<usize> {
    let channels = call.dims().last().copied().unwrap_or(1);
    let (name, x) = (call.name(), call.input());
    let each = |values: &[f64]| match values {
        [one] => Ok(vec![*one; channels]),
        all if all.len() == channels => Ok(all.to_vec()),
        all => Err(err!(Config, "{name} has {} values for {channels} channels", all.len())
            .hint("pass one value, or one for each channel")),
    };
    let (scale, offset) = (each(scale)?, each(offset)?);
    affine(call.b, &name, x, &scale, &offset)
}

/// Lowers LayerNormalization over the last dimension.
pub(super) fn layer(
    call: &mut QuantLayerCall,
    axis: &[i64],
    epsilon: f64,
    [scale, center]: [bool; 2],
) -> Result<usize> {
    let (name, x, dims) = (call.name(), call.input(), call.dims());
    let last = dims.len() as i64 - 1;
    if axis != [-1] && axis != [last] {
        return Err(err!(Unsupported, "LayerNormalization over other axes than the last is not supported")
            .hint("normalize over the last axis"));
    }
    let optional = |is_there: bool, weight: &str| match is_there {
        false => Ok(None),
        true => call.weight(weight).map(|w| Some(w.to_f32s())),
    };
    let (gamma, beta) = (optional(scale, "gamma")?, optional(center, "beta")?);
    standardized(call.b, &name, x, &LayerNormParams { epsilon, gamma, beta })
}

/// Parameters of a normalization over the last dimension.
pub(super) struct LayerNormParams {
    pub epsilon: f64,
    pub gamma: Option<Vec<f32>>,
    pub beta: Option<Vec<f32>>,
}

/// Computes (x − mean) · rsqrt(variance + ε) · gamma + beta over the last dimension.
pub(super) fn standardized(
    b: &mut TfliteBuilder,
    name: &str,
    x: usize,
    of: &LayerNormParams,
) -> Result<usize> {
    let dims = b.dims(x);
    let last = dims.len().saturating_sub(1);
    let axes = b.ints(format!("{name}/axes"), [1], &[last as i32])?;
    let mut narrow = dims.clone();
    narrow[last] = 1;
    let mean_of =
        |x: usize| TfliteOperator::new(TfliteOp::Mean, [x, axes], []).with(OptionField::KeepDims, 1.0);
    let mean = b.push(&format!("{name}/mean"), narrow.clone(), mean_of(x));
    let centred = b.apply(&format!("{name}/centred"), TfliteOp::Sub, &[x, mean], dims.clone());
    let squared = b.apply(&format!("{name}/squared"), TfliteOp::Mul, &[centred, centred], dims.clone());
    let variance = b.push(&format!("{name}/variance"), narrow.clone(), mean_of(squared));
    let small = b.floats(format!("{name}/epsilon"), [1], &[of.epsilon as f32])?;
    let sum = b.apply(&format!("{name}/sum"), TfliteOp::Add, &[variance, small], narrow.clone());
    let factor = b.apply(&format!("{name}/rsqrt"), TfliteOp::Rsqrt, &[sum], narrow);
    let mut y = b.apply(name, TfliteOp::Mul, &[centred, factor], dims.clone());
    if let Some(gamma) = &of.gamma {
        let gamma = b.floats(format!("{name}/gamma"), [gamma.len()], gamma)?;
        y = b.apply(&format!("{name}/scaled"), TfliteOp::Mul, &[y, gamma], dims.clone());
    }
    if let Some(beta) = &of.beta {
        let beta = b.floats(format!("{name}/beta"), [beta.len()], beta)?;
        y = b.apply(&format!("{name}/shifted"), TfliteOp::Add, &[y, beta], dims);
    }
    Ok(y)
}
