//! A `.tflite` graph as an ONNX model: floats as floats, int8 as QuantizeLinear and DequantizeLinear around operators on
//! floats (QDQ), which runtimes join to operators on integers.

mod emit;
mod operators;
mod recurrent;
mod windows;

pub use recurrent::{Recurrent, RecurrentKind};

use crate::model::{Model, Port, Size};
use emit::{Emit, Order, is_quantized, operand_of};
use systole_base::{Error, ErrorKind, Result, ResultExt};
use systole_tflite::{Activation, Field, Model as Lite, Op, Operator};

/// The version of the operators that is written.
pub const OPSET: i64 = 17;

/// The version of the file format that is written.
pub const IR_VERSION: i64 = 8;

/// The name of the size of a batch.
pub const BATCH: &str = "N";

/// A `.tflite` graph as an ONNX model of the same inputs and outputs, pictures `[N, H, W, C]`. The number of samples is open
/// (`N`) where every operator takes sample by sample, else 1.
///
/// # Errors
/// When an operator has no counterpart here; names it.
///
/// ```
/// use systole_base::DType;
/// use systole_tflite::{Model, Op, Operator, Tensor};
/// let lite = Model {
///     tensors: vec![Tensor::new("x", [1, 3], DType::F32), Tensor::new("y", [1, 3], DType::F32)],
///     operators: vec![Operator::new(Op::Relu, [0], [1])],
///     inputs: vec![0],
///     outputs: vec![1],
///     ..Model::default()
/// };
/// let onnx = systole_onnx::export(&lite)?;
/// assert_eq!(onnx.graph.nodes[0].op, "Relu");
/// assert_eq!(onnx.graph.inputs[0].to_string(), "f32[N, 3]");
/// # Ok::<(), systole_base::Error>(())
/// ```
pub fn export(lite: &Lite) -> Result<Model> {
    export_with_loops(lite, &[])
}

/// As [`export`] of a graph on floats of which some operators together are a recurrent layer: these become one operator of ONNX.
///
/// # Errors
/// As of [`export`].
pub fn export_with_loops(lite: &Lite, loops: &[Recurrent]) -> Result<Model> {
    lite.check()?;
    let open = lite.operators.iter().all(|o| is_by_sample(lite, o)) && ends_are_by_sample(lite);
    let mut e = Emit::new(lite);
    for &t in &lite.inputs {
        e.given(t)?;
    }
    for (n, o) in lite.operators.iter().enumerate() {
        if let Some(of) = loops.iter().find(|of| of.operators.contains(&n)) {
            if n == of.operators.start {
                recurrent::recurrent(&mut e, of).at(|| lite.place(n))?;
            }
            continue;
        }
        let made = match (o.op, &o.outputs[..]) {
            (Op::Split, _) => operators::split(&mut e, o),
            (_, &[y]) => operator(&mut e, o, y, open),
            _ => Err(Error::new(ErrorKind::Unsupported, "an operator of several results")
                .hint("export the model as .tflite, or leave this layer out")),
        };
        made.at(|| lite.place(n))?;
    }
    let port = |e: &Emit, t: usize, name: String| -> Result<Port> {
        let ty = &e.tensor(t)?.ty;
        let mut sizes: Vec<Size> = ty.shape.iter().map(|&d| Size::Known(d)).collect();
        if let Some(first) = sizes.first_mut()
            && open
        {
            *first = Size::Named(BATCH.into());
        }
        Ok(Port { name, dtype: Some(ty.dtype), sizes: Some(sizes) })
    };
    let mut outputs = Vec::new();
    for &t in &lite.outputs {
        let is_given = lite.inputs.contains(&t);
        let now =
            if is_quantized(e.tensor(t)?) { e.codes(t, Order::Plain)? } else { e.real(t, Order::Plain)? };
        let name = if is_given { e.made(&format!("{now}/output"), "Identity", [now.as_str()]) } else { now };
        outputs.push(port(&e, t, name)?);
    }
    e.graph.inputs = lite.inputs.iter().map(|&t| port(&e, t, e.names[t].clone())).collect::<Result<_>>()?;
    e.graph.outputs = outputs;
    e.graph.name = "main".into();
    Ok(Model {
        ir_version: IR_VERSION,
        opset: OPSET,
        producer: "Systole".into(),
        graph: e.graph,
        notes: lite.notes.clone(),
        ..Model::default()
    })
}

fn operator(e: &mut Emit, o: &Operator, y: usize, open: bool) -> Result<()> {
    use operators as on;
    match o.op {
        Op::Conv2D | Op::DepthwiseConv2D => windows::convolution(e, o, y),
        Op::TransposeConv => windows::transposed(e, o, y),
        Op::MaxPool2D | Op::AveragePool2D => windows::pool(e, o, y),
        Op::ResizeNearest | Op::ResizeBilinear => windows::resize(e, o, y),
        Op::FullyConnected => on::dense(e, o, y),
        Op::BatchMatmul => on::batch_matmul(e, o, y),
        Op::Softmax => on::softmax(e, o, y),
        Op::Logistic => on::unary(e, o, y, "Sigmoid"),
        Op::Tanh => on::unary(e, o, y, "Tanh"),
        Op::Elu => on::unary(e, o, y, "Elu"),
        Op::LeakyRelu => on::unary(e, o, y, "LeakyRelu"),
        Op::Exp => on::unary(e, o, y, "Exp"),
        Op::Sqrt => on::unary(e, o, y, "Sqrt"),
        Op::Neg => on::unary(e, o, y, "Neg"),
        Op::HardSwish => on::hard_swish(e, o, y),
        Op::Rsqrt => on::inverse_root(e, o, y),
        Op::Gelu => on::gelu(e, o, y),
        Op::Relu => on::clamped(e, o, y, Activation::Relu),
        Op::Relu6 => on::clamped(e, o, y, Activation::Relu6),
        Op::ReluN1To1 => on::clamped(e, o, y, Activation::ReluN1To1),
        Op::Add => on::binary(e, o, y, "Add"),
        Op::Sub => on::binary(e, o, y, "Sub"),
        Op::Mul => on::binary(e, o, y, "Mul"),
        Op::Div => on::binary(e, o, y, "Div"),
        Op::Maximum => on::binary(e, o, y, "Max"),
        Op::Minimum => on::binary(e, o, y, "Min"),
        Op::Prelu => on::binary(e, o, y, "PRelu"),
        Op::SquaredDifference => on::squared_difference(e, o, y),
        Op::Mean => on::reduce(e, o, y, "ReduceMean"),
        Op::Sum => on::reduce(e, o, y, "ReduceSum"),
        Op::ReduceMax => on::reduce(e, o, y, "ReduceMax"),
        Op::Reshape | Op::Squeeze | Op::ExpandDims => on::reshape(e, o, y, open),
        Op::Transpose => on::transpose(e, o, y),
        Op::Concatenation => on::concatenation(e, o, y),
        Op::Pad => on::pad(e, o, y),
        Op::Slice => on::slice(e, o, y),
        Op::Gather => on::gather(e, o, y),
        Op::Quantize | Op::Dequantize => {
            let x = operand_of(o, 0)?;
            let order = e.order_of(&[x], y)?;
            let real = e.real(x, order)?;
            match o.op {
                Op::Quantize => e.store(y, order, &real),
                _ => e.finish(y, order, Activation::None, |out| {
                    crate::model::Node::new("Identity", [real], out)
                }),
            }
        }
        other => Err(Error::new(ErrorKind::Unsupported, format!("{other} has no counterpart in ONNX here"))
            .hint("export the model as .tflite, or leave this layer out")),
    }
}

fn ends_are_by_sample(lite: &Lite) -> bool {
    lite.inputs.iter().chain(&lite.outputs).all(|&t| begins_with_one(lite, t))
}

fn begins_with_one(lite: &Lite, t: usize) -> bool {
    lite.tensors.get(t).is_some_and(|t| t.dims().first() == Some(&1))
}

/// Whether an operator would take many samples as it takes one, each by itself.
fn is_by_sample(lite: &Lite, o: &Operator) -> bool {
    let tensor = |i: usize| o.inputs.get(i).copied().flatten().and_then(|t| lite.tensors.get(t));
    let integers = |i: usize| -> Vec<i64> {
        let data = tensor(i).and_then(|t| t.data.as_ref());
        data.map_or(Vec::new(), |d| (0..d.ty().elements()).map(|i| d.get(i).as_i64()).collect())
    };
    let computed: Vec<usize> = o
        .inputs
        .iter()
        .flatten()
        .copied()
        .filter(|&t| lite.tensors.get(t).is_some_and(|t| t.data.is_none()))
        .collect();
    let rank = tensor(0).map_or(0, |t| t.dims().len());
    if computed.is_empty() || !computed.iter().chain(&o.outputs).all(|&t| begins_with_one(lite, t)) {
        return false;
    }
    match o.op {
        Op::Transpose => integers(1).first() == Some(&0),
        Op::Concatenation => {
            let axis = o.int(Field::Axis);
            axis != 0 && axis != -(rank as i64) && computed.len() == o.inputs.len()
        }
        Op::Pad => integers(1).get(..2) == Some(&[0, 0]),
        Op::Slice => integers(1).first() == Some(&0),
        Op::Split => integers(0).first().is_some_and(|&axis| axis > 0),
        Op::Gather => o.int(Field::Axis) == 0 && tensor(0).is_some_and(|t| t.data.is_some()),
        Op::Mean | Op::Sum | Op::ReduceMax => {
            let axes = integers(1);
            !axes.is_empty() && axes.iter().all(|&a| a != 0 && a != -(rank as i64))
        }
        Op::Softmax => rank >= 2,
        Op::FullyConnected => rank == 2 || rank > 2 && o.is(Field::KeepNumDims),
        Op::BatchMatmul => rank > 2 && computed.len() == 2,
        Op::Add
        | Op::Sub
        | Op::Mul
        | Op::Div
        | Op::Maximum
        | Op::Minimum
        | Op::SquaredDifference
        | Op::Prelu => {
            let made = o.outputs.first().and_then(|&t| lite.tensors.get(t)).map_or(0, |t| t.dims().len());
            o.inputs.iter().flatten().filter_map(|&t| lite.tensors.get(t)).all(|t| {
                t.dims().len() < made && t.data.is_some()
                    || t.dims().len() == made && t.dims().first() == Some(&1)
            })
        }
        _ => true,
    }
}
