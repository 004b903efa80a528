//! Kernels of max pooling as data: pooling with argmax, its gradient, and kernel gradients from a pooled gradient.

use systole_ir::TensorType;
use systole_ir::op::Convolution;

/// Bit of an argmax byte: the window has no gradient, because relu is flat at its maximum.
pub const DEAD: u8 = 0x80;

/// `x: T[B, H, W, C] → y: T[B, H', W', C][, argmax: u8[B, H', W', C]]`: the maximum of each window, and its row-major
/// index in the window. Of equal elements the first counts, as in `select_and_scatter` by `ge`.
///
/// With `conv` the operand `x` is computed here: the inputs are the convolution's input and kernel, and a bias
/// `T[C]` where there are three.
///
/// With `product` the inputs of a GEMM follow, `right: T[N, H' W' C]` and, where there are two, a bias `T[N]`. The last
/// result is then `y · rightᵀ [+ bias]: T[B, N]`.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Window height and width in elements.
    pub window: [usize; 2],
    /// Vertical and horizontal stride in elements, no less than the window: windows do not overlap.
    pub strides: [usize; 2],
    /// Whether relu is applied, and when.
    pub relu: Relu,
    /// The convolution that computes the operand; `None`: the operand is the only input.
    pub conv: Option<Convolution>,
    /// Inputs of the GEMM that is accumulated while `y` is produced: 0 (no GEMM), 1, or 2 with a bias.
    pub product: usize,
    /// Type of the operand `x: T[B, H, W, C]`.
    pub operand: TensorType,
}

impl Pool {
    /// A short name for listings and profiles.
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
}

/// Where relu is applied. With relu, the argmax of windows where it is flat has the bit [`DEAD`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relu {
    /// No relu.
    None,
    /// To the elements of the window.
    Before,
    /// To the maximum.
    After,
}

/// `dy: T[B, H', W', C], argmax: u8[B, H', W', C] → dx: T[B, H, W, C]`: each element of `dy` at its argmax, zero
/// elsewhere. Without `argmax`, each element of `dy` at all elements of its window: the gradient of sum pooling.
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

    /// A short name for listings and profiles.
    pub(crate) fn name(&self) -> String {
        format!("unpool {}x{}", self.window[0], self.window[1])
    }
}

/// `x, argmax: u8[B, H', W', F], dy: T[B, H', W', F] → dkernel[, dbias: S[F]]`: gradients of a convolution's kernel and
/// bias, from the gradient `dy` of its pooled result. `S` is `T`, or f32 where `T` is bf16.
///
/// With `product`, the inputs `left: T[B, K]` and `right: T[K, H' W' F]` stand in the place of `dy`, which is their
/// product. The kernel computes a few of its columns at a time, just before it reads them.
#[derive(Clone, Debug)]
pub struct UnpooledGradient {
    /// Whether `dy` is a GEMM that is computed here.
    pub product: bool,
    /// The kernel gradient as autodiff emits it: the convolution of `x` with the unpooled gradient.
    pub conv: Convolution,
    /// Window and strides of the pooling.
    pub unpool: Unpool,
    /// Type of the unpooled gradient, `T[B, H, W, F]`. It is never materialised.
    pub full: TensorType,
}

impl UnpooledGradient {
    /// A short name for listings and profiles.
    pub(super) fn name(&self) -> String {
        let product = if self.product { "product+" } else { "" };
        format!("{product}unpooled kernel gradient")
    }
}
