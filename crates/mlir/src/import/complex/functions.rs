//! Elementary functions of complex numbers (exp, log, sqrt, power, tanh …), with the branch cuts of C99 and NumPy.
//!
//! Source: Kahan, "Branch Cuts for Complex Elementary Functions", 1987.

use crate::import::complex_number::{RealOrComplex, copysign, hypot};
use systole_base::DType;
use systole_ir::Tensor;

/// Returns `size · (cos angle + i sin angle)`.
fn polar(size: &Tensor, angle: &Tensor) -> RealOrComplex {
    RealOrComplex::complex(size * &angle.cosine(), size * &angle.sine())
}

fn number(x: &Tensor, value: f64) -> Tensor {
    x.scalar_like(value)
}

fn angle(z: &RealOrComplex) -> Tensor {
    z.imag().atan2(&z.re)
}

/// Computes z / |z|; 0 for 0.
pub(crate) fn sign(z: &RealOrComplex) -> RealOrComplex {
    let size = z.abs();
    let zero = number(&size, 0.0);
    let is_zero = size.equal(&zero);
    z.map(|t| is_zero.select(t, &(t / &size)))
}

/// Computes eᶻ; if eˣ overflows but the result may not, as the square of the root.
pub(crate) fn exp(z: &RealOrComplex) -> RealOrComplex {
    let (x, y) = (&z.re, z.imag());
    let (size, root) = (x.exp(), (x * 0.5).exp());
    let too_large = size.equal(&number(x, f64::INFINITY));
    let part = |unit: &Tensor| {
        let usual = &size * unit;
        too_large.select(&(&(&root * unit) * &root), &usual)
    };
    let is_real = y.equal(&number(x, 0.0));
    let none = x.equal(&number(x, f64::NEG_INFINITY)).and(&y.is_finite().not());
    let zero = number(x, 0.0);
    let re = none.select(&zero, &is_real.select(&size, &part(&y.cosine())));
    RealOrComplex::complex(re, none.select(&zero, &is_real.select(&y, &part(&y.sine()))))
}

/// Returns a · b and its rounding error (Veltkamp splitting).
fn exact_product(a: &Tensor, b: &Tensor) -> (Tensor, Tensor) {
    let halves = |x: &Tensor| {
        let scaled = x * if x.dtype() == DType::F64 { 134_217_729.0 } else { 4097.0 };
        let high = &scaled - &(&scaled - x);
        let low = x - &high;
        (high, low)
    };
    let ((ah, al), (bh, bl)) = (halves(a), halves(b));
    let whole = a * b;
    let rest = &(&(&(&ah * &bh) - &whole) + &(&ah * &bl)) + &(&al * &bh);
    (whole, rest + (&al * &bl))
}

/// Returns a + b and its rounding error.
fn exact_sum(a: &Tensor, b: &Tensor) -> (Tensor, Tensor) {
    let whole = a + b;
    let of_b = &whole - a;
    let rest = &(a - &(&whole - &of_b)) + &(b - &of_b);
    (whole, rest)
}

/// Computes ln |1 + x + iy| from 2x + x² + y² in doubled precision, since the terms cancel near the unit circle.
fn log_near_one(x: &Tensor, y: &Tensor) -> Tensor {
    let ((xx, x_rest), (yy, y_rest)) = (exact_product(x, x), exact_product(y, y));
    let (sum, first) = exact_sum(&(x * 2.0), &xx);
    let (sum, second) = exact_sum(&sum, &yy);
    let rest = &(&first + &second) + &(&x_rest + &y_rest);
    &(&sum + &rest).log1p() * 0.5
}

/// Computes ln |z| + i·arg z; near |z| = 1 from the difference to 1.
pub(crate) fn log(z: &RealOrComplex) -> RealOrComplex {
    let (a, b) = (z.re.abs(), z.imag().abs());
    let (most, least) = (a.maximum(&b), a.minimum(&b));
    let near = log_near_one(&(&most - 1.0), &least);
    let size = z.abs();
    let is_near = size.greater(&number(&size, 0.7)).and(&size.less(&number(&size, 1.5)));
    let ratio = &least / &most;
    // If |z| itself overflows or is subnormal.
    let far = &most.log() + &(&(&ratio * &ratio).log1p() * 0.5);
    let usual = size.log();
    let ends = size.is_finite().not().or(&size.less(&number(&size, 1e-30)));
    let far_defined = ends.and(&most.is_finite()).and(&most.greater(&number(&most, 0.0)));
    let re = far_defined.select(&far, &is_near.select(&near, &usual));
    RealOrComplex::complex(re, angle(z))
}

pub(crate) fn log1p(z: &RealOrComplex) -> RealOrComplex {
    let (x, y) = (&z.re, z.imag());
    let moved = RealOrComplex::complex(x + 1.0, y.clone());
    let near = log_near_one(x, &y);
    let is_near = z.abs().less(&number(x, 4.0)).and(&moved.abs().greater(&number(x, 0.5)));
    let far = log(&moved);
    RealOrComplex::complex(is_near.select(&near, &far.re), angle(&moved))
}

pub(crate) fn expm1(z: &RealOrComplex) -> RealOrComplex {
    let (x, y) = (&z.re, z.imag());
    let half = (&y * 0.5).sine();
    let less = &(&half * &half) * -2.0;
    let re = &(&x.expm1() * &y.cosine()) + &less;
    let whole = exp(z);
    let is_near = x.abs().less(&number(x, 1.0));
    // Without an angle there is no value, but eᶻ may have one.
    let (is_angle, none) = (y.is_finite(), number(x, f64::NAN));
    let re = is_near.select(&re, &(&whole.re - 1.0));
    RealOrComplex::complex(is_angle.select(&re, &none), is_angle.select(&whole.imag(), &none))
}

/// Computes the square root with non-negative real part.
pub(crate) fn sqrt(z: &RealOrComplex) -> RealOrComplex {
    let (x, y) = (&z.re, z.imag());
    let (zero, infinite) = (number(x, 0.0), number(x, f64::INFINITY));
    let most = x.abs().maximum(&y.abs());
    let is_zero = most.equal(&zero);
    let scale = is_zero.select(&number(x, 1.0), &most);
    let (u, v) = (&x.abs() / &scale, &y / &scale);
    let root = &scale.sqrt() * &(&(&u + &hypot(&u, &v)) * 0.5).sqrt();
    let other = &y.abs() / &(&root * 2.0);
    let (root, other) = (is_zero.select(&zero, &root), is_zero.select(&zero, &other));
    let is_left = x.less(&zero);
    let re = is_left.select(&other, &root);
    let im = copysign(&is_left.select(&root, &other), &y);
    // Infinities: an infinite imaginary part takes precedence.
    let (y_ends, x_ends) = (y.abs().equal(&infinite), x.abs().equal(&infinite));
    let y_nan = y.not_equal(&y);
    let of_x = x_ends.and(&y_ends.not());
    let re_of_x = is_left.select(&y_nan.select(&y, &zero), &infinite);
    let im_of_x = is_left.select(&infinite, &y_nan.select(&y, &zero));
    let re = y_ends.select(&infinite, &of_x.select(&re_of_x, &re));
    let im = y_ends.select(&y, &of_x.select(&copysign(&im_of_x, &y), &im));
    RealOrComplex::complex(re, im)
}

/// Computes the conjugate of the square root divided by |z|.
pub(crate) fn rsqrt(z: &RealOrComplex) -> RealOrComplex {
    let root = sqrt(z);
    let one = RealOrComplex::real(root.re.ones_like());
    one.div(&root)
}

/// Computes the cube root with a third of the angle.
pub(crate) fn cbrt(z: &RealOrComplex) -> RealOrComplex {
    polar(&z.abs().cbrt(), &(&angle(z) / 3.0))
}

/// Computes e^(w ln z); 0⁰ is 1, and 0 to a power with positive real part is 0.
pub(crate) fn power(z: &RealOrComplex, w: &RealOrComplex) -> RealOrComplex {
    let whole = exp(&w.mul(&log(z)));
    let zero = number(&z.re, 0.0);
    let is_zero = z.re.equal(&zero).and(&z.imag().equal(&zero));
    let (c, d) = (&w.re, w.imag());
    let one = c.equal(&zero).and(&d.equal(&zero));
    let of_zero = |unit: f64| {
        let nan = number(c, f64::NAN);
        one.select(&number(c, unit), &c.greater(&zero).select(&zero, &nan))
    };
    RealOrComplex::complex(
        is_zero.select(&of_zero(1.0), &whole.re),
        is_zero.select(&of_zero(0.0), &whole.imag()),
    )
}

/// Returns cosh x and sinh x.
fn hyperbolic(x: &Tensor) -> (Tensor, Tensor) {
    let size = x.abs();
    let root = (&size * 0.5).exp();
    let large = &(&root * 0.5) * &root;
    let small = 0.5 / &(&root * &root);
    let less = size.expm1();
    let near = &(&less + &(&less / &(&less + 1.0))) * 0.5;
    let is_near = size.less(&number(x, 1.0));
    let sinh = is_near.select(&near, &(&large - &small));
    (&large + &small, copysign(&sinh, x))
}

pub(crate) fn sine(z: &RealOrComplex) -> RealOrComplex {
    let (cosh, sinh) = hyperbolic(&z.imag());
    RealOrComplex::complex(&z.re.sine() * &cosh, &z.re.cosine() * &sinh)
}

pub(crate) fn cosine(z: &RealOrComplex) -> RealOrComplex {
    let (cosh, sinh) = hyperbolic(&z.imag());
    RealOrComplex::complex(&z.re.cosine() * &cosh, -&(&z.re.sine() * &sinh))
}

pub(crate) fn sinh(z: &RealOrComplex) -> RealOrComplex {
    let (cosh, sinh) = hyperbolic(&z.re);
    RealOrComplex::complex(&sinh * &z.imag().cosine(), &cosh * &z.imag().sine())
}

pub(crate) fn cosh(z: &RealOrComplex) -> RealOrComplex {
    let (cosh, sinh) = hyperbolic(&z.re);
    RealOrComplex::complex(&cosh * &z.imag().cosine(), &sinh * &z.imag().sine())
}

/// Computes tanh with Kahan's formula; far from the imaginary axis its limit.
pub(crate) fn tanh(z: &RealOrComplex) -> RealOrComplex {
    let (x, y) = (&z.re, z.imag());
    let t = y.tan();
    let (_, s) = hyperbolic(x);
    let beta = &(&t * &t) + 1.0;
    let rho = (&(&s * &s) + 1.0).sqrt();
    let bottom = &(&beta * &(&s * &s)) + 1.0;
    let near = RealOrComplex::complex(&(&(&beta * &rho) * &s) / &bottom, &t / &bottom);
    let least = (&x.abs() * -2.0).exp();
    // Without an angle there is a limit only at infinity.
    let (is_angle, is_number) = (y.is_finite(), x.is_finite());
    let sign = is_angle.or(&is_number.not()).select(&x.sign(), &number(x, f64::NAN));
    let turn = &(&(&y.sine() * &y.cosine()) * 4.0) * &least;
    let far = RealOrComplex::complex(sign, is_angle.or(&is_number).select(&turn, &number(x, 0.0)));
    let is_far = x.abs().greater(&number(x, if x.dtype() == DType::F64 { 22.0 } else { 11.0 }));
    let whole = RealOrComplex::select(&is_far, &far, &near);
    let real = y.equal(&number(x, 0.0));
    RealOrComplex::complex(real.select(&x.tanh(), &whole.re), real.select(&y, &whole.imag()))
}

/// Computes −i tanh(iz).
pub(crate) fn tan(z: &RealOrComplex) -> RealOrComplex {
    let turned = tanh(&RealOrComplex::complex(-&z.imag(), z.re.clone()));
    RealOrComplex::complex(turned.imag(), -&turned.re)
}

/// Computes 1 / (1 + e⁻ᶻ) with the exponential that does not overflow.
pub(crate) fn logistic(z: &RealOrComplex) -> RealOrComplex {
    let is_left = z.re.less(&number(&z.re, 0.0));
    let e = exp(&RealOrComplex::select(&is_left, z, &z.neg()));
    let one = RealOrComplex::real(z.re.ones_like());
    let top = RealOrComplex::select(&is_left, &e, &one);
    top.div(&one.add(&e))
}

/// Computes −i ln((x + iy) / √(x² + y²)).
pub(crate) fn atan2(y: &RealOrComplex, x: &RealOrComplex) -> RealOrComplex {
    let turned = RealOrComplex::complex(&x.re - &y.imag(), &x.imag() + &y.re);
    let ln = log(&turned.div(&sqrt(&x.mul(x).add(&y.mul(y)))));
    RealOrComplex::complex(ln.imag(), -&ln.re)
}
