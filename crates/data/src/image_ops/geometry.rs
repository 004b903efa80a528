//! Geometric image transforms: crop, pad, flip, rotate, affine.

use super::dims;
use crate::HostArray;
use crate::host_array::{bad, zeros};
use systole_base::rng::RandomStream;
use systole_base::{DType, Literal, Result};

impl HostArray {
    /// Crops `x: T[H, W, C] → T[height, width, C]` from row `top` and column `left`.
    #[track_caller]
    pub fn crop(self, top: usize, left: usize, height: usize, width: usize) -> HostArray {
        self.then(|x| crop(&x, top, left, height, width))
    }

    /// Crops the center to the aspect ratio of `height × width`: the largest such part, as Keras's
    /// `crop_to_aspect_ratio`.
    #[track_caller]
    pub fn crop_to_aspect_ratio(self, height: usize, width: usize) -> HostArray {
        self.then(|x| {
            let [h, w, _] = dims(&x, "crop_to_aspect_ratio")?;
            if height == 0 || width == 0 {
                return Err(bad(
                    format!("cannot crop {} to {height} × {width}", x.ty()),
                    "an image side is 0",
                ));
            }
            let part = |side: usize, a: usize, b: usize| (side as u128 * a as u128 / b as u128) as usize;
            let (ch, cw) =
                (part(w, height, width).clamp(1, h.max(1)), part(h, width, height).clamp(1, w.max(1)));
            crop(&x, (h.saturating_sub(ch)) / 2, (w.saturating_sub(cw)) / 2, ch, cw)
        })
    }

    /// Crops the center: `x: T[H, W, C] → T[H', W', C]`, `fraction` of each side.
    #[track_caller]
    pub fn central_crop(self, fraction: f64) -> HostArray {
        self.then(|x| {
            let [h, w, _] = dims(&x, "central_crop")?;
            if !(fraction > 0.0 && fraction <= 1.0) {
                return Err(bad(format!("invalid central_crop fraction {fraction}"), "it must be in (0, 1]"));
            }
            let start = |n: usize| ((n as f64 - n as f64 * fraction) / 2.0) as usize;
            crop(&x, start(h), start(w), h - 2 * start(h), w - 2 * start(w))
        })
    }

    /// Crops or zero-pads centrally: `x: T[H, W, C] → T[height, width, C]`.
    #[track_caller]
    pub fn resize_with_crop_or_pad(self, height: usize, width: usize) -> HostArray {
        self.then(|x| {
            let [h, w, _] = dims(&x, "resize_with_crop_or_pad")?;
            let (ch, cw) = (h.min(height), w.min(width));
            let middle = crop(&x, (h - ch) / 2, (w - cw) / 2, ch, cw)?;
            pad_to(&middle, (height - ch) / 2, (width - cw) / 2, height, width)
        })
    }

    /// Zero-pads every side by `pixels`: `x: T[H, W, C] → T[H + 2 p, W + 2 p, C]`.
    #[track_caller]
    pub fn pad_image(self, pixels: usize) -> HostArray {
        self.then(|x| {
            let [h, w, _] = dims(&x, "pad_image")?;
            pad_to(&x, pixels, pixels, h.saturating_add(2 * pixels), w.saturating_add(2 * pixels))
        })
    }

    /// Flips an image left to right.
    #[track_caller]
    pub fn flip_left_right(self) -> HostArray {
        self.then(|x| {
            let [h, w, c] = dims(&x, "flip_left_right")?;
            moved(&x, [h, w, c], |i, j| Some((i, w - 1 - j)))
        })
    }

    /// Flips an image upside down.
    #[track_caller]
    pub fn flip_up_down(self) -> HostArray {
        self.then(|x| {
            let [h, w, c] = dims(&x, "flip_up_down")?;
            moved(&x, [h, w, c], |i, j| Some((h - 1 - i, j)))
        })
    }

    /// Rotates an image counter-clockwise by `turns` right angles.
    #[track_caller]
    pub fn rot90(self, turns: usize) -> HostArray {
        self.then(|x| {
            let [h, w, c] = dims(&x, "rot90")?;
            match turns % 4 {
                0 => Ok(x),
                1 => moved(&x, [w, h, c], |i, j| Some((j, w - 1 - i))),
                2 => moved(&x, [h, w, c], |i, j| Some((h - 1 - i, w - 1 - j))),
                _ => moved(&x, [w, h, c], |i, j| Some((h - 1 - j, i))),
            }
        })
    }

    /// Rotates an image counter-clockwise about the center, with bilinear interpolation; the size stays, pixels from
    /// outside are 0.
    #[track_caller]
    pub fn rotate(self, degrees: f64) -> HostArray {
        let (sin, cos) = degrees.to_radians().sin_cos();
        self.affine([[cos, -sin], [sin, cos]], [0.0, 0.0])
    }

    /// Affine transform with bilinear interpolation: each output pixel (x to the right, y down, relative to the center)
    /// is taken from `matrix · (x, y) + shift`; pixels from outside are 0.
    #[track_caller]
    pub fn affine(self, matrix: [[f64; 2]; 2], shift: [f64; 2]) -> HostArray {
        self.then(|x| affine(&x, matrix, shift))
    }

    /// Flips an image left to right with probability 0.5.
    #[track_caller]
    pub fn random_flip_left_right(self, rng: &mut RandomStream) -> HostArray {
        if rng.below(2) == 1 { self.flip_left_right() } else { self }
    }

    /// Flips an image upside down with probability 0.5.
    #[track_caller]
    pub fn random_flip_up_down(self, rng: &mut RandomStream) -> HostArray {
        if rng.below(2) == 1 { self.flip_up_down() } else { self }
    }

    /// Crops a random part of an image: `x: T[H, W, C] → T[height, width, C]`.
    #[track_caller]
    pub fn random_crop(self, height: usize, width: usize, rng: &mut RandomStream) -> HostArray {
        let draws = [rng.uniform_f64(), rng.uniform_f64()];
        self.then(|x| {
            let [h, w, _] = dims(&x, "random_crop")?;
            let place = |n: usize, part: usize, draw: f64| {
                let places = n.checked_sub(part).map_or(0, |left| left + 1);
                (draw * places as f64) as usize
            };
            crop(&x, place(h, height, draws[0]), place(w, width, draws[1]), height, width)
        })
    }
}

pub(super) fn crop(x: &Literal, top: usize, left: usize, height: usize, width: usize) -> Result<Literal> {
    let [h, w, c] = dims(x, "crop")?;
    let fits = |at: usize, size: usize, n: usize| at.checked_add(size).is_some_and(|end| end <= n);
    if !fits(top, height, h) || !fits(left, width, w) {
        return Err(bad(
            format!("cannot crop {height} × {width} at ({top}, {left}) from {}", x.ty()),
            "the crop extends beyond the image",
        ));
    }
    let mut out = zeros(x.ty().with_shape([height, width, c]))?;
    let pixel = c * x.dtype().size();
    for (i, to) in out.bytes_mut().chunks_exact_mut((width * pixel).max(1)).enumerate() {
        to.copy_from_slice(&x.bytes()[((top + i) * w + left) * pixel..][..width * pixel]);
    }
    Ok(out)
}

/// Zero-pads to a larger size.
pub(super) fn pad_to(x: &Literal, top: usize, left: usize, height: usize, width: usize) -> Result<Literal> {
    let [h, w, c] = dims(x, "pad")?;
    let mut out = zeros(x.ty().with_shape([height, width, c]))?;
    let pixel = c * x.dtype().size();
    if h * w * pixel == 0 {
        return Ok(out);
    }
    for (i, from) in x.bytes().chunks_exact(w * pixel).enumerate() {
        out.bytes_mut()[((top + i) * width + left) * pixel..][..w * pixel].copy_from_slice(from);
    }
    Ok(out)
}

/// Moves pixels: output pixel (i, j) is input pixel `from(i, j)`, or 0.
fn moved(
    x: &Literal,
    [h, w, c]: [usize; 3],
    from: impl Fn(usize, usize) -> Option<(usize, usize)>,
) -> Result<Literal> {
    let width = x.shape()[1];
    let mut out = zeros(x.ty().with_shape([h, w, c]))?;
    let pixel = c * x.dtype().size();
    if pixel == 0 {
        return Ok(out);
    }
    for (at, to) in out.bytes_mut().chunks_exact_mut(pixel).enumerate() {
        if let Some((i, j)) = from(at / w, at % w) {
            to.copy_from_slice(&x.bytes()[(i * width + j) * pixel..][..pixel]);
        }
    }
    Ok(out)
}

fn affine(x: &Literal, [[a, b], [d, e]]: [[f64; 2]; 2], [right, down]: [f64; 2]) -> Result<Literal> {
    let [h, w, c] = dims(x, "affine")?;
    let mut out = zeros(x.ty().clone())?;
    let pixels = x.to_f32s_of_image();
    let mut values = vec![0f32; h * w * c];
    let middle = |n: usize| (n as f64 - 1.0) / 2.0;
    let (mx, my) = (middle(w), middle(h));
    for (at, to) in values.chunks_exact_mut(c.max(1)).enumerate() {
        let (px, py) = ((at % w) as f64 - mx, (at / w) as f64 - my);
        let (fx, fy) = (a * px + b * py + right + mx, d * px + e * py + down + my);
        let (x0, y0) = (fx.floor(), fy.floor());
        for (dx, dy) in [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)] {
            let (xi, yi) = (x0 + dx, y0 + dy);
            let weight = (1.0 - (fx - xi).abs()) * (1.0 - (fy - yi).abs());
            if (0.0..w as f64).contains(&xi) && (0.0..h as f64).contains(&yi) {
                let from = &pixels[(yi as usize * w + xi as usize) * c..][..c];
                to.iter_mut().zip(from).for_each(|(o, v)| *o += weight as f32 * v);
            }
        }
    }
    match x.dtype() {
        DType::U8 => {
            let out = out.as_mut_slice::<u8>()?;
            out.iter_mut().zip(values).for_each(|(o, v)| *o = (v + 0.5) as u8);
        }
        _ => out.as_mut_slice::<f32>()?.copy_from_slice(&values),
    }
    Ok(out)
}

/// Image values as f32, with one dispatch on the element type.
trait ImageValues {
    fn to_f32s_of_image(&self) -> Vec<f32>;
}

impl ImageValues for Literal {
    fn to_f32s_of_image(&self) -> Vec<f32> {
        match self.as_slice::<u8>() {
            Ok(bytes) => bytes.iter().map(|&b| f32::from(b)).collect(),
            Err(_) => self.to_f32s(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_base::rng::hash_name;

    fn grid() -> HostArray {
        Literal::from_slice([3, 4, 1], &(0..12).collect::<Vec<u8>>()).unwrap().into()
    }

    fn bytes(x: HostArray) -> Vec<u8> {
        x.into_literal().unwrap().bytes().to_vec()
    }

    #[test]
    fn numbers_are_tensorflows() {
        assert_eq!(bytes(grid().rot90(1)), [3, 7, 11, 2, 6, 10, 1, 5, 9, 0, 4, 8]);
        assert_eq!(bytes(grid().rot90(2)), [11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]);
        assert_eq!(bytes(grid().rot90(3)), bytes(grid().rot90(1).rot90(2)));
        assert_eq!(bytes(grid().crop(1, 1, 2, 2)), [5, 6, 9, 10]);
        assert_eq!(bytes(grid().central_crop(0.5)), [1, 2, 5, 6, 9, 10]);
        assert_eq!(bytes(grid().resize_with_crop_or_pad(2, 6)), [0, 0, 1, 2, 3, 0, 0, 4, 5, 6, 7, 0]);
        assert_eq!(bytes(grid().flip_left_right()), [3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8]);
        assert_eq!(bytes(grid().flip_up_down()), [8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3]);
        assert_eq!(bytes(grid().crop(0, 0, 1, 1).pad_image(1)), [0; 9]);
        for wrong in [grid().crop(2, 0, 2, 1), grid().crop(usize::MAX, 0, 2, 1), grid().central_crop(0.0)] {
            assert!(wrong.get().is_err());
        }
    }

    #[test]
    fn turning_by_right_angles_is_exact_on_squares() {
        let square: HostArray = Literal::from_slice([3, 3, 1], &(0..9).collect::<Vec<u8>>()).unwrap().into();
        assert_eq!(bytes(square.clone().rotate(90.0)), bytes(square.clone().rot90(1)));
        assert_eq!(bytes(square.clone().rotate(180.0)), bytes(square.clone().rot90(2)));
        let right = square.clone().affine([[1.0, 0.0], [0.0, 1.0]], [1.0, 0.0]);
        assert_eq!(bytes(right), [1, 2, 0, 4, 5, 0, 7, 8, 0]);
        assert_eq!(bytes(square.clone().rotate(0.0)), bytes(square));
    }

    #[test]
    fn random_parts_are_parts_and_come_from_everywhere() {
        let mut firsts = std::collections::HashSet::new();
        for i in 0..200 {
            let mut rng = RandomStream::new(1, hash_name("test"), i);
            firsts.insert(bytes(grid().random_crop(2, 3, &mut rng))[0]);
        }
        assert_eq!(firsts, [0, 1, 4, 5].into());
        let mut rng = RandomStream::new(1, hash_name("test"), 0);
        assert!(grid().random_crop(4, 1, &mut rng).get().is_err());
        let mirrored = (0..100).filter(|&i| {
            let mut rng = RandomStream::new(2, hash_name("test"), i);
            bytes(grid().random_flip_left_right(&mut rng))[0] == 3
        });
        assert!((30..70).contains(&mirrored.count()));
    }
}
