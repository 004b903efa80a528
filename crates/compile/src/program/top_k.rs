//! Describes (as data) a top-k kernel: the first elements of each sorted row.

use super::type_check::{CheckResult, holds};
use systole_ir::TensorType;
use systole_ir::op::Sort;

/// `x₀: T[…, N, …], x₁, … → T[…, k, …], …`: the first k elements of each sorted row, for some of the sort's operands.
#[derive(Clone, Debug)]
pub struct TopK {
    /// The sort of all elements.
    pub sort: Sort,
    /// Number of elements per row.
    pub k: usize,
    /// Operand of the sort for each result.
    pub of: Vec<usize>,
}

impl TopK {
    /// Checks the types of operands and results.
    pub(super) fn check(&self, ins: &[TensorType], outs: &[TensorType]) -> CheckResult {
        holds(outs.len() == self.of.len(), || format!("wrong number of results of top_k: {}", outs.len()))?;
        for (&x, out) in self.of.iter().zip(outs) {
            let x = ins.get(x).ok_or("a result of top_k refers to a missing operand")?;
            let size = |d: usize| if d == self.sort.dim { self.k } else { x.shape[d] };
            let fits = self.sort.dim < x.rank()
                && self.k <= x.shape[self.sort.dim]
                && out.dtype == x.dtype
                && out.rank() == x.rank()
                && (0..x.rank()).all(|d| out.shape[d] == size(d));
            holds(fits, || format!("top_k result {out} does not match operand {x}"))?;
        }
        Ok(())
    }
}
