//! `op(inputs…) + addend`: kernels that can add to what their result holds do, others run apart.

use crate::kernel::{Cx, Io, Kernel, Ptr};
use crate::select::{Candidate, EVERY, Family, Problem};
use crate::simd::folds::adder;
use crate::simd::level::TileFn;
use systole_compile::{Kernel as Plan, Step};
use systole_ir::{Op, Result};

/// Elements of one block of the loop that adds.
const BLOCK: usize = 1 << 14;

/// A kernel whose result is added to the last input.
pub struct Accumulate {
    inner: Box<dyn Kernel>,
    /// Adds the result of a kernel that cannot add by itself.
    add: Option<TileFn>,
    elements: usize,
    size: usize,
}

impl Accumulate {
    pub fn new(op: &Op, problem: &Problem<'_>) -> Result<Accumulate> {
        let Problem { step, target, .. } = *problem;
        let (ty, operands) = (&step.output_types[0], step.inputs.len() - 1);
        let plain = Step {
            kernel: Plan::Op { op: op.clone(), bias: false },
            inputs: step.inputs[..operands].to_vec(),
            input_types: step.input_types[..operands].to_vec(),
            ..step.clone()
        };
        let mut inner = problem.bind(&plain)?;
        let add = if inner.add_to_result() { None } else { Some(adder(ty.dtype, target.level)) };
        Ok(Accumulate { inner, add, elements: ty.elements(), size: ty.dtype.size() })
    }

    fn bytes(&self) -> usize {
        (self.elements * self.size).next_multiple_of(64)
    }
}

impl Kernel for Accumulate {
    fn scratch(&self) -> usize {
        self.inner.scratch() + if self.add.is_some() { self.bytes() } else { 0 }
    }

    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        let (operands, addend) = io.inputs.split_at(io.inputs.len() - 1);
        let out = io.outputs[0];
        if !std::ptr::eq(addend[0], out) {
            // SAFETY: addend and result have one type and, being different, do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(addend[0], out, self.elements * self.size) };
        }
        let Some(add) = self.add else {
            // SAFETY: the kernel adds to the result, which is apart from its operands.
            return unsafe {
                self.inner.run(cx, &Io { inputs: operands, outputs: io.outputs, scratch: io.scratch })
            };
        };
        let scratch = io.scratch.wrapping_add(self.bytes());
        // SAFETY: scratch has room for the result and the kernel's own.
        unsafe { self.inner.run(cx, &Io { inputs: operands, outputs: &[io.scratch], scratch })? };
        let (from, to) = (Ptr(io.scratch), Ptr(out));
        let body = |block: usize| {
            let at = block * BLOCK;
            let x = from.at(at * self.size).cast_const();
            // SAFETY: blocks are disjoint parts of the arrays.
            unsafe { add(to.at(at * self.size), x, x, x, BLOCK.min(self.elements - at)) };
        };
        cx.team.run_with(self.elements.div_ceil(BLOCK), self.elements as f64 * 0.2, cx.flush, &body);
        Ok(())
    }
}

/// Products and convolutions onto running sums.
pub static FAMILY: Family = Family {
    name: "accumulate",
    doc: "a product or convolution that is added to its last operand",
    takes: |step| matches!(step.kernel, Plan::Accumulate { .. }),
    candidates: &[Candidate {
        name: "accumulate",
        why: "adds in the kernel where that can, after it elsewhere",
        levels: EVERY,
        accepts: |p| match &p.step.kernel {
            Plan::Accumulate { op } => Ok(Box::new(Accumulate::new(op, p)?)),
            _ => Err("no running sum".into()),
        },
    }],
};
