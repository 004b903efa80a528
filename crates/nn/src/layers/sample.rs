//! [`LayerSample`]: a layer with valid and invalid inputs, for tests of all layers.

use super::spec::LayerSpec;
use systole_ir::{DType, TensorType};

/// A layer with valid inputs, its expected output and weights, and invalid inputs.
#[derive(Clone, Debug)]
pub struct LayerSample {
    /// The layer.
    pub spec: LayerSpec,
    /// Valid input types.
    pub inputs: Vec<TensorType>,
    /// Expected output shape.
    pub output: Vec<usize>,
    /// Expected weights, in order.
    pub weights: &'static [&'static str],
    /// Input types that it rejects; `None` for layers that accept anything.
    pub refused: Option<Vec<TensorType>>,
}

/// Shape of a sample batch of images.
pub(super) const IMAGE: &[usize] = &[2, 6, 5, 3];

/// Shape of a sample batch of volumes.
pub(super) const VOLUME: &[usize] = &[2, 3, 4, 3, 2];

/// Shape of a sample batch of sequences.
pub(super) const SEQUENCE: &[usize] = &[2, 7, 4];

/// Shape that image layers reject.
pub(super) const FLAT: Option<&[usize]> = Some(&[2, 30]);

/// Weights of most layers that have any.
pub(super) const BOTH: &[&str] = &["kernel", "bias"];

impl LayerSample {
    /// Sample of a layer with one input.
    pub(super) fn new(
        spec: LayerSpec,
        input: &[usize],
        output: &[usize],
        weights: &'static [&'static str],
        refused: Option<&[usize]>,
    ) -> LayerSample {
        let refused = refused.map(|shape| vec![f32s(shape)]);
        LayerSample { spec, inputs: vec![f32s(input)], output: output.into(), weights, refused }
    }

    /// Sample of a layer that merges two inputs.
    pub(super) fn of_two(spec: LayerSpec, output: &[usize]) -> LayerSample {
        let inputs = vec![f32s(&[2, 3, 4]), f32s(&[2, 3, 4])];
        let refused = Some(vec![f32s(&[2, 3, 4]), f32s(&[2, 5, 4])]);
        LayerSample { spec, inputs, output: output.into(), weights: &[], refused }
    }

    /// Returns the sample with integer inputs.
    pub(super) fn of_integers(self) -> LayerSample {
        let inputs = self.inputs.iter().map(|ty| TensorType::new(DType::I32, ty.shape.clone())).collect();
        LayerSample { inputs, ..self }
    }
}

pub(super) fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}
