//! A layer as its family sees it: its weights, and the graph that grows.

use crate::builder::TfliteBuilder;
use systole_ir::{Error, ErrorKind, Literal, Result};
use systole_nn::{LayerNode, Model as Layers};
use systole_onnx::OnnxRecurrent;

/// A layer that becomes operators.
pub(crate) struct QuantLayerCall<'a> {
    pub b: &'a mut TfliteBuilder,
    pub layers: &'a Layers,
    pub node: &'a LayerNode,
    /// Tensors that feed it.
    pub inputs: Vec<usize>,
    /// Shape of its output, the batch of 1 included.
    pub output: Vec<usize>,
    /// The layer within it that is meant.
    pub inner: Option<String>,
    /// Recurrent layers so far, as operators of steps.
    pub loops: &'a mut Vec<OnnxRecurrent>,
}

impl QuantLayerCall<'_> {
    /// The tensor that feeds it.
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

    /// One of its weights.
    pub fn weight(&self, name: &str) -> Result<Literal> {
        let value = self.layers.weight(&format!("{}/{name}", self.name()))?;
        if value.to_f32s().iter().any(|v| !v.is_finite()) {
            return Err(Error::new(ErrorKind::Numeric, format!("its {name} has NaN or infinite values"))
                .hint("load an earlier checkpoint, or train again with a smaller learning rate"));
        }
        Ok(value)
    }

    /// One of its weights where there is one, else zeros.
    pub fn bias(&self, used: bool, channels: usize) -> Result<Vec<f32>> {
        if used { Ok(self.weight("bias")?.to_f32s()) } else { Ok(vec![0.0; channels]) }
    }
}
