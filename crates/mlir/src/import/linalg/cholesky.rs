//! Imports `cholesky` as a recursive (divide-and-conquer) decomposition: small blocks by columns, the rest by products
//! and triangular solves.
//!
//! Source: the StableHLO specification, cholesky; Golub and Van Loan, 4.2.

use super::blocks::{adjoint, block, column, joined, lower, places, repeated, row};
use super::triangular::solve_lower;
use crate::import::complex_number::RealOrComplex;

/// Rows of a block that is factored column by column.
const BLOCK: usize = 32;
/// Maximum number of diagonal blocks; larger matrices use larger blocks.
const MOST_BLOCKS: usize = 128;

/// Decomposes `a: T[K, N, N] → T[K, N, N]`: l with l · lᴴ = a, from the lower triangle of a. Like in XLA, a matrix that
/// is not positive definite gives all NaN.
pub(super) fn decomposed(a: &RealOrComplex) -> RealOrComplex {
    let l = by_halves(a, BLOCK.max(a.shape()[1].div_ceil(MOST_BLOCKS)));
    let diagonal = places(&l, 0).equal(&places(&l, 1)).select(&l.re, &l.re.scalar_like(1.0));
    // NaN does not compare greater either.
    let has_root = diagonal.greater(&diagonal.scalar_like(0.0)).all(&[1, 2]).reshape([l.shape()[0], 1, 1]);
    let has_root = has_root.broadcast_to(l.shape());
    l.map(|t| has_root.select(t, &t.scalar_like(f64::NAN)))
}

fn by_halves(a: &RealOrComplex, size: usize) -> RealOrComplex {
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

/// Factors column by column: divides column j by the root of its diagonal element and updates the columns after it.
fn by_columns(a: &RealOrComplex) -> RealOrComplex {
    let n = a.shape()[1];
    let (rows, columns) = (places(a, 0), places(a, 1));
    let mut below = lower(a, true);
    // Only the real parts of the diagonal are read.
    below.im = below.im.map(|im| rows.equal(&columns).select(&im.scalar_like(0.0), &im));
    let last = repeated(n, &[below], |j, state| {
        let l = &state[0];
        // Elements above the diagonal are zero.
        let first = column(l, j);
        let root = row(&RealOrComplex::real(first.re.clone()), j).re.sqrt();
        let whole = first.map(|t| t / &root);
        let shape = l.shape().clone();
        let wide = |x: &RealOrComplex| x.map(|t| t.broadcast_to(&shape));
        let given = wide(&whole).mul(&wide(&adjoint(&whole)));
        let is_left = columns.greater(j).and(&rows.greater_equal(&columns));
        let at_j = columns.equal(j);
        vec![RealOrComplex::select(&at_j, &wide(&whole), &RealOrComplex::select(&is_left, &l.sub(&given), l))]
    });
    last.into_iter().next().unwrap_or_else(|| a.clone())
}
