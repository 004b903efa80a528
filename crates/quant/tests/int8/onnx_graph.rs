//! Tests of ONNX files that are written from the graph of the forward pass, for every layer: read again and in ONNX
//! Runtime they compute the same, on another batch than that of the export.

use super::onnx::{Case, check};
use super::stirred;
use systole_ir::{DType, Literal, Result, TensorType, interp};
use systole_nn::layers::testing::{LayerSample, samples};
use systole_nn::{Architecture, Model, input_of};
use systole_onnx::export_graph;

/// Batch size that stands for any, and the batch that is compared.
const ANY: usize = 7919;
const BATCH: usize = 3;

/// Returns a model of this layer alone, with random weights.
fn model(sample: &LayerSample) -> Model {
    let of_sample = |ty: &TensorType| TensorType::new(ty.dtype, ty.shape.get(1..).unwrap_or_default());
    let types: Vec<TensorType> = sample.inputs.iter().map(of_sample).collect();
    let inputs: Vec<_> =
        types.iter().enumerate().map(|(i, ty)| input_of(&format!("x{i}"), ty.dtype, &*ty.shape)).collect();
    let output = sample.spec.clone().name("layer").on(&inputs.iter().collect::<Vec<_>>());
    let mut model = Model::new(Architecture::functional(&inputs, &output).unwrap());
    model.build(&types).unwrap();
    stirred(&mut model);
    model
}

/// Returns numbers around zero, or small indices.
fn numbers(ty: &TensorType, salt: usize) -> Literal {
    let float = |i: usize| ((i * 37 + salt * 17 + 5) % 101) as f32 / 40.0 - 1.2;
    let value = |i: usize| if ty.dtype.is_float() { float(i) } else { (i % 7) as f32 };
    let values: Vec<f32> = (0..ty.elements()).map(value).collect();
    Literal::from_slice(ty.shape.clone(), &values).unwrap().convert(ty.dtype)
}

fn case(sample: &LayerSample) -> Result<Case> {
    let model = model(sample);
    let weights: Vec<Literal> = model.weights().iter().map(|(_, w)| w.to_literal().unwrap()).collect();
    let names: Vec<String> = (0..sample.inputs.len()).map(|i| format!("x{i}")).collect();
    let onnx = export_graph(&*model.inference_graph(ANY)?, &weights, &names, Some(ANY))?;
    let graph = model.inference_graph(BATCH)?;
    let types = graph.param_types();
    let given = types[weights.len()..].iter().enumerate();
    let inputs: Vec<Literal> = given.map(|(i, ty)| numbers(ty, i)).collect();
    let all: Vec<&Literal> = weights.iter().chain(&inputs).collect();
    let expected = interp::run(&graph, &all)?.remove(0);
    Ok(Case { name: format!("{:?} from its graph", sample.spec), onnx, inputs, expected })
}

#[test]
fn every_layer_is_exported_from_its_graph() {
    let cases: Vec<Case> =
        samples().iter().map(|s| case(s).unwrap_or_else(|e| panic!("{:?}: {e}", s.spec))).collect();
    assert!(cases.iter().all(|c| c.expected.dtype() == DType::F32));
    check(&cases);
}
