//! What a product of matrices computes: the roles of its operands' dimensions, and what happens to its sums besides.

use crate::kernel::copy::Dim;
use systole_ir::TensorType;

/// One operand's dimensions in the roles of a product, distances in elements.
#[derive(Clone, Debug)]
pub struct Roles {
    pub batch: Vec<Dim>,
    /// Rows or columns.
    pub free: Vec<Dim>,
    pub inner: Vec<Dim>,
}

/// Combinations of indices.
pub fn count(dims: &[Dim]) -> usize {
    dims.iter().map(|d| d.size).product()
}

/// Offsets of all combinations of indices, in order.
pub fn offsets(dims: &[Dim]) -> Vec<usize> {
    let mut all = vec![0];
    for d in dims {
        all = all.iter().flat_map(|&at| (0..d.size).map(move |i| at + i * d.src as usize)).collect();
    }
    all
}

/// The one distance by which a list of dimensions can be walked, if there is one.
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

/// An operand's dimensions in their roles.
pub fn roles(ty: &TensorType, batch: &[usize], free: &[usize], inner: &[usize]) -> Roles {
    let strides = ty.shape.strides();
    let pick = |dims: &[usize]| -> Vec<Dim> {
        dims.iter().map(|&d| Dim { size: ty.shape[d], src: strides[d] as isize, dst: 0 }).collect()
    };
    Roles { batch: pick(batch), free: pick(free), inner: pick(inner) }
}

/// What happens to the products besides.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Epilogue {
    /// A third operand, one element for each column, is added.
    pub bias: bool,
    /// The products are added to what the result holds.
    pub accumulate: bool,
}
