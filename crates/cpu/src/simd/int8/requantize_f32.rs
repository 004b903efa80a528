//! Requantizes with one f32 multiply-add, used only if it reproduces TFLite's rounding for every possible sum.

use crate::simd::int8::requantize_ref::RequantizeScale;

/// The result of an accumulator x is `⌊(x − shift) · (high + low) + start⌋`, clamped. The inner product with `low` is
/// rounded to f32 and the outer one down, so that integers are exact.
#[derive(Clone, Debug)]
pub struct RequantizeF32 {
    /// Subtracted from the initial accumulators, so that results are near 0 where shifted accumulators are.
    pub shift: Vec<i32>,
    pub high: Vec<f32>,
    pub low: Vec<f32>,
    pub start: Vec<f32>,
    /// Start for negative accumulators and for the shifted accumulator 0: rounding half away from zero is not
    /// symmetric.
    pub below: Vec<f32>,
    pub limit: Vec<i32>,
    pub is_signed: bool,
}

/// Line fitted to one column.
#[derive(Clone, Copy, Default)]
struct FittedLine {
    shift: i64,
    high: f32,
    low: f32,
    start: f32,
    below: f32,
}

impl RequantizeF32 {
    /// Returns parameters that give the exact int8 results for all accumulators up to the magnitudes `bounds`, or
    /// `None` if there are none. Lists are padded to `whole` columns. `ends`: zero point, minimum and maximum of the
    /// result.
    pub fn of(
        scaled: &RequantizeScale,
        bounds: &[i64],
        ends: [i32; 3],
        whole: usize,
    ) -> Option<RequantizeF32> {
        let column = |(column, bound): (usize, &i64)| ColumnSamples::of(scaled, column, *bound, ends);
        let columns: Vec<ColumnSamples> = bounds.iter().enumerate().map(column).collect::<Option<_>>()?;
        let lines =
            |is_signed| columns.iter().map(|c| c.line(is_signed)).collect::<Option<Vec<FittedLine>>>();
        let (is_signed, mut all) = match lines(false) {
            Some(all) => (false, all),
            None => (true, lines(true)?),
        };
        all.resize(whole, FittedLine::default());
        Some(RequantizeF32 {
            shift: all.iter().map(|line| line.shift as i32).collect(),
            high: all.iter().map(|line| line.high).collect(),
            low: all.iter().map(|line| line.low).collect(),
            start: all.iter().map(|line| line.start).collect(),
            below: all.iter().map(|line| line.below).collect(),
            limit: all.iter().map(|line| -line.shift as i32).collect(),
            is_signed,
        })
    }
}

impl RequantizeF32 {
    /// Returns a copy with each list permuted.
    pub fn in_order(
        &self,
        ints: impl Fn(&[i32]) -> Vec<i32>,
        floats: impl Fn(&[f32]) -> Vec<f32>,
    ) -> RequantizeF32 {
        RequantizeF32 {
            shift: ints(&self.shift),
            high: floats(&self.high),
            low: floats(&self.low),
            start: floats(&self.start),
            below: floats(&self.below),
            limit: ints(&self.limit),
            is_signed: self.is_signed,
        }
    }
}

/// Sample points of a column in ascending order. Between two points the result is constant or increasing.
struct ColumnSamples {
    points: Vec<SamplePoint>,
    slope: f64,
    shift: i64,
    /// The slope as two floats.
    high: f32,
    low: f32,
    /// Minimum and maximum of the result; accumulators beyond them are not sampled.
    bounds: [i64; 2],
}

/// An accumulator, its result, and the line's rise from its start.
struct SamplePoint {
    sum: i64,
    y: i64,
    rise: f64,
}

/// Integers up to this magnitude are exact in f32.
const EXACT: i64 = 1 << 24;

impl ColumnSamples {
    fn of(
        scaled: &RequantizeScale,
        column: usize,
        bound: i64,
        [zero, low, high]: [i32; 3],
    ) -> Option<ColumnSamples> {
        let slope = scaled.slope(column);
        let bounds = [i64::from(low), i64::from(high)];
        let y = |sum: i64| scaled.exact(column, sum, zero).clamp(bounds[0], bounds[1]);
        let (least, most) = (y(-bound), y(bound));
        let mut points = vec![(-bound, least)];
        // Reject negative slopes; a slope may be tiny only if the result is constant.
        if least > most || (least < most && !(0.5f64.powi(16)..2.0).contains(&slope)) {
            return None;
        }
        for v in least + 1..=most {
            let guess = ((v - i64::from(zero)) as f64 - 0.5) / slope;
            let mut sum = (guess.ceil() as i64).clamp(1 - bound, bound);
            let (mut before, mut at) = (y(sum - 1), y(sum));
            while before >= v {
                sum -= 1;
                (before, at) = (y(sum - 1), before);
            }
            while at < v {
                sum += 1;
                (before, at) = (at, y(sum));
            }
            // Steep lines skip results.
            points.extend([(sum - 1, before), (sum, at)]);
        }
        points.extend([(-1, y(-1)), (0, y(0)), (bound, most)]);
        points.retain(|(sum, _)| sum.abs() <= bound);
        let (slope, shift) = match least == most {
            true => (0.0, 0),
            // The remainder of the start is less than a step.
            false => (slope, ((-0.5 - f64::from(zero)) / slope).round() as i64),
        };
        let farthest = bound + shift.abs();
        if farthest >= (1 << 31) - 512 || farthest as f64 * slope >= 2f64.powi(30) {
            return None;
        }
        let high = slope as f32;
        let low = (slope - f64::from(high)) as f32;
        let rise = |sum: i64| {
            let x = (sum - shift) as f64;
            x * f64::from(high) + x * f64::from(low)
        };
        let points = points.into_iter().map(|(sum, y)| SamplePoint { sum, y, rise: rise(sum) }).collect();
        Some(ColumnSamples { points, slope, shift, high, low, bounds })
    }

    /// Fits a line through all points, with one start for all, or one per sign of the accumulator.
    fn line(&self, is_signed: bool) -> Option<FittedLine> {
        let mut line =
            FittedLine { shift: self.shift, high: self.high, low: self.low, ..FittedLine::default() };
        (line.start, line.below) = match is_signed {
            false => self.start(|_| true).map(|start| (start, start))?,
            true => (self.start(|sum| sum >= 0)?, self.start(|sum| sum < 0)?),
        };
        self.holds(&line).then_some(line)
    }

    /// Returns the middle of the interval of starts that give the results of the selected accumulators.
    fn start(&self, of: impl Fn(i64) -> bool) -> Option<f32> {
        let (mut least, mut most) = (f64::MIN, f64::MAX);
        for SamplePoint { y, rise, .. } in self.points.iter().filter(|p| of(p.sum)) {
            if *y > self.bounds[0] {
                least = least.max(*y as f64 - rise);
            }
            if *y < self.bounds[1] {
                most = most.min((y + 1) as f64 - rise);
            }
        }
        let half = (self.slope / 2.0).max(0.25);
        match (least > f64::MIN, most < f64::MAX) {
            (true, true) => (least <= most).then_some(((least + most) / 2.0) as f32),
            (true, false) => Some((least + half) as f32),
            (false, true) => Some((most - half) as f32),
            (false, false) => Some(0.0),
        }
    }

    /// Whether rounding errors cannot move any point across an integer.
    fn holds(&self, line: &FittedLine) -> bool {
        self.points.iter().all(|SamplePoint { sum, y, rise }| {
            let start = f64::from(if *sum < 0 { line.below } else { line.start });
            let at = rise + start;
            let x = (sum - self.shift).abs();
            let inner = x as f64 * f64::from(line.low).abs() + start.abs();
            let rounded = if x < EXACT { 0.0 } else { x as f64 * self.slope };
            let error = (inner + rounded) * 0.5f64.powi(24) + 0.5f64.powi(40);
            let [least, most] = self.bounds;
            (*y == least || at >= *y as f64 + error) && (*y == most || at < (y + 1) as f64 - error)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::int8::i32x16::{I32x16, PortableI32x16};
    use crate::simd::int8::requantize_ref::FixedPointScale;
    use systole_ir::rng::RandomStream;

    fn fixed(multiplier: i32, left: i32, right: i32) -> RequantizeScale {
        let [left, multiplier, right, half, some] = [left, multiplier, right, 0, 0].map(|v| vec![v]);
        let (is_shifted, is_bounded, has_zero) = (false, false, false);
        RequantizeScale::Fixed(FixedPointScale {
            left,
            multiplier,
            right,
            half,
            some,
            is_shifted,
            is_bounded,
            has_zero,
        })
    }

    /// Returns the results of sixteen accumulators from `first` on.
    fn by_line<L: I32x16>(near: &RequantizeF32, first: i64) -> PortableI32x16 {
        let bits = |v: f32| L::splat(v.to_bits() as i32);
        let sums: PortableI32x16 = std::array::from_fn(|i| (first + i as i64) as i32 - near.shift[0]);
        // SAFETY: sixteen lanes.
        let x = unsafe { L::load(sums.as_ptr()) };
        let start = match near.is_signed {
            true => x.choose(L::splat(near.limit[0]), bits(near.below[0]), bits(near.start[0])),
            false => bits(near.start[0]),
        };
        let mut all = [0; 16];
        // SAFETY: as above.
        unsafe { x.near(bits(near.high[0]), bits(near.low[0]), start).store(all.as_mut_ptr()) };
        all
    }

    /// Compares the line with the definition for all accumulators up to a bound.
    fn check(scaled: &RequantizeScale, bound: i64, ends: [i32; 3], name: &str) {
        let near =
            RequantizeF32::of(scaled, &[bound], ends, 1).unwrap_or_else(|| panic!("{name} has no line"));
        let mut kinds = vec![by_line::<PortableI32x16> as fn(&RequantizeF32, i64) -> PortableI32x16];
        #[cfg(target_arch = "x86_64")]
        if crate::Level::Avx512.is_available() {
            #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,f16c")]
            fn avx512(near: &RequantizeF32, first: i64) -> PortableI32x16 {
                by_line::<std::arch::x86_64::__m512i>(near, first)
            }
            // SAFETY: the machine has AVX-512.
            kinds.push(|near, first| unsafe { avx512(near, first) });
        }
        for first in (-bound..=bound - 15).step_by(16).chain([bound - 15]) {
            for kind in &kinds {
                for (i, y) in kind(&near, first).into_iter().enumerate() {
                    let sum = first + i as i64;
                    let expected = scaled.exact(0, sum, ends[0]).clamp(ends[1].into(), ends[2].into());
                    let y = i64::from(y).clamp(ends[1].into(), ends[2].into());
                    assert_eq!(y, expected, "{name}, sum {sum}: {near:?}");
                }
            }
        }
    }

    #[test]
    fn lines_have_the_bytes_of_two_roundings() {
        let mut stream = RandomStream::new(12, 1, 0);
        for right in 0..12 {
            for [zero, low, high] in [[-128, -128, 127], [7, -128, 127], [-3, -3, 60], [0, -128, 127]] {
                let drawn = (1 << 30) + stream.below(1 << 30) as i32;
                for multiplier in [1 << 30, drawn, i32::MAX] {
                    let name = format!("{multiplier} / 2^(31 + {right}) around {zero} from {low}");
                    check(&fixed(multiplier, 0, right), 200 << right, [zero, low, high], &name);
                }
            }
        }
        check(&fixed(1_500_000_000, 1, 0), 500, [4, -128, 127], "twice");
        check(&fixed(0, 0, 3), 5000, [4, -128, 127], "nothing");
        check(&fixed(1 << 30, 0, 28), 5000, [-4, -128, 127], "next to nothing");
        for factor in [0.5, 1.0, 0.3, 1e-3 * std::f64::consts::PI] {
            let bound = (200.0 / factor) as i64;
            check(&RequantizeScale::Factor(vec![factor]), bound, [3, -128, 127], &format!("{factor}"));
        }
        assert!(
            RequantizeF32::of(&RequantizeScale::Factor(vec![-0.5]), &[1000], [0, -128, 127], 1).is_none()
        );
        assert!(RequantizeF32::of(&fixed(1 << 30, 0, 19), &[1 << 29], [0, -128, 127], 1).is_none());
    }
}
