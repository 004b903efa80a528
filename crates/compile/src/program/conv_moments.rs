//! Describes (as data) a convolution kernel with fused batch-normalization statistics: operands, results, type check.

use super::type_check::{CheckResult, holds, op_with_bias};
use systole_ir::op::Convolution;
use systole_ir::{DType, TensorType};

/// `x: T[B, …, C], kernel[, bias: T[F]] → y: T[B, …', F], sum: f32[B, F], squares: f32[B, F]`: channels-last
/// convolution with statistics. `sum` is the sum over the pixels of `y` for each sample and channel; `squares` is the
/// sum of squared deviations from the mean of the same sample and channel.
#[derive(Clone, Debug)]
pub struct ConvWithMoments {
    /// The convolution: no input dilation, one group.
    pub conv: Convolution,
    /// Whether a bias follows the kernel.
    pub bias: bool,
}

impl ConvWithMoments {
    /// Short name for listings and profiles.
    pub(super) fn name(&self) -> String {
        format!("convolution{}+moments", if self.bias { "+bias" } else { "" })
    }

    /// Checks the types of operands and results.
    pub(super) fn check(&self, ins: &[TensorType], outs: &[TensorType]) -> CheckResult {
        let [y, sum, squares] = outs else {
            return Err(format!("got {} results of a convolution with statistics, expected 3", outs.len()));
        };
        op_with_bias(&self.conv.clone().into(), self.bias, ins, std::slice::from_ref(y))?;
        let elements = y.shape[0] * y.shape[y.rank() - 1];
        let fits = |ty: &TensorType| ty.dtype == DType::F32 && ty.elements() == elements;
        holds(fits(sum) && fits(squares), || {
            format!("statistics have types {sum} and {squares} for a result {y}")
        })
    }
}
