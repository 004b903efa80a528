//! Dense: `kernel [in, out]` as `[out, in]`.

use super::activations::activate;
use super::call::Call;
use systole_ir::Result;
use systole_nn::layers;
use systole_tflite::{Field, Op, Operator};

pub(super) fn dense(call: &mut Call) -> Result<usize> {
    let a: layers::Dense = call.arguments()?;
    let w = call.weight("kernel")?.to_f32s();
    let (name, x, output) = (call.name(), call.input(), call.output.clone());
    let own = w.len() / a.units.max(1);
    let turned: Vec<f32> =
        (0..a.units).flat_map(|o| (0..own).map(move |i| i * a.units + o)).map(|at| w[at]).collect();
    let bias = call.bias(a.use_bias, a.units)?;
    let w = call.b.floats(format!("{name}/kernel"), [a.units, own], &turned)?;
    let bias = call.b.floats(format!("{name}/bias"), [a.units], &bias)?;
    let keeps = f64::from(u8::from(output.len() > 2));
    let operator = Operator::new(Op::FullyConnected, [x, w, bias], []).with(Field::KeepNumDims, keeps);
    let y = call.b.push(&name, output, operator);
    activate(call.b, &name, y, a.activation)
}
