//! What a Fourier transform computes: lengths, layout, plans and twiddle factors.

use super::plan::{FftPlan, split, unit_roots};
use crate::simd::zip_lanes::ZipLanes;
use systole_ir::op::fft::FftType;

/// Distance in bytes from which on rows of lanes are copied to buffers: lines whose addresses differ by a power of two
/// share few sets of the caches.
const FAR: usize = 1024;

/// Vectors of a row that are copied together, and the bytes of buffers that they may fill.
const MOST_WIDE: usize = 4;
const WIDE_BYTES: usize = 256 << 10;

/// A transform of `n` (real or complex) elements, split into transforms of n1 and n2 elements.
pub struct TwoSteps<T> {
    pub n1: usize,
    pub n2: usize,
    /// Elements of a row of the table between the steps: `n2`, rounded up to whole vectors.
    pub pitch: usize,
    pub columns: FftPlan<T>,
    pub rows: FftPlan<T>,
    /// `e^(−2πi · k1 · j2 / (n1 · n2))`, as `[n1, pitch]` real and imaginary parts.
    pub twiddles: (Vec<T>, Vec<T>),
}

/// A transform along one dimension.
pub struct FftSpec<T> {
    pub kind: FftType,
    /// Number of real elements, or of complex elements of the transforms without real ones.
    pub n: usize,
    /// Sizes of the dimensions before and after the transformed one, as products.
    pub outer: usize,
    pub inner: usize,
    /// Number of vectors of lanes in a group, if the inner dimensions have as many; above 1, groups are copied.
    pub wide: usize,
    /// How arrays are transformed: pairs of real elements as complex ones, if they are an even number.
    pub method: FftMethod<T>,
    /// `e^(−2πi · k / n)` for `k < n / 2 + 1`, for pairs of real elements.
    pub roots: (Vec<T>, Vec<T>),
}

/// How arrays are transformed.
pub enum FftMethod<T> {
    /// As many together as a vector has lanes.
    Lanes(FftPlan<T>),
    /// Each by itself.
    TwoSteps(TwoSteps<T>),
}

impl<T> FftSpec<T> {
    /// Returns the plan of a transform; `None` for a length with a large prime factor.
    pub fn new<V: ZipLanes<T = T>>(
        kind: FftType,
        n: usize,
        outer: usize,
        inner: usize,
    ) -> Option<FftSpec<T>> {
        let is_paired = kind.is_real() && n.is_multiple_of(2);
        let complex = if is_paired { n / 2 } else { n };
        let roots = unit_roots::<V>(0..if is_paired { n / 2 + 1 } else { 0 }, n);
        // Both steps need as many columns and rows as there are lanes.
        let is_long = inner == 1 && complex >= V::LANES * V::LANES;
        let method = match split(complex, V::LANES).filter(|_| is_long) {
            Some((n1, n2)) => FftMethod::TwoSteps(TwoSteps::new::<V>(n1, n2)?),
            None => FftMethod::Lanes(FftPlan::new::<V>(complex)?),
        };
        let mut spec = FftSpec { kind, n, outer, inner, wide: 1, method, roots };
        if inner > V::LANES && inner * size_of::<T>() >= FAR {
            spec.wide = (WIDE_BYTES / (2 * spec.buffer::<V>() * size_of::<T>())).clamp(1, MOST_WIDE);
        }
        Some(spec)
    }

    /// Whether real elements are transformed as half as many complex ones.
    pub fn is_paired(&self) -> bool {
        self.kind.is_real() && self.n.is_multiple_of(2)
    }

    /// Elements of a buffer of complex vectors.
    pub fn buffer<V: ZipLanes>(&self) -> usize {
        (self.n + 2) * 2 * V::LANES
    }

    /// The two steps of each array, if arrays are transformed one by one.
    pub fn steps(&self) -> Option<&TwoSteps<T>> {
        match &self.method {
            FftMethod::TwoSteps(steps) => Some(steps),
            FftMethod::Lanes(_) => None,
        }
    }

    /// Sizes of the transformed dimension of the operand and of the result.
    pub fn lengths(&self) -> [usize; 2] {
        let half = self.n / 2 + 1;
        match self.kind {
            FftType::Fft | FftType::Ifft => [self.n; 2],
            FftType::Rfft => [self.n, half],
            FftType::Irfft => [half, self.n],
        }
    }
}

impl<T> TwoSteps<T> {
    fn new<V: ZipLanes<T = T>>(n1: usize, n2: usize) -> Option<TwoSteps<T>> {
        let pitch = n2.div_ceil(V::LANES) * V::LANES;
        let products = (0..n1).flat_map(|k| (0..pitch).map(move |j| k * j));
        let twiddles = unit_roots::<V>(products, n1 * n2);
        let (columns, rows) = (FftPlan::new::<V>(n1)?, FftPlan::new::<V>(n2)?);
        Some(TwoSteps { n1, n2, pitch, columns, rows, twiddles })
    }

    /// Elements of the table between the steps, `[n1 in whole vectors, pitch]`, for one part.
    pub fn table<V: ZipLanes>(&self) -> usize {
        self.n1.div_ceil(V::LANES) * V::LANES * self.pitch
    }

    /// Elements of the buffers of [`columns`](super::steps::columns) and [`rows`](super::steps::rows).
    pub fn buffers<V: ZipLanes>(&self) -> usize {
        4 * 2 * V::LANES * self.n1.max(self.pitch)
    }
}
