//! JIT register allocation and loop structure: turns steps (one virtual register each) into a machine-code loop.
//!
//! The main loop is unrolled by up to four vectors, as far as registers allow. Copies of each step are interleaved,
//! since one chain of dependent instructions would leave the execution units idle most of the time. Registers that
//! remain hold the accumulators of a reduction along the loop, if one iteration covers all of them, and then the most
//! used constants. A second loop processes the tail one vector at a time; the last vector uses masked loads and stores.
//! AVX2 can mask 32-bit elements only: a tail of narrower elements is left to the caller, which copies it to padded
//! buffers.
#![forbid(unsafe_code)]

use crate::simd::jit::encode::*;
use crate::simd::jit::opcodes;
use crate::simd::jit::opcodes::Opcode;
use crate::simd::jit::steps::{
    ACCUMULATORS, JitStep, LoopIsa, LoopOperand, StepArg, StepBuilder, StepValue, StoredType,
};
use smallvec::SmallVec;

/// Maximum unroll factor. More copies gain nothing, and leave more elements to the tail loop.
const MOST_COPIES: usize = 4;

/// Mask register of the lanes that exist in the last vector.
pub(crate) const TAIL: Mask = Mask(1);
const FIRST_MASK: u8 = 2;
const MASKS: usize = 6;
/// AVX2: scratch register in which narrow elements are packed before they are stored.
pub(crate) const PACKED: u8 = 15;

/// Arguments: the array of pointers, and the number of elements left; and a scratch register.
pub(crate) const TABLE: Gpr = RDI;
const LEFT: Gpr = RSI;
pub(crate) const SPARE: Gpr = RAX;
/// Number of elements processed: index into streamed arrays, and into the accumulators of a reduction (restarts in each
/// iteration).
const INDEX: Gpr = R11;
const AROUND: Gpr = R10;
/// Registers for the pointers of the first arrays; other pointers are loaded at each use.
const ADDRESSES: [Gpr; 4] = [RCX, RDX, R8, R9];

/// Result of register allocation.
pub(crate) struct RegisterAllocation {
    set: LoopIsa,
    /// Number of vector registers that may be allocated.
    vectors: usize,
    /// Per step: the register of its value, numbered within its kind (vector or mask).
    of: Vec<usize>,
    /// Per step: whether its value is loop-invariant and computed before the loop.
    once: Vec<bool>,
    /// Per step: the operands whose live range ends there.
    pub ends: Vec<SmallVec<[StepValue; 4]>>,
    /// Registers of each kind (vectors, masks): for loop-invariant values, and for one copy of the others.
    pinned: [usize; 2],
    needed: [usize; 2],
}

/// Constraint on a step's destination register.
enum Destination {
    /// Any register, including that of an operand whose live range ends here.
    Free,
    /// Not a register of any operand.
    Apart,
    /// The register of this operand, whose live range ends here.
    Over(StepValue),
}

/// Free list of registers.
#[derive(Default)]
struct FreeRegisters {
    free: Vec<usize>,
    taken: usize,
}

impl FreeRegisters {
    fn take(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.taken += 1;
            self.taken - 1
        })
    }
}

/// Returns the register kind of a step's value: 0 vector, 1 mask.
fn kind(set: LoopIsa, step: &JitStep) -> usize {
    usize::from(set == LoopIsa::Avx512 && step.makes_mask())
}

impl RegisterAllocation {
    fn new(set: LoopIsa, steps: &[JitStep]) -> RegisterAllocation {
        let once = once(steps);
        let (last, ends) = lives(steps, &once);
        let packs = |s: &JitStep| matches!(s, JitStep::Store(p, _) if !matches!(p.form, StoredType::Word | StoredType::F16));
        let vectors = match set {
            LoopIsa::Avx512 => 32,
            LoopIsa::Avx2 if steps.iter().any(packs) => PACKED as usize,
            LoopIsa::Avx2 => 16,
        };
        let of = vec![0; steps.len()];
        let mut homes = RegisterAllocation { set, vectors, of, once, ends, pinned: [0; 2], needed: [0; 2] };
        homes.pinned = homes.assign(steps, &last, true);
        homes.needed = homes.assign(steps, &last, false);
        homes
    }

    /// Allocates registers for the loop-invariant values or for the others; returns how many of each kind it used.
    fn assign(&mut self, steps: &[JitStep], last: &[usize], once: bool) -> [usize; 2] {
        let mut pools = [FreeRegisters::default(), FreeRegisters::default()];
        for i in self.numbers(once) {
            let step = &steps[i];
            let ends = &self.ends[i];
            let destination = destination(self.set, step, ends);
            let kind = |step: &JitStep| kind(self.set, step);
            let early = match destination {
                Destination::Over(v) => Some(self.of[v.0]),
                Destination::Apart => Some(pools[kind(step)].take()),
                Destination::Free => None,
            };
            for v in ends.iter().filter(|&&v| !matches!(destination, Destination::Over(o) if o == v)) {
                pools[kind(&steps[v.0])].free.push(self.of[v.0]);
            }
            if !step.is_store() {
                let pool = &mut pools[kind(step)];
                self.of[i] = early.unwrap_or_else(|| pool.take());
                if last[i] == i {
                    pool.free.push(self.of[i]);
                }
            }
        }
        pools.map(|p| p.taken)
    }

    /// Returns the indices of the loop-invariant steps, or of the others.
    fn numbers(&self, once: bool) -> Vec<usize> {
        (0..self.once.len()).filter(|&i| self.once[i] == once).collect()
    }

    /// Returns the largest unroll factor whose values fit the registers.
    fn copies(&self) -> Option<usize> {
        let fits = |copies: &usize| {
            self.pinned[0] + copies * self.needed[0] <= self.vectors
                && self.pinned[1] + copies * self.needed[1] <= MASKS
        };
        (1..=MOST_COPIES).rev().find(fits)
    }
}

/// Returns which steps are loop-invariant. Constants are not: they are read from memory at each use.
fn once(steps: &[JitStep]) -> Vec<bool> {
    let mut once: Vec<bool> = Vec::with_capacity(steps.len());
    for step in steps {
        let mut same = !matches!(step, JitStep::Load(_) | JitStep::Store(..) | JitStep::Constant(_));
        step.each_operand(|v| same &= once[v.0]);
        once.push(same);
    }
    once
}

/// Returns live ranges: per value, its last reader (itself if none); per step, the operands whose live range ends
/// there.
fn lives(steps: &[JitStep], once: &[bool]) -> (Vec<usize>, Vec<SmallVec<[StepValue; 4]>>) {
    let mut last: Vec<usize> = (0..steps.len()).collect();
    for (i, step) in steps.iter().enumerate() {
        // A loop-invariant value that the loop reads is live through all iterations.
        let now = |v: StepValue| if once[v.0] && !once[i] { usize::MAX } else { i };
        step.each_operand(|v| last[v.0] = last[v.0].max(now(v)));
    }
    let ends = steps.iter().enumerate().map(|(i, step)| {
        let mut ends: SmallVec<[StepValue; 4]> = SmallVec::new();
        step.each_operand(|v| {
            if last[v.0] == i && !ends.contains(&v) {
                ends.push(v);
            }
        });
        ends
    });
    let ends = ends.collect();
    (last, ends)
}

fn destination(set: LoopIsa, step: &JitStep, ends: &[StepValue]) -> Destination {
    let over = |v: StepValue| if ends.contains(&v) { Destination::Over(v) } else { Destination::Apart };
    match *step {
        // Several instructions, and later ones read the operands again.
        JitStep::Mix { .. } | JitStep::Merge { .. } | JitStep::Compare { .. } if set == LoopIsa::Avx2 => {
            Destination::Apart
        }
        JitStep::Fma { a, b, c, .. } => match FmaForm::of(a, b, c, ends) {
            FmaForm::Over(v, ..) => Destination::Over(v),
            FmaForm::Fresh => Destination::Apart,
        },
        JitStep::Mix { a, .. } => over(a),
        JitStep::Merge { base, .. } => over(base),
        // Constants that are loaded into the destination first.
        JitStep::Two { a: StepArg::Bits(_), .. } => Destination::Apart,
        JitStep::Select { no: StepArg::Bits(1..), .. } => Destination::Apart,
        _ => Destination::Free,
    }
}

/// Form of a fused multiply-add, whose destination is one of its operands.
pub(crate) enum FmaForm {
    /// Overwrites an operand whose live range ends: the instruction, its second and its third operand.
    Over(StepValue, Opcode, StepValue, StepArg),
    /// Overwrites a copy of the addend.
    Fresh,
}

impl FmaForm {
    pub fn of(a: StepValue, b: StepArg, c: StepArg, ends: &[StepValue]) -> FmaForm {
        match (b, c) {
            (_, StepArg::Value(c)) if ends.contains(&c) && c != a && StepArg::Value(c) != b => {
                FmaForm::Over(c, opcodes::FMADD231PS, a, b)
            }
            (StepArg::Value(b), c) if ends.contains(&a) => FmaForm::Over(a, opcodes::FMADD213PS, b, c),
            (StepArg::Value(b), c) if ends.contains(&b) => FmaForm::Over(b, opcodes::FMADD213PS, a, c),
            (StepArg::Bits(_), StepArg::Value(c)) if ends.contains(&a) => {
                FmaForm::Over(a, opcodes::FMADD132PS, c, b)
            }
            _ => FmaForm::Fresh,
        }
    }
}

/// Whether AVX2 can mask the lanes that the step loads or stores.
fn is_of_words(step: &JitStep) -> bool {
    !matches!(step, JitStep::Load(p) | JitStep::Store(p, _) if p.form != StoredType::Word)
}

/// Returns the accumulators that a step loads, if it loads those of a reduction along the loop.
fn accumulators_of(step: &JitStep) -> Option<LoopOperand> {
    match step {
        JitStep::Load(place) if place.around => Some(*place),
        _ => None,
    }
}

/// Returns the constants that save most if held in registers, at most `room`.
fn frequent_constants(steps: &[JitStep], once: &[bool], room: usize) -> Vec<u32> {
    let mut counts: Vec<(u32, usize)> = Vec::new();
    for (_, step) in steps.iter().enumerate().filter(|(i, _)| !once[*i]) {
        step.each_constant(|bits, weight| match counts.iter_mut().find(|(b, _)| *b == bits) {
            Some((_, count)) => *count += weight,
            None => counts.push((bits, weight)),
        });
    }
    counts.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    counts.truncate(room);
    counts.into_iter().map(|(bits, _)| bits).collect()
}

/// Code generator of one loop.
pub(crate) struct Emitter<'a> {
    set: LoopIsa,
    pub steps: &'a [JitStep],
    pub homes: RegisterAllocation,
    /// Constants held in registers, from the last register downwards.
    constants: Vec<u32>,
    /// Accumulators of reductions that stay in registers, after the values of all copies.
    kept: Vec<LoopOperand>,
    copies: usize,
    pub asm: Assembler,
    /// Arrays whose pointers are held in registers.
    near: Vec<usize>,
    /// In the tail loop: the register with the mask of lanes that exist.
    pub tail: Option<u8>,
}

/// Machine code of a JIT-compiled loop.
pub struct MachineCode {
    pub bytes: Vec<u8>,
    /// Whether it supports any number of elements, not only multiples of the vector width.
    pub any: bool,
}

/// Generates the machine code of a loop; returns `None` if its values need more registers than there are.
///
/// The code is a function of the System V calling convention: `(pointers: *const *mut u8, elements: usize)`.
pub fn emit(steps: &StepBuilder) -> Option<MachineCode> {
    let (set, steps) = (steps.set, &steps.list[..]);
    let homes = RegisterAllocation::new(set, steps);
    let copies = homes.copies()?;
    let around = steps.iter().any(|s| matches!(s, JitStep::Load(p) if p.around));
    // Copies that share accumulators would all load them before the first one stores.
    let all = ACCUMULATORS / set.lanes();
    let (copies, vectors) = match copies {
        4.. if around => (4, all),
        2.. if around => (2, all),
        _ if around => (1, all),
        n => (n, n),
    };
    let mut near: Vec<usize> = Vec::new();
    for step in steps {
        if let JitStep::Load(place) | JitStep::Store(place, _) = step
            && !near.contains(&place.array)
        {
            near.push(place.array);
        }
    }
    near.truncate(ADDRESSES.len());
    let mut room = homes.vectors - homes.pinned[0] - copies * homes.needed[0];
    let mut kept: Vec<LoopOperand> = steps.iter().filter_map(accumulators_of).collect();
    if set != LoopIsa::Avx512 || copies < vectors || kept.len() * copies > room {
        kept.clear();
    }
    room -= kept.len() * copies;
    let constants = frequent_constants(steps, &homes.once, room);
    let asm = match set {
        LoopIsa::Avx512 => Assembler::filling(),
        LoopIsa::Avx2 => Assembler::reading(),
    };
    let mut e = Emitter { set, steps, homes, constants, kept, copies, asm, near, tail: None };
    e.start(around);
    e.rounds(copies, vectors);
    let any = match set {
        LoopIsa::Avx512 => {
            e.last_vectors(around);
            true
        }
        LoopIsa::Avx2 => e.last_words(around, copies),
    };
    Some(MachineCode { bytes: e.asm.finish(), any })
}

impl Emitter<'_> {
    fn start(&mut self, around: bool) {
        self.asm.zero(INDEX);
        if around {
            self.asm.zero(AROUND);
        }
        for (&array, r) in self.near.iter().zip(ADDRESSES) {
            self.asm.load_address(r, TABLE, 8 * array as i32);
        }
        for (k, bits) in self.constants.clone().into_iter().enumerate() {
            self.load_constant((self.homes.vectors - 1 - k) as u8, bits);
        }
        for i in self.homes.numbers(true) {
            self.step(i, 0, 0);
        }
    }

    /// Emits the main loop, `vectors` vectors per iteration.
    fn rounds(&mut self, copies: usize, vectors: usize) {
        let elements = (vectors * self.set.lanes()) as i32;
        self.asm.subtract(LEFT, elements);
        let short = self.asm.jump(JumpCondition::Below);
        self.move_accumulators(opcodes::MOVUPS_LOAD);
        self.asm.align();
        let top = self.asm.here();
        for first in (0..vectors).step_by(copies) {
            self.round(first, copies);
        }
        self.asm.add(INDEX, elements);
        self.asm.subtract(LEFT, elements);
        self.asm.jump_back(JumpCondition::NotBelow, top);
        self.move_accumulators(opcodes::MOVUPS_STORE);
        // The tail loop accumulates in memory.
        self.kept.clear();
        self.asm.land(short);
        self.asm.add(LEFT, elements);
    }

    /// Loads or stores the accumulators that are held in registers.
    fn move_accumulators(&mut self, op: Opcode) {
        for (place, copy) in (0..self.kept.len() * self.copies).map(|k| (k / self.copies, k % self.copies)) {
            let place = self.kept[place];
            if !self.near.contains(&place.array) {
                self.asm.load_address(SPARE, TABLE, 8 * place.array as i32);
            }
            let Some(register) = self.accumulator(place, copy) else { continue };
            let at = self.address(place, copy);
            self.asm.vector(op, register, 0, at, WriteMask::All, None);
        }
    }

    /// Returns the register that holds the accumulators of unrolled copy `copy`; `None` if they are in memory.
    pub fn accumulator(&self, place: LoopOperand, copy: usize) -> Option<u8> {
        let k = self.kept.iter().position(|p| *p == place)?;
        let first = self.homes.pinned[0] + self.copies * self.homes.needed[0];
        Some((first + k * self.copies + copy) as u8)
    }

    /// Emits the AVX-512 tail loop: one vector per iteration, the last one masked.
    fn last_vectors(&mut self, around: bool) {
        self.tail = Some(TAIL.0);
        let done = self.asm.jump(JumpCondition::Equal);
        let top = self.asm.here();
        self.asm.ones(SPARE);
        // `bzhi` reads 8 bits of the count: fewer than 256 elements are left.
        self.asm.low_bits(SPARE, SPARE, LEFT);
        self.asm.mask_of(TAIL, SPARE);
        self.round(0, 1);
        self.next_vector(around);
        self.asm.subtract(LEFT, self.set.lanes() as i32);
        self.asm.jump_back(JumpCondition::Above, top);
        self.asm.land(done);
        self.asm.leave();
    }

    fn next_vector(&mut self, around: bool) {
        let lanes = self.set.lanes() as i32;
        self.asm.add(INDEX, lanes);
        if around {
            self.asm.add(AROUND, lanes);
        }
    }

    /// Emits the AVX2 tail loop: whole vectors and then, if all elements are 32 bits wide and a register is free for
    /// the mask, one masked vector. Returns whether it handles the masked vector.
    fn last_words(&mut self, around: bool, copies: usize) -> bool {
        let lanes = self.set.lanes() as i32;
        let done = self.asm.jump(JumpCondition::Equal);
        self.asm.subtract(LEFT, lanes);
        let short = self.asm.jump(JumpCondition::Below);
        let top = self.asm.here();
        self.round(0, 1);
        self.next_vector(around);
        self.asm.subtract(LEFT, lanes);
        self.asm.jump_back(JumpCondition::NotBelow, top);
        self.asm.land(short);
        let mask = self.free_register(copies).filter(|_| self.steps.iter().all(is_of_words));
        if let Some(mask) = mask {
            self.asm.add(LEFT, lanes);
            let whole = self.asm.jump(JumpCondition::Equal);
            let first = Rm::Reg(VectorReg(mask));
            self.asm.xmm(opcodes::MOVD_LOAD, mask, 0, Rm::Reg(VectorReg(LEFT.0)), None);
            self.asm.ymm(opcodes::PBROADCASTD, mask, 0, first, None);
            let numbers = std::array::from_fn(|k| k as u32);
            self.asm.ymm(opcodes::PCMPGTD, mask, mask, Rm::Lanes(numbers), None);
            self.tail = Some(mask);
            self.round(0, 1);
            self.asm.land(whole);
        }
        self.asm.land(done);
        self.asm.leave();
        mask.is_some()
    }

    /// Returns a register that one copy of the steps does not use; its contents are lost.
    fn free_register(&mut self, copies: usize) -> Option<u8> {
        let one = self.homes.pinned[0] + self.homes.needed[0];
        if copies > 1 && self.homes.needed[0] > 0 {
            return Some(one as u8);
        }
        // The least used constant loses its register and is read from memory.
        let last = self.homes.vectors - self.constants.len();
        match self.constants.pop() {
            Some(_) => Some(last as u8),
            None => (one < last).then_some(one as u8),
        }
    }

    /// Emits all steps for vectors `first..first + copies` of an iteration.
    fn round(&mut self, first: usize, copies: usize) {
        for i in self.homes.numbers(false) {
            let array = match self.steps[i] {
                JitStep::Load(place) | JitStep::Store(place, _) => Some(place.array),
                _ => None,
            };
            if let Some(array) = array.filter(|a| !self.near.contains(a)) {
                self.asm.load_address(SPARE, TABLE, 8 * array as i32);
            }
            for copy in 0..copies {
                self.step(i, copy, first + copy);
            }
        }
    }

    /// Returns the register of a value in unrolled copy `copy`.
    pub fn home(&self, v: StepValue, copy: usize) -> u8 {
        let kind = kind(self.set, &self.steps[v.0]);
        let own = self.homes.of[v.0];
        let first = if kind == 1 { FIRST_MASK as usize } else { 0 };
        let n = if self.homes.once[v.0] {
            own
        } else {
            self.homes.pinned[kind] + copy * self.homes.needed[kind] + own
        };
        (first + n) as u8
    }

    /// Returns the register that holds a constant, if any.
    fn constant(&self, bits: u32) -> Option<u8> {
        self.constants.iter().position(|&c| c == bits).map(|k| (self.homes.vectors - 1 - k) as u8)
    }

    /// Broadcasts a constant to `to`.
    fn load_constant(&mut self, to: u8, bits: u32) {
        match self.set {
            LoopIsa::Avx512 => {
                self.asm.vector(opcodes::BROADCASTSS, to, 0, Rm::Single(bits), WriteMask::All, None)
            }
            LoopIsa::Avx2 => self.asm.ymm(opcodes::MOVAPS, to, 0, Rm::Splat(bits), None),
        }
    }

    /// Returns an operand as register or memory operand.
    pub fn operand(&self, a: StepArg, copy: usize) -> Rm {
        match a {
            StepArg::Value(v) => Rm::Reg(VectorReg(self.home(v, copy))),
            StepArg::Bits(bits) => self.constant(bits).map_or(Rm::Splat(bits), |r| Rm::Reg(VectorReg(r))),
        }
    }

    /// Returns the register that holds an operand; a constant without a register is loaded into `to`.
    pub fn in_register(&mut self, a: StepArg, to: u8, copy: usize) -> u8 {
        match a {
            StepArg::Value(v) => self.home(v, copy),
            StepArg::Bits(bits) => self.constant(bits).unwrap_or_else(|| {
                self.load_constant(to, bits);
                to
            }),
        }
    }

    /// Emits a copy of an operand to register `to`.
    pub fn copy_to(&mut self, to: u8, a: StepArg, copy: usize) {
        let from = self.in_register(a, to, copy);
        if from == to {
            return;
        }
        self.instruction(opcodes::MOVAPS, to, 0, Rm::Reg(VectorReg(from)), None);
    }

    /// Emits an instruction on whole vectors; operands as for [`Assembler::vector`].
    fn instruction(&mut self, op: Opcode, to: u8, first: u8, rm: Rm, imm: Option<u8>) {
        match self.set {
            LoopIsa::Avx512 => self.asm.vector(op, to, first, rm, WriteMask::All, imm),
            LoopIsa::Avx2 => self.asm.ymm(op, to, first, rm, imm),
        }
    }

    /// Emits step `i` in one copy, for one vector of the iteration. Both instruction sets have the same instructions for
    /// constants and arithmetic.
    fn step(&mut self, i: usize, copy: usize, vector: usize) {
        let reg = |v: StepValue| self.home(v, copy);
        let rm = |a: StepArg| self.operand(a, copy);
        let to = reg(StepValue(i));
        let itself = Rm::Reg(VectorReg(to));
        match self.steps[i] {
            JitStep::Spread { array, form } => {
                self.asm.load_address(SPARE, TABLE, 8 * array as i32);
                let at = Rm::Memory(MemoryAddress { base: SPARE, index: None, offset: 0 });
                self.instruction(spread_op(form), to, 0, at, None);
                if form == StoredType::F16 {
                    self.instruction(opcodes::CVTPH2PS, to, 0, itself, None);
                }
            }
            JitStep::Constant(bits) => self.copy_to(to, StepArg::Bits(bits), copy),
            // The destination is the `r/m` operand.
            JitStep::One { op: opcodes::CVTPS2PH, imm, a: StepArg::Value(a) } => {
                self.instruction(opcodes::CVTPS2PH, reg(a), 0, itself, imm);
            }
            JitStep::One { op, imm, a } => self.instruction(op, to, 0, rm(a), imm),
            JitStep::Two { op, a, b } => {
                let b = rm(b);
                let first = self.in_register(a, to, copy);
                self.instruction(op, to, first, b, None);
            }
            JitStep::Shift { way, by, a } => {
                self.instruction(opcodes::SHIFTS, way, to, rm(a.into()), Some(by));
            }
            JitStep::Fma { a, b, c, signs } => {
                let signed = |op: Opcode| Opcode(op.0, op.1, op.2 + signs);
                match FmaForm::of(a, b, c, &self.homes.ends[i]) {
                    FmaForm::Over(_, op, first, last) => {
                        self.instruction(signed(op), to, reg(first), rm(last), None);
                    }
                    FmaForm::Fresh => {
                        let (a, b) = (reg(a), rm(b));
                        self.copy_to(to, c, copy);
                        self.instruction(signed(opcodes::FMADD231PS), to, a, b, None);
                    }
                }
            }
            _ => match self.set {
                LoopIsa::Avx512 => self.avx512(i, copy, vector),
                LoopIsa::Avx2 => self.avx2(i, copy, vector),
            },
        }
    }

    /// Returns the memory operand for vector number `vector` of array `place` in the current iteration.
    pub fn address(&self, place: LoopOperand, vector: usize) -> Rm {
        let size = place.form.size();
        let base = self.near.iter().position(|&a| a == place.array).map_or(SPARE, |k| ADDRESSES[k]);
        let index = Some((if place.around { AROUND } else { INDEX }, size));
        Rm::Memory(MemoryAddress { base, index, offset: (vector * self.set.lanes() * size as usize) as i32 })
    }
}

/// Returns the instruction that loads elements and widens them to 32-bit lanes.
pub(crate) fn load_op(form: StoredType) -> Opcode {
    match form {
        StoredType::Word => opcodes::MOVUPS_LOAD,
        StoredType::F16 => opcodes::CVTPH2PS,
        StoredType::Half { signed: false } => opcodes::PMOVZXWD,
        StoredType::Half { signed: true } => opcodes::PMOVSXWD,
        StoredType::Byte { signed: false } => opcodes::PMOVZXBD,
        StoredType::Byte { signed: true } => opcodes::PMOVSXBD,
    }
}

/// Returns the instruction that broadcasts one element without widening it.
pub(crate) fn spread_op(form: StoredType) -> Opcode {
    match form {
        StoredType::Word => opcodes::BROADCASTSS,
        StoredType::Half { .. } | StoredType::F16 => opcodes::PBROADCASTW,
        StoredType::Byte { .. } => opcodes::PBROADCASTB,
    }
}

/// Estimates the cost in CPU cycles per element.
pub fn cycles(steps: &StepBuilder) -> f64 {
    let of = |step: &JitStep| match step {
        JitStep::Spread { .. } | JitStep::Constant(_) => 0.25,
        JitStep::Store(..) | JitStep::Merge { .. } => 1.0,
        JitStep::One { op: opcodes::SQRTPS, .. } => 12.0,
        JitStep::Two { op: opcodes::DIVPS, .. } => 10.0,
        _ => 0.5,
    };
    steps.list.iter().map(of).sum::<f64>() / steps.set.lanes() as f64
}
