//! Max pooling that remembers where its maxima were, its derivative, and the gradients of a convolution before it.

use systole_ir::TensorType;
use systole_ir::op::Convolution;

/// Set in a remembered place whose gradient is zero, because relu is flat there.
pub const DEAD: u8 = 0x80;

/// `x: T[B, H, W, C] → y: T[B, H', W', C], place: u8[B, H', W', C]`: the maximum of each window, and which of the
/// window's elements it is, in row-major order: the first of equals, as `select_and_scatter` by `ge` chooses.
/// The second result may be left out.
///
/// With a convolution the inputs are its input, its kernel and, where there are three, a bias for each channel.
///
/// With a product its inputs follow, `right: T[N, H' W' C]` and perhaps a bias `T[N]`, and the last result is
/// `T[B, N]`: each image's `y` times each row of `right`.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Height and width.
    pub window: [usize; 2],
    /// Steps down and to the right, no less than the window.
    pub strides: [usize; 2],
    /// Whether relu is applied, and when.
    pub relu: Relu,
    /// What makes the operand.
    pub conv: Option<Convolution>,
    /// Inputs of a product with the result, which is summed while that is made; 0 where there is none.
    pub product: usize,
    /// Type of the operand `x`.
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

/// relu beside pooling. With it, places where relu is flat are marked [`DEAD`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relu {
    /// None.
    None,
    /// Of the window's elements.
    Before,
    /// Of the maximum.
    After,
}

/// `dy: T[B, H', W', C], place: u8[B, H', W', C] → dx: T[B, H, W, C]`: each element at its place, zero elsewhere.
/// Without the second input each element at all places of its window: the derivative of a sum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unpool {
    /// Height and width.
    pub window: [usize; 2],
    /// Steps down and to the right.
    pub strides: [usize; 2],
}

impl Unpool {
    /// Elements along height (0) or width (1) up to the end of the last of `count` windows.
    pub fn covered(&self, d: usize, count: usize) -> usize {
        count.saturating_sub(1) * self.strides[d] + self.window[d]
    }

    /// A short name for listings and profiles.
    pub(crate) fn name(&self) -> String {
        format!("unpool {}x{}", self.window[0], self.window[1])
    }
}

/// `x, place: u8[B, H', W', F], dy: T[B, H', W', F] → dkernel[, dbias: S[F]]`: the gradients of a convolution's kernel
/// and bias from that of its pooled result. Sums of narrow floats may come in f32.
///
/// With `product`, `dy` is `left: T[B, K] · right: T[K, H' W' F]`, and these two are in its place: a few columns are
/// made at a time, right before they are used.
#[derive(Clone, Debug)]
pub struct UnpooledGradient {
    /// Whether `dy` is a product that is made here.
    pub product: bool,
    /// The convolution of `x` with the gradient of the convolution's result, as autodiff makes it.
    pub conv: Convolution,
    /// How that result was pooled.
    pub unpool: Unpool,
    /// Type of that gradient.
    pub full: TensorType,
}

impl UnpooledGradient {
    /// A short name for listings and profiles.
    pub(super) fn name(&self) -> String {
        let product = if self.product { "product+" } else { "" };
        format!("{product}unpooled kernel gradient")
    }
}
