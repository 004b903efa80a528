//! ONNX files written from the graph of the forward pass, for every layer, beside the model.

use std::collections::BTreeMap;
use systole_ir::{DType, Literal, TensorType, interp};
use systole_nn::layers::testing::{LayerSample, samples};
use systole_nn::{Architecture, Model, input_of};
use systole_onnx::{DimSizes, OnnxModel, export_graph};

/// Batch size that stands for any, and the batch that is compared.
const ANY: usize = 7919;
const BATCH: usize = 3;

/// A model of this layer alone.
fn model(sample: &LayerSample) -> Model {
    let of = |(i, ty): (usize, &TensorType)| {
        input_of(&format!("x{i}"), ty.dtype, ty.shape.get(1..).unwrap_or_default())
    };
    let inputs: Vec<_> = sample.inputs.iter().enumerate().map(of).collect();
    let output = sample.spec.clone().name("layer").on(&inputs.iter().collect::<Vec<_>>());
    let mut model = Model::new(Architecture::functional(&inputs, &output).unwrap());
    let types: Vec<TensorType> = sample
        .inputs
        .iter()
        .map(|ty| TensorType::new(ty.dtype, ty.shape.get(1..).unwrap_or_default()))
        .collect();
    model.build(&types).unwrap();
    model
}

fn numbers(ty: &TensorType, salt: usize) -> Literal {
    let value = |i: usize| ((i * 37 + salt * 17 + 5) % 101) as f32 / 40.0 - 1.2;
    let n = ty.elements();
    let values: Vec<f32> = match ty.dtype.is_float() {
        true => (0..n).map(value).collect(),
        false => (0..n).map(|i| (i % 7) as f32).collect(),
    };
    Literal::from_slice(ty.shape.clone(), &values).unwrap().convert(ty.dtype)
}

/// Exports the layer, reads the file again, and returns the largest difference of the results.
fn difference(sample: &LayerSample) -> Result<f32, systole_ir::Error> {
    let model = model(sample);
    let weights: Vec<Literal> = model.weights().iter().map(|(_, w)| w.to_literal().unwrap()).collect();
    let names: Vec<String> = (0..sample.inputs.len()).map(|i| format!("x{i}")).collect();
    let onnx = export_graph(&*model.inference_graph(ANY)?, &weights, &names, Some(ANY))?;
    let read = OnnxModel::from_bytes("written.onnx", &onnx.to_bytes())?;
    let sizes = DimSizes { named: BTreeMap::from([("N".to_string(), BATCH)]), ..DimSizes::default() };
    let program = read.import(&sizes)?;
    let graph = model.inference_graph(BATCH)?;
    let types = graph.param_types();
    let inputs: Vec<Literal> =
        types[weights.len()..].iter().enumerate().map(|(i, ty)| numbers(ty, i)).collect();
    let all: Vec<&Literal> = weights.iter().chain(&inputs).collect();
    let want = interp::run(&graph, &all)?.remove(0).convert(DType::F32).to_f32s();
    let given: Vec<&Literal> = inputs.iter().collect();
    let got = interp::run(&program.graph, &given)?.remove(0).convert(DType::F32).to_f32s();
    assert_eq!(want.len(), got.len(), "{:?}", sample.spec);
    Ok(want.iter().zip(&got).map(|(a, b)| (a - b).abs() / a.abs().max(1.0)).fold(0.0, f32::max))
}

#[test]
fn every_layer_is_exported_and_computes_the_same() {
    let mut refused = BTreeMap::new();
    for sample in samples() {
        match difference(&sample) {
            Ok(d) => assert!(d <= 2e-6, "{:?} differs by {d}", sample.spec),
            Err(e) => {
                refused.insert(sample.spec.class_name(), e.to_string());
            }
        }
    }
    let names: Vec<&str> = refused.keys().copied().collect();
    assert_eq!(names, [""; 0], "{refused:#?}");
}
