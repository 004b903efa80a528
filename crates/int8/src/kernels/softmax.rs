//! Int8 softmax kernel over the last dimension.

use super::op_kernel::{OpKernel, OpKernelContext};
use crate::op_context::OpContext;
use systole_cpu::int8::in_chunks;
use systole_tflite::{IntegerSoftmax, OptionField};

struct SoftmaxKernel {
    rows: IntegerSoftmax,
    n: usize,
}

impl OpKernel for SoftmaxKernel {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn run(&self, cx: &OpKernelContext, y: &mut [u8]) {
        let (x, y): (&[i8], &mut [i8]) = (cx.bytes(0), bytemuck::cast_slice_mut(y));
        let work = y.len() as f64 * 4.0;
        in_chunks(cx.team, y, self.n, work, |at, y| self.rows.row(&x[at * self.n..(at + 1) * self.n], y));
    }
}

pub(super) fn softmax(site: &OpContext) -> Option<Box<dyn OpKernel>> {
    let x = site.bytes(0)?;
    let (scale, zero) = site.byte_output(x.dims())?.scale().ok()?;
    let n = x.dims().last().copied().filter(|n| *n > 0)?;
    let fixed = (f64::from(scale) * 256.0 - 1.0).abs() <= 1e-3 && zero == -128;
    let rows = IntegerSoftmax::new(x.scale().ok()?.0, site.operator.number(OptionField::Beta));
    fixed.then(|| Box::new(SoftmaxKernel { rows, n }) as Box<dyn OpKernel>)
}
