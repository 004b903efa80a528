//! Imports `fft` as matrix products (mixed-radix Cooley-Tukey): splits the length into factors, each a product with a
//! DFT matrix, with twiddle factors between them. Large primes use Bluestein's algorithm. Constants are computed in
//! f64.
//!
//! Source: the StableHLO specification, fft; Cooley and Tukey 1965; Bluestein 1970.

use super::call::{ImportRule, OpCall, OpImport, op};
use super::complex_number::RealOrComplex;
use super::types::{not_there, wrong};
use super::value::ImportedValue;
use crate::syntax::{Attribute, find};
use std::f64::consts::PI;
use systole_base::{Literal, Result};
use systole_ir::Tensor;

/// Maximum length of a single matrix product.
const ONE_PRODUCT: usize = 64;
/// Prime lengths above this use Bluestein's convolution.
const LARGEST_PRIME: usize = 256;
/// Maximum transform length; longer ones need too large constants.
const LONGEST: usize = 1 << 22;
/// Maximum length of factors that use Bluestein's convolution.
const LONGEST_CONVOLVED: usize = 1 << 18;

pub(super) const OPERATIONS: &[OpImport] = &[op("stablehlo.fft").import(ImportRule::Values(transformed))];

fn transformed(call: &OpCall) -> Result<Vec<ImportedValue>> {
    let (op, x, to) = (call.op, call.number(0)?, call.ty()?);
    let lengths = super::attribute::sizes(op, "fft_length")?;
    let kind = match find(&op.attributes, "fft_type") {
        Some(Attribute::Keyword(_, kind)) => kind.as_str(),
        _ => return Err(wrong("missing attribute `fft_type`")),
    };
    checked(&x, &lengths, kind)?;
    let first = x.rank() - lengths.len();
    if x.ty().elements() == 0 || to.elements() == 0 || lengths.contains(&0) {
        let zeros = x.g().full(&to, 0.0);
        let complex = kind != "IRFFT";
        let zeros =
            if complex { RealOrComplex::complex(zeros.clone(), zeros) } else { RealOrComplex::real(zeros) };
        return Ok(vec![zeros.into()]);
    }
    let others = |x: RealOrComplex, sign: f64| {
        lengths[..lengths.len() - 1].iter().enumerate().fold(x, |x, (i, _)| along(&x, first + i, sign))
    };
    let last = x.rank() - 1;
    let written = match kind {
        "FFT" => others(along(&x, last, -1.0), -1.0),
        "IFFT" => scaled(&others(along(&x, last, 1.0), 1.0), &lengths),
        "RFFT" => {
            let half = lengths[lengths.len() - 1] / 2 + 1;
            others(along(&x, last, -1.0).widened().slice_dim(last, 0, half), -1.0)
        }
        _ => {
            let whole = hermitian(&others(x, 1.0), lengths[lengths.len() - 1]);
            RealOrComplex::real(scaled(&along(&whole, last, 1.0), &lengths).re)
        }
    };
    let complex = kind != "IRFFT";
    Ok(vec![if complex { written.widened() } else { written }.into()])
}

fn checked(x: &RealOrComplex, lengths: &[usize], kind: &str) -> Result<()> {
    let wants_complex = match kind {
        "FFT" | "IFFT" | "IRFFT" => true,
        "RFFT" => false,
        other => return Err(wrong(format!("unknown fft_type `{other}`"))),
    };
    if wants_complex != x.is_complex() {
        let what = if wants_complex { "complex" } else { "real" };
        return Err(wrong(format!("(C2) {kind} requires {what} numbers")));
    }
    if !(1..=3).contains(&lengths.len()) || lengths.len() > x.rank() {
        let what = format!("(C1, C3) fft_length {lengths:?} must have 1 to 3 entries for {}", x.ty());
        return Err(wrong(what));
    }
    let mut wanted = lengths.to_vec();
    if let (Some(last), "IRFFT") = (wanted.last_mut(), kind) {
        *last = if *last == 0 { 0 } else { *last / 2 + 1 };
    }
    let have = &x.shape()[x.rank() - lengths.len()..];
    if have != wanted {
        let what = format!(
            "(C4, C5) {kind} with fft_length {lengths:?} requires trailing dimensions {wanted:?}, got {have:?}"
        );
        return Err(wrong(what));
    }
    if lengths.iter().any(|n| *n > LONGEST || unsplit(*n) > LONGEST_CONVOLVED) {
        let what = format!(
            "fft lengths above {LONGEST}, or above {LONGEST_CONVOLVED} with a large prime factor, are not supported"
        );
        return Err(not_there(what).hint("pad the array to a length with small factors"));
    }
    Ok(())
}

/// Returns the part of a length that small factors do not divide.
fn unsplit(n: usize) -> usize {
    (2..=ONE_PRODUCT).fold(n.max(1), |mut rest, a| {
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
fn along(x: &RealOrComplex, dim: usize, sign: f64) -> RealOrComplex {
    let n = x.rank();
    let mut order: Vec<usize> = (0..n).collect();
    order.swap(dim, n - 1);
    transform(&x.transpose(&order), sign).transpose(&order)
}

/// Computes the unscaled transform along the last dimension: sums of `x[j] · e^(sign · 2πi · j · k / n)`.
fn transform(x: &RealOrComplex, sign: f64) -> RealOrComplex {
    let n = x.shape().last().copied().unwrap_or(1);
    let factor = (2..=ONE_PRODUCT.min(n)).rev().find(|a| n.is_multiple_of(*a));
    match factor {
        _ if n <= 1 => x.clone(),
        Some(a) if a == n => product(x, n, sign),
        Some(a) => split(x, balanced(n, a), sign),
        None if n <= LARGEST_PRIME => product(x, n, sign),
        None => convolved(x, n, sign),
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
        false => transform(&turned.transposed(), sign),
    };
    rows.transposed().reshape(&[lead, &[n]].concat())
}

/// Computes Bluestein's transform: with j · k = (j² + k² − (k − j)²) / 2 the sums become a convolution.
fn convolved(x: &RealOrComplex, n: usize, sign: f64) -> RealOrComplex {
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
        of_host(&kernel).into_iter().map(|(re, im)| (re / m as f64, im / m as f64)).collect();
    let last = x.rank() - 1;
    let chirp = constant(x, &[n], &chirp);
    let zero = x.re.scalar_like(0.0);
    let pad = |t: &Tensor| {
        let (low, mut high) = (vec![0; t.rank()], vec![0; t.rank()]);
        high[last] = (m - n) as i64;
        t.pad(&zero, &low, &high, &vec![0; t.rank()])
    };
    let spectrum = transform(&x.mul(&chirp).map(pad), -1.0).mul(&constant(x, &[m], &kernel));
    transform(&spectrum, 1.0).slice_dim(last, 0, n).mul(&chirp)
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

/// Computes the transform of a power-of-two length with sign −1 on the host, in f64.
fn of_host(x: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let n = x.len();
    if n <= 1 {
        return x.to_vec();
    }
    let every = |p: usize| x.iter().skip(p).step_by(2).copied().collect::<Vec<_>>();
    let (even, odd) = (of_host(&every(0)), of_host(&every(1)));
    let mut all = vec![(0.0, 0.0); n];
    for (k, (e, o)) in even.iter().zip(&odd).enumerate() {
        let (s, c) = (-2.0 * PI * k as f64 / n as f64).sin_cos();
        let turned = (o.0 * c - o.1 * s, o.0 * s + o.1 * c);
        all[k] = (e.0 + turned.0, e.1 + turned.1);
        all[k + n / 2] = (e.0 - turned.0, e.1 - turned.1);
    }
    all
}
