//! Adaptive average and max pooling layers: a fixed output size for any input size.

use crate::layers::built_in::*;
use crate::layers::resample::{adaptive_windows, mixed_along};
use crate::layers::sample::*;
use crate::layers::sliding_window::check_some_place;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors};

arguments! {
    /// `x: T[B, …, C] → T[B, output_size…, C]`: adaptive average pooling over `N` spatial dimensions.
    pub struct AdaptiveAveragePooling<const N: usize> {
        /// Size of the output along each spatial dimension. Required.
        pub output_size: Sizes<N> = Sizes([0; N]),
    }
}

arguments! {
    /// `x: T[B, …, C] → T[B, output_size…, C]`: adaptive max pooling over `N` spatial dimensions.
    pub struct AdaptiveMaxPooling<const N: usize> {
        /// Size of the output along each spatial dimension. Required.
        pub output_size: Sizes<N> = Sizes([0; N]),
    }
}

/// `x: T[B, S, C] → T[B, output_size, C]`: adaptive average pooling of sequences.
///
/// Window `i` covers `⌊i · S / output_size⌋` up to, not including, `⌈(i + 1) · S / output_size⌉`.
pub type AdaptiveAveragePooling1D = AdaptiveAveragePooling<1>;

/// `x: T[B, H, W, C] → T[B, output_size…, C]`: adaptive average pooling of images.
///
/// Windows along each dimension are those of [`AdaptiveAveragePooling1D`].
pub type AdaptiveAveragePooling2D = AdaptiveAveragePooling<2>;

/// `x: T[B, D, H, W, C] → T[B, output_size…, C]`: adaptive average pooling of volumes.
///
/// Windows along each dimension are those of [`AdaptiveAveragePooling1D`].
pub type AdaptiveAveragePooling3D = AdaptiveAveragePooling<3>;

/// `x: T[B, S, C] → T[B, output_size, C]`: adaptive max pooling of sequences.
///
/// Windows are those of [`AdaptiveAveragePooling1D`].
pub type AdaptiveMaxPooling1D = AdaptiveMaxPooling<1>;

/// `x: T[B, H, W, C] → T[B, output_size…, C]`: adaptive max pooling of images.
///
/// Windows along each dimension are those of [`AdaptiveAveragePooling1D`].
pub type AdaptiveMaxPooling2D = AdaptiveMaxPooling<2>;

/// `x: T[B, D, H, W, C] → T[B, output_size…, C]`: adaptive max pooling of volumes.
///
/// Windows along each dimension are those of [`AdaptiveAveragePooling1D`].
pub type AdaptiveMaxPooling3D = AdaptiveMaxPooling<3>;

impl<const N: usize> Arguments for AdaptiveAveragePooling<N> {
    fn check(&self) -> Result<()> {
        check_size(self.class_name(), "output_size", &self.output_size)
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        check_windows(self.class_name(), &self.output_size, x)?;
        Ok(means(cx, x, &self.output_size.0))
    }
}

impl<const N: usize> Layer for AdaptiveAveragePooling<N> {
    named!(
        by_rank::<N, 3>(["AdaptiveAveragePooling1D", "AdaptiveAveragePooling2D", "AdaptiveAveragePooling3D"]),
        one_input
    );
}

impl<const N: usize> Arguments for AdaptiveMaxPooling<N> {
    fn check(&self) -> Result<()> {
        check_size(self.class_name(), "output_size", &self.output_size)
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        check_windows(self.class_name(), &self.output_size, x)?;
        Ok(maxima(cx, x, &self.output_size.0))
    }
}

impl<const N: usize> Layer for AdaptiveMaxPooling<N> {
    named!(
        by_rank::<N, 3>(["AdaptiveMaxPooling1D", "AdaptiveMaxPooling2D", "AdaptiveMaxPooling3D"]),
        one_input
    );
}

fn check_windows<const N: usize>(class: &str, output_size: &Sizes<N>, x: &Tensor) -> Result<()> {
    check_some_place(class, N, x)?;
    let mut along = output_size.0.iter().enumerate();
    along.try_for_each(|(i, out)| sized(class, "output", &[x.dim(i as isize + 1), *out]))
}

/// A multi-dimensional window is a product of 1D windows, and so is its mean. Computed in f32.
fn means(cx: &Cx, x: &Tensor, output_size: &[usize]) -> Tensor {
    let wide = cast(cx, x).convert(DType::F32);
    let mean = output_size.iter().enumerate().fold(wide, |x, (i, &out)| {
        let n = x.dim(i as isize + 1);
        let share = |[start, end]: [usize; 2]| {
            (0..n).map(|j| if (start..end).contains(&j) { 1.0 / (end - start) as f32 } else { 0.0 }).collect()
        };
        let weights: Vec<Vec<f32>> = adaptive_windows(n, out).into_iter().map(share).collect();
        mixed_along(&x, i + 1, &weights)
    });
    cast(cx, &mean)
}

fn maxima(cx: &Cx, x: &Tensor, output_size: &[usize]) -> Tensor {
    output_size.iter().enumerate().fold(cast(cx, x), |x, (i, &out)| {
        let (dim, n) = (i + 1, x.dim(i as isize + 1));
        if n % out == 0 {
            let mut shape = x.shape().to_vec();
            shape.splice(dim..=dim, [out, n / out]);
            return x.reshape(shape).reduce_max(&[dim + 1]);
        }
        let greatest = |[start, end]: [usize; 2]| {
            let mut shape = x.shape().to_vec();
            shape[dim] = 1;
            x.slice_dim(dim, start, end).reduce_max(&[dim]).reshape(shape)
        };
        let parts: Vec<Tensor> = adaptive_windows(n, out).into_iter().map(greatest).collect();
        Tensor::concatenate(&parts.iter().collect::<Vec<_>>(), dim)
    })
}

constructors!(LayerSpec:
    /// `x: T[B, S, C] → T[B, output_size, C]`: adaptive average pooling. Arguments: [`AdaptiveAveragePooling1D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::adaptive_average_pooling1d, Model};
    /// let layer = adaptive_average_pooling1d(7);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [100, 8])])?;
    /// assert_eq!(output.shape.dims(), [7, 8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn adaptive_average_pooling1d(output_size: usize) =
        AdaptiveAveragePooling1D { output_size: output_size.into() };

    /// `x: T[B, H, W, C] → T[B, output_size…, C]`: adaptive average pooling. Arguments: [`AdaptiveAveragePooling2D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::adaptive_average_pooling2d, Model};
    /// let layer = adaptive_average_pooling2d(7);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [13, 9, 8])])?;
    /// assert_eq!(output.shape.dims(), [7, 7, 8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn adaptive_average_pooling2d(output_size: impl Into<Sizes<2>>) =
        AdaptiveAveragePooling2D { output_size: output_size.into() };

    /// `x: T[B, D, H, W, C] → T[B, output_size…, C]`: adaptive average pooling. Arguments: [`AdaptiveAveragePooling3D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::adaptive_average_pooling3d, Model};
    /// let layer = adaptive_average_pooling3d(7);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [8, 9, 7, 2])])?;
    /// assert_eq!(output.shape.dims(), [7, 7, 7, 2]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn adaptive_average_pooling3d(output_size: impl Into<Sizes<3>>) =
        AdaptiveAveragePooling3D { output_size: output_size.into() };

    /// `x: T[B, S, C] → T[B, output_size, C]`: adaptive max pooling. Arguments: [`AdaptiveMaxPooling1D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::adaptive_max_pooling1d, Model};
    /// let layer = adaptive_max_pooling1d(7);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [100, 8])])?;
    /// assert_eq!(output.shape.dims(), [7, 8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn adaptive_max_pooling1d(output_size: usize) = AdaptiveMaxPooling1D { output_size: output_size.into() };

    /// `x: T[B, H, W, C] → T[B, output_size…, C]`: adaptive max pooling. Arguments: [`AdaptiveMaxPooling2D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::adaptive_max_pooling2d, Model};
    /// let layer = adaptive_max_pooling2d(7);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [13, 9, 8])])?;
    /// assert_eq!(output.shape.dims(), [7, 7, 8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn adaptive_max_pooling2d(output_size: impl Into<Sizes<2>>) =
        AdaptiveMaxPooling2D { output_size: output_size.into() };

    /// `x: T[B, D, H, W, C] → T[B, output_size…, C]`: adaptive max pooling. Arguments: [`AdaptiveMaxPooling3D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::adaptive_max_pooling3d, Model};
    /// let layer = adaptive_max_pooling3d(7);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [8, 9, 7, 2])])?;
    /// assert_eq!(output.shape.dims(), [7, 7, 7, 2]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn adaptive_max_pooling3d(output_size: impl Into<Sizes<3>>) =
        AdaptiveMaxPooling3D { output_size: output_size.into() };
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(adaptive_average_pooling1d(3), SEQUENCE, &[2, 3, 4], &[], Some(&[2, 0, 4])),
        LayerSample::new(adaptive_average_pooling2d((2, 4)), IMAGE, &[2, 2, 4, 3], &[], FLAT),
        LayerSample::new(adaptive_average_pooling3d(2), VOLUME, &[2, 2, 2, 2, 2], &[], FLAT),
        LayerSample::new(adaptive_max_pooling1d(9), SEQUENCE, &[2, 9, 4], &[], FLAT),
        LayerSample::new(adaptive_max_pooling2d((3, 2)), IMAGE, &[2, 3, 2, 3], &[], FLAT),
        LayerSample::new(adaptive_max_pooling3d((3, 2, 2)), VOLUME, &[2, 3, 2, 2, 2], &[], FLAT),
    ]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "adaptive_average1d", "class": "AdaptiveAveragePooling1D", "x_shape": [2, 7, 2], "kwargs": {"output_size": 3}},
    {"name": "adaptive_average2d", "class": "AdaptiveAveragePooling2D", "x_shape": [2, 6, 5, 2], "kwargs": {"output_size": [3, 2]}},
    {"name": "adaptive_average3d", "class": "AdaptiveAveragePooling3D", "x_shape": [1, 4, 3, 5, 2], "kwargs": {"output_size": 2}},
    {"name": "adaptive_max1d", "class": "AdaptiveMaxPooling1D", "x_shape": [2, 7, 2], "kwargs": {"output_size": 3}},
    {"name": "adaptive_max2d", "class": "AdaptiveMaxPooling2D", "x_shape": [2, 6, 5, 2], "kwargs": {"output_size": [3, 2]}},
    {"name": "adaptive_max3d", "class": "AdaptiveMaxPooling3D", "x_shape": [1, 4, 3, 5, 2], "kwargs": {"output_size": 2}}
]"#;
