//! Fourier transforms along one dimension, as calls of the target [`FFT`]: backends without a kernel for them evaluate
//! them here. Importers that do not know the backend write matrix products instead, which every backend has.
//!
//! A complex array is one array of real parts and one of imaginary parts. Source: the StableHLO specification, fft.

use super::*;
use std::f64::consts::PI;
use std::fmt;
use std::str::FromStr;
use systole_base::{Error, err};

/// Target whose configuration is an [`FftCall`].
pub const FFT: &str = "systole_fft";

/// Largest prime factor of the lengths that callers should use. Longer transforms with larger ones are convolutions.
pub const LARGEST_PRIME: usize = 61;

/// Kind of a Fourier transform, by StableHLO's names. `N` is the length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FftType {
    /// Complex numbers: `X[k] = Σ x[j] · e^(−2πi · j · k / N)`.
    Fft,
    /// The inverse of `Fft`, divided by `N`.
    Ifft,
    /// `N` real numbers to the elements `0 ≤ k ≤ N / 2` of their transform.
    Rfft,
    /// The inverse of `Rfft`.
    Irfft,
}

/// All kinds, and their names in StableHLO.
const KINDS: [(FftType, &str); 4] =
    [(FftType::Fft, "FFT"), (FftType::Ifft, "IFFT"), (FftType::Rfft, "RFFT"), (FftType::Irfft, "IRFFT")];

impl FftType {
    /// Whether operand or result are real numbers.
    pub fn is_real(self) -> bool {
        matches!(self, FftType::Rfft | FftType::Irfft)
    }

    /// Whether it is an inverse transform.
    pub fn is_inverse(self) -> bool {
        matches!(self, FftType::Ifft | FftType::Irfft)
    }
}

impl FromStr for FftType {
    type Err = Error;

    fn from_str(name: &str) -> Result<FftType> {
        let found = KINDS.iter().find(|(_, known)| *known == name);
        found.map(|(kind, _)| *kind).ok_or_else(|| err!(Data, "unknown fft_type `{name}`"))
    }
}

impl fmt::Display for FftType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(KINDS[*self as usize].1)
    }
}

/// A transform along dimension `dim`, of `length` real numbers or complex ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FftCall {
    /// What it computes.
    pub kind: FftType,
    /// The transformed dimension.
    pub dim: usize,
    /// `N` of [`FftType`].
    pub length: usize,
}

impl fmt::Display for FftCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} dim={} length={}", self.kind, self.dim, self.length)
    }
}

impl FftCall {
    /// Reads the configuration of a call.
    ///
    /// # Errors
    /// `Data` if it is not one.
    pub fn parse(config: &str) -> Result<FftCall> {
        let wrong = || err!(Data, "`{config}` does not describe a Fourier transform");
        let [kind, dim, length] = config.split(' ').collect::<Vec<_>>()[..] else { return Err(wrong()) };
        let number = |word: &str, name: &str| word.strip_prefix(name)?.parse().ok();
        let dim = number(dim, "dim=").ok_or_else(wrong)?;
        Ok(FftCall { kind: kind.parse()?, dim, length: number(length, "length=").ok_or_else(wrong)? })
    }

    /// Number of arrays, and the size of the transformed dimension, of the operand and of the result.
    fn sizes(self) -> [(usize, usize); 2] {
        let (whole, half) = (self.length, self.length / 2 + 1);
        match self.kind {
            FftType::Fft | FftType::Ifft => [(2, whole); 2],
            FftType::Rfft => [(1, whole), (2, half)],
            FftType::Irfft => [(2, half), (1, whole)],
        }
    }

    /// Returns the result types for an operand of this type.
    ///
    /// # Errors
    /// `Data` if the operand does not have the transform's dimensions.
    pub fn results(self, x: &TensorType) -> Result<Vec<TensorType>> {
        let [(_, from), (parts, to)] = self.sizes();
        let fits = x.shape.get(self.dim) == Some(&from) && matches!(x.dtype, DType::F32 | DType::F64);
        ensure!(
            fits && self.length > 0,
            err!(Data, "the transform `{self}` does not fit an operand of type {x}")
        );
        let mut dims = x.shape.to_vec();
        dims[self.dim] = to;
        Ok(vec![TensorType::new(x.dtype, &dims[..]); parts])
    }

    /// `x: T[…, N, …] (and its imaginary part) → T[…, M, …] (and the same)`, with `N` and `M` of [`FftType`]: appends the
    /// transform.
    ///
    /// ```
    /// use systole_ir::op::fft::{FftCall, FftType};
    /// use systole_ir::{interp, DType::F32, GraphBuilder, Literal, TensorType};
    /// let g = GraphBuilder::new("main");
    /// let x = g.parameter(TensorType::new(F32, [4]), "x");
    /// let spectrum = FftCall { kind: FftType::Rfft, dim: 0, length: 4 }.emit(&[&x]);
    /// let graph = g.finish(&spectrum).unwrap();
    /// let out = interp::run(&graph, &[&Literal::from_slice([4], &[1f32, 2., 3., 4.]).unwrap()]).unwrap();
    /// assert_eq!((out[0].to_f32s(), out[1].to_f32s()), (vec![10., -2., -2.], vec![0., 2., 0.]));
    /// ```
    #[track_caller]
    pub fn emit(self, x: &[&Tensor]) -> Vec<Tensor> {
        let Some(first) = x.first() else { return Vec::new() };
        match self.results(first.ty()) {
            Ok(results) => {
                let call = CustomCall {
                    target: FFT.into(),
                    config: self.to_string(),
                    has_side_effect: false,
                    results,
                };
                first.builder().emit(call, x)
            }
            Err(e) => vec![first.fail(e); self.sizes()[1].0],
        }
    }

    /// Sharding factors: every other dimension.
    pub(super) fn factors(self, at: NodeView<'_>) -> Vec<ShardingFactor> {
        at.same_dims(at.node.inputs.len(), |d| d != self.dim)
    }
}

/// Returns the operations of a call: 5 n log₂ n for each complex array, half of it for real ones.
pub(super) fn flops(config: &str, x: &TensorType) -> f64 {
    let Ok(fft) = FftCall::parse(config) else { return 0.0 };
    let [(_, from), _] = fft.sizes();
    let (arrays, n) = (x.elements() as f64 / from.max(1) as f64, fft.length as f64);
    let each = 5.0 * n * n.log2().max(1.0);
    arrays * if fft.kind.is_real() { each / 2.0 } else { each }
}

/// Evaluates a call in f64.
///
/// # Errors
/// `Data` if configuration, operands and results do not fit.
pub(super) fn call(config: &str, args: &[&Literal], types: &[TensorType]) -> Result<Vec<Literal>> {
    let fft = FftCall::parse(config)?;
    let [(parts, from), (_, to)] = fft.sizes();
    let wrong = || err!(Data, "operands and results do not fit the transform `{config}`");
    let first = args.first().ok_or_else(wrong)?;
    let fits = args.len() == parts && args.iter().all(|x| x.ty() == first.ty());
    ensure!(fits && fft.results(first.ty())? == types, wrong());
    let inner: usize = first.shape()[fft.dim + 1..].iter().product();
    let mut made: Vec<LiteralBuilder> = types.iter().map(|ty| LiteralBuilder::new(ty.clone())).collect();
    for line in 0..first.ty().elements() / from {
        let at = |j: usize, len: usize| (line / inner * len + j) * inner + line % inner;
        let part = |k: usize, j: usize| args.get(k).map_or(0.0, |x| x.get(at(j, from)).as_f64());
        let x: Vec<(f64, f64)> = (0..from).map(|j| (part(0, j), part(1, j))).collect();
        for (j, (re, im)) in fft.line(x).into_iter().take(to).enumerate() {
            for (out, value) in made.iter_mut().zip([re, im]) {
                out.set(at(j, to), Scalar::Float(value));
            }
        }
    }
    Ok(made.into_iter().map(LiteralBuilder::finish).collect())
}

impl FftCall {
    /// Transforms one array; may return more elements than the result has.
    fn line(self, mut x: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
        let n = self.length;
        if self.kind == FftType::Irfft {
            x[0].1 = 0.0;
            x.truncate(n / 2 + 1);
            x.extend((n / 2 + 1..n).map(|k| (x[n - k].0, -x[n - k].1)).collect::<Vec<_>>());
            if n.is_multiple_of(2) {
                x[n / 2].1 = 0.0;
            }
        }
        let sign = if self.kind.is_inverse() { 1.0 } else { -1.0 };
        let scale = if self.kind.is_inverse() { 1.0 / n as f64 } else { 1.0 };
        let mut y: Vec<(f64, f64)> =
            transform(&x, sign).into_iter().map(|(re, im)| (re * scale, im * scale)).collect();
        if self.kind == FftType::Rfft {
            // Sums of real numbers.
            y[0].1 = 0.0;
            if n.is_multiple_of(2) {
                y[n / 2].1 = 0.0;
            }
        }
        y
    }
}

/// Returns the cosine and sine of `2π · p / n`, from an angle of at most π / 4: exact for quarters of a circle.
pub fn unit_root(p: usize, n: usize) -> (f64, f64) {
    let p = p % n;
    let (half, sin_sign) = if 2 * p > n { (2 * (n - p), -1.0) } else { (2 * p, 1.0) };
    let (quarter, cos_sign) = if 2 * half > n { (n - half, -1.0) } else { (half, 1.0) };
    let angle = |p: usize| PI * p as f64 / (2 * n) as f64;
    let (cos, sin) = if 4 * quarter > n {
        angle(n - 2 * quarter).sin_cos()
    } else {
        let (sin, cos) = angle(2 * quarter).sin_cos();
        (cos, sin)
    };
    (cos_sign * cos, sin_sign * sin)
}

/// Returns `Σ x[j] · e^(sign · 2πi · j · k / n)`, by the factors of n.
pub fn transform(x: &[(f64, f64)], sign: f64) -> Vec<(f64, f64)> {
    let n = x.len();
    let Some(p) = (2..=n).find(|p| n.is_multiple_of(*p)) else { return x.to_vec() };
    let parts: Vec<Vec<(f64, f64)>> =
        (0..p).map(|r| transform(&x.iter().skip(r).step_by(p).copied().collect::<Vec<_>>(), sign)).collect();
    let sum = |k: usize| {
        parts.iter().enumerate().fold((0.0, 0.0), |(re, im), (r, part)| {
            let (cos, sin) = unit_root(r * k, n);
            let (sin, (a, b)) = (sign * sin, part[k % (n / p)]);
            (re + a * cos - b * sin, im + a * sin + b * cos)
        })
    };
    (0..n).map(sum).collect()
}

/// Samples of all kinds and of several layouts and radices.
pub(super) fn samples() -> Vec<OpSample> {
    let case = |(kind, name): (FftType, &str), dtype: DType, shape: &[usize], dim: usize| {
        let fft = FftCall { kind, dim, length: shape[dim] };
        let [(parts, from), _] = fft.sizes();
        let mut dims = shape.to_vec();
        dims[dim] = from;
        let params = vec![(TensorType::new(dtype, &dims[..]), super::sample::WIDE); parts];
        let label =
            format!("{name}_{dtype}_{}", shape.iter().map(|n| n.to_string()).collect::<Vec<_>>().join("x"));
        super::sample::sample(label, &params, 8, false, move |x| fft.emit(&x.iter().collect::<Vec<_>>()))
    };
    let shapes: [(&[usize], usize); 9] = [
        (&[1], 0),
        (&[2, 2], 1),
        (&[3, 8], 1),
        (&[15, 3], 0),
        (&[2, 12, 18], 1),
        (&[17, 30], 1),
        (&[33, 7], 1),
        (&[2, 256], 1),
        (&[3, 390], 1),
    ];
    let of = |dtype: DType| {
        KINDS.into_iter().flat_map(move |kind| shapes.map(|(shape, dim)| case(kind, dtype, shape, dim)))
    };
    [DType::F32, DType::F64].into_iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transforms_agree_with_the_definition() {
        for n in [1, 2, 3, 8, 12, 35] {
            let x: Vec<(f64, f64)> = (0..n).map(|j| ((j as f64).sin(), (3.0 * j as f64).cos())).collect();
            for (k, (re, im)) in transform(&x, -1.0).into_iter().enumerate() {
                let term = |j: usize| {
                    let (sin, cos) = (-2.0 * PI * (j * k) as f64 / n as f64).sin_cos();
                    (x[j].0 * cos - x[j].1 * sin, x[j].0 * sin + x[j].1 * cos)
                };
                let wanted = (0..n).map(term).fold((0.0, 0.0), |s, t| (s.0 + t.0, s.1 + t.1));
                assert!((re - wanted.0).abs() + (im - wanted.1).abs() < 1e-12, "{n}, {k}");
            }
        }
    }

    #[test]
    fn unit_roots_are_exact_where_they_can_be() {
        for n in 1..50 {
            for p in 0..2 * n {
                let (sin, cos) = (2.0 * PI * (p % n) as f64 / n as f64).sin_cos();
                let (x, y) = unit_root(p, n);
                assert!((x - cos).abs() + (y - sin).abs() < 1e-14, "{p} / {n}");
            }
        }
        let quarters = [0, 1, 2, 3].map(|p| unit_root(p, 4));
        assert_eq!(quarters, [(1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0)]);
    }

    #[test]
    fn configurations_are_read_again() {
        for (kind, _) in KINDS {
            let fft = FftCall { kind, dim: 2, length: 30 };
            assert_eq!(FftCall::parse(&fft.to_string()).unwrap(), fft);
        }
        for wrong in ["", "FFT", "FFT dim=1 length=", "DCT dim=0 length=4", "FFT 1 4"] {
            assert!(FftCall::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn real_transforms_cost_half() {
        let x = TensorType::new(DType::F32, [3, 1024]);
        let of = |kind| flops(&FftCall { kind, dim: 1, length: 1024 }.to_string(), &x);
        assert_eq!((of(FftType::Fft), of(FftType::Rfft)), (3.0 * 51_200.0, 3.0 * 25_600.0));
    }

    #[test]
    fn operands_that_do_not_fit_are_errors() {
        let fft = FftCall { kind: FftType::Irfft, dim: 0, length: 6 };
        assert!(fft.results(&TensorType::new(DType::F32, [6])).is_err());
        assert!(fft.results(&TensorType::new(DType::I32, [4])).is_err());
        assert_eq!(
            fft.results(&TensorType::new(DType::F64, [4])).unwrap(),
            [TensorType::new(DType::F64, [6])]
        );
        let x = Literal::zeros(TensorType::new(DType::F32, [4]));
        assert!(call(&fft.to_string(), &[&x], &[TensorType::new(DType::F32, [6])]).is_err());
    }
}
