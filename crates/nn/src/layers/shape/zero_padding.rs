//! Zeros around sequences and volumes; those around images are in `padding.rs`.

use crate::layer::argument::Edges;
use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::sliding::check_places;
use crate::layers::spec::LayerSpec;

macro_rules! paddings {
    ($($(#[$doc:meta])* $class:ident { $rank:literal })*) => { $(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $class {
            /// Zeros on both sides of each dimension.
            pub padding: Edges<$rank>,
        }

        impl Default for $class {
            fn default() -> $class {
                $class { padding: Edges([[1; 2]; $rank]) }
            }
        }

        impl Arguments for $class {
            fn parity() -> &'static str {
                if $rank == 1 { PARITY } else { "[]" }
            }
        }

        impl Layer for $class {
            fn class_name(&self) -> &'static str {
                stringify!($class)
            }

            fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
                one_input(self, cx, inputs, |cx, x| {
                    check_places(stringify!($class), $rank, x)?;
                    pad(stringify!($class), &cast_floats(cx, x), &self.padding.0)
                })
            }

            fn config(&self) -> Value {
                config_of(self)
            }

            fn lowering(&self) -> Result<Lowering> {
                match $rank {
                    1 | 2 => Ok(Lowering::Padding(self.padding.0.to_vec())),
                    _ => Err(no_operators(self.class_name())),
                }
            }
        }
    )* };
}

paddings!(
    /// `x: T[B, S, C] → T[B, before + S + after, C]`: with zeros before and after.
    ZeroPadding1D { 1 }
    /// `x: T[B, D, H, W, C] → T[B, D', H', W', C]`: with zeros around.
    ZeroPadding3D { 3 }
);

/// `x: T[B, …, C] → T[B, …', C]`.
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

/// `x: T[B, S, C] → T[B, before + S + after, C]`: zeros before and after a sequence. Arguments:
/// [`ZeroPadding1D`].
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::zero_padding1d, Model};
/// let layer = zero_padding1d((2, 0));
/// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [100, 8])])?;
/// assert_eq!(output.shape.dims(), [102, 8]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn zero_padding1d(padding: impl Into<Edges<1>>) -> LayerSpec {
    LayerSpec::of(ZeroPadding1D { padding: padding.into() })
}

/// `x: T[B, D, H, W, C] → T[B, D', H', W', C]`: zeros around a volume. Arguments: [`ZeroPadding3D`].
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::zero_padding3d, Model};
/// let layer = zero_padding3d(1);
/// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [8, 8, 8, 2])])?;
/// assert_eq!(output.shape.dims(), [10, 10, 10, 2]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn zero_padding3d(padding: impl Into<Edges<3>>) -> LayerSpec {
    LayerSpec::of(ZeroPadding3D { padding: padding.into() })
}

/// Layers with inputs that they take and refuse.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(zero_padding1d((1, 2)), SEQUENCE, &[2, 10, 4], &[], FLAT),
        LayerSample::new(zero_padding3d([[0, 1], [2, 1], [0, 0]]), VOLUME, &[2, 4, 7, 3, 2], &[], FLAT),
    ]
}

/// Cases of the parity test, in Keras's terms; `fixtures/keras/generate.py` reads them here.
const PARITY: &str = r#"[
    {"name": "zero_padding1d", "class": "ZeroPadding1D", "x_shape": [2, 3, 2], "kwargs": {"padding": [1, 2]}},
    {"name": "zero_padding3d", "class": "ZeroPadding3D", "x_shape": [1, 2, 1, 2, 2], "kwargs": {"padding": [[1, 0], [0, 2], [1, 1]]}}
]"#;
