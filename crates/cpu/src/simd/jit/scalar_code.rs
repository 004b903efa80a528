//! Scalar code: single numbers in SSA form, with jumps, calls and a memory frame; the form of loops over small arrays
//! before register allocation.
//!
//! Floats are in the low lane of vector registers, integers in general registers. Bools are in either, as 32 bits that
//! are all ones or all zeros. Higher bits of a register are arbitrary. A value is defined and used between two labels; what is needed elsewhere is stored in the
//! frame.
#![forbid(unsafe_code)]

use crate::simd::jit::opcodes::Opcode;
use crate::simd::level::TileFn;
use smallvec::SmallVec;
use std::collections::HashMap;

/// Result of a node, by the node's index.
pub type ScalarValue = usize;

/// Byte offset in the frame.
pub type FrameOffset = usize;

/// Jump target.
pub type CodeLabel = usize;

/// Form of a number in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ScalarType {
    /// A bool: one byte, 0 or 1.
    Bool,
    F32,
    F64,
    /// An integer of 32 bits.
    I32,
    /// An integer of 64 bits.
    I64,
}

impl ScalarType {
    /// Returns the size in bytes.
    pub fn bytes(self) -> usize {
        match self {
            ScalarType::Bool => 1,
            ScalarType::F32 | ScalarType::I32 => 4,
            ScalarType::F64 | ScalarType::I64 => 8,
        }
    }

    /// Whether numbers of this form are loaded to vector registers.
    fn is_float(self) -> bool {
        matches!(self, ScalarType::F32 | ScalarType::F64)
    }
}

/// Memory of a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScalarAddress {
    /// In the frame.
    Frame(FrameOffset),
    /// `displacement` bytes after the pointer at `pointer` in the frame, plus the value `index`, if any.
    Pointer { pointer: FrameOffset, displacement: usize, index: Option<ScalarValue> },
}

/// Registers that hold a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegisterClass {
    Vector,
    General,
    /// A constant, which can be read as either.
    Constant,
}

/// A binary op of integers, without overflow checks. Shifts by the width or more give 0, or the sign.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IntegerOp {
    Add,
    Subtract,
    Multiply,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
    ShiftRightSigned,
    /// The first operand if the condition holds, else the second.
    Choose(IntegerCondition),
}

/// Condition of integers: a condition code of the processor, whose lowest bit inverts it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IntegerCondition(pub u8);

/// What a node computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ScalarOperation {
    /// These 64 bits. Constants of 32 bits are repeated.
    Constant(u64),
    /// A vector instruction with one or two operands.
    Vector {
        op: Opcode,
        imm: Option<u8>,
    },
    /// `±(a · b) ± c`, rounded once. `signs`: see [`crate::simd::jit::opcodes::MINUS_PRODUCT`].
    MultiplyAdd {
        op: Opcode,
        signs: u8,
    },
    /// `(mask, yes, no)`: selects bitwise by the sign of each lane of the mask.
    Blend {
        op: Opcode,
    },
    /// A bool or an integer in the other class of registers.
    ToVector,
    ToGeneral,
    /// A binary op of integers of 64 bits (`wide`) or 32.
    Integer {
        op: IntegerOp,
        wide: bool,
    },
    /// 32-bit integer to 64 bits.
    Extend {
        signed: bool,
    },
    /// Whether a condition of two integers holds.
    Compare {
        condition: IntegerCondition,
        wide: bool,
    },
    /// `(bool, yes, no)` of integers or bools.
    Select,
    /// Quotient, rounded toward zero, or remainder of integers. Dividing by zero gives −1 (all ones), with the dividend
    /// as the remainder.
    Divide {
        wide: bool,
        signed: bool,
        remainder: bool,
    },
    /// Number of set bits of an integer, or of zeros before them.
    CountBits {
        wide: bool,
        leading: bool,
    },
    /// 64-bit integer to f64.
    Int64ToDouble,
    /// `clamp(i, 0, max) · scale` as a 64-bit integer.
    Index {
        wide: bool,
        signed: bool,
        max: u32,
        scale: u32,
    },
    /// The number at an address, which is in the list of loads.
    Load(usize),
}

/// A node: an operation and its operands.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ScalarNode {
    pub operation: ScalarOperation,
    pub args: SmallVec<[ScalarValue; 3]>,
}

/// One item of scalar code, in order of execution.
#[derive(Clone, Copy, Debug)]
pub enum ScalarItem {
    /// Computes a node.
    Define(ScalarValue),
    Store {
        value: ScalarValue,
        to: ScalarAddress,
        scalar: ScalarType,
    },
    /// Calls a vector loop on `count` numbers in the frame.
    Tile {
        run: TileFn,
        args: [FrameOffset; 3],
        to: FrameOffset,
        count: usize,
    },
    /// Calls the caller's function with this number; if it returns nonzero, so does the code.
    Call(usize),
    /// Calls the caller's function if the word at the pointer in the frame is not the one in the frame.
    CallIfChanged {
        call: usize,
        pointer: FrameOffset,
        known: FrameOffset,
    },
    Label(CodeLabel),
    Jump(CodeLabel),
    /// Jumps if a bool is false.
    JumpUnless(ScalarValue, CodeLabel),
}

/// Scalar code under construction.
#[derive(Default)]
pub struct ScalarCode {
    pub nodes: Vec<ScalarNode>,
    pub items: Vec<ScalarItem>,
    /// ScalarAddress and form of each [`ScalarOperation::Load`].
    pub loads: Vec<(ScalarAddress, ScalarType)>,
    /// Where constants are in the frame. They have 16 bytes each.
    pub constants: HashMap<u64, FrameOffset>,
    /// Bytes of the frame in use.
    pub frame: usize,
    /// Bytes of the frame that calls and [`ScalarAddress::Pointer`] read: offset and count.
    pub visible: Vec<(FrameOffset, usize)>,
    labels: usize,
    /// Nodes computed since the last label, except loads.
    known: HashMap<ScalarNode, ScalarValue>,
}

impl ScalarCode {
    /// Reserves bytes of the frame, aligned to 16.
    pub fn reserve(&mut self, bytes: usize) -> FrameOffset {
        let at = self.frame;
        self.frame = (at + bytes).next_multiple_of(16);
        at
    }

    /// Returns a new label.
    pub fn label(&mut self) -> CodeLabel {
        self.labels += 1;
        self.labels - 1
    }

    /// Makes the next item the target of jumps to `label`. Values from before cannot be used after it.
    pub fn place(&mut self, label: CodeLabel) {
        self.known.clear();
        self.items.push(ScalarItem::Label(label));
    }

    /// Returns the value of an operation, which is computed here unless it is known.
    pub fn define(&mut self, operation: ScalarOperation, args: &[ScalarValue]) -> ScalarValue {
        let node = ScalarNode { operation, args: args.iter().copied().collect() };
        if let Some(&value) = self.known.get(&node) {
            return value;
        }
        self.nodes.push(node.clone());
        let value = self.nodes.len() - 1;
        self.known.insert(node, value);
        self.items.push(ScalarItem::Define(value));
        value
    }

    /// Returns the number that is at an address now.
    pub fn load(&mut self, from: ScalarAddress, scalar: ScalarType) -> ScalarValue {
        self.loads.push((from, scalar));
        let args = match from {
            ScalarAddress::Pointer { index: Some(index), .. } => SmallVec::from_slice(&[index]),
            _ => SmallVec::new(),
        };
        self.nodes.push(ScalarNode { operation: ScalarOperation::Load(self.loads.len() - 1), args });
        self.items.push(ScalarItem::Define(self.nodes.len() - 1));
        self.nodes.len() - 1
    }

    pub fn store(&mut self, value: ScalarValue, to: ScalarAddress, scalar: ScalarType) {
        let value = if scalar.is_float() { self.vector(value) } else { self.general(value) };
        self.items.push(ScalarItem::Store { value, to, scalar });
    }

    /// Returns the registers that hold a value.
    pub fn class(&self, value: ScalarValue) -> RegisterClass {
        match self.nodes[value].operation {
            ScalarOperation::Constant(_) => RegisterClass::Constant,
            ScalarOperation::Load(load) if !self.loads[load].1.is_float() => RegisterClass::General,
            ScalarOperation::ToGeneral
            | ScalarOperation::Integer { .. }
            | ScalarOperation::Extend { .. }
            | ScalarOperation::Compare { .. }
            | ScalarOperation::Select
            | ScalarOperation::Divide { .. }
            | ScalarOperation::CountBits { .. }
            | ScalarOperation::Index { .. } => RegisterClass::General,
            ScalarOperation::Vector { .. }
            | ScalarOperation::MultiplyAdd { .. }
            | ScalarOperation::Blend { .. }
            | ScalarOperation::ToVector
            | ScalarOperation::Int64ToDouble
            | ScalarOperation::Load(_) => RegisterClass::Vector,
        }
    }

    /// Returns a value in a vector register.
    pub fn vector(&mut self, value: ScalarValue) -> ScalarValue {
        match self.class(value) {
            RegisterClass::General => self.define(ScalarOperation::ToVector, &[value]),
            _ => value,
        }
    }

    /// Returns a value in a general register.
    pub fn general(&mut self, value: ScalarValue) -> ScalarValue {
        match self.class(value) {
            RegisterClass::Vector => self.define(ScalarOperation::ToGeneral, &[value]),
            _ => value,
        }
    }

    /// Returns a constant of 32 bits.
    pub fn word(&mut self, bits: u32) -> ScalarValue {
        self.double(u64::from(bits) << 32 | u64::from(bits))
    }

    /// Returns a constant of 64 bits.
    pub fn double(&mut self, bits: u64) -> ScalarValue {
        if !self.constants.contains_key(&bits) {
            let at = self.reserve(16);
            self.constants.insert(bits, at);
        }
        self.define(ScalarOperation::Constant(bits), &[])
    }

    /// Returns the result of a vector instruction with two operands.
    pub fn two(&mut self, op: Opcode, a: ScalarValue, b: ScalarValue) -> ScalarValue {
        let (a, b) = (self.vector(a), self.vector(b));
        self.define(ScalarOperation::Vector { op, imm: None }, &[a, b])
    }

    /// Returns the result of a vector instruction with one operand.
    pub fn one(&mut self, op: Opcode, imm: Option<u8>, a: ScalarValue) -> ScalarValue {
        let a = self.vector(a);
        self.define(ScalarOperation::Vector { op, imm }, &[a])
    }

    /// Removes stores that nothing reads, and nodes that nothing uses.
    pub fn remove_unused(&mut self) {
        loop {
            let before = self.items.len();
            self.remove_unused_nodes();
            self.remove_unread_stores();
            if self.items.len() == before {
                return;
            }
        }
    }

    fn remove_unused_nodes(&mut self) {
        let mut used = vec![false; self.nodes.len()];
        let mut kept = Vec::with_capacity(self.items.len());
        for item in self.items.drain(..).rev() {
            match item {
                ScalarItem::Define(value) if !used[value] => continue,
                ScalarItem::Define(value) => self.nodes[value].args.iter().for_each(|&a| used[a] = true),
                ScalarItem::Store { value, to, .. } => {
                    used[value] = true;
                    if let ScalarAddress::Pointer { index: Some(index), .. } = to {
                        used[index] = true;
                    }
                }
                ScalarItem::JumpUnless(value, _) => used[value] = true,
                _ => {}
            }
            kept.push(item);
        }
        kept.reverse();
        self.items = kept;
    }

    fn remove_unread_stores(&mut self) {
        let mut read = vec![false; self.frame];
        let mut mark = |at: FrameOffset, bytes: usize| read[at..at + bytes].fill(true);
        self.visible.iter().for_each(|&(at, bytes)| mark(at, bytes));
        for item in &self.items {
            match *item {
                ScalarItem::Define(value) => {
                    if let ScalarOperation::Load(load) = self.nodes[value].operation
                        && let (ScalarAddress::Frame(at), scalar) = self.loads[load]
                    {
                        mark(at, scalar.bytes());
                    }
                }
                ScalarItem::Tile { args, count, .. } => args.iter().for_each(|&at| mark(at, 8 * count)),
                _ => {}
            }
        }
        self.items.retain(|item| match *item {
            ScalarItem::Store { to: ScalarAddress::Frame(at), scalar, .. } => {
                read[at..at + scalar.bytes()].iter().any(|&is_read| is_read)
            }
            _ => true,
        });
    }
}
