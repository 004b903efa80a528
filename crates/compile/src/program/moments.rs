//! A convolution with the statistics of its result.

use systole_ir::op::Convolution;

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
}
