//! Imports QR decomposition like LAPACK's geqrf and orgqr: Householder reflectors `I − τ v vᴴ` by columns within
//! panels; each panel updates the rest of the matrix at once, `I − V T Vᴴ`.
//!
//! Source: Schreiber and Van Loan, "A Storage-Efficient WY Representation", 1989; LAPACK's conventions.

use super::blocks::{
    adjoint, beside, block, column, joined, lower, masked, places, repeated, with_unit_diagonal,
};
use super::triangular::solve_lower;
use crate::import::complex_number::{RealOrComplex, copysign};
use systole_ir::Tensor;

/// Columns of a panel.
const PANEL: usize = 32;
/// Maximum number of panels; larger matrices use larger panels.
const MOST_PANELS: usize = 128;

/// Decomposes `a: T[K, M, N] → (T[K, M, N], T[K, 1, min(M, N)])`: R on and above the diagonal, reflectors below it; τ.
pub(super) fn decomposed(a: &RealOrComplex) -> (RealOrComplex, Option<RealOrComplex>) {
    by_panels(a, panel_width(a.shape()[1].min(a.shape()[2])))
}

fn panel_width(columns: usize) -> usize {
    PANEL.max(columns.div_ceil(MOST_PANELS))
}

fn by_panels(a: &RealOrComplex, most: usize) -> (RealOrComplex, Option<RealOrComplex>) {
    let (m, n) = (a.shape()[1], a.shape()[2]);
    let width = most.min(m.min(n));
    if width == 0 {
        return (a.clone(), None);
    }
    let (panel, taus) = panel(&block(a, (0, m), (0, width)));
    if width == n {
        return (panel, Some(taus));
    }
    // Applies Qᴴ = I − V Tᴴ Vᴴ to the columns after the panel.
    let (v, t) = (reflectors(&panel), together(&panel, &taus));
    let beside_it = block(a, (0, m), (width, n));
    let rest = beside_it.sub(&v.matmul(&adjoint(&t).matmul(&adjoint(&v).matmul(&beside_it))));
    if width == m {
        return (beside(&panel, &rest, 2), Some(taus));
    }
    let columns = n - width;
    let (below, more) = by_panels(&block(&rest, (width, m), (0, columns)), most);
    let top = block(&panel, (0, width), (0, width));
    let under = block(&panel, (width, m), (0, width));
    let whole = joined(&top, Some(&block(&rest, (0, width), (0, columns))), &under, &below);
    (whole, Some(more.map_or(taus.clone(), |more| beside(&taus, &more, 2))))
}

/// Factors a panel `T[K, M, W]`, W at most M, column by column.
fn panel(a: &RealOrComplex) -> (RealOrComplex, RealOrComplex) {
    let width = a.shape()[2];
    let (rows, columns) = (places(a, 0), places(a, 1));
    let taus = block(&a.zeros_like(), (0, 1), (0, width));
    let of_taus = places(&taus, 1);
    let done = repeated(width, &[a.clone(), taus], |j, state| {
        let (p, taus) = (&state[0], &state[1]);
        let own = rows.slice_dim(1, 0, 1);
        let x = column(p, j);
        let (beta, tau, v) = reflector(&x, &own, j);
        let change = v.matmul(&adjoint(&v).matmul(p)).mul(&tau.conj());
        let (right, here) = (columns.greater(j), columns.equal(j));
        let on = masked(&beta.add(&x.zeros_like()), &own.equal(j));
        let new = masked(&v, &own.greater(j)).add(&on).add(&masked(&x, &own.less(j)));
        let wide = |t: &Tensor, like: &RealOrComplex| t.broadcast_to(like.shape());
        let new = new.map(|t| wide(t, p));
        let pick = |mask: &Tensor, like: &RealOrComplex| wide(mask, like);
        let next = RealOrComplex::select(
            &pick(&right, p),
            &p.sub(&change),
            &RealOrComplex::select(&pick(&here, p), &new, p),
        );
        let tau = tau.map(|t| wide(t, taus));
        vec![next, RealOrComplex::select(&pick(&of_taus.equal(j), taus), &tau, taus)]
    });
    let mut done = done.into_iter();
    (done.next().unwrap_or_else(|| a.clone()), done.next().unwrap_or_else(|| a.clone()))
}

/// Computes the reflector that maps the elements of a column `T[K, M, 1]` at and below row j to `beta`: beta, τ and v.
fn reflector(x: &RealOrComplex, rows: &Tensor, j: &Tensor) -> (RealOrComplex, RealOrComplex, RealOrComplex) {
    let alpha = masked(x, &rows.equal(j)).sum(&[1, 2]).map(|t| t.reshape([t.shape()[0], 1, 1]));
    let under = masked(x, &rows.greater(j));
    let size = |z: &RealOrComplex| z.abs().reduce_max(&[1, 2]).reshape([z.shape()[0], 1, 1]);
    let most = size(&under).maximum(&alpha.abs());
    let zero = most.scalar_like(0.0);
    let scale = most.equal(&zero).select(&most.scalar_like(1.0), &most);
    let unit = |z: &RealOrComplex| z.map(|t| t / &scale);
    let squares = unit(&under).norm().sum(&[1, 2]).reshape(most.shape().clone()) + unit(&alpha).norm();
    let norm = &squares.sqrt() * &scale;
    let beta = copysign(&norm, &alpha.re);
    let beta = -&beta;
    // Nothing to do: the elements below are zero and the head is real.
    let idle = size(&under).equal(&zero).and(&alpha.imag().equal(&zero));
    let safe = idle.select(&beta.scalar_like(1.0), &beta);
    let tau_re = idle.select(&zero, &(&(&beta - &alpha.re) / &safe));
    let tau =
        RealOrComplex { re: tau_re, im: alpha.im.as_ref().map(|im| idle.select(&zero, &(&-im / &safe))) };
    let head = alpha.sub(&RealOrComplex::real(beta.clone()));
    let one = RealOrComplex::real(head.re.ones_like());
    let head = RealOrComplex::select(&idle, &one, &head);
    let over = head.map(|t| t.broadcast_to(x.shape()));
    let v = under.div(&over);
    let re = rows.equal(j).select(&v.re.scalar_like(1.0), &v.re);
    let beta =
        RealOrComplex { re: idle.select(&alpha.re, &beta), im: x.im.as_ref().map(|_| beta.zeros_like()) };
    (beta, tau, RealOrComplex { re, im: v.im })
}

/// Returns the vectors of a panel: ones on the diagonal, zeros above it.
fn reflectors(panel: &RealOrComplex) -> RealOrComplex {
    with_unit_diagonal(&lower(panel, true))
}

/// Returns T with `H₁ H₂ … = I − V T Vᴴ`: `(I + D S)⁻¹ D`, where S is the upper triangle of VᴴV and D holds τ.
fn together(panel: &RealOrComplex, taus: &RealOrComplex) -> RealOrComplex {
    let v = reflectors(panel);
    // Transposed, the system is lower triangular: Tᵀ = D (I + Sᵀ D)⁻¹ = (I + D Sᵀ)⁻¹ D.
    let below = lower(&adjoint(&v).matmul(&v).transposed(), false);
    let wide = |x: &RealOrComplex| x.map(|t| t.broadcast_to(below.shape()));
    let here = places(&below, 0).equal(&places(&below, 1));
    let diagonal = masked(&wide(taus), &here);
    solve_lower(&below.mul(&wide(&taus.transposed())), &diagonal, true).transposed()
}

/// Computes `a: T[K, M, N], taus: T[K, 1, C] → T[K, M, N]`: the first N columns of H₁ H₂ … H_C.
pub(super) fn product(a: &RealOrComplex, taus: &RealOrComplex) -> RealOrComplex {
    let (m, n, count) = (a.shape()[1], a.shape()[2], taus.shape()[2]);
    let unit = with_unit_diagonal(&a.zeros_like());
    let width = panel_width(count);
    let panels = (0..count).step_by(width).rev();
    panels.fold(unit, |q, at| {
        let end = (at + width).min(count);
        let (p, t) = (block(a, (at, m), (at, end)), taus.slice_dim(2, at, end));
        let (v, t) = (reflectors(&p), together(&p, &t));
        let lower_rows = block(&q, (at, m), (0, n));
        let new = lower_rows.sub(&v.matmul(&t.matmul(&adjoint(&v).matmul(&lower_rows))));
        if at == 0 { new } else { beside(&block(&q, (0, at), (0, n)), &new, 1) }
    })
}
