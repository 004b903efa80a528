//! Precision policies: float32, mixed_bfloat16, mixed_float16.

use crate::did_you_mean::unknown;
use crate::json::{Deserialize, Serialize};
use std::str::FromStr;
use systole_ir::{DType, Error, Result};

/// Element types of a model's weights and of its computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// Everything in f32.
    #[default]
    Float32,
    /// f32 weights, bf16 computation.
    #[serde(rename = "mixed_bfloat16")]
    MixedBfloat16,
    /// f32 weights, f16 computation, dynamic loss scaling.
    #[serde(rename = "mixed_float16")]
    MixedFloat16,
}

impl Precision {
    /// Names of precision policies accepted by [`Precision::from_str`].
    pub const NAMES: [&'static str; 3] = ["float32", "mixed_bfloat16", "mixed_float16"];

    /// Element type that layers compute in under this precision policy.
    pub fn compute_dtype(self) -> DType {
        match self {
            Precision::Float32 => DType::F32,
            Precision::MixedBfloat16 => DType::BF16,
            Precision::MixedFloat16 => DType::F16,
        }
    }

    /// Keras name of the precision policy.
    pub fn name(self) -> &'static str {
        match self {
            Precision::Float32 => "float32",
            Precision::MixedBfloat16 => "mixed_bfloat16",
            Precision::MixedFloat16 => "mixed_float16",
        }
    }
}

impl FromStr for Precision {
    type Err = Error;
    fn from_str(name: &str) -> Result<Precision> {
        Ok(match name {
            "float32" => Precision::Float32,
            "mixed_bfloat16" => Precision::MixedBfloat16,
            "mixed_float16" => Precision::MixedFloat16,
            _ => {
                return Err(unknown(&format!("unknown precision policy `{name}`"), name, &Precision::NAMES));
            }
        })
    }
}
