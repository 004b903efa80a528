//! GEMM description (`dot_general`): batch, free (M or N) and contracting (K) dimensions, and epilogue.

use crate::kernel::copy::Dim;
use systole_ir::TensorType;

/// Dimensions of one operand by role. `src` of a [`Dim`] is its stride in elements; `dst` is not used.
#[derive(Clone, Debug)]
pub struct OperandDims {
    pub batch: Vec<Dim>,
    /// M of the left operand, N of the right one.
    pub free: Vec<Dim>,
    pub inner: Vec<Dim>,
}

/// Returns the number of index combinations of some dimensions.
pub fn count(dims: &[Dim]) -> usize {
    dims.iter().map(|d| d.size).product()
}

/// Returns the element offsets of all index combinations of some dimensions, in row-major order.
pub fn offsets(dims: &[Dim]) -> Vec<usize> {
    let mut all = vec![0];
    for d in dims {
        all = all.iter().flat_map(|&at| (0..d.size).map(move |i| at + i * d.src as usize)).collect();
    }
    all
}

/// Returns the stride of the dimensions as one flattened dimension, if they have one.
pub fn joint_stride(dims: &[Dim]) -> Option<usize> {
    let mut stride = None;
    let mut expected = 0;
    for d in dims.iter().rev().filter(|d| d.size != 1) {
        if stride.is_none() {
            stride = Some(d.src as usize);
        } else if d.src as usize != expected {
            return None;
        }
        expected = d.src as usize * d.size;
    }
    Some(stride.unwrap_or(1))
}

/// Returns the dimensions of a dense row-major operand by role.
pub fn roles(ty: &TensorType, batch: &[usize], free: &[usize], inner: &[usize]) -> OperandDims {
    let strides = ty.shape.strides();
    let pick = |dims: &[usize]| -> Vec<Dim> {
        dims.iter().map(|&d| Dim { size: ty.shape[d], src: strides[d] as isize, dst: 0 }).collect()
    };
    OperandDims { batch: pick(batch), free: pick(free), inner: pick(inner) }
}

/// Values added to the GEMM's sums.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Epilogue {
    /// Whether a third operand, `bias: [N]`, is added.
    pub bias: bool,
    /// Whether the previous contents of the result are added (beta = 1).
    pub accumulate: bool,
}
