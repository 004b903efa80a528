//! Weight constraints by Keras name: projections applied after each optimizer step.

use crate::did_you_mean::unknown;
use crate::json::{Deserialize, Serialize};
use std::str::FromStr;
use systole_ir::{Error, Result, Tensor, err};

/// Projection of a weight, `w: f32[…] → f32[…]`, applied after each optimizer step.
///
/// ```
/// use systole_nn::{layers::dense, Constraint};
/// assert!(dense(8).kernel_constraint("non_neg").check().is_ok());
/// assert!(dense(8).kernel_constraint(Constraint::MaxNorm { max_value: 3.0, axis: 0 }).check().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "class_name", content = "config", deny_unknown_fields, from_str)]
pub enum Constraint {
    /// Limits norms along `axis` to `max_value`. Keras: 2, axis 0.
    MaxNorm {
        /// Maximum norm.
        #[serde(default = 2.0)]
        max_value: f64,
        /// Axis along which norms are computed.
        #[serde(default)]
        axis: i64,
    },
    /// Sets negative values to 0.
    NonNeg,
    /// Scales norms along `axis` to 1. Keras: axis 0.
    UnitNorm {
        /// Axis along which norms are computed.
        #[serde(default)]
        axis: i64,
    },
    /// Moves norms along `axis` into `min_value..=max_value`. Keras: 0, 1, rate 1, axis 0.
    MinMaxNorm {
        /// Minimum norm.
        #[serde(default)]
        min_value: f64,
        /// Maximum norm.
        #[serde(default = 1.0)]
        max_value: f64,
        /// Fraction of the correction applied per step.
        #[serde(default = 1.0)]
        rate: f64,
        /// Axis along which norms are computed.
        #[serde(default)]
        axis: i64,
    },
}

/// Keras's epsilon, which avoids division by a zero norm.
const EPSILON: f64 = 1e-7;

impl Constraint {
    /// Names of weight constraints accepted by [`Constraint::from_str`].
    pub const NAMES: [&'static str; 4] = ["max_norm", "non_neg", "unit_norm", "min_max_norm"];

    /// Rejects invalid values for a weight of this rank.
    pub(crate) fn check(self, rank: usize) -> Result<()> {
        let (sound, axis) = match self {
            Constraint::MaxNorm { max_value, axis } => (max_value >= 0.0, axis),
            Constraint::NonNeg => return Ok(()),
            Constraint::UnitNorm { axis } => (true, axis),
            Constraint::MinMaxNorm { min_value, max_value, rate, axis } => {
                (0.0 <= min_value && min_value <= max_value && (0.0..=1.0).contains(&rate), axis)
            }
        };
        if !sound {
            return Err(err!(Config, "invalid values in {self:?}")
                .hint("use norms of at least 0 with min_value at most max_value, and a rate from 0 to 1"));
        }
        match self.dim(axis, rank) {
            Some(_) => Ok(()),
            None => Err(err!(Config, "{self:?} has axis {axis}, but its weight has {rank} dimensions")
                .hint("count axes from 0; −1 is the last")),
        }
    }

    fn dim(self, axis: i64, rank: usize) -> Option<usize> {
        let dim = if axis < 0 { axis.checked_add(i64::try_from(rank).ok()?)? } else { axis };
        usize::try_from(dim).ok().filter(|d| *d < rank)
    }

    /// Applies the constraint: `w: f32[…] → f32[…]`. Requires that [`Constraint::check`] passed.
    pub(crate) fn of(self, w: &Tensor) -> Tensor {
        let along = |axis: i64, f: &dyn Fn(&Tensor) -> Tensor| {
            let dims = [self.dim(axis, w.rank()).unwrap_or(0)];
            let lengths = (w * w).sum(&dims).sqrt();
            w * f(&lengths).broadcast_except(w.shape(), &dims)
        };
        let within = |lengths: &Tensor, low: f64, high: f64| {
            let full = |v| lengths.builder().full(lengths.ty(), v);
            lengths.maximum(&full(low)).minimum(&full(high))
        };
        match self {
            Constraint::MaxNorm { max_value, axis } => {
                along(axis, &|n| within(n, 0.0, max_value) / (n + EPSILON))
            }
            Constraint::NonNeg => w.maximum(&w.zeros_like()),
            Constraint::UnitNorm { axis } => along(axis, &|n| n.ones_like() / (n + EPSILON)),
            Constraint::MinMaxNorm { min_value, max_value, rate, axis } => along(axis, &|n| {
                let wanted = within(n, min_value, max_value) * rate + n * (1.0 - rate);
                wanted / (n + EPSILON)
            }),
        }
    }
}

impl FromStr for Constraint {
    type Err = Error;
    fn from_str(name: &str) -> Result<Constraint> {
        Ok(match name {
            "max_norm" => Constraint::MaxNorm { max_value: 2.0, axis: 0 },
            "non_neg" => Constraint::NonNeg,
            "unit_norm" => Constraint::UnitNorm { axis: 0 },
            "min_max_norm" => Constraint::MinMaxNorm { min_value: 0.0, max_value: 1.0, rate: 1.0, axis: 0 },
            _ => return Err(unknown(&format!("unknown constraint `{name}`"), name, &Constraint::NAMES)),
        })
    }
}

impl From<Constraint> for serde_json::Value {
    fn from(constraint: Constraint) -> serde_json::Value {
        serde_json::to_value(constraint).unwrap_or_default()
    }
}
