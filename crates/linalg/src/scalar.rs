//! Element types of matrices: f32, f64 and complex numbers of both, with the arithmetic that decompositions need.

use crate::kernels::Kernels;
use std::fmt::Debug;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub, SubAssign};

/// Complex number `re + i im`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Complex<R> {
    /// Real part.
    pub re: R,
    /// Imaginary part.
    pub im: R,
}

/// Element of a matrix.
pub trait MatrixScalar:
    Copy
    + Debug
    + Default
    + PartialEq
    + Send
    + Sync
    + 'static
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
{
    /// Type of absolute values.
    type Real: Real;
    /// Whether there is an imaginary part.
    const IS_COMPLEX: bool;
    /// The number one.
    const ONE: Self;

    /// Returns `re + i im`; real types ignore `im`.
    fn new(re: Self::Real, im: Self::Real) -> Self;
    /// Real part.
    fn re(self) -> Self::Real;
    /// Imaginary part.
    fn im(self) -> Self::Real;
    /// Complex conjugate.
    fn conj(self) -> Self;
    /// Product with a real number.
    fn scale(self, by: Self::Real) -> Self;
    /// Absolute value, without overflow of intermediate results.
    fn modulus(self) -> Self::Real;
    /// `a b + self`; with `FUSED` in one instruction.
    fn mul_add<const FUSED: bool>(self, a: Self, b: Self) -> Self;
    /// Kernels of this type.
    fn kernels() -> &'static Kernels<Self>;

    /// A real number as an element.
    fn real(re: Self::Real) -> Self {
        Self::new(re, Self::Real::default())
    }
    /// Zero.
    fn zero() -> Self {
        Self::default()
    }
    /// `|re| + |im|`.
    fn size(self) -> Self::Real {
        self.re().modulus() + self.im().modulus()
    }
    /// `re² + im²`.
    fn square(self) -> Self::Real {
        self.re() * self.re() + self.im() * self.im()
    }
    /// Whether a part is NaN or infinite.
    fn is_bad(self) -> bool {
        !self.size().is_finite()
    }
}

/// Real element type.
pub trait Real: MatrixScalar<Real = Self> + PartialOrd {
    /// Zero.
    const ZERO: Self;
    /// Distance from 1 to the next number.
    const EPSILON: Self;
    /// Smallest normal number.
    const TINY: Self;
    /// Kernels of complex numbers with parts of this type.
    fn complex_kernels() -> &'static Kernels<Complex<Self>>;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Whether it is NaN.
    fn is_nan(self) -> bool;
    /// Whether it is neither infinite nor NaN.
    fn is_finite(self) -> bool;
    /// `self` with the sign of `sign`.
    fn copysign(self, sign: Self) -> Self;
    /// Rounds an f64.
    fn of(x: f64) -> Self;
    /// The larger number; NaN if one is NaN.
    fn most(self, other: Self) -> Self {
        if self > other || self.is_nan() { self } else { other }
    }
    /// `√(a² + b²)` without overflow of intermediate results.
    fn hypot(self, other: Self) -> Self {
        let (a, b) = (self.modulus(), other.modulus());
        let (most, least) = if a > b { (a, b) } else { (b, a) };
        if most == Self::default() || !most.is_finite() {
            return if most.is_nan() { most } else { most + least };
        }
        let ratio = least / most;
        most * (Self::ONE + ratio * ratio).sqrt()
    }
}

macro_rules! real {
    ($ty:ident, $table:ident) => {
        impl MatrixScalar for $ty {
            type Real = $ty;
            const IS_COMPLEX: bool = false;
            const ONE: $ty = 1.0;
            #[inline(always)]
            fn new(re: $ty, _: $ty) -> $ty {
                re
            }
            #[inline(always)]
            fn re(self) -> $ty {
                self
            }
            #[inline(always)]
            fn im(self) -> $ty {
                0.0
            }
            #[inline(always)]
            fn conj(self) -> $ty {
                self
            }
            #[inline(always)]
            fn scale(self, by: $ty) -> $ty {
                self * by
            }
            #[inline(always)]
            fn modulus(self) -> $ty {
                self.abs()
            }
            #[inline(always)]
            fn mul_add<const FUSED: bool>(self, a: $ty, b: $ty) -> $ty {
                if FUSED { <$ty>::mul_add(a, b, self) } else { a * b + self }
            }
            fn kernels() -> &'static Kernels<$ty> {
                crate::kernels::$table.current()
            }
        }

        impl Real for $ty {
            const ZERO: $ty = 0.0;
            const EPSILON: $ty = <$ty>::EPSILON;
            const TINY: $ty = <$ty>::MIN_POSITIVE;
            #[inline(always)]
            fn sqrt(self) -> $ty {
                self.sqrt()
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                self.is_nan()
            }
            #[inline(always)]
            fn is_finite(self) -> bool {
                self.is_finite()
            }
            #[inline(always)]
            fn copysign(self, sign: $ty) -> $ty {
                self.copysign(sign)
            }
            fn complex_kernels() -> &'static Kernels<Complex<$ty>> {
                crate::kernels::complex::$table.current()
            }
            #[inline(always)]
            fn of(x: f64) -> $ty {
                x as $ty
            }
        }
    };
}

real!(f32, F32);
real!(f64, F64);

impl<R: Real> MatrixScalar for Complex<R> {
    type Real = R;
    const IS_COMPLEX: bool = true;
    const ONE: Self = Complex { re: R::ONE, im: R::ZERO };
    #[inline(always)]
    fn new(re: R, im: R) -> Self {
        Complex { re, im }
    }
    #[inline(always)]
    fn re(self) -> R {
        self.re
    }
    #[inline(always)]
    fn im(self) -> R {
        self.im
    }
    #[inline(always)]
    fn conj(self) -> Self {
        Complex { re: self.re, im: -self.im }
    }
    #[inline(always)]
    fn scale(self, by: R) -> Self {
        Complex { re: self.re * by, im: self.im * by }
    }
    fn modulus(self) -> R {
        self.re.hypot(self.im)
    }
    #[inline(always)]
    fn mul_add<const FUSED: bool>(self, a: Self, b: Self) -> Self {
        let re = self.re.mul_add::<FUSED>(a.re, b.re);
        let im = self.im.mul_add::<FUSED>(a.re, b.im);
        Complex { re: re.mul_add::<FUSED>(-a.im, b.im), im: im.mul_add::<FUSED>(a.im, b.re) }
    }
    fn kernels() -> &'static Kernels<Self> {
        R::complex_kernels()
    }
}

impl<R: Real> Add for Complex<R> {
    type Output = Self;
    #[inline(always)]
    fn add(self, b: Self) -> Self {
        Complex { re: self.re + b.re, im: self.im + b.im }
    }
}

impl<R: Real> Sub for Complex<R> {
    type Output = Self;
    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        Complex { re: self.re - b.re, im: self.im - b.im }
    }
}

impl<R: Real> Mul for Complex<R> {
    type Output = Self;
    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        Complex { re: self.re * b.re - self.im * b.im, im: self.re * b.im + self.im * b.re }
    }
}

impl<R: Real> Div for Complex<R> {
    type Output = Self;
    /// Smith's method, which squares no part.
    fn div(self, b: Self) -> Self {
        let by_re = b.re.modulus() >= b.im.modulus();
        let (large, small) = if by_re { (b.re, b.im) } else { (b.im, b.re) };
        let ratio = small / large;
        let bottom = large + small * ratio;
        let (x, y) = if by_re { (self.re, self.im) } else { (self.im, self.re) };
        let (re, im) = ((x + y * ratio) / bottom, (y - x * ratio) / bottom);
        Complex { re, im: if by_re { im } else { -im } }
    }
}

impl<R: Real> Neg for Complex<R> {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        Complex { re: -self.re, im: -self.im }
    }
}

impl<R: Real> AddAssign for Complex<R> {
    #[inline(always)]
    fn add_assign(&mut self, b: Self) {
        *self = *self + b;
    }
}

impl<R: Real> SubAssign for Complex<R> {
    #[inline(always)]
    fn sub_assign(&mut self, b: Self) {
        *self = *self - b;
    }
}
