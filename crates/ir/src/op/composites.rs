//! Composite functions (softmax, gelu, variance, …): plain functions over tensors that expand into ops. A composite
//! becomes an op only if a fused kernel is measurably faster.

use super::{Monoid, Op, Reduce};
use crate::Tensor;
use systole_base::{DType, Literal, TensorType};

/// Statistics over dimensions. Means of integers are undefined: convert first.
impl Tensor {
    /// Mean over `dims`, which are removed.
    #[track_caller]
    pub fn mean(&self, dims: &[usize]) -> Tensor {
        let n: usize = dims.iter().map(|&d| self.dim(d as isize)).product();
        self.sum(dims) * (1.0 / n as f64)
    }

    /// Mean of all elements: `→ T[]`.
    #[track_caller]
    pub fn mean_all(&self) -> Tensor {
        self.mean(&(0..self.rank()).collect::<Vec<_>>())
    }

    /// Biased variance over `dims`, two-pass: subtracts the mean before squaring.
    #[track_caller]
    pub fn variance(&self, dims: &[usize]) -> Tensor {
        let centred = self - self.mean(dims).broadcast_except(self.shape(), dims);
        (&centred * &centred).mean(dims)
    }

    /// For each element, the product of the other elements along `dims`; exact even with zeros.
    #[track_caller]
    pub(crate) fn products_of_others(&self, dims: &[usize]) -> Tensor {
        let zero = self.zeros_like();
        let is_zero = self.equal(&zero);
        let count = is_zero.convert(self.dtype()).sum(dims).broadcast_except(self.shape(), dims);
        let nonzero = is_zero.select(&self.ones_like(), self);
        let product = nonzero.prod(dims).broadcast_except(self.shape(), dims);
        // Without zeros: product / x. With one zero: the product of the others at its position, 0 elsewhere. With more:
        // 0.
        let one = self.ones_like();
        let alone = is_zero.select(&count.equal(&one).select(&product, &zero), &zero);
        count.equal(&zero).select(&(product / nonzero), &alone)
    }

    /// Index of the maximum along `dim`: `→ i32[…]`. Returns the first of equal elements, and the first NaN if there is
    /// one.
    #[track_caller]
    pub fn argmax(&self, dim: usize) -> Tensor {
        let index = self.builder().iota(self.ty().with_dtype(DType::I32), dim);
        let best = self.reduce_max(&[dim]).broadcast_except(self.shape(), &[dim]);
        let n = self.dim(dim as isize) as f64;
        let absent = self.builder().full(index.ty(), n);
        let is_nan = self.not_equal(self);
        self.equal(&best).or(&is_nan).select(&index, &absent).reduce_min(&[dim])
    }

    /// `indices: I[…] → T[…, depth]`: one at the index, zero elsewhere.
    #[track_caller]
    pub fn one_hot(&self, depth: usize, dtype: DType) -> Tensor {
        let mut dims = self.shape().to_vec();
        dims.push(depth);
        let wide = TensorType::new(self.dtype(), dims);
        let places = self.builder().iota(wide.clone(), self.rank());
        let own: Vec<usize> = (0..self.rank()).collect();
        self.broadcast_in_dim(&wide.shape, &own).equal(&places).convert(dtype)
    }

    /// Log-softmax over the last dimension: `x − max − log Σ exp(x − max)`.
    #[track_caller]
    pub fn log_softmax(&self) -> Tensor {
        let last = [self.rank().saturating_sub(1)];
        let top = self.stop_gradient().reduce_max(&last).broadcast_except(self.shape(), &last);
        let shifted = self - top;
        let norm = shifted.exp().sum(&last).log().broadcast_except(self.shape(), &last);
        shifted - norm
    }

    /// Softmax: `exp(x) / Σ exp(x)` over the last dimension, shifted by the maximum.
    #[track_caller]
    pub fn softmax(&self) -> Tensor {
        let last = [self.rank().saturating_sub(1)];
        let top = self.stop_gradient().reduce_max(&last).broadcast_except(self.shape(), &last);
        let e = (self - top).exp();
        let sum = e.sum(&last).broadcast_except(self.shape(), &last);
        e / sum
    }

    /// ReLU: max(x, 0); NaN propagates.
    #[track_caller]
    pub fn relu(&self) -> Tensor {
        // As a select, so that the derivative at 0 is 0 as in TensorFlow; that of `maximum` would be 0.5. With `<=`,
        // which is false for NaN, so that NaN and its cotangent propagate.
        let zero = self.zeros_like();
        self.less_equal(&zero).select(&zero, self)
    }

    /// Leaky ReLU: x if positive, otherwise slope·x.
    #[track_caller]
    pub fn leaky_relu(&self, slope: f64) -> Tensor {
        self.greater(&self.zeros_like()).select(self, &(self * slope))
    }

    /// SiLU (swish): x·sigmoid(x).
    #[track_caller]
    pub fn silu(&self) -> Tensor {
        self * self.logistic()
    }

    /// ELU: x if positive, otherwise α(eˣ − 1).
    #[track_caller]
    pub fn elu(&self, alpha: f64) -> Tensor {
        let zero = self.zeros_like();
        let positive = self.greater(&zero);
        // The unselected branch must be finite: its gradient is multiplied by zero, not skipped.
        let negative_part = positive.select(&zero, self);
        positive.select(self, &(negative_part.expm1() * alpha))
    }

    /// Hyperbolic sine: uses eˣ − 1 below 1, where eˣ − e⁻ˣ would cancel, and avoids premature overflow. CHLO: sinh.
    #[track_caller]
    pub fn sinh(&self) -> Tensor {
        let near = self.abs().less(&self.ones_like());
        // The unselected branch must be finite: its gradient is multiplied by zero, not skipped.
        let u = near.select(self, &self.zeros_like()).expm1();
        let small = (&u + &(&u / &(&u + 1.0))) * 0.5;
        let half = 0.5f64.ln();
        let large = (self + half).exp() - (-self + half).exp();
        near.select(&small, &large)
    }

    /// Softplus: log(1 + eˣ) without overflow.
    #[track_caller]
    pub fn softplus(&self) -> Tensor {
        self.relu() + (-self.abs()).exp().log1p()
    }

    /// GELU: x·Φ(x), computed with erf.
    #[track_caller]
    pub fn gelu(&self) -> Tensor {
        self * 0.5 * ((self * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0)
    }

    /// Tanh approximation of gelu: 0.5·x·(1 + tanh(√(2/π)(x + 0.044715x³))).
    #[track_caller]
    pub fn gelu_tanh(&self) -> Tensor {
        let inner = (self + &(self * self * self * 0.044715)) * (2.0 / std::f64::consts::PI).sqrt();
        self * 0.5 * (inner.tanh() + 1.0)
    }

    /// Sum over `dims` accumulated in f32, converted back to this element type.
    #[track_caller]
    pub fn sum_in_f32(&self, dims: &[usize]) -> Tensor {
        if matches!(self.dtype(), DType::F16 | DType::BF16) {
            return self.convert(DType::F32).sum(dims).convert(self.dtype());
        }
        self.sum(dims)
    }
}

impl Monoid {
    /// `x: T[…] → T[…]`: reduces `dims` with this monoid, starting from its identity.
    #[track_caller]
    pub fn over(self, x: &Tensor, dims: &[usize]) -> Tensor {
        let init = Literal::splat(TensorType::scalar(x.dtype()), self.identity(x.dtype()));
        let init = x.builder().constant(init);
        let op = Op::from(Reduce { dims: dims.into(), body: self.body(x.dtype()) });
        x.builder().emit(op, &[x, &init]).remove(0)
    }

    /// Name of the reduction's element-wise op, for messages.
    pub fn name(self) -> &'static str {
        self.op().name()
    }
}
