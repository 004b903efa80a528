//! Exports an IR graph as an ONNX model: for models with layers that have no `.tflite` operators, and for programs.

mod arrays;
mod elementwise;
mod indexing;
mod nodes;
mod products;
mod reductions;
mod writer;

use crate::export::{IR_VERSION, OPSET};
use crate::model::{OnnxModel, ValueInfo};
use nodes::nodes;
use systole_base::{Literal, Result, ensure, err};
use systole_ir::Graph;
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
