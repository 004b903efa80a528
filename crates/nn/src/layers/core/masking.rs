//! Masking layer: masks time steps whose features all equal a mask value.

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::{constructors, setters};

/// `x: T[B, S, …, K] → T[B, S, …, K]`: masks time steps whose features are all `mask_value`.
///
/// Later layers skip masked steps: recurrent layers keep their state, attention ignores the steps, and global average
/// pooling, batch normalization, losses and metric means exclude them. Layers that do not mix steps (Dense, Dropout,
/// activations, normalization) propagate the mask; layers that rearrange positions (convolution, pooling, Flatten,
/// Reshape) end it. Features of masked steps become 0. As in Keras, except that Keras's MultiHeadAttention removes the
/// mask of its inputs for later readers; here they keep it. [`Embedding`](crate::layers::Embedding) with `mask_zero`
/// also creates a mask.
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::{dense, lstm, masking}, Model};
/// let model = Model::sequential([masking().mask_value(-1.0), lstm(8), dense(2)]);
/// assert_eq!(model.output_for(&[TensorType::new(F32, [20, 3])])?.shape.dims(), [2]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Masking {
    /// Feature value of masked steps. Default: 0.
    pub mask_value: f64,
}

impl Arguments for Masking {
    fn check(&self) -> Result<()> {
        match self.mask_value.is_nan() {
            true => Err(wrong("Masking", "a mask_value other than NaN", self.mask_value)),
            false => Ok(()),
        }
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        if x.rank() < 2 {
            return Err(unfit("Masking", "steps of features [B, S, K]", x.ty())
                .hint("put reshape([steps, features]) before the layer"));
        }
        let last = x.rank() - 1;
        let mask = x.not_equal(&x.scalar_like(self.mask_value).broadcast_to(x.shape())).any(&[last]);
        let x = cast_floats(cx, x);
        let dims: Vec<usize> = (0..last).collect();
        let y = mask.broadcast_in_dim(x.shape(), &dims).select(&x, &x.zeros_like());
        cx.set_mask(&y, &mask);
        Ok(y)
    }
}

impl Layer for Masking {
    named!("Masking", one_input);
}

constructors!(LayerSpec:
    /// `x: T[B, S, …, K] → T[B, S, …, K]`: masks time steps whose features are all 0. Arguments: [`Masking`].
    ///
    /// ```
    /// use systole_nn::layers::masking;
    /// assert!(masking().mask_value(-1.0).check().is_ok());
    /// ```
    fn masking() = Masking::default();
);

setters!(LayerSpec:
    /// Feature value of the time steps that Masking masks.
    mask_value: f64 as f64;
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![LayerSample::new(masking().mask_value(0.5), SEQUENCE, SEQUENCE, &[], Some(&[3]))]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "masking", "class": "Masking", "x_shape": [2, 4, 3], "kwargs": {"mask_value": 0.05}}
]"#;
