//! Hints about ONNX and .tflite files with several inputs or outputs, and with open or unknown sizes.

use super::{Case, row, with_table};
use crate::program::Folder;
use crate::program::made::npz;
use systole_data::format::npy;
use systole_ir::{DType, Literal};
use systole_onnx::{DimSize, OnnxModel, OnnxNode, ValueInfo};
use systole_tflite::{TfliteModel, TfliteOp, TfliteOperator, TfliteQuantization, TfliteTensor};

/// Arguments, and those after following the hint.
const ROWS: &[(&str, &str)] = &[
    ("predict sum.onnx t.csv", "run sum.onnx --input `sum.npz`"),
    ("predict any_rank.onnx t.csv", "run any_rank.onnx --input `x.npz`"),
    ("run any_rank.onnx --random 1", "run any_rank.onnx --input `x.npz`"),
    ("predict any_width.onnx t.csv", "run any_width.onnx --input `x.npz`"),
    ("predict turned.onnx u.csv", "run turned.onnx `--random` `1`"),
    ("predict sum.tflite t.csv", "run sum.tflite --input `sum.npz`"),
    ("predict two.tflite n.csv", "run two.tflite --input `x.npz`"),
    ("run int8.tflite --random 1 --precision mixed_bfloat16", "run int8.tflite --random 1"),
];

pub(super) fn cases() -> (Folder, Vec<Case>) {
    let f = with_table("hints-operators");
    let array = || npy::to_bytes(&Literal::from_slice([1, 2], &[0.5f32, 0.25]).unwrap()).unwrap();
    f.write("n.csv", "a,b\n1,1\n2,1\n");
    f.write("x.npz", npz(&[("x", array())]));
    f.write("sum.npz", npz(&[("x", array()), ("y", array())]));
    let batch = || DimSize::Named("N".into());
    let pair = || Some(vec![batch(), DimSize::Known(2)]);
    f.write("sum.onnx", onnx("Add", &[("x", pair()), ("y", pair())]));
    f.write("any_rank.onnx", onnx("Relu", &[("x", None)]));
    f.write("any_width.onnx", onnx("Relu", &[("x", Some(vec![batch(), DimSize::Named("W".into())]))]));
    f.write("turned.onnx", onnx("Transpose", &[("x", pair())]));
    f.write("sum.tflite", tflite(TfliteOperator::new(TfliteOp::Add, [0, 1], [2]), &[0, 1], &[2]));
    let relu = || TfliteOperator::new(TfliteOp::Relu, [0], [1]);
    f.write("two.tflite", tflite(relu(), &[0], &[0, 1]));
    let half = || TfliteQuantization::per_tensor(0.5, 0);
    let tensors =
        ["x", "y"].map(|name| TfliteTensor::new(name, [1, 2], DType::I8).quantized(half())).to_vec();
    let int8 = TfliteModel {
        tensors,
        operators: vec![relu()],
        inputs: vec![0],
        outputs: vec![1],
        ..TfliteModel::default()
    };
    f.write("int8.tflite", int8.to_bytes().unwrap());
    (f, ROWS.iter().map(|(wrong, right)| row(wrong, right)).collect())
}

/// An ONNX file of one operator.
fn onnx(op: &str, inputs: &[(&str, Option<Vec<DimSize>>)]) -> Vec<u8> {
    let port = |name: &str, sizes| ValueInfo { name: name.into(), dtype: Some(DType::F32), sizes };
    let mut model = OnnxModel { ir_version: 8, opset: 17, ..OnnxModel::default() };
    model.graph.inputs = inputs.iter().map(|(name, sizes)| port(name, sizes.clone())).collect();
    model.graph.outputs.push(port("z", None));
    model.graph.nodes.push(OnnxNode::new(op, inputs.iter().map(|(name, _)| *name), "z"));
    model.to_bytes()
}

/// A .tflite file of one operator.
fn tflite(operator: TfliteOperator, inputs: &[usize], outputs: &[usize]) -> Vec<u8> {
    let tensors = ["x", "y", "z"].map(|name| TfliteTensor::new(name, [1, 2], DType::F32)).to_vec();
    let (inputs, outputs) = (inputs.to_vec(), outputs.to_vec());
    let model = TfliteModel { tensors, operators: vec![operator], inputs, outputs, ..TfliteModel::default() };
    model.to_bytes().unwrap()
}
