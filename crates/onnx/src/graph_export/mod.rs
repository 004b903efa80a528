//! Exports an IR graph as an ONNX model: for models with layers that have no `.tflite` operators, and for programs.

mod arrays;
mod control_flow;
mod elementwise;
mod indexing;
mod products;
mod reductions;
mod writer;

use crate::export::{BATCH, IR_VERSION, OPSET};
use crate::model::{DimSize, OnnxModel, ValueInfo};
use systole_base::{Literal, Result, ResultExt, ensure, err};
use systole_ir::{Graph, Node, Op};
use writer::{ExportedValue, GraphWriter};

/// Exports a graph whose first parameters are `weights`; its other parameters are the inputs, by their names.
///
/// A dimension that is a multiple of `batch` depends on the batch size: `batch` itself becomes the symbolic dimension
/// `N`. Choose a batch size that divides no other dimension, such as a large prime; no array of that size is made.
/// `None`: all dimensions are fixed.
///
/// # Errors
/// If an op, or an op's use of the batch, has no counterpart in ONNX; names the op and its layer.
///
/// ```
/// use systole_ir::{DType, GraphBuilder, Literal, TensorType};
/// let g = GraphBuilder::new("main");
/// let w = g.parameter(TensorType::new(DType::F32, [3, 2]), "w");
/// let x = g.parameter(TensorType::new(DType::F32, [97, 3]), "x");
/// let y = x.dot_general(&w, &[], &[], &[1], &[0]).tanh();
/// let weights = [Literal::zeros(w.ty().clone())];
/// let onnx = systole_onnx::export_graph(&*g.finish(&[y])?, &weights, &["x".into()], Some(97))?;
/// assert_eq!(onnx.graph.inputs[0].to_string(), "f32[N, 3]");
/// assert_eq!(onnx.graph.outputs[0].to_string(), "f32[N, 2]");
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn export_graph(
    graph: &Graph,
    weights: &[Literal],
    inputs: &[String],
    batch: Option<usize>,
) -> Result<OnnxModel> {
    let types = graph.param_types();
    ensure!(
        types.len() == weights.len() + inputs.len(),
        err!(Config, "the graph has {} parameters", types.len()).because(format!(
            "{} weights and {} inputs are given",
            weights.len(),
            inputs.len()
        ))
    );
    let mut w = GraphWriter::new(batch);
    let mut arguments = Vec::new();
    for (i, weight) in weights.iter().enumerate() {
        arguments.push(w.weight(&graph.param_names[i], weight));
    }
    let mut given = Vec::new();
    for (name, ty) in inputs.iter().zip(&types[weights.len()..]) {
        w.reserve(name);
        given.push(ValueInfo { name: name.clone(), dtype: Some(ty.dtype), sizes: Some(w.sizes(&ty.shape)) });
        arguments.push(ExportedValue::whole(name.clone(), ty.clone()));
    }
    if let Some((of, dim)) = w.batch_place(&arguments[weights.len()..]) {
        w.read_batch(&of, dim);
    }
    let results = nodes(&mut w, graph, &arguments)?;
    let mut outputs = Vec::new();
    for (i, result) in results.iter().enumerate() {
        let name = if i == 0 { "output".to_string() } else { format!("output_{i}") };
        let whole = w.expanded(result)?;
        w.named("Identity", &[&whole], &name);
        let ty = &result.ty;
        outputs.push(ValueInfo { name, dtype: Some(ty.dtype), sizes: Some(w.sizes(&ty.shape)) });
    }
    let mut onnx = w.finish(&outputs);
    onnx.inputs = given;
    onnx.outputs = outputs;
    onnx.name = "main".into();
    Ok(OnnxModel {
        ir_version: IR_VERSION,
        opset: OPSET,
        producer: "Systole".into(),
        graph: onnx,
        ..OnnxModel::default()
    })
}

/// Writes the live nodes of a graph; returns its results.
fn nodes(w: &mut GraphWriter, graph: &Graph, arguments: &[ExportedValue]) -> Result<Vec<ExportedValue>> {
    let live = graph.live(&graph.results);
    let mut values: Vec<Vec<ExportedValue>> = Vec::with_capacity(graph.nodes.len());
    for (node, is_live) in graph.nodes.iter().zip(live) {
        values.push(match &node.op {
            Op::Parameter(p) => vec![arguments[p.index].clone()],
            _ if !is_live => Vec::new(),
            _ => {
                let inputs: Vec<ExportedValue> =
                    node.inputs.iter().map(|v| values[v.index()][v.out as usize].clone()).collect();
                w.scope = graph.scope(node).to_string();
                match w.folded(node, &inputs)? {
                    Some(constants) => constants,
                    None => one(w, node, &inputs).at(|| place(graph, node))?,
                }
            }
        });
    }
    Ok(graph.results.iter().map(|r| values[r.index()][r.out as usize].clone()).collect())
}

fn place(graph: &Graph, node: &Node) -> String {
    match graph.scope(node) {
        "" => format!("op {}", node.op.name()),
        scope => format!("op {} of layer {scope}", node.op.name()),
    }
}

/// Writes one node.
fn one(w: &mut GraphWriter, node: &Node, x: &[ExportedValue]) -> Result<Vec<ExportedValue>> {
    let ty = node.outs.first().cloned().ok_or_else(|| err!(Bug, "an op has no result"))?;
    let y = match &node.op {
        Op::Unary(op) => elementwise::unary(w, *op, &x[0], ty),
        Op::Binary(op) => elementwise::binary(w, *op, [&x[0], &x[1]], ty),
        Op::Compare(op) => elementwise::compare(w, op, [&x[0], &x[1]], ty),
        Op::Select(_) => elementwise::select(w, [&x[0], &x[1], &x[2]], ty),
        Op::Clamp(_) => elementwise::clamp(w, [&x[0], &x[1], &x[2]], ty),
        Op::Convert(op) => elementwise::convert(w, &x[0], op.to, ty),
        Op::OptimizationBarrier(_) => return Ok(x.to_vec()),
        Op::Iota(op) => arrays::iota(w, op.dim, ty),
        Op::BroadcastInDim(op) => arrays::broadcast(w, &x[0], &op.dims, ty),
        Op::Reshape(_) => arrays::reshape(w, &x[0], ty),
        Op::Transpose(op) => arrays::transpose(w, &x[0], &op.permutation, ty),
        Op::Reverse(op) => arrays::reverse(w, &x[0], &op.dims, ty),
        Op::Concatenate(op) => arrays::concatenate(w, x, op.dim, ty),
        Op::Slice(op) => arrays::slice(w, &x[0], [&op.start, &op.limit, &op.strides], ty),
        Op::Pad(op) => arrays::pad(w, [&x[0], &x[1]], op, ty),
        Op::DynamicSlice(op) => indexing::dynamic_slice(w, x, &op.sizes, ty),
        Op::DynamicUpdateSlice(_) => indexing::dynamic_update_slice(w, x, ty),
        Op::Gather(op) => indexing::gather(w, [&x[0], &x[1]], op, ty),
        Op::DotGeneral(op) => products::dot(w, [&x[0], &x[1]], op, ty),
        Op::Convolution(op) => products::convolution(w, [&x[0], &x[1]], op, ty),
        Op::Reduce(op) if x.len() == 2 => reductions::reduce(w, [&x[0], &x[1]], op, ty),
        Op::ReduceWindow(op) if x.len() == 2 => reductions::window(w, [&x[0], &x[1]], op, ty),
        Op::Case(op) => return control_flow::case(w, op, x),
        Op::While(op) => return control_flow::while_loop(w, op, x),
        _ => Err(unsupported(format!("cannot export {} to ONNX", node.op.name()))),
    };
    y.map(|y| vec![y])
}

/// Returns the error for what ONNX cannot express.
fn unsupported(what: String) -> systole_base::Error {
    err!(Unsupported, "{what}").hint("remove the layer with this op, or run the model with Systole")
}

/// Whether a dimension has a fixed size.
fn is_known(size: &DimSize) -> bool {
    matches!(size, DimSize::Known(_))
}

/// Name of the batch dimension.
fn batch_dim() -> DimSize {
    DimSize::Named(BATCH.into())
}
