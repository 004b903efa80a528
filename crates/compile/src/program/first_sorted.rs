//! The first elements of sorted lines, as data.

use super::check::{Checked, alike, holds};
use systole_ir::op::Sort;
use systole_ir::{Op, TensorType};

/// `x₀: T₀[…, N, …], … → T₀[…, count, …], …`: what a sort has first along its dimension. Results that nobody reads are
/// empty.
#[derive(Clone, Debug)]
pub struct FirstSorted {
    /// The sort.
    pub sort: Sort,
    /// How many elements of each line.
    pub count: usize,
}

impl FirstSorted {
    /// A short name for listings and profiles.
    pub(super) fn name(&self) -> String {
        format!("sort[..{}]", self.count)
    }

    /// Checks the types of operands and results.
    pub(super) fn check(&self, ins: &[TensorType], outs: &[TensorType]) -> Checked {
        let operands: Vec<&TensorType> = ins.iter().collect();
        let sorted = Op::from(self.sort.clone());
        let whole = sorted.rule().infer(&operands).map_err(|c| format!("({}) {}", c.label, c.message))?;
        let size = whole[0].shape[self.sort.dim];
        holds(self.count <= size, || format!("the first {} of {size}", self.count))?;
        let first = |t: &TensorType| {
            let mut dims = t.shape.dims().to_vec();
            dims[self.sort.dim] = self.count;
            t.with_shape(dims)
        };
        alike("the first of a sort", outs, &whole.iter().map(first).collect::<Vec<_>>())
    }
}
