//! What a layer knows of its low-rank adapters: which weights have them, and how they are called.

use crate::layer::quantized_weight::{QuantizedWeightLayout, packed_paths};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use systole_ir::{Error, ErrorKind};

/// The adapters of a layer: `kernel + alpha / rank · A · B`, where only A and B train.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Adapters {
    /// Columns of A and rows of B.
    pub(crate) rank: usize,
    /// What the product is multiplied by, over the rank.
    pub(crate) alpha: f64,
    /// Paths in the layer of the weights that have adapters; none given: all that can.
    #[serde(default)]
    pub(crate) weights: Option<Vec<String>>,
    /// Whether the layer's other weights train: biases, normalisations.
    #[serde(default)]
    pub(crate) others_train: bool,
    /// Weights of the layer, by their path in it, that are whole numbers in memory and stay as they are.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) packed: BTreeMap<String, QuantizedWeightLayout>,
}

impl Adapters {
    /// Whether the weight of this path in the layer has adapters.
    pub(crate) fn adapts(&self, path: &str) -> bool {
        match &self.weights {
            Some(listed) => listed.iter().any(|known| known == path),
            None => is_adaptable(path),
        }
    }

    /// Whether nothing of the layer trains.
    pub(crate) fn freezes_all(&self) -> bool {
        !self.others_train && self.weights.as_ref().is_some_and(Vec::is_empty)
    }

    /// Whether the weight of this path in the layer trains.
    pub(crate) fn trains(&self, path: &str) -> bool {
        is_adapter(path) || self.others_train && !self.adapts(path)
    }

    /// Whether the weight of this path in the layer is whole numbers or scales of one that is packed.
    pub(crate) fn is_of_packed(&self, path: &str) -> bool {
        self.packed.keys().any(|known| packed_paths(known).iter().any(|own| own == path))
    }

    /// What A · B is multiplied by.
    pub(crate) fn scale(&self) -> f64 {
        self.alpha / self.rank.max(1) as f64
    }

    /// Shapes of A and B for a weight of this shape, as Keras has them: `[…, rank]` and `[rank, out]`.
    pub(crate) fn shapes(&self, shape: &[usize]) -> Option<[Vec<usize>; 2]> {
        let (out, before) = shape.split_last().filter(|(_, before)| !before.is_empty())?;
        Some([before.iter().copied().chain([self.rank]).collect(), vec![self.rank, *out]])
    }
}

/// Whether a weight is one of those that can have adapters: `kernel` or `embeddings`, by its path.
pub(crate) fn is_adaptable(path: &str) -> bool {
    ["kernel", "embeddings"].contains(&own_name(path))
}

/// Whether a path is that of an adapter.
pub(crate) fn is_adapter(path: &str) -> bool {
    let name = own_name(path).strip_prefix("lora_");
    name.and_then(|n| n.strip_suffix("_a").or(n.strip_suffix("_b"))).is_some_and(is_adaptable)
}

/// Paths of A and B beside the weight of a path: `dense/kernel` has `dense/lora_kernel_a`.
pub(crate) fn adapter_paths(path: &str) -> [String; 2] {
    let name = own_name(path);
    let layer = &path[..path.len() - name.len()];
    ["a", "b"].map(|which| format!("{layer}lora_{name}_{which}"))
}

fn own_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The error of layers whose kernel is no matrix of what goes in by what comes out, or is changed before it is used.
pub(crate) fn no_adapters(class: &str) -> Error {
    Error::new(ErrorKind::Config, format!("{class} can have no adapters"))
        .because("its kernel is no matrix of what goes in by what comes out, or is changed before it is used")
        .hint("leave enable_lora out there")
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
