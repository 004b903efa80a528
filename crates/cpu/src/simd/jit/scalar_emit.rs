//! Machine code of scalar code: register allocation within each run of items between labels, and instruction selection.
//!
//! Of the values in registers, the one that is used last makes room for others (Belady's rule). All registers are free
//! at a label. The code keeps the frame's address in `rbx` and the caller's context in `r12`; `rax`, `rcx`, `rdx`, `r8`
//! and `r9` are free within an item.
#![forbid(unsafe_code)]

use crate::simd::jit::encode::*;
use crate::simd::jit::opcodes::{self, Opcode};
use crate::simd::jit::scalar_code::{
    CodeLabel, FrameOffset, IntegerCondition, IntegerOp, RegisterClass, ScalarAddress, ScalarCode,
    ScalarItem, ScalarOperation, ScalarType, ScalarValue,
};
use std::collections::HashMap;

/// Vector registers, which are numbered first, then those of [`GENERAL`].
const VECTORS: usize = 16;

/// General registers that hold values.
const GENERAL: [Gpr; 8] = [RSI, RDI, R10, R11, R13, R14, R15, RBP];

const REGISTERS: usize = VECTORS + GENERAL.len();

/// Largest frame, and largest displacement of an address.
const LARGEST_FRAME: usize = 1 << 20;

/// Addresses of the functions that the code calls.
#[derive(Clone, Copy)]
pub struct HostFunctions {
    /// `extern "C" fn(context, number) -> u32`.
    pub call: u64,
    /// `extern "C" fn(loop, to, a, b, c, count)`.
    pub tile: u64,
}

/// Machine code, and the bytes of its frame.
pub struct EmittedScalar {
    pub bytes: Vec<u8>,
    pub frame: usize,
}

/// Where a value is.
#[derive(Clone, Default)]
struct ValueSpot {
    register: Option<u8>,
    spilled: Option<FrameOffset>,
    /// Items that use the value, last one first.
    uses: Vec<usize>,
}

struct ScalarEmitter<'a> {
    code: &'a ScalarCode,
    host: HostFunctions,
    asm: Assembler,
    spots: Vec<ValueSpot>,
    registers: [Option<ScalarValue>; REGISTERS],
    free_spills: Vec<FrameOffset>,
    spills: Vec<FrameOffset>,
    frame: usize,
    labels: HashMap<CodeLabel, usize>,
    jumps: Vec<(Jump, CodeLabel)>,
    failures: Vec<Jump>,
    /// The pointer of the frame that `rax` holds.
    in_rax: Option<FrameOffset>,
    /// Indices and comparisons that are computed where their only user needs them.
    inlined: Vec<bool>,
}

/// Returns the machine code; `None` if the frame is too large.
pub fn emit(code: &ScalarCode, host: HostFunctions) -> Option<EmittedScalar> {
    let inlined = inlined_values(code);
    let mut e = ScalarEmitter {
        code,
        host,
        asm: Assembler::reading(),
        spots: uses(code, &inlined),
        registers: [None; REGISTERS],
        free_spills: Vec::new(),
        spills: Vec::new(),
        frame: code.frame,
        labels: HashMap::new(),
        jumps: Vec::new(),
        failures: Vec::new(),
        in_rax: None,
        inlined,
    };
    // push rbx, rbp, r12, r13, r14, r15; sub rsp, 8
    e.asm.raw(&[0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57, 0x48, 0x83, 0xec, 8]);
    e.asm.move_pointer(RBX, RDI);
    e.asm.move_pointer(R12, RSI);
    for (at, item) in code.items.iter().enumerate() {
        e.item(at, *item);
    }
    e.asm.zero(RAX);
    let end = e.asm.here();
    // add rsp, 8; pop r15, r14, r13, r12, rbp, rbx; ret
    e.asm.raw(&[0x48, 0x83, 0xc4, 8, 0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5d, 0x5b, 0xc3]);
    for failure in std::mem::take(&mut e.failures) {
        e.asm.land_at(failure, end);
    }
    for (jump, label) in std::mem::take(&mut e.jumps) {
        e.asm.land_at(jump, *e.labels.get(&label)?);
    }
    let frame = e.frame;
    (frame <= LARGEST_FRAME).then(|| EmittedScalar { bytes: e.asm.finish(), frame })
}

/// Returns the index of an address.
fn index_of(address: &ScalarAddress) -> Option<ScalarValue> {
    match *address {
        ScalarAddress::Pointer { index, .. } => index,
        ScalarAddress::Frame(_) => None,
    }
}

/// Calls `f` with each value that an item uses.
fn each_use(code: &ScalarCode, item: &ScalarItem, mut f: impl FnMut(ScalarValue)) {
    match item {
        ScalarItem::Define(value) => code.nodes[*value].args.iter().for_each(|&a| f(a)),
        ScalarItem::Store { value, to, .. } => {
            f(*value);
            index_of(to).into_iter().for_each(f);
        }
        ScalarItem::JumpUnless(value, _) => f(*value),
        _ => {}
    }
}

/// Returns the indices that one address uses, and the comparisons that one jump or selection uses, and nothing else.
fn inlined_values(code: &ScalarCode) -> Vec<bool> {
    let mut count = vec![0usize; code.nodes.len()];
    let mut fits = vec![false; code.nodes.len()];
    let is_compare = |v: ScalarValue| matches!(code.nodes[v].operation, ScalarOperation::Compare { .. });
    let is_index = |v: ScalarValue| matches!(code.nodes[v].operation, ScalarOperation::Index { .. });
    for item in &code.items {
        each_use(code, item, |value| count[value] += 1);
        match item {
            ScalarItem::Define(value) => match code.nodes[*value].operation {
                ScalarOperation::Load(load) => {
                    index_of(&code.loads[load].0).into_iter().for_each(|index| fits[index] = is_index(index));
                }
                ScalarOperation::Select => {
                    let condition = code.nodes[*value].args[0];
                    fits[condition] = is_compare(condition);
                }
                _ => {}
            },
            ScalarItem::Store { to, .. } => {
                index_of(to).into_iter().for_each(|index| fits[index] = is_index(index));
            }
            ScalarItem::JumpUnless(value, _) => fits[*value] = is_compare(*value),
            _ => {}
        }
    }
    count.iter().zip(fits).map(|(&count, fits)| count == 1 && fits).collect()
}

/// Returns a spot for each value, with its uses.
fn uses(code: &ScalarCode, inlined: &[bool]) -> Vec<ValueSpot> {
    let mut spots = vec![ValueSpot::default(); code.nodes.len()];
    for (at, item) in code.items.iter().enumerate().rev() {
        if matches!(item, ScalarItem::Define(value) if inlined[*value]) {
            continue;
        }
        each_use(code, item, |value| match inlined[value] {
            true => code.nodes[value].args.iter().for_each(|&a| spots[a].uses.push(at)),
            false => spots[value].uses.push(at),
        });
    }
    spots
}

/// Field of ModRM of an arithmetic shift to the right.
const SIGNED_SHIFT: u8 = 7;

/// Returns the field of ModRM of a shift.
fn shift_field(op: IntegerOp) -> u8 {
    match op {
        IntegerOp::ShiftLeft => 4,
        IntegerOp::ShiftRight => 5,
        _ => SIGNED_SHIFT,
    }
}

/// Returns the general register of a number.
fn general(r: u8) -> Option<Gpr> {
    (r as usize).checked_sub(VECTORS).map(|k| GENERAL[k])
}

fn register(r: u8) -> Rm {
    Rm::Reg(VectorReg(r))
}

/// Returns memory at `base + offset`.
fn memory(base: Gpr, offset: usize) -> Rm {
    Rm::Memory(MemoryAddress { base, index: None, offset: offset as i32 })
}

impl ScalarEmitter<'_> {
    fn item(&mut self, at: usize, item: ScalarItem) {
        let keeps_rax = match item {
            ScalarItem::Define(value) => self.keeps_rax(value),
            ScalarItem::Store { .. } => true,
            _ => false,
        };
        if !keeps_rax {
            self.in_rax = None;
        }
        match item {
            ScalarItem::Define(value) => self.define(at, value),
            ScalarItem::Store { value, to, scalar } => self.store(at, value, to, scalar),
            ScalarItem::Tile { run, args, to, count } => {
                self.spill_all(at);
                self.asm.load_immediate(RDI, run as usize as u64);
                for (register, from) in [(RSI, to), (RDX, args[0]), (RCX, args[1]), (R8, args[2])] {
                    self.asm.memory_form(&[0x8d], register, RBX, from as i32);
                }
                self.asm.load_immediate(R9, count as u64);
                self.asm.load_immediate(RAX, self.host.tile);
                self.asm.raw(&[0xff, 0xd0]);
            }
            ScalarItem::Call(call) => self.call(at, call),
            ScalarItem::CallIfChanged { call, pointer, known } => {
                self.spill_all(at);
                self.asm.load_address(RAX, RBX, pointer as i32);
                self.asm.load_address(RAX, RAX, 0);
                self.asm.memory_form(&[0x3b], RAX, RBX, known as i32);
                let same = self.asm.jump(JumpCondition::Equal);
                self.call(at, call);
                self.asm.land(same);
            }
            ScalarItem::Label(label) => {
                self.free_all();
                self.labels.insert(label, self.asm.here());
            }
            ScalarItem::Jump(label) => {
                let jump = self.asm.jump_always();
                self.jumps.push((jump, label));
            }
            ScalarItem::JumpUnless(value, label) => {
                let condition = self.test(at, value);
                self.release_used(at, value);
                let jump = self.asm.jump_if_not(condition.0);
                self.jumps.push((jump, label));
            }
        }
    }

    /// Whether the code of a node leaves `rax` as it is, or notes what it holds.
    fn keeps_rax(&self, value: ScalarValue) -> bool {
        matches!(
            self.code.nodes[value].operation,
            ScalarOperation::Constant(_)
                | ScalarOperation::Vector { .. }
                | ScalarOperation::MultiplyAdd { .. }
                | ScalarOperation::Blend { .. }
                | ScalarOperation::Load(_)
        )
    }

    /// Emits a call of the caller's function.
    fn call(&mut self, at: usize, call: usize) {
        self.spill_all(at);
        self.asm.move_pointer(RDI, R12);
        self.asm.load_immediate(RSI, call as u64);
        self.asm.load_immediate(RAX, self.host.call);
        // call rax; test eax, eax
        self.asm.raw(&[0xff, 0xd0, 0x85, 0xc0]);
        self.failures.push(self.asm.jump(JumpCondition::NotEqual));
    }

    /// Frees all registers: no value is used after a label.
    fn free_all(&mut self) {
        for value in std::mem::take(&mut self.registers).into_iter().flatten() {
            self.spots[value].register = None;
        }
        self.free_spills.clone_from(&self.spills);
    }

    /// Returns the item after `at` that uses a value next.
    fn next_use(&self, at: usize, value: ScalarValue) -> Option<usize> {
        self.spots[value].uses.iter().rev().copied().find(|&u| u > at)
    }

    /// Frees the register and the memory of a value that no item after `at` uses.
    fn release(&mut self, at: usize, value: ScalarValue) {
        let spot = &mut self.spots[value];
        while spot.uses.last().is_some_and(|&u| u <= at) {
            spot.uses.pop();
        }
        if spot.uses.is_empty() {
            if let Some(r) = spot.register.take() {
                self.registers[r as usize] = None;
            }
            self.free_spills.extend(spot.spilled.take());
        }
    }

    /// Stores the value of a register if it is used later, and frees the register.
    fn evict(&mut self, at: usize, r: u8) {
        let Some(value) = self.registers[r as usize].take() else { return };
        self.spots[value].register = None;
        let is_constant = matches!(self.code.nodes[value].operation, ScalarOperation::Constant(_));
        let is_used = self.spots[value].uses.first().is_some_and(|&last| last >= at);
        if is_constant || !is_used || self.spots[value].spilled.is_some() {
            return;
        }
        let to = self.free_spills.pop().unwrap_or_else(|| {
            self.spills.push(self.frame);
            self.frame += 16;
            self.frame - 16
        });
        self.spots[value].spilled = Some(to);
        match general(r) {
            Some(r) => self.asm.memory_form(&[0x89], r, RBX, to as i32),
            None => self.asm.xmm(opcodes::MOVSD_STORE, r, 0, memory(RBX, to), None),
        }
    }

    fn spill_all(&mut self, at: usize) {
        (0..REGISTERS as u8).for_each(|r| self.evict(at, r));
    }

    /// Returns a free register of a class that is not in the set `locked`.
    fn take(&mut self, at: usize, class: RegisterClass, locked: u32) -> u8 {
        let of_class = if class == RegisterClass::General { VECTORS..REGISTERS } else { 0..VECTORS };
        let all = || of_class.clone().map(|r| r as u8).filter(|r| locked >> *r & 1 == 0);
        if let Some(free) = all().find(|&r| self.registers[r as usize].is_none()) {
            return free;
        }
        let next = |r: &u8| {
            let value = self.registers[*r as usize];
            value.and_then(|v| self.next_use(at, v)).unwrap_or(usize::MAX)
        };
        let last = all().max_by_key(next).unwrap_or_default();
        self.evict(at, last);
        last
    }

    fn put(&mut self, value: ScalarValue, r: u8) {
        self.registers[r as usize] = Some(value);
        self.spots[value].register = Some(r);
    }

    /// Returns the register of a value, which is loaded if it has none.
    fn fetch(&mut self, at: usize, value: ScalarValue, locked: u32) -> u8 {
        if let Some(r) = self.spots[value].register {
            return r;
        }
        let r = self.take(at, self.code.class(value), locked);
        let from = self.spots[value].spilled.unwrap_or_default();
        match (self.constant(value), general(r)) {
            (Some(constant), _) => self.asm.xmm(opcodes::MOVUPS_LOAD, r, 0, constant, None),
            (None, Some(r)) => self.asm.load_address(r, RBX, from as i32),
            (None, None) => self.asm.xmm(opcodes::MOVSD_LOAD, r, 0, memory(RBX, from), None),
        }
        self.put(value, r);
        r
    }

    fn constant(&self, value: ScalarValue) -> Option<Rm> {
        match self.code.nodes[value].operation {
            ScalarOperation::Constant(bits) => Some(memory(RBX, self.code.constants[&bits])),
            _ => None,
        }
    }

    /// Returns a value as an operand that may be in memory.
    fn operand(&mut self, at: usize, value: ScalarValue, locked: u32) -> Rm {
        match (self.spots[value].register, self.constant(value)) {
            (None, Some(constant)) => constant,
            _ => register(self.fetch(at, value, locked)),
        }
    }

    fn define(&mut self, at: usize, value: ScalarValue) {
        let code = self.code;
        let node = &code.nodes[value];
        match (node.operation, &node.args[..]) {
            // A constant is loaded where it is used.
            (ScalarOperation::Constant(_), _) => {}
            _ if self.inlined[value] => {}
            (ScalarOperation::MultiplyAdd { op, signs }, &[a, b, c]) => {
                self.multiply_add(at, value, Opcode(op.0, op.1, op.2 + signs), [a, b, c]);
            }
            (ScalarOperation::Blend { op }, &[mask, yes, no]) => {
                let mask_in = self.fetch(at, mask, 0);
                let no_in = self.fetch(at, no, 1 << mask_in);
                let yes_in = self.operand(at, yes, 1 << mask_in | 1 << no_in);
                let to = self.result(at, value, &[mask, yes, no]);
                self.asm.xmm(op, to, no_in, yes_in, Some(mask_in << 4));
            }
            (ScalarOperation::Vector { op, imm }, &[a, b]) => {
                let a_in = self.fetch(at, a, 0);
                let b_in = self.operand(at, b, 1 << a_in);
                let to = self.result(at, value, &[a, b]);
                self.asm.xmm(op, to, a_in, b_in, imm);
            }
            (ScalarOperation::Vector { op, imm }, &[a]) => {
                let a_in = self.operand(at, a, 0);
                let to = self.result(at, value, &[a]);
                self.asm.xmm(op, to, 0, a_in, imm);
            }
            (ScalarOperation::ToVector, &[a]) => {
                let (from, _) = self.in_general(at, a, 0, RAX);
                let to = self.result(at, value, &[a]);
                self.asm.xmm(opcodes::MOVQ_LOAD, to, 0, register(from.0), None);
            }
            (ScalarOperation::Int64ToDouble, &[a]) => {
                self.move_general(at, RAX, a);
                let to = self.result(at, value, &[a]);
                self.asm.xmm(opcodes::PXORD, to, to, register(to), None);
                self.asm.xmm(opcodes::CVTSI2SD, to, to, register(RAX.0), None);
            }
            (ScalarOperation::Load(load), _) => self.load(at, value, load),
            _ => self.integer(at, value),
        }
    }

    /// Frees the operands that are not used after `at`, and returns the register of the result.
    fn result(&mut self, at: usize, value: ScalarValue, args: &[ScalarValue]) -> u8 {
        args.iter().for_each(|&a| self.release_used(at, a));
        let to = self.take(at, self.code.class(value), 0);
        self.put(value, to);
        to
    }

    /// Emits a fused multiply-add, whose result replaces the addend.
    fn multiply_add(&mut self, at: usize, value: ScalarValue, op: Opcode, [a, b, c]: [ScalarValue; 3]) {
        let a_in = self.fetch(at, a, 0);
        let b_in = self.operand(at, b, 1 << a_in);
        let locked: u32 = match b_in {
            Rm::Reg(VectorReg(b)) => 1 << a_in | 1 << b,
            _ => 1 << a_in,
        };
        let c_in = self.operand(at, c, locked);
        if c != a && c != b {
            self.release(at, c);
        }
        let to = match c_in {
            // The addend's register, if it is free now.
            Rm::Reg(VectorReg(r)) if self.registers[r as usize].is_none() => r,
            _ => {
                let keep = if let Rm::Reg(VectorReg(r)) = c_in { locked | 1 << r } else { locked };
                let to = self.take(at, RegisterClass::Vector, keep);
                self.asm.xmm(opcodes::MOVUPS_LOAD, to, 0, c_in, None);
                to
            }
        };
        self.asm.xmm(op, to, a_in, b_in, None);
        [a, b, c].iter().for_each(|&v| self.release(at, v));
        self.put(value, to);
    }

    /// Emits a move of an integer or bool to a register that is free within the item.
    fn move_general(&mut self, at: usize, to: Gpr, value: ScalarValue) {
        if let ScalarOperation::Constant(bits) = self.code.nodes[value].operation {
            return self.asm.load_immediate(to, bits);
        }
        let r = self.fetch(at, value, 0);
        if let Some(r) = general(r) {
            self.asm.move_pointer(to, r);
        }
    }

    /// Returns the register of an integer or bool; a constant is moved to `otherwise`.
    fn in_general(&mut self, at: usize, value: ScalarValue, locked: u32, otherwise: Gpr) -> (Gpr, u32) {
        if let ScalarOperation::Constant(bits) = self.code.nodes[value].operation {
            self.asm.load_immediate(otherwise, bits);
            return (otherwise, 0);
        }
        let r = self.fetch(at, value, locked);
        (general(r).unwrap_or(otherwise), 1 << r)
    }

    /// Returns the register of a result that starts as a copy of operand `a`: that of `a` itself if nothing uses it later.
    fn claim(&mut self, at: usize, value: ScalarValue, [a, b]: [ScalarValue; 2], locked: u32) -> Gpr {
        let is_last = a != b && self.spots[a].uses.first().is_some_and(|&last| last <= at);
        let to = match self.code.class(a) {
            RegisterClass::General if is_last => {
                let r = self.fetch(at, a, locked);
                self.release(at, a);
                r
            }
            _ => {
                let (from, own) = self.in_general(at, a, locked, RAX);
                let to = self.take(at, RegisterClass::General, locked | own);
                general(to).into_iter().for_each(|to| self.asm.move_pointer(to, from));
                to
            }
        };
        self.put(value, to);
        general(to).unwrap_or(RAX)
    }

    /// Emits an operation whose result is in a general register.
    fn integer(&mut self, at: usize, value: ScalarValue) {
        let code = self.code;
        let node = &code.nodes[value];
        let args = &node.args;
        match node.operation {
            ScalarOperation::ToGeneral => {
                let r = self.fetch(at, args[0], 0);
                self.asm.xmm(opcodes::MOVQ_STORE, r, 0, register(RAX.0), None);
            }
            ScalarOperation::Compare { condition, wide } => {
                self.compare(at, value, wide);
                // setcc al; movzx eax, al; neg eax
                self.asm.raw(&[0x0f, 0x90 | condition.0, 0xc0, 0x0f, 0xb6, 0xc0, 0xf7, 0xd8]);
            }
            ScalarOperation::Select => {
                let condition = self.test(at, args[0]);
                let (yes, locked) = self.in_general(at, args[1], 0, RCX);
                let to = self.claim(at, value, [args[2], args[1]], locked);
                // cmovcc to, yes
                self.asm.register_form(&[0x0f, 0x40 | condition.0], to, yes);
                return args.iter().for_each(|&a| self.release_used(at, a));
            }
            ScalarOperation::Integer { op, wide } if self.binary(at, value, op, wide) => {
                return args.iter().for_each(|&a| self.release_used(at, a));
            }
            operation => {
                self.move_general(at, RAX, args[0]);
                self.unary(at, operation, args);
            }
        }
        let to = self.result(at, value, args);
        if let Some(to) = general(to) {
            self.asm.move_pointer(to, RAX);
        }
    }

    /// Emits an operation on `rax`.
    fn unary(&mut self, at: usize, operation: ScalarOperation, args: &[ScalarValue]) {
        match operation {
            ScalarOperation::Extend { signed } => self.extend(RAX, false, signed),
            // popcnt or lzcnt of eax or rax
            ScalarOperation::CountBits { wide, leading } => {
                self.asm.raw(if wide { &[0xf3, 0x48, 0x0f] } else { &[0xf3, 0x0f] });
                self.asm.raw(&[if leading { 0xbd } else { 0xb8 }, 0xc0]);
            }
            ScalarOperation::Divide { wide, signed, remainder } => {
                match self.constant_divisor(args[1], wide, signed) {
                    Some(divisor) => self.divide_by(divisor, signed, remainder),
                    None => {
                        self.move_general(at, RCX, args[1]);
                        self.divide(wide, signed, remainder);
                    }
                }
            }
            ScalarOperation::Index { wide, signed, max, scale } => self.index(wide, signed, max, scale),
            ScalarOperation::Integer { op, wide } => {
                self.move_general(at, RCX, args[1]);
                self.on_rax(op, wide);
            }
            _ => {}
        }
    }

    /// Emits `to = to op b`, where the operation is that of opcode bytes, or of a field of ModRM with a constant.
    fn with_operand(&mut self, wide: bool, (opcode, field): (&[u8], u8), to: Gpr, b: (ScalarValue, Gpr)) {
        let (value, b) = b;
        match self.immediate(value, wide) {
            Some(constant) => {
                self.asm.integer_form(wide, &[0x81], Gpr(field), to);
                self.asm.raw(&constant.to_le_bytes());
            }
            None => self.asm.integer_form(wide, opcode, to, b),
        }
    }

    /// Returns a constant that instructions can hold.
    fn immediate(&self, value: ScalarValue, wide: bool) -> Option<i32> {
        match self.code.nodes[value].operation {
            ScalarOperation::Constant(bits) if wide => i32::try_from(bits as i64).ok(),
            ScalarOperation::Constant(bits) => Some(bits as i32),
            _ => None,
        }
    }

    /// Returns the register of a second operand, unless it is a constant that the instruction holds.
    fn second(&mut self, at: usize, value: ScalarValue, wide: bool, locked: u32) -> (Gpr, u32) {
        match self.immediate(value, wide) {
            Some(_) => (RCX, 0),
            None => self.in_general(at, value, locked, RCX),
        }
    }

    /// Emits a binary op in place of its first operand; returns whether the op has such a form.
    fn binary(&mut self, at: usize, value: ScalarValue, op: IntegerOp, wide: bool) -> bool {
        let [a, b] = [self.code.nodes[value].args[0], self.code.nodes[value].args[1]];
        let simple: (&[u8], u8) = match op {
            IntegerOp::Add => (&[0x03], 0),
            IntegerOp::Or => (&[0x0b], 1),
            IntegerOp::And => (&[0x23], 4),
            IntegerOp::Subtract => (&[0x2b], 5),
            IntegerOp::Xor => (&[0x33], 6),
            IntegerOp::ShiftLeft | IntegerOp::ShiftRight | IntegerOp::ShiftRightSigned => {
                let ScalarOperation::Constant(count) = self.code.nodes[b].operation else { return false };
                let to = self.claim(at, value, [a, b], 0);
                self.shift_by(shift_field(op), wide, to, count);
                return true;
            }
            IntegerOp::Multiply => {
                let (from, locked) = self.in_general(at, b, 0, RCX);
                let to = self.claim(at, value, [a, b], locked);
                self.asm.integer_form(wide, &[0x0f, 0xaf], to, from);
                return true;
            }
            IntegerOp::Choose(_) => return false,
        };
        let (from, locked) = self.second(at, b, wide, 0);
        let to = self.claim(at, value, [a, b], locked);
        self.with_operand(wide, simple, to, (b, from));
        true
    }

    /// Emits a shift by a constant.
    fn shift_by(&mut self, field: u8, wide: bool, to: Gpr, count: u64) {
        let bits: u64 = if wide { 64 } else { 32 };
        let count = if wide { count } else { u64::from(count as u32) };
        if count >= bits && field != SIGNED_SHIFT {
            return self.asm.zero(to);
        }
        self.asm.integer_form(wide, &[0xc1], Gpr(field), to);
        self.asm.raw(&[count.min(bits - 1) as u8]);
    }

    /// Emits `rax = rax op rcx` for choices and shifts.
    fn on_rax(&mut self, op: IntegerOp, wide: bool) {
        if let IntegerOp::Choose(condition) = op {
            // cmp rax, rcx; cmovcc rax, rcx, unless the condition holds
            self.asm.integer_form(wide, &[0x3b], RAX, RCX);
            return self.asm.register_form(&[0x0f, 0x40 | condition.0 ^ 1], RAX, RCX);
        }
        let (bits, kind): (u8, u8) = (if wide { 64 } else { 32 }, shift_field(op));
        if kind == SIGNED_SHIFT {
            // A larger count is limited: cmp rcx, rdx; cmova rcx, rdx
            self.asm.load_immediate(RDX, u64::from(bits - 1));
            self.asm.integer_form(wide, &[0x3b], RCX, RDX);
            self.asm.register_form(&[0x0f, 0x47], RCX, RDX);
            return self.asm.integer_form(wide, &[0xd3], Gpr(kind), RAX);
        }
        self.asm.integer_form(wide, &[0xd3], Gpr(kind), RAX);
        // All ones if the count is below the width: cmp rcx, rdx; sbb rdx, rdx
        self.asm.load_immediate(RDX, u64::from(bits));
        self.asm.integer_form(wide, &[0x3b], RCX, RDX);
        self.asm.register_form(&[0x1b], RDX, RDX);
        self.asm.integer_form(wide, &[0x23], RAX, RDX);
    }

    /// Emits the comparison of a value's operands.
    fn compare(&mut self, at: usize, value: ScalarValue, wide: bool) {
        let [a, b] = [self.code.nodes[value].args[0], self.code.nodes[value].args[1]];
        let (first, locked) = self.in_general(at, a, 0, RAX);
        let (second, _) = self.second(at, b, wide, locked);
        self.with_operand(wide, (&[0x3b], 7), first, (b, second));
    }

    /// Sets the processor's flags by a bool; returns the condition that holds if it is true.
    fn test(&mut self, at: usize, value: ScalarValue) -> IntegerCondition {
        const NOT_ZERO: IntegerCondition = IntegerCondition(5);
        match self.code.nodes[value].operation {
            ScalarOperation::Compare { condition, wide } if self.inlined[value] => {
                self.compare(at, value, wide);
                return condition;
            }
            _ if self.code.class(value) == RegisterClass::Vector => {
                let r = self.fetch(at, value, 0);
                self.asm.xmm(opcodes::MOVD_STORE, r, 0, register(RAX.0), None);
            }
            _ => self.move_general(at, RAX, value),
        }
        // test eax, eax
        self.asm.raw(&[0x85, 0xc0]);
        NOT_ZERO
    }

    /// Frees what an operand used: its own operands, if it was computed by its user.
    fn release_used(&mut self, at: usize, value: ScalarValue) {
        let code = self.code;
        match self.inlined[value] {
            true => code.nodes[value].args.iter().for_each(|&a| self.release(at, a)),
            false => self.release(at, value),
        }
    }

    /// Emits the extension of a 32-bit integer to 64 bits.
    fn extend(&mut self, r: Gpr, wide: bool, signed: bool) {
        match (wide, signed) {
            // movsxd r, r32
            (false, true) => self.asm.register_form(&[0x63], r, r),
            // mov r32, r32
            (false, false) => self.asm.integer_form(false, &[0x8b], r, r),
            _ => {}
        }
    }

    /// Emits the quotient or remainder of `rax` and a constant of 32 bits, by a product with its inverse.
    fn divide_by(&mut self, divisor: i64, signed: bool, remainder: bool) {
        self.extend(RAX, false, signed);
        // mov r8, rax; mov r9, rax; sar r9, 63: dividend, and its sign
        self.asm.move_pointer(R8, RAX);
        if signed {
            self.asm.move_pointer(R9, RAX);
            self.asm.raw(&[0x49, 0xc1, 0xf9, 63]);
            // xor rax, r9; sub rax, r9: absolute value
            self.asm.raw(&[0x4c, 0x31, 0xc8, 0x4c, 0x29, 0xc8]);
        }
        // For numbers below 2³² the upper half of the product with ⌈2⁶⁴ / d⌉ is the quotient.
        let size = divisor.unsigned_abs();
        self.asm.load_immediate(RCX, u64::MAX / size + 1);
        // mul rcx
        self.asm.raw(&[0x48, 0xf7, 0xe1]);
        if signed {
            // xor rdx, r9; sub rdx, r9: the dividend's sign
            self.asm.raw(&[0x4c, 0x31, 0xca, 0x4c, 0x29, 0xca]);
            if divisor < 0 {
                // neg rdx
                self.asm.raw(&[0x48, 0xf7, 0xda]);
            }
        }
        if !remainder {
            return self.asm.move_pointer(RAX, RDX);
        }
        self.asm.load_immediate(RCX, divisor as u64);
        self.asm.register_form(&[0x0f, 0xaf], RDX, RCX);
        self.asm.move_pointer(RAX, R8);
        // sub rax, rdx
        self.asm.raw(&[0x48, 0x29, 0xd0]);
    }

    /// Returns the divisor of a 32-bit division if it is a constant with an inverse.
    fn constant_divisor(&self, b: ScalarValue, wide: bool, signed: bool) -> Option<i64> {
        let ScalarOperation::Constant(bits) = self.code.nodes[b].operation else { return None };
        let divisor = if signed { i64::from(bits as i32) } else { i64::from(bits as u32) };
        (!wide && divisor.unsigned_abs() > 1).then_some(divisor)
    }

    /// Emits `rax = rax / rcx`, or the remainder.
    fn divide(&mut self, wide: bool, signed: bool, remainder: bool) {
        [RAX, RCX].iter().for_each(|&r| self.extend(r, wide, signed));
        // test rcx, rcx
        self.asm.register_form(&[0x85], RCX, RCX);
        let by_zero = self.asm.jump(JumpCondition::Equal);
        let mut done = Vec::new();
        if signed && wide {
            // The processor traps at the smallest number divided by −1: cmp rcx, −1.
            self.asm.raw(&[0x48, 0x83, 0xf9, 0xff]);
            let others = self.asm.jump(JumpCondition::NotEqual);
            match remainder {
                true => self.asm.zero(RAX),
                // neg rax
                false => self.asm.raw(&[0x48, 0xf7, 0xd8]),
            }
            done.push(self.asm.jump_always());
            self.asm.land(others);
        }
        match signed {
            // cqo; idiv rcx
            true => self.asm.raw(&[0x48, 0x99, 0x48, 0xf7, 0xf9]),
            // xor edx, edx; div rcx
            false => self.asm.raw(&[0x31, 0xd2, 0x48, 0xf7, 0xf1]),
        }
        if remainder {
            self.asm.move_pointer(RAX, RDX);
        }
        done.push(self.asm.jump_always());
        self.asm.land(by_zero);
        if !remainder {
            self.asm.load_immediate(RAX, u64::MAX);
        }
        done.into_iter().for_each(|jump| self.asm.land(jump));
    }

    /// Emits `rax = clamp(rax, 0, max) · scale`.
    fn index(&mut self, wide: bool, signed: bool, max: u32, scale: u32) {
        self.extend(RAX, wide, signed);
        self.asm.zero(RCX);
        // test rax, rax; cmovs rax, rcx
        self.asm.register_form(&[0x85], RAX, RAX);
        self.asm.register_form(&[0x0f, 0x48], RAX, RCX);
        self.asm.load_immediate(RCX, u64::from(max));
        // cmp rax, rcx; cmovg rax, rcx
        self.asm.register_form(&[0x3b], RAX, RCX);
        self.asm.register_form(&[0x0f, 0x4f], RAX, RCX);
        self.asm.load_immediate(RCX, u64::from(scale));
        self.asm.register_form(&[0x0f, 0xaf], RAX, RCX);
    }

    /// Returns base register and offset of an address.
    fn address(&mut self, at: usize, address: ScalarAddress) -> (Gpr, usize) {
        match address {
            ScalarAddress::Frame(offset) => (RBX, offset),
            ScalarAddress::Pointer { pointer, displacement, index } => {
                if let Some(index) = index {
                    self.index_in_rdx(at, index);
                    self.in_rax = None;
                }
                if self.in_rax != Some(pointer) {
                    self.asm.load_address(RAX, RBX, pointer as i32);
                }
                self.in_rax = Some(pointer);
                if index.is_some() {
                    self.asm.register_form(&[0x03], RAX, RDX);
                    self.in_rax = None;
                }
                (RAX, displacement)
            }
        }
    }

    /// Emits code that moves an index to `rdx`.
    fn index_in_rdx(&mut self, at: usize, index: ScalarValue) {
        let code = self.code;
        match code.nodes[index].operation {
            ScalarOperation::Index { wide, signed, max, scale } if self.inlined[index] => {
                self.move_general(at, RAX, code.nodes[index].args[0]);
                self.index(wide, signed, max, scale);
                self.asm.move_pointer(RDX, RAX);
            }
            _ => self.move_general(at, RDX, index),
        }
    }

    fn load(&mut self, at: usize, value: ScalarValue, load: usize) {
        let (address, scalar) = self.code.loads[load];
        let (base, offset) = self.address(at, address);
        index_of(&address).into_iter().for_each(|index| self.release_used(at, index));
        let to = self.result(at, value, &[]);
        let Some(to) = general(to) else {
            let op = if scalar == ScalarType::F64 { opcodes::MOVSD_LOAD } else { opcodes::MOVSS_LOAD };
            return self.asm.xmm(op, to, 0, memory(base, offset), None);
        };
        match scalar {
            ScalarType::Bool => {
                // movzx, then neg
                self.asm.memory_form(&[0x0f, 0xb6], RCX, base, offset as i32);
                self.asm.raw(&[0x48, 0xf7, 0xd9]);
                self.asm.move_pointer(to, RCX);
            }
            ScalarType::I64 => self.asm.load_address(to, base, offset as i32),
            // movsxd: the upper half is arbitrary.
            _ => self.asm.memory_form(&[0x63], to, base, offset as i32),
        }
    }

    fn store(&mut self, at: usize, value: ScalarValue, to: ScalarAddress, scalar: ScalarType) {
        // A pointer that is replaced.
        if matches!((to, self.in_rax), (ScalarAddress::Frame(at), Some(held)) if at == held) {
            self.in_rax = None;
        }
        let (base, offset) = match scalar {
            ScalarType::F32 | ScalarType::F64 => {
                let (base, offset) = self.address(at, to);
                let from = self.fetch(at, value, 0);
                let op = if scalar == ScalarType::F64 { opcodes::MOVSD_STORE } else { opcodes::MOVSS_STORE };
                return self.stored(at, value, to, |asm| asm.xmm(op, from, 0, memory(base, offset), None));
            }
            _ => self.address(at, to),
        };
        let (from, _) = self.in_general(at, value, 0, RCX);
        self.stored(at, value, to, |asm| match scalar {
            ScalarType::Bool => {
                // and ecx, 1; mov byte, cl
                asm.move_pointer(RCX, from);
                asm.raw(&[0x83, 0xe1, 1]);
                asm.memory_form(&[0x88], RCX, base, offset as i32);
            }
            ScalarType::I64 => asm.memory_form(&[0x89], from, base, offset as i32),
            _ => asm.narrow_store(from, base, offset as i32),
        });
    }

    /// Emits a store, and frees what it used.
    fn stored(
        &mut self,
        at: usize,
        value: ScalarValue,
        to: ScalarAddress,
        emit: impl FnOnce(&mut Assembler),
    ) {
        emit(&mut self.asm);
        self.release(at, value);
        index_of(&to).into_iter().for_each(|index| self.release_used(at, index));
    }
}
