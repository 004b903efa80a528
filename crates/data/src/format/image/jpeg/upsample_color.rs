//! JPEG chroma upsampling and YCbCr-to-RGB conversion, bit-identical to libjpeg.
//!
//! Implements libjpeg's defaults: "fancy upsampling" (jdsample.c) and jdcolor.c.

use crate::simd16::*;

/// Samples converted per step.
const STEP: usize = 16;

/// Returns `n` rounded up to whole steps, with room for the pairs of one more.
pub(super) fn padded(n: usize) -> usize {
    n.next_multiple_of(STEP) + STEP
}

/// Copies a row with both ends duplicated.
pub(super) fn edged(near: &[u8], out: &mut Vec<i16>) {
    let (Some(&first), Some(&last)) = (near.first(), near.last()) else { return };
    out.clear();
    out.push(first.into());
    out.extend(near.iter().map(|&v| i16::from(v)));
    out.push(last.into());
}

/// Like [`edged`], for three times the near row plus the far row.
pub(super) fn edged_sum(near: &[u8], far: &[u8], out: &mut Vec<i16>) {
    out.clear();
    out.push(0);
    out.extend(near.iter().zip(far).map(|(&a, &b)| 3 * i16::from(a) + i16::from(b)));
    out.push(*out.last().unwrap_or(&0));
    out[0] = out[1.min(out.len() - 1)];
}

/// Doubles the samples: three quarters of the nearest and a quarter of the next. `TALL`: the input is a sum of two
/// rows.
pub(super) fn doubled<const TALL: bool>(row: &[i16], out: &mut [u8]) {
    let (before, after, shift) = if TALL { (8, 7, 4) } else { (1, 2, 2) };
    let n = row.len().saturating_sub(2);
    let (pairs, _) = out.as_chunks_mut::<2>();
    let neighbours = row[..n].iter().zip(&row[1..]).zip(&row[2..]);
    for (pair, ((&left, &near), &right)) in pairs.iter_mut().zip(neighbours) {
        let near = 3 * near;
        let (even, odd) = ((near + left + before) >> shift, (near + right + after) >> shift);
        *pair = ((odd as u16) << 8 | even as u16 & 0xff).to_le_bytes();
    }
}

/// Converts Y, Cb and Cr rows, padded to whole steps, to RGB.
pub(super) fn rgb(y: &[u8], blue: &[u8], red: &[u8], out: &mut [u8]) {
    let (ys, _) = y.as_chunks::<STEP>();
    let (blues, _) = blue.as_chunks::<STEP>();
    let (reds, _) = red.as_chunks::<STEP>();
    let samples = ys.iter().zip(blues).zip(reds);
    let (whole, rest) = out.as_chunks_mut::<{ 3 * STEP }>();
    let n = whole.len();
    for (pixels, ((y, blue), red)) in whole.iter_mut().zip(samples.clone()) {
        turn(y, blue, red, pixels);
    }
    if let (false, Some(((y, blue), red))) = (rest.is_empty(), samples.clone().nth(n)) {
        let mut pixels = [0; 3 * STEP];
        turn(y, blue, red, &mut pixels);
        rest.copy_from_slice(&pixels[..rest.len()]);
    }
}

#[inline(always)]
fn turn(y: &[u8; STEP], blue: &[u8; STEP], red: &[u8; STEP], out: &mut [u8; 3 * STEP]) {
    let (y, blue, red): (Lanes, Lanes, Lanes) =
        (bytemuck::cast(*y), bytemuck::cast(*blue), bytemuck::cast(*red));
    let [red_even, green_even, blue_even] = eight(even8(y), even8(blue), even8(red)).map(|x| narrow16(x, x));
    let [red_odd, green_odd, blue_odd] = eight(odd8(y), odd8(blue), odd8(red)).map(|x| narrow16(x, x));
    // Each 16-bit lane is two bytes of the output.
    let (first, second, third) =
        (zip8_low(red_even, green_even), zip8_low(blue_even, red_odd), zip8_low(green_odd, blue_odd));
    *out = bytemuck::cast(in_turns(first, second, third));
}

/// Interleaves the 16-bit lanes of three vectors.
#[inline(always)]
fn in_turns(a: Lanes, b: Lanes, c: Lanes) -> [Lanes; 3] {
    let (next_a, next_b, next_c) = (behind16(a), behind16(b), behind16(c));
    // Pairs, of which every other one is used: a0 b0, c0 a1, b1 c1, then a2 b2, …
    let (ab, ab_late) = (zip16_low(a, b), zip16_high(a, b));
    let (ca, ca_late) = (zip16_low(c, next_a), zip16_high(c, next_a));
    let (bc, bc_late) = (zip16_low(next_b, next_c), zip16_high(next_b, next_c));
    let late_half = |x: Lanes| zip64_high(x, x);
    [
        zip64_low(zip32_low(ab, ca), zip32_low(bc, late_half(ab))),
        zip64_low(zip32_high(ca, bc), zip32_low(ab_late, ca_late)),
        zip64_low(zip32_low(bc_late, late_half(ab_late)), zip32_high(ca_late, bc_late)),
    ]
}

/// Converts eight pixels to red, green and blue. The factors are libjpeg's, 2¹⁶ times 1.402, -0.34414, -0.71414 and
/// 1.772, less the multiples of 2¹⁶, which are added as whole samples.
#[inline(always)]
fn eight(y: Lanes, blue: Lanes, red: Lanes) -> [Lanes; 3] {
    let (blue, red) = (sub16(blue, all16(128)), sub16(red, all16(128)));
    // (x · factor + 2¹⁵) / 2¹⁶, rounded down, as the high half of twice the product, rounded once more.
    let part = |twice: Lanes, factor: i16| shift16::<1>(add16(mul16_high(twice, all16(factor)), all16(1)));
    let (twice_blue, twice_red) = (add16(blue, blue), add16(red, red));
    let r = add16(add16(y, red), part(twice_red, 26_345));
    let b = add16(add16(y, twice_blue), part(twice_blue, -14_942));
    let factors = all32(18_734 << 16 | (-22_554i32 & 0xffff));
    let green = |pair: Lanes| shift32::<16>(add32(dot16(pair, factors), all32(1 << 15)));
    let both = narrow32(green(zip16_low(blue, red)), green(zip16_high(blue, red)));
    [r, add16(sub16(y, red), both), b]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_colour_is_libjpegs() {
        // jdcolor.c, build_ycc_rgb_table and ycc_rgb_convert.
        let of = |y: i32, blue: i32, red: i32| {
            let (u, v, half) = (blue - 128, red - 128, 1 << 15);
            let green = (-22_554 * u + half - 46_802 * v) >> 16;
            [y + ((91_881 * v + half) >> 16), y + green, y + ((116_130 * u + half) >> 16)]
                .map(|v| v.clamp(0, 255) as u8)
        };
        let all: Vec<u8> = (0..=255).collect();
        let mut out = [0; 3 * 250];
        for y in (0..=255u8).step_by(15) {
            for red in 0..=255u8 {
                rgb(&[y; 272], &[&all[..], &[0; 16]].concat(), &[red; 272], &mut out);
                for (blue, pixel) in out.as_chunks::<3>().0.iter().enumerate() {
                    assert_eq!(*pixel, of(y.into(), blue as i32, red.into()), "{y} {blue} {red}");
                }
            }
        }
    }

    #[test]
    fn rows_are_doubled_as_libjpeg_does() {
        let (mut edged_row, mut out) = (Vec::new(), [0; 8]);
        edged(&[10, 20, 40, 0], &mut edged_row);
        doubled::<false>(&edged_row, &mut out);
        // jdsample.c, h2v1_fancy_upsample.
        assert_eq!(out, [10, 13, 17, 25, 35, 30, 10, 0]);
        edged_sum(&[10, 20, 40, 0], &[0, 4, 100, 8], &mut edged_row);
        doubled::<true>(&edged_row, &mut out);
        // h2v2_fancy_upsample: columns of 30, 64, 220 and 8.
        assert_eq!(out, [8, 10, 14, 26, 45, 42, 15, 2]);
    }
}
