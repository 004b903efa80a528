//! sort: several operands together along one dimension by any comparator.

use super::*;
use std::sync::Arc;

/// `x₀: T₀[…], … → T₀[…], …`. Spec: sort.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Sort {
    /// The dimension to sort along.
    pub dim: usize,
    /// Whether equal elements keep their order.
    pub stable: bool,
    /// `(a₀, b₀, a₁, b₁, …) → bool`: whether a comes before b.
    pub comparator: Arc<Graph>,
}

impl OpRule for Sort {
    fn name(&self) -> &'static str {
        "sort"
    }
    fn infer(&self, _args: &[&TensorType]) -> Result<Outs, Constraint> {
        Err(Constraint::new("-", "is not built yet"))
    }
    fn eval(&self, _cx: &mut EvalCx, _args: &[&Literal], _outs: &Outs) -> Result<Vec<Literal>> {
        systole_base::bug!("not built yet")
    }
    fn vjp(&self, x: &[Tensor], _: &[Tensor], _: &[Option<Tensor>]) -> Vec<Grad> {
        vec![Grad::Zero; x.len()]
    }
    fn lower(&self) -> Lowering {
        Lowering::Move
    }
}
