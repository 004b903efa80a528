//! Inverse trigonometric and hyperbolic functions of complex numbers, with Kahan's branch cuts.
//!
//! Source: Kahan, "Branch Cuts for Complex Elementary Functions", 1987.

use super::functions::sqrt;
use crate::import::complex_number::RealOrComplex;
use systole_ir::Tensor;

/// Returns `1 − z` and `1 + z`; the imaginary parts keep the signs of zeros.
fn around_one(z: &RealOrComplex) -> (RealOrComplex, RealOrComplex) {
    (RealOrComplex::complex(1.0 - &z.re, -&z.imag()), RealOrComplex::complex(&z.re + 1.0, z.imag()))
}

/// Returns `i·z` and `−i·z`.
fn turned(z: &RealOrComplex) -> RealOrComplex {
    RealOrComplex::complex(-&z.imag(), z.re.clone())
}

fn turned_back(z: &RealOrComplex) -> RealOrComplex {
    RealOrComplex::complex(z.imag(), -&z.re)
}

/// Computes `asinh x` of real numbers, accurately near 0.
fn real_asinh(x: &Tensor) -> Tensor {
    let a = x.abs();
    let square = &a * &a;
    let near = (&a + &(&square / &(&(&square + 1.0).sqrt() + 1.0))).log1p();
    let far = &a.log() + std::f64::consts::LN_2;
    let limit = if x.dtype() == systole_base::DType::F64 { 1e8 } else { 1e4 };
    let size = a.greater(&a.scalar_like(limit)).select(&far, &near);
    x.less(&x.scalar_like(0.0)).select(&-&size, &size)
}

pub(crate) fn asin(z: &RealOrComplex) -> RealOrComplex {
    let (minus, plus) = around_one(z);
    let (p, q) = (sqrt(&minus), sqrt(&plus));
    let re = z.re.atan2(&p.mul(&q).re);
    RealOrComplex::complex(re, real_asinh(&p.conj().mul(&q).imag()))
}

pub(crate) fn acos(z: &RealOrComplex) -> RealOrComplex {
    let (minus, plus) = around_one(z);
    let (p, q) = (sqrt(&minus), sqrt(&plus));
    let re = &p.re.atan2(&q.re) * 2.0;
    RealOrComplex::complex(re, real_asinh(&q.conj().mul(&p).imag()))
}

pub(crate) fn asinh(z: &RealOrComplex) -> RealOrComplex {
    turned_back(&asin(&turned(z)))
}

pub(crate) fn acosh(z: &RealOrComplex) -> RealOrComplex {
    let minus = RealOrComplex::complex(&z.re - 1.0, z.imag());
    let plus = RealOrComplex::complex(&z.re + 1.0, z.imag());
    let (p, q) = (sqrt(&minus), sqrt(&plus));
    let re = real_asinh(&p.conj().mul(&q).re);
    RealOrComplex::complex(re, &p.imag().atan2(&q.re) * 2.0)
}

/// Computes half the difference of the logarithms of 1 + z and 1 − z.
pub(crate) fn atanh(z: &RealOrComplex) -> RealOrComplex {
    let (x, y) = (&z.re, z.imag());
    let square = &y * &y;
    let apart = &(1.0 - x) * &(1.0 - x);
    let re = &(&(x * 4.0) / &(&apart + &square)).log1p() * 0.25;
    let bottom = &(&(1.0 - x) * &(x + 1.0)) - &square;
    let im = &(&y * 2.0).atan2(&bottom) * 0.5;
    RealOrComplex::complex(re, im)
}

/// Computes −i atanh(iz).
pub(crate) fn atan(z: &RealOrComplex) -> RealOrComplex {
    turned_back(&atanh(&turned(z)))
}
