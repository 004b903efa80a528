//! Splits convolutions with input dilation (transposed convolutions, input gradients) into phases: output positions
//! that use the same filter taps.
//!
//! With input dilation `d` and stride `s` there are `d / gcd(d, s)` phases: one without input dilation, and as many as
//! the layer's stride in the input gradient of a strided layer. Each phase is a convolution of the input without
//! dilation, so no inserted zero is multiplied.

use crate::kernels::conv::staging::StagedAxis;
use smallvec::SmallVec;
use systole_ir::TensorType;
use systole_ir::op::Convolution;

/// Phase of one dimension: its taps as (filter coordinate, staged coordinate), and its output positions.
pub struct AxisPhase {
    pub taps: Vec<(usize, usize)>,
    pub count: usize,
}

/// Returns the staged axis of dimension `i` of a dilated convolution, and its phases.
///
/// Phase `p` of `n` has the outputs `p`, `p + n`, `p + 2n`, … `size`, `window` and `out` are the elements of input,
/// filter and output.
pub fn axis(
    c: &Convolution,
    i: usize,
    size: usize,
    window: usize,
    out: usize,
) -> (StagedAxis, Vec<AxisPhase>) {
    let (lhs_dilation, stride, dilation) = (c.lhs_dilation[i], c.strides[i], c.rhs_dilation[i]);
    let common =
        (1..=lhs_dilation.min(stride)).rev().find(|g| lhs_dilation % g == 0 && stride % g == 0).unwrap_or(1);
    let (count, step) = (lhs_dilation / common, stride / common);
    let taps_of = |phase: usize| -> Vec<(usize, i64)> {
        let at = |w: usize| (phase * stride + w * dilation) as i64 - c.padding[i][0];
        let meets = (0..window).filter(|&w| at(w).rem_euclid(lhs_dilation as i64) == 0);
        let place = |w: usize| if c.reversal[i] { window - 1 - w } else { w };
        meets.map(|w| (place(w), at(w).div_euclid(lhs_dilation as i64))).collect()
    };
    let all: Vec<Vec<(usize, i64)>> = (0..count).map(taps_of).collect();
    let places = || all.iter().flatten().map(|t| t.1);
    let (low, high) = (places().min().unwrap_or(0), places().max().unwrap_or(0));
    // If every pixel reads a single input element, only these elements are staged.
    let (unit, step) = if low == high && count == 1 { (step, 1) } else { (1, step) };
    let reach = (high - low) as usize + 1;
    let axis = StagedAxis { size, lhs_dilation: 1, low, unit, step, reach, count: out.div_ceil(count) };
    let phase = |(p, taps): (usize, &Vec<(usize, i64)>)| AxisPhase {
        taps: taps.iter().map(|&(w, at)| (w, (at - low) as usize)).collect(),
        count: out.saturating_sub(p).div_ceil(count),
    };
    (axis, all.iter().enumerate().map(phase).collect())
}

/// Returns all combinations of one dilation phase per dimension.
pub fn choices(counts: &[usize]) -> Vec<SmallVec<[usize; 3]>> {
    let mut all = vec![SmallVec::new()];
    for &count in counts {
        let with = |c: &SmallVec<[usize; 3]>, p: usize| {
            let mut c = c.clone();
            c.push(p);
            c
        };
        all = all.iter().flat_map(|c| (0..count).map(move |p| with(c, p))).collect();
    }
    all
}

/// Returns the axes of `x: [B, …, C]` for a filter gradient `y: [taps, C, F]` from `dy: [B, …', F]`.
///
/// Autodiff swaps the roles: pixels are those of `dy` and `rhs_dilation` apart, taps are `strides` apart.
pub fn gradient_axes(c: &Convolution, x: &TensorType, dy: &TensorType, y: &TensorType) -> Vec<StagedAxis> {
    let axis = |i: usize| {
        let (taps, step) = (y.shape[i], c.rhs_dilation[i]);
        // If every pixel reads a single input element, only these elements are staged.
        let (unit, step) = if taps == 1 { (step, 1) } else { (1, step) };
        let reach = (taps - 1) * c.strides[i] + 1;
        let (size, lhs_dilation, count) = (x.shape[i + 1], c.lhs_dilation[i], dy.shape[i + 1]);
        StagedAxis { size, lhs_dilation, low: -c.padding[i][0], unit, step, reach, count }
    };
    (0..c.dims.input_spatial.len()).map(axis).collect()
}

/// Returns staged coordinates of the filter taps along each axis, for the filter gradient.
pub fn gradient_taps(c: &Convolution, y: &TensorType) -> Vec<Vec<usize>> {
    let n = c.dims.input_spatial.len();
    (0..n).map(|i| (0..y.shape[i]).map(|t| t * c.strides[i]).collect()).collect()
}
