//! PReLU layer: leaky ReLU with learned slopes.

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors, setters};

arguments! {
    /// `x: T[B, …] → T[B, …]`: x if positive, otherwise `alpha · x`, with a learned alpha per feature.
    ///
    /// Weight: `alpha: f32[…]`, of a sample's shape with 1 in the `shared_axes`. Source: He et al. 2015.
    ///
    /// ```
    /// use systole_nn::layers::prelu;
    /// let one_slope_per_channel = prelu().shared_axes([1, 2]).alpha_initializer("random_uniform");
    /// assert!(one_slope_per_channel.check().is_ok());
    /// ```
    pub struct PReLU {
        /// Initializer of `alpha`. Default: `zeros`.
        pub alpha_initializer: Initializer = Initializer::Zeros,
        /// Axes along which all elements share one alpha; the batch is axis 0. Default: none.
        pub shared_axes: Option<Axes> = None,
    }
}

constructors!(LayerSpec:
    /// `x: T[B, …] → T[B, …]`: x if positive, otherwise x times a learned slope per feature. Arguments: [`PReLU`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::prelu, Model};
    /// let layer = prelu();
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [8])])?;
    /// assert_eq!(output.shape.dims(), [8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn prelu() = PReLU::default();
);

setters!(LayerSpec:
    /// Initializer of PReLU's alpha.
    alpha_initializer: impl Into<Value> as Value;
    /// Axes along which PReLU shares one alpha.
    shared_axes: impl Into<Axes> as Axes;
);

impl Arguments for PReLU {
    fn check(&self) -> Result<()> {
        let mut axes = self.shared_axes.iter().flat_map(|axes| &axes.0);
        match axes.find(|axis| **axis < 1) {
            Some(axis) => Err(wrong("PReLU", "shared_axes of at least 1 (the batch has no alpha)", axis)
                .hint("count axes from the batch, which is 0: [1, 2] are height and width of images")),
            None => Ok(()),
        }
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        let Some((_, features)) = x.shape().dims().split_first() else {
            return Err(unfit("PReLU", "a batch [B, …]", x.ty()).hint("feed batches: data.batch(32)"));
        };
        let mut shape = features.to_vec();
        for axis in self.shared_axes.iter().flat_map(|axes| &axes.0) {
            shape[dim_index("PReLU", *axis, x)? - 1] = 1;
        }
        let alpha = weight(cx, "PReLU", "alpha", &shape, &self.alpha_initializer)?;
        let dims: Vec<usize> = (1..x.rank()).collect();
        let (x, alpha) = (cast(cx, x), alpha.broadcast_in_dim(x.shape(), &dims));
        Ok(x.relu() - alpha * (-&x).relu())
    }
}

impl Layer for PReLU {
    named!("PReLU", one_input);

    lowered!(PRelu);

    weights!("alpha" => "weight" as Flat);
}

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(prelu(), &[2, 5], &[2, 5], &["alpha"], Some(&[])),
        LayerSample::new(prelu().shared_axes([1, 2]), IMAGE, IMAGE, &["alpha"], Some(&[2, 5])),
    ]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "prelu", "class": "PReLU", "x_shape": [4, 6], "kwargs": {}},
    {"name": "prelu_wide", "class": "PReLU", "x_shape": [3, 10], "inputs": "wide", "kwargs": {}},
    {"name": "prelu_images", "class": "PReLU", "x_shape": [2, 4, 3, 5], "kwargs": {}},
    {"name": "prelu_shared", "class": "PReLU", "x_shape": [2, 4, 3, 5], "kwargs": {"shared_axes": [1, 2]}},
    {"name": "prelu_shared_channels", "class": "PReLU", "x_shape": [2, 4, 3, 5], "kwargs": {"shared_axes": [3]}}
]"#;
