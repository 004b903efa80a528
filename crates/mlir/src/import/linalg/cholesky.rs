//! Cholesky's decomposition by halves: small blocks by columns, the rest by products and triangular systems.
//!
//! Source: the StableHLO specification, cholesky; Golub and Van Loan, 4.2.

use super::blocks::{adjoint, block, column, joined, places, repeated, row};
use super::triangular::solve_lower;
use crate::import::number::Number;

/// Rows of a block that is done by columns.
const BLOCK: usize = 32;
/// Blocks on a diagonal; larger matrices have larger ones.
const MOST_BLOCKS: usize = 128;

/// `a: T[K, N, N] → T[K, N, N]`: l with l · lᴴ = a, where only what lies on and below a's diagonal is read. A matrix that is
/// not positive definite becomes NaN as a whole, as XLA has it.
pub(super) fn decomposed(a: &Number) -> Number {
    let l = by_halves(a, BLOCK.max(a.shape()[1].div_ceil(MOST_BLOCKS)));
    let diagonal = places(&l, 0).equal(&places(&l, 1)).select(&l.re, &l.re.scalar_like(1.0));
    // A NaN is not greater either.
    let has_root = diagonal.greater(&diagonal.scalar_like(0.0)).all(&[1, 2]).reshape([l.shape()[0], 1, 1]);
    let has_root = has_root.broadcast_to(l.shape());
    l.map(|t| has_root.select(t, &t.scalar_like(f64::NAN)))
}

fn by_halves(a: &Number, size: usize) -> Number {
    let n = a.shape()[1];
    if n <= size {
        return by_columns(a);
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
