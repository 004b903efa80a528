//! LayerScale layer: a learned factor per channel, small at first, so that deep residual networks start near the
//! identity.

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors, setters};

arguments! {
    /// `x: T[B, …, C] → T[B, …, C]`: multiplies each channel by a learned factor.
    ///
    /// Weight: `gamma: f32[C]`. As in `keras.applications.convnext`, where the weight has no layer name. Source:
    /// Touvron et al. 2021.
    ///
    /// ```
    /// use systole_nn::layers::layer_scale;
    /// assert!(layer_scale(1e-6).check().is_ok());
    /// ```
    pub struct LayerScale {
        /// Initial value of the factors. Required in Keras, 1e-6 here.
        pub init_values: f64 = 1e-6,
        /// Number of channels. Default: that of the input.
        pub projection_dim: Option<usize> = None,
    }
}

impl Arguments for LayerScale {
    fn check(&self) -> Result<()> {
        ensure!(self.init_values.is_finite(), wrong("LayerScale", "finite init_values", self.init_values));
        Ok(())
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        if x.rank() < 2 || self.projection_dim.is_some_and(|n| n != x.dim(-1)) {
            let needs = match self.projection_dim {
                Some(n) => format!("a batch with {n} channels [B, …, {n}]"),
                None => "a batch with channels [B, …, C]".into(),
            };
            return Err(unfit("LayerScale", &needs, x.ty()).hint("leave projection_dim out"));
        }
        let start = Initializer::Constant { value: self.init_values };
        let gamma = weight(cx, "LayerScale", "gamma", &[x.dim(-1)], &start)?;
        Ok(cast(cx, x) * gamma)
    }
}

impl Layer for LayerScale {
    named!("LayerScale", one_input);

    weights!("gamma" => "gamma");
}

constructors!(LayerSpec:
    /// `x: T[B, …, C] → T[B, …, C]`: multiplies each channel by a learned factor that starts at `init_values`. Arguments:
    /// [`LayerScale`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::layer_scale, Model};
    /// let layer = layer_scale(1e-6);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [7, 7, 96])])?;
    /// assert_eq!(output.shape.dims(), [7, 7, 96]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn layer_scale(init_values: f64) = LayerScale { init_values, ..Default::default() };
);

setters!(LayerSpec:
    /// Number of LayerScale's channels.
    projection_dim: usize as usize;
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![LayerSample::new(layer_scale(0.5).projection_dim(3), IMAGE, IMAGE, &["gamma"], Some(&[2, 4]))]
}

/// Keras parity test cases of these layers are in `fixtures/keras/parts`.
pub(in crate::layers) const PARITY: &str = "[]";
