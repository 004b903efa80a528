//! Helpers for matrix decompositions: blocks, masks and loops over stacks of real or complex matrices `T[K, M, N]`.

use crate::import::complex_number::RealOrComplex;
use systole_base::{DType, TensorType};
use systole_ir::{Tensor, control_builders};

/// Reshapes `T[B…, M, N] → T[K, M, N]`.
pub(super) fn stacked(x: &RealOrComplex) -> RealOrComplex {
    let n = x.rank();
    let lead: usize = x.shape()[..n - 2].iter().product();
    x.reshape(&[lead, x.shape()[n - 2], x.shape()[n - 1]])
}

/// Returns `x[:, rows, columns]`.
pub(super) fn block(x: &RealOrComplex, rows: (usize, usize), columns: (usize, usize)) -> RealOrComplex {
    x.slice_dim(1, rows.0, rows.1).slice_dim(2, columns.0, columns.1)
}

/// Returns `[[a, b], [c, d]]`; `None` means zeros.
pub(super) fn joined(
    a: &RealOrComplex,
    b: Option<&RealOrComplex>,
    c: &RealOrComplex,
    d: &RealOrComplex,
) -> RealOrComplex {
    let zeros = a.map(|t| {
        let shape = [t.shape()[0], t.shape()[1], d.shape()[2]];
        t.builder().full(&TensorType::new(t.dtype(), shape), 0.0)
    });
    let top = beside(a, b.unwrap_or(&zeros), 2);
    beside(&top, &beside(c, d, 2), 1)
}

/// Concatenates two arrays along a dimension.
pub(super) fn beside(a: &RealOrComplex, b: &RealOrComplex, dim: usize) -> RealOrComplex {
    RealOrComplex::concatenate(&[a, b], dim).unwrap_or_else(|| a.clone())
}

/// Returns `i32[M, N]`: the row index (`dim` 0) or the column index.
pub(super) fn places(like: &RealOrComplex, dim: usize) -> Tensor {
    let n = like.rank();
    let shape = [like.shape()[n - 2], like.shape()[n - 1]];
    like.g().iota(TensorType::new(DType::I32, shape), dim)
}

/// Keeps the elements selected by `keep: bool[M, N]`, zeros elsewhere.
pub(super) fn masked(x: &RealOrComplex, keep: &Tensor) -> RealOrComplex {
    x.map(|t| keep.select(t, &t.scalar_like(0.0)))
}

/// Returns the lower triangle, with or without the diagonal.
pub(super) fn lower(x: &RealOrComplex, with_diagonal: bool) -> RealOrComplex {
    let (rows, columns) = (places(x, 0), places(x, 1));
    masked(x, &if with_diagonal { rows.greater_equal(&columns) } else { rows.greater(&columns) })
}

/// Sets the diagonal to ones.
pub(super) fn with_unit_diagonal(x: &RealOrComplex) -> RealOrComplex {
    let here = places(x, 0).equal(&places(x, 1));
    let re = here.select(&x.re.scalar_like(1.0), &x.re);
    RealOrComplex { re, im: x.im.as_ref().map(|t| here.select(&t.scalar_like(0.0), t)) }
}

/// Up to this inner dimension, small products are sums of columns times rows.
const FEW_TERMS: usize = 4;

/// Multiplies `a: T[K, M, L], b: T[K, L, N] → T[K, M, N]`; with a small L as one element-wise program instead of a
/// batched dot.
pub(super) fn small_product(a: &RealOrComplex, b: &RealOrComplex) -> RealOrComplex {
    let terms = a.shape()[2];
    if terms == 0 || terms > FEW_TERMS {
        return a.matmul(b);
    }
    let shape = [a.shape()[0], a.shape()[1], b.shape()[2]];
    let wide = |x: RealOrComplex| x.map(|t| t.broadcast_to(&shape.into()));
    let term = |k: usize| wide(a.slice_dim(2, k, k + 1)).mul(&wide(b.slice_dim(1, k, k + 1)));
    (1..terms).fold(term(0), |sum, k| sum.add(&term(k)))
}

/// Returns the conjugate transpose.
pub(super) fn adjoint(x: &RealOrComplex) -> RealOrComplex {
    x.transposed().conj()
}

/// Pads a block with zero rows and columns.
pub(super) fn padded(x: &RealOrComplex, rows: (usize, usize), columns: (usize, usize)) -> RealOrComplex {
    x.map(|t| {
        let low = [0, rows.0 as i64, columns.0 as i64];
        t.pad(&t.scalar_like(0.0), &low, &[0, rows.1 as i64, columns.1 as i64], &[0; 3])
    })
}

/// Returns column `j: i32[]` of `T[K, M, N]`, as `T[K, M, 1]`.
pub(super) fn column(x: &RealOrComplex, j: &Tensor) -> RealOrComplex {
    let zero = j.scalar_like(0.0);
    x.map(|t| t.dynamic_slice(&[&zero, &zero, j], &[t.shape()[0], t.shape()[1], 1]))
}

/// Returns row `j: i32[]` of `T[K, M, N]`, as `T[K, 1, N]`.
pub(super) fn row(x: &RealOrComplex, j: &Tensor) -> RealOrComplex {
    let zero = j.scalar_like(0.0);
    x.map(|t| t.dynamic_slice(&[&zero, j, &zero], &[t.shape()[0], 1, t.shape()[2]]))
}

/// [`flow::fori_loop`] with real or complex carried values.
pub(super) fn repeated(
    n: usize,
    init: &[RealOrComplex],
    body: impl FnOnce(&Tensor, &[RealOrComplex]) -> Vec<RealOrComplex>,
) -> Vec<RealOrComplex> {
    let kinds: Vec<bool> = init.iter().map(RealOrComplex::is_complex).collect();
    let of_parts = |parts: &[Tensor]| -> Vec<RealOrComplex> {
        let mut parts = parts.iter().cloned();
        let one = |complex: &bool| {
            let re = parts.next()?;
            Some(if *complex { RealOrComplex::complex(re, parts.next()?) } else { RealOrComplex::real(re) })
        };
        kinds.iter().map_while(one).collect()
    };
    let init: Vec<&Tensor> = init.iter().flat_map(RealOrComplex::parts).collect();
    let last = control_builders::fori_loop(n, &init, |i, state| {
        let next = body(i, &of_parts(state));
        next.iter()
            .zip(&kinds)
            .flat_map(|(x, complex)| {
                let x = if *complex { x.widened() } else { x.clone() };
                x.parts().cloned().collect::<Vec<_>>()
            })
            .collect()
    });
    of_parts(&last)
}
