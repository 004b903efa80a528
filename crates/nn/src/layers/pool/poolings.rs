//! Poolings of sequences and volumes: each window becomes one place. Those of images are in `pool.rs`.

use super::pool2d::{fold_windows, mean_of_windows, windows};
use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::sliding::check_places;
use crate::layers::spec::LayerSpec;
use systole_ir::op::Monoid;

macro_rules! poolings {
    ($($(#[$doc:meta])* $class:ident { $rank:literal, $fold:ident, $max:literal })*) => { $(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $class {
            /// Size of the window along each dimension of places; 2 each unless given.
            pub pool_size: Sizes<$rank>,
            /// Steps of the window. Default: `pool_size`.
            pub strides: Option<Sizes<$rank>>,
            /// What happens at the border. Default: "valid".
            pub padding: Padding,
        }

        impl Default for $class {
            fn default() -> $class {
                $class { pool_size: Sizes([2; $rank]), strides: None, padding: Padding::Valid }
            }
        }

        impl Arguments for $class {
            fn check(&self) -> Result<()> {
                let strides = self.strides.map(|s| s.0.to_vec());
                windows(stringify!($class), &self.pool_size.0, strides, self.padding).check()
            }

            fn parity() -> &'static str {
                if stringify!($class) == "MaxPooling1D" { PARITY } else { "[]" }
            }
        }

        impl Layer for $class {
            fn class_name(&self) -> &'static str {
                stringify!($class)
            }

            fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
                one_input(self, cx, inputs, |cx, x| {
                    check_places(stringify!($class), $rank, x)?;
                    let strides = self.strides.map(|s| s.0.to_vec());
                    let sliding = windows(stringify!($class), &self.pool_size.0, strides, self.padding);
                    let padding = sliding.padding_for(x)?;
                    Ok($fold(cx, x, &sliding, &padding))
                })
            }

            fn config(&self) -> Value {
                config_of(self)
            }

            fn lowering(&self) -> Result<Lowering> {
                if $rank != 1 {
                    return Err(no_operators(self.class_name()));
                }
                Ok(Lowering::Pooling {
                    max: $max,
                    size: self.pool_size.0.to_vec(),
                    strides: self.strides.unwrap_or(self.pool_size).0.to_vec(),
                    padding: self.padding,
                })
            }
        }
    )* };
}

fn greatest(cx: &Cx, x: &Tensor, s: &crate::layers::sliding::Sliding, padding: &[[i64; 2]]) -> Tensor {
    fold_windows(&cast(cx, x), s, padding, Monoid::Maximum)
}

poolings!(
    /// `x: T[B, S, C] → T[B, S', C]`: the greatest step of each window, for each channel.
    ///
    /// With `padding` "valid", `S' = ⌊(S − p) / stride⌋ + 1`; with "same", `⌈S / stride⌉`, and what lies outside never wins.
    MaxPooling1D { 1, greatest, true }
    /// `x: T[B, S, C] → T[B, S', C]`: the mean step of each window, for each channel.
    ///
    /// Sizes are those of [`MaxPooling1D`]. With `padding` "same", what lies outside is left out of the mean.
    AveragePooling1D { 1, mean_of_windows, false }
    /// `x: T[B, D, H, W, C] → T[B, D', H', W', C]`: the greatest place of each window, for each channel.
    ///
    /// Sizes are those of [`MaxPooling1D`].
    MaxPooling3D { 3, greatest, true }
    /// `x: T[B, D, H, W, C] → T[B, D', H', W', C]`: the mean place of each window, for each channel.
    ///
    /// Sizes are those of [`MaxPooling1D`]. With `padding` "same", what lies outside is left out of the mean.
    AveragePooling3D { 3, mean_of_windows, false }
);

/// `x: T[B, S, C] → T[B, S', C]`: the greatest value of each window. Arguments: [`MaxPooling1D`].
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::max_pooling1d, Model};
/// let layer = max_pooling1d(2);
/// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [100, 8])])?;
/// assert_eq!(output.shape.dims(), [50, 8]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn max_pooling1d(pool_size: usize) -> LayerSpec {
    LayerSpec::of(MaxPooling1D { pool_size: pool_size.into(), ..Default::default() })
}

/// `x: T[B, S, C] → T[B, S', C]`: the mean of each window. Arguments: [`AveragePooling1D`].
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::average_pooling1d, Model};
/// let layer = average_pooling1d(2);
/// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [100, 8])])?;
/// assert_eq!(output.shape.dims(), [50, 8]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn average_pooling1d(pool_size: usize) -> LayerSpec {
    LayerSpec::of(AveragePooling1D { pool_size: pool_size.into(), ..Default::default() })
}

/// `x: T[B, D, H, W, C] → T[B, D', H', W', C]`: the greatest value of each window. Arguments:
/// [`MaxPooling3D`].
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::max_pooling3d, Model};
/// let layer = max_pooling3d(2);
/// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [8, 8, 8, 2])])?;
/// assert_eq!(output.shape.dims(), [4, 4, 4, 2]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn max_pooling3d(pool_size: impl Into<Sizes<3>>) -> LayerSpec {
    LayerSpec::of(MaxPooling3D { pool_size: pool_size.into(), ..Default::default() })
}

/// `x: T[B, D, H, W, C] → T[B, D', H', W', C]`: the mean of each window. Arguments: [`AveragePooling3D`].
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::average_pooling3d, Model};
/// let layer = average_pooling3d(2);
/// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [8, 8, 8, 2])])?;
/// assert_eq!(output.shape.dims(), [4, 4, 4, 2]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn average_pooling3d(pool_size: impl Into<Sizes<3>>) -> LayerSpec {
    LayerSpec::of(AveragePooling3D { pool_size: pool_size.into(), ..Default::default() })
}

/// Layers with inputs that they take and refuse.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(max_pooling1d(2), SEQUENCE, &[2, 3, 4], &[], Some(&[2, 1, 4])),
        LayerSample::new(average_pooling1d(3).strides(2).padding("same"), SEQUENCE, &[2, 4, 4], &[], FLAT),
        LayerSample::new(max_pooling3d((1, 2, 2)).padding("same"), VOLUME, &[2, 3, 2, 2, 2], &[], FLAT),
        LayerSample::new(average_pooling3d(2), VOLUME, &[2, 1, 2, 1, 2], &[], Some(&[2, 1, 4, 3, 2])),
    ]
}

/// Cases of the parity test, in Keras's terms; `fixtures/keras/generate.py` reads them here.
const PARITY: &str = r#"[
    {"name": "max_pool1d", "class": "MaxPooling1D", "x_shape": [2, 7, 2], "kwargs": {"pool_size": 2}},
    {"name": "max_pool1d_same_s2", "class": "MaxPooling1D", "x_shape": [2, 7, 2], "kwargs": {"pool_size": 3, "strides": 2, "padding": "same"}},
    {"name": "average_pool1d", "class": "AveragePooling1D", "x_shape": [2, 7, 2], "kwargs": {"pool_size": 3, "strides": 1}},
    {"name": "average_pool1d_same", "class": "AveragePooling1D", "x_shape": [2, 7, 2], "kwargs": {"pool_size": 2, "padding": "same"}},
    {"name": "max_pool3d", "class": "MaxPooling3D", "x_shape": [1, 4, 3, 4, 2], "kwargs": {"pool_size": [1, 2, 2]}},
    {"name": "average_pool3d_same", "class": "AveragePooling3D", "x_shape": [1, 4, 3, 4, 2], "kwargs": {"pool_size": 2, "strides": 1, "padding": "same"}}
]"#;
