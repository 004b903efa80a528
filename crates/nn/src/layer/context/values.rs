//! Metadata of the values that a layer trace computes: logits, masks, additional outputs.

use systole_ir::op::OptimizationBarrier;
use systole_ir::{Tensor, ValueId};

/// Metadata of values by value id.
#[derive(Default)]
pub(crate) struct ValueFacts {
    pub(crate) logits: Vec<(ValueId, Tensor)>,
    /// Masks (`bool[B, S]`): which time steps of a value are valid.
    pub(crate) masks: Vec<(ValueId, Tensor)>,
    /// Additional outputs of nested models, keyed by their first output.
    pub(crate) more_outputs: Vec<(ValueId, Vec<Tensor>)>,
}

impl ValueFacts {
    pub(crate) fn logits_of(&self, y: &Tensor) -> Option<Tensor> {
        self.logits.iter().find(|(id, _)| *id == y.id()).map(|(_, x)| x.clone())
    }

    pub(crate) fn mask_of(&self, x: &Tensor) -> Option<Tensor> {
        self.masks.iter().find(|(id, _)| *id == x.id()).map(|(_, mask)| mask.clone())
    }

    pub(crate) fn set_mask(&mut self, x: &Tensor, mask: &Tensor) {
        self.masks.retain(|(id, _)| *id != x.id());
        self.masks.push((x.id(), mask.clone()));
    }

    pub(crate) fn more_outputs_of(&self, x: &Tensor) -> &[Tensor] {
        self.more_outputs.iter().find(|(id, _)| *id == x.id()).map_or(&[], |(_, more)| more)
    }

    pub(crate) fn with_more_outputs(&mut self, mut outputs: Vec<Tensor>) -> Tensor {
        let mut first = outputs.remove(0);
        if outputs.is_empty() {
            return first;
        }
        // A passed-through value may be the first output of two models.
        if self.more_outputs.iter().any(|(id, _)| *id == first.id()) {
            let both = first.builder().emit(OptimizationBarrier { stop_gradient: false }, &[&first]);
            first = both.into_iter().next().unwrap_or(first);
        }
        self.more_outputs.push((first.id(), outputs));
        first
    }
}
