//! Image resizing (bilinear, bicubic, area, nearest): separable filters, one axis at a time.

use super::dims;
use crate::HostArray;
use crate::host_array::{bad, unfilled};
use crate::simd16::*;
use systole_base::{DType, Error, Literal, Result, ensure};

/// Image resizing method; the results are tf.image.resize's, with half-pixel centers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resize {
    /// Bilinear: the nearest 2 × 2 pixels (TensorFlow's default).
    Bilinear,
    /// Like `Bilinear`, but averages over all covered pixels when shrinking (antialias = True).
    BilinearAntialias,
    /// Keys's bicubic kernel over 4 × 4 pixels.
    Bicubic,
    /// Like `Bicubic`, but averages over all covered pixels when shrinking (antialias = True).
    BicubicAntialias,
    /// Average of the covered area.
    Area,
    /// Nearest neighbor.
    Nearest,
    /// Bilinear along growing axes, area along shrinking axes.
    Fit,
}

impl HostArray {
    /// Resizes `x: T[H, W, C] → T[height, width, C]`, u8 or f32: bilinear along growing axes, area along shrinking
    /// ones.
    #[track_caller]
    pub fn resize(self, height: usize, width: usize) -> HostArray {
        self.resize_with(height, width, Resize::Fit)
    }

    /// Resizes `x: T[H, W, C] → T[height, width, C]`, u8 or f32, with the given method; u8 rounds to nearest.
    #[track_caller]
    pub fn resize_with(self, height: usize, width: usize, method: Resize) -> HostArray {
        self.then(|x| resize(&x, height, width, method))
    }

    /// Resizes `x: T[H, W, C] → f32[height, width, C]` like tf.image.resize: u8 values stay 0 to 255.
    #[track_caller]
    pub fn resize_to_f32(self, height: usize, width: usize, method: Resize) -> HostArray {
        self.then(|x| resize_to_f32(&x, height, width, method))
    }

    /// Resizes `x: T[H, W, C] → T[height, width, C]` with its aspect ratio, centered on zero padding.
    #[track_caller]
    pub fn resize_with_pad(self, height: usize, width: usize, method: Resize) -> HostArray {
        self.then(|x| {
            let [h, w, _] = dims(&x, "resize_with_pad")?;
            let scale = f64::max(h as f64 / height as f64, w as f64 / width as f64);
            ensure!(scale.is_finite() && scale > 0.0, empty(&x, height, width));
            let fit = |n: usize, most: usize| ((n as f64 / scale) as usize).clamp(1, most);
            let (h, w) = (fit(h, height), fit(w, width));
            let small = resize(&x, h, w, method)?;
            super::geometry::pad_to(&small, (height - h) / 2, (width - w) / 2, height, width)
        })
    }
}

/// See [`HostArray::resize_with`].
pub(crate) fn resize(x: &Literal, height: usize, width: usize, method: Resize) -> Result<Literal> {
    let [h, w, c] = dims(x, "resize")?;
    if (h, w) == (height, width) {
        return Ok(x.clone());
    }
    if x.dtype() == DType::F32 {
        return resize_to_f32(x, height, width, method);
    }
    let values = resize_to_f32(x, height, width, method)?;
    let mut out = unfilled(x.ty().with_shape([height, width, c]))?;
    // `as` saturates, so that overshoot is clipped; adding a half and truncating rounds nonnegative values.
    for (o, v) in out.as_mut_slice::<u8>()?.iter_mut().zip(values.as_slice::<f32>()?) {
        *o = (v + 0.5) as u8;
    }
    Ok(out)
}

fn empty(x: &Literal, height: usize, width: usize) -> Error {
    bad(format!("cannot resize {} to {height} × {width}", x.ty()), "an image side is 0")
}

fn resize_to_f32(x: &Literal, height: usize, width: usize, method: Resize) -> Result<Literal> {
    let [h, w, c] = dims(x, "resize")?;
    ensure!(h * w != 0 && height != 0 && width != 0, empty(x, height, width));
    let mut out = unfilled(x.ty().with_dtype(DType::F32).with_shape([height, width, c]))?;
    let (down, across) = (ResizeTaps::of(method, h, height), ResizeTaps::of(method, w, width));
    // One extra element, so that pixels can be read four values at a time.
    let mut row = vec![0f32; w * c + 1];
    for (i, to) in out.as_mut_slice::<f32>()?.chunks_exact_mut((width * c).max(1)).enumerate() {
        match x.dtype() {
            DType::U8 => down.rows(i, x.as_slice::<u8>()?, &mut row[..w * c], mixed_bytes),
            _ => down.rows(i, x.as_slice::<f32>()?, &mut row[..w * c], mixed_rows),
        }
        match c {
            1 => across.columns::<1>(&row, to),
            3 => across.columns::<3>(&row, to),
            4 => across.columns::<4>(&row, to),
            _ => across.any_columns(&row, to, c),
        }
    }
    Ok(out)
}

/// Filter taps of one axis: for each output the first input and the weights.
struct ResizeTaps {
    spans: Vec<(usize, usize)>,
    weights: Vec<f32>,
    /// Output `i` has the weights `ends[i] .. ends[i + 1]`.
    ends: Vec<usize>,
    /// Whether every output has two taps (bilinear), the most frequent case.
    are_pairs: bool,
}

impl ResizeTaps {
    fn of(method: Resize, from: usize, to: usize) -> ResizeTaps {
        let mut taps =
            ResizeTaps { spans: Vec::with_capacity(to), weights: Vec::new(), ends: vec![0], are_pairs: true };
        let scale = from as f64 / to as f64;
        for i in 0..to {
            let (first, weights) = one(method, i, from, scale);
            taps.are_pairs &= weights.len() == 2;
            taps.spans.push((first, weights.len()));
            taps.weights.extend(weights);
            taps.ends.push(taps.weights.len());
        }
        taps
    }

    fn weights(&self, i: usize) -> &[f32] {
        &self.weights[self.ends[i]..self.ends[i + 1]]
    }

    /// Computes row `i` of the output from whole input rows.
    fn rows<T: Copy + Into<f32>>(&self, i: usize, x: &[T], row: &mut [f32], mixed: BlendRowsFn<T>) {
        let (first, _) = self.spans[i];
        let size = row.len().max(1);
        let inputs = x.get(first * size..).unwrap_or_default().chunks_exact(size);
        match (self.weights(i), inputs.clone().next(), inputs.clone().nth(1)) {
            (&[a, b], Some(upper), Some(lower)) => mixed([a, b], upper, lower, row),
            (weights, ..) => {
                row.fill(0.0);
                for (from, &weight) in inputs.zip(weights) {
                    row.iter_mut().zip(from).for_each(|(o, &v)| *o += weight * v.into());
                }
            }
        }
    }

    fn columns<const C: usize>(&self, row: &[f32], to: &mut [f32]) {
        if C == 3 && self.are_pairs && self.pairs_of_three(row, to).is_some() {
            return;
        }
        let (pixels, _) = row.as_chunks::<C>();
        let (out, _) = to.as_chunks_mut::<C>();
        // Twice as fast without inner loops.
        if self.are_pairs {
            let (weights, _) = self.weights.as_chunks::<2>();
            for ((pixel, &(first, _)), [a, b]) in out.iter_mut().zip(&self.spans).zip(weights) {
                if let [left, right, ..] = &pixels[first..] {
                    *pixel = std::array::from_fn(|k| a * left[k] + b * right[k]);
                }
            }
            return;
        }
        for (i, pixel) in out.iter_mut().enumerate() {
            let (first, count) = self.spans[i];
            let mut sum = [0f32; C];
            for (from, &weight) in pixels[first..first + count].iter().zip(self.weights(i)) {
                for k in 0..C {
                    sum[k] += weight * from[k];
                }
            }
            *pixel = sum;
        }
    }

    /// [`ResizeTaps::columns`] for two taps and RGB. Each pixel is read with the first value of the next; four pixels are
    /// three full vectors. `None` if the row's width does not match these taps.
    #[inline(never)]
    fn pairs_of_three(&self, row: &[f32], to: &mut [f32]) -> Option<()> {
        let (weights, _) = self.weights.as_chunks::<2>();
        let pixel = |&(first, _): &(usize, usize), &[a, b]: &[f32; 2]| -> Option<Floats> {
            let near: &[f32; 7] = row.get(3 * first..)?.first_chunk()?;
            let (left, right): (&[f32; 4], &[f32; 4]) = (near.first_chunk()?, near.last_chunk()?);
            Some(mixed(all(a), bytemuck::cast(*left), all(b), bytemuck::cast(*right)))
        };
        let (out, rest) = to.as_chunks_mut::<12>();
        let (spans, last_spans) = self.spans.as_chunks::<4>();
        let (weights, last_weights) = weights.as_chunks::<4>();
        for ((pixels, [s0, s1, s2, s3]), [w0, w1, w2, w3]) in out.iter_mut().zip(spans).zip(weights) {
            let (a, b, c, d) = (pixel(s0, w0)?, pixel(s1, w1)?, pixel(s2, w2)?, pixel(s3, w3)?);
            // a0 a1 a2 b0, b1 b2 c0 c1, c2 d0 d1 d2
            let (ab, cd) = (picked::<0b00_00_10_10>(a, b), picked::<0b00_00_10_10>(c, d));
            *pixels = bytemuck::cast([
                picked::<0b10_00_01_00>(a, ab),
                picked::<0b01_00_10_01>(b, c),
                picked::<0b10_01_10_00>(cd, d),
            ]);
        }
        for ((to, span), weights) in rest.as_chunks_mut::<3>().0.iter_mut().zip(last_spans).zip(last_weights)
        {
            let [r, g, b, _] = bytemuck::cast(pixel(span, weights)?);
            *to = [r, g, b];
        }
        Some(())
    }

    fn any_columns(&self, row: &[f32], to: &mut [f32], c: usize) {
        to.fill(0.0);
        for (i, pixel) in to.chunks_exact_mut(c.max(1)).enumerate() {
            for (j, &weight) in self.weights(i).iter().enumerate() {
                let from = &row[(self.spans[i].0 + j) * c..][..c];
                pixel.iter_mut().zip(from).for_each(|(o, v)| *o += weight * v);
            }
        }
    }
}

/// Blends rows: `a · upper + b · lower`.
type BlendRowsFn<T> = fn([f32; 2], &[T], &[T], &mut [f32]);

fn mixed_rows<T: Copy + Into<f32>>([a, b]: [f32; 2], upper: &[T], lower: &[T], out: &mut [f32]) {
    for ((o, &u), &l) in out.iter_mut().zip(upper).zip(lower) {
        *o = a * u.into() + b * l.into();
    }
}

/// [`mixed_rows`] for bytes, sixteen at a time.
fn mixed_bytes(weights: [f32; 2], upper: &[u8], lower: &[u8], out: &mut [f32]) {
    let (uppers, upper) = upper.as_chunks::<16>();
    let (lowers, lower) = lower.as_chunks::<16>();
    let (outs, out) = out.as_chunks_mut::<16>();
    let [a, b] = weights.map(all);
    for ((o, &u), &l) in outs.iter_mut().zip(uppers).zip(lowers) {
        let (u, l) = (sixteen(u), sixteen(l));
        *o = bytemuck::cast::<[Floats; 4], _>(std::array::from_fn(|k| mixed(a, u[k], b, l[k])));
    }
    mixed_rows(weights, upper, lower, out);
}

fn sixteen(bytes: [u8; 16]) -> [Floats; 4] {
    let (x, zero) = (bytemuck::cast(bytes), all16(0));
    let (low, high) = (zip8_low(x, zero), zip8_high(x, zero));
    [zip16_low(low, zero), zip16_high(low, zero), zip16_low(high, zero), zip16_high(high, zero)].map(floats)
}

/// Returns the first input and the weights of output `i`; `scale` inputs map to one output. The weights sum to 1.
fn one(method: Resize, i: usize, from: usize, scale: f64) -> (usize, Vec<f32>) {
    let shrinks = scale > 1.0;
    match method {
        Resize::Nearest => ((((i as f64 + 0.5) * scale) as usize).min(from - 1), vec![1.0]),
        Resize::Area => area(i, from, scale),
        Resize::Fit if shrinks => area(i, from, scale),
        Resize::Bilinear | Resize::Fit => bilinear(i, from, scale),
        Resize::BilinearAntialias => kernel(i, from, scale, scale.max(1.0), 1.0, |x| 1.0 - x),
        Resize::Bicubic => kernel(i, from, scale, 1.0, 2.0, keys),
        Resize::BicubicAntialias => kernel(i, from, scale, scale.max(1.0), 2.0, keys),
    }
}

fn area(i: usize, from: usize, scale: f64) -> (usize, Vec<f32>) {
    let (start, end) = (i as f64 * scale, ((i + 1) as f64 * scale).min(from as f64));
    let cover = |j: usize| (end.min((j + 1) as f64) - start.max(j as f64)).max(0.0);
    let first = (start as usize).min(from - 1);
    let last = (end.ceil() as usize).clamp(first + 1, from);
    (first, (first..last).map(|j| (cover(j) / (end - start)) as f32).collect())
}

fn bilinear(i: usize, from: usize, scale: f64) -> (usize, Vec<f32>) {
    let centre = ((i as f64 + 0.5) * scale - 0.5).clamp(0.0, (from - 1) as f64);
    let low = centre as usize;
    let part = (centre - low as f64) as f32;
    match from {
        1 => (0, vec![1.0]),
        // Two taps also at the far edge, so that all outputs have two.
        _ if low + 1 == from => (low - 1, vec![0.0, 1.0]),
        _ => (low, vec![1.0 - part, part]),
    }
}

/// Returns taps of a symmetric kernel of `radius`, stretched by `wide`; weights outside the image are distributed over
/// the rest.
fn kernel(i: usize, from: usize, scale: f64, wide: f64, radius: f64, f: fn(f64) -> f64) -> (usize, Vec<f32>) {
    let centre = (i as f64 + 0.5) * scale;
    let reach = radius * wide;
    let first = (centre - reach - 0.5).ceil().clamp(0.0, (from - 1) as f64) as usize;
    let last = ((centre + reach - 0.5).floor() as usize).clamp(first, from - 1);
    let value = |j: usize| {
        let x = ((j as f64 + 0.5 - centre) / wide).abs();
        if x < radius { f(x) } else { 0.0 }
    };
    let values: Vec<f64> = (first..=last).map(value).collect();
    let sum: f64 = values.iter().sum();
    (first, values.into_iter().map(|v| (v / sum) as f32).collect())
}

/// Keys, "Cubic convolution interpolation for digital image processing", 1981, with a = -1/2.
fn keys(x: f64) -> f64 {
    if x < 1.0 { (1.5 * x - 2.5) * x * x + 1.0 } else { ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0 }
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
        assert_eq!(resize(&x, 1, 2, Resize::Fit).unwrap().bytes(), [25, 45]);
        // 3 → 2: each output covers one and a half inputs.
        assert_eq!(resize(&grey(1, 3, &[0, 90, 240]), 1, 2, Resize::Fit).unwrap().bytes(), [30, 190]);
    }

    #[test]
    fn growing_is_bilinear_with_half_pixel_centres() {
        // tf.image.resize([0, 100], 4, "bilinear") = 0, 25, 75, 100.
        assert_eq!(resize(&grey(1, 2, &[0, 100]), 1, 4, Resize::Fit).unwrap().bytes(), [0, 25, 75, 100]);
        let colour = Literal::from_slice([1, 1, 3], &[0.1f32, 0.5, 0.9]).unwrap();
        assert_eq!(resize(&colour, 2, 2, Resize::Fit).unwrap().to_f32s(), [0.1, 0.5, 0.9].repeat(4));
    }

    #[test]
    fn every_method_gives_tensorflows_numbers() {
        // tf.image.resize(tf.range(15)**1.5 as [3, 5, 1], [2, 3], method, antialias)
        let x: Vec<f32> = (0..15).map(|i| (i as f32).powf(1.5)).collect();
        let x = Literal::from_slice([3, 5, 1], &x).unwrap();
        let cases: [(Resize, [f32; 6]); 6] = [
            (Resize::Bilinear, [3.338, 6.751, 11.685, 28.02, 35.807, 44.295]),
            (Resize::BilinearAntialias, [5.026, 8.811, 13.671, 25.824, 32.98, 40.686]),
            (Resize::Bicubic, [1.998, 5.302, 10.294, 29.104, 37.539, 46.69]),
            (Resize::BicubicAntialias, [3.684, 7.434, 12.422, 26.486, 34.156, 42.411]),
            (Resize::Area, [4.462, 8.15, 13.003, 26.574, 33.934, 41.87]),
            (Resize::Nearest, [0.0, 2.828, 8.0, 31.623, 41.569, 52.383]),
        ];
        for (method, expected) in cases {
            let y = resize(&x, 2, 3, method).unwrap().to_f32s();
            assert!(y.iter().zip(expected).all(|(a, b)| (a - b).abs() < 3e-3), "{method:?}: {y:?}");
        }
        // The first row of four, seven wide.
        let grown: [(Resize, [f32; 7]); 4] = [
            (Resize::Bilinear, [0.0, 0.571, 1.522, 2.828, 4.52, 6.398, 8.0]),
            (Resize::BicubicAntialias, [-0.635, -0.213, 0.699, 2.009, 3.586, 5.636, 7.166]),
            (Resize::Area, [0.0, 0.6, 1.366, 2.828, 4.723, 6.318, 8.0]),
            (Resize::Nearest, [0.0, 1.0, 1.0, 2.828, 5.196, 5.196, 8.0]),
        ];
        for (method, expected) in grown {
            let y = resize(&x, 4, 7, method).unwrap().to_f32s();
            assert!(y.iter().zip(expected).all(|(a, b)| (a - b).abs() < 3e-3), "{method:?}: {y:?}");
        }
    }

    #[test]
    fn colour_is_three_greys_to_the_bit() {
        let mut draws = systole_base::rng::RandomStream::new(7, 1, 2);
        for (h, w, to_h, to_w) in [(9, 31, 5, 14), (4, 2, 7, 9), (3, 40, 3, 3), (2, 17, 6, 40), (1, 3, 2, 2)]
        {
            let bytes: Vec<u8> = (0..h * w * 3).map(|_| draws.below(256) as u8).collect();
            let colour = Literal::from_slice([h, w, 3], &bytes).unwrap();
            let found = resize_to_f32(&colour, to_h, to_w, Resize::Bilinear).unwrap().to_f32s();
            for k in 0..3 {
                let plane: Vec<u8> = bytes.iter().skip(k).step_by(3).copied().collect();
                let expected = resize_to_f32(&grey(h, w, &plane), to_h, to_w, Resize::Bilinear).unwrap();
                let channel: Vec<f32> = found.iter().skip(k).step_by(3).copied().collect();
                assert_eq!(channel, expected.to_f32s(), "{h} × {w} to {to_h} × {to_w}, channel {k}");
            }
        }
    }

    #[test]
    fn a_constant_stays_constant_at_any_size() {
        let methods =
            [Resize::Fit, Resize::Bilinear, Resize::Bicubic, Resize::BicubicAntialias, Resize::Area];
        for (h, w, c) in [(1, 1, 1), (5, 3, 3), (28, 28, 2), (64, 17, 4)] {
            for (to_h, to_w) in [(1, 1), (7, 28), (28, 7), (31, 33)] {
                for method in methods {
                    let x = Literal::from_slice([h, w, c], &vec![137u8; h * w * c]).unwrap();
                    let y = resize(&x, to_h, to_w, method).unwrap();
                    assert!(y.bytes().iter().all(|&b| b == 137), "{h}×{w} to {to_h}×{to_w} {method:?}");
                }
            }
        }
    }

    #[test]
    fn wrong_pictures_are_errors_and_padding_centres() {
        assert!(resize(&Literal::from_slice([4], &[0u8; 4]).unwrap(), 2, 2, Resize::Fit).is_err());
        assert!(resize(&grey(1, 1, &[0]), 0, 2, Resize::Fit).is_err());
        // tf.image.resize_with_pad(range(12) as [3, 4, 1], 4, 4)
        let x: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let x = HostArray::from(Literal::from_slice([3, 4, 1], &x).unwrap());
        let y = x.clone().resize_with_pad(4, 4, Resize::Bilinear).into_literal().unwrap();
        assert_eq!(y.to_f32s(), [(0..12).map(|i| i as f32).collect(), vec![0.0; 4]].concat());
        assert!(x.resize_with_pad(0, 4, Resize::Bilinear).get().is_err());
    }
}
