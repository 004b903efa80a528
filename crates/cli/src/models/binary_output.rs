//! Whether a model with one output for two classes computes the second class's probability or its logit.

use systole_nn::loss::Loss;
use systole_nn::{Activation, Model};
use systole_onnx::OnnxModel;
use systole_tflite::{TfliteModel, TfliteOp};

/// Meaning of a single output for two classes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BinaryOutput {
    /// The probability of the second class: the model ends in a sigmoid, or was trained on probabilities.
    Probability,
    /// The logit of the second class.
    Logit,
}

impl BinaryOutput {
    /// From the last layer's activation and the loss.
    pub(crate) fn of_layers(model: &Model) -> BinaryOutput {
        let last = model.architecture().output_activation(0);
        let is_sigmoid = last.is_some_and(|(_, activation)| activation == Activation::Sigmoid);
        let loss = model.compile_config().map(|compile| compile.loss.base());
        let of_probabilities = matches!(loss, Some(Loss::BinaryCrossentropy { from_logits: false, .. }));
        BinaryOutput::probability_if(is_sigmoid || of_probabilities)
    }

    /// From the operator that computes the output, without conversions of its element type and shape.
    pub(crate) fn of_tflite(model: &TfliteModel) -> BinaryOutput {
        let mut value = model.outputs.first().copied();
        while let Some(of) =
            value.and_then(|value| model.operators.iter().find(|o| o.outputs.contains(&value)))
        {
            match of.op {
                TfliteOp::Logistic => return BinaryOutput::Probability,
                TfliteOp::Quantize | TfliteOp::Dequantize | TfliteOp::Reshape => {
                    value = of.inputs.first().copied().flatten();
                }
                _ => break,
            }
        }
        BinaryOutput::Logit
    }

    /// From the node that computes the output, without conversions of its element type and shape.
    pub(crate) fn of_onnx(model: &OnnxModel) -> BinaryOutput {
        let mut value = model.graph.outputs.first().map(|output| output.name.as_str());
        while let Some(of) =
            value.and_then(|v| model.graph.nodes.iter().find(|n| n.outputs.iter().any(|o| o == v)))
        {
            match of.op.as_str() {
                "Sigmoid" => return BinaryOutput::Probability,
                "QuantizeLinear" | "DequantizeLinear" | "Cast" | "Reshape" | "Flatten" | "Identity"
                | "Squeeze" => {
                    value = of.inputs.first().map(String::as_str);
                }
                _ => break,
            }
        }
        BinaryOutput::Logit
    }

    fn probability_if(is_probability: bool) -> BinaryOutput {
        if is_probability { BinaryOutput::Probability } else { BinaryOutput::Logit }
    }

    /// Returns the probabilities of both classes.
    pub(crate) fn probabilities(self, output: f32) -> [f32; 2] {
        let p = match self {
            BinaryOutput::Probability => output,
            BinaryOutput::Logit => 1.0 / (1.0 + (-output).exp()),
        };
        [1.0 - p, p]
    }

    /// Returns the class that is likelier.
    pub(crate) fn class(self, output: f32) -> usize {
        let threshold = if self == BinaryOutput::Probability { 0.5 } else { 0.0 };
        usize::from(output > threshold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_onnx::{OnnxGraph, OnnxNode, ValueInfo};
    use systole_tflite::TfliteOperator;

    #[test]
    fn a_logit_between_0_and_1_is_not_taken_for_a_probability() {
        assert_eq!(BinaryOutput::Logit.probabilities(0.0), [0.5, 0.5]);
        assert_eq!(BinaryOutput::Probability.probabilities(0.25), [0.75, 0.25]);
        assert_eq!([BinaryOutput::Logit, BinaryOutput::Probability].map(|of| of.class(0.25)), [1, 0]);
    }

    #[test]
    fn the_sigmoid_of_a_graph_is_found_behind_conversions() {
        let graph = |ops: &[TfliteOp]| TfliteModel {
            operators: (0..).zip(ops).map(|(i, op)| TfliteOperator::new(*op, [i], vec![i + 1])).collect(),
            outputs: vec![ops.len()],
            ..TfliteModel::default()
        };
        let [dequantize, dense, logistic] =
            [TfliteOp::Dequantize, TfliteOp::FullyConnected, TfliteOp::Logistic];
        assert_eq!(
            BinaryOutput::of_tflite(&graph(&[dense, logistic, dequantize])),
            BinaryOutput::Probability
        );
        assert_eq!(BinaryOutput::of_tflite(&graph(&[logistic, dense])), BinaryOutput::Logit);
        let nodes = |ops: &[&str]| OnnxModel {
            graph: OnnxGraph {
                nodes: (0..)
                    .zip(ops)
                    .map(|(i, op)| OnnxNode {
                        op: op.to_string(),
                        inputs: vec![format!("v{i}")],
                        outputs: vec![format!("v{}", i + 1)],
                        ..OnnxNode::default()
                    })
                    .collect(),
                outputs: vec![ValueInfo { name: format!("v{}", ops.len()), ..ValueInfo::default() }],
                ..OnnxGraph::default()
            },
            ..OnnxModel::default()
        };
        assert_eq!(BinaryOutput::of_onnx(&nodes(&["Gemm", "Sigmoid", "Reshape"])), BinaryOutput::Probability);
        assert_eq!(BinaryOutput::of_onnx(&nodes(&["Sigmoid", "Gemm"])), BinaryOutput::Logit);
    }
}
