//! Resampling along an axis as a matrix product: interpolation weights (bilinear, bicubic, Lanczos) and adaptive
//! windows.

use super::built_in::*;
use systole_ir::Literal;

/// Resamples dimension `dim`: `x: T[…, n, …] → T[…, n', …]`. `weights` has `n'` rows of `n` weights.
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

/// Returns the window `[start, end)` over `n` inputs for each of `out` outputs, as PyTorch's adaptive pooling.
pub(super) fn adaptive_windows(n: usize, out: usize) -> Vec<[usize; 2]> {
    (0..out).map(|i| [i * n / out, ((i + 1) * n).div_ceil(out)]).collect()
}

/// Interpolation kernel.
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

    /// Kernel value at a distance. Bicubic: Keys 1981, a = −½.
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

    /// Weight rows that upsample `n` pixels to `n · factor`, aligned at pixel centers.
    pub(super) fn weights(self, n: usize, factor: usize) -> Vec<Vec<f32>> {
        self.rows(n, n * factor, 1.0, |i| (i as f64 + 0.5) / factor as f64)
    }

    /// Weight rows that resize `n` pixels to `size`. With `antialias`, the kernel is widened for downsampling so that
    /// every pixel contributes.
    pub(super) fn weights_to(self, n: usize, size: usize, antialias: bool) -> Vec<Vec<f32>> {
        let places = n as f64 / size as f64;
        let width = if antialias { places.max(1.0) } else { 1.0 };
        self.rows(n, size, width, |i| (i as f64 + 0.5) * places)
    }

    /// Weight rows for a kernel widened by the factor `width`; `middle` returns the input coordinate of an output
    /// pixel.
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
