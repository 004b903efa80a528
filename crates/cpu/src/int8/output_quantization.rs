//! Output quantization parameters of an int8 layer, and the checks that requantization cannot overflow.

use crate::int8::isa::Int8Isa;
use crate::simd::int8::COLUMNS;
use crate::simd::int8::requantize::RequantizeParams;
use crate::simd::int8::requantize_f32::RequantizeF32;
use crate::simd::int8::requantize_ref::{FixedPointScale, RequantizeScale};

/// Bias, scale, zero point and clamping range that turn a layer's int32 accumulators into int8 results.
#[derive(Clone, Debug)]
pub struct OutputQuantization<'a> {
    /// One bias per column.
    pub bias: Option<&'a [i32]>,
    /// Per-tensor or per-column scale.
    pub scale: OutputScale,
    /// Zero point of the result.
    pub zero: i32,
    /// Minimum of the result.
    pub low: i32,
    /// Maximum of the result.
    pub high: i32,
}

/// Factor that int32 accumulators are multiplied by: fixed-point or double precision.
#[derive(Clone, Debug)]
pub enum OutputScale {
    /// Fixed-point factor `(m, shift)`: `m · 2^(shift − 31)`, `m ≥ 0`, rounded twice (TFLite convolutions).
    Fixed(Vec<(i32, i32)>),
    /// Double-precision factor, rounded half away from zero (TFLite dense layers).
    Factor(Vec<f64>),
}

/// Upper limit of an accumulator's magnitude; larger sums could wrap around.
const LIMIT: i64 = (1 << 31) - 512;

/// Returns requantization parameters for accumulators that start at `start` and whose magnitude is at most `bounds`.
/// Returns `None` if an intermediate value could overflow 32 bits.
pub(super) fn ends(output: &OutputQuantization, start: &[i32], bounds: &[i64]) -> Option<RequantizeParams> {
    let n = start.len();
    let whole = n.next_multiple_of(COLUMNS);
    let in_panels = |mut v: Vec<i32>| {
        v.resize(whole, 0);
        v
    };
    let known = (-128..=127).contains(&output.zero)
        && (-128..=127).contains(&output.low)
        && (-128..=127).contains(&output.high)
        && bounds.iter().all(|b| (0..LIMIT).contains(b));
    let of = |i: usize, all: usize| if all == 1 { 0 } else { i };
    let scaled = match &output.scale {
        OutputScale::Fixed(all) if all.len() == 1 || all.len() == n => {
            let all: Vec<(i32, i32)> = (0..n).map(|i| all[of(i, all.len())]).collect();
            let half = |right: i32| ((1i64 << right) >> 1) as i32;
            let holds = |(&(m, shift), &bound): (&(i32, i32), &i64)| {
                m >= 0
                    && (-31..=30).contains(&shift)
                    && (bound << shift.max(0)) < LIMIT - i64::from(half((-shift).max(0)))
            };
            if !all.iter().zip(bounds).all(holds) {
                return None;
            }
            // The zero point is added before the division if no sum can overflow by that.
            let more = |right: i32| i64::from(half(right)) + (i64::from(output.zero) << right);
            let has_room = |(&(_, shift), &bound): (&(i32, i32), &i64)| {
                (bound << shift.max(0)) + more((-shift).max(0)).abs() < LIMIT
            };
            let has_zero = all.iter().zip(bounds).all(has_room);
            let start = |right: i32| if has_zero { more(right) as i32 } else { half(right) };
            let [left, right] =
                [1, -1].map(|sign| all.iter().map(|s| (sign * s.1).max(0)).collect::<Vec<_>>());
            RequantizeScale::Fixed(FixedPointScale {
                is_shifted: left.iter().any(|l| *l > 0),
                is_bounded: output.low >= output.zero,
                has_zero,
                half: in_panels(right.iter().map(|r| start(*r)).collect()),
                some: in_panels(right.iter().map(|r| -i32::from(*r > 0)).collect()),
                multiplier: in_panels(all.iter().map(|s| s.0).collect()),
                left: in_panels(left),
                right: in_panels(right),
            })
        }
        OutputScale::Factor(all) if all.len() == 1 || all.len() == n => {
            let mut all: Vec<f64> = (0..n).map(|i| all[of(i, all.len())]).collect();
            let holds = |(f, bound): (&f64, &i64)| f.is_finite() && f.abs() * (*bound as f64) < LIMIT as f64;
            if !all.iter().zip(bounds).all(holds) {
                return None;
            }
            all.resize(whole, 0.0);
            RequantizeScale::Factor(all)
        }
        _ => return None,
    };
    let (zero, low, high) = (output.zero, output.low, output.high);
    known.then(|| RequantizeParams { bias: in_panels(start.to_vec()), scaled, near: None, zero, low, high })
}

/// Like [`ends`], but with cheaper run-time code if the instruction set supports it. Takes longer to construct; use it
/// for layers that run often.
pub(super) fn fast_ends(
    unit: Int8Isa,
    output: &OutputQuantization,
    start: &[i32],
    bounds: &[i64],
) -> Option<RequantizeParams> {
    let mut ends = ends(output, start, bounds)?;
    if unit.rounds_downwards() {
        ends.near =
            RequantizeF32::of(&ends.scaled, bounds, [ends.zero, ends.low, ends.high], ends.bias.len());
        let shifts = ends.near.iter().flat_map(|near| &near.shift);
        ends.bias.iter_mut().zip(shifts).for_each(|(b, shift)| *b -= shift);
    }
    Some(ends)
}

/// Returns the initial accumulators and the largest possible magnitudes for `n` columns of weights, given the input's
/// zero point. `weights(i)`: the weights of column `i`.
pub(super) fn starts<'w>(
    output: &OutputQuantization,
    n: usize,
    input_zero: i32,
    weights: impl Fn(usize) -> Box<dyn Iterator<Item = i8> + 'w>,
) -> Option<(Vec<i32>, Vec<i64>)> {
    let most = i64::from((127 - input_zero).max(input_zero + 128));
    if !(-128..=127).contains(&input_zero) || output.bias.is_some_and(|b| b.len() != n) {
        return None;
    }
    let one = |i: usize| {
        let add = |(sum, size): (i64, i64), w: i8| (sum + i64::from(w), size + i64::from(w).abs());
        let (sum, size) = weights(i).fold((0, 0), add);
        let bias = output.bias.map_or(0, |b| i64::from(b[i]));
        ((bias - i64::from(input_zero) * sum) as i32, bias.abs() + most * size)
    };
    Some((0..n).map(one).unzip())
}
