//! Max-pooled 3×3 convolutions with many channels; each 2×2 window is one output tile of Winograd F(2×2, 3×3).
//!
//! The convolution is bound as a separate kernel that pools its result strip by strip (`pool_result`). A product with
//! all maxima may follow.

use crate::kernel::dot_product_gemm::InnerProducts;
use crate::kernel::{Io, Kernel, KernelContext};
use crate::kernels::conv_pool::pooled_convolution::PooledConvolution;
use crate::select::{Problem, SelectResult};
use crate::simd::level::CompileTarget;
use systole_compile::Kernel as Plan;
use systole_compile::Step;
use systole_ir::{Op, Result, ensure};

/// A Winograd convolution that pools its result. Inputs and results are those of [`PooledConvolution`].
pub struct WinogradTiles {
    conv: Box<dyn Kernel>,
    product: Option<InnerProducts>,
    /// Number of the convolution's inputs.
    operands: usize,
}

impl WinogradTiles {
    /// Creates a max-pooled Winograd convolution and the matrix product that may follow, or returns why this kernel
    /// does not support them.
    pub fn new(problem: &Problem<'_>) -> SelectResult<WinogradTiles> {
        let p = PooledConvolution::of(problem)?;
        ensure!(p.target.winograd, "Winograd is disabled (option winograd, SYSTOLE_WINOGRAD)".into());
        let operands = p.inputs.len();
        let conv = Step {
            kernel: Plan::Op { op: Op::from(p.c.clone()), bias: p.has_bias() },
            inputs: p.step.inputs[..operands].to_vec(),
            input_types: p.inputs.to_vec(),
            outputs: p.step.outputs[..1].to_vec(),
            output_types: vec![p.pool.operand.clone()],
            ..p.step.clone()
        };
        // Bound for the vector part of the level: kernels for bf16 pairs and AMX use no Winograd transforms.
        let target = CompileTarget { level: p.target.level.vectors(), ..p.target };
        let mut conv = Problem { target, ..*problem }.bind(&conv)?;
        if !conv.pool_result(p.pool, p.y) {
            return Err(
                "the kernel of its convolution does not compute whole windows: only the 2×2 tiles of Winograd do".into()
            );
        }
        Ok(WinogradTiles { conv, product: p.product(0, p.target.level)?, operands })
    }

    /// Computes the product with the maxima.
    unsafe fn multiply(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let Some(product) = &self.product else { return Ok(()) };
        let inputs: Vec<*const u8> = [io.outputs[0].cast_const()]
            .into_iter()
            .chain(io.inputs[self.operands..].iter().copied())
            .collect();
        let io = Io { inputs: &inputs, outputs: &io.outputs[io.outputs.len() - 1..], scratch: io.scratch };
        // SAFETY: the maxima are complete; the other arrays are the step's operands and result.
        unsafe { product.run(cx, &io) }
    }

    /// Returns the arrays of the convolution and its pooling.
    fn of_conv<'a>(&self, io: &Io<'a>) -> Io<'a> {
        let outputs = &io.outputs[..io.outputs.len() - usize::from(self.product.is_some())];
        Io { inputs: &io.inputs[..self.operands], outputs, scratch: io.scratch }
    }
}

impl Kernel for WinogradTiles {
    fn scratch(&self) -> usize {
        self.conv.scratch()
    }

    fn kept(&self, same: &[bool]) -> usize {
        self.conv.kept(same)
    }

    unsafe fn keep(&self, cx: &KernelContext<'_>, inputs: &[*const u8], kept: *mut u8) {
        // SAFETY: by the caller's promise.
        unsafe { self.conv.keep(cx, inputs, kept) };
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: the arrays are those of the step, by the caller's promise.
        unsafe {
            self.conv.run(cx, &self.of_conv(io))?;
            self.multiply(cx, io)
        }
    }

    unsafe fn run_kept(&self, cx: &KernelContext<'_>, io: &Io<'_>, kept: *const u8) -> Result<()> {
        // SAFETY: the arrays are those of the step, by the caller's promise.
        unsafe {
            self.conv.run_kept(cx, &self.of_conv(io), kept)?;
            self.multiply(cx, io)
        }
    }
}
