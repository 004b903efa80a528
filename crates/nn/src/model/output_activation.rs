//! Activation that computes a model's output: tells probabilities from logits.

use crate::layer::Layer;
use crate::layer::activation::Activation;
use crate::layer::lowering::LayerLowering;
use crate::model::architecture::{Architecture, LayerNode, NodeInput};
use serde_json::Value;

impl Architecture {
    /// Returns the layer that computes the values of the output with this index, and its activation. Layers that only move
    /// values, such as Reshape, are skipped. `None` if another operation computes the values.
    ///
    /// ```
    /// use systole_nn::layers::{dense, reshape};
    /// use systole_nn::{Activation, Architecture};
    /// let model = Architecture::sequential([dense(4).activation("softmax"), reshape([2, 2])]);
    /// let (layer, activation) = model.output_activation(0).unwrap();
    /// assert_eq!((layer.name.as_str(), activation), ("dense", Activation::Softmax));
    /// ```
    pub fn output_activation(&self, output: usize) -> Option<(&LayerNode, Activation)> {
        let mut at = self.outputs().nth(output)?;
        loop {
            let NodeInput::Layer(index) = at else { return None };
            let node = self.nodes.get(index)?;
            match (keeps_values(node.layer.layer()), node.inputs.as_slice()) {
                (true, &[before]) => at = before,
                _ => return Some((node, activation(node.layer.layer())?)),
            }
        }
    }
}

fn keeps_values(layer: &dyn Layer) -> bool {
    use LayerLowering::{Flatten, Identity, Permute, Regularization, Reshape};
    match layer.lowering() {
        Ok(LayerLowering::Activation(activation)) => activation == Activation::Linear,
        own => matches!(own, Ok(Identity | Regularization | Reshape | Flatten | Permute(_))),
    }
}

fn activation(layer: &dyn Layer) -> Option<Activation> {
    match layer.lowering() {
        Ok(LayerLowering::Softmax(_)) => Some(Activation::Softmax),
        Ok(LayerLowering::Relu { .. }) => Some(Activation::Relu),
        Ok(
            own
            @ (LayerLowering::Dense { .. } | LayerLowering::Convolution(_) | LayerLowering::Activation(_)),
        ) => Some(own.activation()),
        Ok(_) => None,
        // Layers without operators, such as EinsumDense, end with the activation of their configuration.
        Err(_) => layer.config().get("activation").and_then(Value::as_str)?.parse().ok(),
    }
}
