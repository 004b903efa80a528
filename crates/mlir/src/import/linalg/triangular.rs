//! Imports `triangular_solve`: inverts the diagonal blocks, all at once and recursively; the rest is products.
//!
//! Source: the StableHLO specification, triangular_solve; Golub and Van Loan, 3.1.

use super::blocks::{beside, block, joined, padded, small_product, with_unit_diagonal};
use crate::import::complex_number::RealOrComplex;

/// Rows of a block that is inverted.
const BLOCK: usize = 32;
/// Maximum number of diagonal blocks; larger matrices use larger blocks.
const MOST_BLOCKS: usize = 128;

/// Solves l · x = b for `l: T[K, N, N], b: T[K, N, M] → x: T[K, N, M]`, using the lower triangle of l.
pub(super) fn solve_lower(l: &RealOrComplex, b: &RealOrComplex, unit: bool) -> RealOrComplex {
    let n = l.shape()[1];
    let mut size = BLOCK.min(n.next_power_of_two());
    while n.div_ceil(size) > MOST_BLOCKS {
        size *= 2;
    }
    let count = n.div_ceil(size);
    let more = count * size - n;
    let (l, b) =
        if more == 0 { (l.clone(), b.clone()) } else { (with_ones(l, more), padded(b, (0, more), (0, 0))) };
    let diagonal = |i: usize| block(&l, (i * size, (i + 1) * size), (i * size, (i + 1) * size));
    let blocks: Vec<RealOrComplex> = (0..count).map(diagonal).collect();
    let all = RealOrComplex::concatenate(&blocks.iter().collect::<Vec<_>>(), 0).unwrap_or_else(|| l.clone());
    let all = if unit { with_unit_diagonal(&all) } else { all };
    let inverses = inverse(&all);
    let lead = l.shape()[0];
    let inverses: Vec<RealOrComplex> =
        (0..count).map(|i| inverses.slice_dim(0, i * lead, (i + 1) * lead)).collect();
    let x = by_halves(&l, &b, &inverses, size);
    if more == 0 { x } else { x.slice_dim(1, 0, n) }
}

/// Adds `more` rows and columns with ones on the diagonal.
fn with_ones(l: &RealOrComplex, more: usize) -> RealOrComplex {
    let n = l.shape()[1];
    let wide = padded(l, (0, more), (0, more));
    let here = super::blocks::places(&wide, 0);
    let is_new =
        here.equal(&super::blocks::places(&wide, 1)).and(&here.greater_equal(&here.scalar_like(n as f64)));
    RealOrComplex { re: is_new.select(&wide.re.scalar_like(1.0), &wide.re), im: wide.im }
}

/// Solves for the upper half of the rows, then for the lower half with the upper half's contribution subtracted.
fn by_halves(l: &RealOrComplex, b: &RealOrComplex, inverses: &[RealOrComplex], size: usize) -> RealOrComplex {
    let [inverse] = inverses else {
        let half = inverses.len() / 2;
        let (at, n) = (half * size, l.shape()[1]);
        let (upper, below) = inverses.split_at(half);
        let x = by_halves(&block(l, (0, at), (0, at)), &b.slice_dim(1, 0, at), upper, size);
        let rest = b.slice_dim(1, at, n).sub(&block(l, (at, n), (0, at)).matmul(&x));
        let y = by_halves(&block(l, (at, n), (at, n)), &rest, below, size);
        return beside(&x, &y, 1);
    };
    inverse.matmul(b)
}

/// Inverts a lower triangular matrix with a power-of-two size, ignoring the upper triangle: `[[a, 0], [c, d]]⁻¹ =
/// [[a⁻¹, 0], [−d⁻¹ c a⁻¹, d⁻¹]]`, where a and d are inverted together.
pub(super) fn inverse(l: &RealOrComplex) -> RealOrComplex {
    let (lead, n) = (l.shape()[0], l.shape()[1]);
    if n == 1 {
        return RealOrComplex::real(l.re.ones_like()).div(l);
    }
    let half = n / 2;
    let both = beside(&block(l, (0, half), (0, half)), &block(l, (half, n), (half, n)), 0);
    let both = inverse(&both);
    let (a, d) = (both.slice_dim(0, 0, lead), both.slice_dim(0, lead, 2 * lead));
    let below = block(l, (half, n), (0, half));
    let c = small_product(&d, &small_product(&below, &a)).neg();
    joined(&a, None, &c, &d)
}
