//! Imports matrix decompositions and triangular solves as StableHLO ops, with most of the work in `dot_general`; also
//! the custom calls that JAX emits for QR, LU and eigenvalues on unknown platforms.

mod blocks;
mod cholesky;
mod eigh;
mod lapack;
mod lu;
mod qr;
mod triangular;

use super::attribute::{flag, text};
use super::call::{ImportRule, OpImport, call, op};
use super::complex_number::RealOrComplex;
use super::types::wrong;
use super::value::ImportedValue;
use crate::syntax::{Attribute, Operation, find};
use blocks::{adjoint, stacked};
use systole_base::{DType, Result, TensorType};
use systole_ir::Tensor;

pub(super) const OPERATIONS: &[OpImport] = &[
    op("stablehlo.cholesky")
        .import(ImportRule::Values(|c| cholesky(&c.number(0)?, flag(c.op, "lower", false)?))),
    op("stablehlo.triangular_solve")
        .import(ImportRule::Values(|c| solve(c.op, &c.number(0)?, &c.number(1)?))),
    call("Qr", ImportRule::Values(|c| decomposed(&c.number(0)?))),
    call(
        "ProductOfElementaryHouseholderReflectors",
        ImportRule::Values(|c| reflected(&c.number(0)?, &c.number(1)?)),
    ),
    call("LuDecomposition", ImportRule::Values(|c| factored(&c.number(0)?))),
    call("Eigh", ImportRule::Values(|c| eigen(&c.number(0)?, text(c.op, "backend_config")))),
];

/// LAPACK routines, as JAX calls them on CPUs: `lapack_dgeqrf_ffi`.
pub(super) const LAPACK_CALL: OpImport = call("", ImportRule::Values(lapack::called));

/// Checks that the operand is an array of float matrices.
fn matrices(x: &RealOrComplex) -> Result<()> {
    if x.rank() < 2 || !x.ty().dtype.is_float() {
        return Err(wrong(format!("(I1) expected an array of float matrices, got {}", x.ty())));
    }
    Ok(())
}

fn square(x: &RealOrComplex, label: &str) -> Result<()> {
    matrices(x)?;
    let sizes = &x.shape()[x.rank() - 2..];
    if sizes[0] != sizes[1] {
        let what = format!("({label}) the matrices must be square, got {} by {}", sizes[0], sizes[1]);
        return Err(wrong(what));
    }
    Ok(())
}

/// Computes in at least f32, and skips empty arrays.
fn in_f32(x: &RealOrComplex, to: &[usize], f: impl FnOnce(&RealOrComplex) -> RealOrComplex) -> RealOrComplex {
    let dtype = x.ty().dtype;
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    f(&stacked(&x.convert(wide))).convert(dtype).reshape(to)
}

fn cholesky(a: &RealOrComplex, lower: bool) -> Result<Vec<ImportedValue>> {
    square(a, "C2")?;
    if a.ty().elements() == 0 {
        return Ok(vec![a.clone().into()]);
    }
    let shape = a.shape().to_vec();
    Ok(vec![
        in_f32(a, &shape, |a| {
            if lower { cholesky::decomposed(a) } else { adjoint(&cholesky::decomposed(&adjoint(a))) }
        })
        .into(),
    ])
}

fn solve(op: &Operation, a: &RealOrComplex, b: &RealOrComplex) -> Result<Vec<ImportedValue>> {
    square(a, "C3")?;
    matrices(b)?;
    let (left, unit) = (flag(op, "left_side", false)?, flag(op, "unit_diagonal", false)?);
    let (n, m) = (a.rank(), b.rank());
    let side = if left { m - 2 } else { m - 1 };
    if n != m || a.shape()[..n - 2] != b.shape()[..m - 2] || a.shape()[n - 1] != b.shape()[side] {
        return Err(wrong(format!(
            "(C3) the matrices {} do not match the right-hand sides {}",
            a.ty(),
            b.ty()
        )));
    }
    let (turn, conjugate) = match find(&op.attributes, "transpose_a") {
        None => (false, false),
        Some(Attribute::Keyword(_, word)) if word == "NO_TRANSPOSE" => (false, false),
        Some(Attribute::Keyword(_, word)) if word == "TRANSPOSE" => (true, false),
        Some(Attribute::Keyword(_, word)) if word == "ADJOINT" => (true, true),
        Some(other) => return Err(wrong(format!("unknown transpose_a {other:?}"))),
    };
    if b.ty().elements() == 0 {
        return Ok(vec![b.clone().into()]);
    }
    let a = if conjugate { a.conj() } else { a.clone() };
    // x · a = b is aᵀ · xᵀ = bᵀ.
    let turn = turn == left;
    let a = if turn { a.transposed() } else { a };
    let lower = flag(op, "lower", false)? != turn;
    let wide = if a.ty().dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let a = stacked(&a.convert(wide));
    let shape = b.shape().to_vec();
    Ok(vec![
        in_f32(b, &shape, |b| {
            let b = if left { b.clone() } else { b.transposed() };
            let x = if lower {
                triangular::solve_lower(&a, &b, unit)
            } else {
                let back = |x: &RealOrComplex, dims: &[usize]| x.map(|t: &Tensor| t.reverse(dims));
                back(&triangular::solve_lower(&back(&a, &[1, 2]), &back(&b, &[1]), unit), &[1])
            };
            if left { x } else { x.transposed() }
        })
        .into(),
    ])
}

/// Imports `Qr`: R and the reflectors in one array, and τ.
fn decomposed(a: &RealOrComplex) -> Result<Vec<ImportedValue>> {
    matrices(a)?;
    let n = a.rank();
    let (lead, count) = (&a.shape()[..n - 2], a.shape()[n - 2].min(a.shape()[n - 1]));
    let shape = [lead, &[count]].concat();
    let none = |t: &Tensor| t.builder().full(&t.ty().with_shape(shape.clone()), 0.0);
    if a.ty().elements() == 0 {
        return Ok(vec![a.clone().into(), a.map(none).into()]);
    }
    let wide = if a.ty().dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let (whole, taus) = qr::decomposed(&stacked(&a.convert(wide)));
    let whole = whole.convert(a.ty().dtype).reshape(a.shape());
    let taus = taus.map_or(a.map(none), |t| t.convert(a.ty().dtype).reshape(&shape));
    Ok(vec![whole.into(), taus.into()])
}

/// Imports `LuDecomposition`: L and U in one array, the pivots, and the resulting row permutation.
///
/// Source: JAX's rule for TPUs.
fn factored(a: &RealOrComplex) -> Result<Vec<ImportedValue>> {
    matrices(a)?;
    let n = a.rank();
    let (rows, columns) = (a.shape()[n - 2], a.shape()[n - 1]);
    let of = |size: usize| [&a.shape()[..n - 2], &[size]].concat();
    let (pivots, order) = (of(rows.min(columns)), of(rows));
    if a.ty().elements() == 0 {
        let places = |shape: Vec<usize>| a.g().iota(TensorType::new(DType::I32, shape), n - 2);
        return Ok(vec![
            a.clone().into(),
            RealOrComplex::real(places(pivots)).into(),
            RealOrComplex::real(places(order)).into(),
        ]);
    }
    let wide = if a.ty().dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let found = lu::decomposed(&stacked(&a.convert(wide)));
    Ok(vec![
        found.whole.convert(a.ty().dtype).reshape(a.shape()).into(),
        RealOrComplex::real(found.pivots.reshape(pivots)).into(),
        RealOrComplex::real(found.order.reshape(order)).into(),
    ])
}

/// Imports `ProductOfElementaryHouseholderReflectors`.
fn reflected(a: &RealOrComplex, taus: &RealOrComplex) -> Result<Vec<ImportedValue>> {
    matrices(a)?;
    let n = a.rank();
    let count = taus.shape().last().copied().unwrap_or(0);
    let fits = taus.rank() + 1 == n && taus.shape()[..n - 2] == a.shape()[..n - 2];
    if !fits || count > a.shape()[n - 1] || count > a.shape()[n - 2] || a.shape()[n - 1] > a.shape()[n - 2] {
        return Err(wrong(format!("the factors {} do not match the reflectors {}", taus.ty(), a.ty())));
    }
    if a.ty().elements() == 0 {
        return Ok(vec![a.clone().into()]);
    }
    let shape = a.shape().to_vec();
    let lead: usize = shape[..n - 2].iter().product();
    let wide = if a.ty().dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let taus = taus.convert(wide).reshape(&[lead, 1, count]);
    Ok(vec![in_f32(a, &shape, |a| qr::product(a, &taus)).into()])
}

/// Imports `Eigh`: eigenvectors and eigenvalues. The call's configuration is `lower,sorted,sweeps,tolerance`; sweeps
/// run until only rounding errors remain.
///
/// Source: XLA's `EighExpander`.
fn eigen(a: &RealOrComplex, config: Option<&str>) -> Result<Vec<ImportedValue>> {
    square(a, "Eigh")?;
    let config = config.unwrap_or("");
    let words: Vec<&str> = config.split(',').map(str::trim).collect();
    let said = |i: usize| match words.get(i) {
        Some(&"0" | &"false") => Ok(false),
        Some(&"1" | &"true") => Ok(true),
        _ => Err(wrong(format!(
            "invalid Eigh configuration `{config}`: expected it to start with `lower,sorted`"
        ))),
    };
    let (from_lower, sorted) = (said(0)?, said(1)?);
    let (shape, dtype) = (a.shape().to_vec(), a.ty().dtype);
    let values = &shape[..shape.len() - 1];
    if a.ty().elements() == 0 {
        let none = a.re.builder().full(&a.ty().with_shape(values.to_vec()), 0.0);
        return Ok(vec![a.clone().into(), RealOrComplex::real(none).into()]);
    }
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let (v, w) = eigh::decomposed(&stacked(&a.convert(wide)), from_lower, sorted);
    let w = RealOrComplex::real(w.convert(dtype).reshape(values));
    Ok(vec![v.convert(dtype).reshape(&shape).into(), w.into()])
}
