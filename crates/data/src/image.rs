//! Resizing and grey conversion of host images, `[H, W, C]` in u8 or f32.
//!
//! For showing a trained model a picture of another size; not an augmentation library.

use crate::array::{bad, zeros};
use systole_base::{DType, Literal, Result};

/// `x: T[H, W, C] → T[height, width, C]`: each axis bilinear where it grows (half-pixel centres), area average
/// where it shrinks. u8 rounds to nearest.
pub(crate) fn resize(x: &Literal, height: usize, width: usize) -> Result<Literal> {
    let (h, w, c) = dims(x, "resize")?;
    if (h, w) == (height, width) {
        return Ok(x.clone());
    }
    if h * w == 0 || height == 0 || width == 0 {
        return Err(bad(format!("cannot resize {} to {height} × {width}", x.ty()), "an image side is 0"));
    }
    let mut out = zeros(x.ty().with_shape([height, width, c]))?;
    let pixels = x.to_f32s();
    let rows = along(&pixels, (1, h, w * c), height);
    let done = along(&rows, (height, w, c), width);
    store(&mut out, &done)?;
    Ok(out)
}

/// `x: T[H, W, C] → T[H, W, 1]`: 1 channel stays; 2 are grey and alpha; 3 and 4 colours and alpha. Luma after
/// ITU-R BT.601, as tf.image.rgb_to_grayscale; alpha multiplies (a black ground).
pub(crate) fn grayscale(x: &Literal) -> Result<Literal> {
    let (h, w, c) = dims(x, "rgb_to_grayscale")?;
    if c == 1 {
        return Ok(x.clone());
    }
    if !(2..=4).contains(&c) {
        return Err(bad(
            format!("cannot make {} grey", x.ty()),
            format!("{c} channels are neither grey nor RGB"),
        ));
    }
    let full = if x.dtype() == DType::U8 { 255.0 } else { 1.0 };
    let luma = |p: &[f32]| 0.2989 * p[0] + 0.587 * p[1] + 0.114 * p[2];
    let grey = |p: &[f32]| match c {
        2 => p[0] * p[1] / full,
        3 => luma(p),
        _ => luma(p) * p[3] / full,
    };
    let done: Vec<f32> = x.to_f32s().chunks_exact(c).map(grey).collect();
    let mut out = zeros(x.ty().with_shape([h, w, 1]))?;
    store(&mut out, &done)?;
    Ok(out)
}

fn dims(x: &Literal, what: &str) -> Result<(usize, usize, usize)> {
    match (x.dtype(), x.shape().dims()) {
        (DType::U8 | DType::F32, &[h, w, c]) => Ok((h, w, c)),
        _ => {
            Err(bad(format!("{what} of {}", x.ty()), "it takes ui8 or f32 images [height, width, channels]"))
        }
    }
}

fn store(out: &mut Literal, values: &[f32]) -> Result<()> {
    if out.dtype() == DType::U8 {
        // `as` saturates, so overshoot is clipped.
        out.as_mut_slice::<u8>()?.iter_mut().zip(values).for_each(|(o, v)| *o = v.round() as u8);
    } else {
        out.as_mut_slice::<f32>()?.copy_from_slice(values);
    }
    Ok(())
}

/// Resamples the middle axis of `x: f32[a, b, c]` to length `to`.
fn along(x: &[f32], (a, b, c): (usize, usize, usize), to: usize) -> Vec<f32> {
    let weights: Vec<Vec<(usize, f32)>> = (0..to).map(|i| taps(i, b, to)).collect();
    let mut out = vec![0f32; a * to * c];
    for (block, from) in out.chunks_exact_mut(to * c).zip(x.chunks_exact(b * c)) {
        for (row, taps) in block.chunks_exact_mut(c).zip(&weights) {
            for &(j, weight) in taps {
                row.iter_mut().zip(&from[j * c..]).for_each(|(o, v)| *o += weight * v);
            }
        }
    }
    out
}

/// Which of `from` inputs make output `i` of `to`, and how much; the weights sum to 1.
fn taps(i: usize, from: usize, to: usize) -> Vec<(usize, f32)> {
    let scale = from as f64 / to as f64;
    if scale > 1.0 {
        let (start, end) = (i as f64 * scale, ((i + 1) as f64 * scale).min(from as f64));
        let cover = |j: usize| (end.min((j + 1) as f64) - start.max(j as f64)).max(0.0);
        return (start as usize..(end.ceil() as usize).min(from))
            .map(|j| (j, (cover(j) / (end - start)) as f32))
            .collect();
    }
    let centre = ((i as f64 + 0.5) * scale - 0.5).clamp(0.0, (from - 1) as f64);
    let low = centre as usize;
    let high = (low + 1).min(from - 1);
    let part = (centre - low as f64) as f32;
    vec![(low, 1.0 - part), (high, part)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grey(h: usize, w: usize, data: &[u8]) -> Literal {
        Literal::from_slice([h, w, 1], data).unwrap()
    }

    #[test]
    fn shrinking_averages_areas() {
        let x = grey(2, 4, &[0, 10, 20, 30, 40, 50, 60, 70]);
        assert_eq!(resize(&x, 1, 2).unwrap().bytes(), [25, 45]);
        // 3 → 2: each output covers one and a half inputs.
        assert_eq!(resize(&grey(1, 3, &[0, 90, 240]), 1, 2).unwrap().bytes(), [30, 190]);
    }

    #[test]
    fn growing_is_bilinear_with_half_pixel_centres() {
        // tf.image.resize([0, 100], 4, "bilinear") = 0, 25, 75, 100.
        assert_eq!(resize(&grey(1, 2, &[0, 100]), 1, 4).unwrap().bytes(), [0, 25, 75, 100]);
        let colour = Literal::from_slice([1, 1, 3], &[0.1f32, 0.5, 0.9]).unwrap();
        assert_eq!(resize(&colour, 2, 2).unwrap().to_f32s(), [0.1, 0.5, 0.9].repeat(4));
    }

    #[test]
    fn a_constant_stays_constant_at_any_size() {
        for (h, w) in [(1, 1), (5, 3), (28, 28), (64, 17)] {
            for (to_h, to_w) in [(1, 1), (7, 28), (28, 7), (31, 33)] {
                let y = resize(&grey(h, w, &vec![137; h * w]), to_h, to_w).unwrap();
                assert!(y.bytes().iter().all(|&b| b == 137), "{h}×{w} to {to_h}×{to_w}");
            }
        }
    }

    #[test]
    fn greys() {
        let x = Literal::from_slice([1, 2, 3], &[255u8, 0, 0, 255, 255, 255]).unwrap();
        assert_eq!(grayscale(&x).unwrap().bytes(), [76, 255]);
        let alpha = Literal::from_slice([1, 2, 2], &[200u8, 255, 200, 0]).unwrap();
        assert_eq!(grayscale(&alpha).unwrap().bytes(), [200, 0]);
        assert!(grayscale(&Literal::from_slice([1, 1, 5], &[0u8; 5]).unwrap()).is_err());
        assert!(resize(&Literal::from_slice([4], &[0u8; 4]).unwrap(), 2, 2).is_err());
        assert!(resize(&grey(1, 1, &[0]), 0, 2).is_err());
    }
}
