//! JIT intermediate representation: steps on vectors and masks in SSA form, before register allocation.
#![forbid(unsafe_code)]

use crate::simd::jit::opcodes;
use crate::simd::jit::opcodes::Opcode;

/// Number of accumulators of a reduction along the loop; an iteration then processes as many elements.
pub const ACCUMULATORS: usize = 64;

/// Instruction set of a JIT-compiled loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoopIsa {
    Avx512,
    /// AVX2 with FMA and F16C.
    Avx2,
}

impl LoopIsa {
    /// Returns the vector width in 32-bit lanes.
    pub fn lanes(self) -> usize {
        match self {
            LoopIsa::Avx512 => 16,
            LoopIsa::Avx2 => 8,
        }
    }
}

/// Result of a step, identified by the step's index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepValue(pub usize);

/// Operand of a step: a vector value, or a constant in every lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepArg {
    Value(StepValue),
    Bits(u32),
}

impl From<f32> for StepArg {
    fn from(x: f32) -> StepArg {
        StepArg::Bits(x.to_bits())
    }
}

/// Element type in memory, and how it is widened to a 32-bit lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoredType {
    Word,
    /// 16 bits, zero- or sign-extended.
    Half {
        signed: bool,
    },
    /// An f16, converted to f32.
    F16,
    Byte {
        signed: bool,
    },
}

impl StoredType {
    /// Returns the size of a stored element in bytes.
    pub fn size(self) -> u8 {
        match self {
            StoredType::Word => 4,
            StoredType::Half { .. } | StoredType::F16 => 2,
            StoredType::Byte { .. } => 1,
        }
    }
}

/// One vector of an array that a JIT step reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoopOperand {
    /// Index of the array.
    pub array: usize,
    pub form: StoredType,
    /// Whether the array is the 64 accumulators of a reduction, whose index restarts in each iteration of the loop.
    pub around: bool,
}

/// One step of the JIT's intermediate representation: load, arithmetic, comparison or store.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum JitStep {
    Load(LoopOperand),
    /// Broadcasts one element of an array.
    Spread {
        array: usize,
        form: StoredType,
    },
    Constant(u32),
    /// Unary `op(a)`.
    One {
        op: Opcode,
        imm: Option<u8>,
        a: StepArg,
    },
    /// Binary `a op b`.
    Two {
        op: Opcode,
        a: StepArg,
        b: StepArg,
    },
    /// Shift by an immediate; see `opcodes::SHIFTS`.
    Shift {
        way: u8,
        by: u8,
        a: StepValue,
    },
    /// Fused multiply-add `±(a · b) ± c`, rounded once; see [`opcodes::MINUS_PRODUCT`].
    Fma {
        a: StepValue,
        b: StepArg,
        c: StepArg,
        signs: u8,
    },
    /// Bitwise select: `b` where `mask` has ones, `a` elsewhere.
    Mix {
        a: StepValue,
        b: StepValue,
        mask: u32,
    },
    /// `a op b` in the lanes of `mask`, `base` elsewhere.
    Merge {
        mask: StepValue,
        base: StepValue,
        op: Opcode,
        a: StepValue,
        b: StepArg,
    },
    /// Mask of the lanes for which the relation holds.
    Compare {
        op: Opcode,
        imm: Option<u8>,
        a: StepValue,
        b: StepArg,
    },
    /// `yes` in the lanes of `mask`, `no` elsewhere.
    Select {
        mask: StepValue,
        yes: StepArg,
        no: StepArg,
    },
    Masks {
        op: u8,
        a: StepValue,
        b: StepValue,
    },
    MaskNot(StepValue),
    Store(LoopOperand, StepValue),
}

impl JitStep {
    /// Calls `f` with each value that the step reads.
    pub fn each_operand(&self, mut f: impl FnMut(StepValue)) {
        let mut arg = |a: StepArg| {
            if let StepArg::Value(v) = a {
                f(v);
            }
        };
        match *self {
            JitStep::Load(_) | JitStep::Spread { .. } | JitStep::Constant(_) => {}
            JitStep::One { a, .. } => arg(a),
            JitStep::Two { a, b, .. } => [a, b].into_iter().for_each(arg),
            JitStep::Shift { a, .. } | JitStep::MaskNot(a) | JitStep::Store(_, a) => f(a),
            JitStep::Fma { a, b, c, .. } => [StepArg::Value(a), b, c].into_iter().for_each(arg),
            JitStep::Mix { a, b, .. } | JitStep::Masks { a, b, .. } => [a, b].into_iter().for_each(f),
            JitStep::Merge { mask, base, a, b, .. } => {
                [StepArg::Value(mask), StepArg::Value(base), StepArg::Value(a), b].into_iter().for_each(arg);
            }
            JitStep::Compare { a, b, .. } => [StepArg::Value(a), b].into_iter().for_each(arg),
            JitStep::Select { mask, yes, no } => [StepArg::Value(mask), yes, no].into_iter().for_each(arg),
        }
    }

    /// Calls `f` with each constant that the step reads, and with the gain of a register for it: only some operands can
    /// be read from memory.
    pub fn each_constant(&self, mut f: impl FnMut(u32, usize)) {
        let mut arg = |a: StepArg, saved: usize| {
            if let StepArg::Bits(bits) = a {
                f(bits, saved);
            }
        };
        match *self {
            JitStep::Constant(bits) | JitStep::Mix { mask: bits, .. } => arg(StepArg::Bits(bits), 1),
            JitStep::One { a, .. } => arg(a, 1),
            JitStep::Two { a, b, .. } => {
                arg(a, 3);
                arg(b, 1);
            }
            JitStep::Fma { b, c, .. } => {
                arg(b, 1);
                arg(c, 1);
            }
            JitStep::Merge { b, .. } | JitStep::Compare { b, .. } => arg(b, 1),
            JitStep::Select { yes, no, .. } => {
                arg(yes, 1);
                if no != StepArg::Bits(0) {
                    arg(no, 3);
                }
            }
            _ => {}
        }
    }

    /// Whether the step's result is a mask.
    pub fn makes_mask(&self) -> bool {
        matches!(self, JitStep::Compare { .. } | JitStep::Masks { .. } | JitStep::MaskNot(_))
    }

    /// Whether the step is a store, which has no result.
    pub fn is_store(&self) -> bool {
        matches!(self, JitStep::Store(..))
    }
}

/// Float relations: the immediates of `cmpps`. With a NaN, only those named as a negation or `NAN` hold.
pub mod relation {
    use systole_ir::op::Direction;

    pub const EQUAL: u8 = 0x00;
    pub const LESS: u8 = 0x11;
    pub const LESS_OR_EQUAL: u8 = 0x12;
    pub const NAN: u8 = 0x03;
    pub const NUMBER: u8 = 0x07;
    pub const NOT_EQUAL: u8 = 0x04;
    pub const GREATER_OR_EQUAL: u8 = 0x1d;
    pub const GREATER: u8 = 0x1e;
    pub const EQUAL_OR_NAN: u8 = 0x08;
    pub const NOT_LESS: u8 = 0x15;
    /// Relation of integers in JIT comparisons: equal.
    pub const INT_EQUAL: u8 = 0;
    pub const INT_LESS: u8 = 1;
    pub const INT_GREATER: u8 = 6;

    /// Returns the relation of floats for a comparison.
    pub fn of_floats(direction: Direction) -> u8 {
        match direction {
            Direction::Eq => EQUAL,
            Direction::Ne => NOT_EQUAL,
            Direction::Ge => GREATER_OR_EQUAL,
            Direction::Gt => GREATER,
            Direction::Le => LESS_OR_EQUAL,
            Direction::Lt => LESS,
        }
    }
}

/// Rounding modes: the immediates of `rndscaleps`.
pub mod rounding {
    pub const NEAREST_EVEN: u8 = 8;
    pub const DOWN: u8 = 9;
    pub const UP: u8 = 10;
    pub const TO_ZERO: u8 = 11;
}

/// Builder of a list of JIT steps. Methods append a step and return its value.
pub struct StepBuilder {
    pub list: Vec<JitStep>,
    pub set: LoopIsa,
    /// Whether the level has an instruction that rounds to bf16 (it flushes subnormals) and the program allows
    /// flushing.
    pub rounds: bool,
}

impl StepBuilder {
    pub fn push(&mut self, step: JitStep) -> StepValue {
        self.list.push(step);
        StepValue(self.list.len() - 1)
    }

    /// Returns the operand as a step value.
    pub fn value(&mut self, a: StepArg) -> StepValue {
        match a {
            StepArg::Value(v) => v,
            StepArg::Bits(bits) => self.push(JitStep::Constant(bits)),
        }
    }

    pub fn one(&mut self, op: Opcode, imm: Option<u8>, a: impl Into<StepArg>) -> StepValue {
        self.push(JitStep::One { op, imm, a: a.into() })
    }

    pub fn two(&mut self, op: Opcode, a: impl Into<StepArg>, b: impl Into<StepArg>) -> StepValue {
        self.push(JitStep::Two { op, a: a.into(), b: b.into() })
    }

    pub fn add(&mut self, a: impl Into<StepArg>, b: impl Into<StepArg>) -> StepValue {
        self.two(opcodes::ADDPS, a, b)
    }

    pub fn sub(&mut self, a: impl Into<StepArg>, b: impl Into<StepArg>) -> StepValue {
        self.two(opcodes::SUBPS, a, b)
    }

    pub fn mul(&mut self, a: impl Into<StepArg>, b: impl Into<StepArg>) -> StepValue {
        self.two(opcodes::MULPS, a, b)
    }

    pub fn and(&mut self, a: StepValue, bits: u32) -> StepValue {
        self.two(opcodes::PANDD, a, StepArg::Bits(bits))
    }

    pub fn fma(&mut self, a: StepValue, b: impl Into<StepArg>, c: impl Into<StepArg>) -> StepValue {
        self.push(JitStep::Fma { a, b: b.into(), c: c.into(), signs: 0 })
    }

    pub fn shift_left(&mut self, a: StepValue, by: u8) -> StepValue {
        self.push(JitStep::Shift { way: opcodes::SHIFT_LEFT, by, a })
    }

    pub fn shift_right_signed(&mut self, a: StepValue, by: u8) -> StepValue {
        self.push(JitStep::Shift { way: opcodes::SHIFT_RIGHT_SIGNED, by, a })
    }

    pub fn shift_right(&mut self, a: StepValue, by: u8) -> StepValue {
        self.push(JitStep::Shift { way: opcodes::SHIFT_RIGHT, by, a })
    }

    /// Appends a float comparison and returns the mask of lanes for which it holds.
    pub fn holds(&mut self, a: StepValue, relation: u8, b: impl Into<StepArg>) -> StepValue {
        self.push(JitStep::Compare { op: opcodes::CMPPS, imm: Some(relation), a, b: b.into() })
    }

    pub fn select(&mut self, mask: StepValue, yes: impl Into<StepArg>, no: impl Into<StepArg>) -> StepValue {
        self.push(JitStep::Select { mask, yes: yes.into(), no: no.into() })
    }

    pub fn round(&mut self, a: StepValue, how: u8) -> StepValue {
        self.one(opcodes::RNDSCALEPS, Some(how), a)
    }

    /// Evaluates a polynomial by Horner's rule, highest power first.
    pub fn poly(&mut self, x: StepValue, c: &[f32]) -> StepValue {
        let mut y = self.fma(x, c[0], c[1]);
        for &c in &c[2..] {
            y = self.fma(y, x, c);
        }
        y
    }
}

impl From<StepValue> for StepArg {
    fn from(v: StepValue) -> StepArg {
        StepArg::Value(v)
    }
}
