//! A convolution with the statistics of its result.

use super::check::{Checked, holds, op_with_bias};
use systole_ir::op::Convolution;
use systole_ir::{DType, TensorType};

/// `x: T[B, …, C], kernel[, bias: T[F]] → y: T[B, …', F], sum: f32[B, F], squares: f32[B, F]`: a convolution with
/// channels last, the sum of each sample's features over its pixels, and that of the squares of their distances from
/// their mean.
#[derive(Clone, Debug)]
pub struct Moments {
    /// The convolution: without holes in its input, and of one group.
    pub conv: Convolution,
    /// Whether a bias follows the kernel.
    pub bias: bool,
}

impl Moments {
    /// A short name for listings and profiles.
    pub(super) fn name(&self) -> String {
        format!("convolution{}+moments", if self.bias { "+bias" } else { "" })
    }

    /// Types of operands and results.
    pub(super) fn check(&self, ins: &[TensorType], outs: &[TensorType]) -> Checked {
        let [y, sum, squares] = outs else { return Err(format!("{} results of statistics", outs.len())) };
        op_with_bias(&self.conv.clone().into(), self.bias, ins, std::slice::from_ref(y))?;
        let elements = y.shape[0] * y.shape[y.rank() - 1];
        let fits = |ty: &TensorType| ty.dtype == DType::F32 && ty.elements() == elements;
        holds(fits(sum) && fits(squares), || format!("statistics {sum}, {squares} of {y}"))
    }
}
