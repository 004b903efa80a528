//! Winograd tiling of a convolution's result, and the cost model that decides whether the transforms pay off.

use crate::kernels::conv::staging::StagedAxis;
use crate::kernels::conv::strips::strip_arrays::is_paired;
use crate::select::SelectResult;
use crate::simd::level::CompileTarget;
use crate::simd::winograd::COMPONENTS;
use systole_ir::{TensorType, ensure};

/// Reason why the Winograd kernels reject a convolution: its window is not 3×3 with unit strides.
pub const NO_WINDOW: &str = "its window is not 3×3 with unit strides and dilations: F(2×2, 3×3) has no tiles for other \
                             windows, which would need separate transforms";
/// Reason why the Winograd kernels reject a convolution for which Winograd is slower.
pub const NO_GAIN: &str = "the transforms cost more than the products that they save";

/// Rejects convolutions if Winograd is disabled (option winograd, SYSTOLE_WINOGRAD), or if pairs of bf16 are faster at
/// any size.
pub fn may_transform(target: CompileTarget, [x, k]: [&TensorType; 2]) -> SelectResult<()> {
    ensure!(target.winograd, "Winograd is disabled (option winograd, SYSTOLE_WINOGRAD)".into());
    if is_paired(target.level, x, k) {
        return Err("bf16 pairs save as many products as the transforms would, without transforms".into());
    }
    Ok(())
}

/// Cost of transforming the filter in one direction, in multiply-adds for each pair of channel and feature.
const KERNEL: usize = 90;
/// Minimum channels and features, and maximum pairs of them: the transformed filter takes 64 bytes for each pair.
const NARROWEST: usize = 16;
const MOST_PAIRS: usize = 1 << 20;

/// Cost of the transforms in one direction, in addition to the GEMMs, in multiply-adds.
///
/// Measured for sizes at which the direct kernel runs at full speed; includes what a short K costs the GEMMs.
pub struct WinogradCosts {
    /// Cost per tile of one channel.
    pub channel: usize,
    /// Cost per tile of one feature.
    pub feature: usize,
    /// Cost per strip: of one element of the transformed filter, or of its sums.
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
    /// Whether the transforms pay off for a convolution with a 3×3 filter.
    pub fn pays(&self, s: &WinogradSizes) -> bool {
        let tiles = s.batch * s.pixels[0].div_ceil(2) * s.pixels[1].div_ceil(2);
        let pairs = s.channels * s.features;
        let each = COMPONENTS * pairs + self.channel * s.channels + self.feature * s.features;
        let own = tiles * each + (KERNEL + COMPONENTS * self.strip * s.strips) * pairs;
        let direct = 9 * s.batch * s.pixels[0] * s.pixels[1] * pairs;
        s.channels.min(s.features) >= NARROWEST && pairs <= MOST_PAIRS && own < direct
    }
}

/// Returns the staging axes of `x: [B, H, W, C]` for a result with these rows and columns of pixels. A staged pixel is
/// a tile, which reads `reach` by `reach` elements.
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

/// Elements between transformed tiles: whole vectors, and a cache line so that powers of two do not alias.
pub fn padded(channels: usize) -> usize {
    channels.next_multiple_of(16) + 16
}

/// Padding elements between the arrays of two Winograd components. Without them, the same element of all components
/// could map to one cache set.
pub const APART: usize = 16;
