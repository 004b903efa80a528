//! Lowers activation functions to TFLite: fused if possible, otherwise as operators.

use super::call::QuantLayerCall;
use crate::builder::TfliteBuilder;
use systole_ir::{Error, ErrorKind, Result, ensure, err};
use systole_nn::Activation;
use systole_tflite::{FusedActivation as Fused, OptionField, TfliteOp, TfliteOperator};

/// Applies an activation, `x: f32[…] → f32[…]`.
pub(crate) fn activate(b: &mut TfliteBuilder, name: &str, x: usize, activation: Activation) -> Result<usize> {
    let dims = b.dims(x);
    let named = |of: &str| format!("{name}/{of}");
    Ok(match activation {
        Activation::Linear => x,
        Activation::Relu => b.activated(&named("relu"), x, Fused::Relu),
        Activation::LeakyRelu { negative_slope } => leaky(b, &named("leaky_relu"), x, negative_slope),
        Activation::Sigmoid => b.apply(&named("sigmoid"), TfliteOp::Logistic, &[x], dims),
        Activation::Tanh => b.apply(&named("tanh"), TfliteOp::Tanh, &[x], dims),
        Activation::Softmax => {
            let operator = TfliteOperator::new(TfliteOp::Softmax, [x], []).with(OptionField::Beta, 1.0);
            b.push(&named("softmax"), dims, operator)
        }
        Activation::Gelu { approximate } => {
            let operator = TfliteOperator::new(TfliteOp::Gelu, [x], [])
                .with(OptionField::Approximate, f64::from(u8::from(approximate)));
            b.push(&named("gelu"), dims, operator)
        }
        Activation::Silu => {
            let gate = b.apply(&named("sigmoid"), TfliteOp::Logistic, &[x], dims.clone());
            b.apply(&named("silu"), TfliteOp::Mul, &[x, gate], dims)
        }
        Activation::Elu { alpha: 1.0 } => b.apply(&named("elu"), TfliteOp::Elu, &[x], dims),
        other => {
            return Err(err!(Unsupported, "activation {} has no TFLite operator", other.name())
                .hint("train with relu, gelu, silu, sigmoid or tanh"));
        }
    })
}

fn leaky(b: &mut TfliteBuilder, name: &str, x: usize, slope: f64) -> usize {
    let dims = b.dims(x);
    b.push(name, dims, TfliteOperator::new(TfliteOp::LeakyRelu, [x], []).with(OptionField::Alpha, slope))
}

/// Lowers an activation layer.
pub(super) fn function(call: &mut QuantLayerCall, activation: Activation) -> Result<usize> {
    let (name, x) = (call.name(), call.input());
    activate(call.b, &name, x, activation)
}

pub(super) fn relu(
    call: &mut QuantLayerCall,
    max_value: Option<f64>,
    negative_slope: f64,
    threshold: f64,
) -> Result<usize> {
    let (name, x) = (call.name(), call.input());
    ensure!(threshold == 0.0, unfit("ReLU with a threshold has no TFLite operator".into()));
    match (max_value, negative_slope) {
        (None, 0.0) => Ok(call.b.activated(&name, x, Fused::Relu)),
        (Some(6.0), 0.0) => Ok(call.b.activated(&name, x, Fused::Relu6)),
        (None, slope) => Ok(leaky(call.b, &name, x, slope)),
        (limit, _) => Err(unfit(format!("ReLU with max_value {limit:?} has no TFLite operator"))),
    }
}

pub(super) fn leaky_relu(call: &mut QuantLayerCall, slope: f64) -> usize {
    let (name, x) = (call.name(), call.input());
    leaky(call.b, &name, x, slope)
}

pub(super) fn prelu(call: &mut QuantLayerCall) -> Result<usize> {
    let (name, x, dims) = (call.name(), call.input(), call.dims());
    let alpha = call.weight("alpha")?;
    let slopes = call.b.floats(format!("{name}/alpha"), alpha.shape().dims(), &alpha.to_f32s())?;
    Ok(call.b.apply(&name, TfliteOp::Prelu, &[x, slopes], dims))
}

pub(super) fn softmax(call: &mut QuantLayerCall, axis: i64) -> Result<usize> {
    let rank = call.dims().len() as i64;
    match axis == -1 || axis == rank - 1 {
        true => function(call, Activation::Softmax),
        false => Err(unfit(format!("Softmax over axis {axis} has no TFLite operator: use the last axis"))),
    }
}

fn unfit(what: String) -> Error {
    Error::new(ErrorKind::Unsupported, what).hint("use relu, relu6 (max_value=6) or leaky_relu")
}
