//! What is known while a program is read: the elements of values that depend on constants alone. Shapes of "dynamic" ops
//! are such values once sizes are known.

use super::types::{not_there, wrong};
use systole_base::{DType, Result};
use systole_ir::Tensor;

/// The whole numbers of an array that is known now.
pub(super) fn ints(t: &Tensor, what: &str) -> Result<Vec<i64>> {
    if !t.dtype().is_int() {
        return Err(wrong(format!("{what} is {}, not whole numbers", t.ty())));
    }
    let known = t.known().ok_or_else(|| {
        not_there(format!("{what} is known only when the program runs"))
            .because("arrays have sizes that are known when the program is compiled")
            .hint("export the program with sizes instead of names for its dimensions")
    })?;
    let all = known.convert(DType::I64);
    Ok(all.as_slice::<i64>()?.to_vec())
}

/// As [`ints`]; bools are 0 and 1.
pub(super) fn ints_or_bools(t: &Tensor, what: &str) -> Result<Vec<i64>> {
    match t.dtype() {
        DType::Bool => ints(&t.convert(DType::I64), what),
        _ => ints(t, what),
    }
}

/// As [`ints`], where none is negative.
pub(super) fn sizes(t: &Tensor, what: &str) -> Result<Vec<usize>> {
    let all = ints(t, what)?.into_iter().map(usize::try_from).collect::<Result<Vec<_>, _>>();
    all.map_err(|_| wrong(format!("{what} has a negative entry")))
}

/// As [`sizes`], of a shape that arrays may have.
pub(super) fn shape(t: &Tensor, what: &str) -> Result<Vec<usize>> {
    let all = sizes(t, what)?;
    let bytes = all.iter().try_fold(8usize, |n, d| n.checked_mul((*d).max(1)));
    match bytes {
        Some(n) if n < 1 << 46 => Ok(all),
        _ => Err(wrong(format!("{what}: {all:?} is too large"))),
    }
}
