//! From steps to a loop in machine code: registers for the values, then the bytes.
//!
//! Each round of the loop takes up to four vectors, as many as there are registers for, in interleaved copies of the
//! steps: a chain of dependent instructions alone would leave the machine idle most of the time. Registers that are left
//! hold constants. The last elements go through a second loop, one vector with masked loads and stores at a time.
#![forbid(unsafe_code)]

use super::encode::*;
use super::steps::{Arg, Form, Place, Step, Steps, Value};
use smallvec::SmallVec;

/// Lanes of a vector.
const LANES: usize = 16;
/// Accumulators of a fold along, which are also the elements of a round then.
pub const ACCUMULATORS: usize = 64;

/// More copies gain nothing, and make the last elements more.
const MOST_COPIES: usize = 4;

/// Lanes that the last vectors have.
const TAIL: Mask = Mask(1);
const FIRST_MASK: u8 = 2;
const MASKS: usize = 6;
const VECTORS: usize = 32;

/// The array of addresses that the loop is called with, elements left, a spare.
const TABLE: Gpr = RDI;
const LEFT: Gpr = RSI;
const SPARE: Gpr = RAX;
/// Elements done, and those of the round that are done.
const INDEX: Gpr = R11;
const AROUND: Gpr = R10;
/// Registers for addresses; those of further arrays are read where they are used.
const ADDRESSES: [Gpr; 4] = [RCX, RDX, R8, R9];

/// Where values live.
struct Homes {
    /// Of each step's value: the number of its register among those of its kind.
    of: Vec<usize>,
    /// Steps whose values are the same for all elements, made once before the loop.
    once: Vec<bool>,
    /// The operands whose last reader a step is.
    ends: Vec<SmallVec<[Value; 4]>>,
    /// Registers, vectors and masks, of the values made once, and of one copy of the others.
    pinned: [usize; 2],
    needed: [usize; 2],
}

/// How a step's destination relates to its operands.
enum Destination {
    /// Any register, also one of an operand that ends here.
    Free,
    /// A register of none of the operands.
    Apart,
    /// That of this operand, which ends here.
    Over(Value),
}

/// Registers handed out and taken back.
#[derive(Default)]
struct Pool {
    free: Vec<usize>,
    taken: usize,
}

impl Pool {
    fn take(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.taken += 1;
            self.taken - 1
        })
    }
}

/// Which kind of register a step's value has: 0 a vector, 1 a mask.
fn kind(step: &Step) -> usize {
    usize::from(step.makes_mask())
}

impl Homes {
    fn new(steps: &[Step]) -> Homes {
        let once = once(steps);
        let (last, ends) = lives(steps, &once);
        let mut homes = Homes { of: vec![0; steps.len()], once, ends, pinned: [0; 2], needed: [0; 2] };
        homes.pinned = homes.assign(steps, &last, true);
        homes.needed = homes.assign(steps, &last, false);
        homes
    }

    /// Gives registers to the values that are made once, or to the others; how many of each kind it took.
    fn assign(&mut self, steps: &[Step], last: &[usize], once: bool) -> [usize; 2] {
        let mut pools = [Pool::default(), Pool::default()];
        for i in self.numbers(once) {
            let step = &steps[i];
            let ends = &self.ends[i];
            let destination = destination(step, ends);
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

    /// The steps whose values are made once, or the others.
    fn numbers(&self, once: bool) -> Vec<usize> {
        (0..self.once.len()).filter(|&i| self.once[i] == once).collect()
    }

    /// The most copies of the steps whose values fit the registers.
    fn copies(&self) -> Option<usize> {
        let fits = |copies: &usize| {
            self.pinned[0] + copies * self.needed[0] <= VECTORS
                && self.pinned[1] + copies * self.needed[1] <= MASKS
        };
        (1..=MOST_COPIES).rev().find(fits)
    }
}

/// Which steps give the same for all elements. Constants are read from memory where they are needed.
fn once(steps: &[Step]) -> Vec<bool> {
    let mut once: Vec<bool> = Vec::with_capacity(steps.len());
    for step in steps {
        let mut same = !matches!(step, Step::Load(_) | Step::Store(..) | Step::Constant(_));
        step.each_operand(|v| same &= once[v.0]);
        once.push(same);
    }
    once
}

/// The last step that reads each value, its own where none does; and the operands that end at each step.
fn lives(steps: &[Step], once: &[bool]) -> (Vec<usize>, Vec<SmallVec<[Value; 4]>>) {
    let mut last: Vec<usize> = (0..steps.len()).collect();
    for (i, step) in steps.iter().enumerate() {
        // What the loop reads of the values made before it lives through all its rounds.
        let now = |v: Value| if once[v.0] && !once[i] { usize::MAX } else { i };
        step.each_operand(|v| last[v.0] = last[v.0].max(now(v)));
    }
    let ends = steps.iter().enumerate().map(|(i, step)| {
        let mut ends: SmallVec<[Value; 4]> = SmallVec::new();
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

fn destination(step: &Step, ends: &[Value]) -> Destination {
    let over = |v: Value| if ends.contains(&v) { Destination::Over(v) } else { Destination::Apart };
    match *step {
        Step::Fma { a, b, c } => match FmaForm::of(a, b, c, ends) {
            FmaForm::Over(v, ..) => Destination::Over(v),
            FmaForm::Fresh => Destination::Apart,
        },
        Step::Mix { a, .. } => over(a),
        Step::Merge { base, .. } => over(base),
        // Constants that are loaded first.
        Step::Two { a: Arg::Bits(_), .. } => Destination::Apart,
        Step::Select { no: Arg::Bits(1..), .. } => Destination::Apart,
        _ => Destination::Free,
    }
}

/// A fused multiply-add, whose destination is one of its operands.
enum FmaForm {
    /// Over an operand that ends: the instruction, its second and its third operand.
    Over(Value, Op, Value, Arg),
    /// Into a copy of the addend.
    Fresh,
}

impl FmaForm {
    fn of(a: Value, b: Arg, c: Arg, ends: &[Value]) -> FmaForm {
        match (b, c) {
            (_, Arg::Value(c)) if ends.contains(&c) && c != a && Arg::Value(c) != b => {
                FmaForm::Over(c, ops::FMADD231PS, a, b)
            }
            (Arg::Value(b), c) if ends.contains(&a) => FmaForm::Over(a, ops::FMADD213PS, b, c),
            (Arg::Value(b), c) if ends.contains(&b) => FmaForm::Over(b, ops::FMADD213PS, a, c),
            (Arg::Bits(_), Arg::Value(c)) if ends.contains(&a) => FmaForm::Over(a, ops::FMADD132PS, c, b),
            _ => FmaForm::Fresh,
        }
    }
}

/// The constants of the loop's steps that are read most, at most `room`.
fn frequent_constants(steps: &[Step], once: &[bool], room: usize) -> Vec<u32> {
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

/// A loop in the making.
struct Emitter<'a> {
    steps: &'a [Step],
    homes: Homes,
    /// Constants that have registers: the last ones.
    constants: Vec<u32>,
    asm: Assembler,
    /// Arrays whose addresses are in registers.
    near: Vec<usize>,
    /// In the loop over the last vectors.
    tail: bool,
}

/// The machine code of a loop; `None` where its values need more registers than there are.
///
/// The code is a function of the platform's C convention (System V): an array of addresses, and how many elements.
pub fn emit(steps: &Steps) -> Option<Vec<u8>> {
    let steps = &steps.0[..];
    let homes = Homes::new(steps);
    let copies = homes.copies()?;
    let around = steps.iter().any(|s| matches!(s, Step::Load(p) if p.around));
    // Copies that share accumulators would all read them before the first writes.
    let (copies, vectors) = match copies {
        4.. if around => (4, 4),
        2.. if around => (2, 4),
        _ if around => (1, 4),
        n => (n, n),
    };
    let mut near: Vec<usize> = Vec::new();
    for step in steps {
        if let Step::Load(place) | Step::Store(place, _) = step
            && !near.contains(&place.array)
        {
            near.push(place.array);
        }
    }
    near.truncate(ADDRESSES.len());
    let room = VECTORS - homes.pinned[0] - copies * homes.needed[0];
    let constants = frequent_constants(steps, &homes.once, room);
    let mut e = Emitter { steps, homes, constants, asm: Assembler::default(), near, tail: false };
    e.start(around);
    e.rounds(copies, vectors);
    e.last_vectors(around);
    Some(e.asm.finish())
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
            let to = (VECTORS - 1 - k) as u8;
            self.asm.vector(ops::BROADCASTSS, to, 0, Rm::Single(bits), Lanes::All, None);
        }
        for i in self.homes.numbers(true) {
            self.step(i, 0, 0);
        }
    }

    /// The main loop, of so many vectors a round.
    fn rounds(&mut self, copies: usize, vectors: usize) {
        let elements = (vectors * LANES) as i32;
        self.asm.subtract(LEFT, elements);
        let short = self.asm.jump(When::Below);
        self.asm.align();
        let top = self.asm.here();
        for first in (0..vectors).step_by(copies) {
            self.round(first, copies);
        }
        self.asm.add(INDEX, elements);
        self.asm.subtract(LEFT, elements);
        self.asm.jump_back(When::NotBelow, top);
        self.asm.land(short);
        self.asm.add(LEFT, elements);
    }

    /// The loop over vectors of which some lanes may not exist.
    fn last_vectors(&mut self, around: bool) {
        self.tail = true;
        let done = self.asm.jump(When::Equal);
        let top = self.asm.here();
        self.asm.ones(SPARE);
        // Fewer than 256 elements are left: all that the instruction looks at.
        self.asm.low_bits(SPARE, SPARE, LEFT);
        self.asm.mask_of(TAIL, SPARE);
        self.round(0, 1);
        self.asm.add(INDEX, LANES as i32);
        if around {
            self.asm.add(AROUND, LANES as i32);
        }
        self.asm.subtract(LEFT, LANES as i32);
        self.asm.jump_back(When::Above, top);
        self.asm.land(done);
        self.asm.leave();
    }

    /// All steps for vectors `first..first + copies` of a round.
    fn round(&mut self, first: usize, copies: usize) {
        for i in self.homes.numbers(false) {
            let array = match self.steps[i] {
                Step::Load(place) | Step::Store(place, _) => Some(place.array),
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

    /// The register of a value in one copy of the steps.
    fn home(&self, v: Value, copy: usize) -> u8 {
        let kind = kind(&self.steps[v.0]);
        let own = self.homes.of[v.0];
        let first = if kind == 1 { FIRST_MASK as usize } else { 0 };
        let n = if self.homes.once[v.0] {
            own
        } else {
            self.homes.pinned[kind] + copy * self.homes.needed[kind] + own
        };
        (first + n) as u8
    }

    /// The register of a constant that has one.
    fn constant(&self, bits: u32) -> Option<u8> {
        self.constants.iter().position(|&c| c == bits).map(|k| (VECTORS - 1 - k) as u8)
    }

    /// An operand that may lie in memory.
    fn operand(&self, a: Arg, copy: usize) -> Rm {
        match a {
            Arg::Value(v) => Rm::Zmm(Zmm(self.home(v, copy))),
            Arg::Bits(bits) => self.constant(bits).map_or(Rm::Splat(bits), |r| Rm::Zmm(Zmm(r))),
        }
    }

    /// The register that holds an operand; a constant without one is loaded to `to`.
    fn in_register(&mut self, a: Arg, to: u8, copy: usize) -> u8 {
        match a {
            Arg::Value(v) => self.home(v, copy),
            Arg::Bits(bits) => self.constant(bits).unwrap_or_else(|| {
                self.asm.vector(ops::BROADCASTSS, to, 0, Rm::Single(bits), Lanes::All, None);
                to
            }),
        }
    }

    /// Puts an operand into `to`.
    fn copy_to(&mut self, to: u8, a: Arg, copy: usize) {
        let from = self.in_register(a, to, copy);
        if from != to {
            self.asm.vector(ops::MOVAPS, to, 0, Rm::Zmm(Zmm(from)), Lanes::All, None);
        }
    }

    /// Step `i` in one copy, for one vector of the round.
    fn step(&mut self, i: usize, copy: usize, vector: usize) {
        let reg = |v: Value| self.home(v, copy);
        let rm = |a: Arg| self.operand(a, copy);
        let to = reg(Value(i));
        let all = Lanes::All;
        let ends = &self.homes.ends[i];
        match self.steps[i] {
            Step::Load(place) => {
                let lanes = if self.tail { Lanes::Zero(TAIL) } else { all };
                let op = match place.form {
                    Form::Word => ops::MOVUPS_LOAD,
                    Form::F16 => ops::CVTPH2PS,
                    Form::Half { signed: false } => ops::PMOVZXWD,
                    Form::Half { signed: true } => ops::PMOVSXWD,
                    Form::Byte { signed: false } => ops::PMOVZXBD,
                    Form::Byte { signed: true } => ops::PMOVSXBD,
                };
                let at = self.address(place, vector);
                self.asm.vector(op, to, 0, at, lanes, None);
            }
            Step::Store(place, v) => {
                let (from, at) = (reg(v), self.address(place, vector));
                let lanes = if self.tail { Lanes::Merge(TAIL) } else { all };
                let (op, imm) = match place.form {
                    Form::Word => (ops::MOVUPS_STORE, None),
                    Form::F16 => (ops::CVTPS2PH, Some(0)),
                    Form::Half { .. } => (ops::PMOVDW, None),
                    Form::Byte { .. } => (ops::PMOVDB, None),
                };
                self.asm.vector(op, from, 0, at, lanes, imm);
            }
            Step::Spread { array, form } => {
                self.asm.load_address(SPARE, TABLE, 8 * array as i32);
                let op = match form {
                    Form::Word => ops::BROADCASTSS,
                    Form::Half { .. } | Form::F16 => ops::PBROADCASTW,
                    Form::Byte { .. } => ops::PBROADCASTB,
                };
                let at = Rm::Memory(At { base: SPARE, index: None, offset: 0 });
                self.asm.vector(op, to, 0, at, all, None);
                if form == Form::F16 {
                    self.asm.vector(ops::CVTPH2PS, to, 0, Rm::Zmm(Zmm(to)), all, None);
                }
            }
            Step::Constant(bits) => self.copy_to(to, Arg::Bits(bits), copy),
            // Its destination is the operand that may lie in memory.
            Step::One { op: ops::CVTPS2PH, imm, a: Arg::Value(a) } => {
                let from = reg(a);
                self.asm.vector(ops::CVTPS2PH, from, 0, Rm::Zmm(Zmm(to)), all, imm);
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
                self.asm.vector(ops::SHIFTS, way, to, a, all, Some(by));
            }
            Step::Fma { a, b, c } => match FmaForm::of(a, b, c, ends) {
                FmaForm::Over(_, op, first, last) => {
                    let (first, last) = (reg(first), rm(last));
                    self.asm.vector(op, to, first, last, all, None);
                }
                FmaForm::Fresh => {
                    let (a, b) = (reg(a), rm(b));
                    self.copy_to(to, c, copy);
                    self.asm.vector(ops::FMADD231PS, to, a, b, all, None);
                }
            },
            Step::Mix { a, b, mask } => {
                let (b, mask) = (reg(b), rm(Arg::Bits(mask)));
                // Where it ends here it is there already.
                self.copy_to(to, a.into(), copy);
                // Bit 4x + 2y + z of the table is the result for bits x, y and z of the operands: z ? y : x.
                const CHOOSE: u8 = 0xd8;
                self.asm.vector(ops::PTERNLOGD, to, b, mask, all, Some(CHOOSE));
            }
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
        }
    }

    fn select(&mut self, to: u8, mask: Mask, yes: Arg, no: Arg, copy: usize) {
        let from = self.operand(yes, copy);
        if no == Arg::Bits(0) {
            let (op, from) = match from {
                // Which lanes are read is up to the mask here: one constant, not one for each lane.
                Rm::Splat(bits) => (ops::BROADCASTSS, Rm::Single(bits)),
                register => (ops::MOVAPS, register),
            };
            return self.asm.vector(op, to, 0, from, Lanes::Zero(mask), None);
        }
        let no = self.in_register(no, to, copy);
        self.asm.vector(ops::BLENDMPS, to, no, from, Lanes::Merge(mask), None);
    }

    /// The address of one vector of the round.
    fn address(&self, place: Place, vector: usize) -> Rm {
        let size = place.form.size();
        let base = self.near.iter().position(|&a| a == place.array).map_or(SPARE, |k| ADDRESSES[k]);
        let index = Some((if place.around { AROUND } else { INDEX }, size));
        Rm::Memory(At { base, index, offset: (vector * LANES * size as usize) as i32 })
    }
}

/// An estimate of the processor cycles that one element takes.
pub fn cycles(steps: &Steps) -> f64 {
    let of = |step: &Step| match step {
        Step::Spread { .. } | Step::Constant(_) => 0.25,
        Step::Store(..) | Step::Merge { .. } => 1.0,
        Step::One { op: ops::SQRTPS, .. } => 12.0,
        Step::Two { op: ops::DIVPS, .. } => 10.0,
        _ => 0.5,
    };
    steps.0.iter().map(of).sum::<f64>() / LANES as f64
}
