//! What a form is.

use systole_cpu::ThreadPool;

/// An operator's way through the engine: one output, of any number of samples.
pub(crate) trait OpKernel: Send + Sync {
    /// What it is called in listings.
    fn name(&self) -> &'static str;

    /// Computes the output of all samples.
    fn run(&self, cx: &OpKernelContext, y: &mut [u8]);
}

/// What a form computes with.
pub(crate) struct OpKernelContext<'a> {
    pub team: &'a ThreadPool,
    pub samples: usize,
    /// The operands: a constant once, others of each sample, one after the other; empty where left out.
    pub inputs: Vec<&'a [u8]>,
}

impl OpKernelContext<'_> {
    /// An operand of int8.
    pub fn bytes(&self, n: usize) -> &[i8] {
        bytemuck::cast_slice(self.inputs.get(n).copied().unwrap_or_default())
    }
}
