//! [`LayerSample`]: a layer as the tests try it.

use super::spec::LayerSpec;
use systole_ir::{DType, TensorType};

/// A layer with inputs that it takes, what it gives, and inputs that it refuses: what the tests of every layer are made of.
#[derive(Clone, Debug)]
pub struct LayerSample {
    /// The layer.
    pub spec: LayerSpec,
    /// What it takes.
    pub inputs: Vec<TensorType>,
    /// Shape of its output.
    pub output: Vec<usize>,
    /// Its weights, in order.
    pub weights: &'static [&'static str],
    /// Absent for layers that take anything.
    pub refused: Option<Vec<TensorType>>,
}

/// Some pictures.
pub(super) const IMAGE: &[usize] = &[2, 6, 5, 3];

/// Some volumes.
pub(super) const VOLUME: &[usize] = &[2, 3, 4, 3, 2];

/// Some sequences.
pub(super) const SEQUENCE: &[usize] = &[2, 7, 4];

/// What layers of pictures refuse.
pub(super) const FLAT: Option<&[usize]> = Some(&[2, 30]);

/// The weights of most layers that have some.
pub(super) const BOTH: &[&str] = &["kernel", "bias"];

impl LayerSample {
    /// A layer of one input.
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

    /// A layer that joins two inputs.
    pub(super) fn of_two(spec: LayerSpec, output: &[usize]) -> LayerSample {
        let inputs = vec![f32s(&[2, 3, 4]), f32s(&[2, 3, 4])];
        let refused = Some(vec![f32s(&[2, 3, 4]), f32s(&[2, 5, 4])]);
        LayerSample { spec, inputs, output: output.into(), weights: &[], refused }
    }

    /// The same for inputs of integers.
    pub(super) fn of_integers(self) -> LayerSample {
        let inputs = self.inputs.iter().map(|ty| TensorType::new(DType::I32, ty.shape.clone())).collect();
        LayerSample { inputs, ..self }
    }
}

pub(super) fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}
