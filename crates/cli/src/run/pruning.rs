//! Pruning report: zeros by layer, removed channels, file size plain and compressed.

use crate::render::screen::grouped;
use serde_json::{Value, json};
use std::path::Path;
use systole_data::format::idx;
use systole_ir::{Error, Literal, Result};
use systole_nn::{Model, RemovedChannels, WeightSparsity};

/// Sparsity and size of a pruned model.
pub(crate) struct PruningReport {
    layers: Vec<WeightSparsity>,
    removed: Vec<RemovedChannels>,
    bytes: usize,
    /// File size with deflate.
    compressed: usize,
}

impl PruningReport {
    pub(crate) fn of(model: &Model, file: &Path, removed: Vec<RemovedChannels>) -> Result<PruningReport> {
        let bytes = std::fs::read(file).map_err(|e| Error::io("cannot read", file, e))?;
        let packed = idx::to_bytes(&Literal::from_slice([bytes.len()], &bytes)?, true)?;
        Ok(PruningReport { layers: model.sparsity()?, removed, bytes: bytes.len(), compressed: packed.len() })
    }

    pub(crate) fn text(&self) -> String {
        let width = self.layers.iter().map(|l| l.path.len()).max().unwrap_or(0);
        let mut text = String::new();
        if !self.removed.is_empty() {
            let one = |r: &RemovedChannels| format!("{} {} of {}", r.layer, r.after, r.before);
            text += "Channels kept: ";
            text += &self.removed.iter().map(one).collect::<Vec<_>>().join(", ");
            text += "\n";
        }
        text += "Zeros after pruning:";
        for layer in &self.layers {
            let part = 100.0 * layer.zeros as f64 / layer.weights.max(1) as f64;
            text += &format!("\n  {:<width$}  {part:5.1} % of {}", layer.path, grouped(layer.weights as u64));
        }
        let size = |bytes: usize| grouped(bytes.div_ceil(1024) as u64);
        text + &format!("\n  file size: {} KiB, {} KiB with deflate", size(self.bytes), size(self.compressed))
    }

    pub(crate) fn json(&self) -> Value {
        let layer = |l: &WeightSparsity| json!({"weight": l.path, "zeros": l.zeros, "weights": l.weights});
        let layers: Vec<Value> = self.layers.iter().map(layer).collect();
        let removed = |r: &RemovedChannels| json!({"layer": r.layer, "before": r.before, "after": r.after});
        let removed: Vec<Value> = self.removed.iter().map(removed).collect();
        json!({"layers": layers, "channels": removed, "file_bytes": self.bytes, "deflated_bytes": self.compressed})
    }
}
