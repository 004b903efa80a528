//! Instruction selection for AVX-512: masks have their own registers, and any instruction can be masked.
#![forbid(unsafe_code)]

use crate::simd::jit::emit::{Emitter, FmaForm, SPARE, TABLE, TAIL, load_op, spread_op};
use crate::simd::jit::encode::*;
use crate::simd::jit::opcodes;
use crate::simd::jit::steps::{Arg, Form, Step, Value};

impl Emitter<'_> {
    /// Emits step `i` in one copy, for one vector of the iteration.
    pub fn avx512(&mut self, i: usize, copy: usize, vector: usize) {
        let reg = |v: Value| self.home(v, copy);
        let to = reg(Value(i));
        let all = Lanes::All;
        match self.steps[i] {
            Step::Load(place) if let Some(from) = self.accumulator(place, copy) => {
                self.asm.vector(opcodes::MOVAPS, to, 0, Rm::Reg(Reg(from)), all, None);
            }
            Step::Store(place, v) if let Some(to) = self.accumulator(place, copy) => {
                let from = Rm::Reg(Reg(reg(v)));
                self.asm.vector(opcodes::MOVAPS, to, 0, from, all, None);
            }
            Step::Load(place) => {
                let lanes = if self.tail.is_some() { Lanes::Zero(TAIL) } else { all };
                let op = load_op(place.form);
                let at = self.address(place, vector);
                self.asm.vector(op, to, 0, at, lanes, None);
            }
            Step::Store(place, v) => {
                let (from, at) = (reg(v), self.address(place, vector));
                let lanes = if self.tail.is_some() { Lanes::Merge(TAIL) } else { all };
                let (op, imm) = match place.form {
                    Form::Word => (opcodes::MOVUPS_STORE, None),
                    Form::F16 => (opcodes::CVTPS2PH, Some(0)),
                    Form::Half { .. } => (opcodes::PMOVDW, None),
                    Form::Byte { .. } => (opcodes::PMOVDB, None),
                };
                self.asm.vector(op, from, 0, at, lanes, imm);
            }
            Step::Spread { array, form } => {
                self.asm.load_address(SPARE, TABLE, 8 * array as i32);
                let op = spread_op(form);
                let at = Rm::Memory(At { base: SPARE, index: None, offset: 0 });
                self.asm.vector(op, to, 0, at, all, None);
                if form == Form::F16 {
                    self.asm.vector(opcodes::CVTPH2PS, to, 0, Rm::Reg(Reg(to)), all, None);
                }
            }
            Step::Constant(bits) => self.copy_to(to, Arg::Bits(bits), copy),
            step => self.avx512_arithmetic(step, i, copy),
        }
    }

    /// Arithmetic steps.
    fn avx512_arithmetic(&mut self, step: Step, i: usize, copy: usize) {
        let reg = |v: Value| self.home(v, copy);
        let rm = |a: Arg| self.operand(a, copy);
        let to = reg(Value(i));
        let all = Lanes::All;
        let ends = &self.homes.ends[i];
        match step {
            // The destination is the `r/m` operand.
            Step::One { op: opcodes::CVTPS2PH, imm, a: Arg::Value(a) } => {
                let from = reg(a);
                self.asm.vector(opcodes::CVTPS2PH, from, 0, Rm::Reg(Reg(to)), all, imm);
            }
            Step::One { op, imm, a } => {
                let a = rm(a);
                self.asm.vector(op, to, 0, a, all, imm);
            }
            Step::Two { op, a, b } => {
                let b = rm(b);
                let first = self.in_register(a, to, copy);
                self.asm.vector(op, to, first, b, all, None);
            }
            Step::Shift { way, by, a } => {
                let a = rm(a.into());
                self.asm.vector(opcodes::SHIFTS, way, to, a, all, Some(by));
            }
            Step::Fma { a, b, c } => match FmaForm::of(a, b, c, ends) {
                FmaForm::Over(_, op, first, last) => {
                    let (first, last) = (reg(first), rm(last));
                    self.asm.vector(op, to, first, last, all, None);
                }
                FmaForm::Fresh => {
                    let (a, b) = (reg(a), rm(b));
                    self.copy_to(to, c, copy);
                    self.asm.vector(opcodes::FMADD231PS, to, a, b, all, None);
                }
            },
            Step::Mix { a, b, mask } => {
                let (b, mask) = (reg(b), rm(Arg::Bits(mask)));
                // Emits nothing if its live range ends here: it is in `to` already.
                self.copy_to(to, a.into(), copy);
                // Truth table: bit 4x + 2y + z is the result for bits x, y and z of the operands; here z ? y : x.
                const CHOOSE: u8 = 0xd8;
                self.asm.vector(opcodes::PTERNLOGD, to, b, mask, all, Some(CHOOSE));
            }
            step => self.avx512_masks(step, i, copy),
        }
    }

    /// Comparisons, and steps that use masks.
    fn avx512_masks(&mut self, step: Step, i: usize, copy: usize) {
        let reg = |v: Value| self.home(v, copy);
        let rm = |a: Arg| self.operand(a, copy);
        let to = reg(Value(i));
        let all = Lanes::All;
        match step {
            Step::Merge { mask, base, op, a, b } => {
                let (mask, a, b) = (Mask(reg(mask)), reg(a), rm(b));
                self.copy_to(to, base.into(), copy);
                self.asm.vector(op, to, a, b, Lanes::Merge(mask), None);
            }
            Step::Compare { op, imm, a, b } => {
                let (a, b) = (reg(a), rm(b));
                self.asm.vector(op, to, a, b, all, imm);
            }
            Step::Select { mask, yes, no } => self.select(to, Mask(reg(mask)), yes, no, copy),
            Step::Masks { op, a, b } => {
                let (a, b) = (Mask(reg(a)), Mask(reg(b)));
                self.asm.masks(op, Mask(to), a, b);
            }
            Step::MaskNot(a) => {
                let a = Mask(reg(a));
                self.asm.mask_not(Mask(to), a);
            }
            Step::Load(_) | Step::Store(..) | Step::Spread { .. } | Step::Constant(_) | Step::One { .. } => {}
            Step::Two { .. } | Step::Shift { .. } | Step::Fma { .. } | Step::Mix { .. } => {}
        }
    }

    fn select(&mut self, to: u8, mask: Mask, yes: Arg, no: Arg, copy: usize) {
        let from = self.operand(yes, copy);
        if no == Arg::Bits(0) {
            let (op, from) = match from {
                // The write mask selects the lanes, so the constant is broadcast from one lane.
                Rm::Splat(bits) => (opcodes::BROADCASTSS, Rm::Single(bits)),
                register => (opcodes::MOVAPS, register),
            };
            return self.asm.vector(op, to, 0, from, Lanes::Zero(mask), None);
        }
        let no = self.in_register(no, to, copy);
        self.asm.vector(opcodes::BLENDMPS, to, no, from, Lanes::Merge(mask), None);
    }
}
