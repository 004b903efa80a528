//! Borders around images.

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::sliding::check_images;
use crate::layers::spec::LayerSpec;
use serde::de::Error as _;
use serde::{Deserializer, Serializer};

/// Rows above and below, columns left and right: `1`, `(1, 2)` for both sides each, or all four.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Borders {
    /// Above and below.
    pub rows: Pair,
    /// Left and right.
    pub columns: Pair,
}

impl From<usize> for Borders {
    fn from(all: usize) -> Borders {
        Borders::from((all, all))
    }
}

impl From<(usize, usize)> for Borders {
    fn from((rows, columns): (usize, usize)) -> Borders {
        Borders { rows: rows.into(), columns: columns.into() }
    }
}

impl From<((usize, usize), (usize, usize))> for Borders {
    fn from((rows, columns): ((usize, usize), (usize, usize))) -> Borders {
        Borders { rows: rows.into(), columns: columns.into() }
    }
}

impl Serialize for Borders {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        [self.rows, self.columns].serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Borders {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Borders, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let sides = serde_json::from_value::<Pair>(value.clone()).ok().map(|p| Borders::from((p.0, p.1)));
        let sides = sides.or_else(|| {
            let [rows, columns] = serde_json::from_value(value).ok()?;
            Some(Borders { rows, columns })
        });
        sides.ok_or_else(|| {
            D::Error::custom("it takes a size, two, or two pairs: 1, [1, 2] or [[0, 1], [0, 1]]")
        })
    }
}

/// `x: T[B, H, W, C] → T[B, top + H + bottom, left + W + right, C]`: with a border of zeros.
///
/// ```
/// use systole_nn::layers::zero_padding2d;
/// assert!(zero_padding2d(3).check().is_ok());
/// assert!(zero_padding2d(((0, 1), (0, 1))).check().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ZeroPadding2D {
    /// Width of the border. Default: `[[1, 1], [1, 1]]`.
    pub padding: Borders,
}

impl Default for ZeroPadding2D {
    fn default() -> ZeroPadding2D {
        ZeroPadding2D { padding: Borders::from(1) }
    }
}

impl Arguments for ZeroPadding2D {}

impl Layer for ZeroPadding2D {
    fn class_name(&self) -> &'static str {
        "ZeroPadding2D"
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        one_input(self, cx, inputs, |cx, x| {
            check_images("ZeroPadding2D", x)?;
            let x = cast_floats(cx, x);
            let (Pair(top, bottom), Pair(left, right)) = (self.padding.rows, self.padding.columns);
            let [low, high] = [[top, left], [bottom, right]].map(|[h, w]| [0, h as i64, w as i64, 0]);
            Ok(x.pad(&x.scalar_like(0.0), &low, &high, &[0; 4]))
        })
    }

    fn config(&self) -> Value {
        config_of(self)
    }

    fn lowering(&self) -> Result<Lowering> {
        let Borders { rows, columns } = self.padding;
        Ok(Lowering::Padding(vec![rows.dims(), columns.dims()]))
    }
}

/// `x: T[B, H, W, C] → T[B, top + H + bottom, left + W + right, C]`: a border of zeros around pictures. Arguments:
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
#[track_caller]
pub fn zero_padding2d(padding: impl Into<Borders>) -> LayerSpec {
    LayerSpec::of(ZeroPadding2D { padding: padding.into() })
}

/// Layers with inputs that they take and refuse.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![LayerSample::new(zero_padding2d(((0, 1), (2, 3))), IMAGE, &[2, 7, 10, 3], &[], FLAT)]
}
