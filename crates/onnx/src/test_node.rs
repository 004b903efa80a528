//! Helpers of the unit tests: runs one ONNX node on the interpreter.

use crate::import::DimSizes;
use crate::model::{OnnxModel, OnnxNode, ValueInfo};
use systole_base::{Literal, Result, Shape};
use systole_ir::interp;

/// Returns a float32 array.
pub fn floats<const N: usize, const M: usize>(dims: [usize; N], values: [f32; M]) -> Literal {
    Literal::from_slice(dims, &values).unwrap()
}

/// Returns an int64 array.
pub fn ints<const N: usize, const M: usize>(dims: [usize; N], values: [i64; M]) -> Literal {
    Literal::from_slice(dims, &values).unwrap()
}

/// Converts an array to a literal of another shape type.
pub fn array<T: systole_base::Element>(dims: impl Into<Shape>, values: &[T]) -> Literal {
    Literal::from_slice(dims, values).unwrap()
}

/// Returns a model of one node; operands with `is_constant` are constants, the others inputs.
pub fn model_of(opset: i64, node: OnnxNode, operands: &[&Literal], is_constant: bool) -> OnnxModel {
    let mut m = OnnxModel { ir_version: 8, opset, ..OnnxModel::default() };
    let named = node.inputs.iter().filter(|n| !n.is_empty()).zip(operands);
    for (name, value) in named {
        if is_constant {
            m.graph.constants.insert(name.clone(), (*value).clone());
        } else {
            let dtype = Some(value.dtype());
            m.graph.inputs.push(ValueInfo { name: name.clone(), dtype, sizes: None });
        }
    }
    let outputs = node.outputs.iter().filter(|n| !n.is_empty());
    m.graph.outputs = outputs.map(|n| ValueInfo { name: n.clone(), ..ValueInfo::default() }).collect();
    m.graph.nodes = vec![node];
    m
}

fn run(model: &OnnxModel, operands: &[&Literal]) -> Result<Vec<Literal>> {
    let names = model.graph.inputs.iter().map(|p| p.name.clone());
    let given = names.zip(operands.iter().map(|x| x.shape().to_vec())).collect();
    let program = model.import(&DimSizes { given, ..DimSizes::default() })?;
    interp::run(&program.graph, if model.graph.inputs.is_empty() { &[] } else { operands })
}

/// Returns the outputs of a node whose operands are inputs of the model.
#[track_caller]
pub fn run_node(opset: i64, node: OnnxNode, operands: &[&Literal]) -> Vec<Literal> {
    run(&model_of(opset, node, operands, false), operands).unwrap_or_else(|e| panic!("{e}"))
}

/// Returns the outputs of a node whose operands are constants.
#[track_caller]
pub fn run_constants(opset: i64, node: OnnxNode, operands: &[&Literal]) -> Vec<Literal> {
    run(&model_of(opset, node, operands, true), operands).unwrap_or_else(|e| panic!("{e}"))
}

/// Returns the error of a node whose operands are inputs of the model.
#[track_caller]
pub fn node_error(opset: i64, node: OnnxNode, operands: &[&Literal]) -> String {
    run(&model_of(opset, node, operands, false), operands).expect_err("it must be rejected").to_string()
}

/// Checks that all values are equal to 1e-5.
#[track_caller]
pub fn assert_close(y: &Literal, expected: &[f32]) {
    let made = y.to_f32s();
    let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * (1.0 + b.abs());
    assert!(
        made.len() == expected.len() && made.iter().zip(expected).all(close),
        "{made:?}, not {expected:?}"
    );
}
