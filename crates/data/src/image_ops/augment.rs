//! RandAugment and random resized crop (Inception crop).
//!
//! Cubuk, Zoph, Shlens, Le, "RandAugment: practical automated data augmentation with a reduced search space", 2019. The
//! operations and their ranges are torchvision's, with 31 magnitude steps; pixels from outside the image are black.

use super::color::between;
use super::geometry::crop;
use super::{Resize, dims, resize};
use crate::{HostArray, with_defaults};
use systole_base::Literal;
use systole_base::rng::RandomStream;

/// Largest magnitude step.
const BINS: f64 = 30.0;

with_defaults! {
    /// Options of RandAugment.
    #[derive(Clone, Copy, PartialEq, Debug)]
    pub struct RandAugment {
        /// Number of consecutive operations (2 in the paper's ImageNet runs).
        pub count: usize = 2,
        /// Magnitude: 0 (none) to 30 (strongest); 9 in the paper's ImageNet runs.
        pub magnitude: f64 = 9.0,
    }
}

with_defaults! {
    /// Options of a random resized crop.
    #[derive(Clone, Copy, PartialEq, Debug)]
    pub struct RandomResizedCrop {
        /// Minimum and maximum fraction of the image's area.
        pub area: (f64, f64) = (0.08, 1.0),
        /// Minimum and maximum aspect ratio, width over height.
        pub ratio: (f64, f64) = (3.0 / 4.0, 4.0 / 3.0),
        /// Resizing method.
        pub method: Resize = Resize::Bilinear,
    }
}

impl HostArray {
    /// RandAugment: `x: ui8[H, W, C] → ui8[H, W, C]`, C of 1 or 3, applies `count` of 14 random operations. On
    /// grayscale images, saturation has no effect and contrast is about the mean; the others act as on color images (as
    /// in torchvision).
    #[track_caller]
    pub fn rand_augment(self, options: RandAugment, rng: &mut RandomStream) -> HostArray {
        (0..options.count).fold(self, |x, _| {
            let (kind, sign) = (rng.below(14), if rng.below(2) == 1 { -1.0 } else { 1.0 });
            operation(x, kind, options.magnitude.clamp(0.0, BINS) / BINS, sign)
        })
    }

    /// Random resized crop: `x: T[H, W, C] → T[height, width, C]`, a random part with random aspect ratio (Inception
    /// crop).
    pub fn random_resized_crop(
        self,
        height: usize,
        width: usize,
        options: RandomResizedCrop,
        rng: &mut RandomStream,
    ) -> HostArray {
        let mut draws = [(); 10].map(|()| [(); 4].map(|()| rng.uniform_f64()));
        self.then(|x| {
            let [h, w, _] = dims(&x, "random_resized_crop")?;
            let part = draws.iter_mut().find_map(|draws| part(h, w, options, draws));
            let whole = (0, 0, h, w);
            let (top, left, ch, cw) = part.unwrap_or(whole);
            resize(&crop(&x, top, left, ch, cw)?, height, width, options.method)
        })
    }
}

/// Returns a rectangle with the sampled area and aspect ratio, if it fits.
fn part(h: usize, w: usize, o: RandomResizedCrop, draws: &[f64; 4]) -> Option<(usize, usize, usize, usize)> {
    let area = (h * w) as f64 * (o.area.0 + (o.area.1 - o.area.0) * draws[0]);
    let (low, high) = (o.ratio.0.ln(), o.ratio.1.ln());
    let ratio = (low + (high - low) * draws[1]).exp();
    let (ch, cw) = ((area / ratio).sqrt().round() as usize, (area * ratio).sqrt().round() as usize);
    if ch == 0 || cw == 0 || ch > h || cw > w {
        return None;
    }
    let place = |n: usize, part: usize, draw: f64| (draw * (n - part + 1) as f64) as usize;
    Some((place(h, ch, draws[2]), place(w, cw, draws[3]), ch, cw))
}

/// Applies one operation; `strength` is 0 to 1, `sign` the direction of symmetric operations.
fn operation(x: HostArray, kind: u64, strength: f64, sign: f64) -> HostArray {
    let both = sign * strength;
    let shear = |along: [[f64; 2]; 2]| (along, [0.0, 0.0]);
    match kind {
        0 => x,
        1 => affine(x, shear([[1.0, 0.3 * both], [0.0, 1.0]])),
        2 => affine(x, shear([[1.0, 0.0], [0.3 * both, 1.0]])),
        3 => shifted(x, |_, w| [150.0 / 331.0 * w * both, 0.0]),
        4 => shifted(x, |h, _| [0.0, 150.0 / 331.0 * h * both]),
        5 => x.rotate(30.0 * both),
        6 => blended(x, 1.0 + 0.9 * both, |p, _| vec![0.0; p.len()]),
        7 => blended(x, 1.0 + 0.9 * both, |p, c| {
            p.chunks_exact(c).flat_map(|p| std::iter::repeat_n(luma(p), c)).collect()
        }),
        8 => blended(x, 1.0 + 0.9 * both, |p, c| {
            let mean =
                p.chunks_exact(c).map(|p| f64::from(luma(p))).sum::<f64>() / (p.len() / c).max(1) as f64;
            vec![mean as f32; p.len()]
        }),
        9 => sharpened(x, 1.0 + 0.9 * both),
        10 => bytes(x, |b| {
            let bits = 8 - (strength * 4.0).round() as u32;
            b & (0xffu32 << (8 - bits)) as u8
        }),
        11 => bytes(x, |b| if f64::from(b) >= 255.0 * (1.0 - strength) { 255 - b } else { b }),
        12 => channels(x, stretched),
        _ => channels(x, equalized),
    }
}

/// Luminance of a color or gray pixel.
fn luma(p: &[f32]) -> f32 {
    match p {
        [r, g, b] => 0.2989 * r + 0.587 * g + 0.114 * b,
        _ => p.first().copied().unwrap_or(0.0),
    }
}

fn affine(x: HostArray, (matrix, shift): ([[f64; 2]; 2], [f64; 2])) -> HostArray {
    x.affine(matrix, shift)
}

fn shifted(x: HostArray, by: impl FnOnce(f64, f64) -> [f64; 2]) -> HostArray {
    match x.ty().map(|ty| ty.shape.dims().to_vec()).as_deref() {
        Ok([h, w, _]) => {
            let [right, down] = by(*h as f64, *w as f64);
            x.affine([[1.0, 0.0], [0.0, 1.0]], [right.round(), down.round()])
        }
        _ => x.affine([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0]),
    }
}

/// Computes `factor · x + (1 - factor) · other(x, C)`.
fn blended(x: HostArray, factor: f64, other: impl FnOnce(&[f32], usize) -> Vec<f32>) -> HostArray {
    x.toned("rand_augment", move |values, c| {
        if c == 3 || c == 1 {
            let ground = other(values, c);
            let mix = |v: f32, g: f32| (factor as f32 * v + (1.0 - factor as f32) * g).clamp(0.0, 1.0);
            values.iter_mut().zip(ground).for_each(|(v, g)| *v = mix(*v, g));
        }
    })
}

/// Sharpens or smooths with a 3 × 3 kernel of 1s and a central 5; border pixels stay.
fn sharpened(x: HostArray, factor: f64) -> HostArray {
    let width = x.ty().map_or(0, |ty| ty.shape.get(1).copied().unwrap_or(0));
    blended(x, factor, |p, c| {
        let row = c * width;
        let mut smooth = p.to_vec();
        let inner = c..row.saturating_sub(c);
        for at in (row..p.len().saturating_sub(row)).filter(|at| inner.contains(&(at % row))) {
            let around: f32 = [at - row, at, at + row].iter().map(|&i| p[i - c] + p[i] + p[i + c]).sum();
            smooth[at] = (around + 4.0 * p[at]) / 13.0;
        }
        smooth
    })
}

fn bytes(x: HostArray, f: impl Fn(u8) -> u8) -> HostArray {
    x.then(|mut x| {
        dims(&x, "rand_augment")?;
        x.as_mut_slice::<u8>()?.iter_mut().for_each(|b| *b = f(*b));
        Ok(x)
    })
}

/// Maps each channel through a lookup table computed from its histogram.
fn channels(x: HostArray, table: fn(&[u32; 256]) -> Option<[u8; 256]>) -> HostArray {
    x.then(|mut x: Literal| {
        let [_, _, c] = dims(&x, "rand_augment")?;
        let values = x.as_mut_slice::<u8>()?;
        for k in 0..c {
            let mut counts = [0u32; 256];
            values.iter().skip(k).step_by(c).for_each(|&b| counts[b as usize] += 1);
            if let Some(table) = table(&counts) {
                values.iter_mut().skip(k).step_by(c).for_each(|b| *b = table[*b as usize]);
            }
        }
        Ok(x)
    })
}

/// Autocontrast: maps the minimum to 0 and the maximum to 255.
fn stretched(counts: &[u32; 256]) -> Option<[u8; 256]> {
    let low = counts.iter().position(|&n| n > 0)?;
    let high = counts.iter().rposition(|&n| n > 0)?;
    let scale = 255.0 / (high.checked_sub(low).filter(|&d| d > 0)? as f64);
    Some(std::array::from_fn(|v| ((v as f64 - low as f64) * scale).round() as u8))
}

/// Histogram equalization.
fn equalized(counts: &[u32; 256]) -> Option<[u8; 256]> {
    let last = counts.iter().rfind(|&&n| n > 0)?;
    let step = (counts.iter().sum::<u32>() - last) / 255;
    if step == 0 {
        return None;
    }
    let mut below = step / 2;
    Some(std::array::from_fn(|v| {
        let to = (below / step).min(255) as u8;
        below += counts[v];
        to
    }))
}

/// Samples a Beta(alpha, alpha) distribution.
pub(super) fn beta(alpha: f64, rng: &mut RandomStream) -> f64 {
    let (a, b) = (gamma(alpha, rng), gamma(alpha, rng));
    if a + b > 0.0 { a / (a + b) } else { f64::from(rng.below(2) as u32) }
}

/// Samples a gamma distribution: Marsaglia and Tsang, "A simple method for generating gamma variables", 2000.
fn gamma(shape: f64, rng: &mut RandomStream) -> f64 {
    if shape < 1.0 {
        let u = between(f64::MIN_POSITIVE, 1.0, rng);
        return gamma(shape + 1.0, rng) * u.powf(1.0 / shape);
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = rng.normal();
        let v = (1.0 + c * x).powi(3);
        let u = between(f64::MIN_POSITIVE, 1.0, rng);
        if v > 0.0 && u.ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_base::rng::hash_name;

    fn photo() -> HostArray {
        let data: Vec<u8> = (0..32 * 24 * 3).map(|i| (i * 7 % 200 + 20) as u8).collect();
        Literal::from_slice([32, 24, 3], &data).unwrap().into()
    }

    fn rng(i: u64) -> RandomStream {
        RandomStream::new(1, hash_name("test"), i)
    }

    #[test]
    fn every_operation_does_something_and_nothing_at_strength_0() {
        let plain = photo().into_literal().unwrap();
        for kind in 0..14 {
            let at = |strength, sign| operation(photo(), kind, strength, sign).into_literal().unwrap();
            assert_eq!(at(0.7, 1.0).ty(), plain.ty());
            assert_eq!(at(0.7, 1.0) == plain, kind == 0, "operation {kind}");
            if kind < 12 {
                let near = at(0.0, 1.0).bytes().iter().zip(plain.bytes()).all(|(a, b)| a.abs_diff(*b) <= 1);
                assert!(near, "operation {kind} at strength 0");
            }
        }
        let grey = Literal::from_slice([2, 2, 1], &[10u8, 20, 20, 60]).unwrap();
        let stretched = channels(grey.into(), stretched).into_literal().unwrap();
        assert_eq!(stretched.bytes(), [0, 51, 51, 255]);
    }

    /// A grayscale image gives the same result as a color image with three such channels, except for rounding of the
    /// luma weights.
    #[test]
    fn grey_pictures_change_as_grey_ones_in_colour_do() {
        let data: Vec<u8> = (0..32 * 24).map(|i| (i * 7 % 200 + 20) as u8).collect();
        let rgb: Vec<u8> = data.iter().flat_map(|v| [*v; 3]).collect();
        for kind in 0..14 {
            for sign in [-1.0, 1.0] {
                let grey = Literal::from_slice([32, 24, 1], &data).unwrap();
                let colour = Literal::from_slice([32, 24, 3], &rgb).unwrap();
                let changed = operation(grey.into(), kind, 0.7, sign).into_literal().unwrap();
                let wanted = operation(colour.into(), kind, 0.7, sign).into_literal().unwrap();
                assert_eq!(changed.ty().to_string(), "ui8[32, 24, 1]");
                let mut pairs = changed.bytes().iter().zip(wanted.bytes().iter().step_by(3));
                assert!(pairs.all(|(a, b)| a.abs_diff(*b) <= 1), "operation {kind}, {sign}");
                assert_eq!(changed.bytes() == data, kind == 0 || kind == 7, "operation {kind}, {sign}");
            }
        }
    }

    #[test]
    fn augmenting_is_a_function_of_the_draws() {
        let of = |i| photo().rand_augment(RandAugment::default(), &mut rng(i)).into_literal().unwrap();
        assert_eq!(of(3), of(3));
        let different = (0..40).map(of).collect::<std::collections::HashSet<_>>().len();
        assert!(different > 20, "{different}");
        for i in 0..50 {
            let crop = photo().random_resized_crop(5, 7, RandomResizedCrop::default(), &mut rng(i));
            assert_eq!(crop.ty().unwrap().to_string(), "ui8[5, 7, 3]");
        }
        assert!(
            HostArray::scalar(systole_base::DType::U8, 1.0)
                .rand_augment(RandAugment { count: 20, magnitude: 30.0 }, &mut rng(0))
                .get()
                .is_err()
        );
    }

    #[test]
    fn mixing_factors_have_the_moments_of_beta() {
        for alpha in [0.2, 1.0, 4.0] {
            let draws: Vec<f64> = (0..20_000).map(|i| beta(alpha, &mut rng(i))).collect();
            let mean = draws.iter().sum::<f64>() / draws.len() as f64;
            let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws.len() as f64;
            let expected = 1.0 / (4.0 * (2.0 * alpha + 1.0));
            assert!(
                (mean - 0.5).abs() < 0.01 && (variance - expected).abs() < 0.006,
                "{alpha}: {mean} {variance}"
            );
        }
    }
}
