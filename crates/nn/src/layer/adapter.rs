//! LoRA adapters of a layer: rank, alpha, adapted weights and adapter names.

use crate::json::{Deserialize, Serialize};
use crate::layer::quantized_weight::{QuantizedWeightLayout, packed_paths};
use std::collections::BTreeMap;
use systole_ir::{Error, err};

/// LoRA adapters of a layer: `kernel + alpha / rank · A · B`, where only A and B are trainable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Adapters {
    /// Columns of A and rows of B.
    pub(crate) rank: usize,
    /// Scale numerator: A · B is multiplied by `alpha / rank`.
    pub(crate) alpha: f64,
    /// Paths, relative to the layer, of the adapted weights. `None` adapts all adaptable weights.
    #[serde(default)]
    pub(crate) weights: Option<Vec<String>>,
    /// Whether the layer's other weights (biases, normalization) are trainable.
    #[serde(default)]
    pub(crate) others_train: bool,
    /// Frozen weights held as integers in memory (QLoRA), by path relative to the layer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) packed: BTreeMap<String, QuantizedWeightLayout>,
}

impl Adapters {
    /// Whether the weight at `path` in the layer has adapters.
    pub(crate) fn adapts(&self, path: &str) -> bool {
        match &self.weights {
            Some(listed) => listed.iter().any(|known| known == path),
            None => is_adaptable(path),
        }
    }

    /// Whether no weight of the layer is trainable.
    pub(crate) fn freezes_all(&self) -> bool {
        !self.others_train && self.weights.as_ref().is_some_and(Vec::is_empty)
    }

    /// Whether the weight at `path` in the layer is trainable.
    pub(crate) fn trains(&self, path: &str) -> bool {
        is_adapter(path) || self.others_train && !self.adapts(path)
    }

    /// Whether `path` names the integers or scales of a quantized weight of the layer.
    pub(crate) fn is_of_packed(&self, path: &str) -> bool {
        self.packed.keys().any(|known| packed_paths(known).iter().any(|own| own == path))
    }

    /// Factor of A · B: `alpha / rank`.
    pub(crate) fn scale(&self) -> f64 {
        self.alpha / self.rank.max(1) as f64
    }

    /// Shapes of A and B for a weight of this shape, as in Keras: `[…, rank]` and `[rank, out]`.
    pub(crate) fn shapes(&self, shape: &[usize]) -> Option<[Vec<usize>; 2]> {
        let (out, before) = shape.split_last().filter(|(_, before)| !before.is_empty())?;
        Some([before.iter().copied().chain([self.rank]).collect(), vec![self.rank, *out]])
    }
}

/// Whether a weight can have adapters: its path ends in `kernel` or `embeddings`.
pub(crate) fn is_adaptable(path: &str) -> bool {
    ["kernel", "embeddings"].contains(&own_name(path))
}

/// Whether `path` names an adapter.
pub(crate) fn is_adapter(path: &str) -> bool {
    let name = own_name(path).strip_prefix("lora_");
    name.and_then(|n| n.strip_suffix("_a").or(n.strip_suffix("_b"))).is_some_and(is_adaptable)
}

/// Returns the paths of A and B for a weight: `dense/kernel` has `dense/lora_kernel_a`.
pub(crate) fn adapter_paths(path: &str) -> [String; 2] {
    let name = own_name(path);
    let layer = &path[..path.len() - name.len()];
    ["a", "b"].map(|which| format!("{layer}lora_{name}_{which}"))
}

fn own_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Returns the error for layers that cannot have LoRA adapters.
pub(crate) fn no_adapters(class: &str) -> Error {
    err!(Config, "{class} does not support LoRA adapters")
        .because("the layer's kernel is not an input-by-output matrix, or the layer transforms it before use")
        .hint("leave this layer out of enable_lora")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_stand_beside_their_weight() {
        assert_eq!(adapter_paths("a/kernel"), ["a/lora_kernel_a", "a/lora_kernel_b"]);
        assert_eq!(adapter_paths("embeddings")[1], "lora_embeddings_b");
        assert!(is_adapter("a/lora_kernel_a") && !is_adapter("a/lora_bias_a") && !is_adapter("a/kernel"));
    }
}
