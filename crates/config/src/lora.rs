//! `[lora]`: LoRA fine-tuning of a saved model: trains low-rank adapters and freezes the model's weights.

use super::RunConfig;
use super::key_error::KeyError;
use serde::{Deserialize, Serialize};
use systole_data::with_defaults;
use systole_ir::Result;
use systole_nn::LoraOptions;

with_defaults! {
    /// The `[lora]` table: low-rank adapters.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct LoraSection {
        /// Rank of the adapters: columns of `lora_kernel_a` and rows of `lora_kernel_b`.
        pub rank: usize = LoraOptions::default().rank,
        /// Scale of the adapters: their product is multiplied by `alpha / rank`. Default: the rank
        pub alpha: Option<f64> = None,
        /// Layers that get adapters, by path or last path component; `*` is a wildcard: `["*query*", "*value*"]`.
        pub layers: Vec<String> = LoraOptions::default().layers,
        /// Layers to train fully, without adapters, in addition to a new head.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub train: Vec<String> = Vec::new(),
    }
}

impl LoraSection {
    /// Returns the options, with `whole` as additional fully trained layers.
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
            Some((key, what, hint)) => Err(KeyError::new(&format!("lora.{key}"), what).hint_setting(hint)),
            None if self.lora.is_some() && self.biggan.is_some() => {
                Err(KeyError::new("lora", "lora cannot be combined with biggan")
                    .hint_setting("remove [lora]: it does not apply to BigGAN"))
            }
            None => Ok(()),
        }
    }
}
