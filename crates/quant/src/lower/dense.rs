//! Lowers Dense layers to TFLite's FULLY_CONNECTED, whose kernel is `[out, in]`.

use super::activations::activate;
use super::call::QuantLayerCall;
use super::matmul::product;
use systole_ir::Result;
use systole_nn::Activation;

pub(super) fn dense(call: &mut QuantLayerCall, use_bias: bool, activation: Activation) -> Result<usize> {
    let kernel = call.weight("kernel")?;
    let units = kernel.shape().dims().last().copied().unwrap_or(1);
    let bias = call.bias(use_bias, units)?;
    let (name, x) = (call.name(), call.input());
    let y = product(call.b, &name, x, &kernel.to_f32s(), &bias)?;
    activate(call.b, &name, y, activation)
}
