//! Penalties and constraints of a trace.

use crate::layer::constraint::Constraint;
use systole_ir::Tensor;
use systole_runtime::Params;

/// What layers add to the loss, and where their weights are brought back to.
#[derive(Default)]
pub(crate) struct PenaltiesAndConstraints {
    /// By the path of the weight or layer.
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

    /// `f32[]`: the loss with the penalties of paths that are meant; the rest is forgotten.
    pub(crate) fn with_penalties(&mut self, loss: &Tensor, is_meant: impl Fn(&str) -> bool) -> Tensor {
        let all = std::mem::take(&mut self.penalties);
        let meant = all.into_iter().filter(|(path, _)| is_meant(path));
        meant.fold(loss.clone(), |loss, (_, penalty)| loss + penalty)
    }

    /// Weights after a step of the optimizer, where their constraints want them.
    pub(crate) fn constrained(&self, weights: Params) -> Params {
        if self.constraints.is_empty() {
            return weights;
        }
        let of = |name: &str| self.constraints.iter().find(|(path, _)| path == name).map(|(_, c)| *c);
        weights.map(|name, w| of(name).map_or_else(|| w.clone(), |c| c.of(w)))
    }
}
