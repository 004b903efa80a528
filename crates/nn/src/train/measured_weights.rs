//! Identifies the weights that a validation measured, without keeping them alive.

use crate::model::Model;
use std::sync::Weak;
use systole_runtime::DeviceData;

/// Storage of all weights at the time of a validation.
#[derive(Default)]
pub(crate) struct MeasuredWeights(Vec<Weak<dyn DeviceData>>);

impl MeasuredWeights {
    pub(crate) fn of(model: &Model) -> MeasuredWeights {
        let state = &model.state;
        MeasuredWeights(state.trainable.iter().chain(state.frozen.iter()).map(|(_, w)| w.storage()).collect())
    }

    /// Whether the model still has these weights, in the same storage. `false` if nothing was measured.
    pub(crate) fn are_those_of(&self, model: &Model) -> bool {
        let now = MeasuredWeights::of(model).0;
        let is_same = |(a, b): (&Weak<dyn DeviceData>, &Weak<dyn DeviceData>)| a.ptr_eq(b);
        !now.is_empty() && now.len() == self.0.len() && self.0.iter().zip(&now).all(is_same)
    }
}
