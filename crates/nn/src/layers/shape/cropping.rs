//! Cropping1D, Cropping2D and Cropping3D layers.

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::sliding_window::check_places;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors};

arguments! {
    /// `x: T[B, …, C] → T[B, …', C]`: crops both ends of each of `N` spatial dimensions.
    pub struct Cropping<const N: usize> {
        /// Amounts to crop before and after each dimension; none by default.
        pub cropping: Edges<N> = Edges([[0; 2]; N]),
    }
}

/// `x: T[B, S, C] → T[B, S − before − after, C]`: crops the first and last steps of a sequence.
pub type Cropping1D = Cropping<1>;

/// `x: T[B, H, W, C] → T[B, H', W', C]`: crops the edges of an image.
pub type Cropping2D = Cropping<2>;

/// `x: T[B, D, H, W, C] → T[B, D', H', W', C]`: crops the edges of a volume.
pub type Cropping3D = Cropping<3>;

impl<const N: usize> Arguments for Cropping<N> {
    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        check_places(self.class_name(), N, x)?;
        crop(self.class_name(), &cast_floats(cx, x), &self.cropping.0)
    }
}

impl<const N: usize> Layer for Cropping<N> {
    named!(by_rank::<N, 3>(["Cropping1D", "Cropping2D", "Cropping3D"]), one_input);

    lowered!(self => operators_if(self, N < 3, LayerLowering::Cropping(self.cropping.0.to_vec())));
}

/// Crops spatial dimensions: `x: T[B, …, C] → T[B, …', C]`.
fn crop(class: &str, x: &Tensor, edges: &[[usize; 2]]) -> Result<Tensor> {
    edges.iter().enumerate().try_fold(x.clone(), |x, (i, [before, after])| {
        let n = x.dim(i as isize + 1);
        match before.checked_add(*after) {
            Some(gone) if gone < n => Ok(x.slice_dim(i + 1, *before, n - after)),
            _ => {
                Err(unfit(class, &format!("a size above {before} + {after} in dimension {}", i + 1), x.ty())
                    .hint("crop less, or check the preceding layers"))
            }
        }
    })
}

constructors!(LayerSpec:
    /// `x: T[B, S, C] → T[B, S − before − after, C]`: crops the first and last steps of a sequence. Arguments:
    /// [`Cropping1D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::cropping1d, Model};
    /// let layer = cropping1d((2, 1));
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [100, 8])])?;
    /// assert_eq!(output.shape.dims(), [97, 8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn cropping1d(cropping: impl Into<Edges<1>>) = Cropping1D { cropping: cropping.into() };

    /// `x: T[B, H, W, C] → T[B, H', W', C]`: crops the edges of an image. Arguments: [`Cropping2D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::cropping2d, Model};
    /// let layer = cropping2d(2);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [32, 32, 3])])?;
    /// assert_eq!(output.shape.dims(), [28, 28, 3]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn cropping2d(cropping: impl Into<Edges<2>>) = Cropping2D { cropping: cropping.into() };

    /// `x: T[B, D, H, W, C] → T[B, D', H', W', C]`: crops the edges of a volume. Arguments: [`Cropping3D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::cropping3d, Model};
    /// let layer = cropping3d([0, 1, 1]);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [8, 8, 8, 2])])?;
    /// assert_eq!(output.shape.dims(), [8, 6, 6, 2]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn cropping3d(cropping: impl Into<Edges<3>>) = Cropping3D { cropping: cropping.into() };
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(cropping1d((1, 2)), SEQUENCE, &[2, 4, 4], &[], Some(&[2, 3, 4])),
        LayerSample::new(cropping2d([[0, 1], [2, 1]]), IMAGE, &[2, 5, 2, 3], &[], FLAT),
        LayerSample::new(cropping3d(1), VOLUME, &[2, 1, 2, 1, 2], &[], FLAT),
    ]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "cropping1d", "class": "Cropping1D", "x_shape": [2, 5, 2], "kwargs": {"cropping": [1, 2]}},
    {"name": "cropping2d_each", "class": "Cropping2D", "x_shape": [1, 5, 4, 2], "kwargs": {"cropping": [2, 1]}},
    {"name": "cropping2d_sides", "class": "Cropping2D", "x_shape": [1, 5, 4, 2], "kwargs": {"cropping": [[1, 0], [0, 2]]}},
    {"name": "cropping3d", "class": "Cropping3D", "x_shape": [1, 4, 3, 3, 2], "kwargs": {"cropping": 1}}
]"#;
