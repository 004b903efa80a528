//! SpatialDropout1D, SpatialDropout2D and SpatialDropout3D layers: drop whole channels.

use super::dropout::{check_rate, kept};
use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::sliding_window::check_places;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors};

arguments! {
    /// `x: T[B, …, C] → T[B, …, C]`: in training, zeros each channel of a sample with probability `rate` and divides
    /// the others by `1 − rate`; otherwise the identity. Over `N` spatial dimensions.
    pub struct SpatialDropout<const N: usize> {
        /// Fraction of the channels to drop, 0 to 1. Required in Keras, 0 here.
        pub rate: f64 = 0.0,
    }
}

/// `x: T[B, S, C] → T[B, S, C]`: in training, zeros each channel of a sample with probability `rate` and divides the
/// others by `1 − rate`; otherwise the identity.
pub type SpatialDropout1D = SpatialDropout<1>;

/// `x: T[B, H, W, C] → T[B, H, W, C]`: in training, zeros each channel of a sample with probability `rate` and divides
/// the others by `1 − rate`; otherwise the identity.
pub type SpatialDropout2D = SpatialDropout<2>;

/// `x: T[B, D, H, W, C] → T[B, D, H, W, C]`: in training, zeros each channel of a sample with probability `rate` and
/// divides the others by `1 − rate`; otherwise the identity.
pub type SpatialDropout3D = SpatialDropout<3>;

impl<const N: usize> Arguments for SpatialDropout<N> {
    fn check(&self) -> Result<()> {
        check_rate(self.class_name(), "rate", self.rate)
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        check_places(self.class_name(), N, x)?;
        Ok(drop_channels(cx, &cast(cx, x), self.rate))
    }
}

impl<const N: usize> Layer for SpatialDropout<N> {
    named!(by_rank::<N, 3>(["SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"]), one_input);

    lowered!(Regularization);
}

/// Drops channels: `x: T[B, …, C] → T[B, …, C]`.
fn drop_channels(cx: &mut Cx, x: &Tensor, rate: f64) -> Tensor {
    if rate == 0.0 || !cx.training() {
        return x.clone();
    }
    if rate == 1.0 {
        return x.zeros_like();
    }
    let Some(kept) = kept(cx, &[x.dim(0), x.dim(-1)], rate) else { return x.clone() };
    let kept = kept.broadcast_in_dim(x.shape(), &[0, x.rank() - 1]);
    kept.select(&(x * (1.0 / (1.0 - rate))), &x.zeros_like())
}

constructors!(LayerSpec:
    /// `x: T[B, S, C] → T[B, S, C]`: in training, zeros a fraction `rate` of the channels; otherwise the identity.
    /// Arguments: [`SpatialDropout1D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::spatial_dropout1d, Model};
    /// let layer = spatial_dropout1d(0.2);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [100, 8])])?;
    /// assert_eq!(output.shape.dims(), [100, 8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn spatial_dropout1d(rate: f64) = SpatialDropout1D { rate };

    /// `x: T[B, H, W, C] → T[B, H, W, C]`: in training, zeros a fraction `rate` of the channels; otherwise the identity.
    /// Arguments: [`SpatialDropout2D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::spatial_dropout2d, Model};
    /// let layer = spatial_dropout2d(0.2);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [28, 28, 8])])?;
    /// assert_eq!(output.shape.dims(), [28, 28, 8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn spatial_dropout2d(rate: f64) = SpatialDropout2D { rate };

    /// `x: T[B, D, H, W, C] → T[B, D, H, W, C]`: in training, zeros a fraction `rate` of the channels; otherwise the
    /// identity. Arguments: [`SpatialDropout3D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::spatial_dropout3d, Model};
    /// let layer = spatial_dropout3d(0.2);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [8, 8, 8, 2])])?;
    /// assert_eq!(output.shape.dims(), [8, 8, 8, 2]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn spatial_dropout3d(rate: f64) = SpatialDropout3D { rate };
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(spatial_dropout1d(0.5), SEQUENCE, SEQUENCE, &[], FLAT),
        LayerSample::new(spatial_dropout2d(0.5), IMAGE, IMAGE, &[], FLAT),
        LayerSample::new(spatial_dropout3d(0.5), VOLUME, VOLUME, &[], FLAT),
    ]
}

/// Keras parity test cases of these layers are in `fixtures/keras/parts`.
pub(in crate::layers) const PARITY: &str = "[]";
