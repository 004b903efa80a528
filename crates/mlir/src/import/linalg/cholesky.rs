//! Cholesky's decomposition by halves: small blocks by elements, or by columns, the rest by products and triangular systems.
//!
//! Source: the StableHLO specification, cholesky; Golub and Van Loan, 4.2.

use super::blocks::{adjoint, block, column, joined, places, repeated, row};
use super::triangular::solve_lower;
use crate::import::number::Number;

/// Rows of a block that is done by elements.
const BLOCK: usize = 8;
/// Rows of a block that is done by columns, in larger matrices.
const LARGE_BLOCK: usize = 32;
/// Blocks on a diagonal; larger matrices have larger ones.
const MOST_BLOCKS: usize = 128;

/// `a: T[K, N, N] → T[K, N, N]`: l with l · lᴴ = a, where only what lies on and below a's diagonal is read. NaN where a is
/// not positive definite.
pub(super) fn decomposed(a: &Number) -> Number {
    let size = a.shape()[1].div_ceil(MOST_BLOCKS);
    by_halves(a, if size <= BLOCK { BLOCK } else { LARGE_BLOCK.max(size) })
}

fn by_halves(a: &Number, size: usize) -> Number {
    let n = a.shape()[1];
    if n <= size {
        return if n <= BLOCK { by_elements(a) } else { by_columns(a) };
    }
    let half = (n / 2).next_multiple_of(size).min(n - 1);
    let first = by_halves(&block(a, (0, half), (0, half)), size);
    // x · firstᴴ = a₂₁
    let below = adjoint(&solve_lower(&first, &adjoint(&block(a, (half, n), (0, half))), false));
    let rest = block(a, (half, n), (half, n)).sub(&below.matmul(&adjoint(&below)));
    joined(&first, None, &below, &by_halves(&rest, size))
}

/// Column j: what is left of a's by the columns before it, by the root of its first element.
fn by_columns(a: &Number) -> Number {
    let n = a.shape()[1];
    let (rows, columns) = (places(a, 0), places(a, 1));
    let last = repeated(n, &[a.zeros_like()], |j, state| {
        let l = &state[0];
        let before = l.matmul(&adjoint(&row(l, j)));
        let left = column(a, j).sub(&before);
        let root = row(&Number::real(left.re.clone()), j).re.sqrt();
        let whole = left.map(|t| t / &root);
        let at_j = columns.equal(j);
        let (on, under) = (at_j.and(&rows.equal(j)), at_j.and(&rows.greater(j)));
        let shape = l.shape().clone();
        let wide = |t: &systole_ir::Tensor| t.broadcast_to(&shape);
        let re = under.select(&wide(&whole.re), &on.select(&wide(&root), &l.re));
        let im = l.im.as_ref().map(|im| under.select(&wide(&whole.imag()), im));
        vec![Number { re, im }]
    });
    last.into_iter().next().unwrap_or_else(|| a.clone())
}

/// Element by element, all of them in one element-wise program: what is left of a's by the columns before it, by the root of
/// its column's first.
fn by_elements(a: &Number) -> Number {
    let n = a.shape()[1];
    let mut l: Vec<Vec<Number>> = Vec::with_capacity(n);
    for i in 0..n {
        let mut row: Vec<Number> = Vec::with_capacity(n);
        for j in 0..=i {
            let of_j = if j == i { &row } else { &l[j] };
            let left = (0..j)
                .fold(block(a, (i, i + 1), (j, j + 1)), |left, k| left.sub(&row[k].mul(&of_j[k].conj())));
            row.push(if j == i { Number::real(left.re.sqrt()) } else { left.div(&l[j][j]) });
        }
        l.push(row);
    }
    let zero = Number::real(l[0][0].re.zeros_like());
    let complex = a.is_complex();
    let rows = l.iter().map(|row| {
        let all = row.iter().chain(std::iter::repeat(&zero)).take(n);
        let all: Vec<Number> = all.map(|x| if complex { x.widened() } else { x.clone() }).collect();
        Number::concatenate(&all.iter().collect::<Vec<_>>(), 2)
    });
    let rows: Option<Vec<Number>> = rows.collect();
    rows.and_then(|rows| Number::concatenate(&rows.iter().collect::<Vec<_>>(), 1))
        .unwrap_or_else(|| a.clone())
}
