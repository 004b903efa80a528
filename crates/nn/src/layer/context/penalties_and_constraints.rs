//! Regularization penalties and weight constraints recorded during a layer trace.

use crate::layer::constraint::Constraint;
use systole_ir::Tensor;
use systole_runtime::Params;

/// Penalties that layers add to the loss, and constraints on their weights.
#[derive(Default)]
pub(crate) struct PenaltiesAndConstraints {
    /// Penalties by path of the weight or layer.
    pub(crate) penalties: Vec<(String, Tensor)>,
    constraints: Vec<(String, Constraint)>,
}

impl PenaltiesAndConstraints {
    pub(crate) fn has_some(&self) -> bool {
        !self.penalties.is_empty() || !self.constraints.is_empty()
    }

    pub(crate) fn constrain(&mut self, path: String, constraint: Constraint) {
        self.constraints.retain(|(known, _)| *known != path);
        self.constraints.push((path, constraint));
    }

    /// Returns the loss (`f32[]`) plus the penalties of paths selected by `is_meant`; clears all penalties.
    pub(crate) fn with_penalties(&mut self, loss: &Tensor, is_meant: impl Fn(&str) -> bool) -> Tensor {
        let all = std::mem::take(&mut self.penalties);
        let meant = all.into_iter().filter(|(path, _)| is_meant(path));
        meant.fold(loss.clone(), |loss, (_, penalty)| loss + penalty)
    }

    /// Applies the constraints to weights after an optimizer step.
    pub(crate) fn constrained(&self, weights: Params) -> Params {
        if self.constraints.is_empty() {
            return weights;
        }
        let of = |name: &str| self.constraints.iter().find(|(path, _)| path == name).map(|(_, c)| *c);
        weights.map(|name, w| of(name).map_or_else(|| w.clone(), |c| c.of(w)))
    }
}
