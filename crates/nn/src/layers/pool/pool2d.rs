//! Poolings: each window of an image, or the whole image, becomes one pixel.

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::sliding::{Sliding, check_images, check_some_place};
use crate::layers::spec::LayerSpec;
use crate::setters::setters;
use systole_ir::Literal;
use systole_ir::op::{Monoid, Window};

/// `x: T[B, H, W, C] → T[B, H', W', C]`: the greatest pixel of each window, for each channel.
///
/// With `padding` "valid", `H' = ⌊(H − ph) / stride⌋ + 1`; with "same", `⌈H / stride⌉`, and what lies outside the
/// image never wins.
///
/// ```
/// use systole_nn::layers::max_pooling2d;
/// assert!(max_pooling2d((2, 2)).padding("same").check().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MaxPooling2D {
    /// Height and width of the window. Default: (2, 2).
    pub pool_size: Pair,
    /// Steps of the window. Default: `pool_size`.
    pub strides: Option<Pair>,
    /// What happens at the border. Default: "valid".
    pub padding: Padding,
}

impl Default for MaxPooling2D {
    fn default() -> MaxPooling2D {
        MaxPooling2D { pool_size: Pair(2, 2), strides: None, padding: Padding::Valid }
    }
}

impl Arguments for MaxPooling2D {
    fn check(&self) -> Result<()> {
        pooling("MaxPooling2D", self.pool_size, self.strides, self.padding).check()
    }
}

impl Layer for MaxPooling2D {
    fn class_name(&self) -> &'static str {
        "MaxPooling2D"
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        one_input(self, cx, inputs, |cx, x| {
            check_images("MaxPooling2D", x)?;
            let sliding = pooling("MaxPooling2D", self.pool_size, self.strides, self.padding);
            let padding = sliding.padding_for(x)?;
            Ok(fold_windows(&cast(cx, x), &sliding, &padding, Monoid::Maximum))
        })
    }

    fn config(&self) -> Value {
        config_of(self)
    }

    fn lowering(&self) -> Result<Lowering> {
        Ok(Lowering::Pooling {
            max: true,
            size: self.pool_size.dims().to_vec(),
            strides: self.strides.unwrap_or(self.pool_size).dims().to_vec(),
            padding: self.padding,
        })
    }
}

/// `x: T[B, H, W, C] → T[B, H', W', C]`: the mean pixel of each window, for each channel.
///
/// Sizes are those of [`MaxPooling2D`]. With `padding` "same", what lies outside the image is left out of the mean.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AveragePooling2D {
    /// Height and width of the window. Default: (2, 2).
    pub pool_size: Pair,
    /// Steps of the window. Default: `pool_size`.
    pub strides: Option<Pair>,
    /// What happens at the border. Default: "valid".
    pub padding: Padding,
}

impl Default for AveragePooling2D {
    fn default() -> AveragePooling2D {
        AveragePooling2D { pool_size: Pair(2, 2), strides: None, padding: Padding::Valid }
    }
}

impl Arguments for AveragePooling2D {
    fn check(&self) -> Result<()> {
        pooling("AveragePooling2D", self.pool_size, self.strides, self.padding).check()
    }
}

impl Layer for AveragePooling2D {
    fn class_name(&self) -> &'static str {
        "AveragePooling2D"
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        one_input(self, cx, inputs, |cx, x| {
            check_images("AveragePooling2D", x)?;
            let sliding = pooling("AveragePooling2D", self.pool_size, self.strides, self.padding);
            let padding = sliding.padding_for(x)?;
            Ok(mean_of_windows(cx, x, &sliding, &padding))
        })
    }

    fn config(&self) -> Value {
        config_of(self)
    }

    fn lowering(&self) -> Result<Lowering> {
        Ok(Lowering::Pooling {
            max: false,
            size: self.pool_size.dims().to_vec(),
            strides: self.strides.unwrap_or(self.pool_size).dims().to_vec(),
            padding: self.padding,
        })
    }
}

fn pooling(class: &'static str, size: Pair, strides: Option<Pair>, padding: Padding) -> Sliding {
    windows(class, &size.dims(), strides.map(|s| s.dims().to_vec()), padding)
}

/// The window of a pooling; without strides it moves by its own size.
pub(in crate::layers) fn windows(
    class: &'static str,
    size: &[usize],
    strides: Option<Vec<usize>>,
    padding: Padding,
) -> Sliding {
    Sliding {
        class,
        argument: "pool_size",
        size: size.to_vec(),
        strides: strides.unwrap_or(size.to_vec()),
        dilation: vec![1; size.len()],
        padding,
    }
}

/// `x: T[B, …, C] → T[B, …', C]`: each window folded by `monoid`.
pub(in crate::layers) fn fold_windows(
    x: &Tensor,
    s: &Sliding,
    padding: &[[i64; 2]],
    monoid: Monoid,
) -> Tensor {
    let around = |inner: &[usize]| [&[1], inner, &[1]].concat();
    let padding = [&[[0, 0]], padding, &[[0, 0]]].concat();
    let window = Window::new(&around(&s.size), &around(&s.strides), &padding);
    let identity = Literal::splat(TensorType::scalar(x.dtype()), monoid.identity(x.dtype()));
    let init = x.builder().constant(identity);
    Tensor::reduce_window(&[x], &[&init], window, monoid.body(x.dtype())).remove(0)
}

/// `x: T[B, …, C] → T[B, …', C]`: the mean of what lies in each window.
pub(in crate::layers) fn mean_of_windows(cx: &Cx, x: &Tensor, s: &Sliding, padding: &[[i64; 2]]) -> Tensor {
    // Sums of half-precision numbers lose digits and overflow: fold in f32.
    let wide = cast(cx, x).convert(DType::F32);
    let sum = fold_windows(&wide, s, padding, Monoid::Add);
    cast(cx, &(sum / s.counts(&wide, padding)))
}

/// `x: T[B, H, W, C] → T[B, C]`, or `T[B, 1, 1, C]` with `keepdims`: the mean of each channel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GlobalAveragePooling2D {
    /// Whether height and width stay, as 1. Default: false.
    pub keepdims: bool,
}

impl Arguments for GlobalAveragePooling2D {}

impl Layer for GlobalAveragePooling2D {
    fn class_name(&self) -> &'static str {
        "GlobalAveragePooling2D"
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        one_input(self, cx, inputs, |cx, x| {
            check_some_place("GlobalAveragePooling2D", 2, x)?;
            let mean = cast(cx, x).convert(DType::F32).mean(&[1, 2]);
            Ok(with_dims(&cast(cx, &mean), self.keepdims))
        })
    }

    fn config(&self) -> Value {
        config_of(self)
    }

    fn lowering(&self) -> Result<Lowering> {
        Ok(Lowering::GlobalPooling { max: false })
    }
}

/// `x: T[B, H, W, C] → T[B, C]`, or `T[B, 1, 1, C]` with `keepdims`: the greatest value of each channel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GlobalMaxPooling2D {
    /// Whether height and width stay, as 1. Default: false.
    pub keepdims: bool,
}

impl Arguments for GlobalMaxPooling2D {
    fn parity() -> &'static str {
        PARITY
    }
}

impl Layer for GlobalMaxPooling2D {
    fn class_name(&self) -> &'static str {
        "GlobalMaxPooling2D"
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        one_input(self, cx, inputs, |cx, x| {
            check_some_place("GlobalMaxPooling2D", 2, x)?;
            Ok(with_dims(&cast(cx, x).reduce_max(&[1, 2]), self.keepdims))
        })
    }

    fn config(&self) -> Value {
        config_of(self)
    }

    fn lowering(&self) -> Result<Lowering> {
        Ok(Lowering::GlobalPooling { max: true })
    }
}

fn with_dims(x: &Tensor, keepdims: bool) -> Tensor {
    if keepdims { x.reshape([x.dim(0), 1, 1, x.dim(1)]) } else { x.clone() }
}

/// `x: T[B, H, W, C] → T[B, H', W', C]`: the greatest value of each window. Arguments: [`MaxPooling2D`].
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::max_pooling2d, Model};
/// let layer = max_pooling2d((2, 2));
/// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [28, 28, 8])])?;
/// assert_eq!(output.shape.dims(), [14, 14, 8]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn max_pooling2d(pool_size: impl Into<Pair>) -> LayerSpec {
    LayerSpec::of(MaxPooling2D { pool_size: pool_size.into(), ..Default::default() })
}

/// `x: T[B, H, W, C] → T[B, H', W', C]`: the mean of each window. Arguments: [`AveragePooling2D`].
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::average_pooling2d, Model};
/// let layer = average_pooling2d(2);
/// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [28, 28, 8])])?;
/// assert_eq!(output.shape.dims(), [14, 14, 8]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn average_pooling2d(pool_size: impl Into<Pair>) -> LayerSpec {
    LayerSpec::of(AveragePooling2D { pool_size: pool_size.into(), ..Default::default() })
}

/// `x: T[B, H, W, C] → T[B, C]`: the greatest value of each channel. Arguments: [`GlobalMaxPooling2D`].
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::global_max_pooling2d, Model};
/// let layer = global_max_pooling2d();
/// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [7, 7, 64])])?;
/// assert_eq!(output.shape.dims(), [64]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn global_max_pooling2d() -> LayerSpec {
    LayerSpec::of(GlobalMaxPooling2D::default())
}

/// `x: T[B, H, W, C] → T[B, C]`: the mean of each channel. Arguments: [`GlobalAveragePooling2D`].
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::global_average_pooling2d, Model};
/// let layer = global_average_pooling2d();
/// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [7, 7, 64])])?;
/// assert_eq!(output.shape.dims(), [64]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn global_average_pooling2d() -> LayerSpec {
    LayerSpec::of(GlobalAveragePooling2D::default())
}

setters!(LayerSpec:
    /// Whether a global pooling keeps the dimensions of places as 1.
    keepdims: bool as bool;
);

/// Layers with inputs that they take and refuse.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(max_pooling2d((2, 2)), IMAGE, &[2, 3, 2, 3], &[], Some(&[2, 1, 5, 3])),
        LayerSample::new(average_pooling2d(2).padding("same"), IMAGE, &[2, 3, 3, 3], &[], FLAT),
        LayerSample::new(global_average_pooling2d(), IMAGE, &[2, 3], &[], Some(&[2, 0, 5, 3])),
        LayerSample::new(global_max_pooling2d().keepdims(true), IMAGE, &[2, 1, 1, 3], &[], FLAT),
    ]
}

/// Cases of the parity test, in Keras's terms; `fixtures/keras/generate.py` reads them here.
const PARITY: &str = r#"[
    {"name": "global_max2d", "class": "GlobalMaxPooling2D", "x_shape": [2, 5, 4, 3], "kwargs": {}},
    {"name": "global_max2d_keepdims", "class": "GlobalMaxPooling2D", "x_shape": [2, 5, 4, 3], "kwargs": {"keepdims": true}}
]"#;
