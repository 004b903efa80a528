//! How a result is cut into Winograd tiles, and the cost model that says when transforms pay.

use crate::kernels::conv::staging::StagedAxis;
use crate::kernels::conv::strips::strip_arrays::is_paired;
use crate::select::SelectResult;
use crate::simd::level::CompileTarget;
use crate::simd::winograd::COMPONENTS;
use systole_ir::TensorType;

/// Refusals by the Winograd kernels.
pub const NO_WINDOW: &str = "its window is not 3 by 3 of unit strides and dilations: F(2×2, 3×3) has no tiles for others, \
                             which would need transforms of their own";
pub const NO_GAIN: &str = "transforms cost more than the products that they save";

/// Refuses where Winograd is off: option winograd, SYSTOLE_WINOGRAD, or where pairs of bf16 are better at any size.
pub fn may_transform(target: CompileTarget, [x, k]: [&TensorType; 2]) -> SelectResult<()> {
    if !target.winograd {
        return Err("Winograd is off: option winograd, SYSTOLE_WINOGRAD".into());
    }
    if is_paired(target.level, x, k) {
        return Err(
            "pairs of bf16 are as many products at once as transforms save, and nothing is transformed"
                .into(),
        );
    }
    Ok(())
}

/// Cost of transforming the filter, one way, in multiply-adds for each pair of channel and feature.
const KERNEL: usize = 90;
/// Fewest channels and features, and most pairs of them: the transformed filter takes 64 bytes for each pair.
const NARROWEST: usize = 16;
const MOST_PAIRS: usize = 1 << 20;

/// Cost of the transforms one way, beside the GEMMs, in multiply-adds. Measured where the direct kernel runs at full
/// speed; includes what a short K costs the GEMMs.
pub struct WinogradCosts {
    /// For each tile: of one channel, and of one feature.
    pub channel: usize,
    pub feature: usize,
    /// For each strip: of one element of the transformed filter, or of its sums.
    pub strip: usize,
}

/// Sizes of a convolution's result and of its channels, and the strips that it is cut into.
pub struct WinogradSizes {
    pub batch: usize,
    pub pixels: [usize; 2],
    pub channels: usize,
    pub features: usize,
    pub strips: usize,
}

impl WinogradCosts {
    /// Whether transforms pay for a convolution with a 3×3 filter.
    pub fn pays(&self, s: &WinogradSizes) -> bool {
        let tiles = s.batch * s.pixels[0].div_ceil(2) * s.pixels[1].div_ceil(2);
        let pairs = s.channels * s.features;
        let each = COMPONENTS * pairs + self.channel * s.channels + self.feature * s.features;
        let own = tiles * each + (KERNEL + COMPONENTS * self.strip * s.strips) * pairs;
        let direct = 9 * s.batch * s.pixels[0] * s.pixels[1] * pairs;
        s.channels.min(s.features) >= NARROWEST && pairs <= MOST_PAIRS && own < direct
    }
}

/// The axes of `x: [B, H, W, C]` for a result of so many rows and columns of pixels. A staged pixel is a tile, which
/// reads `reach` by `reach` elements.
pub fn axes(x: &TensorType, padding: &[[i64; 2]], result: [usize; 2], reach: usize) -> Vec<StagedAxis> {
    let axis = |i: usize| StagedAxis {
        size: x.shape[i + 1],
        lhs_dilation: 1,
        low: -padding[i][0],
        unit: 1,
        step: 2,
        reach,
        count: result[i].div_ceil(2),
    };
    vec![axis(0), axis(1)]
}

/// Elements from one transformed tile to the next: whole vectors, and a cache line so that powers of two do not
/// alias.
pub fn padded(channels: usize) -> usize {
    channels.next_multiple_of(16) + 16
}

/// Elements between the arrays of two components, beside what they hold: otherwise the same element of all components
/// could fall into one cache set.
pub const APART: usize = 16;
