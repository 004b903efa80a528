//! Fallback kernel that runs any op by the interpreter's evaluation rule: slow, for every element type and attribute.

use crate::kernel::literal::literal;
use crate::kernel::{Io, Kernel, KernelContext};
use crate::select::{EVERY, KernelCandidate};
use systole_compile::{Kernel as Plan, Step};
use systole_ir::interp::EvalCx;
use systole_ir::op::{Binary, ResultTypes};
use systole_ir::{Literal, LiteralBuilder, Op, Result, TensorType};

/// Fallback kernel that runs the interpreter's evaluation rule of one op.
pub struct ReferenceKernel {
    op: Op,
    bias: bool,
    inputs: Vec<TensorType>,
    outputs: ResultTypes,
}

impl ReferenceKernel {
    /// Creates the kernel of an op, optionally with a bias.
    pub fn new(op: &Op, bias: bool, step: &Step) -> ReferenceKernel {
        ReferenceKernel {
            op: op.clone(),
            bias,
            inputs: step.input_types.clone(),
            outputs: step.output_types.iter().cloned().collect(),
        }
    }
}

impl Kernel for ReferenceKernel {
    unsafe fn run(&self, _: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let mut args = Vec::with_capacity(self.inputs.len());
        for (ty, &ptr) in self.inputs.iter().zip(io.inputs) {
            // SAFETY: inputs are arrays of the step's types.
            args.push(unsafe { literal(ty, ptr)? });
        }
        let bias = if self.bias { args.pop() } else { None };
        let refs: Vec<&Literal> = args.iter().collect();
        let mut values = self.op.rule().eval(&mut EvalCx::default(), &refs, &self.outputs)?;
        if let (Some(bias), Some(value)) = (bias, values.first_mut()) {
            let n = bias.ty().elements().max(1);
            let mut sum = LiteralBuilder::new(value.ty().clone());
            for i in 0..value.ty().elements() {
                sum.set(i, Binary::Add.apply(value.dtype(), value.get(i), bias.get(i % n)));
            }
            *value = sum.finish();
        }
        for (value, &out) in values.iter().zip(io.outputs) {
            let bytes = value.bytes();
            // SAFETY: outputs have the step's types, which are also the types of the values from `eval`.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), out, bytes.len()) };
        }
        Ok(())
    }
}

/// Last candidate of every family of single ops.
#[rustfmt::skip]
pub const CANDIDATE: KernelCandidate = KernelCandidate::new("reference", EVERY, "supports every op, element type and \
     attribute, slowly",
    |p| match &p.step.kernel {
        Plan::Op { op: Op::DynamicSlice(_), .. } => {
            Err("other steps read the slice in place, which needs its address".into())
        }
        Plan::Op { op, bias } => Ok(Box::new(ReferenceKernel::new(op, *bias, p.step))),
        _ => Err("the interpreter supports single ops only".into()),
    });
