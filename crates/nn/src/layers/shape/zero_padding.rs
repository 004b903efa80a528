//! ZeroPadding1D, ZeroPadding2D and ZeroPadding3D layers.

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::sliding_window::check_places;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors};

arguments! {
    /// `x: T[B, …, C] → T[B, …', C]`: pads `N` spatial dimensions with zeros.
    ///
    /// ```
    /// use systole_nn::layers::zero_padding2d;
    /// assert!(zero_padding2d(3).check().is_ok());
    /// assert!(zero_padding2d(((0, 1), (0, 1))).check().is_ok());
    /// ```
    pub struct ZeroPadding<const N: usize> {
        /// Padding before and after each dimension; 1 each by default.
        pub padding: Edges<N> = Edges([[1; 2]; N]),
    }
}

/// `x: T[B, S, C] → T[B, before + S + after, C]`: pads sequences with zeros.
pub type ZeroPadding1D = ZeroPadding<1>;

/// `x: T[B, H, W, C] → T[B, top + H + bottom, left + W + right, C]`: pads images with zeros.
pub type ZeroPadding2D = ZeroPadding<2>;

/// `x: T[B, D, H, W, C] → T[B, D', H', W', C]`: pads volumes with zeros.
pub type ZeroPadding3D = ZeroPadding<3>;

/// Padding amounts of [`ZeroPadding2D`].
#[deprecated(note = "Edges<2>")]
pub type Borders = Edges<2>;

impl<const N: usize> Arguments for ZeroPadding<N> {
    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        check_places(self.class_name(), N, x)?;
        pad(self.class_name(), &cast_floats(cx, x), &self.padding.0)
    }
}

impl<const N: usize> Layer for ZeroPadding<N> {
    named!(by_rank::<N, 3>(["ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D"]), one_input);

    lowered!(self => operators_if(self, N < 3, LayerLowering::Padding(self.padding.0.to_vec())));
}

/// Pads spatial dimensions: `x: T[B, …, C] → T[B, …', C]`.
fn pad(class: &str, x: &Tensor, edges: &[[usize; 2]]) -> Result<Tensor> {
    let mut shape = x.shape().to_vec();
    for (n, [before, after]) in shape[1..].iter_mut().zip(edges) {
        *n = n.saturating_add(*before).saturating_add(*after);
    }
    sized(class, "output", &shape)?;
    let along = |side: usize| {
        [&[0], edges.iter().map(|e| e[side] as i64).collect::<Vec<_>>().as_slice(), &[0]].concat()
    };
    Ok(x.pad(&x.scalar_like(0.0), &along(0), &along(1), &vec![0; x.rank()]))
}

constructors!(LayerSpec:
    /// `x: T[B, S, C] → T[B, before + S + after, C]`: pads sequences with zeros. Arguments: [`ZeroPadding1D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::zero_padding1d, Model};
    /// let layer = zero_padding1d((2, 0));
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [100, 8])])?;
    /// assert_eq!(output.shape.dims(), [102, 8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn zero_padding1d(padding: impl Into<Edges<1>>) = ZeroPadding1D { padding: padding.into() };

    /// `x: T[B, H, W, C] → T[B, top + H + bottom, left + W + right, C]`: pads images with zeros. Arguments:
    /// [`ZeroPadding2D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::zero_padding2d, Model};
    /// let layer = zero_padding2d(2);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [28, 28, 1])])?;
    /// assert_eq!(output.shape.dims(), [32, 32, 1]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn zero_padding2d(padding: impl Into<Edges<2>>) = ZeroPadding2D { padding: padding.into() };

    /// `x: T[B, D, H, W, C] → T[B, D', H', W', C]`: pads volumes with zeros. Arguments: [`ZeroPadding3D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::zero_padding3d, Model};
    /// let layer = zero_padding3d(1);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [8, 8, 8, 2])])?;
    /// assert_eq!(output.shape.dims(), [10, 10, 10, 2]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn zero_padding3d(padding: impl Into<Edges<3>>) = ZeroPadding3D { padding: padding.into() };
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(zero_padding1d((1, 2)), SEQUENCE, &[2, 10, 4], &[], FLAT),
        LayerSample::new(zero_padding2d(((0, 1), (2, 3))), IMAGE, &[2, 7, 10, 3], &[], FLAT),
        LayerSample::new(zero_padding3d([[0, 1], [2, 1], [0, 0]]), VOLUME, &[2, 4, 7, 3, 2], &[], FLAT),
    ]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "zero_padding1d", "class": "ZeroPadding1D", "x_shape": [2, 3, 2], "kwargs": {"padding": [1, 2]}},
    {"name": "zero_padding3d", "class": "ZeroPadding3D", "x_shape": [1, 2, 1, 2, 2], "kwargs": {"padding": [[1, 0], [0, 2], [1, 1]]}}
]"#;
