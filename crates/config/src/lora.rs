//! `[lora]`: adapters of a saved model's layers train, its own weights stay.

use super::RunConfig;
use super::key_error::KeyError;
use serde::{Deserialize, Serialize};
use systole_nn::LoraOptions;

/// The `lora` table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoraSection {
    /// Columns of `lora_kernel_a` and rows of `lora_kernel_b`.
    #[serde(default = "rank")]
    pub rank: usize,
    /// The product of the adapters is multiplied by `alpha / rank`. Default: the rank
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,
    /// Layers that get adapters, by their path in the model or its last part; `*` stands for anything: `["*query*", "*value*"]`.
    #[serde(default = "all")]
    pub layers: Vec<String>,
    /// Layers that train whole, without adapters, beside a head that is new.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub train: Vec<String>,
}

fn rank() -> usize {
    LoraOptions::default().rank
}

fn all() -> Vec<String> {
    LoraOptions::default().layers
}

impl LoraSection {
    /// With layers that train whole beside those of the table.
    pub fn options(&self, whole: &[String]) -> LoraOptions {
        let train = self.train.iter().chain(whole.iter().filter(|name| !self.train.contains(name)));
        let train = train.cloned().collect();
        LoraOptions { rank: self.rank, alpha: self.alpha, layers: self.layers.clone(), train }
    }
}

impl RunConfig {
    pub(super) fn check_lora(&self) -> Result<(), KeyError> {
        let wrong = self.lora.as_ref().and_then(|section| section.options(&[]).wrong());
        match wrong {
            Some((key, what, hint)) => Err(KeyError::new(&format!("lora.{key}"), what).hint(hint)),
            None if self.lora.is_some() && self.biggan.is_some() => {
                Err(KeyError::new("lora", "there are both lora and biggan").hint("leave one of them out"))
            }
            None => Ok(()),
        }
    }
}
