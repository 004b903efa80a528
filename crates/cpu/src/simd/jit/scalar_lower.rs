//! Lowers instructions of element-wise programs to scalar code. The results are those of the vector loops.
#![forbid(unsafe_code)]

use crate::simd::jit::opcodes::{self, Opcode};
use crate::simd::jit::scalar_code::{
    IntegerCondition, IntegerOp, RegisterClass, ScalarCode, ScalarOperation, ScalarType, ScalarValue,
};
use crate::simd::jit::steps::{relation, rounding};
use systole_compile::{Contraction, MapInstr};
use systole_ir::op::{Binary, CompareType, Direction, Unary};
use systole_ir::{DType, Op};

/// Returns the form of a number of this type; `None` if scalar code does not support it.
pub fn scalar_type(dtype: DType) -> Option<ScalarType> {
    Some(match dtype {
        DType::Bool => ScalarType::Bool,
        DType::F32 => ScalarType::F32,
        DType::F64 => ScalarType::F64,
        DType::I32 | DType::U32 => ScalarType::I32,
        DType::I64 | DType::U64 => ScalarType::I64,
        _ => return None,
    })
}

/// Instructions of a float type.
struct FloatSet {
    add: Opcode,
    subtract: Opcode,
    multiply: Opcode,
    divide: Opcode,
    minimum: Opcode,
    maximum: Opcode,
    sqrt: Opcode,
    round: Opcode,
    compare: Opcode,
    multiply_add: Opcode,
    blend: Opcode,
}

const SINGLE: FloatSet = FloatSet {
    add: opcodes::ADDPS,
    subtract: opcodes::SUBPS,
    multiply: opcodes::MULPS,
    divide: opcodes::DIVPS,
    minimum: opcodes::MINPS,
    maximum: opcodes::MAXPS,
    sqrt: opcodes::SQRTPS,
    round: opcodes::RNDSCALEPS,
    compare: opcodes::CMPPS,
    multiply_add: opcodes::FMADD231PS,
    blend: opcodes::BLENDVPS,
};

const DOUBLE: FloatSet = FloatSet {
    add: opcodes::ADDPD,
    subtract: opcodes::SUBPD,
    multiply: opcodes::MULPD,
    divide: opcodes::DIVPD,
    minimum: opcodes::MINPD,
    maximum: opcodes::MAXPD,
    sqrt: opcodes::SQRTPD,
    round: opcodes::ROUNDPD,
    compare: opcodes::CMPPD,
    multiply_add: opcodes::FMADD231PD,
    blend: opcodes::BLENDVPD,
};

fn float_set(dtype: DType) -> Option<&'static FloatSet> {
    match dtype {
        DType::F32 => Some(&SINGLE),
        DType::F64 => Some(&DOUBLE),
        _ => None,
    }
}

/// Returns the condition of a comparison.
fn condition(direction: Direction, signed: bool) -> IntegerCondition {
    IntegerCondition(match (direction, signed) {
        (Direction::Eq, _) => 0x4,
        (Direction::Ne, _) => 0x5,
        (Direction::Lt, true) => 0xc,
        (Direction::Ge, true) => 0xd,
        (Direction::Le, true) => 0xe,
        (Direction::Gt, true) => 0xf,
        (Direction::Lt, false) => 0x2,
        (Direction::Ge, false) => 0x3,
        (Direction::Le, false) => 0x6,
        (Direction::Gt, false) => 0x7,
    })
}

impl ScalarCode {
    /// Returns a constant of the width of a type: `word` or `double`.
    fn constant(&mut self, dtype: DType, word: u32, double: u64) -> ScalarValue {
        if dtype.size() == 8 { self.double(double) } else { self.word(word) }
    }

    fn sign_bit(&mut self, dtype: DType) -> ScalarValue {
        self.constant(dtype, 1 << 31, 1 << 63)
    }

    fn ones(&mut self) -> ScalarValue {
        self.double(u64::MAX)
    }

    /// Returns a constant whose bits are `bits` of the type.
    pub fn constant_of(&mut self, dtype: DType, bits: u64) -> ScalarValue {
        match dtype {
            DType::Bool => self.word(if bits == 0 { 0 } else { u32::MAX }),
            _ => self.constant(dtype, bits as u32, bits),
        }
    }

    /// Computes an instruction; `None` if it has no scalar form.
    pub fn instruction(&mut self, instr: &MapInstr, args: &[ScalarValue]) -> Option<ScalarValue> {
        let (from, to) = (instr.from, instr.to);
        if let Some(contraction) = instr.contraction {
            return self.contracted(instr, contraction, args);
        }
        match &instr.op {
            Op::Unary(op) => self.unary(*op, from, args[0]),
            Op::Binary(op) => self.combine(*op, from, args[0], args[1]),
            Op::Compare(c) if c.compare_type != CompareType::TotalOrder => {
                Some(self.relation(c.direction, from, args[0], args[1]))
            }
            Op::Select(_) => Some(self.choose(to, args[0], args[1], args[2])),
            Op::Clamp(_) if from == DType::F32 => {
                let low = self.combine(Binary::Maximum, from, args[1], args[0])?;
                self.combine(Binary::Minimum, from, low, args[2])
            }
            Op::Convert(_) => self.converted(from, to, args[0]),
            _ => None,
        }
    }

    /// Returns `a · b + c`, rounded once.
    pub fn multiply_add(
        &mut self,
        dtype: DType,
        a: ScalarValue,
        b: ScalarValue,
        c: ScalarValue,
    ) -> Option<ScalarValue> {
        let op = float_set(dtype)?.multiply_add;
        Some(self.define(ScalarOperation::MultiplyAdd { op, signs: 0 }, &[a, b, c]))
    }

    fn contracted(
        &mut self,
        instr: &MapInstr,
        contraction: Contraction,
        args: &[ScalarValue],
    ) -> Option<ScalarValue> {
        let set = float_set(instr.to)?;
        let signs = match (&instr.op, contraction) {
            (Op::Binary(Binary::Add), _) => 0,
            (_, Contraction::Left) => opcodes::MINUS_ADDEND,
            (_, Contraction::Right) => opcodes::MINUS_PRODUCT,
        };
        Some(self.define(ScalarOperation::MultiplyAdd { op: set.multiply_add, signs }, args))
    }

    fn unary(&mut self, op: Unary, dtype: DType, x: ScalarValue) -> Option<ScalarValue> {
        let Some(set) = float_set(dtype) else { return self.integer_unary(op, dtype, x) };
        let sign = self.sign_bit(dtype);
        Some(match op {
            Unary::Negate => self.two(opcodes::PXORD, x, sign),
            Unary::Abs => self.two(opcodes::PANDN, sign, x),
            Unary::Sqrt => self.one(set.sqrt, None, x),
            Unary::Ceil => self.one(set.round, Some(rounding::UP), x),
            Unary::Floor => self.one(set.round, Some(rounding::DOWN), x),
            Unary::RoundNearestEven => self.one(set.round, Some(rounding::NEAREST_EVEN), x),
            Unary::Sign => {
                let zero = self.double(0);
                let one = self.constant(dtype, 1f32.to_bits(), 1f64.to_bits());
                let keep = self.float_relation(set, relation::EQUAL_OR_NAN, x, zero);
                let signed = self.two(opcodes::PANDD, x, sign);
                let signed = self.two(opcodes::PORD, signed, one);
                self.define(ScalarOperation::Blend { op: set.blend }, &[keep, x, signed])
            }
            _ => return None,
        })
    }

    fn integer_unary(&mut self, op: Unary, dtype: DType, x: ScalarValue) -> Option<ScalarValue> {
        match op {
            Unary::Not => {
                let ones = self.ones();
                self.combine(Binary::Xor, dtype, x, ones)
            }
            Unary::Negate if dtype.is_int() => {
                let zero = self.double(0);
                self.combine(Binary::Subtract, dtype, zero, x)
            }
            Unary::Abs if dtype.is_signed_int() => {
                let negative = self.integer_unary(Unary::Negate, dtype, x)?;
                self.combine(Binary::Maximum, dtype, x, negative)
            }
            Unary::Popcnt | Unary::CountLeadingZeros if dtype.is_int() => {
                let leading = op == Unary::CountLeadingZeros;
                let x = self.general(x);
                Some(self.define(ScalarOperation::CountBits { wide: dtype.size() == 8, leading }, &[x]))
            }
            Unary::Sign if dtype.is_signed_int() => {
                let (one, less) = (self.constant(dtype, 1, 1), self.ones());
                let limited = self.combine(Binary::Minimum, dtype, x, one)?;
                self.combine(Binary::Maximum, dtype, limited, less)
            }
            _ => None,
        }
    }

    /// Computes a binary op.
    pub fn combine(
        &mut self,
        op: Binary,
        dtype: DType,
        a: ScalarValue,
        b: ScalarValue,
    ) -> Option<ScalarValue> {
        if dtype == DType::Bool && [a, b].iter().all(|&x| self.class(x) != RegisterClass::General) {
            let op = match op {
                Binary::Add | Binary::Or | Binary::Maximum => opcodes::PORD,
                Binary::Multiply | Binary::And | Binary::Minimum => opcodes::PANDD,
                Binary::Xor => opcodes::PXORD,
                _ => return None,
            };
            return Some(self.two(op, a, b));
        }
        let Some(set) = float_set(dtype) else { return self.integer_binary(op, dtype, a, b) };
        Some(match op {
            Binary::Add => self.two(set.add, a, b),
            Binary::Subtract => self.two(set.subtract, a, b),
            Binary::Multiply => self.two(set.multiply, a, b),
            Binary::Divide => self.two(set.divide, a, b),
            Binary::Maximum => self.extreme(set, set.maximum, opcodes::PANDD, a, b),
            Binary::Minimum => self.extreme(set, set.minimum, opcodes::PORD, a, b),
            _ => return None,
        })
    }

    /// Returns the IEEE 754-2019 maximum or minimum: `of_equal` decides between zeros, and a NaN prevails.
    fn extreme(
        &mut self,
        set: &FloatSet,
        op: Opcode,
        of_equal: Opcode,
        a: ScalarValue,
        b: ScalarValue,
    ) -> ScalarValue {
        let one = self.two(op, a, b);
        let equal = self.float_relation(set, relation::EQUAL, a, b);
        let both = self.two(of_equal, a, b);
        let one = self.define(ScalarOperation::Blend { op: set.blend }, &[equal, both, one]);
        let nan = self.float_relation(set, relation::NAN, a, a);
        self.define(ScalarOperation::Blend { op: set.blend }, &[nan, a, one])
    }

    fn float_relation(
        &mut self,
        set: &FloatSet,
        relation: u8,
        a: ScalarValue,
        b: ScalarValue,
    ) -> ScalarValue {
        self.define(ScalarOperation::Vector { op: set.compare, imm: Some(relation) }, &[a, b])
    }

    /// Computes an op of integers.
    fn integer(&mut self, op: IntegerOp, wide: bool, a: ScalarValue, b: ScalarValue) -> ScalarValue {
        let (a, b) = (self.general(a), self.general(b));
        self.define(ScalarOperation::Integer { op, wide }, &[a, b])
    }

    /// Computes a binary op of integers or bools.
    fn integer_binary(
        &mut self,
        op: Binary,
        dtype: DType,
        a: ScalarValue,
        b: ScalarValue,
    ) -> Option<ScalarValue> {
        let (wide, signed) = (dtype.size() == 8, dtype.is_signed_int());
        let is_bool = dtype == DType::Bool;
        let op = match op {
            Binary::Add | Binary::Maximum if is_bool => IntegerOp::Or,
            Binary::Multiply | Binary::Minimum if is_bool => IntegerOp::And,
            Binary::And => IntegerOp::And,
            Binary::Or => IntegerOp::Or,
            Binary::Xor => IntegerOp::Xor,
            _ if is_bool => return None,
            Binary::Add => IntegerOp::Add,
            Binary::Subtract => IntegerOp::Subtract,
            Binary::Multiply => IntegerOp::Multiply,
            Binary::ShiftLeft => IntegerOp::ShiftLeft,
            Binary::ShiftRightLogical => IntegerOp::ShiftRight,
            Binary::ShiftRightArithmetic => IntegerOp::ShiftRightSigned,
            Binary::Maximum => IntegerOp::Choose(condition(Direction::Gt, signed)),
            Binary::Minimum => IntegerOp::Choose(condition(Direction::Lt, signed)),
            Binary::Divide | Binary::Remainder => {
                return Some(self.divided(dtype, a, b, op == Binary::Remainder));
            }
            _ => return None,
        };
        Some(self.integer(op, wide, a, b))
    }

    /// Returns the quotient of two integers, or the remainder.
    fn divided(&mut self, dtype: DType, a: ScalarValue, b: ScalarValue, remainder: bool) -> ScalarValue {
        let (wide, signed) = (dtype.size() == 8, dtype.is_signed_int());
        if let Some(shifted) = self.divided_by_power(dtype, a, b, remainder) {
            return shifted;
        }
        let (a, b) = (self.general(a), self.general(b));
        self.define(ScalarOperation::Divide { wide, signed, remainder }, &[a, b])
    }

    /// Returns the quotient of a 32-bit integer and a constant power of two, or the remainder.
    fn divided_by_power(
        &mut self,
        dtype: DType,
        a: ScalarValue,
        b: ScalarValue,
        remainder: bool,
    ) -> Option<ScalarValue> {
        let ScalarOperation::Constant(bits) = self.nodes[b].operation else { return None };
        let divisor = bits as u32;
        let signed = dtype.is_signed_int();
        if dtype.size() != 4 || !divisor.is_power_of_two() || signed && divisor > 1 << 30 {
            return None;
        }
        let (mask, by) = (self.word(divisor - 1), self.word(divisor.trailing_zeros()));
        if !signed {
            return Some(match remainder {
                true => self.integer(IntegerOp::And, false, a, mask),
                false => self.integer(IntegerOp::ShiftRight, false, a, by),
            });
        }
        // Rounds toward zero: negative numbers are shifted after the largest remainder is added.
        let all = self.word(31);
        let sign = self.integer(IntegerOp::ShiftRightSigned, false, a, all);
        let more = self.integer(IntegerOp::And, false, sign, mask);
        let sum = self.integer(IntegerOp::Add, false, a, more);
        if !remainder {
            return Some(self.integer(IntegerOp::ShiftRightSigned, false, sum, by));
        }
        let upper = self.word(!(divisor - 1));
        let whole = self.integer(IntegerOp::And, false, sum, upper);
        Some(self.integer(IntegerOp::Subtract, false, a, whole))
    }

    /// Compares two numbers; the result is a bool.
    pub fn relation(
        &mut self,
        direction: Direction,
        dtype: DType,
        a: ScalarValue,
        b: ScalarValue,
    ) -> ScalarValue {
        if let Some(set) = float_set(dtype) {
            return self.float_relation(set, relation::of_floats(direction), a, b);
        }
        let (a, b) = (self.general(a), self.general(b));
        let condition = condition(direction, dtype.is_signed_int());
        self.define(ScalarOperation::Compare { condition, wide: dtype.size() == 8 }, &[a, b])
    }

    /// Returns `yes` if the bool is true, else `no`.
    pub fn choose(
        &mut self,
        dtype: DType,
        bool: ScalarValue,
        yes: ScalarValue,
        no: ScalarValue,
    ) -> ScalarValue {
        let Some(set) = float_set(dtype) else {
            let args = [bool, yes, no].map(|x| self.general(x));
            return self.define(ScalarOperation::Select, &args);
        };
        let [mut mask, yes, no] = [bool, yes, no].map(|x| self.vector(x));
        if dtype == DType::F64 {
            mask = self.one(opcodes::PMOVSXDQ, None, mask);
        }
        self.define(ScalarOperation::Blend { op: set.blend }, &[mask, yes, no])
    }

    fn converted(&mut self, from: DType, to: DType, x: ScalarValue) -> Option<ScalarValue> {
        use DType::*;
        Some(match (from, to) {
            (F32, F32) | (F64, F64) | (Bool, Bool) => x,
            (I32 | U32 | I64 | U64, I32 | U32) | (I64 | U64, I64 | U64) => x,
            (I32 | U32, I64 | U64) => {
                let x = self.general(x);
                self.define(ScalarOperation::Extend { signed: from == I32 }, &[x])
            }
            (Bool, I32 | U32 | I64 | U64) => {
                let one = self.constant(to, 1, 1);
                self.integer(IntegerOp::And, to.size() == 8, x, one)
            }
            (Bool, F32) => {
                let one = self.word(1f32.to_bits());
                self.two(opcodes::PANDD, x, one)
            }
            (Bool, F64) => {
                let one = self.double(1f64.to_bits());
                let wide = self.one(opcodes::PMOVSXDQ, None, x);
                self.two(opcodes::PANDD, wide, one)
            }
            (I32, F32) => self.one(opcodes::CVTDQ2PS, None, x),
            (I32, F64) => self.one(opcodes::CVTDQ2PD, None, x),
            (U32, F64) => {
                let x = self.general(x);
                let wide = self.define(ScalarOperation::Extend { signed: false }, &[x]);
                self.define(ScalarOperation::Int64ToDouble, &[wide])
            }
            (I64, F64) => {
                let x = self.general(x);
                self.define(ScalarOperation::Int64ToDouble, &[x])
            }
            (F32, F64) => self.one(opcodes::CVTPS2PD, None, x),
            (F64, F32) => self.one(opcodes::CVTPD2PS, None, x),
            _ => return None,
        })
    }
}
