//! Permute, RepeatVector and Identity layers.

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::constructors;

/// `x: T[B, n₁, n₂, …] → T[B, …]`: permutes the dimensions of each sample.
///
/// ```
/// use systole_nn::layers::permute;
/// let channels_last = permute([2, 3, 1]);
/// assert!(channels_last.check().is_ok());
/// let e = permute([0, 1]).check().unwrap_err().to_string();
/// assert!(e.contains("each of 1 to 2 once"), "{e}");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Permute {
    /// Input dimension of each output dimension, counted from 1 without the batch. Required.
    pub dims: Vec<usize>,
}

impl Arguments for Permute {
    fn check(&self) -> Result<()> {
        let mut sorted = self.dims.clone();
        sorted.sort_unstable();
        if sorted.is_empty() || !sorted.iter().copied().eq(1..=sorted.len()) {
            let needs = format!("dims that contain each of 1 to {} once", sorted.len().max(1));
            return Err(wrong("Permute", &needs, format!("{:?}", self.dims))
                .hint("leave out 0: the batch is not permuted"));
        }
        Ok(())
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        if x.rank() != self.dims.len() + 1 {
            let needs = format!("samples of {} dimensions, for its dims {:?}", self.dims.len(), self.dims);
            return Err(unfit("Permute", &needs, x.ty()).hint("list each dimension of a sample in dims"));
        }
        Ok(cast_floats(cx, x).transpose(&[&[0], self.dims.as_slice()].concat()))
    }
}

impl Layer for Permute {
    named!("Permute", one_input);

    lowered!(self => Ok(LayerLowering::Permute(self.dims.clone())));
}

/// `x: T[B, C] → T[B, n, C]`: repeats each sample `n` times, as a sequence.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RepeatVector {
    /// Number of repetitions. Required.
    pub n: usize,
}

impl Arguments for RepeatVector {
    fn check(&self) -> Result<()> {
        match self.n {
            0 => Err(wrong("RepeatVector", "n of at least 1", 0)),
            _ => Ok(()),
        }
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        if x.rank() != 2 {
            return Err(unfit("RepeatVector", "one vector per sample [B, C]", x.ty())
                .hint("put flatten() or a global pooling before the layer"));
        }
        let shape = [x.dim(0), self.n, x.dim(1)];
        sized("RepeatVector", "output", &shape)?;
        Ok(cast_floats(cx, x).broadcast_in_dim(&Shape::new(shape), &[0, 2]))
    }
}

impl Layer for RepeatVector {
    named!("RepeatVector", one_input);

    lowered!(Repeat);
}

/// `x: T[…] → T[…]`: returns the input unchanged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Identity {}

impl Arguments for Identity {
    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        Ok(cast_floats(cx, x))
    }
}

impl Layer for Identity {
    named!("Identity", one_input);

    lowered!(Identity);
}

constructors!(LayerSpec:
    /// `x: T[B, n₁, n₂, …] → T[B, …]`: permutes the dimensions of each sample, counted from 1. Arguments: [`Permute`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::permute, Model};
    /// let layer = permute([2, 1]);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [10, 64])])?;
    /// assert_eq!(output.shape.dims(), [64, 10]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn permute(dims: impl AsRef<[usize]>) = Permute { dims: dims.as_ref().into() };

    /// `x: T[B, C] → T[B, n, C]`: repeats each sample `n` times, as a sequence. Arguments: [`RepeatVector`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::repeat_vector, Model};
    /// let layer = repeat_vector(3);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [32])])?;
    /// assert_eq!(output.shape.dims(), [3, 32]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn repeat_vector(n: usize) = RepeatVector { n };

    /// `x: T[…] → T[…]`: returns the input unchanged. Arguments: [`Identity`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::identity, Model};
    /// let layer = identity();
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [32])])?;
    /// assert_eq!(output.shape.dims(), [32]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn identity() = Identity {};
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(permute([3, 1, 2]), IMAGE, &[2, 3, 6, 5], &[], FLAT),
        LayerSample::new(repeat_vector(3), &[2, 5], &[2, 3, 5], &[], Some(IMAGE)),
        LayerSample::new(identity(), &[2, 5], &[2, 5], &[], None),
    ]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "permute", "class": "Permute", "x_shape": [2, 3, 2, 2], "kwargs": {"dims": [3, 1, 2]}},
    {"name": "repeat_vector", "class": "RepeatVector", "x_shape": [2, 3], "kwargs": {"n": 3}},
    {"name": "identity", "class": "Identity", "x_shape": [2, 3], "kwargs": {}}
]"#;
