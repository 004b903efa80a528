//! Complex arrays as (real, imaginary) pairs: operations of [`RealOrComplex`] accept real and complex arrays.

use systole_base::{DType, Shape, TensorType};
use systole_ir::{GraphBuilder, Tensor};

/// `re + i·im`; real if `im` is absent. Both parts have the same type.
#[derive(Clone)]
pub(super) struct RealOrComplex {
    pub(super) re: Tensor,
    pub(super) im: Option<Tensor>,
}

impl RealOrComplex {
    pub(super) fn real(re: Tensor) -> RealOrComplex {
        RealOrComplex { re, im: None }
    }

    pub(super) fn complex(re: Tensor, im: Tensor) -> RealOrComplex {
        RealOrComplex { re, im: Some(im) }
    }

    /// Returns the imaginary part; zeros for real numbers.
    pub(super) fn imag(&self) -> Tensor {
        self.im.clone().unwrap_or_else(|| self.re.zeros_like())
    }

    pub(super) fn is_complex(&self) -> bool {
        self.im.is_some()
    }

    /// Adds a zero imaginary part to real numbers.
    pub(super) fn widened(&self) -> RealOrComplex {
        RealOrComplex::complex(self.re.clone(), self.imag())
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = &Tensor> {
        std::iter::once(&self.re).chain(&self.im)
    }

    /// Returns the type of each part.
    pub(super) fn ty(&self) -> &TensorType {
        self.re.ty()
    }

    pub(super) fn shape(&self) -> &Shape {
        self.re.shape()
    }

    pub(super) fn rank(&self) -> usize {
        self.re.rank()
    }

    pub(super) fn g(&self) -> &GraphBuilder {
        self.re.builder()
    }

    /// Applies a function that moves elements to both parts.
    pub(super) fn map(&self, f: impl Fn(&Tensor) -> Tensor) -> RealOrComplex {
        RealOrComplex { re: f(&self.re), im: self.im.as_ref().map(f) }
    }

    /// Applies a function that moves elements of two arrays to both parts.
    pub(super) fn zip(&self, other: &RealOrComplex, f: impl Fn(&Tensor, &Tensor) -> Tensor) -> RealOrComplex {
        let im = (self.is_complex() || other.is_complex()).then(|| f(&self.imag(), &other.imag()));
        RealOrComplex { re: f(&self.re, &other.re), im }
    }

    /// Concatenates along `dim`.
    pub(super) fn concatenate(parts: &[&RealOrComplex], dim: usize) -> Option<RealOrComplex> {
        let complex = parts.iter().any(|p| p.is_complex());
        let re: Vec<&Tensor> = parts.iter().map(|p| &p.re).collect();
        let im: Vec<Tensor> = if complex { parts.iter().map(|p| p.imag()).collect() } else { Vec::new() };
        if re.is_empty() {
            return None;
        }
        let im = complex.then(|| Tensor::concatenate(&im.iter().collect::<Vec<_>>(), dim));
        Some(RealOrComplex { re: Tensor::concatenate(&re, dim), im })
    }

    pub(super) fn reshape(&self, shape: &[usize]) -> RealOrComplex {
        self.map(|t| t.reshape(shape))
    }

    pub(super) fn transpose(&self, permutation: &[usize]) -> RealOrComplex {
        self.map(|t| t.transpose(permutation))
    }

    pub(super) fn slice_dim(&self, dim: usize, start: usize, limit: usize) -> RealOrComplex {
        self.map(|t| t.slice_dim(dim, start, limit))
    }

    pub(super) fn sum(&self, dims: &[usize]) -> RealOrComplex {
        self.map(|t| t.sum(dims))
    }

    pub(super) fn convert(&self, to: DType) -> RealOrComplex {
        self.map(|t| t.convert(to))
    }

    pub(super) fn zeros_like(&self) -> RealOrComplex {
        self.map(Tensor::zeros_like)
    }

    /// Selects by `pred: bool[…]`.
    pub(super) fn select(pred: &Tensor, yes: &RealOrComplex, no: &RealOrComplex) -> RealOrComplex {
        yes.zip(no, |a, b| pred.select(a, b))
    }

    pub(super) fn add(&self, other: &RealOrComplex) -> RealOrComplex {
        self.zip(other, |a, b| a + b)
    }

    pub(super) fn sub(&self, other: &RealOrComplex) -> RealOrComplex {
        self.zip(other, |a, b| a - b)
    }

    pub(super) fn neg(&self) -> RealOrComplex {
        self.map(|t| -t)
    }

    pub(super) fn conj(&self) -> RealOrComplex {
        RealOrComplex { re: self.re.clone(), im: self.im.as_ref().map(|t| -t) }
    }

    /// Multiplies both parts by a real array.
    pub(super) fn scale(&self, by: &Tensor) -> RealOrComplex {
        self.map(|t| t * by)
    }

    /// Computes a complex product from `f`, which is linear in both operands.
    pub(super) fn product(
        &self,
        other: &RealOrComplex,
        f: impl Fn(&Tensor, &Tensor) -> Tensor,
    ) -> RealOrComplex {
        match (&self.im, &other.im) {
            (None, None) => RealOrComplex::real(f(&self.re, &other.re)),
            (Some(im), None) => RealOrComplex::complex(f(&self.re, &other.re), f(im, &other.re)),
            (None, Some(im)) => RealOrComplex::complex(f(&self.re, &other.re), f(&self.re, im)),
            (Some(b), Some(d)) => {
                RealOrComplex::complex(f(&self.re, &other.re) - f(b, d), f(&self.re, d) + f(b, &other.re))
            }
        }
    }

    pub(super) fn mul(&self, other: &RealOrComplex) -> RealOrComplex {
        self.product(other, |a, b| a * b)
    }

    /// Divides with Smith's method, which squares no part. Division by zero follows NumPy: each part divided by |0|.
    pub(super) fn div(&self, other: &RealOrComplex) -> RealOrComplex {
        let Some(d) = &other.im else { return self.map(|t| t / &other.re) };
        let (a, b, c) = (&self.re, &self.imag(), &other.re);
        let (size_c, size_d) = (c.abs(), d.abs());
        let by_c = size_c.greater_equal(&size_d);
        let is_zero = size_c.maximum(&size_d).equal(&c.scalar_like(0.0));
        let ratio = by_c.select(d, c) / by_c.select(c, d);
        let bottom = is_zero.select(&size_c, &by_c.select(&(c + &(d * &ratio)), &(&(c * &ratio) + d)));
        let re = is_zero.select(a, &by_c.select(&(a + &(b * &ratio)), &(&(a * &ratio) + b)));
        let im = is_zero.select(b, &by_c.select(&(b - &(a * &ratio)), &(&(b * &ratio) - a)));
        infinite_quotient([a, b], [c, d], [re / &bottom, im / &bottom])
    }

    /// Computes |z| without intermediate overflow or underflow.
    pub(super) fn abs(&self) -> Tensor {
        let Some(im) = &self.im else { return self.re.abs() };
        hypot(&self.re, im)
    }

    /// Computes |z|².
    pub(super) fn norm(&self) -> Tensor {
        let square = &self.re * &self.re;
        self.im.as_ref().map_or(square.clone(), |im| &square + &(im * im))
    }

    /// Whether both parts are equal.
    pub(super) fn equal(&self, other: &RealOrComplex) -> Tensor {
        let re = self.re.equal(&other.re);
        if self.is_complex() || other.is_complex() { re.and(&self.imag().equal(&other.imag())) } else { re }
    }

    /// Multiplies matrices: `a: T[B…, M, K], b: T[B…, K, N] → T[B…, M, N]` with equal leading dimensions.
    pub(super) fn matmul(&self, other: &RealOrComplex) -> RealOrComplex {
        self.product(other, Tensor::matmul)
    }

    /// Transposes rows and columns.
    pub(super) fn transposed(&self) -> RealOrComplex {
        let n = self.rank();
        let mut order: Vec<usize> = (0..n).collect();
        if n >= 2 {
            order.swap(n - 2, n - 1);
        }
        self.transpose(&order)
    }
}

/// Replaces a quotient of NaNs by infinity if the numerator is infinite and the denominator finite, and by zero if the
/// denominator is infinite and the numerator finite: ISO C, annex G.5.2.
fn infinite_quotient([a, b]: [&Tensor; 2], [c, d]: [&Tensor; 2], [re, im]: [Tensor; 2]) -> RealOrComplex {
    let number = |value: f64| a.scalar_like(value).broadcast_in_dim(a.shape(), &[]);
    let is_infinite = |x: &Tensor| x.abs().equal(&number(f64::INFINITY));
    let any_infinite = |x: &Tensor, y: &Tensor| is_infinite(x).or(&is_infinite(y));
    let are_finite = |x: &Tensor, y: &Tensor| x.is_finite().and(&y.is_finite());
    let is_above = any_infinite(a, b).and(&are_finite(c, d));
    let is_below = any_infinite(c, d).and(&are_finite(a, b));
    let is_lost = re.not_equal(&re).and(&im.not_equal(&im)).and(&is_above.or(&is_below));
    // The infinite number's direction: ±1 for infinite parts, 0 for others.
    let direction = |x: &Tensor| is_infinite(x).select(&x.sign(), &number(0.0));
    let above = |x: &Tensor| is_below.select(x, &direction(x));
    let below = |x: &Tensor| is_below.select(&direction(x), x);
    let (a, b, c, d) = (above(a), above(b), below(c), below(d));
    let size = is_below.select(&number(0.0), &number(f64::INFINITY));
    RealOrComplex::complex(
        is_lost.select(&(&size * &(&(&a * &c) + &(&b * &d))), &re),
        is_lost.select(&(&size * &(&(&b * &c) - &(&a * &d))), &im),
    )
}

/// Computes `√(a² + b²)` as the larger value times a root near 1.
pub(super) fn hypot(a: &Tensor, b: &Tensor) -> Tensor {
    let (a, b) = (a.abs(), b.abs());
    let (most, least) = (a.maximum(&b), a.minimum(&b));
    let one = most.scalar_like(1.0);
    let is_zero = most.equal(&most.scalar_like(0.0));
    let ratio = &least / &is_zero.select(&one, &most);
    let size = &most * &(&(&ratio * &ratio) + 1.0).sqrt();
    let infinite = most.scalar_like(f64::INFINITY);
    a.equal(&infinite).or(&b.equal(&infinite)).select(&infinite, &size)
}

/// Returns |size| with the sign of `sign`, including −0.
pub(super) fn copysign(size: &Tensor, sign: &Tensor) -> Tensor {
    let bits = match sign.dtype() {
        DType::F64 => sign.bitcast_convert(DType::I64),
        _ => sign.convert(DType::F32).bitcast_convert(DType::I32),
    };
    let size = size.abs();
    bits.less(&bits.scalar_like(0.0)).select(&-&size, &size)
}
