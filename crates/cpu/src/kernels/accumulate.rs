//! Matrix product or convolution accumulated into its last operand (beta = 1): `y = op(inputs…) + addend`.
//!
//! `addend` and `y` have one type. If the buffer plan gives them different memory, the addend is first copied to `y`.
//! The op's own family binds the kernel of the op. [`InPlace`] has it add to `y`; [`AddAfter`] has it write to scratch,
//! which a second pass adds to `y`.

use crate::kernel::{Io, Kernel, KernelContext, Ptr};
use crate::select::{EVERY, Family, KernelCandidate, Problem, SelectResult};
use crate::simd::level::TileFn;
use crate::simd::reduce_loops::adder;
use systole_compile::{Kernel as Plan, Step};
use systole_ir::{Result, ensure};

/// Elements per block of the parallel loop that adds.
const BLOCK: usize = 1 << 14;

/// Kernel that adds to its result (beta = 1).
struct InPlace {
    inner: Box<dyn Kernel>,
    /// Bytes of the result.
    bytes: usize,
}

/// Kernel that overwrites its result, which is therefore in scratch, and a loop that adds the scratch to `y`.
struct AddAfter {
    inner: Box<dyn Kernel>,
    add: TileFn,
    elements: usize,
    /// Bytes of an element.
    size: usize,
}

/// Creates the kernel of the op without the addend.
fn bind(p: &Problem<'_>) -> SelectResult<Box<dyn Kernel>> {
    let step = p.step;
    let Plan::Accumulate { op } = &step.kernel else { return Err("the step adds to no operand".into()) };
    let operands = step.inputs.len() - 1;
    let plain = Step {
        kernel: Plan::Op { op: op.clone(), bias: false },
        inputs: step.inputs[..operands].to_vec(),
        input_types: step.input_types[..operands].to_vec(),
        ..step.clone()
    };
    Ok(p.bind(&plain)?)
}

/// Copies the addend, the last input, to `y` unless they share memory. Returns the inputs of the op.
///
/// # Safety
/// Both have `bytes` bytes and are the same array or do not overlap.
unsafe fn start_from_addend<'a>(io: &Io<'a>, bytes: usize) -> &'a [*const u8] {
    let (operands, addend) = io.inputs.split_at(io.inputs.len() - 1);
    let out = io.outputs[0];
    if !std::ptr::eq(addend[0], out) {
        // SAFETY: by the caller's promise; their addresses differ, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(addend[0], out, bytes) };
    }
    operands
}

impl Kernel for InPlace {
    fn scratch(&self) -> usize {
        self.inner.scratch()
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: addend and result have one type; the plan lets them be the same array or keeps them apart. The
        // operands do not overlap the result.
        unsafe {
            let inputs = start_from_addend(io, self.bytes);
            self.inner.run(cx, &Io { inputs, outputs: io.outputs, scratch: io.scratch })
        }
    }
}

impl AddAfter {
    /// Bytes of scratch that hold the op's result, so that the inner kernel's scratch stays aligned to 64 bytes.
    fn padded_bytes(&self) -> usize {
        (self.elements * self.size).next_multiple_of(64)
    }
}

impl Kernel for AddAfter {
    fn scratch(&self) -> usize {
        self.inner.scratch() + self.padded_bytes()
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let out = io.outputs[0];
        let scratch = io.scratch.wrapping_add(self.padded_bytes());
        // SAFETY: addend and result have one type; the plan lets them be the same array or keeps them apart. Scratch
        // has room for the op's result, followed by the inner kernel's own scratch.
        unsafe {
            let inputs = start_from_addend(io, self.elements * self.size);
            self.inner.run(cx, &Io { inputs, outputs: &[io.scratch], scratch })?;
        }
        let (from, to) = (Ptr(io.scratch), Ptr(out));
        let body = |block: usize| {
            let at = block * BLOCK;
            let x = from.at(at * self.size).cast_const();
            // SAFETY: blocks are disjoint ranges of both arrays.
            unsafe { (self.add)(to.at(at * self.size), x, x, x, BLOCK.min(self.elements - at)) };
        };
        cx.team.run_with(self.elements.div_ceil(BLOCK), self.elements as f64 * 0.2, cx.flush, &body);
        Ok(())
    }
}

/// Kernel family for products and convolutions with beta = 1.
pub static FAMILY: Family = Family {
    name: "accumulate",
    doc: "a product or convolution that is added to its last operand",
    takes: |step| matches!(step.kernel, Plan::Accumulate { .. }),
    #[rustfmt::skip]
    candidates: &[
        KernelCandidate::new("in_place", EVERY, "the op's kernel adds to its result (beta = 1): no second pass, no \
             array of the result's size",
            |p| {
                let mut inner = bind(p)?;
                ensure!(inner.add_to_result(), "the op's kernel overwrites its result".into());
                Ok(Box::new(InPlace { inner, bytes: p.step.output_types[0].bytes() }))
            }),
        KernelCandidate::new("add_after", EVERY, "the op's kernel writes to scratch, which a second pass adds to \
             the result; supports every op",
            |p| {
                let (inner, ty) = (bind(p)?, &p.step.output_types[0]);
                let add = adder(ty.dtype, p.target.level);
                Ok(Box::new(AddAfter { inner, add, elements: ty.elements(), size: ty.dtype.size() }))
            }),
    ],
};
