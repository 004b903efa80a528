//! Imports LU decomposition with partial pivoting, like LAPACK's getrf: columns within panels; each panel updates the
//! rest of the matrix with a triangular solve and a product.
//!
//! Source: Golub and Van Loan, 3.4 and 3.6.

use super::blocks::{beside, block, column, joined, masked, places, repeated, row};
use super::triangular::solve_lower;
use crate::import::complex_number::RealOrComplex;
use systole_base::DType;
use systole_ir::Tensor;

/// Columns of a panel.
const PANEL: usize = 32;
/// Maximum number of panels; larger matrices use larger panels.
const MOST_PANELS: usize = 128;

/// Factors of `a: T[K, M, N]`.
pub(super) struct LuFactors {
    /// `T[K, M, N]`: U on and above the diagonal, L below it.
    pub(super) whole: RealOrComplex,
    /// Pivots `i32[K, min(M, N)]`: the row that each row was swapped with.
    pub(super) pivots: Tensor,
    /// Row permutation `i32[K, M]`: which row of `a` each row was.
    pub(super) order: Tensor,
}

/// Decomposes a non-empty matrix.
pub(super) fn decomposed(a: &RealOrComplex) -> LuFactors {
    let least = a.shape()[1].min(a.shape()[2]);
    by_panels(a, PANEL.max(least.div_ceil(MOST_PANELS)))
}

fn by_panels(a: &RealOrComplex, most: usize) -> LuFactors {
    let (m, n) = (a.shape()[1], a.shape()[2]);
    let width = most.min(m).min(n);
    let LuFactors { whole: panel, pivots, order } = panel(&block(a, (0, m), (0, width)));
    if width == n {
        return LuFactors { whole: panel, pivots, order };
    }
    let rest = in_order(&block(a, (0, m), (width, n)), &order);
    let columns = n - width;
    let top = block(&panel, (0, width), (0, width));
    let right = solve_lower(&top, &block(&rest, (0, width), (0, columns)), true);
    if width == m {
        return LuFactors { whole: beside(&panel, &right, 2), pivots, order };
    }
    let under = block(&panel, (width, m), (0, width));
    let left = block(&rest, (width, m), (0, columns)).sub(&under.matmul(&right));
    let below = by_panels(&left, most);
    let under = in_order(&under, &below.order);
    let later = column_of(&order.slice_dim(1, width, m));
    let later = in_order(&RealOrComplex::real(later), &below.order).re.reshape(below.order.shape().clone());
    let more = &below.pivots + &below.pivots.scalar_like(width as f64);
    LuFactors {
        whole: joined(&top, Some(&right), &under, &below.whole),
        pivots: Tensor::concatenate(&[&pivots, &more], 1),
        order: Tensor::concatenate(&[&order.slice_dim(1, 0, width), &later], 1),
    }
}

/// Reshapes `T[K, M] → T[K, M, 1]`.
fn column_of(x: &Tensor) -> Tensor {
    x.reshape([x.shape()[0], x.shape()[1], 1])
}

/// Permutes the rows of each matrix: `x: T[K, M, N], order: i32[K, M]`.
fn in_order(x: &RealOrComplex, order: &Tensor) -> RealOrComplex {
    let (k, m, n) = (x.shape()[0], x.shape()[1], x.shape()[2]);
    let before = order.builder().iota(order.ty().clone(), 0) * order.scalar_like(m as f64);
    let rows = (order + &before).reshape([k * m]);
    x.map(|t| t.reshape([k * m, n]).take(&rows).reshape([k, m, n]))
}

/// Factors a panel `T[K, M, W]`, W at most M, column by column.
fn panel(a: &RealOrComplex) -> LuFactors {
    let (k, m, width) = (a.shape()[0], a.shape()[1], a.shape()[2]);
    let whole = |shape: [usize; 3], dim| a.g().iota(a.ty().with_shape(shape).with_dtype(DType::I32), dim);
    let (pivots, order) = (whole([k, 1, width], 2), whole([k, m, 1], 1));
    let init = [a.clone(), RealOrComplex::real(pivots), RealOrComplex::real(order)];
    let done = repeated(width, &init, |j, state| match state {
        [p, pivots, order] => step(j, p, pivots, order),
        _ => state.to_vec(),
    });
    let part = |i: usize, shape: [usize; 2]| done.get(i).unwrap_or(a).re.reshape(shape);
    let (pivots, order) = (part(1, [k, width]), part(2, [k, m]));
    LuFactors { whole: done.first().unwrap_or(a).clone(), pivots, order }
}

/// Processes column j: swaps its largest element into row j, divides the elements below by it, and updates the columns
/// to its right.
fn step(j: &Tensor, p: &RealOrComplex, pivots: &RealOrComplex, order: &RealOrComplex) -> Vec<RealOrComplex> {
    let with = largest(&column(p, j), j);
    let (p, top) = exchanged(p, j, &with);
    let (order, _) = exchanged(order, j, &with);
    let wide = |t: &Tensor| t.broadcast_to(p.shape());
    let (below, right) = (places(&p, 0).greater(j), places(&p, 1).greater(j));
    let (x, head) = (column(&p, j), column(&top, j).map(|t| t.broadcast_to(&column(&p, j).shape().clone())));
    let is_zero = head.equal(&head.zeros_like());
    let factors = RealOrComplex::select(&is_zero, &x, &x.div(&head));
    let change = masked(&factors.mul(&top), &below.and(&right));
    let here = places(&p, 1).equal(j).and(&below);
    let next = RealOrComplex::select(&wide(&here), &factors.map(wide), &p.sub(&change));
    let own = places(pivots, 1).equal(j).broadcast_to(pivots.shape());
    let with = with.broadcast_to(pivots.shape());
    vec![next, RealOrComplex::real(own.select(&with, &pivots.re)), order]
}

/// Returns the pivot row `x: T[K, M, 1] → i32[K, 1, 1]`: the first row from j on with the largest element; NaN counts
/// as largest.
fn largest(x: &RealOrComplex, j: &Tensor) -> Tensor {
    let size = x.im.as_ref().map_or(x.re.abs(), |im| &x.re.abs() + &im.abs());
    let size = size.equal(&size).select(&size, &size.scalar_like(f64::INFINITY));
    let rows = places(x, 0);
    let size = rows.greater_equal(j).select(&size, &size.scalar_like(-1.0));
    let one = [size.shape()[0], 1, 1];
    let most = size.reduce_max(&[1, 2]).reshape(one).broadcast_to(size.shape());
    let rows = rows.broadcast_to(size.shape());
    size.equal(&most).select(&rows, &rows.scalar_like(x.shape()[1] as f64)).reduce_min(&[1, 2]).reshape(one)
}

/// Swaps rows j and `with: i32[K, 1, 1]` of `x: T[K, M, W]`; also returns row j.
fn exchanged(x: &RealOrComplex, j: &Tensor, with: &Tensor) -> (RealOrComplex, RealOrComplex) {
    let shape = x.shape().clone();
    let wide = |t: &Tensor| t.broadcast_to(&shape);
    let rows = wide(&places(x, 0));
    let (here, there) = (rows.equal(j), rows.equal(&wide(with)));
    let old = row(x, j);
    let new = masked(x, &there).sum(&[1]).reshape(&[shape[0], 1, shape[2]]);
    let swapped = RealOrComplex::select(&there, &old.map(wide), x);
    (RealOrComplex::select(&here, &new.map(wide), &swapped), new)
}
