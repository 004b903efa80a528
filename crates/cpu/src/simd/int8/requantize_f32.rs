//! What becomes of sums, in fewer instructions: one line in f32 for each column, found where it gives the same bytes for all sums.

use crate::simd::int8::requantize_ref::RequantizeScale;

/// `⌊(x − shift) · (high + low) + start⌋`, bounded, is the result of a sum x. The inner product with `low` is rounded to f32, the outer one
/// downwards, so that whole numbers are met exactly.
#[derive(Clone, Debug)]
pub struct RequantizeF32 {
    /// Is taken off what sums begin with: results are near 0 where shifted sums are.
    pub shift: Vec<i32>,
    pub high: Vec<f32>,
    pub low: Vec<f32>,
    pub start: Vec<f32>,
    /// What sums below 0 start with instead, and the shifted sum 0: rounding half away from zero is not the same on both sides.
    pub below: Vec<f32>,
    pub limit: Vec<i32>,
    pub is_signed: bool,
}

/// A line.
#[derive(Clone, Copy, Default)]
struct FittedLine {
    shift: i64,
    high: f32,
    low: f32,
    start: f32,
    below: f32,
}

impl RequantizeF32 {
    /// The one that gives the same bytes for all sums of magnitudes up to `bounds`, if such is found, in lists of `whole` columns; `ends`: zero
    /// point and bounds of results.
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
    /// The same with all its lists taken anew.
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

/// What is known of a column: sums in order. Between two of them the result is that of both, or only grows.
struct ColumnSamples {
    points: Vec<SamplePoint>,
    slope: f64,
    shift: i64,
    /// The slope as two floats.
    high: f32,
    low: f32,
    /// The least and the greatest result, beyond which nothing is asked.
    bounds: [i64; 2],
}

/// A sum, its result, and how far the line rises to it from its start.
struct SamplePoint {
    sum: i64,
    y: i64,
    rise: f64,
}

/// Sums that f32 has exactly.
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
        // A slope below 0 is no one's; one that changes nothing may be as small as it likes.
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
            // Steep ones leave results out.
            points.extend([(sum - 1, before), (sum, at)]);
        }
        points.extend([(-1, y(-1)), (0, y(0)), (bound, most)]);
        points.retain(|(sum, _)| sum.abs() <= bound);
        let (slope, shift) = match least == most {
            true => (0.0, 0),
            // What is left of the start is less than a step.
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

    /// The line through all points, with one start for all of them or two by the sign of sums.
    fn line(&self, is_signed: bool) -> Option<FittedLine> {
        let mut line =
            FittedLine { shift: self.shift, high: self.high, low: self.low, ..FittedLine::default() };
        (line.start, line.below) = match is_signed {
            false => self.start(|_| true).map(|start| (start, start))?,
            true => (self.start(|sum| sum >= 0)?, self.start(|sum| sum < 0)?),
        };
        self.holds(&line).then_some(line)
    }

    /// The middle of all starts that give the results of those sums.
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

    /// Whether all points lie on their side of whole numbers, by more than what roundings can move them.
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
    use systole_ir::rng::RandomStream;

    fn fixed(multiplier: i32, left: i32, right: i32) -> RequantizeScale {
        let [left, multiplier, right, half, some] = [left, multiplier, right, 0, 0].map(|v| vec![v]);
        let is = false;
        RequantizeScale::Fixed {
            left,
            multiplier,
            right,
            half,
            some,
            is_shifted: is,
            is_bounded: is,
            has_zero: is,
        }
    }

    /// Bytes of sixteen sums from `first` on.
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

    /// All sums up to a bound, by the definition and by the line.
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
            // SAFETY: the machine has it.
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
