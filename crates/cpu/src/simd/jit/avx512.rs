//! JIT instruction selection for AVX-512: masks have their own registers, and any instruction can be masked.
#![forbid(unsafe_code)]

use crate::simd::jit::emit::{Emitter, TAIL, load_op};
use crate::simd::jit::encode::*;
use crate::simd::jit::opcodes;
use crate::simd::jit::steps::{JitStep, StepArg, StepValue, StoredType};

impl Emitter<'_> {
    /// Emits AVX-512 code of step `i` in one copy of the loop body, for one vector of the iteration.
    pub fn avx512(&mut self, i: usize, copy: usize, vector: usize) {
        let reg = |v: StepValue| self.home(v, copy);
        let rm = |a: StepArg| self.operand(a, copy);
        let to = reg(StepValue(i));
        let all = WriteMask::All;
        match self.steps[i] {
            JitStep::Load(place) if let Some(from) = self.accumulator(place, copy) => {
                self.asm.vector(opcodes::MOVAPS, to, 0, Rm::Reg(VectorReg(from)), all, None);
            }
            JitStep::Store(place, v) if let Some(to) = self.accumulator(place, copy) => {
                let from = Rm::Reg(VectorReg(reg(v)));
                self.asm.vector(opcodes::MOVAPS, to, 0, from, all, None);
            }
            JitStep::Load(place) => {
                let lanes = if self.tail.is_some() { WriteMask::Zero(TAIL) } else { all };
                let op = load_op(place.form);
                let at = self.address(place, vector);
                self.asm.vector(op, to, 0, at, lanes, None);
            }
            JitStep::Store(place, v) => {
                let (from, at) = (reg(v), self.address(place, vector));
                let lanes = if self.tail.is_some() { WriteMask::Merge(TAIL) } else { all };
                let (op, imm) = match place.form {
                    StoredType::Word => (opcodes::MOVUPS_STORE, None),
                    StoredType::F16 => (opcodes::CVTPS2PH, Some(0)),
                    StoredType::Half { .. } => (opcodes::PMOVDW, None),
                    StoredType::Byte { .. } => (opcodes::PMOVDB, None),
                };
                self.asm.vector(op, from, 0, at, lanes, imm);
            }
            JitStep::Mix { a, b, mask } => {
                let (b, mask) = (reg(b), rm(StepArg::Bits(mask)));
                // Emits nothing if its live range ends here: it is already in `to`.
                self.copy_to(to, a.into(), copy);
                // Truth table: bit 4x + 2y + z is the result for bits x, y and z of the operands; here z ? y : x.
                const CHOOSE: u8 = 0xd8;
                self.asm.vector(opcodes::PTERNLOGD, to, b, mask, all, Some(CHOOSE));
            }
            step => self.avx512_masks(step, i, copy),
        }
    }

    /// Emits comparisons, and steps that use masks.
    fn avx512_masks(&mut self, step: JitStep, i: usize, copy: usize) {
        let reg = |v: StepValue| self.home(v, copy);
        let rm = |a: StepArg| self.operand(a, copy);
        let to = reg(StepValue(i));
        let all = WriteMask::All;
        match step {
            JitStep::Merge { mask, base, op, a, b } => {
                let (mask, a, b) = (Mask(reg(mask)), reg(a), rm(b));
                self.copy_to(to, base.into(), copy);
                self.asm.vector(op, to, a, b, WriteMask::Merge(mask), None);
            }
            JitStep::Compare { op, imm, a, b } => {
                let (a, b) = (reg(a), rm(b));
                self.asm.vector(op, to, a, b, all, imm);
            }
            JitStep::Select { mask, yes, no } => self.select(to, Mask(reg(mask)), yes, no, copy),
            JitStep::Masks { op, a, b } => {
                let (a, b) = (Mask(reg(a)), Mask(reg(b)));
                self.asm.masks(op, Mask(to), a, b);
            }
            JitStep::MaskNot(a) => {
                let a = Mask(reg(a));
                self.asm.mask_not(Mask(to), a);
            }
            JitStep::Load(_)
            | JitStep::Store(..)
            | JitStep::Spread { .. }
            | JitStep::Constant(_)
            | JitStep::One { .. } => {}
            JitStep::Two { .. } | JitStep::Shift { .. } | JitStep::Fma { .. } | JitStep::Mix { .. } => {}
        }
    }

    fn select(&mut self, to: u8, mask: Mask, yes: StepArg, no: StepArg, copy: usize) {
        let from = self.operand(yes, copy);
        if no == StepArg::Bits(0) {
            let (op, from) = match from {
                // The write mask selects the lanes, so the constant is broadcast from one lane.
                Rm::Splat(bits) => (opcodes::BROADCASTSS, Rm::Single(bits)),
                register => (opcodes::MOVAPS, register),
            };
            return self.asm.vector(op, to, 0, from, WriteMask::Zero(mask), None);
        }
        let no = self.in_register(no, to, copy);
        self.asm.vector(opcodes::BLENDMPS, to, no, from, WriteMask::Merge(mask), None);
    }
}
