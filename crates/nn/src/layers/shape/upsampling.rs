//! UpSampling1D, UpSampling2D and UpSampling3D layers, and the interpolation methods.

use crate::layers::built_in::*;
use crate::layers::resample::{ResamplingKernel, mixed_along};
use crate::layers::sample::*;
use crate::layers::sliding_window::check_places;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors, setters};

arguments! {
    /// `x: T[B, …, C] → T[B, …', C]`: repeats each element along `N` spatial dimensions. Images can also be
    /// interpolated: [`UpSampling2D`].
    pub struct UpSampling<const N: usize> {
        /// Upsampling factor along each dimension; 2 by default.
        pub size: Sizes<N> = Sizes([2; N]),
    }
}

/// `x: T[B, S, C] → T[B, size · S, C]`: repeats each time step.
pub type UpSampling1D = UpSampling<1>;

/// `x: T[B, D, H, W, C] → T[B, size · D, size · H, size · W, C]`: repeats each voxel along every dimension.
pub type UpSampling3D = UpSampling<3>;

arguments! {
    /// `x: T[B, H, W, C] → T[B, size · H, size · W, C]`: upsamples images by repetition or interpolation.
    ///
    /// ```
    /// use systole_nn::layers::up_sampling2d;
    /// assert!(up_sampling2d((2, 3)).interpolation("bilinear").check().is_ok());
    /// ```
    pub struct UpSampling2D {
        /// Upsampling factors of height and width; 2 by default.
        pub size: Sizes<2> = Sizes([2, 2]),
        /// Interpolation method. Default: "nearest".
        pub interpolation: Interpolation = Interpolation::Nearest,
    }
}

/// Interpolation method of image resizing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interpolation {
    /// Nearest neighbor.
    #[default]
    Nearest,
    /// Linear between the two nearest pixels along each dimension.
    Bilinear,
    /// Cubic through the four nearest pixels along each dimension: Keys 1981, a = −½.
    Bicubic,
    /// Windowed sinc over six pixels along each dimension.
    Lanczos3,
    /// Windowed sinc over ten pixels along each dimension.
    Lanczos5,
}

impl Interpolation {
    pub(in crate::layers) fn kernel(self) -> Option<ResamplingKernel> {
        match self {
            Interpolation::Nearest => None,
            Interpolation::Bilinear => Some(ResamplingKernel::Bilinear),
            Interpolation::Bicubic => Some(ResamplingKernel::Bicubic),
            Interpolation::Lanczos3 => Some(ResamplingKernel::Lanczos(3)),
            Interpolation::Lanczos5 => Some(ResamplingKernel::Lanczos(5)),
        }
    }
}

impl<const N: usize> Arguments for UpSampling<N> {
    fn check(&self) -> Result<()> {
        check_size(self.class_name(), "a size", &self.size)
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        check_places(self.class_name(), N, x)?;
        repeated(self.class_name(), &cast_floats(cx, x), &self.size.0)
    }
}

impl<const N: usize> Layer for UpSampling<N> {
    named!(by_rank::<N, 3>(["UpSampling1D", "UpSampling2D", "UpSampling3D"]), one_input);
}

impl Arguments for UpSampling2D {
    fn check(&self) -> Result<()> {
        check_size("UpSampling2D", "a size", &self.size)
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        check_places("UpSampling2D", 2, x)?;
        let Some(kernel) = self.interpolation.kernel() else {
            return repeated("UpSampling2D", &cast_floats(cx, x), &self.size.0);
        };
        let mut y = cast(cx, x).convert(DType::F32);
        for (i, &factor) in self.size.0.iter().enumerate() {
            let n = y.dim(i as isize + 1);
            sized("UpSampling2D", "weights", &[n, n.saturating_mul(factor)])?;
            y = mixed_along(&y, i + 1, &kernel.weights(n, factor));
        }
        Ok(cast(cx, &y))
    }
}

impl Layer for UpSampling2D {
    named!("UpSampling2D", one_input);

    fn lowering(&self) -> Result<LayerLowering> {
        match self.interpolation {
            Interpolation::Nearest => Ok(LayerLowering::UpSampling { bilinear: false }),
            Interpolation::Bilinear => Ok(LayerLowering::UpSampling { bilinear: true }),
            other => {
                let name = config_of(&other);
                let name = name.as_str().unwrap_or_default();
                Err(err!(Unsupported, "cannot export UpSampling2D with interpolation {name} to .tflite")
                    .hint("use interpolation nearest or bilinear"))
            }
        }
    }

    fn channels(&self) -> Result<ChannelPruning> {
        Ok(ChannelPruning::Passes)
    }
}

/// Repeats each element `size` times along each dimension: `x: T[B, …, C] → T[B, …', C]`.
fn repeated(class: &str, x: &Tensor, size: &[usize]) -> Result<Tensor> {
    let (mut wide, mut output) = (vec![x.dim(0)], vec![x.dim(0)]);
    let mut dims = vec![0];
    for (i, factor) in size.iter().enumerate() {
        let n = x.dim(i as isize + 1);
        dims.push(wide.len());
        wide.extend([n, *factor]);
        output.push(n.saturating_mul(*factor));
    }
    dims.push(wide.len());
    wide.push(x.dim(-1));
    output.push(x.dim(-1));
    sized(class, "output", &output)?;
    Ok(x.broadcast_in_dim(&Shape::new(&wide), &dims).reshape(output))
}

constructors!(LayerSpec:
    /// `x: T[B, S, C] → T[B, size · S, C]`: repeats each time step. Arguments: [`UpSampling1D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::up_sampling1d, Model};
    /// let layer = up_sampling1d(3);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [100, 8])])?;
    /// assert_eq!(output.shape.dims(), [300, 8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn up_sampling1d(size: usize) = UpSampling1D { size: size.into() };

    /// `x: T[B, H, W, C] → T[B, size · H, size · W, C]`: upsamples images. Arguments: [`UpSampling2D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::up_sampling2d, Model};
    /// let layer = up_sampling2d(2).interpolation("bilinear");
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [14, 14, 8])])?;
    /// assert_eq!(output.shape.dims(), [28, 28, 8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn up_sampling2d(size: impl Into<Sizes<2>>) = UpSampling2D { size: size.into(), ..Default::default() };

    /// `x: T[B, D, H, W, C] → T[B, size · D, size · H, size · W, C]`: repeats each voxel. Arguments: [`UpSampling3D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::up_sampling3d, Model};
    /// let layer = up_sampling3d((1, 2, 2));
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [4, 8, 8, 2])])?;
    /// assert_eq!(output.shape.dims(), [4, 16, 16, 2]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn up_sampling3d(size: impl Into<Sizes<3>>) = UpSampling3D { size: size.into() };
);

setters!(LayerSpec:
    /// Interpolation of UpSampling2D and Resizing: "nearest", "bilinear", "bicubic", "lanczos3" or "lanczos5". The
    /// random image transforms accept only the first two.
    interpolation: impl Into<Value> as Value;
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(up_sampling1d(2), SEQUENCE, &[2, 14, 4], &[], FLAT),
        LayerSample::new(up_sampling2d((2, 3)), IMAGE, &[2, 12, 15, 3], &[], FLAT),
        LayerSample::new(up_sampling2d(2).interpolation("bicubic"), IMAGE, &[2, 12, 10, 3], &[], FLAT),
        LayerSample::new(up_sampling3d((1, 2, 2)), VOLUME, &[2, 3, 8, 6, 2], &[], FLAT),
    ]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "up_sampling1d", "class": "UpSampling1D", "x_shape": [2, 3, 2], "kwargs": {"size": 3}},
    {"name": "up_sampling2d", "class": "UpSampling2D", "x_shape": [1, 3, 2, 2], "kwargs": {"size": [2, 3]}},
    {"name": "up_sampling2d_bilinear", "class": "UpSampling2D", "x_shape": [1, 3, 4, 2], "kwargs": {"size": [3, 2], "interpolation": "bilinear"}},
    {"name": "up_sampling2d_bicubic", "class": "UpSampling2D", "x_shape": [1, 5, 4, 2], "kwargs": {"interpolation": "bicubic"}},
    {"name": "up_sampling2d_lanczos3", "class": "UpSampling2D", "x_shape": [1, 5, 4, 2], "kwargs": {"interpolation": "lanczos3"}},
    {"name": "up_sampling2d_lanczos5", "class": "UpSampling2D", "x_shape": [1, 5, 4, 2], "kwargs": {"interpolation": "lanczos5"}},
    {"name": "up_sampling3d", "class": "UpSampling3D", "x_shape": [1, 2, 1, 2, 2], "kwargs": {"size": [1, 2, 2]}}
]"#;
