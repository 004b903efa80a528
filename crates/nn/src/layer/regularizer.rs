//! L1 and L2 regularization penalties on weights and outputs, by Keras name.

use crate::did_you_mean::unknown;
use crate::json::{Deserialize, Serialize};
use serde::Deserializer;
use serde::de::Error as _;
use serde_json::Value;
use systole_ir::{DType, Result, Tensor};

/// Regularization penalty `w: f32[…] → f32[]`: `l1 · Σ|w| + l2 · Σw²`, added to the loss in training and evaluation.
///
/// Configurations accept `"l1"`, `"l2"` or `"l1_l2"`, each with Keras's 0.01, or a table `{ l1 = 0.001, l2 = 0.0001 }`.
///
/// ```
/// use systole_nn::{layers::dense, Regularizer};
/// assert!(dense(8).kernel_regularizer("l2").check().is_ok());
/// assert!(dense(8).kernel_regularizer(Regularizer { l1: 1e-5, l2: 1e-4 }).check().is_ok());
/// let e = dense(8).kernel_regularizer("l3").check().unwrap_err().to_string();
/// assert!(e.contains("unknown regularizer `l3`"), "{e}");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Regularizer {
    /// Factor of the sum of absolute values.
    pub l1: f64,
    /// Factor of the sum of squares.
    pub l2: f64,
}

impl Regularizer {
    /// Names of regularizers accepted in configurations.
    pub const NAMES: [&'static str; 3] = ["l1", "l2", "l1_l2"];

    fn named(name: &str) -> Result<Regularizer> {
        Ok(match name {
            "l1" => Regularizer { l1: 0.01, l2: 0.0 },
            "l2" => Regularizer { l1: 0.0, l2: 0.01 },
            "l1_l2" => Regularizer { l1: 0.01, l2: 0.01 },
            _ => {
                return Err(unknown(&format!("unknown regularizer `{name}`"), name, &Regularizer::NAMES));
            }
        })
    }

    /// Computes the penalty: `x: T[…] → f32[]`.
    pub(crate) fn of(self, x: &Tensor) -> Tensor {
        let x = x.convert(DType::F32);
        let magnitudes = (self.l1 != 0.0).then(|| x.abs().sum_all() * self.l1);
        let squares = (self.l2 != 0.0).then(|| (&x * &x).sum_all() * self.l2);
        match (magnitudes, squares) {
            (Some(a), Some(b)) => a + b,
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => x.builder().scalar(DType::F32, 0.0),
        }
    }

    /// Whether both factors are finite and at least 0.
    pub(crate) fn is_sound(self) -> bool {
        [self.l1, self.l2].into_iter().all(|f| f.is_finite() && f >= 0.0)
    }
}

impl From<Regularizer> for Value {
    fn from(r: Regularizer) -> Value {
        serde_json::json!({"l1": r.l1, "l2": r.l2})
    }
}

impl<'de> Deserialize<'de> for Regularizer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Regularizer, D::Error> {
        #[derive(Deserialize)]
        #[serde(default, deny_unknown_fields)]
        #[derive(Default)]
        struct Factors {
            l1: f64,
            l2: f64,
        }
        let factors = |value: Value| serde_json::from_value::<Factors>(value).map_err(D::Error::custom);
        let Factors { l1, l2 } = match Value::deserialize(deserializer)? {
            Value::String(name) => return Regularizer::named(&name).map_err(|e| D::Error::custom(said(&e))),
            // The format of Keras's files.
            Value::Object(mut keys) if keys.contains_key("class_name") => {
                factors(keys.remove("config").unwrap_or_default())?
            }
            table => factors(table)?,
        };
        Ok(Regularizer { l1, l2 })
    }
}

/// Formats an error and its hint on one line.
fn said(e: &systole_ir::Error) -> String {
    e.hint_text().map_or(e.what().to_string(), |hint| format!("{}; {hint}", e.what()))
}
