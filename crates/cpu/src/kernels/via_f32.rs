//! Runs convolutions and matrix products of bf16 or f16 by an f32 kernel: widens operands, then rounds results.
//!
//! Operands are widened to f32, the f32 kernel runs, and results are rounded.

use crate::kernel::convert::convert;
use crate::kernel::{Io, Kernel, KernelContext};
use crate::select::{CandidateResult, EVERY, KernelCandidate, Problem, answer};
use crate::simd::level::TileFn;
use crate::simd::loops::{narrow, widen};
use crate::simd::narrow_bias::sum_rounding;
use systole_compile::{Kernel as Plan, Step};
use systole_ir::op::{Convolution, DotGeneral};
use systole_ir::{DType, Op, Result, TensorType};

/// An f32 kernel with conversions before and after it.
pub struct ViaF32 {
    inner: Box<dyn Kernel>,
    inputs: Vec<ConvertedArray>,
    outputs: Vec<ConvertedArray>,
    scratch: usize,
    /// Adds a narrow bias, the last operand, to the rounded result and rounds again; and the elements of a row.
    bias: Option<(TileFn, usize)>,
}

/// Operand or result: its elements, the byte offset of its f32 copy in scratch, and its conversion (`None`: no copy).
struct ConvertedArray {
    elements: usize,
    at: usize,
    convert: Option<TileFn>,
}

fn is_narrow(t: &TensorType) -> bool {
    matches!(t.dtype, DType::F16 | DType::BF16)
}

impl ViaF32 {
    /// Creates an f32 kernel with conversions. `None` if no operand is a narrow float or the op is neither a
    /// convolution nor a product.
    pub fn new(op: &Op, bias: bool, problem: &Problem<'_>) -> Result<Option<ViaF32>> {
        let Problem { step, target, .. } = *problem;
        if !step.input_types.iter().chain(&step.output_types).any(is_narrow) {
            return Ok(None);
        }
        let level = target.level.vectors();
        let wide_op = match op {
            Op::Convolution(c) => Op::from(Convolution { element_type: DType::F32, ..c.clone() }),
            Op::DotGeneral(d) => Op::from(DotGeneral { element_type: DType::F32, ..d.clone() }),
            _ => return Ok(None),
        };
        let mut at = 0;
        let mut side = |t: &TensorType, convert: Option<TileFn>| {
            let side = ConvertedArray { elements: t.elements(), at, convert };
            at += if convert.is_some() { (t.elements() * 4).next_multiple_of(64) } else { 0 };
            side
        };
        let inputs = step.input_types.iter().map(|t| side(t, widen(t.dtype, level))).collect();
        let outputs = step.output_types.iter().map(|t| side(t, narrow(t.dtype, level))).collect();
        let wide = |t: &TensorType| if is_narrow(t) { t.with_dtype(DType::F32) } else { t.clone() };
        let y = &step.output_types[0];
        let after = bias && is_narrow(y);
        let operands = step.input_types.len() - usize::from(after);
        let row = y.shape.dims().last().copied().unwrap_or(1);
        let round = sum_rounding(y.dtype, true, level).filter(|_| after);
        let step = Step {
            kernel: Plan::Op { op: wide_op, bias: bias && !after },
            inputs: step.inputs[..operands].to_vec(),
            input_types: step.input_types[..operands].iter().map(wide).collect(),
            output_types: step.output_types.iter().map(wide).collect(),
            ..step.clone()
        };
        let inner = problem.bind(&step)?;
        let bias = round.map(|round| (round, row));
        Ok(Some(ViaF32 { scratch: at + inner.scratch(), inner, inputs, outputs, bias }))
    }
}

impl Kernel for ViaF32 {
    fn scratch(&self) -> usize {
        self.scratch
    }

    /// Returns false if results are rounded.
    fn add_to_result(&mut self) -> bool {
        self.outputs.iter().all(|side| side.convert.is_none()) && self.inner.add_to_result()
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let mut end = 0;
        let mut inputs = io.inputs.to_vec();
        let mut outputs = io.outputs.to_vec();
        // SAFETY: scratch has the parts laid out in `new`.
        unsafe {
            for (side, p) in self.inputs.iter().zip(&mut inputs) {
                if let Some(f) = side.convert {
                    let to = io.scratch.wrapping_add(side.at);
                    convert(cx, f, (*p, 2), (to, 4), side.elements);
                    *p = to;
                    end = side.at + (side.elements * 4).next_multiple_of(64);
                }
            }
            for (side, p) in self.outputs.iter().zip(&mut outputs) {
                if side.convert.is_some() {
                    *p = io.scratch.wrapping_add(side.at);
                    end = side.at + (side.elements * 4).next_multiple_of(64);
                }
            }
            let scratch = io.scratch.wrapping_add(end);
            let operands = &inputs[..inputs.len() - usize::from(self.bias.is_some())];
            self.inner.run(cx, &Io { inputs: operands, outputs: &outputs, scratch })?;
            if let (Some((round, row)), [.., bias]) = (self.bias, &inputs[..]) {
                let rows = self.outputs[0].elements / row.max(1);
                round(outputs[0], *bias, *bias, (&raw const row).cast(), rows);
            }
            for ((side, &from), &to) in self.outputs.iter().zip(&outputs).zip(io.outputs) {
                if let Some(f) = side.convert {
                    convert(cx, f, (from.cast_const(), 4), (to, 2), side.elements);
                }
            }
        }
        Ok(())
    }
}

/// Candidate for convolutions of narrow floats that no other kernel supports.
#[rustfmt::skip]
pub const CANDIDATE: KernelCandidate = KernelCandidate::new("via_f32", EVERY, "narrow floats that no other kernel supports: \
     whole operands are converted to f32, one more pass over them",
    |p| match &p.step.kernel {
        Plan::Op { op, bias } => answer(ViaF32::new(op, *bias, p)?, "not a convolution of bf16 or f16"),
        _ => Err("not a single op".into()),
    });

/// Creates the f32 kernel of a product's family.
pub fn product(p: &Problem<'_>) -> CandidateResult {
    match &p.step.kernel {
        Plan::Op { op: op @ Op::DotGeneral(_), bias } => {
            answer(ViaF32::new(op, *bias, p)?, "its elements are not narrow")
        }
        _ => Err("not a product".into()),
    }
}
