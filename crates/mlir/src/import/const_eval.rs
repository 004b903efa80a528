//! Evaluates values that depend only on constants at import time, such as the shapes of dynamic ops.

use super::types::{not_there, wrong};
use systole_base::{DType, Result, ensure};
use systole_ir::Tensor;

/// Returns the integers of an array that is known at import time.
pub(super) fn ints(t: &Tensor, what: &str) -> Result<Vec<i64>> {
    ensure!(t.dtype().is_int(), wrong(format!("{what} must be integers, got {}", t.ty())));
    let known = t.known().ok_or_else(|| {
        not_there(format!("{what} is known only at run time"))
            .because("array sizes must be known at compile time")
            .hint("export the program with fixed sizes instead of symbolic dimensions")
    })?;
    let all = known.convert(DType::I64);
    Ok(all.as_slice::<i64>()?.to_vec())
}

/// Like [`ints`], with bools as 0 and 1.
pub(super) fn ints_or_bools(t: &Tensor, what: &str) -> Result<Vec<i64>> {
    match t.dtype() {
        DType::Bool => ints(&t.convert(DType::I64), what),
        _ => ints(t, what),
    }
}

/// Like [`ints`]; rejects negative entries.
pub(super) fn sizes(t: &Tensor, what: &str) -> Result<Vec<usize>> {
    let all = ints(t, what)?.into_iter().map(usize::try_from).collect::<Result<Vec<_>, _>>();
    all.map_err(|_| wrong(format!("{what} has a negative entry")))
}

/// Like [`sizes`]; rejects shapes that are too large.
pub(super) fn shape(t: &Tensor, what: &str) -> Result<Vec<usize>> {
    let all = sizes(t, what)?;
    let bytes = all.iter().try_fold(8usize, |n, d| n.checked_mul((*d).max(1)));
    match bytes {
        Some(n) if n < 1 << 46 => Ok(all),
        _ => Err(wrong(format!("{what}: {all:?} is too large"))),
    }
}
