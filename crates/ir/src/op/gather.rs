//! gather: slices of an operand at positions that are data.

use super::*;
use smallvec::smallvec;
use systole_base::Dims;

/// `x: T[…], indices: I[…] → T[…]`. Spec: gather, whose attribute names these are.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub struct Gather {
    pub offset_dims: Dims,
    pub collapsed_slice_dims: Dims,
    pub operand_batching_dims: Dims,
    pub start_indices_batching_dims: Dims,
    pub start_index_map: Dims,
    pub index_vector_dim: usize,
    pub slice_sizes: Dims,
    pub indices_are_sorted: bool,
}

impl Gather {
    /// `x: T[N, …], indices: I[…] → T[indices…, …]`: whole rows by number.
    pub fn rows(x: &TensorType, indices_rank: usize) -> Gather {
        let mut slice_sizes: Dims = x.shape.dims().into();
        if let Some(first) = slice_sizes.first_mut() {
            *first = 1;
        }
        Gather {
            offset_dims: (indices_rank..indices_rank + x.rank().saturating_sub(1)).collect(),
            collapsed_slice_dims: smallvec![0],
            operand_batching_dims: smallvec![],
            start_indices_batching_dims: smallvec![],
            start_index_map: smallvec![0],
            index_vector_dim: indices_rank,
            slice_sizes,
            indices_are_sorted: false,
        }
    }
}

impl OpRule for Gather {
    fn name(&self) -> &'static str {
        "gather"
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
