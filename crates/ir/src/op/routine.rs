//! Computations that a backend may have a kernel for, each written as a branch that always runs ([`Routine::of`]): the
//! branch is plain StableHLO and defines the result, the name beside it says which of its parameters is what. Text
//! does not hold the name: a branch that is read captures its operands in another order.

use super::{Case, Routine};
use crate::{GraphBuilder, Tensor};
use systole_base::{DType, TensorType};

/// Largest prime factor of a length that transforms are split by.
pub const LARGEST_FACTOR: usize = 31;

impl Routine {
    /// A short name for listings.
    pub fn name(self) -> &'static str {
        match self {
            Routine::Cholesky => "cholesky",
            Routine::TriangularSolve { .. } => "triangular_solve",
            Routine::Fft { inverse: false } => "fft",
            Routine::Fft { inverse: true } => "ifft",
            Routine::Rfft => "rfft",
            Routine::Irfft => "irfft",
        }
    }

    /// Whether a transform of this length has only factors up to [`LARGEST_FACTOR`].
    pub fn has_length(n: usize) -> bool {
        let rest = (2..=LARGEST_FACTOR).fold(n, |mut rest, a| {
            while rest > 1 && rest.is_multiple_of(a) {
                rest /= a;
            }
            rest
        });
        rest == 1
    }

    /// Whether operands and results have types that it is defined for.
    pub fn fits(self, operands: &[TensorType], results: &[TensorType]) -> bool {
        let all = || operands.iter().chain(results);
        let Some(dtype) = operands.first().map(|t| t.dtype) else { return false };
        if !matches!(dtype, DType::F32 | DType::F64) || all().any(|t| t.dtype != dtype || t.elements() == 0) {
            return false;
        }
        let dims: Vec<&[usize]> = all().map(|t| t.shape.dims()).collect();
        let halves = |half: [&[usize]; 2], whole: &[usize]| {
            half[0] == half[1] && matches!((half[0], whole), (&[k, h], &[b, n]) if k == b && h == n / 2 + 1)
        };
        let counts = (operands.len(), results.len());
        match (self, counts, dims.as_slice()) {
            (Routine::Cholesky, (1, 1), &[a, y]) => a == y && matches!(*a, [_, m, n] if m == n),
            (Routine::TriangularSolve { .. }, (2, 1), &[l, b, x]) => {
                b == x
                    && matches!((l, b), (&[k, m, n], &[batch, rows, _]) if m == n && k == batch && rows == n)
            }
            (Routine::Fft { .. }, (2, 2), &[a, b, c, d]) => {
                a == b && b == c && c == d && matches!(*a, [_, n] if Routine::has_length(n))
            }
            (Routine::Rfft, (1, 2), &[x, re, im]) => {
                halves([re, im], x) && x.last().is_some_and(|n| Routine::has_length(*n))
            }
            (Routine::Irfft, (2, 1), &[re, im, x]) => {
                halves([re, im], x) && x.last().is_some_and(|n| Routine::has_length(*n))
            }
            _ => false,
        }
    }

    /// The results of `body` as those of one node that is named after this routine, where the types fit; else the results
    /// alone.
    ///
    /// ```
    /// use systole_ir::{interp, DType::F32, GraphBuilder, Literal, TensorType, op::Routine};
    /// let g = GraphBuilder::new("main");
    /// let a = g.parameter(TensorType::new(F32, [1, 1, 1]), "a");
    /// let l = Routine::Cholesky.of(&[&a], |x| vec![x[0].sqrt()]).remove(0);
    /// let graph = g.finish(&[l]).unwrap();
    /// assert_eq!(graph.nodes.iter().filter(|n| n.op.name() == "case").count(), 1);
    /// let a = Literal::from_slice([1, 1, 1], &[9f32]).unwrap();
    /// assert_eq!(interp::run(&graph, &[&a]).unwrap()[0].to_f32s(), [3.0]);
    /// ```
    #[track_caller]
    pub fn of(self, operands: &[&Tensor], body: impl Fn(&[Tensor]) -> Vec<Tensor>) -> Vec<Tensor> {
        let plain = || body(&operands.iter().map(|&t| t.clone()).collect::<Vec<_>>());
        let Some(g) = GraphBuilder::of(operands).map(|g| g.active()) else { return plain() };
        let r = g.child("routine");
        let params: Vec<Tensor> = operands.iter().map(|t| r.parameter(t.ty().clone(), "operand")).collect();
        let results = g.in_region(&r, || body(&params));
        let types = |all: &[Tensor]| all.iter().map(|t| t.ty().clone()).collect::<Vec<_>>();
        if operands.iter().any(|t| t.is_poisoned()) || !self.fits(&types(&params), &types(&results)) {
            return plain();
        }
        let Ok(branch) = r.finish_region(&results, &[]) else { return plain() };
        let always = g.scalar(DType::I32, 0.0);
        let inputs: Vec<&Tensor> = operands.iter().copied().chain([&always]).collect();
        g.emit(Case { branches: vec![branch], routine: Some(self) }, &inputs)
    }
}
