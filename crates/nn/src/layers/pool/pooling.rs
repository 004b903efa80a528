//! Max and average pooling layers over sequences, images and volumes.

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::sliding_window::{SlidingWindow, check_places};
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors};
use systole_ir::Literal;
use systole_ir::op::{Monoid, Window};

arguments! {
    /// `x: T[B, …, C] → T[B, …', C]`: max pooling over `N` spatial dimensions.
    ///
    /// ```
    /// use systole_nn::layers::max_pooling2d;
    /// assert!(max_pooling2d((2, 2)).padding("same").check().is_ok());
    /// ```
    pub struct MaxPooling<const N: usize> {
        /// Size of the window along each spatial dimension; 2 each by default.
        pub pool_size: Sizes<N> = Sizes([2; N]),
        /// Strides of the window. Default: `pool_size`.
        pub strides: Option<Sizes<N>> = None,
        /// Padding mode. Default: "valid".
        pub padding: Padding = Padding::Valid,
    }
}

arguments! {
    /// `x: T[B, …, C] → T[B, …', C]`: average pooling over `N` spatial dimensions.
    pub struct AveragePooling<const N: usize> {
        /// Size of the window along each spatial dimension; 2 each by default.
        pub pool_size: Sizes<N> = Sizes([2; N]),
        /// Strides of the window. Default: `pool_size`.
        pub strides: Option<Sizes<N>> = None,
        /// Padding mode. Default: "valid".
        pub padding: Padding = Padding::Valid,
    }
}

/// `x: T[B, S, C] → T[B, S', C]`: max pooling of sequences.
///
/// With `padding` "valid", `S' = ⌊(S − p) / stride⌋ + 1`; with "same", `⌈S / stride⌉`, and padding never is the
/// maximum.
pub type MaxPooling1D = MaxPooling<1>;

/// `x: T[B, H, W, C] → T[B, H', W', C]`: max pooling of images.
///
/// With `padding` "valid", `H' = ⌊(H − ph) / stride⌋ + 1`; with "same", `⌈H / stride⌉`, and padding never is the
/// maximum.
pub type MaxPooling2D = MaxPooling<2>;

/// `x: T[B, D, H, W, C] → T[B, D', H', W', C]`: max pooling of volumes.
///
/// Output sizes as in [`MaxPooling1D`].
pub type MaxPooling3D = MaxPooling<3>;

/// `x: T[B, S, C] → T[B, S', C]`: average pooling of sequences.
///
/// Output sizes as in [`MaxPooling1D`]. With `padding` "same", padding is excluded from the mean.
pub type AveragePooling1D = AveragePooling<1>;

/// `x: T[B, H, W, C] → T[B, H', W', C]`: average pooling of images.
///
/// Output sizes as in [`MaxPooling2D`]. With `padding` "same", padding is excluded from the mean.
pub type AveragePooling2D = AveragePooling<2>;

/// `x: T[B, D, H, W, C] → T[B, D', H', W', C]`: average pooling of volumes.
///
/// Output sizes as in [`MaxPooling1D`]. With `padding` "same", padding is excluded from the mean.
pub type AveragePooling3D = AveragePooling<3>;

impl<const N: usize> Arguments for MaxPooling<N> {
    fn check(&self) -> Result<()> {
        windows(self.class_name(), self.pool_size, self.strides, self.padding).check()
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        check_places(self.class_name(), N, x)?;
        let windows = windows(self.class_name(), self.pool_size, self.strides, self.padding);
        let padding = windows.padding_for(x)?;
        Ok(fold(&cast(cx, x), &windows, &padding, Monoid::Maximum))
    }
}

impl<const N: usize> Layer for MaxPooling<N> {
    named!(by_rank::<N, 3>(["MaxPooling1D", "MaxPooling2D", "MaxPooling3D"]), one_input);

    fn lowering(&self) -> Result<LayerLowering> {
        lowering::<N>(windows(self.class_name(), self.pool_size, self.strides, self.padding), true)
    }
}

impl<const N: usize> Arguments for AveragePooling<N> {
    fn check(&self) -> Result<()> {
        windows(self.class_name(), self.pool_size, self.strides, self.padding).check()
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        check_places(self.class_name(), N, x)?;
        let windows = windows(self.class_name(), self.pool_size, self.strides, self.padding);
        let padding = windows.padding_for(x)?;
        // Sums of half-precision numbers lose digits and overflow, so it reduces in f32.
        let wide = cast(cx, x).convert(DType::F32);
        let sum = fold(&wide, &windows, &padding, Monoid::Add);
        Ok(cast(cx, &(sum / windows.counts(&wide, &padding))))
    }
}

impl<const N: usize> Layer for AveragePooling<N> {
    named!(by_rank::<N, 3>(["AveragePooling1D", "AveragePooling2D", "AveragePooling3D"]), one_input);

    fn lowering(&self) -> Result<LayerLowering> {
        lowering::<N>(windows(self.class_name(), self.pool_size, self.strides, self.padding), false)
    }
}

/// Window of a pooling layer; its strides default to its size.
fn windows<const N: usize>(
    class: &'static str,
    size: Sizes<N>,
    strides: Option<Sizes<N>>,
    padding: Padding,
) -> SlidingWindow {
    let window = SlidingWindow::of_kernel(class, size, strides.unwrap_or(size), Sizes([1; N]), padding);
    SlidingWindow { argument: "pool_size", ..window }
}

fn lowering<const N: usize>(windows: SlidingWindow, max: bool) -> Result<LayerLowering> {
    let SlidingWindow { class, size, strides, padding, .. } = windows;
    match N {
        1 | 2 => Ok(LayerLowering::Pooling { max, size, strides, padding }),
        _ => Err(no_operators(class)),
    }
}

/// Reduces each window with `monoid`: `x: T[B, …, C] → T[B, …', C]`.
fn fold(x: &Tensor, s: &SlidingWindow, padding: &[[i64; 2]], monoid: Monoid) -> Tensor {
    let around = |inner: &[usize]| [&[1], inner, &[1]].concat();
    let padding = [&[[0, 0]], padding, &[[0, 0]]].concat();
    let window = Window::new(&around(&s.size), &around(&s.strides), &padding);
    let identity = Literal::splat(TensorType::scalar(x.dtype()), monoid.identity(x.dtype()));
    let init = x.builder().constant(identity);
    Tensor::reduce_window(&[x], &[&init], window, monoid.body(x.dtype())).remove(0)
}

constructors!(LayerSpec:
    /// `x: T[B, S, C] → T[B, S', C]`: maximum of each window. Arguments: [`MaxPooling1D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::max_pooling1d, Model};
    /// let layer = max_pooling1d(2);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [100, 8])])?;
    /// assert_eq!(output.shape.dims(), [50, 8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn max_pooling1d(pool_size: usize) = MaxPooling1D { pool_size: pool_size.into(), ..Default::default() };

    /// `x: T[B, H, W, C] → T[B, H', W', C]`: maximum of each window. Arguments: [`MaxPooling2D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::max_pooling2d, Model};
    /// let layer = max_pooling2d((2, 2));
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [28, 28, 8])])?;
    /// assert_eq!(output.shape.dims(), [14, 14, 8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn max_pooling2d(pool_size: impl Into<Sizes<2>>) =
        MaxPooling2D { pool_size: pool_size.into(), ..Default::default() };

    /// `x: T[B, D, H, W, C] → T[B, D', H', W', C]`: maximum of each window. Arguments: [`MaxPooling3D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::max_pooling3d, Model};
    /// let layer = max_pooling3d(2);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [8, 8, 8, 2])])?;
    /// assert_eq!(output.shape.dims(), [4, 4, 4, 2]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn max_pooling3d(pool_size: impl Into<Sizes<3>>) =
        MaxPooling3D { pool_size: pool_size.into(), ..Default::default() };

    /// `x: T[B, S, C] → T[B, S', C]`: mean of each window. Arguments: [`AveragePooling1D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::average_pooling1d, Model};
    /// let layer = average_pooling1d(2);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [100, 8])])?;
    /// assert_eq!(output.shape.dims(), [50, 8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn average_pooling1d(pool_size: usize) =
        AveragePooling1D { pool_size: pool_size.into(), ..Default::default() };

    /// `x: T[B, H, W, C] → T[B, H', W', C]`: mean of each window. Arguments: [`AveragePooling2D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::average_pooling2d, Model};
    /// let layer = average_pooling2d(2);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [28, 28, 8])])?;
    /// assert_eq!(output.shape.dims(), [14, 14, 8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn average_pooling2d(pool_size: impl Into<Sizes<2>>) =
        AveragePooling2D { pool_size: pool_size.into(), ..Default::default() };

    /// `x: T[B, D, H, W, C] → T[B, D', H', W', C]`: mean of each window. Arguments: [`AveragePooling3D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::average_pooling3d, Model};
    /// let layer = average_pooling3d(2);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [8, 8, 8, 2])])?;
    /// assert_eq!(output.shape.dims(), [4, 4, 4, 2]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn average_pooling3d(pool_size: impl Into<Sizes<3>>) =
        AveragePooling3D { pool_size: pool_size.into(), ..Default::default() };
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(max_pooling1d(2), SEQUENCE, &[2, 3, 4], &[], Some(&[2, 1, 4])),
        LayerSample::new(max_pooling2d((2, 2)), IMAGE, &[2, 3, 2, 3], &[], Some(&[2, 1, 5, 3])),
        LayerSample::new(max_pooling3d((1, 2, 2)).padding("same"), VOLUME, &[2, 3, 2, 2, 2], &[], FLAT),
        LayerSample::new(average_pooling1d(3).strides(2).padding("same"), SEQUENCE, &[2, 4, 4], &[], FLAT),
        LayerSample::new(average_pooling2d(2).padding("same"), IMAGE, &[2, 3, 3, 3], &[], FLAT),
        LayerSample::new(average_pooling3d(2), VOLUME, &[2, 1, 2, 1, 2], &[], Some(&[2, 1, 4, 3, 2])),
    ]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "max_pool1d", "class": "MaxPooling1D", "x_shape": [2, 7, 2], "kwargs": {"pool_size": 2}},
    {"name": "max_pool1d_same_s2", "class": "MaxPooling1D", "x_shape": [2, 7, 2], "kwargs": {"pool_size": 3, "strides": 2, "padding": "same"}},
    {"name": "average_pool1d", "class": "AveragePooling1D", "x_shape": [2, 7, 2], "kwargs": {"pool_size": 3, "strides": 1}},
    {"name": "average_pool1d_same", "class": "AveragePooling1D", "x_shape": [2, 7, 2], "kwargs": {"pool_size": 2, "padding": "same"}},
    {"name": "max_pool3d", "class": "MaxPooling3D", "x_shape": [1, 4, 3, 4, 2], "kwargs": {"pool_size": [1, 2, 2]}},
    {"name": "average_pool3d_same", "class": "AveragePooling3D", "x_shape": [1, 4, 3, 4, 2], "kwargs": {"pool_size": 2, "strides": 1, "padding": "same"}}
]"#;
