//! Imports `fft` as calls of the CPU engine's transforms, or for any backend as matrix products (mixed-radix
//! Cooley-Tukey): splits the length into factors, each a product with a DFT matrix, with twiddle factors between them.
//! Large primes use Bluestein's algorithm. Constants are computed in f64.
//!
//! Source: the StableHLO specification, fft; Cooley and Tukey 1965; Bluestein 1970.

use super::call::{OpImport, op};
use super::complex_number::RealOrComplex;
use super::types::{held, not_there, wrong};
use crate::syntax::{Attribute, MlirType, Operation, find};
use std::f64::consts::PI;
use systole_base::{Literal, Result};
use systole_ir::Tensor;
use systole_ir::op::fft::{self, FftCall, FftType};

/// Maximum length of a single matrix product.
const ONE_PRODUCT: usize = 64;
/// Prime lengths above this use Bluestein's convolution.
const LARGEST_PRIME: usize = 256;
/// Maximum length of products and convolutions; longer ones need too large constants.
const LONGEST: usize = 1 << 22;
/// Maximum length of the CPU engine's transforms of other dimensions than the last one.
const LONGEST_INNER: usize = 1 << 14;
/// Maximum length of factors that use Bluestein's convolution.
const LONGEST_CONVOLVED: usize = 1 << 18;

pub(super) const OPERATIONS: &[OpImport] = &[op("stablehlo.fft").importer(|i, op, operands, frame, _| {
    let x = operands.first().ok_or_else(|| wrong("an operand is missing"))?.number()?;
    let result = op.results.first().ok_or_else(|| wrong("a result is missing"))?;
    Ok(vec![transformed(op, &x, frame.ty(*result)?, i.has_fft)?.into()])
})];

/// Imports the op; `native`: the backend has kernels for calls of [`fft::FFT`].
fn transformed(op: &Operation, x: &RealOrComplex, to: &MlirType, native: bool) -> Result<RealOrComplex> {
    let lengths = super::attribute::sizes(op, "fft_length")?;
    let kind = match find(&op.attributes, "fft_type") {
        Some(Attribute::Keyword(_, kind)) => kind.parse::<FftType>().map_err(|e| wrong(e.what()))?,
        _ => return Err(wrong("missing attribute `fft_type`")),
    };
    checked(x, &lengths, kind, native)?;
    let first = x.rank() - lengths.len();
    let to = held(to)?.into_iter().next().ok_or_else(|| wrong("a result has no type"))?;
    if x.ty().elements() == 0 || to.elements() == 0 || lengths.contains(&0) {
        let zeros = x.g().full(&to, 0.0);
        let complex = kind != FftType::Irfft;
        return Ok(if complex {
            RealOrComplex::complex(zeros.clone(), zeros)
        } else {
            RealOrComplex::real(zeros)
        });
    }
    let last = lengths.len() - 1;
    let others = if kind.is_inverse() { FftType::Ifft } else { FftType::Fft };
    // Real numbers come first or last.
    let own = if kind.is_real() { kind } else { others };
    let mut order: Vec<(usize, FftType)> = (0..last).map(|i| (i, others)).collect();
    order.insert(if kind == FftType::Irfft { last } else { 0 }, (last, own));
    let (mut x, mut unscaled) = (x.clone(), Vec::new());
    for (i, kind) in order {
        let length = lengths[i];
        if native && is_smooth(length) {
            x = called(&x, FftCall { kind, dim: first + i, length });
            continue;
        }
        x = along_of(&x, FftCall { kind, dim: first + i, length }, native);
        unscaled.extend(kind.is_inverse().then_some(length));
    }
    if !unscaled.is_empty() {
        x = scaled(&x, &unscaled);
    }
    Ok(if kind == FftType::Irfft { RealOrComplex::real(x.re) } else { x.widened() })
}

/// Whether the CPU engine transforms this length.
fn is_smooth(n: usize) -> bool {
    unsplit(n, fft::LARGEST_PRIME) == 1
}

/// Calls the CPU engine's transform. Long inner dimensions become the last one: vectors of whole transforms would not fit
/// the caches.
fn called(x: &RealOrComplex, fft: FftCall) -> RealOrComplex {
    let last = x.rank() - 1;
    if fft.dim < last && fft.length > LONGEST_INNER {
        let mut order: Vec<usize> = (0..=last).collect();
        order.swap(fft.dim, last);
        return called(&x.transpose(&order), FftCall { dim: last, ..fft }).transpose(&order);
    }
    let x = if fft.kind == FftType::Rfft { x.clone() } else { x.widened() };
    let mut made = fft.emit(&x.parts().collect::<Vec<_>>()).into_iter();
    let re = made.next().unwrap_or_else(|| x.re.clone());
    RealOrComplex { re, im: made.next() }
}

/// Computes a transform along one dimension without the factor `1 / n` of inverse ones.
fn along_of(x: &RealOrComplex, fft: FftCall, native: bool) -> RealOrComplex {
    let n = fft.length;
    match fft.kind {
        FftType::Fft => along(x, fft.dim, -1.0, native),
        FftType::Ifft => along(x, fft.dim, 1.0, native),
        FftType::Rfft => along(x, fft.dim, -1.0, native).widened().slice_dim(fft.dim, 0, n / 2 + 1),
        FftType::Irfft => RealOrComplex::real(along(&hermitian(x, n), fft.dim, 1.0, native).re),
    }
}

fn checked(x: &RealOrComplex, lengths: &[usize], kind: FftType, native: bool) -> Result<()> {
    let wants_complex = kind != FftType::Rfft;
    if wants_complex != x.is_complex() {
        let what = if wants_complex { "complex" } else { "real" };
        return Err(wrong(format!("(C2) {kind} requires {what} numbers")));
    }
    if !(1..=3).contains(&lengths.len()) || lengths.len() > x.rank() {
        let what = format!("(C1, C3) fft_length {lengths:?} must have 1 to 3 entries for {}", x.ty());
        return Err(wrong(what));
    }
    let mut wanted = lengths.to_vec();
    if let (Some(last), FftType::Irfft) = (wanted.last_mut(), kind) {
        *last = if *last == 0 { 0 } else { *last / 2 + 1 };
    }
    let have = &x.shape()[x.rank() - lengths.len()..];
    if have != wanted {
        let what = format!(
            "(C4, C5) {kind} with fft_length {lengths:?} requires trailing dimensions {wanted:?}, got {have:?}"
        );
        return Err(wrong(what));
    }
    let is_long = |n: usize| n > LONGEST || unsplit(n, ONE_PRODUCT) > LONGEST_CONVOLVED;
    if lengths.iter().any(|&n| is_long(n) && !(native && is_smooth(n))) {
        let what = format!(
            "fft lengths above {LONGEST}, or above {LONGEST_CONVOLVED} with a large prime factor, are not supported"
        );
        return Err(not_there(what).hint("pad the array to a length with small factors"));
    }
    Ok(())
}

/// Returns the part of a length that factors up to `most` do not divide.
fn unsplit(n: usize, most: usize) -> usize {
    (2..=most).fold(n.max(1), |mut rest, a| {
        while rest.is_multiple_of(a) {
            rest /= a;
        }
        rest
    })
}

fn scaled(x: &RealOrComplex, lengths: &[usize]) -> RealOrComplex {
    let all: f64 = lengths.iter().map(|n| *n as f64).product();
    x.scale(&x.re.scalar_like(1.0 / all))
}

/// Expands `[…, n / 2 + 1] → […, n]` by Hermitian symmetry.
fn hermitian(x: &RealOrComplex, n: usize) -> RealOrComplex {
    let last = x.rank() - 1;
    let tail = n.div_ceil(2);
    if tail <= 1 {
        return x.slice_dim(last, 0, n);
    }
    let rest = x.slice_dim(last, 1, tail).map(|t| t.reverse(&[last])).conj();
    RealOrComplex::concatenate(&[x, &rest], last).unwrap_or_else(|| x.clone())
}

/// Computes the transform along one dimension.
fn along(x: &RealOrComplex, dim: usize, sign: f64, native: bool) -> RealOrComplex {
    let n = x.rank();
    let mut order: Vec<usize> = (0..n).collect();
    order.swap(dim, n - 1);
    transform(&x.transpose(&order), sign, native).transpose(&order)
}

/// Computes the unscaled transform along the last dimension: sums of `x[j] · e^(sign · 2πi · j · k / n)`.
fn transform(x: &RealOrComplex, sign: f64, native: bool) -> RealOrComplex {
    let n = x.shape().last().copied().unwrap_or(1);
    if native && is_smooth(n) {
        // With the parts exchanged, the transform has the other sign.
        let fft = FftCall { kind: FftType::Fft, dim: x.rank() - 1, length: n };
        let swapped = |x: RealOrComplex| if sign > 0.0 { RealOrComplex::complex(x.imag(), x.re) } else { x };
        return swapped(called(&swapped(x.clone()), fft));
    }
    if native && n > LARGEST_PRIME {
        return convolved(x, n, sign, native);
    }
    let factor = (2..=ONE_PRODUCT.min(n)).rev().find(|a| n.is_multiple_of(*a));
    match factor {
        _ if n <= 1 => x.clone(),
        Some(a) if a == n => product(x, n, sign),
        Some(a) => split(x, balanced(n, a), sign),
        None if n <= LARGEST_PRIME => product(x, n, sign),
        None => convolved(x, n, sign, native),
    }
}

/// Returns a factor near the square root for a length of two products, otherwise the largest one.
fn balanced(n: usize, largest: usize) -> usize {
    if n / largest > ONE_PRODUCT {
        return largest;
    }
    let fits = |a: &usize| n.is_multiple_of(*a) && n / a <= ONE_PRODUCT;
    (2..=largest).filter(fits).find(|a| a * a >= n).unwrap_or(largest)
}

/// Multiplies `[…, n] → […, n]` by the DFT matrix.
fn product(x: &RealOrComplex, n: usize, sign: f64) -> RealOrComplex {
    product_along(x, x.rank() - 1, n, sign)
}

/// Computes the transform along one dimension, which becomes the last one: one product of the concatenated real and
/// imaginary parts with the DFT matrix `[[re, im], [−im, re]]`.
fn product_along(x: &RealOrComplex, dim: usize, n: usize, sign: f64) -> RealOrComplex {
    let angle = |p: usize| sign * 2.0 * PI * (p % n) as f64 / n as f64;
    let row = |j: usize, turn: bool| {
        let all: Vec<(f64, f64)> = (0..n).map(|k| angle(j * k)).map(|a| (a.cos(), a.sin())).collect();
        let first = all.iter().map(|w| if turn { -w.1 } else { w.0 }).collect::<Vec<_>>();
        [first, all.iter().map(|w| if turn { w.0 } else { w.1 }).collect()].concat()
    };
    let parts = if x.is_complex() { 2 } else { 1 };
    let matrix: Vec<f64> = (0..parts)
        .flat_map(|part| (0..n).flat_map(move |j| [(j, part == 1)]))
        .flat_map(|(j, turn)| row(j, turn))
        .collect();
    let w = of_values(&x.re, &[parts * n, 2 * n], &matrix);
    let both = match &x.im {
        Some(im) => Tensor::concatenate(&[&x.re, im], dim),
        None => x.re.clone(),
    };
    let y = both.dot_general(&w, &[], &[], &[dim], &[0]);
    let last = y.rank() - 1;
    RealOrComplex::complex(y.slice_dim(last, 0, n), y.slice_dim(last, n, 2 * n))
}

/// Splits n = a · b: transforms of length a, twiddle factors, transforms of length b.
fn split(x: &RealOrComplex, a: usize, sign: f64) -> RealOrComplex {
    let rank = x.rank();
    let n = x.shape()[rank - 1];
    let b = n / a;
    let lead = &x.shape()[..rank - 1];
    let table = x.reshape(&[lead, &[a, b]].concat());
    // […, a, b] → […, b, a]
    let columns = product_along(&table, rank - 1, a, sign);
    let turned = columns.mul(&roots(x, &[b, a], |j, k| j * k % n, n, sign));
    // […, b, a] → […, a, b]
    let rows = match b <= ONE_PRODUCT {
        true => product_along(&turned, rank - 1, b, sign),
        false => transform(&turned.transposed(), sign, false),
    };
    rows.transposed().reshape(&[lead, &[n]].concat())
}

/// Computes Bluestein's transform: with j · k = (j² + k² − (k − j)²) / 2 the sums become a convolution.
fn convolved(x: &RealOrComplex, n: usize, sign: f64, native: bool) -> RealOrComplex {
    let m = (2 * n - 1).next_power_of_two();
    // Squares modulo 2n keep all digits of the angles.
    let angle = |j: usize| sign * PI * ((j as u128 * j as u128) % (2 * n as u128)) as f64 / n as f64;
    let chirp: Vec<(f64, f64)> = (0..n).map(|j| (angle(j).cos(), angle(j).sin())).collect();
    let mut kernel = vec![(0.0, 0.0); m];
    for (j, (re, im)) in chirp.iter().enumerate() {
        kernel[j] = (*re, -*im);
        kernel[(m - j) % m] = (*re, -*im);
    }
    let kernel: Vec<(f64, f64)> =
        fft::transform(&kernel, -1.0).into_iter().map(|(re, im)| (re / m as f64, im / m as f64)).collect();
    let last = x.rank() - 1;
    let chirp = constant(x, &[n], &chirp);
    let zero = x.re.scalar_like(0.0);
    let pad = |t: &Tensor| {
        let (low, mut high) = (vec![0; t.rank()], vec![0; t.rank()]);
        high[last] = (m - n) as i64;
        t.pad(&zero, &low, &high, &vec![0; t.rank()])
    };
    let spectrum = transform(&x.mul(&chirp).map(pad), -1.0, native).mul(&constant(x, &[m], &kernel));
    transform(&spectrum, 1.0, native).slice_dim(last, 0, n).mul(&chirp)
}

/// Returns the matrix `e^(sign · 2πi · at(j, k) / n)`.
fn roots(
    like: &RealOrComplex,
    shape: &[usize; 2],
    at: impl Fn(usize, usize) -> usize,
    n: usize,
    sign: f64,
) -> RealOrComplex {
    let angle = |p: usize| sign * 2.0 * PI * p as f64 / n as f64;
    let places = (0..shape[0]).flat_map(|j| (0..shape[1]).map(move |k| (j, k)));
    let all: Vec<(f64, f64)> =
        places.map(|(j, k)| angle(at(j, k))).map(|angle| (angle.cos(), angle.sin())).collect();
    constant(like, shape, &all)
}

fn constant(like: &RealOrComplex, shape: &[usize], values: &[(f64, f64)]) -> RealOrComplex {
    let part =
        |of: fn(&(f64, f64)) -> f64| of_values(&like.re, shape, &values.iter().map(of).collect::<Vec<_>>());
    RealOrComplex::complex(part(|v| v.0), part(|v| v.1))
}

/// Returns a constant with the type of `like`.
fn of_values(like: &Tensor, shape: &[usize], values: &[f64]) -> Tensor {
    match Literal::from_slice(shape, values) {
        Ok(literal) => like.builder().constant(literal.convert(like.ty().dtype)),
        Err(e) => like.fail(e),
    }
}
