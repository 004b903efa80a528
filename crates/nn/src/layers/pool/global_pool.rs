//! Global max and average pooling layers over sequences, images and volumes.

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::sliding_window::check_some_place;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors, setters};

arguments! {
    /// `x: T[B, …, C] → T[B, C]`, or `T[B, 1…, C]` with `keepdims`: global max pooling over `N` spatial dimensions.
    pub struct GlobalMaxPooling<const N: usize> {
        /// Whether spatial dimensions are kept with size 1. Default: false.
        pub keepdims: bool = false,
    }
}

arguments! {
    /// `x: T[B, …, C] → T[B, C]`, or `T[B, 1…, C]` with `keepdims`: global average pooling over `N` spatial dimensions.
    pub struct GlobalAveragePooling<const N: usize> {
        /// Whether spatial dimensions are kept with size 1. Default: false.
        pub keepdims: bool = false,
    }
}

/// `x: T[B, S, C] → T[B, C]`, or `T[B, 1, C]` with `keepdims`: maximum of each channel.
pub type GlobalMaxPooling1D = GlobalMaxPooling<1>;

/// `x: T[B, H, W, C] → T[B, C]`, or `T[B, 1, 1, C]` with `keepdims`: maximum of each channel.
pub type GlobalMaxPooling2D = GlobalMaxPooling<2>;

/// `x: T[B, D, H, W, C] → T[B, C]`, or `T[B, 1, 1, 1, C]` with `keepdims`: maximum of each channel.
pub type GlobalMaxPooling3D = GlobalMaxPooling<3>;

/// `x: T[B, S, C] → T[B, C]`, or `T[B, 1, C]` with `keepdims`: mean of each channel.
pub type GlobalAveragePooling1D = GlobalAveragePooling<1>;

/// `x: T[B, H, W, C] → T[B, C]`, or `T[B, 1, 1, C]` with `keepdims`: mean of each channel.
pub type GlobalAveragePooling2D = GlobalAveragePooling<2>;

/// `x: T[B, D, H, W, C] → T[B, C]`, or `T[B, 1, 1, 1, C]` with `keepdims`: mean of each channel.
pub type GlobalAveragePooling3D = GlobalAveragePooling<3>;

impl<const N: usize> Arguments for GlobalMaxPooling<N> {
    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        check_some_place(self.class_name(), N, x)?;
        Ok(with_places::<N>(cast(cx, x).reduce_max(&places::<N>()), self.keepdims))
    }
}

impl<const N: usize> Layer for GlobalMaxPooling<N> {
    named!(by_rank::<N, 3>(["GlobalMaxPooling1D", "GlobalMaxPooling2D", "GlobalMaxPooling3D"]), one_input);

    lowered!(self => operators_if(self, N < 3, LayerLowering::GlobalPooling { max: true }));
}

impl<const N: usize> Arguments for GlobalAveragePooling<N> {
    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        check_some_place(self.class_name(), N, x)?;
        Ok(with_places::<N>(mean(cx, x, &places::<N>()), self.keepdims))
    }
}

impl<const N: usize> Layer for GlobalAveragePooling<N> {
    named!(
        by_rank::<N, 3>(["GlobalAveragePooling1D", "GlobalAveragePooling2D", "GlobalAveragePooling3D"]),
        one_input
    );

    lowered!(self => operators_if(self, N < 3, LayerLowering::GlobalPooling { max: false }));
}

fn places<const N: usize>() -> [usize; N] {
    std::array::from_fn(|i| i + 1)
}

/// Restores spatial dimensions: `y: T[B, C] → T[B, 1…, C]` with `keepdims`.
fn with_places<const N: usize>(y: Tensor, keepdims: bool) -> Tensor {
    if keepdims { y.reshape([&[y.dim(0)], &[1; N][..], &[y.dim(1)]].concat()) } else { y }
}

/// Computes in f32: sums of half-precision numbers lose digits and overflow.
fn mean(cx: &Cx, x: &Tensor, places: &[usize]) -> Tensor {
    if let Some(mask) = cx.mask_of(x).filter(|mask| mask.shape().dims() == &x.shape()[..places.len() + 1]) {
        return mean_of_counted(cx, x, &mask, places);
    }
    cast(cx, &cast(cx, x).convert(DType::F32).mean(places))
}

/// Mean over unmasked positions: `mask: bool[B, S]`.
fn mean_of_counted(cx: &Cx, x: &Tensor, mask: &Tensor, places: &[usize]) -> Tensor {
    let x32 = cast(cx, x).convert(DType::F32);
    let dims: Vec<usize> = (0..mask.rank()).collect();
    let counted = mask.broadcast_in_dim(x32.shape(), &dims).select(&x32, &x32.zeros_like());
    let count = mask.convert(DType::F32).sum(places);
    let sum = counted.sum(places);
    cast(cx, &(&sum / count.broadcast_in_dim(sum.shape(), &[0])))
}

constructors!(LayerSpec:
    /// `x: T[B, S, C] → T[B, C]`: maximum of each channel. Arguments: [`GlobalMaxPooling1D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::global_max_pooling1d, Model};
    /// let layer = global_max_pooling1d();
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [100, 8])])?;
    /// assert_eq!(output.shape.dims(), [8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn global_max_pooling1d() = GlobalMaxPooling1D::default();

    /// `x: T[B, H, W, C] → T[B, C]`: maximum of each channel. Arguments: [`GlobalMaxPooling2D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::global_max_pooling2d, Model};
    /// let layer = global_max_pooling2d();
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [7, 7, 64])])?;
    /// assert_eq!(output.shape.dims(), [64]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn global_max_pooling2d() = GlobalMaxPooling2D::default();

    /// `x: T[B, D, H, W, C] → T[B, C]`: maximum of each channel. Arguments: [`GlobalMaxPooling3D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::global_max_pooling3d, Model};
    /// let layer = global_max_pooling3d();
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [4, 8, 8, 2])])?;
    /// assert_eq!(output.shape.dims(), [2]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn global_max_pooling3d() = GlobalMaxPooling3D::default();

    /// `x: T[B, S, C] → T[B, C]`: mean of each channel. Arguments: [`GlobalAveragePooling1D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::global_average_pooling1d, Model};
    /// let layer = global_average_pooling1d();
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [100, 8])])?;
    /// assert_eq!(output.shape.dims(), [8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn global_average_pooling1d() = GlobalAveragePooling1D::default();

    /// `x: T[B, H, W, C] → T[B, C]`: mean of each channel. Arguments: [`GlobalAveragePooling2D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::global_average_pooling2d, Model};
    /// let layer = global_average_pooling2d();
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [7, 7, 64])])?;
    /// assert_eq!(output.shape.dims(), [64]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn global_average_pooling2d() = GlobalAveragePooling2D::default();

    /// `x: T[B, D, H, W, C] → T[B, C]`: mean of each channel. Arguments: [`GlobalAveragePooling3D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::global_average_pooling3d, Model};
    /// let layer = global_average_pooling3d();
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [4, 8, 8, 2])])?;
    /// assert_eq!(output.shape.dims(), [2]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn global_average_pooling3d() = GlobalAveragePooling3D::default();
);

setters!(LayerSpec:
    /// Whether a global pooling layer keeps spatial dimensions with size 1.
    keepdims: bool as bool;
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(global_max_pooling1d(), SEQUENCE, &[2, 4], &[], Some(&[2, 0, 4])),
        LayerSample::new(global_max_pooling2d().keepdims(true), IMAGE, &[2, 1, 1, 3], &[], FLAT),
        LayerSample::new(global_max_pooling3d().keepdims(true), VOLUME, &[2, 1, 1, 1, 2], &[], FLAT),
        LayerSample::new(global_average_pooling1d().keepdims(true), SEQUENCE, &[2, 1, 4], &[], FLAT),
        LayerSample::new(global_average_pooling2d(), IMAGE, &[2, 3], &[], Some(&[2, 0, 5, 3])),
        LayerSample::new(global_average_pooling3d(), VOLUME, &[2, 2], &[], Some(IMAGE)),
    ]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "global_max_pool1d", "class": "GlobalMaxPooling1D", "x_shape": [2, 5, 2], "kwargs": {}},
    {"name": "global_average_pool1d", "class": "GlobalAveragePooling1D", "x_shape": [2, 5, 2], "kwargs": {"keepdims": true}},
    {"name": "global_max_pool3d", "class": "GlobalMaxPooling3D", "x_shape": [1, 2, 3, 2, 2], "kwargs": {"keepdims": true}},
    {"name": "global_average_pool3d", "class": "GlobalAveragePooling3D", "x_shape": [1, 2, 3, 2, 2], "kwargs": {}},
    {"name": "global_max2d", "class": "GlobalMaxPooling2D", "x_shape": [2, 5, 4, 3], "kwargs": {}},
    {"name": "global_max2d_keepdims", "class": "GlobalMaxPooling2D", "x_shape": [2, 5, 4, 3], "kwargs": {"keepdims": true}}
]"#;
