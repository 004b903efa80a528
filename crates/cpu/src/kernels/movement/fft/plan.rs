//! Radices and twiddle factors of a Fourier transform of one length.

use crate::simd::zip_lanes::ZipLanes;
use systole_ir::op::fft::unit_root;

/// Largest prime factor of a length.
pub const LARGEST_PRIME: usize = systole_ir::op::fft::LARGEST_PRIME;

/// One pass of Stockham's algorithm: `count · stride` butterflies of `radix` elements.
pub struct FftPass<T> {
    pub radix: usize,
    /// Butterflies with different twiddle factors, and with the same ones (consecutive elements).
    pub count: usize,
    pub stride: usize,
    /// `e^(−2πi · p · k / (count · radix))` as (cos, sin) for `p < count`, `1 ≤ k < radix`; empty if `count` is 1.
    pub twiddles: Vec<T>,
    /// `cos(2π · j / radix)` and `sin(2π · j / radix)` for an odd radix.
    pub roots: Vec<T>,
}

/// Passes of a complex transform.
pub struct FftPlan<T> {
    pub passes: Vec<FftPass<T>>,
}

/// Returns `e^(−2πi · p / n)` for all `p`, as real and imaginary parts.
pub fn unit_roots<V: ZipLanes>(products: impl Iterator<Item = usize>, n: usize) -> (Vec<V::T>, Vec<V::T>) {
    products.map(|p| unit_root(p, n)).map(|(cos, sin)| (V::scalar(cos), V::scalar(-sin))).unzip()
}

/// Returns the radices of a length: 8 and 4 if possible, then 2 and odd primes. `None` for a large prime factor.
fn radices(n: usize) -> Option<Vec<usize>> {
    let twos = n.trailing_zeros() as usize;
    let (fours, eights) = match (twos, twos % 3) {
        (0 | 1, _) => (0, 0),
        (_, 1) => (2, (twos - 4) / 3),
        (_, 2) => (1, (twos - 2) / 3),
        _ => (0, twos / 3),
    };
    let mut all = [vec![8; eights], vec![4; fours], vec![2; usize::from(twos == 1)]].concat();
    let mut rest = n >> twos;
    let mut prime = 3;
    while rest > 1 {
        while rest.is_multiple_of(prime) {
            all.push(prime);
            rest /= prime;
        }
        prime += 2;
        if prime > LARGEST_PRIME && rest > 1 {
            return None;
        }
    }
    Some(all)
}

impl<T> FftPlan<T> {
    /// Returns the plan of `n ≥ 1` elements; `None` for a large prime factor.
    pub fn new<V: ZipLanes<T = T>>(n: usize) -> Option<FftPlan<T>> {
        let (mut left, mut stride, mut passes) = (n, 1, Vec::new());
        for radix in radices(n)? {
            let count = left / radix;
            let pair = |(cos, sin): (f64, f64)| [V::scalar(cos), V::scalar(-sin)];
            let powers = (0..count).flat_map(|p| (1..radix).map(move |k| p * k));
            let twiddles =
                if count == 1 { Vec::new() } else { powers.flat_map(|p| pair(unit_root(p, left))).collect() };
            let positive = |(cos, sin): (f64, f64)| [V::scalar(cos), V::scalar(sin)];
            let roots = (0..radix).flat_map(|j| positive(unit_root(j, radix)));
            let roots = if radix.is_multiple_of(2) { Vec::new() } else { roots.collect() };
            passes.push(FftPass { radix, count, stride, twiddles, roots });
            (left, stride) = (count, stride * radix);
        }
        Some(FftPlan { passes })
    }
}

/// Returns the factors `(n1, n2)` of a length for which vectors of `lanes` columns and rows have the fewest unused lanes.
/// `None` if a factor would be less than half a vector.
pub fn split(n: usize, lanes: usize) -> Option<(usize, usize)> {
    let root = (n as f64).sqrt() as usize + 1;
    let padded = |a: usize| (a.div_ceil(lanes) * lanes) as f64 / a as f64;
    // Lanes of the first step are elements of n2; of the second, of n1. Balanced factors need fewer passes.
    let ratio = |a: usize| a.max(n / a) as f64 / a.min(n / a) as f64;
    let waste = |a: usize| padded(a) + padded(n / a) + 0.02 * ratio(a);
    let fits = |a: &usize| n.is_multiple_of(*a) && *a >= lanes / 2 && n / *a >= lanes / 2;
    let best =
        (1..=root).filter(fits).flat_map(|a| [a, n / a]).min_by(|a, b| waste(*a).total_cmp(&waste(*b)));
    best.map(|a| (a, n / a))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::vector::Portable64;

    #[test]
    fn radices_multiply_to_the_length() {
        for n in 1..5000usize {
            match radices(n) {
                Some(all) => assert_eq!(all.iter().product::<usize>(), n, "{all:?}"),
                None => assert!((2..n + 1).any(|p| p > LARGEST_PRIME && n.is_multiple_of(p)), "{n}"),
            }
        }
        assert_eq!(radices(1024).unwrap(), [8, 8, 4, 4]);
    }

    #[test]
    fn passes_cover_all_elements() {
        let plan = FftPlan::<f64>::new::<Portable64>(360).unwrap();
        for pass in &plan.passes {
            assert_eq!(pass.radix * pass.count * pass.stride, 360);
            let twiddles = if pass.count == 1 { 0 } else { pass.count * (pass.radix - 1) * 2 };
            assert_eq!(pass.twiddles.len(), twiddles);
        }
    }

    #[test]
    fn splits_fill_vectors() {
        assert_eq!(split(1024, 16), Some((32, 32)));
        assert_eq!(split(4096, 16), Some((64, 64)));
        assert_eq!(split(256, 16), Some((16, 16)));
        assert_eq!(split(61, 16), None);
        assert_eq!(split(14, 16), None);
    }
}
