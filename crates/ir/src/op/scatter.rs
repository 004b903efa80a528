//! scatter: folds updates into positions that are data.

use super::*;
use std::sync::Arc;
use systole_base::Dims;

/// `x₀: T₀[…], …, indices: I[…], update₀: T₀[…], … → T₀[…], …`. Spec: scatter, whose attribute names these are.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub struct Scatter {
    pub update_window_dims: Dims,
    pub inserted_window_dims: Dims,
    pub input_batching_dims: Dims,
    pub scatter_indices_batching_dims: Dims,
    pub scatter_dims_to_operand_dims: Dims,
    pub index_vector_dim: usize,
    pub indices_are_sorted: bool,
    pub unique_indices: bool,
    /// `(current₀, …, update₀, …) → (new₀, …)` over scalars.
    pub body: Arc<Graph>,
}

impl OpRule for Scatter {
    fn name(&self) -> &'static str {
        "scatter"
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
        Lowering::Fold
    }
}
