//! The `OpKernel` trait: interface of an int8 operator's kernel.

use systole_cpu::ThreadPool;

/// Kernel that computes one output of an operator for any number of samples.
pub(crate) trait OpKernel: Send + Sync {
    /// Returns the name shown in listings.
    fn name(&self) -> &'static str;

    /// Computes the output of all samples.
    fn run(&self, cx: &OpKernelContext, y: &mut [u8]);
}

/// Arguments of [`OpKernel::run`].
pub(crate) struct OpKernelContext<'a> {
    pub team: &'a ThreadPool,
    pub samples: usize,
    /// Operands: constants once, other tensors for all samples in order; empty if omitted.
    pub inputs: Vec<&'a [u8]>,
}

impl OpKernelContext<'_> {
    /// Returns operand `n` of the int8 operator as int8 elements.
    pub fn bytes(&self, n: usize) -> &[i8] {
        bytemuck::cast_slice(self.inputs.get(n).copied().unwrap_or_default())
    }
}
