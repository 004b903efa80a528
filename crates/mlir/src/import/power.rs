//! Imports powers with a constant exponent of −1, 0.5, 2, 3 or 4 as a division, a root or products.
//!
//! XLA multiplies likewise for 2 and 3 (AlgebraicSimplifier), so that `x ** 3` has the bits of `x * x * x`. Only imported
//! programs do this: runs of models keep the bits of the op.

use super::call::{ArrayCall, OpResults};
use systole_base::DType;
use systole_ir::Tensor;

/// Imports `power` of floats; `None` for other exponents.
pub(super) fn power(c: &ArrayCall) -> OpResults {
    let [x, y] = c.all::<2>()?;
    // Each product of narrow floats is rounded, where a power is rounded once.
    let is_wide = matches!(x.dtype(), DType::F32 | DType::F64);
    let square = || x * x;
    let exponent = y.known_splat().filter(|_| x.dtype().is_float());
    Ok(exponent.and_then(|exponent| match exponent.as_f64() {
        -1.0 => Some(vec![x.ones_like() / x]),
        0.5 => Some(vec![root(x)]),
        2.0 => Some(vec![square()]),
        3.0 if is_wide => Some(vec![square() * x]),
        4.0 if is_wide => Some(vec![&square() * &square()]),
        _ => None,
    }))
}

/// √x, with the values of the power at −0 and −∞: 0 and ∞.
fn root(x: &Tensor) -> Tensor {
    let root = (x + &x.zeros_like()).sqrt();
    x.equal(&x.scalar_like(f64::NEG_INFINITY).broadcast_in_dim(x.shape(), &[]))
        .select(&x.scalar_like(f64::INFINITY).broadcast_in_dim(x.shape(), &[]), &root)
}
