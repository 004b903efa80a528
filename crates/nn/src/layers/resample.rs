//! What layers that change the number of places along a dimension have in common: each place of the output is a weighted
//! mean of places of the input.

use super::built_in::*;
use systole_ir::Literal;

/// `x: T[…, n, …] → T[…, n', …]` along dimension `dim`: `weights` has `n'` rows of `n` weights.
pub(super) fn mixed_along(x: &Tensor, dim: usize, weights: &[Vec<f32>]) -> Tensor {
    let flat: Vec<f32> = weights.iter().flatten().copied().collect();
    let matrix = match Literal::from_slice([weights.len(), x.dim(dim as isize)], &flat) {
        Ok(literal) => x.builder().constant(literal).convert(x.dtype()).transpose(&[1, 0]),
        Err(e) => return x.fail(e),
    };
    let last = x.rank() - 1;
    let mut order: Vec<usize> = (0..x.rank()).collect();
    order.swap(dim, last);
    x.transpose(&order).dot(&matrix).transpose(&order)
}

/// The window `[start, end)` of each of `out` places over `n`: PyTorch's adaptive windows.
pub(super) fn adaptive_windows(n: usize, out: usize) -> Vec<[usize; 2]> {
    (0..out).map(|i| [i * n / out, ((i + 1) * n).div_ceil(out)]).collect()
}

/// How places between those of the input get their values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ResamplingKernel {
    Bilinear,
    Bicubic,
    Lanczos(u8),
}

impl ResamplingKernel {
    fn reach(self) -> f64 {
        match self {
            ResamplingKernel::Bilinear => 1.0,
            ResamplingKernel::Bicubic => 2.0,
            ResamplingKernel::Lanczos(n) => f64::from(n),
        }
    }

    /// The weight of what is this far away. Bicubic: Keys 1981, a = −½.
    fn at(self, distance: f64) -> f64 {
        let x = distance.abs();
        match self {
            _ if x >= self.reach() => 0.0,
            ResamplingKernel::Bilinear => 1.0 - x,
            ResamplingKernel::Bicubic if x <= 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
            ResamplingKernel::Bicubic => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
            ResamplingKernel::Lanczos(_) if x == 0.0 => 1.0,
            ResamplingKernel::Lanczos(n) => {
                let (pi, n) = (std::f64::consts::PI * x, f64::from(n));
                n * pi.sin() * (pi / n).sin() / (pi * pi)
            }
        }
    }

    /// Rows of weights that bring `n` places to `n · factor`; a place's value is that of its middle.
    pub(super) fn weights(self, n: usize, factor: usize) -> Vec<Vec<f32>> {
        self.rows(n, n * factor, 1.0, |i| (i as f64 + 0.5) / factor as f64)
    }

    /// Rows of weights that bring `n` places to `size`; with `antialias` all of fewer places have a part in one of them.
    pub(super) fn weights_to(self, n: usize, size: usize, antialias: bool) -> Vec<Vec<f32>> {
        let places = n as f64 / size as f64;
        let width = if antialias { places.max(1.0) } else { 1.0 };
        self.rows(n, size, width, |i| (i as f64 + 0.5) * places)
    }

    /// `width`: how many times as far as on its own the kernel reaches.
    fn rows(self, n: usize, size: usize, width: f64, middle: impl Fn(usize) -> f64) -> Vec<Vec<f32>> {
        let row = |i: usize| {
            let middle = middle(i);
            let weights: Vec<f64> = (0..n).map(|j| self.at((middle - (j as f64 + 0.5)) / width)).collect();
            let sum: f64 = weights.iter().sum();
            weights.into_iter().map(|w| (w / sum) as f32).collect()
        };
        (0..size).map(row).collect()
    }
}
