//! Inverse DCT of 8 × 8 JPEG blocks, bit-identical to libjpeg's accurate integer version.
//!
//! "islow": jidctint.c by Thomas G. Lane, after Loeffler, Ligtenberg and Moschytz, ICASSP 1989.

use crate::simd16::*;

/// Fixed-point fraction bits of the constants, and of the intermediate result.
const BITS: i32 = 13;
const PASS: i32 = 2;

/// Transforms the block `coefficients · steps`, both row by row, to samples around 128.
pub(super) fn block(coefficients: &[i16; 64], steps: &[i16; 64]) -> [[u8; 8]; 8] {
    let (c, s): ([Lanes; 8], [Lanes; 8]) = (bytemuck::cast(*coefficients), bytemuck::cast(*steps));
    let rows = std::array::from_fn(|i| mul16(c[i], s[i]));
    let columns = transposed(one_way::<{ BITS - PASS }>(rows));
    samples(one_way::<{ BITS + PASS + 3 }>(columns))
}

/// Like [`block`], if only the first ten coefficients in zigzag order may be nonzero: they are in the upper left
/// quarter.
pub(super) fn corner(coefficients: &[i16; 64], steps: &[i16; 64]) -> [[u8; 8]; 8] {
    let (c, s): ([Lanes; 8], [Lanes; 8]) = (bytemuck::cast(*coefficients), bytemuck::cast(*steps));
    let rows: [Lanes; 4] = std::array::from_fn(|i| mul16(c[i], s[i]));
    let left = half_of_four::<{ BITS - PASS }>(rows, zip16_low).map(|x| narrow32(x, x));
    let columns = left_transposed(left);
    let low = half_of_four::<{ BITS + PASS + 3 }>(columns, zip16_low);
    let high = half_of_four::<{ BITS + PASS + 3 }>(columns, zip16_high);
    samples(std::array::from_fn(|i| narrow32(low[i], high[i])))
}

/// Like [`block`], if only the DC coefficient is nonzero.
pub(super) fn flat(first: i16, step: i16) -> u8 {
    let scaled = i32::from(first.wrapping_mul(step)) << PASS;
    (((scaled + (1 << (PASS + 2))) >> (PASS + 3)) + 128).clamp(0, 255) as u8
}

/// Transforms eight columns side by side, one per lane.
#[inline(always)]
fn one_way<const SHIFT: i32>(x: [Lanes; 8]) -> [Lanes; 8] {
    let (low, high) = (half::<SHIFT>(x, zip16_low), half::<SHIFT>(x, zip16_high));
    std::array::from_fn(|i| narrow32(low[i], high[i]))
}

/// Transforms four columns. The constants are sums of libjpeg's, which are 2¹³ times sums of cosines: a product with
/// each of two numbers and their sum is one instruction.
#[inline(always)]
fn half<const SHIFT: i32>(x: [Lanes; 8], zip: impl Fn(Lanes, Lanes) -> Lanes) -> [Lanes; 8] {
    let dot = |pair: Lanes, a: i16, b: i16| dot16(pair, weights(a, b));
    let (even, odd) = (zip(x[0], x[4]), zip(x[2], x[6]));
    let (sum, difference) = (dot(even, 1 << BITS, 1 << BITS), dot(even, 1 << BITS, -1 << BITS));
    let (outer, inner) = (dot(odd, 10_703, 4_433), dot(odd, 4_433, -10_704));
    let half_even =
        [add32(sum, outer), add32(difference, inner), sub32(difference, inner), sub32(sum, outer)];

    let crossed = zip(add16(x[7], x[3]), add16(x[5], x[1]));
    let (third, fourth) = (dot(crossed, -6_436, 9_633), dot(crossed, 9_633, 6_437));
    let (seven_one, five_three) = (zip(x[7], x[1]), zip(x[5], x[3]));
    let half_odd = [
        add32(dot(seven_one, -7_373, 4_926), fourth),
        add32(dot(five_three, -20_995, 4_177), third),
        add32(dot(five_three, -4_176, -20_995), fourth),
        add32(dot(seven_one, -4_927, -7_373), third),
    ];
    both_ways::<SHIFT>(half_even, half_odd)
}

/// Like [`half`], if the other four inputs are 0: the remaining products have one factor.
#[inline(always)]
fn half_of_four<const SHIFT: i32>(x: [Lanes; 4], zip: impl Fn(Lanes, Lanes) -> Lanes) -> [Lanes; 8] {
    let dot = |pair: Lanes, a: i16, b: i16| dot16(pair, weights(a, b));
    let (even, odd) = (zip(x[0], x[2]), zip(x[1], x[3]));
    let half_even = [10_703, 4_433, -4_433, -10_703].map(|b| dot(even, 1 << BITS, b));
    let half_odd =
        [(11_363, 9_633), (9_633, -2_259), (6_437, -11_362), (2_260, -6_436)].map(|(a, b)| dot(odd, a, b));
    both_ways::<SHIFT>(half_even, half_odd)
}

/// Returns rounded sums for the first four outputs and differences for the others.
#[inline(always)]
fn both_ways<const SHIFT: i32>(even: [Lanes; 4], odd: [Lanes; 4]) -> [Lanes; 8] {
    let even = even.map(|x| add32(x, all32(1 << (SHIFT - 1))));
    std::array::from_fn(|i| {
        let k = i.min(7 - i);
        shift32::<SHIFT>(if i < 4 { add32(even[k], odd[k]) } else { sub32(even[k], odd[k]) })
    })
}

#[inline(always)]
fn weights(a: i16, b: i16) -> Lanes {
    all32(i32::from(b) << 16 | i32::from(a as u16))
}

#[inline(always)]
fn transposed(x: [Lanes; 8]) -> [Lanes; 8] {
    let pair = |i: usize, j: usize| [zip16_low(x[i], x[j]), zip16_high(x[i], x[j])];
    let (a, b, c, d) = (pair(0, 1), pair(2, 3), pair(4, 5), pair(6, 7));
    let four = |a: [Lanes; 2], b: [Lanes; 2]| {
        [zip32_low(a[0], b[0]), zip32_high(a[0], b[0]), zip32_low(a[1], b[1]), zip32_high(a[1], b[1])]
    };
    let (upper, lower) = (four(a, b), four(c, d));
    // Function pointers would not be inlined.
    std::array::from_fn(|i| match (upper[i / 2], lower[i / 2]) {
        (a, b) if i.is_multiple_of(2) => zip64_low(a, b),
        (a, b) => zip64_high(a, b),
    })
}

/// Transposes the first four columns of eight rows.
#[inline(always)]
fn left_transposed(x: [Lanes; 8]) -> [Lanes; 4] {
    let pair = |i: usize| zip16_low(x[i], x[i + 1]);
    let (a, b, c, d) = (pair(0), pair(2), pair(4), pair(6));
    let (upper, lower) = ([zip32_low(a, b), zip32_high(a, b)], [zip32_low(c, d), zip32_high(c, d)]);
    [
        zip64_low(upper[0], lower[0]),
        zip64_high(upper[0], lower[0]),
        zip64_low(upper[1], lower[1]),
        zip64_high(upper[1], lower[1]),
    ]
}

/// Converts columns of numbers around 0 to rows of samples.
#[inline(always)]
fn samples(columns: [Lanes; 8]) -> [[u8; 8]; 8] {
    let c = columns.map(|x| add16(x, all16(128)));
    let p: [Lanes; 4] = std::array::from_fn(|i| narrow16(c[i], c[i + 4]));
    let (left_even, right_even) = (zip8_low(p[0], p[2]), zip8_high(p[0], p[2]));
    let (left_odd, right_odd) = (zip8_low(p[1], p[3]), zip8_high(p[1], p[3]));
    let (left_upper, left_lower) = (zip8_low(left_even, left_odd), zip8_high(left_even, left_odd));
    let (right_upper, right_lower) = (zip8_low(right_even, right_odd), zip8_high(right_even, right_odd));
    bytemuck::cast([
        zip32_low(left_upper, right_upper),
        zip32_high(left_upper, right_upper),
        zip32_low(left_lower, right_lower),
        zip32_high(left_lower, right_lower),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_base::rng::RandomStream;

    /// The transform by its definition (ITU T.81, A.3.3).
    fn by_definition(x: &[f64; 64]) -> [f64; 64] {
        let c = |u: usize| if u == 0 { 0.5f64.sqrt() } else { 1.0 };
        let cosine = |x: usize, u: usize| ((2 * x + 1) as f64 * u as f64 * std::f64::consts::PI / 16.0).cos();
        std::array::from_fn(|p| {
            let (y, x_) = (p / 8, p % 8);
            let sum = (0..64).map(|q| {
                let (v, u) = (q / 8, q % 8);
                c(u) * c(v) * x[q] * cosine(x_, u) * cosine(y, v)
            });
            sum.sum::<f64>() / 4.0 + 128.0
        })
    }

    #[test]
    fn is_the_transform_to_a_level() {
        let mut draws = RandomStream::new(5, 6, 7);
        for kept in [1, 3, 10, 64] {
            for _ in 0..50 {
                let mut x = [0i16; 64];
                x[..kept].iter_mut().for_each(|v| *v = draws.below(41) as i16 - 20);
                let steps: [i16; 64] = std::array::from_fn(|_| 1 + draws.below(9) as i16);
                let exact = by_definition(&std::array::from_fn(|i| f64::from(x[i]) * f64::from(steps[i])));
                let found = block(&x, &steps);
                for (p, (a, b)) in found.as_flattened().iter().zip(exact).enumerate() {
                    assert!((f64::from(*a) - b.clamp(0.0, 255.0)).abs() < 1.0, "sample {p}: {a}, not {b}");
                }
                if kept == 1 {
                    assert_eq!(found, [[flat(x[0], steps[0]); 8]; 8]);
                }
            }
        }
    }

    #[test]
    fn a_corner_is_the_whole_to_the_bit() {
        let mut draws = RandomStream::new(5, 6, 8);
        for largest in [3, 2_000, 1 << 16] {
            for _ in 0..2_000 {
                let (mut x, mut steps) = ([0i16; 64], [0i16; 64]);
                let places = (0..10).map(super::super::huffman::place);
                places.for_each(|p| x[p] = (draws.below(largest) as i32 - largest as i32 / 2) as i16);
                steps.iter_mut().for_each(|v| *v = 1 + draws.below(255) as i16);
                assert_eq!(corner(&x, &steps), block(&x, &steps), "of {x:?} in steps of {steps:?}");
            }
        }
    }
}
