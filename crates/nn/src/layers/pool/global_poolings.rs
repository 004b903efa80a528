//! Global poolings of sequences and volumes: all places become one. Those of images are in `pool.rs`.

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::sliding::check_some_place;
use crate::layers::spec::LayerSpec;

macro_rules! global_poolings {
    ($($(#[$doc:meta])* $class:ident { $rank:literal, $fold:ident, $max:literal })*) => { $(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $class {
            /// Whether the dimensions of places stay, as 1. Default: false.
            pub keepdims: bool,
        }

        impl Arguments for $class {
            fn parity() -> &'static str {
                if stringify!($class) == "GlobalMaxPooling1D" { PARITY } else { "[]" }
            }
        }

        impl Layer for $class {
            fn class_name(&self) -> &'static str {
                stringify!($class)
            }

            fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
                one_input(self, cx, inputs, |cx, x| {
                    check_some_place(stringify!($class), $rank, x)?;
                    let places: Vec<usize> = (1..=$rank).collect();
                    let y = $fold(cx, x, &places);
                    if self.keepdims {
                        return Ok(y.reshape([&[x.dim(0)], [1; $rank].as_slice(), &[x.dim(-1)]].concat()));
                    }
                    Ok(y)
                })
            }

            fn config(&self) -> Value {
                config_of(self)
            }

            fn lowering(&self) -> Result<Lowering> {
                if $rank != 1 {
                    return Err(no_operators(self.class_name()));
                }
                Ok(Lowering::GlobalPooling { max: $max })
            }
        }
    )* };
}

fn greatest(cx: &Cx, x: &Tensor, places: &[usize]) -> Tensor {
    cast(cx, x).reduce_max(places)
}

/// In f32: sums of half-precision numbers lose digits and overflow.
fn mean(cx: &Cx, x: &Tensor, places: &[usize]) -> Tensor {
    if let Some(mask) = cx.mask_of(x).filter(|mask| mask.shape().dims() == &x.shape()[..places.len() + 1]) {
        return mean_of_counted(cx, x, &mask, places);
    }
    cast(cx, &cast(cx, x).convert(DType::F32).mean(places))
}

/// Of the places that count: `mask: bool[B, S]`.
fn mean_of_counted(cx: &Cx, x: &Tensor, mask: &Tensor, places: &[usize]) -> Tensor {
    let x32 = cast(cx, x).convert(DType::F32);
    let dims: Vec<usize> = (0..mask.rank()).collect();
    let counted = mask.broadcast_in_dim(x32.shape(), &dims).select(&x32, &x32.zeros_like());
    let count = mask.convert(DType::F32).sum(places);
    let sum = counted.sum(places);
    cast(cx, &(&sum / count.broadcast_in_dim(sum.shape(), &[0])))
}

global_poolings!(
    /// `x: T[B, S, C] → T[B, C]`, or `T[B, 1, C]` with `keepdims`: the greatest value of each channel.
    GlobalMaxPooling1D { 1, greatest, true }
    /// `x: T[B, S, C] → T[B, C]`, or `T[B, 1, C]` with `keepdims`: the mean of each channel.
    GlobalAveragePooling1D { 1, mean, false }
    /// `x: T[B, D, H, W, C] → T[B, C]`, or `T[B, 1, 1, 1, C]` with `keepdims`: the greatest value of each channel.
    GlobalMaxPooling3D { 3, greatest, true }
    /// `x: T[B, D, H, W, C] → T[B, C]`, or `T[B, 1, 1, 1, C]` with `keepdims`: the mean of each channel.
    GlobalAveragePooling3D { 3, mean, false }
);

/// `x: T[B, S, C] → T[B, C]`: the greatest value of each channel. Arguments: [`GlobalMaxPooling1D`].
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::global_max_pooling1d, Model};
/// let layer = global_max_pooling1d();
/// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [100, 8])])?;
/// assert_eq!(output.shape.dims(), [8]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn global_max_pooling1d() -> LayerSpec {
    LayerSpec::of(GlobalMaxPooling1D::default())
}

/// `x: T[B, S, C] → T[B, C]`: the mean of each channel. Arguments: [`GlobalAveragePooling1D`].
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::global_average_pooling1d, Model};
/// let layer = global_average_pooling1d();
/// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [100, 8])])?;
/// assert_eq!(output.shape.dims(), [8]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn global_average_pooling1d() -> LayerSpec {
    LayerSpec::of(GlobalAveragePooling1D::default())
}

/// `x: T[B, D, H, W, C] → T[B, C]`: the greatest value of each channel. Arguments: [`GlobalMaxPooling3D`].
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::global_max_pooling3d, Model};
/// let layer = global_max_pooling3d();
/// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [4, 8, 8, 2])])?;
/// assert_eq!(output.shape.dims(), [2]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn global_max_pooling3d() -> LayerSpec {
    LayerSpec::of(GlobalMaxPooling3D::default())
}

/// `x: T[B, D, H, W, C] → T[B, C]`: the mean of each channel. Arguments: [`GlobalAveragePooling3D`].
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::global_average_pooling3d, Model};
/// let layer = global_average_pooling3d();
/// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [4, 8, 8, 2])])?;
/// assert_eq!(output.shape.dims(), [2]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn global_average_pooling3d() -> LayerSpec {
    LayerSpec::of(GlobalAveragePooling3D::default())
}

/// Layers with inputs that they take and refuse.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(global_max_pooling1d(), SEQUENCE, &[2, 4], &[], Some(&[2, 0, 4])),
        LayerSample::new(global_average_pooling1d().keepdims(true), SEQUENCE, &[2, 1, 4], &[], FLAT),
        LayerSample::new(global_max_pooling3d().keepdims(true), VOLUME, &[2, 1, 1, 1, 2], &[], FLAT),
        LayerSample::new(global_average_pooling3d(), VOLUME, &[2, 2], &[], Some(IMAGE)),
    ]
}

/// Cases of the parity test, in Keras's terms; `fixtures/keras/generate.py` reads them here.
const PARITY: &str = r#"[
    {"name": "global_max_pool1d", "class": "GlobalMaxPooling1D", "x_shape": [2, 5, 2], "kwargs": {}},
    {"name": "global_average_pool1d", "class": "GlobalAveragePooling1D", "x_shape": [2, 5, 2], "kwargs": {"keepdims": true}},
    {"name": "global_max_pool3d", "class": "GlobalMaxPooling3D", "x_shape": [1, 2, 3, 2, 2], "kwargs": {"keepdims": true}},
    {"name": "global_average_pool3d", "class": "GlobalAveragePooling3D", "x_shape": [1, 2, 3, 2, 2], "kwargs": {}}
]"#;
