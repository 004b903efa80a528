//! From steps to a loop in machine code: registers for the values, then the bytes.
//!
//! The loop takes 64 elements a round, as one, two or four interleaved copies of the steps: a chain of dependent
//! instructions alone would leave the machine idle most of the time. What is left goes through a second loop, one
//! vector with masked loads and stores at a time.
#![forbid(unsafe_code)]

use super::encode::*;
use super::steps::{Arg, Form, Place, Step, Steps, Value};
use smallvec::SmallVec;

/// Lanes of a vector.
const LANES: usize = 16;
/// Elements of one round of the main loop, and accumulators of a fold.
pub const ROUND: usize = 64;

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
    of: Vec<u8>,
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
    free: Vec<u8>,
    taken: u8,
}

impl Pool {
    fn take(&mut self) -> u8 {
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
        pools.map(|p| p.taken as usize)
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
        [4, 2, 1].into_iter().find(fits)
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

/// A loop in the making.
struct Emitter<'a> {
    steps: &'a [Step],
    homes: Homes,
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
    let mut near: Vec<usize> = Vec::new();
    for step in steps {
        if let Step::Load(place) | Step::Store(place, _) = step
            && !near.contains(&place.array)
        {
            near.push(place.array);
        }
    }
    near.truncate(ADDRESSES.len());
    let around = steps.iter().any(|s| matches!(s, Step::Load(p) if p.around));
    let mut e = Emitter { steps, homes, asm: Assembler::default(), near, tail: false };
    e.start(around);
    e.rounds(copies);
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
        for i in self.homes.numbers(true) {
            self.step(i, 0, 0);
        }
    }

    /// The main loop.
    fn rounds(&mut self, copies: usize) {
        self.asm.subtract(LEFT, ROUND as i32);
        let short = self.asm.jump(When::Below);
        self.asm.align();
        let top = self.asm.here();
        for first in (0..ROUND / LANES).step_by(copies) {
            self.round(first, copies);
        }
        self.asm.add(INDEX, ROUND as i32);
        self.asm.subtract(LEFT, ROUND as i32);
        self.asm.jump_back(When::NotBelow, top);
        self.asm.land(short);
        self.asm.add(LEFT, ROUND as i32);
    }

    /// The loop over vectors of which some lanes may not exist.
    fn last_vectors(&mut self, around: bool) {
        self.tail = true;
        let done = self.asm.jump(When::Equal);
        let top = self.asm.here();
        self.asm.ones(SPARE);
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
        let own = self.homes.of[v.0] as usize;
        let first = if kind == 1 { FIRST_MASK as usize } else { 0 };
        let n = if self.homes.once[v.0] {
            own
        } else {
            self.homes.pinned[kind] + copy * self.homes.needed[kind] + own
        };
        (first + n) as u8
    }

    /// Step `i` in one copy, for one vector of the round.
    fn step(&mut self, i: usize, copy: usize, vector: usize) {
        let reg = |v: Value| self.home(v, copy);
        let rm = |a: Arg| match a {
            Arg::Value(v) => Rm::Zmm(Zmm(self.home(v, copy))),
            Arg::Bits(bits) => Rm::Splat(bits),
        };
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
            Step::Constant(bits) => self.asm.vector(ops::BROADCASTSS, to, 0, Rm::Single(bits), all, None),
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
                let (first, b) = (if let Arg::Value(a) = a { reg(a) } else { to }, rm(b));
                self.load_constant(to, a);
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
                    let (a, b, addend) = (reg(a), rm(b), rm(c));
                    if let Arg::Value(_) = c {
                        self.asm.vector(ops::MOVAPS, to, 0, addend, all, None);
                    }
                    self.load_constant(to, c);
                    self.asm.vector(ops::FMADD231PS, to, a, b, all, None);
                }
            },
            Step::Mix { a, b, mask } => {
                let (from, b) = (rm(a.into()), reg(b));
                if !ends.contains(&a) {
                    self.asm.vector(ops::MOVAPS, to, 0, from, all, None);
                }
                // Bit 4x + 2y + z of the table is the result for bits x, y and z of the operands: z ? y : x.
                const CHOOSE: u8 = 0xd8;
                self.asm.vector(ops::PTERNLOGD, to, b, Rm::Splat(mask), all, Some(CHOOSE));
            }
            Step::Merge { mask, base, op, a, b } => {
                let (mask, from, a, b) = (Mask(reg(mask)), rm(base.into()), reg(a), rm(b));
                if !ends.contains(&base) {
                    self.asm.vector(ops::MOVAPS, to, 0, from, all, None);
                }
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
        let lanes = match no {
            Arg::Value(no) => {
                let no = self.home(no, copy);
                let yes = match yes {
                    Arg::Value(v) => Rm::Zmm(Zmm(self.home(v, copy))),
                    Arg::Bits(bits) => Rm::Splat(bits),
                };
                return self.asm.vector(ops::BLENDMPS, to, no, yes, Lanes::Merge(mask), None);
            }
            Arg::Bits(0) => Lanes::Zero(mask),
            Arg::Bits(_) => Lanes::Merge(mask),
        };
        if matches!(lanes, Lanes::Merge(_)) {
            self.load_constant(to, no);
        }
        let (op, yes) = match yes {
            Arg::Value(v) => (ops::MOVAPS, Rm::Zmm(Zmm(self.home(v, copy)))),
            Arg::Bits(bits) => (ops::BROADCASTSS, Rm::Single(bits)),
        };
        self.asm.vector(op, to, 0, yes, lanes, None);
    }

    fn load_constant(&mut self, to: u8, a: Arg) {
        if let Arg::Bits(bits) = a {
            self.asm.vector(ops::BROADCASTSS, to, 0, Rm::Single(bits), Lanes::All, None);
        }
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
