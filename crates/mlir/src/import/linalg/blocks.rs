//! Parts of stacks of matrices `T[K, M, N]`: blocks, masks and loops over real or complex numbers.

use crate::import::complex_number::Number;
use systole_base::{DType, TensorType};
use systole_ir::{Tensor, control_builders};

/// `T[B…, M, N] → T[K, M, N]`
pub(super) fn stacked(x: &Number) -> Number {
    let n = x.rank();
    let lead: usize = x.shape()[..n - 2].iter().product();
    x.reshape(&[lead, x.shape()[n - 2], x.shape()[n - 1]])
}

/// `x[:, rows, columns]`
pub(super) fn block(x: &Number, rows: (usize, usize), columns: (usize, usize)) -> Number {
    x.slice_dim(1, rows.0, rows.1).slice_dim(2, columns.0, columns.1)
}

/// `[[a, b], [c, d]]`; `None` are zeros.
pub(super) fn joined(a: &Number, b: Option<&Number>, c: &Number, d: &Number) -> Number {
    let zeros = a.map(|t| {
        let shape = [t.shape()[0], t.shape()[1], d.shape()[2]];
        t.builder().full(&TensorType::new(t.dtype(), shape), 0.0)
    });
    let top = beside(a, b.unwrap_or(&zeros), 2);
    beside(&top, &beside(c, d, 2), 1)
}

/// Two joined along a dimension.
pub(super) fn beside(a: &Number, b: &Number, dim: usize) -> Number {
    Number::concatenate(&[a, b], dim).unwrap_or_else(|| a.clone())
}

/// `→ i32[M, N]`: the number of the row (`dim` 0) or of the column.
pub(super) fn places(like: &Number, dim: usize) -> Tensor {
    let n = like.rank();
    let shape = [like.shape()[n - 2], like.shape()[n - 1]];
    like.g().iota(TensorType::new(DType::I32, shape), dim)
}

/// What `keep: bool[M, N]` names, else zeros.
pub(super) fn masked(x: &Number, keep: &Tensor) -> Number {
    x.map(|t| keep.select(t, &t.scalar_like(0.0)))
}

/// The part on and below the diagonal, or only below it.
pub(super) fn lower(x: &Number, with_diagonal: bool) -> Number {
    let (rows, columns) = (places(x, 0), places(x, 1));
    masked(x, &if with_diagonal { rows.greater_equal(&columns) } else { rows.greater(&columns) })
}

/// With ones on the diagonal.
pub(super) fn with_unit_diagonal(x: &Number) -> Number {
    let here = places(x, 0).equal(&places(x, 1));
    let re = here.select(&x.re.scalar_like(1.0), &x.re);
    Number { re, im: x.im.as_ref().map(|t| here.select(&t.scalar_like(0.0), t)) }
}

/// Terms of a sum up to which a product of small matrices is sums of columns times rows.
const FEW_TERMS: usize = 4;

/// `a: T[K, M, L], b: T[K, L, N] → T[K, M, N]`: of few terms as one element-wise program, without a product of its own for each
/// of the K.
pub(super) fn small_product(a: &Number, b: &Number) -> Number {
    let terms = a.shape()[2];
    if terms == 0 || terms > FEW_TERMS {
        return a.matmul(b);
    }
    let shape = [a.shape()[0], a.shape()[1], b.shape()[2]];
    let wide = |x: Number| x.map(|t| t.broadcast_to(&shape.into()));
    let term = |k: usize| wide(a.slice_dim(2, k, k + 1)).mul(&wide(b.slice_dim(1, k, k + 1)));
    (1..terms).fold(term(0), |sum, k| sum.add(&term(k)))
}

/// The conjugate with rows and columns exchanged.
pub(super) fn adjoint(x: &Number) -> Number {
    x.transposed().conj()
}

/// A block at row and column `at` of further zeros.
pub(super) fn padded(x: &Number, rows: (usize, usize), columns: (usize, usize)) -> Number {
    x.map(|t| {
        let low = [0, rows.0 as i64, columns.0 as i64];
        t.pad(&t.scalar_like(0.0), &low, &[0, rows.1 as i64, columns.1 as i64], &[0; 3])
    })
}

/// Column `j: i32[]` of `T[K, M, N]`, as `T[K, M, 1]`.
pub(super) fn column(x: &Number, j: &Tensor) -> Number {
    let zero = j.scalar_like(0.0);
    x.map(|t| t.dynamic_slice(&[&zero, &zero, j], &[t.shape()[0], t.shape()[1], 1]))
}

/// Row `j: i32[]` of `T[K, M, N]`, as `T[K, 1, N]`.
pub(super) fn row(x: &Number, j: &Tensor) -> Number {
    let zero = j.scalar_like(0.0);
    x.map(|t| t.dynamic_slice(&[&zero, j, &zero], &[t.shape()[0], 1, t.shape()[2]]))
}

/// [`flow::fori_loop`] over numbers.
pub(super) fn repeated(
    n: usize,
    init: &[Number],
    body: impl FnOnce(&Tensor, &[Number]) -> Vec<Number>,
) -> Vec<Number> {
    let kinds: Vec<bool> = init.iter().map(Number::is_complex).collect();
    let of_parts = |parts: &[Tensor]| -> Vec<Number> {
        let mut parts = parts.iter().cloned();
        let one = |complex: &bool| {
            let re = parts.next()?;
            Some(if *complex { Number::complex(re, parts.next()?) } else { Number::real(re) })
        };
        kinds.iter().map_while(one).collect()
    };
    let init: Vec<&Tensor> = init.iter().flat_map(Number::parts).collect();
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
