//! RMSNormalization and UnitNormalization (L2) layers.

use super::normalization::feature_dim;
use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors};

arguments! {
    /// `x: T[B, …] → T[B, …]`: RMS normalization: divides each sample by its root mean square over the dimensions
    /// `axis`.
    ///
    /// The mean is f32 under every precision policy. Weight: `scale`, of the shape of those dimensions. Source: Zhang
    /// and Sennrich 2019.
    pub struct RMSNormalization {
        /// Axes to normalize over. Default: −1, the last.
        pub axis: Axes = Axes(vec![-1]),
        /// Epsilon added to the mean square. Default: 1e-6.
        pub epsilon: f64 = 1e-6,
    }
}

impl Arguments for RMSNormalization {
    fn check(&self) -> Result<()> {
        check_axis("RMSNormalization", &self.axis)?;
        at_least_0("RMSNormalization", "epsilon", self.epsilon)
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        let dims = feature_dims("RMSNormalization", &self.axis, x)?;
        let shape: Vec<usize> = dims.iter().map(|&d| x.dim(d as isize)).collect();
        sized("RMSNormalization", "scale", &shape)?;
        let x32 = cast(cx, x).convert(DType::F32);
        let inverse = ((&x32 * &x32).mean(&dims) + self.epsilon).rsqrt();
        let scale = cx.variable("scale", &shape, &Initializer::Ones, true);
        let y = x32 * inverse.broadcast_except(x.shape(), &dims) * scale.broadcast_in_dim(x.shape(), &dims);
        Ok(cast(cx, &y))
    }
}

impl Layer for RMSNormalization {
    named!("RMSNormalization", one_input);

    fn masks(&self) -> Result<MaskPropagation> {
        Ok(MaskPropagation::First)
    }

    fn decoding(&self) -> Result<IncrementalDecoding> {
        Ok(IncrementalDecoding::Positionwise)
    }

    weights!("scale" => "weight");
}

arguments! {
    /// `x: T[B, …] → T[B, …]`: L2-normalizes each sample over the dimensions `axis`.
    ///
    /// Norms below 1e-12 are clamped.
    pub struct UnitNormalization {
        /// Axes to normalize over. Default: −1, the last.
        pub axis: Axes = Axes(vec![-1]),
    }
}

impl Arguments for UnitNormalization {
    fn check(&self) -> Result<()> {
        check_axis("UnitNormalization", &self.axis)
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        let dims = feature_dims("UnitNormalization", &self.axis, x)?;
        Ok(cast(cx, &unit(&cast(cx, x).convert(DType::F32), &dims)))
    }
}

impl Layer for UnitNormalization {
    named!("UnitNormalization", one_input);

    masked!(First);
}

/// `x: f32[…] → f32[…]`: L2-normalizes over `dims`; the norm is clamped for inputs near 0.
pub(in crate::layers) fn unit(x: &Tensor, dims: &[usize]) -> Tensor {
    let squares = (x * x).sum(dims);
    let floor = squares.builder().full(squares.ty(), 1e-24);
    x * squares.maximum(&floor).rsqrt().broadcast_except(x.shape(), dims)
}

fn check_axis(class: &str, axis: &Axes) -> Result<()> {
    if axis.0.is_empty() { Err(wrong(class, "at least one axis", "an empty list")) } else { Ok(()) }
}

/// Converts axes to dimension indices in ascending order.
fn feature_dims(class: &str, axis: &Axes, x: &Tensor) -> Result<Vec<usize>> {
    let mut dims = axis.0.iter().map(|&a| feature_dim(class, a, x)).collect::<Result<Vec<usize>>>()?;
    dims.sort_unstable();
    dims.dedup();
    Ok(dims)
}

constructors!(LayerSpec:
    /// `x: T[B, …] → T[B, …]`: RMS normalization over the last axis. Arguments: [`RMSNormalization`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::rms_normalization, Model};
    /// let layer = rms_normalization();
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [16, 32])])?;
    /// assert_eq!(output.shape.dims(), [16, 32]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn rms_normalization() = RMSNormalization::default();

    /// `x: T[B, …] → T[B, …]`: L2-normalizes each sample over the last axis. Arguments: [`UnitNormalization`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::unit_normalization, Model};
    /// let layer = unit_normalization();
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [16, 32])])?;
    /// assert_eq!(output.shape.dims(), [16, 32]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn unit_normalization() = UnitNormalization::default();
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(rms_normalization(), &[2, 3, 5], &[2, 3, 5], &["scale"], Some(&[2])),
        LayerSample::new(rms_normalization().axis([1, 2]), IMAGE, IMAGE, &["scale"], Some(&[2, 3])),
        LayerSample::new(unit_normalization(), &[2, 3, 5], &[2, 3, 5], &[], Some(&[2])),
    ]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "rms_norm", "class": "RMSNormalization", "x_shape": [2, 3, 6], "kwargs": {}},
    {"name": "rms_norm_epsilon", "class": "RMSNormalization", "x_shape": [4, 6], "kwargs": {"epsilon": 0.1}},
    {"name": "unit_norm", "class": "UnitNormalization", "x_shape": [2, 3, 6], "kwargs": {}},
    {"name": "unit_norm_axes", "class": "UnitNormalization", "x_shape": [2, 3, 4], "kwargs": {"axis": [1, 2]}}
]"#;
