//! Lowers an element-wise program to the JIT's steps; returns `None` if an op or type is not supported.
#![forbid(unsafe_code)]

use crate::simd::jit::opcodes;
use crate::simd::jit::opcodes::Opcode as Code;
use crate::simd::jit::steps::{
    JitStep, LoopIsa, LoopOperand, StepArg, StepBuilder, StepValue, StoredType, relation, rounding,
};
use systole_compile::{Contraction, Map, MapInstr, MapLoad};
use systole_ir::op::{Binary, CompareType, Direction, Monoid, Unary};
use systole_ir::{DType, Op, Scalar};

/// How a JIT-compiled loop reads an array of its element-wise program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadAccess {
    /// Consecutive elements.
    Stream,
    /// One element, broadcast.
    Spread,
    /// A constant.
    Constant,
}

/// What a JIT-compiled loop does with its results: store or reduce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResultSink {
    /// Stores each result as an array.
    Arrays,
    /// Reduces each result into 64 accumulators along the loop: element `i` into accumulator `i % 64`.
    Along(Monoid),
    /// Reduces each result element by element into an array of `n` accumulators.
    Across(Monoid),
}

/// Value of a program's register: a vector, or a mask for bool.
#[derive(Clone, Copy)]
enum LaneValue {
    Vector(StepArg),
    Mask(StepValue),
}

impl From<StepValue> for LaneValue {
    fn from(v: StepValue) -> LaneValue {
        LaneValue::Vector(v.into())
    }
}

/// Lowers an element-wise program to JIT steps. Arrays are numbered: loads first, then stores. `rounds`: see
/// [`StepBuilder::rounds`].
pub fn lower(
    map: &Map,
    access: &[LoadAccess],
    sink: ResultSink,
    (set, rounds): (LoopIsa, bool),
) -> Option<StepBuilder> {
    let steps = StepBuilder { list: Vec::new(), set, rounds };
    let mut l = JitLowering { map, access, steps, lanes: vec![None; map.loads.len()] };
    let is_read = |k: &usize| map.stores.contains(k) || map.instrs.iter().any(|i| i.args.contains(k));
    let read: Vec<usize> = (0..map.loads.len()).filter(is_read).collect();
    let mut results: Vec<(usize, usize)> = map.stores.iter().copied().enumerate().collect();
    for instr in &map.instrs {
        let lane = l.instruction(instr)?;
        l.lanes.push(Some(lane));
        // In-place results: storing is safe once all loads have been read.
        if read.iter().all(|&k| l.lanes[k].is_some()) {
            l.results(&mut results, sink)?;
        }
    }
    read.iter().try_for_each(|&k| l.lane(k).map(drop))?;
    l.results(&mut results, sink)?;
    Some(l.steps)
}

struct JitLowering<'a> {
    map: &'a Map,
    access: &'a [LoadAccess],
    steps: StepBuilder,
    lanes: Vec<Option<LaneValue>>,
}

/// Returns how elements of a type are widened to 32-bit lanes; `None` if they do not fit.
fn form(dtype: DType) -> Option<StoredType> {
    Some(match dtype {
        DType::F32 | DType::I32 | DType::U32 => StoredType::Word,
        DType::F16 => StoredType::F16,
        DType::BF16 | DType::U16 => StoredType::Half { signed: false },
        DType::I16 => StoredType::Half { signed: true },
        DType::Bool | DType::U8 => StoredType::Byte { signed: false },
        DType::I8 => StoredType::Byte { signed: true },
        DType::F64 | DType::I64 | DType::U64 => return None,
    })
}

fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Returns the bits of a constant as a 32-bit lane.
fn bits(value: Scalar, dtype: DType) -> u32 {
    match dtype {
        DType::F16 | DType::BF16 => (value.as_f64() as f32).to_bits(),
        _ => value.to_bits(dtype) as u32,
    }
}

impl JitLowering<'_> {
    /// Returns the value of a register; a load is emitted at its first use.
    fn lane(&mut self, e: usize) -> Option<LaneValue> {
        if let Some(lane) = self.lanes[e] {
            return Some(lane);
        }
        let dtype = self.map.dtype(e);
        let form = form(dtype)?;
        let lane = match (self.access[e], &self.map.loads[e]) {
            (LoadAccess::Constant, MapLoad::Splat { value, .. }) => match dtype {
                DType::Bool => return None,
                // A small integer would have to be extended like its load.
                _ if dtype.is_int() && dtype.size() < 4 => return None,
                _ => LaneValue::Vector(StepArg::Bits(bits(*value, dtype))),
            },
            // Coordinates are generated as lanes; f16 and bf16 have another form in memory.
            (_, MapLoad::Iota { .. }) if is_float(dtype) && dtype.size() == 2 => return None,
            (LoadAccess::Spread, _) => {
                let raw = self.steps.push(JitStep::Spread { array: e, form });
                // The broadcast repeats a narrow element within each 32-bit lane.
                let raw = match dtype {
                    DType::U8 => self.steps.and(raw, 0xff),
                    DType::U16 => self.steps.and(raw, 0xffff),
                    DType::I8 => self.steps.shift_right_signed(raw, 24),
                    DType::I16 => self.steps.shift_right_signed(raw, 16),
                    _ => raw,
                };
                self.loaded(raw, dtype)
            }
            _ => {
                let raw = self.steps.push(JitStep::Load(LoopOperand { array: e, form, around: false }));
                self.loaded(raw, dtype)
            }
        };
        self.lanes[e] = Some(lane);
        Some(lane)
    }

    fn loaded(&mut self, raw: StepValue, dtype: DType) -> LaneValue {
        match dtype {
            DType::BF16 => self.steps.shift_left(raw, 16).into(),
            DType::Bool => LaneValue::Mask(self.steps.push(JitStep::Compare {
                op: opcodes::PTESTMD,
                imm: None,
                a: raw,
                b: raw.into(),
            })),
            _ => raw.into(),
        }
    }

    fn vector(&mut self, e: usize) -> Option<StepArg> {
        match self.lane(e)? {
            LaneValue::Vector(a) => Some(a),
            LaneValue::Mask(_) => None,
        }
    }

    fn value(&mut self, e: usize) -> Option<StepValue> {
        let a = self.vector(e)?;
        Some(self.steps.value(a))
    }

    fn mask(&mut self, e: usize) -> Option<StepValue> {
        match self.lane(e)? {
            LaneValue::Mask(v) => Some(v),
            LaneValue::Vector(_) => None,
        }
    }

    fn instruction(&mut self, instr: &MapInstr) -> Option<LaneValue> {
        let (from, to) = (instr.from, instr.to);
        let arg = |k: usize| instr.args[k];
        if let Some(contraction) = instr.contraction {
            return self.multiply_add(instr, contraction);
        }
        match &instr.op {
            Op::Unary(op) if from == DType::Bool => {
                let a = self.mask(arg(0))?;
                (*op == Unary::Not).then(|| LaneValue::Mask(self.steps.push(JitStep::MaskNot(a))))
            }
            Op::Unary(Unary::IsFinite) => {
                let x = self.value(arg(0))?;
                let size = self.steps.abs(x);
                let (op, imm) = (opcodes::PCMPUD, Some(relation::INT_LESS));
                let b = f32::INFINITY.into();
                Some(LaneValue::Mask(self.steps.push(JitStep::Compare { op, imm, a: size, b })))
            }
            Op::Unary(op) if is_float(from) => {
                let x = self.value(arg(0))?;
                let y = self.float_unary(*op, x)?;
                Some(if is_exact(*op) { y } else { self.rounded(y, to) }.into())
            }
            Op::Unary(op) if from.size() == 4 => {
                let x = self.value(arg(0))?;
                match op {
                    Unary::Negate => Some(self.steps.two(opcodes::PSUBD, StepArg::Bits(0), x).into()),
                    Unary::Not => Some(self.steps.two(opcodes::PXORD, x, StepArg::Bits(u32::MAX)).into()),
                    _ => None,
                }
            }
            Op::Binary(op) => self.binary(*op, instr),
            Op::Compare(c) if c.compare_type != CompareType::TotalOrder => {
                self.compare(c.direction, from, arg(0), arg(1))
            }
            Op::Select(_) => self.select(arg(0), arg(1), arg(2)),
            Op::Clamp(_) if is_float(from) => {
                let (low, x, high) = (self.vector(arg(0))?, self.vector(arg(1))?, self.vector(arg(2))?);
                let y = self.steps.maximum(x, low);
                Some(self.steps.minimum(y.into(), high).into())
            }
            Op::Convert(_) => self.convert(from, to, arg(0)),
            _ => None,
        }
    }

    fn multiply_add(&mut self, instr: &MapInstr, contraction: Contraction) -> Option<LaneValue> {
        let &[a, b, c] = &instr.args[..] else { return None };
        if instr.to != DType::F32 {
            return None;
        }
        let (a, b, c) = (self.vector(a)?, self.vector(b)?, self.vector(c)?);
        let signs = match (&instr.op, contraction) {
            (Op::Binary(Binary::Add), _) => 0,
            (Op::Binary(Binary::Subtract), Contraction::Left) => opcodes::MINUS_ADDEND,
            (Op::Binary(Binary::Subtract), Contraction::Right) => opcodes::MINUS_PRODUCT,
            _ => return None,
        };
        let (a, b) = if matches!(a, StepArg::Bits(_)) { (b, a) } else { (a, b) };
        let a = self.steps.value(a);
        Some(self.steps.push(JitStep::Fma { a, b, c, signs }).into())
    }

    fn binary(&mut self, op: Binary, instr: &MapInstr) -> Option<LaneValue> {
        match instr.from {
            DType::Bool => {
                let (a, b) = (self.mask(instr.args[0])?, self.mask(instr.args[1])?);
                let op = match op {
                    Binary::Add | Binary::Or | Binary::Maximum => opcodes::KOR,
                    Binary::Multiply | Binary::And | Binary::Minimum => opcodes::KAND,
                    Binary::Xor => opcodes::KXOR,
                    _ => return None,
                };
                Some(LaneValue::Mask(self.steps.push(JitStep::Masks { op, a, b })))
            }
            from if is_float(from) => {
                let (a, b) = (self.vector(instr.args[0])?, self.vector(instr.args[1])?);
                let y = self.float_binary(op, a, b)?;
                let exact = matches!(op, Binary::Maximum | Binary::Minimum);
                Some(if exact { y } else { self.rounded(y, instr.to) }.into())
            }
            from if from.size() == 4 => {
                let code = int_binary(op, from)?;
                let (a, b) = (self.vector(instr.args[0])?, self.vector(instr.args[1])?);
                Some(self.steps.two(code, a, b).into())
            }
            _ => None,
        }
    }

    fn float_unary(&mut self, op: Unary, x: StepValue) -> Option<StepValue> {
        let s = &mut self.steps;
        Some(match op {
            Unary::Abs => s.abs(x),
            Unary::Ceil => s.round(x, rounding::UP),
            Unary::Erf => s.erf(x),
            Unary::Exponential => s.exp(x),
            Unary::Floor => s.round(x, rounding::DOWN),
            Unary::Log => s.log(x),
            Unary::Logistic => s.logistic(x),
            Unary::Negate => s.negate(x),
            Unary::RoundNearestAfz => s.round_away(x),
            Unary::RoundNearestEven => s.round(x, rounding::NEAREST_EVEN),
            Unary::Rsqrt => {
                let root = s.one(opcodes::SQRTPS, None, x);
                s.two(opcodes::DIVPS, 1.0, root)
            }
            Unary::Sign => s.sign(x),
            Unary::Sqrt => s.one(opcodes::SQRTPS, None, x),
            Unary::Tanh => s.tanh(x),
            _ => return None,
        })
    }

    fn float_binary(&mut self, op: Binary, a: StepArg, b: StepArg) -> Option<StepValue> {
        let s = &mut self.steps;
        Some(match op {
            // Only the second operand may be a constant in memory.
            Binary::Add | Binary::Multiply => {
                let (a, b) = if matches!(a, StepArg::Bits(_)) { (b, a) } else { (a, b) };
                s.two(if op == Binary::Add { opcodes::ADDPS } else { opcodes::MULPS }, a, b)
            }
            Binary::Subtract => s.sub(a, b),
            Binary::Divide => s.two(opcodes::DIVPS, a, b),
            Binary::Maximum => s.maximum(a, b),
            Binary::Minimum => s.minimum(a, b),
            _ => return None,
        })
    }

    /// Rounds f32 lanes to a narrow type.
    fn rounded(&mut self, x: StepValue, to: DType) -> StepValue {
        match to {
            DType::BF16 => self.steps.round_to_bf16(x),
            DType::F16 => self.steps.round_to_f16(x),
            _ => x,
        }
    }

    fn compare(&mut self, direction: Direction, from: DType, a: usize, b: usize) -> Option<LaneValue> {
        if from == DType::Bool {
            let (a, b) = (self.mask(a)?, self.mask(b)?);
            let op = match direction {
                Direction::Eq => opcodes::KXNOR,
                Direction::Ne => opcodes::KXOR,
                _ => return None,
            };
            return Some(LaneValue::Mask(self.steps.push(JitStep::Masks { op, a, b })));
        }
        form(from)?;
        let (a, b) = (self.value(a)?, self.vector(b)?);
        if is_float(from) {
            return Some(LaneValue::Mask(self.steps.holds(a, relation::of_floats(direction), b)));
        }
        let relation = match direction {
            Direction::Eq => relation::INT_EQUAL,
            Direction::Lt => relation::INT_LESS,
            Direction::Le => 2,
            Direction::Ne => 4,
            Direction::Ge => 5,
            Direction::Gt => relation::INT_GREATER,
        };
        let op = if from.is_signed_int() { opcodes::PCMPD } else { opcodes::PCMPUD };
        Some(LaneValue::Mask(self.steps.push(JitStep::Compare { op, imm: Some(relation), a, b })))
    }

    fn select(&mut self, p: usize, yes: usize, no: usize) -> Option<LaneValue> {
        let mask = self.mask(p)?;
        Some(match (self.lane(yes)?, self.lane(no)?) {
            (LaneValue::Vector(yes), LaneValue::Vector(no)) => self.steps.select(mask, yes, no).into(),
            (LaneValue::Mask(yes), LaneValue::Mask(no)) => {
                let yes = self.steps.push(JitStep::Masks { op: opcodes::KAND, a: mask, b: yes });
                let no = self.steps.push(JitStep::Masks { op: opcodes::KANDN, a: mask, b: no });
                LaneValue::Mask(self.steps.push(JitStep::Masks { op: opcodes::KOR, a: yes, b: no }))
            }
            _ => return None,
        })
    }

    fn convert(&mut self, from: DType, to: DType, a: usize) -> Option<LaneValue> {
        use DType::*;
        if from == Bool {
            let mask = self.mask(a)?;
            let one = match to {
                F32 | F16 | BF16 => StepArg::from(1.0),
                I32 | U32 => StepArg::Bits(1),
                _ => return None,
            };
            return Some(self.steps.select(mask, one, StepArg::Bits(0)).into());
        }
        form(from)?;
        let x = self.value(a)?;
        let is_inside = self.is_clamped(a, to);
        let is_read = self.map.instrs.iter().any(|i| i.args.contains(&self.lanes.len()));
        let s = &mut self.steps;
        Some(match (from, to) {
            (F32 | F16 | BF16, I8 | U8) => s.float_to_byte(x, to == I8, is_inside, is_read).into(),
            (I32, I8) => {
                let up = s.shift_left(x, 24);
                s.shift_right_signed(up, 24).into()
            }
            (I32, U8) => s.and(x, 0xff).into(),
            (F32 | F16 | BF16, F32 | F16 | BF16) => self.rounded(x, to).into(),
            (F32 | F16 | BF16, Bool) => LaneValue::Mask(s.holds(x, relation::NOT_EQUAL, 0.0)),
            (F32 | F16 | BF16, I32) => {
                // Out-of-range values give `i32::MIN`.
                let y = s.one(opcodes::CVTTPS2DQ, None, x);
                let high = s.holds(x, relation::GREATER_OR_EQUAL, 2_147_483_648.0);
                let y = s.select(high, StepArg::Bits(i32::MAX as u32), y);
                let number = s.holds(x, relation::NUMBER, x);
                s.select(number, y, StepArg::Bits(0)).into()
            }
            (F32 | F16 | BF16, U32) => {
                // `maxps` turns NaN and negative numbers into 0; too large ones convert to the largest number.
                let x = s.two(opcodes::MAXPS, x, 0.0);
                s.float_to_unsigned(x).into()
            }
            (U32, F32) => s.unsigned_to_float(x).into(),
            (I8 | I16 | I32 | U8 | U16, F32) | (U8, F16 | BF16) => s.one(opcodes::CVTDQ2PS, None, x).into(),
            (I8 | I16 | U8 | U16 | I32 | U32, I32) | (U8 | I32 | U32, U32) => x.into(),
            _ => return None,
        })
    }

    /// Whether a register is NaN or clamped to the values of an integer type.
    fn is_clamped(&self, e: usize, to: DType) -> bool {
        let splat = |e: usize| match self.map.loads.get(e) {
            Some(MapLoad::Splat { value, .. }) => Some(value.as_f64()),
            _ => None,
        };
        let instr = e.checked_sub(self.map.loads.len()).and_then(|k| self.map.instrs.get(k));
        let Some(MapInstr { op: Op::Clamp(_), args, .. }) = instr else { return false };
        match (splat(args[0]), splat(args[2])) {
            (Some(low), Some(high)) => low >= to.lowest().as_f64() && high <= to.highest().as_f64(),
            _ => false,
        }
    }

    /// Stores or reduces the results, `(number, register)`, that have been computed; the others remain in `left`.
    fn results(&mut self, left: &mut Vec<(usize, usize)>, sink: ResultSink) -> Option<()> {
        let there = self.lanes.len();
        let (ready, later): (Vec<_>, Vec<_>) = left.drain(..).partition(|&(_, e)| e < there);
        *left = later;
        ready.into_iter().try_for_each(|(s, e)| self.result(s, e, sink))
    }

    /// Stores or reduces register `e`, which is result `s`.
    fn result(&mut self, s: usize, e: usize, sink: ResultSink) -> Option<()> {
        let dtype = self.map.dtype(e);
        let array = self.map.loads.len() + s;
        let monoid = match sink {
            ResultSink::Arrays => {
                let lane = self.lane(e)?;
                let v = self.stored(lane, dtype)?;
                self.steps.push(JitStep::Store(LoopOperand { array, form: form(dtype)?, around: false }, v));
                return Some(());
            }
            ResultSink::Along(monoid) | ResultSink::Across(monoid) => monoid,
        };
        // Narrow floats are accumulated in f32.
        if !is_float(dtype) && dtype.size() != 4 {
            return None;
        }
        let x = self.vector(e)?;
        let place =
            LoopOperand { array, form: StoredType::Word, around: matches!(sink, ResultSink::Along(_)) };
        let before = self.steps.push(JitStep::Load(place));
        let after = match monoid.op() {
            op if is_float(dtype) => self.float_binary(op, before.into(), x)?,
            op => self.steps.two(int_binary(op, dtype)?, before, x),
        };
        self.steps.push(JitStep::Store(place, after));
        Some(())
    }

    /// Converts lanes to the form in which the array stores them.
    fn stored(&mut self, lane: LaneValue, dtype: DType) -> Option<StepValue> {
        Some(match lane {
            LaneValue::Mask(mask) => self.steps.select(mask, StepArg::Bits(1), StepArg::Bits(0)),
            LaneValue::Vector(a) => {
                let v = self.steps.value(a);
                if dtype == DType::BF16 { self.upper_half(v) } else { v }
            }
        })
    }

    /// Returns the upper half of each 32-bit lane, zero-extended. A word that was just shifted up from zero-extended 16
    /// bits is used as it was.
    fn upper_half(&mut self, v: StepValue) -> StepValue {
        if let JitStep::Shift { way: opcodes::SHIFT_LEFT, by: 16, a } = self.steps.list[v.0]
            && matches!(self.steps.list[a.0], JitStep::One { op: opcodes::PMOVZXWD, .. })
        {
            return a;
        }
        self.steps.shift_right(v, 16)
    }
}

/// Whether an op on narrow floats gives a narrow float without rounding.
fn is_exact(op: Unary) -> bool {
    matches!(op, Unary::Abs | Unary::Negate | Unary::Sign)
}

fn int_binary(op: Binary, dtype: DType) -> Option<Code> {
    let signed = dtype.is_signed_int();
    Some(match op {
        Binary::Add => opcodes::PADDD,
        Binary::Subtract => opcodes::PSUBD,
        Binary::Multiply => opcodes::PMULLD,
        Binary::And => opcodes::PANDD,
        Binary::Or => opcodes::PORD,
        Binary::Xor => opcodes::PXORD,
        Binary::ShiftLeft => opcodes::PSLLVD,
        Binary::ShiftRightLogical => opcodes::PSRLVD,
        Binary::Maximum if signed => opcodes::PMAXSD,
        Binary::Maximum => opcodes::PMAXUD,
        Binary::Minimum if signed => opcodes::PMINSD,
        Binary::Minimum => opcodes::PMINUD,
        _ => return None,
    })
}
