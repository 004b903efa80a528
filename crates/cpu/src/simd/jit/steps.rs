//! The JIT's intermediate representation: a list of steps on vectors and masks, in SSA form. Registers are allocated
//! later.
#![forbid(unsafe_code)]

use crate::simd::jit::opcodes;
use crate::simd::jit::opcodes::Op;

/// Accumulators of a reduction along the loop, which is then also the number of elements per iteration.
pub const ACCUMULATORS: usize = 64;

/// Instruction set of a loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Set {
    Avx512,
    /// With FMA and F16C.
    Avx2,
}

impl Set {
    /// Vector width in 32-bit lanes.
    pub fn lanes(self) -> usize {
        match self {
            Set::Avx512 => 16,
            Set::Avx2 => 8,
        }
    }
}

/// The result of a step, named by the step's index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Value(pub usize);

/// An operand: a vector value, or a constant in every lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arg {
    Value(Value),
    Bits(u32),
}

impl From<f32> for Arg {
    fn from(x: f32) -> Arg {
        Arg::Bits(x.to_bits())
    }
}

/// Element type in memory, and how it is widened to a 32-bit lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
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

impl Form {
    /// Bytes of an element.
    pub fn size(self) -> u8 {
        match self {
            Form::Word => 4,
            Form::Half { .. } | Form::F16 => 2,
            Form::Byte { .. } => 1,
        }
    }
}

/// A vector in an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operand {
    /// Index of the array.
    pub array: usize,
    pub form: Form,
    /// Whether the array is the 64 accumulators of a reduction, whose index restarts in each iteration of the loop.
    pub around: bool,
}

/// One step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Step {
    Load(Operand),
    /// One element of an array, broadcast.
    Spread {
        array: usize,
        form: Form,
    },
    Constant(u32),
    /// `op(a)`.
    One {
        op: Op,
        imm: Option<u8>,
        a: Arg,
    },
    /// `a op b`.
    Two {
        op: Op,
        a: Arg,
        b: Arg,
    },
    /// A shift by an immediate; see [`ops::SHIFTS`].
    Shift {
        way: u8,
        by: u8,
        a: Value,
    },
    /// `a · b + c`, rounded once.
    Fma {
        a: Value,
        b: Arg,
        c: Arg,
    },
    /// Bitwise select: `b` where `mask` has ones, `a` elsewhere.
    Mix {
        a: Value,
        b: Value,
        mask: u32,
    },
    /// `a op b` in the lanes of `mask`, `base` elsewhere.
    Merge {
        mask: Value,
        base: Value,
        op: Op,
        a: Value,
        b: Arg,
    },
    /// The mask of lanes for which the relation holds.
    Compare {
        op: Op,
        imm: Option<u8>,
        a: Value,
        b: Arg,
    },
    /// `yes` in the lanes of `mask`, `no` elsewhere.
    Select {
        mask: Value,
        yes: Arg,
        no: Arg,
    },
    Masks {
        op: u8,
        a: Value,
        b: Value,
    },
    MaskNot(Value),
    Store(Operand, Value),
}

impl Step {
    /// Calls `f` with each value that the step reads.
    pub fn each_operand(&self, mut f: impl FnMut(Value)) {
        let mut arg = |a: Arg| {
            if let Arg::Value(v) = a {
                f(v);
            }
        };
        match *self {
            Step::Load(_) | Step::Spread { .. } | Step::Constant(_) => {}
            Step::One { a, .. } => arg(a),
            Step::Two { a, b, .. } => [a, b].into_iter().for_each(arg),
            Step::Shift { a, .. } | Step::MaskNot(a) | Step::Store(_, a) => f(a),
            Step::Fma { a, b, c } => [Arg::Value(a), b, c].into_iter().for_each(arg),
            Step::Mix { a, b, .. } | Step::Masks { a, b, .. } => [a, b].into_iter().for_each(f),
            Step::Merge { mask, base, a, b, .. } => {
                [Arg::Value(mask), Arg::Value(base), Arg::Value(a), b].into_iter().for_each(arg);
            }
            Step::Compare { a, b, .. } => [Arg::Value(a), b].into_iter().for_each(arg),
            Step::Select { mask, yes, no } => [Arg::Value(mask), yes, no].into_iter().for_each(arg),
        }
    }

    /// Calls `f` with each constant that the step reads, and with what a register for it saves: only some operands can
    /// be read from memory.
    pub fn each_constant(&self, mut f: impl FnMut(u32, usize)) {
        let mut arg = |a: Arg, saved: usize| {
            if let Arg::Bits(bits) = a {
                f(bits, saved);
            }
        };
        match *self {
            Step::Constant(bits) | Step::Mix { mask: bits, .. } => arg(Arg::Bits(bits), 1),
            Step::One { a, .. } => arg(a, 1),
            Step::Two { a, b, .. } => {
                arg(a, 3);
                arg(b, 1);
            }
            Step::Fma { b, c, .. } => {
                arg(b, 1);
                arg(c, 1);
            }
            Step::Merge { b, .. } | Step::Compare { b, .. } => arg(b, 1),
            Step::Select { yes, no, .. } => {
                arg(yes, 1);
                if no != Arg::Bits(0) {
                    arg(no, 3);
                }
            }
            _ => {}
        }
    }

    /// Whether the result is a mask.
    pub fn makes_mask(&self) -> bool {
        matches!(self, Step::Compare { .. } | Step::Masks { .. } | Step::MaskNot(_))
    }

    /// Whether it has no result.
    pub fn is_store(&self) -> bool {
        matches!(self, Step::Store(..))
    }
}

/// Float relations: the immediates of `cmpps`. With a NaN, only those named as a negation or `NAN` hold.
pub mod relation {
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
    /// Of integers.
    pub const INT_EQUAL: u8 = 0;
    pub const INT_LESS: u8 = 1;
    pub const INT_GREATER: u8 = 6;
}

/// Rounding modes: the immediates of `rndscaleps`.
pub mod rounding {
    pub const NEAREST_EVEN: u8 = 8;
    pub const DOWN: u8 = 9;
    pub const UP: u8 = 10;
    pub const TO_ZERO: u8 = 11;
}

/// Builder of a list of steps. Methods append a step and return its value.
pub struct Steps {
    pub list: Vec<Step>,
    pub set: Set,
    /// Whether the level has an instruction that rounds to bf16 (it flushes subnormals) and the program allows
    /// flushing.
    pub rounds: bool,
}

impl Steps {
    pub fn push(&mut self, step: Step) -> Value {
        self.list.push(step);
        Value(self.list.len() - 1)
    }

    /// The operand as a value.
    pub fn value(&mut self, a: Arg) -> Value {
        match a {
            Arg::Value(v) => v,
            Arg::Bits(bits) => self.push(Step::Constant(bits)),
        }
    }

    pub fn one(&mut self, op: Op, imm: Option<u8>, a: impl Into<Arg>) -> Value {
        self.push(Step::One { op, imm, a: a.into() })
    }

    pub fn two(&mut self, op: Op, a: impl Into<Arg>, b: impl Into<Arg>) -> Value {
        self.push(Step::Two { op, a: a.into(), b: b.into() })
    }

    pub fn add(&mut self, a: impl Into<Arg>, b: impl Into<Arg>) -> Value {
        self.two(opcodes::ADDPS, a, b)
    }

    pub fn sub(&mut self, a: impl Into<Arg>, b: impl Into<Arg>) -> Value {
        self.two(opcodes::SUBPS, a, b)
    }

    pub fn mul(&mut self, a: impl Into<Arg>, b: impl Into<Arg>) -> Value {
        self.two(opcodes::MULPS, a, b)
    }

    pub fn and(&mut self, a: Value, bits: u32) -> Value {
        self.two(opcodes::PANDD, a, Arg::Bits(bits))
    }

    pub fn fma(&mut self, a: Value, b: impl Into<Arg>, c: impl Into<Arg>) -> Value {
        self.push(Step::Fma { a, b: b.into(), c: c.into() })
    }

    pub fn shift_left(&mut self, a: Value, by: u8) -> Value {
        self.push(Step::Shift { way: opcodes::SHIFT_LEFT, by, a })
    }

    pub fn shift_right(&mut self, a: Value, by: u8) -> Value {
        self.push(Step::Shift { way: opcodes::SHIFT_RIGHT, by, a })
    }

    /// The mask of lanes where a float relation holds.
    pub fn holds(&mut self, a: Value, relation: u8, b: impl Into<Arg>) -> Value {
        self.push(Step::Compare { op: opcodes::CMPPS, imm: Some(relation), a, b: b.into() })
    }

    pub fn select(&mut self, mask: Value, yes: impl Into<Arg>, no: impl Into<Arg>) -> Value {
        self.push(Step::Select { mask, yes: yes.into(), no: no.into() })
    }

    pub fn round(&mut self, a: Value, how: u8) -> Value {
        self.one(opcodes::RNDSCALEPS, Some(how), a)
    }

    /// Horner's rule, highest power first.
    pub fn poly(&mut self, x: Value, c: &[f32]) -> Value {
        let mut y = self.fma(x, c[0], c[1]);
        for &c in &c[2..] {
            y = self.fma(y, x, c);
        }
        y
    }
}

impl From<Value> for Arg {
    fn from(v: Value) -> Arg {
        Arg::Value(v)
    }
}
