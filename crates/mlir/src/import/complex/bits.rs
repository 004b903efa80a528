//! Imports bitcasts between complex numbers and other element types; the real part comes first.

use crate::import::complex_number::RealOrComplex;
use crate::import::types::wrong;
use systole_base::{Result, TensorType};
use systole_ir::Tensor;

/// Imports `bitcast_convert` with a complex operand or result; `to` is the type of the result or of its parts.
pub(super) fn cast(x: &RealOrComplex, to: &TensorType, complex: bool) -> Result<RealOrComplex> {
    if x.is_complex() && complex && x.ty() == to {
        return Ok(x.clone());
    }
    // Real elements with the parts along a last dimension, then those of the result.
    let parts = if x.is_complex() { stacked(x) } else { x.re.clone() };
    let wide = if complex { to.with_shape([to.shape.dims(), &[2]].concat()) } else { to.clone() };
    let cast = regrouped(&parts, &wide)?;
    if !complex {
        return Ok(RealOrComplex::real(cast));
    }
    let last = to.rank();
    let part = |p: usize| cast.slice_dim(last, p, p + 1).reshape(to.shape.clone());
    Ok(RealOrComplex::complex(part(0), part(1)))
}

fn stacked(x: &RealOrComplex) -> Tensor {
    let shape: Vec<usize> = x.shape().iter().copied().chain([1]).collect();
    let parts = [x.re.reshape(&shape[..]), x.imag().reshape(&shape[..])];
    Tensor::concatenate(&[&parts[0], &parts[1]], x.rank())
}

/// Bitcasts to elements of another width.
fn regrouped(x: &Tensor, to: &TensorType) -> Result<Tensor> {
    let bits = |ty: &TensorType| ty.elements().checked_mul(ty.dtype.size());
    if bits(x.ty()) != bits(to) {
        return Err(wrong(format!("cannot bitcast {} to {to}: the numbers of bits differ", x.ty())));
    }
    let (from_size, to_size) = (x.dtype().size(), to.dtype.size());
    let total = x.ty().elements();
    let flat = if from_size < to_size {
        let k = to_size / from_size;
        x.reshape([total / k, k]).bitcast_convert(to.dtype)
    } else {
        x.reshape([total]).bitcast_convert(to.dtype)
    };
    Ok(flat.reshape(to.shape.clone()))
}
