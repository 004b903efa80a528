//! Color adjustments: brightness, contrast, saturation, hue, gamma, grayscale.
//!
//! Like tf.image, u8 images are converted to 0..1 and back.

use super::dims;
use crate::HostArray;
use crate::host_array::{bad, zeros};
use systole_base::rng::RandomStream;
use systole_base::{DType, Literal, Result};

impl HostArray {
    /// Converts to grayscale: `x: T[H, W, C] → T[H, W, 1]`, u8 or f32; 3 and 4 channels by ITU-R 601 luma (alpha over
    /// black), others unchanged.
    #[track_caller]
    pub fn rgb_to_grayscale(self) -> HostArray {
        self.then(|x| grayscale(&x))
    }

    /// Converts to RGB: `x: T[H, W, 1, 2 or 4] → T[H, W, 3]`; gray in all three channels, alpha over black.
    #[track_caller]
    pub fn to_rgb(self) -> HostArray {
        self.then(|x| rgb(&x))
    }

    /// Blends alpha over a gray background, from 0 (black) to 1 (white): `x: T[H, W, 2 or 4] → T[H, W, 1 or 3]`; images
    /// without alpha are unchanged.
    #[track_caller]
    pub fn on_ground(self, ground: f64) -> HostArray {
        self.then(|x| on_ground(&x, ground as f32))
    }

    /// Adds `delta` to all pixel values (in 0..1).
    #[track_caller]
    pub fn adjust_brightness(self, delta: f64) -> HostArray {
        self.toned("adjust_brightness", move |values, _| values.iter_mut().for_each(|v| *v += delta as f32))
    }

    /// Scales each pixel's distance from its channel's mean by `factor`.
    #[track_caller]
    pub fn adjust_contrast(self, factor: f64) -> HostArray {
        self.toned("adjust_contrast", move |values, c| {
            let n = (values.len() / c.max(1)).max(1) as f64;
            for k in 0..c {
                let mean = values.iter().skip(k).step_by(c).map(|&v| f64::from(v)).sum::<f64>() / n;
                for v in values.iter_mut().skip(k).step_by(c) {
                    *v = ((f64::from(*v) - mean) * factor + mean) as f32;
                }
            }
        })
    }

    /// Multiplies the saturation of an RGB image by `factor`.
    #[track_caller]
    pub fn adjust_saturation(self, factor: f64) -> HostArray {
        self.pixels("adjust_saturation", move |[h, s, v]| [h, (s * factor as f32).clamp(0.0, 1.0), v])
    }

    /// Rotates the hue of an RGB image by `delta` of the circle.
    #[track_caller]
    pub fn adjust_hue(self, delta: f64) -> HostArray {
        self.pixels("adjust_hue", move |[h, s, v]| [(h + delta as f32).rem_euclid(1.0), s, v])
    }

    /// Gamma correction: `gain · x^gamma`.
    #[track_caller]
    pub fn adjust_gamma(self, gamma: f64, gain: f64) -> HostArray {
        self.toned("adjust_gamma", move |values, _| {
            values.iter_mut().for_each(|v| *v = gain as f32 * v.max(0.0).powf(gamma as f32));
        })
    }

    /// Standardizes `x: T[H, W, C] → f32[H, W, C]` to mean 0 and variance 1 (u8: of the values 0 to 255).
    #[track_caller]
    pub fn per_image_standardization(self) -> HostArray {
        self.cast(DType::F32).then(|mut x| {
            dims(&x, "per_image_standardization")?;
            let values = x.as_mut_slice::<f32>()?;
            let n = values.len().max(1) as f64;
            let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
            let variance = values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
            let scale = variance.sqrt().max(1.0 / n.sqrt());
            values.iter_mut().for_each(|v| *v = ((f64::from(*v) - mean) / scale) as f32);
            Ok(x)
        })
    }

    /// [`HostArray::adjust_brightness`] with a random delta in [-`most`, `most`).
    #[track_caller]
    pub fn random_brightness(self, most: f64, rng: &mut RandomStream) -> HostArray {
        let delta = between(-most, most, rng);
        self.adjust_brightness(delta)
    }

    /// [`HostArray::adjust_contrast`] with a random factor in [`low`, `high`).
    #[track_caller]
    pub fn random_contrast(self, low: f64, high: f64, rng: &mut RandomStream) -> HostArray {
        let factor = between(low, high, rng);
        self.adjust_contrast(factor)
    }

    /// [`HostArray::adjust_saturation`] with a random factor in [`low`, `high`).
    #[track_caller]
    pub fn random_saturation(self, low: f64, high: f64, rng: &mut RandomStream) -> HostArray {
        let factor = between(low, high, rng);
        self.adjust_saturation(factor)
    }

    /// [`HostArray::adjust_hue`] with a random delta in [-`most`, `most`).
    #[track_caller]
    pub fn random_hue(self, most: f64, rng: &mut RandomStream) -> HostArray {
        let delta = between(-most, most, rng);
        self.adjust_hue(delta)
    }

    /// Applies a function to the values in 0..1 and the number of channels.
    pub(super) fn toned(self, what: &str, f: impl FnOnce(&mut [f32], usize)) -> HostArray {
        self.then(|mut x| {
            let [_, _, c] = dims(&x, what)?;
            if x.dtype() == DType::F32 {
                f(x.as_mut_slice::<f32>()?, c);
                return Ok(x);
            }
            let mut values: Vec<f32> = x.bytes().iter().map(|&b| f32::from(b) / 255.0).collect();
            f(&mut values, c);
            // Each byte covers an equal part of 0..1; `as` saturates.
            x.as_mut_slice::<u8>()?.iter_mut().zip(values).for_each(|(o, v)| *o = (v * 255.5) as u8);
            Ok(x)
        })
    }

    fn pixels(self, what: &str, f: impl Fn([f32; 3]) -> [f32; 3]) -> HostArray {
        let what = what.to_string();
        let is_rgb = self.ty().is_ok_and(|ty| ty.shape.last() == Some(&3));
        if !is_rgb {
            return self.then(|x| {
                Err(bad(format!("{what} does not support {}", x.ty()), "it requires 3 channels (RGB)"))
            });
        }
        self.toned(&what, |values, _| {
            for pixel in values.as_chunks_mut::<3>().0 {
                *pixel = to_rgb(f(to_hsv(*pixel)));
            }
        })
    }
}

pub(super) fn between(low: f64, high: f64, rng: &mut RandomStream) -> f64 {
    low + (high - low) * rng.uniform_f64()
}

fn to_hsv([r, g, b]: [f32; 3]) -> [f32; 3] {
    let (v, low) = (r.max(g).max(b), r.min(g).min(b));
    let range = v - low;
    if range <= 0.0 {
        return [0.0, 0.0, v];
    }
    let h = if v == r {
        (g - b) / range
    } else if v == g {
        2.0 + (b - r) / range
    } else {
        4.0 + (r - g) / range
    };
    [(h / 6.0).rem_euclid(1.0), if v > 0.0 { range / v } else { 0.0 }, v]
}

fn to_rgb([h, s, v]: [f32; 3]) -> [f32; 3] {
    let channel = |shift: f32| {
        let k = (shift + h * 6.0).rem_euclid(6.0);
        v - v * s * k.min(4.0 - k).clamp(0.0, 1.0)
    };
    [channel(5.0), channel(3.0), channel(1.0)]
}

/// Channels: 1 is gray, 2 gray and alpha, 3 RGB, 4 RGB and alpha. Luma after ITU-R BT.601; alpha multiplies.
fn grayscale(x: &Literal) -> Result<Literal> {
    let [h, w, c] = dims(x, "rgb_to_grayscale")?;
    if c == 1 {
        return Ok(x.clone());
    }
    let full = full(x)?;
    let luma = |p: &[f32]| 0.2989 * p[0] + 0.587 * p[1] + 0.114 * p[2];
    let grey = |p: &[f32]| match c {
        2 => p[0] * p[1] / full,
        3 => luma(p),
        _ => luma(p) * p[3] / full,
    };
    let done: Vec<f32> = x.to_f32s().chunks_exact(c).map(grey).collect();
    stored(x, [h, w, 1], &done)
}

fn rgb(x: &Literal) -> Result<Literal> {
    let [h, w, c] = dims(x, "to_rgb")?;
    if c == 3 {
        return Ok(x.clone());
    }
    let full = full(x)?;
    let colours = |p: &[f32]| match c {
        1 => [p[0]; 3],
        2 => [p[0] * p[1] / full; 3],
        _ => [p[0], p[1], p[2]].map(|v| v * p[3] / full),
    };
    let done: Vec<f32> = x.to_f32s().chunks_exact(c).flat_map(colours).collect();
    stored(x, [h, w, 3], &done)
}

fn on_ground(x: &Literal, ground: f32) -> Result<Literal> {
    let [h, w, c] = dims(x, "on_ground")?;
    if c % 2 == 1 {
        return Ok(x.clone());
    }
    let full = full(x)?;
    let seen = |p: &[f32]| {
        let alpha = p[c - 1] / full;
        (0..c - 1).map(|k| p[k] * alpha + ground * full * (1.0 - alpha)).collect::<Vec<_>>()
    };
    let done: Vec<f32> = x.to_f32s().chunks_exact(c).flat_map(seen).collect();
    stored(x, [h, w, c - 1], &done)
}

/// Returns the alpha value of an opaque pixel. Errors unless there are 1 to 4 channels.
fn full(x: &Literal) -> Result<f32> {
    let c = x.shape()[2];
    if (1..=4).contains(&c) {
        return Ok(if x.dtype() == DType::U8 { 255.0 } else { 1.0 });
    }
    Err(bad(
        format!("color operations do not support {}", x.ty()),
        format!("expected 1 to 4 channels (gray or RGB, with or without alpha), got {c}"),
    ))
}

fn stored(x: &Literal, dims: [usize; 3], values: &[f32]) -> Result<Literal> {
    let mut out = zeros(x.ty().with_shape(dims))?;
    match out.as_mut_slice::<u8>() {
        Ok(bytes) => bytes.iter_mut().zip(values).for_each(|(o, v)| *o = (v * (255.5 / 255.0)) as u8),
        Err(_) => out.as_mut_slice::<f32>()?.copy_from_slice(values),
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture() -> HostArray {
        let data = [10u8, 200, 30, 0, 0, 0, 255, 255, 255, 90, 60, 120];
        Literal::from_slice([2, 2, 3], &data).unwrap().into()
    }

    #[test]
    fn numbers_are_tensorflows() {
        let cases: [(HostArray, [u8; 12]); 4] = [
            (picture().adjust_brightness(0.2), [61, 251, 81, 51, 51, 51, 255, 255, 255, 141, 111, 171]),
            (picture().adjust_contrast(1.5), [0, 236, 0, 0, 0, 0, 255, 255, 255, 90, 25, 129]),
            (picture().adjust_saturation(0.4), [124, 200, 132, 0, 0, 0, 255, 255, 255, 108, 96, 120]),
            (picture().adjust_hue(0.15), [10, 199, 200, 0, 0, 0, 255, 255, 255, 120, 60, 96]),
        ];
        for (i, (got, expected)) in cases.into_iter().enumerate() {
            let got = got.into_literal().unwrap();
            let near = got.bytes().iter().zip(expected).all(|(&a, b)| a.abs_diff(b) <= 1);
            assert!(near, "case {i}: {:?}", got.bytes());
        }
        let floats = |x: HostArray| x.into_literal().unwrap().to_f32s();
        let scaled = || picture().cast(DType::F32) / 255.0;
        let close = |x: HostArray, expected: [f32; 12]| {
            let got = floats(x);
            assert!(got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 2e-4), "{got:?}");
        };
        close(
            scaled().adjust_gamma(0.7, 1.1),
            [0.114, 0.928, 0.2459, 0.0, 0.0, 0.0, 1.1, 1.1, 1.1, 0.5306, 0.3995, 0.649],
        );
        close(
            picture().per_image_standardization(),
            [
                -0.9367, 0.9124, -0.742, -1.034, -1.034, -1.034, 1.4476, 1.4476, 1.4476, -0.1581, -0.4501,
                0.1338,
            ],
        );
        close(
            scaled().adjust_hue(0.15),
            [0.0392, 0.7804, 0.7843, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.4706, 0.2353, 0.3765],
        );
        assert_eq!(picture().rgb_to_grayscale().into_literal().unwrap().bytes(), [124, 0, 255, 75]);
    }

    #[test]
    fn channels_and_alpha() {
        let alpha = || HostArray::from(Literal::from_slice([1, 2, 2], &[200u8, 255, 200, 0]).unwrap());
        assert_eq!(alpha().rgb_to_grayscale().into_literal().unwrap().bytes(), [200, 0]);
        assert_eq!(alpha().to_rgb().into_literal().unwrap().bytes(), [200, 200, 200, 0, 0, 0]);
        assert_eq!(alpha().on_ground(1.0).into_literal().unwrap().bytes(), [200, 255]);
        assert_eq!(alpha().on_ground(0.0).into_literal().unwrap().bytes(), [200, 0]);
        let five = || HostArray::from(Literal::from_slice([1, 1, 5], &[0u8; 5]).unwrap());
        assert!(five().rgb_to_grayscale().get().is_err() && five().to_rgb().get().is_err());
        assert!(alpha().adjust_hue(0.1).get().unwrap_err().to_string().contains("RGB"));
    }
}
