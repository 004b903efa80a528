//! Activation functions: fused where they can be, else operators.

use super::call::Call;
use crate::builder::Builder;
use systole_ir::{Error, ErrorKind, Result};
use systole_nn::Activation;
use systole_nn::layers;
use systole_tflite::{Activation as Fused, Field, Op, Operator};

/// `x: f32[…] → f32[…]` under an activation.
pub(crate) fn activate(b: &mut Builder, name: &str, x: usize, activation: Activation) -> Result<usize> {
    let dims = b.dims(x);
    let named = |of: &str| format!("{name}/{of}");
    Ok(match activation {
        Activation::Linear => x,
        Activation::Relu => b.activated(&named("relu"), x, Fused::Relu),
        Activation::LeakyRelu { negative_slope } => leaky(b, &named("leaky_relu"), x, negative_slope),
        Activation::Sigmoid => b.apply(&named("sigmoid"), Op::Logistic, &[x], dims),
        Activation::Tanh => b.apply(&named("tanh"), Op::Tanh, &[x], dims),
        Activation::Softmax => {
            let operator = Operator::new(Op::Softmax, [x], []).with(Field::Beta, 1.0);
            b.push(&named("softmax"), dims, operator)
        }
        Activation::Gelu { approximate } => {
            let operator =
                Operator::new(Op::Gelu, [x], []).with(Field::Approximate, f64::from(u8::from(approximate)));
            b.push(&named("gelu"), dims, operator)
        }
        Activation::Silu => {
            let gate = b.apply(&named("sigmoid"), Op::Logistic, &[x], dims.clone());
            b.apply(&named("silu"), Op::Mul, &[x, gate], dims)
        }
        Activation::Elu { alpha: 1.0 } => b.apply(&named("elu"), Op::Elu, &[x], dims),
        other => {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{} has no operator of .tflite here", other.name()),
            )
            .hint("train with relu, gelu, silu, sigmoid or tanh"));
        }
    })
}

fn leaky(b: &mut Builder, name: &str, x: usize, slope: f64) -> usize {
    let dims = b.dims(x);
    b.push(name, dims, Operator::new(Op::LeakyRelu, [x], []).with(Field::Alpha, slope))
}

/// Layers that are activations.
pub(super) fn layer(call: &mut Call) -> Result<usize> {
    let (name, x) = (call.name(), call.input());
    let unfit = |what: String| {
        Err(Error::new(ErrorKind::Unsupported, what).hint("use relu, relu6 (max_value=6) or leaky_relu"))
    };
    match call.node.layer.class_name() {
        "Activation" => {
            let a: layers::ActivationLayer = call.arguments()?;
            activate(call.b, &name, x, a.activation)
        }
        "ReLU" => {
            let a: layers::ReLU = call.arguments()?;
            if a.threshold != 0.0 {
                return unfit("ReLU with a threshold has no operator".into());
            }
            match (a.max_value, a.negative_slope) {
                (None, 0.0) => Ok(call.b.activated(&name, x, Fused::Relu)),
                (Some(6.0), 0.0) => Ok(call.b.activated(&name, x, Fused::Relu6)),
                (None, slope) => Ok(leaky(call.b, &name, x, slope)),
                (limit, _) => unfit(format!("ReLU with max_value {limit:?} has no operator")),
            }
        }
        "LeakyReLU" => {
            let a: layers::LeakyReLU = call.arguments()?;
            Ok(leaky(call.b, &name, x, a.negative_slope))
        }
        "ELU" => {
            let a: layers::ELU = call.arguments()?;
            activate(call.b, &name, x, Activation::Elu { alpha: a.alpha })
        }
        "PReLU" => {
            let alpha = call.weight("alpha")?;
            let slopes = call.b.floats(format!("{name}/alpha"), alpha.shape().dims(), &alpha.to_f32s())?;
            let dims = call.dims();
            Ok(call.b.apply(&name, Op::Prelu, &[x, slopes], dims))
        }
        _ => {
            let rank = call.dims().len() as i64;
            let config = call.node.layer.layer().config();
            let axis = config.get("axis").and_then(serde_json::Value::as_i64).unwrap_or(-1);
            match axis == -1 || axis == rank - 1 {
                true => activate(call.b, &name, x, Activation::Softmax),
                false => unfit(format!("Softmax over axis {axis} has no operator; over the last it has one")),
            }
        }
    }
}
