//! A convolution with windows of 3 by 3 of many channels, whose windows of 2 by 2 pixels are the tiles of Winograd's transforms:
//! the kernel of the convolution pools its result strip by strip, and a product with all maxima may follow.

use crate::kernel::inner_products::InnerProducts;
use crate::kernel::{Cx, Io, Kernel};
use crate::kernels::conv_pool::pooled::PooledConvolution;
use crate::select::{Problem, Refusal};
use crate::simd::level::Target;
use systole_compile::Kernel as Plan;
use systole_compile::Step;
use systole_ir::{Op, Result};

/// See the module text. Inputs and results are those of [`PooledConvolution`].
pub struct WinogradTiles {
    conv: Box<dyn Kernel>,
    product: Option<InnerProducts>,
    /// Inputs of the convolution.
    operands: usize,
}

impl WinogradTiles {
    pub fn new(problem: &Problem<'_>) -> std::result::Result<WinogradTiles, Refusal> {
        let p = PooledConvolution::of(problem)?;
        if !p.target.winograd {
            return Err("transforms are switched off".into());
        }
        let operands = p.inputs.len();
        let conv = Step {
            kernel: Plan::Op { op: Op::from(p.c.clone()), bias: p.has_bias() },
            inputs: p.step.inputs[..operands].to_vec(),
            input_types: p.inputs.to_vec(),
            outputs: p.step.outputs[..1].to_vec(),
            output_types: vec![p.pool.operand.clone()],
            ..p.step.clone()
        };
        // At the level of its vectors: the kernels for pairs of bf16 and for tile registers transform nothing.
        let target = Target { level: p.target.level.vectors(), ..p.target };
        let mut conv = Problem { target, ..*problem }.bind(&conv)?;
        if !conv.pool_result(p.pool, p.y) {
            return Err(
                "its convolution does not make whole windows: only Winograd's tiles of 2 by 2 are".into()
            );
        }
        Ok(WinogradTiles { conv, product: p.product(0, p.target.level)?, operands })
    }

    /// The product of what was pooled.
    unsafe fn multiply(&self, cx: &Cx<'_>, io: &Io<'_>) {
        let Some(product) = &self.product else { return };
        let inputs: Vec<*const u8> = [io.outputs[0].cast_const()]
            .into_iter()
            .chain(io.inputs[self.operands..].iter().copied())
            .collect();
        let io = Io { inputs: &inputs, outputs: &io.outputs[io.outputs.len() - 1..], scratch: io.scratch };
        // SAFETY: the maxima are there; the rest are the step's operands and result.
        unsafe { product.run(cx, &io) };
    }

    /// The arrays of the convolution.
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

    unsafe fn keep(&self, cx: &Cx<'_>, inputs: &[*const u8], kept: *mut u8) {
        // SAFETY: by the caller's promise.
        unsafe { self.conv.keep(cx, inputs, kept) };
    }

    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: the module's contract.
        unsafe {
            self.conv.run(cx, &self.of_conv(io))?;
            self.multiply(cx, io);
        }
        Ok(())
    }

    unsafe fn run_kept(&self, cx: &Cx<'_>, io: &Io<'_>, kept: *const u8) -> Result<()> {
        // SAFETY: the module's contract.
        unsafe {
            self.conv.run_kept(cx, &self.of_conv(io), kept)?;
            self.multiply(cx, io);
        }
        Ok(())
    }
}
