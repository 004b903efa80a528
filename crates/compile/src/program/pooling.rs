//! Describes (as data) max pooling kernels: pooling with argmax, its gradient, and filter gradients from a pooled
//! gradient.

use super::type_check::{CheckResult, holds, op_with_bias, same};
use systole_ir::op::Convolution;
use systole_ir::{DType, Op, TensorType};

/// Bit of an argmax byte: the window has no gradient, because relu is flat at its maximum.
pub const DEAD: u8 = 0x80;

/// `x: T[B, H, W, C] → y: T[B, H', W', C][, argmax: u8[B, H', W', C]]`: the maximum of each window, and its row-major
/// index in the window. The first of equal elements wins, as in `select_and_scatter` with `ge`.
///
/// With `conv` the operand `x` is computed here: the inputs are the convolution's input and kernel, and optionally a
/// bias `T[C]`.
///
/// With `product` the inputs of a GEMM follow, `right: T[N, H' W' C]` and optionally a bias `T[N]`. The last result is
/// then `y · rightᵀ [+ bias]: T[B, N]`.
#[derive(Clone, Debug)]
pub struct MaxPoolArgmax {
    /// Window height and width in elements.
    pub window: [usize; 2],
    /// Vertical and horizontal stride in elements, at least the window size: windows do not overlap.
    pub strides: [usize; 2],
    /// Whether relu is applied, before or after pooling.
    pub relu: Relu,
    /// The convolution that computes the operand; `None`: the operand is the only input.
    pub conv: Option<Convolution>,
    /// Number of extra inputs of the GEMM that is accumulated while `y` is produced: 0 (no GEMM), 1, or 2 with a bias.
    pub product: usize,
    /// Type of the operand `x: T[B, H, W, C]`.
    pub operand: TensorType,
}

impl MaxPoolArgmax {
    /// Short name for listings and profiles.
    pub(crate) fn name(&self) -> String {
        let conv = if self.conv.is_some() { "convolution+" } else { "" };
        let (before, after) = match self.relu {
            Relu::None => ("", ""),
            Relu::Before => ("relu+", ""),
            Relu::After => ("", "+relu"),
        };
        let product = if self.product > 0 { "+product" } else { "" };
        format!("{conv}{before}max_pool{after}{product}")
    }

    /// Checks the types of operands and results.
    pub(super) fn check(&self, ins: &[TensorType], outs: &[TensorType]) -> CheckResult {
        let missing = || {
            format!(
                "wrong number of operands for max_pool: got {}, including {} of the fused GEMM",
                ins.len(),
                self.product
            )
        };
        let count = ins.len().checked_sub(self.product).ok_or_else(missing)?;
        let (operands, of_product) = ins.split_at(count);
        match &self.conv {
            Some(conv) => {
                holds(matches!(count, 2 | 3), missing)?;
                op_with_bias(
                    &conv.clone().into(),
                    count == 3,
                    operands,
                    std::slice::from_ref(&self.operand),
                )?;
            }
            None => {
                holds(count == 1 && self.product == 0, missing)?;
                same("operand of max_pool", &operands[0], &self.operand)?;
            }
        }
        let x = &self.operand.shape;
        let fits =
            x.rank() == 4 && (0..2).all(|d| (1..=x[d + 1]).contains(&self.window[d]) && self.strides[d] > 0);
        holds(fits, || {
            format!(
                "unsupported windows {:?} with strides {:?} over {}",
                self.window, self.strides, self.operand
            )
        })?;
        let windows = |d: usize| (x[d + 1] - self.window[d]) / self.strides[d] + 1;
        let y = self.operand.with_shape([x[0], windows(0), windows(1), x[3]]);
        let (pooled, argmax) = match outs.split_last() {
            Some((product, rest)) if self.product > 0 => {
                pooled_product(&y, of_product, product)?;
                (rest.first(), rest.get(1..).unwrap_or_default())
            }
            _ => (outs.first(), outs.get(1..).unwrap_or_default()),
        };
        same("result of max_pool", pooled.ok_or("the result is missing")?, &y)?;
        holds(argmax.len() <= 1, || format!("too many results of max_pool: {}", outs.len()))?;
        argmax.iter().try_for_each(|ty| same("argmax", ty, &y.with_dtype(DType::U8)))
    }
}

/// Where max pooling applies relu. The argmax of windows where relu is flat has the bit [`DEAD`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relu {
    /// No relu.
    None,
    /// On the elements of the window, before pooling.
    Before,
    /// On the maximum, after pooling.
    After,
}

/// `dy: T[B, H', W', C], argmax: u8[B, H', W', C] → dx: T[B, H, W, C]`: gradient of max pooling. Each element of `dy`
/// goes to its argmax, the rest is zero. Without `argmax`, each element of `dy` goes to all elements of its window: the
/// gradient of sum pooling.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unpool {
    /// Window height and width in elements.
    pub window: [usize; 2],
    /// Vertical and horizontal stride in elements.
    pub strides: [usize; 2],
}

impl Unpool {
    /// Elements that `count` windows span along height (`d = 0`) or width (`d = 1`).
    pub fn covered(&self, d: usize, count: usize) -> usize {
        count.saturating_sub(1) * self.strides[d] + self.window[d]
    }

    /// Short name for listings and profiles.
    pub(crate) fn name(&self) -> String {
        format!("unpool {}x{}", self.window[0], self.window[1])
    }

    /// Checks the types of operands and results.
    pub(super) fn check(&self, ins: &[TensorType], outs: &[TensorType]) -> CheckResult {
        let (Some(dy), Some(dx)) = (ins.first(), outs.first()) else {
            return Err("unpool: operand or result is missing".into());
        };
        if let Some(place) = ins.get(1) {
            same("argmax", place, &dy.with_dtype(DType::U8))?;
        }
        let fits = ins.len() <= 2
            && outs.len() == 1
            && dy.rank() == 4
            && dx.rank() == 4
            && dy.dtype == dx.dtype
            && [0, 3].iter().all(|&d| dy.shape[d] == dx.shape[d])
            && (0..2).all(|d| self.covered(d, dy.shape[d + 1]) <= dx.shape[d + 1]);
        holds(fits, || format!("unpool: cannot compute {dx} from {dy}"))
    }
}

/// `x, argmax: u8[B, H', W', F], dy: T[B, H', W', F] → dkernel[, dbias: S[F]]`: gradients of a convolution's kernel and
/// bias, from the gradient `dy` of its pooled result. `S` is `T`, or f32 if `T` is bf16 or f16.
///
/// With `product`, the inputs `left: T[B, K]` and `right: T[K, H' W' F]` replace `dy`, which is their product. The
/// kernel computes a few of its columns at a time, just before it reads them.
#[derive(Clone, Debug)]
pub struct UnpooledGradient {
    /// Whether `dy` is the result of a GEMM that is computed here.
    pub product: bool,
    /// The kernel gradient as autodiff emits it: the convolution of `x` with the unpooled gradient.
    pub conv: Convolution,
    /// Window and strides of the pooling.
    pub unpool: Unpool,
    /// Type of the unpooled gradient, `T[B, H, W, F]`. It is never materialized.
    pub full: TensorType,
}

impl UnpooledGradient {
    /// Short name for listings and profiles.
    pub(super) fn name(&self) -> String {
        let product = if self.product { "product+" } else { "" };
        format!("{product}unpooled kernel gradient")
    }

    /// Checks the types of operands and results.
    pub(super) fn check(&self, ins: &[TensorType], outs: &[TensorType]) -> CheckResult {
        let wrong = || format!("wrong number of operands for an unpooled kernel gradient: {}", ins.len());
        let [x, place, of_dy @ ..] = ins else { return Err(wrong()) };
        let dy = place.with_dtype(self.full.dtype);
        self.unpool.check(&[dy.clone(), place.clone()], std::slice::from_ref(&self.full))?;
        match of_dy {
            [whole] if !self.product => same("pooled gradient", whole, &dy)?,
            [left, right] if self.product => {
                let (images, terms) = (dy.shape[0], left.shape.last().copied().unwrap_or(0));
                let elements = dy.elements() / images.max(1);
                same("left operand of the pooled gradient", left, &dy.with_shape([images, terms]))?;
                same("right operand of the pooled gradient", right, &dy.with_shape([terms, elements]))?;
            }
            _ => return Err(wrong()),
        }
        same(
            "element type of the input",
            &TensorType::scalar(x.dtype),
            &TensorType::scalar(self.full.dtype),
        )?;
        let kernel = self.conv.clone();
        let inferred = Op::from(kernel).rule().infer(&[x, &self.full]).map_err(|c| c.message)?;
        let dkernel = outs.first().ok_or("the result is missing")?;
        let fits = |ty: &TensorType| ty.elements() == dkernel.elements() && ty.dtype == dkernel.dtype;
        holds(inferred.first().is_some_and(fits), || {
            format!("kernel gradient has type {dkernel}, expected {inferred:?}")
        })?;
        let dbias = outs.get(1);
        let is_sum = |dtype: DType| dtype == self.full.dtype || dtype == DType::F32;
        let fits = |ty: &TensorType| ty.elements() == self.full.shape[3] && is_sum(ty.dtype);
        holds(outs.len() <= 2 && dbias.is_none_or(fits), || {
            format!("wrong type of the bias gradient: {dbias:?}")
        })
    }
}

/// Checks the GEMM fused with a pooling, `y: T[B, H', W', C], right: T[N, H' W' C][, bias: T[N]] → T[B, N]`.
fn pooled_product(y: &TensorType, operands: &[TensorType], out: &TensorType) -> CheckResult {
    let (right, bias) = match operands {
        [right] => (right, None),
        [right, bias] => (right, Some(bias)),
        _ => {
            return Err(format!(
                "wrong number of operands for the GEMM fused with max_pool: {}",
                operands.len()
            ));
        }
    };
    let (images, rows) = (y.shape[0], right.shape.first().copied().unwrap_or(0));
    let elements = y.elements() / images.max(1);
    same("right operand of the fused GEMM", right, &y.with_shape([rows, elements]))?;
    bias.map_or(Ok(()), |ty| same("bias of the fused GEMM", ty, &y.with_shape([rows])))?;
    same("result of the fused GEMM", out, &y.with_shape([images, rows]))
}
