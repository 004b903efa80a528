//! JIT instruction selection for AVX2: masks are vectors of all-ones or all-zeros lanes, and selects are blends.
#![forbid(unsafe_code)]

use crate::simd::jit::emit::{Emitter, PACKED, load_op};
use crate::simd::jit::encode::*;
use crate::simd::jit::opcodes::{self, Opcode};
use crate::simd::jit::steps::{JitStep, LoopOperand, StepArg, StepValue, StoredType, relation};

/// Shuffle indices of `pshufb` that yield zeros.
const NOTHING: u32 = 0x8080_8080;

impl Emitter<'_> {
    /// Emits AVX2 code of step `i` in one copy of the loop body, for one vector of the iteration.
    pub fn avx2(&mut self, i: usize, copy: usize, vector: usize) {
        let reg = |v: StepValue| self.home(v, copy);
        let rm = |a: StepArg| self.operand(a, copy);
        let to = reg(StepValue(i));
        let itself = Rm::Reg(VectorReg(to));
        match self.steps[i] {
            JitStep::Load(place) => {
                let op = load_op(place.form);
                let at = self.address(place, vector);
                match self.tail {
                    Some(mask) => self.asm.ymm(opcodes::MASKMOVPS_LOAD, to, mask, at, None),
                    None => self.asm.ymm(op, to, 0, at, None),
                }
            }
            JitStep::Store(place, v) => {
                let from = reg(v);
                self.store(place, from, vector);
            }
            JitStep::Mix { a, b, mask } => {
                let (a, b, mask) = (reg(a), rm(b.into()), rm(StepArg::Bits(mask)));
                // XOR of both operands, restricted to the bits of the mask.
                self.asm.ymm(opcodes::PXORD, to, a, b, None);
                self.asm.ymm(opcodes::PANDD, to, to, mask, None);
                self.asm.ymm(opcodes::PXORD, to, a, itself, None);
            }
            step => self.avx2_masks(step, i, copy),
        }
    }

    /// Emits comparisons, and steps that use masks.
    fn avx2_masks(&mut self, step: JitStep, i: usize, copy: usize) {
        let reg = |v: StepValue| self.home(v, copy);
        let rm = |a: StepArg| self.operand(a, copy);
        let to = reg(StepValue(i));
        match step {
            JitStep::Merge { mask, base, op, a, b } => {
                let (mask, base, a, b) = (reg(mask), reg(base), reg(a), rm(b));
                self.asm.ymm(op, to, a, b, None);
                self.blend(to, base, Rm::Reg(VectorReg(to)), mask);
            }
            JitStep::Compare { op: opcodes::CMPPS, imm, a, b } => {
                let (a, b) = (reg(a), rm(b));
                self.asm.ymm(opcodes::CMPPS, to, a, b, imm);
            }
            JitStep::Compare { op: opcodes::PTESTMD, a, b, .. } => {
                let (a, b) = (reg(a), rm(b));
                self.asm.ymm(opcodes::PANDD, to, a, b, None);
                let zero = self.operand(StepArg::Bits(0), copy);
                self.asm.ymm(opcodes::PCMPEQD, to, to, zero, None);
                self.invert(to, copy);
            }
            JitStep::Compare { op, imm, a, b } => {
                let (a, b) = (reg(a), rm(b));
                self.compare(op == opcodes::PCMPD, imm.unwrap_or(relation::INT_EQUAL), to, (a, b), copy);
            }
            JitStep::Select { mask, yes, no: StepArg::Bits(0) } => {
                let (mask, yes) = (reg(mask), rm(yes));
                self.asm.ymm(opcodes::PANDD, to, mask, yes, None);
            }
            JitStep::Select { mask, yes: StepArg::Bits(0), no } => {
                let (mask, no) = (reg(mask), rm(no));
                self.asm.ymm(opcodes::PANDN, to, mask, no, None);
            }
            JitStep::Select { mask, yes, no } => {
                let (mask, yes) = (reg(mask), rm(yes));
                let no = self.in_register(no, to, copy);
                self.blend(to, no, yes, mask);
            }
            JitStep::Masks { op, a, b } => {
                let (a, b) = (reg(a), rm(b.into()));
                self.asm.ymm(vector_op(op), to, a, b, None);
                if op == opcodes::KXNOR {
                    self.invert(to, copy);
                }
            }
            JitStep::MaskNot(a) => {
                let (a, ones) = (reg(a), rm(StepArg::Bits(u32::MAX)));
                self.asm.ymm(opcodes::PXORD, to, a, ones, None);
            }
            JitStep::Load(_)
            | JitStep::Store(..)
            | JitStep::Spread { .. }
            | JitStep::Constant(_)
            | JitStep::One { .. }
            | JitStep::Two { .. }
            | JitStep::Shift { .. }
            | JitStep::Fma { .. }
            | JitStep::Mix { .. } => {}
        }
    }

    /// Emits a blend: `yes` in the lanes of `mask`, `no` elsewhere.
    fn blend(&mut self, to: u8, no: u8, yes: Rm, mask: u8) {
        self.asm.ymm(opcodes::BLENDVPS, to, no, yes, Some(mask << 4));
    }

    fn invert(&mut self, to: u8, copy: usize) {
        let ones = self.operand(StepArg::Bits(u32::MAX), copy);
        self.asm.ymm(opcodes::PXORD, to, to, ones, None);
    }

    /// Emits an integer comparison. AVX2 has equality and signed greater-than; other relations compare `a` with the
    /// minimum or maximum of both.
    fn compare(&mut self, signed: bool, relation: u8, to: u8, (a, b): (u8, Rm), copy: usize) {
        const LESS_OR_EQUAL: u8 = 2;
        const NOT_EQUAL: u8 = 4;
        let itself = Rm::Reg(VectorReg(to));
        let inverted = match relation {
            relation::INT_EQUAL | NOT_EQUAL => {
                self.asm.ymm(opcodes::PCMPEQD, to, a, b, None);
                relation == NOT_EQUAL
            }
            relation::INT_GREATER | LESS_OR_EQUAL if signed => {
                self.asm.ymm(opcodes::PCMPGTD, to, a, b, None);
                relation == LESS_OR_EQUAL
            }
            relation::INT_GREATER | LESS_OR_EQUAL => {
                self.asm.ymm(opcodes::PMINUD, to, a, b, None);
                self.asm.ymm(opcodes::PCMPEQD, to, a, itself, None);
                relation == relation::INT_GREATER
            }
            _ => {
                self.asm.ymm(if signed { opcodes::PMAXSD } else { opcodes::PMAXUD }, to, a, b, None);
                self.asm.ymm(opcodes::PCMPEQD, to, a, itself, None);
                relation == relation::INT_LESS
            }
        };
        if inverted {
            self.invert(to, copy);
        }
    }

    /// Emits a store. Narrow elements are packed within each 128-bit half; the halves are stored one after the other.
    fn store(&mut self, place: LoopOperand, from: u8, vector: usize) {
        let at = self.address(place, vector);
        if let Some(mask) = self.tail {
            return self.asm.ymm(opcodes::MASKMOVPS_STORE, from, mask, at, None);
        }
        let (order, op) = match place.form {
            StoredType::Word => return self.asm.ymm(opcodes::MOVUPS_STORE, from, 0, at, None),
            StoredType::F16 => return self.asm.ymm(opcodes::CVTPS2PH, from, 0, at, Some(0)),
            StoredType::Half { .. } => ([0x0504_0100, 0x0d0c_0908], opcodes::MOVLPS_STORE),
            StoredType::Byte { .. } => ([0x0c08_0400, NOTHING], opcodes::MOVD_STORE),
        };
        let half = [order[0], order[1], NOTHING, NOTHING];
        let lanes = std::array::from_fn(|k| half[k % 4]);
        self.asm.ymm(opcodes::PSHUFB, PACKED, from, Rm::Lanes(lanes), None);
        self.asm.xmm(op, PACKED, 0, at, None);
        self.asm.ymm(opcodes::EXTRACTI128, PACKED, 0, Rm::Reg(VectorReg(PACKED)), Some(1));
        if let Rm::Memory(MemoryAddress { base, index, offset }) = at {
            let offset = offset + 4 * place.form.size() as i32;
            self.asm.xmm(op, PACKED, 0, Rm::Memory(MemoryAddress { base, index, offset }), None);
        }
    }
}

/// The vector instruction that does to masks of lanes what `op` does to mask registers; KXNOR is PXORD, then inverted.
fn vector_op(op: u8) -> Opcode {
    match op {
        opcodes::KAND => opcodes::PANDD,
        opcodes::KANDN => opcodes::PANDN,
        opcodes::KOR => opcodes::PORD,
        _ => opcodes::PXORD,
    }
}
