//! What becomes of sums, as callers say it, and what must hold for it.

use crate::int8::isa::Int8Isa;
use crate::simd::int8::COLUMNS;
use crate::simd::int8::requantize::RequantizeParams;
use crate::simd::int8::requantize_f32::RequantizeF32;
use crate::simd::int8::requantize_ref::RequantizeScale;

/// What becomes of the sums of a layer: a bias, a scale, a zero point and bounds.
#[derive(Clone, Debug)]
pub struct OutputQuantization<'a> {
    /// For each column.
    pub bias: Option<&'a [i32]>,
    /// One for all columns, or one for each.
    pub scale: OutputScale,
    /// Zero point of the result.
    pub zero: i32,
    /// Its least value.
    pub low: i32,
    /// Its greatest value.
    pub high: i32,
}

/// What sums are multiplied with.
#[derive(Clone, Debug)]
pub enum OutputScale {
    /// `m · 2^(shift − 31)`, `m ≥ 0`, rounded twice: convolutions.
    Fixed(Vec<(i32, i32)>),
    /// Doubles, rounded half away from zero: dense layers.
    Factor(Vec<f64>),
}

/// A sum's magnitude that could wrap around.
const LIMIT: i64 = (1 << 31) - 512;

/// The ends of sums that begin with `start` and whose magnitude is at most `bounds`; `None`: a number could leave 32 bits.
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
            // The zero point is added before the division where no sum becomes too large by it.
            let more = |right: i32| i64::from(half(right)) + (i64::from(output.zero) << right);
            let has_room = |(&(_, shift), &bound): (&(i32, i32), &i64)| {
                (bound << shift.max(0)) + more((-shift).max(0)).abs() < LIMIT
            };
            let has_zero = all.iter().zip(bounds).all(has_room);
            let start = |right: i32| if has_zero { more(right) as i32 } else { half(right) };
            let [left, right] =
                [1, -1].map(|sign| all.iter().map(|s| (sign * s.1).max(0)).collect::<Vec<_>>());
            RequantizeScale::Fixed {
                is_shifted: left.iter().any(|l| *l > 0),
                is_bounded: output.low >= output.zero,
                has_zero,
                half: in_panels(right.iter().map(|r| start(*r)).collect()),
                some: in_panels(right.iter().map(|r| -i32::from(*r > 0)).collect()),
                multiplier: in_panels(all.iter().map(|s| s.0).collect()),
                left: in_panels(left),
                right: in_panels(right),
            }
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

/// As [`ends`], in fewer instructions where the unit has them: it takes longer, and is for what runs often.
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

/// Sums of `n` columns of weights, where inputs have a zero point: what they begin with, and their greatest magnitude.
/// `weights(i)` are those of column `i`.
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
