//! Arguments for lowering a layer to TFLite: the layer's weights and the graph being built.

use crate::builder::TfliteBuilder;
use systole_ir::{Literal, Result, err};
use systole_nn::{LayerNode, Model as Layers};
use systole_onnx::OnnxRecurrent;

/// A layer that is lowered to operators.
pub(crate) struct QuantLayerCall<'a> {
    pub b: &'a mut TfliteBuilder,
    pub layers: &'a Layers,
    pub node: &'a LayerNode,
    /// Input tensors.
    pub inputs: Vec<usize>,
    /// Output shape, including the batch of 1.
    pub output: Vec<usize>,
    /// Name of the inner layer, if one is being lowered.
    pub inner: Option<String>,
    /// Unrolled recurrent layers so far.
    pub loops: &'a mut Vec<OnnxRecurrent>,
}

impl QuantLayerCall<'_> {
    /// Returns the input tensor of the layer that is lowered.
    pub fn input(&self) -> usize {
        self.inputs[0]
    }

    pub fn dims(&self) -> Vec<usize> {
        self.b.dims(self.inputs[0])
    }

    pub fn name(&self) -> String {
        match &self.inner {
            Some(inner) => format!("{}/{inner}", self.node.name),
            None => self.node.name.clone(),
        }
    }

    /// Returns one of the layer's weights by name.
    pub fn weight(&self, name: &str) -> Result<Literal> {
        let value = self.layers.weight(&format!("{}/{name}", self.name()))?;
        if value.to_f32s().iter().any(|v| !v.is_finite()) {
            return Err(err!(Numeric, "weight {name} has NaN or infinite values")
                .hint("load an earlier checkpoint, or train again with a smaller learning rate"));
        }
        Ok(value)
    }

    /// Returns the layer's bias, or zeros if the layer has none.
    pub fn bias(&self, used: bool, channels: usize) -> Result<Vec<f32>> {
        if used { Ok(self.weight("bias")?.to_f32s()) } else { Ok(vec![0.0; channels]) }
    }
}
