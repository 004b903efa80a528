//! Dense: `kernel [in, out]` as `[out, in]`.

use super::activations::activate;
use super::call::Call;
use super::products::product;
use systole_ir::Result;
use systole_nn::layers;

pub(super) fn dense(call: &mut Call) -> Result<usize> {
    let a: layers::Dense = call.arguments()?;
    let kernel = call.weight("kernel")?.to_f32s();
    let bias = call.bias(a.use_bias, a.units)?;
    let (name, x) = (call.name(), call.input());
    let y = product(call.b, &name, x, &kernel, &bias)?;
    activate(call.b, &name, y, a.activation)
}
