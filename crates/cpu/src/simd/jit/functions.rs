//! JIT expansion of elementary functions (exp, tanh …) to steps; bit-identical to `math` with fused multiply-adds.
#![forbid(unsafe_code)]

use crate::simd::jit::opcodes;
use crate::simd::jit::opcodes::Opcode;
use crate::simd::jit::steps::{JitStep, LoopIsa, StepArg, StepBuilder, StepValue, relation, rounding};
use crate::simd::math;

const SIGN: u32 = 0x8000_0000;
const NOT_SIGN: u32 = 0x7fff_ffff;

impl StepBuilder {
    pub fn abs(&mut self, x: StepValue) -> StepValue {
        self.and(x, NOT_SIGN)
    }

    pub fn negate(&mut self, x: StepValue) -> StepValue {
        self.two(opcodes::PXORD, x, StepArg::Bits(SIGN))
    }

    /// Returns the magnitude of `x` with the sign of `s`.
    fn copy_sign(&mut self, x: StepValue, s: StepValue) -> StepValue {
        self.push(JitStep::Mix { a: x, b: s, mask: SIGN })
    }

    pub fn is_nan(&mut self, x: StepValue) -> StepValue {
        self.holds(x, relation::NAN, x)
    }

    /// Returns `base` with `a op b` in the lanes of `mask`.
    fn merge(&mut self, mask: StepValue, base: StepValue, op: Opcode, a: StepValue, b: StepArg) -> StepValue {
        self.push(JitStep::Merge { mask, base, op, a, b })
    }

    pub fn sign(&mut self, x: StepValue) -> StepValue {
        let keep = self.holds(x, relation::EQUAL_OR_NAN, 0.0);
        let sign = self.and(x, SIGN);
        let one = self.two(opcodes::PORD, sign, 1.0);
        self.select(keep, x, one)
    }

    /// Emits rounding half away from zero.
    pub fn round_away(&mut self, x: StepValue) -> StepValue {
        let sign = self.and(x, SIGN);
        let half = self.two(opcodes::PORD, sign, StepArg::Bits(0.5f32.to_bits() - 1));
        let sum = self.add(x, half);
        self.round(sum, rounding::TO_ZERO)
    }

    /// Emits the IEEE 754-2019 maximum; see [`math::maximum`].
    pub fn maximum(&mut self, a: StepArg, b: StepArg) -> StepValue {
        match (a, b) {
            // For equal operands `maxps` returns the second, which is wrong for −0 only; adding 0 fixes that and
            // changes nothing else.
            (StepArg::Value(x), StepArg::Bits(0)) | (StepArg::Bits(0), StepArg::Value(x)) => {
                let m = self.two(opcodes::MAXPS, 0.0, x);
                self.add(m, 0.0)
            }
            (StepArg::Value(x), c @ StepArg::Bits(bits)) | (c @ StepArg::Bits(bits), StepArg::Value(x))
                if plain(bits) =>
            {
                self.two(opcodes::MAXPS, c, x)
            }
            _ => self.extreme(opcodes::MAXPS, opcodes::PANDD, a, b),
        }
    }

    /// Emits the IEEE 754-2019 minimum; see [`math::minimum`].
    pub fn minimum(&mut self, a: StepArg, b: StepArg) -> StepValue {
        match (a, b) {
            (StepArg::Value(x), c @ StepArg::Bits(bits)) | (c @ StepArg::Bits(bits), StepArg::Value(x))
                if plain(bits) =>
            {
                self.two(opcodes::MINPS, c, x)
            }
            _ => self.extreme(opcodes::MINPS, opcodes::PORD, a, b),
        }
    }

    fn extreme(&mut self, op: Opcode, of_equal: Opcode, a: StepArg, b: StepArg) -> StepValue {
        let a = self.value(a);
        let m = self.two(op, a, b);
        let equal = self.holds(a, relation::EQUAL, b);
        let m = self.merge(equal, m, of_equal, a, b);
        let nan = self.is_nan(a);
        self.select(nan, a, m)
    }

    /// Returns `(y, power)` with eˣ = y·2ⁿ. For AVX-512 `power` is n as a float (for `scalefps`); else n is in the low
    /// bits of `power`.
    fn exp_parts(&mut self, x: StepValue) -> (StepValue, StepValue) {
        let shifted = self.fma(x, std::f32::consts::LOG2_E, math::MAGIC);
        let n = self.sub(shifted, math::MAGIC);
        let r = self.fma(n, -math::LN_2_HIGH, x);
        let r = self.fma(n, math::LN_2_LOW, r);
        let p = self.poly(r, &math::EXP);
        let square = self.mul(r, r);
        let y = self.fma(p, square, r);
        (self.add(y, 1.0), if self.set == LoopIsa::Avx512 { n } else { shifted })
    }

    /// Returns 2ⁿ for normal exponents. `n` is in the low bits; the bits above it are shifted out.
    fn power_of_two(&mut self, n: StepValue) -> StepValue {
        let exponent = self.shift_left(n, 23);
        self.two(opcodes::PADDD, exponent, 1.0)
    }

    pub fn exp(&mut self, x: StepValue) -> StepValue {
        let x = self.two(opcodes::MINPS, math::EXP_RANGE.1, x);
        let x = self.two(opcodes::MAXPS, math::EXP_RANGE.0, x);
        let (y, n) = self.exp_parts(x);
        // 2ⁿ is applied in two factors, and only the second can round: the same result as one rounding.
        if self.set == LoopIsa::Avx512 {
            return self.two(opcodes::SCALEFPS, y, n);
        }
        let half = self.push(JitStep::Shift { way: opcodes::SHIFT_RIGHT_SIGNED, by: 1, a: n });
        let rest = self.two(opcodes::PSUBD, n, half);
        let half = self.power_of_two(half);
        let y = self.mul(y, half);
        let rest = self.power_of_two(rest);
        self.mul(y, rest)
    }

    pub fn log(&mut self, x: StepValue) -> StepValue {
        const ROOT: u32 = std::f32::consts::FRAC_1_SQRT_2.to_bits();
        let denormal = self.holds(x, relation::LESS, f32::MIN_POSITIVE);
        let scaled = self.merge(denormal, x, opcodes::MULPS, x, 8_388_608f32.into());
        // The exponent of the mantissa in [√½, √2), which is the number without it.
        let above = self.two(opcodes::PSUBD, scaled, StepArg::Bits(ROOT));
        let e = self.shift_right_signed(above, 23);
        let mantissa = self.and(above, 0x007f_ffff);
        let mantissa = self.two(opcodes::PADDD, mantissa, StepArg::Bits(ROOT));
        let e = self.merge(denormal, e, opcodes::PSUBD, e, StepArg::Bits(23));
        let e = self.one(opcodes::CVTDQ2PS, None, e);
        let m = self.sub(mantissa, 1.0);
        let z = self.mul(m, m);
        let p = self.poly(m, &math::LOG);
        let p = self.mul(p, m);
        let p = self.mul(p, z);
        let y = self.fma(e, -math::LN_2_LOW, p);
        let y = self.fma(z, -0.5, y);
        let y = self.add(m, y);
        let y = self.fma(e, math::LN_2_HIGH, y);
        // Infinity and NaN are their own logarithms; NaN is not less.
        let finite = self.holds(x, relation::LESS, f32::INFINITY);
        let y = self.select(finite, y, x);
        let negative = self.holds(x, relation::LESS, 0.0);
        let y = self.select(negative, f32::NAN, y);
        let zero = self.holds(x, relation::EQUAL, 0.0);
        self.select(zero, f32::NEG_INFINITY, y)
    }

    pub fn logistic(&mut self, x: StepValue) -> StepValue {
        let minus = self.two(opcodes::PORD, x, StepArg::Bits(SIGN));
        let e = self.exp(minus);
        let right = self.holds(x, relation::NOT_LESS, 0.0);
        let top = self.select(right, 1.0, e);
        let bottom = self.add(e, 1.0);
        self.two(opcodes::DIVPS, top, bottom)
    }

    /// Emits tanh x, ordered for few live values, so that more copies of the loop fit the registers.
    pub fn tanh(&mut self, x: StepValue) -> StepValue {
        let size = self.abs(x);
        let twice = self.mul(size, 2.0);
        let twice = self.two(opcodes::MINPS, 40.0, twice);
        let (y, n) = self.exp_parts(twice);
        let bottom = if self.set == LoopIsa::Avx512 {
            let e = self.two(opcodes::SCALEFPS, y, n);
            self.add(e, 1.0)
        } else {
            let power = self.power_of_two(n);
            self.fma(y, power, 1.0)
        };
        let part = self.two(opcodes::DIVPS, 2.0, bottom);
        let far = self.sub(1.0, part);
        let far = self.copy_sign(far, x);
        let z = self.mul(x, x);
        let p = self.poly(z, &math::TANH);
        let p = self.fma(p, z, 1.0);
        let near = self.mul(p, x);
        let size = self.abs(x);
        let is_far = self.holds(size, relation::GREATER, 0.625);
        self.select(is_far, far, near)
    }

    pub fn erf(&mut self, x: StepValue) -> StepValue {
        let w = self.two(opcodes::MINPS, math::ERF_IS_ONE, x);
        let w = self.two(opcodes::MAXPS, -math::ERF_IS_ONE, w);
        let z = self.mul(w, w);
        let top = self.poly(z, &math::ERF_TOP);
        let bottom = self.poly(z, &math::ERF_BOTTOM);
        let ratio = self.two(opcodes::DIVPS, top, bottom);
        self.mul(w, ratio)
    }

    /// Emits the conversion of u32 to f32: both halves are exact, and their sum is rounded once.
    pub fn unsigned_to_float(&mut self, x: StepValue) -> StepValue {
        if self.set == LoopIsa::Avx512 {
            return self.one(opcodes::CVTUDQ2PS, None, x);
        }
        let high = self.shift_right(x, 16);
        let high = self.one(opcodes::CVTDQ2PS, None, high);
        let low = self.and(x, 0xffff);
        let low = self.one(opcodes::CVTDQ2PS, None, low);
        self.fma(high, 65536.0, low)
    }

    /// Emits the conversion of f32 ≥ 0 to u32; saturates.
    pub fn float_to_unsigned(&mut self, x: StepValue) -> StepValue {
        if self.set == LoopIsa::Avx512 {
            return self.one(opcodes::CVTTPS2UDQ, None, x);
        }
        const HALF: f32 = 2_147_483_648.0;
        let upper = self.holds(x, relation::GREATER_OR_EQUAL, HALF);
        let off = self.select(upper, HALF, 0.0);
        let lower = self.sub(x, off);
        let y = self.one(opcodes::CVTTPS2DQ, None, lower);
        let bit = self.select(upper, StepArg::Bits(SIGN), 0.0);
        let y = self.two(opcodes::PXORD, y, bit);
        let beyond = self.holds(x, relation::GREATER_OR_EQUAL, 2.0 * HALF);
        self.select(beyond, StepArg::Bits(u32::MAX), y)
    }

    /// Emits the conversion to int8 or uint8, which saturates. `is_inside`: whether numbers are inside the range.
    /// `is_read`: whether another step reads the lane. Otherwise only its low byte counts, which is 0 for NaN.
    pub fn float_to_byte(
        &mut self,
        x: StepValue,
        is_signed: bool,
        is_inside: bool,
        is_read: bool,
    ) -> StepValue {
        let (low, high) = if is_signed { (-128.0, 127.0) } else { (0.0, 255.0) };
        let y = if is_inside {
            x
        } else {
            let y = self.two(opcodes::MAXPS, low, x);
            self.two(opcodes::MINPS, high, y)
        };
        let y = self.one(opcodes::CVTTPS2DQ, None, y);
        if !is_read {
            return y;
        }
        let number = self.holds(x, relation::NUMBER, x);
        self.select(number, y, StepArg::Bits(0))
    }

    /// Emits rounding to bf16, as f32; see [`math::to_bf16`].
    pub fn round_to_bf16(&mut self, x: StepValue) -> StepValue {
        if self.rounds {
            let half = self.one(opcodes::CVTNEPS2BF16, None, x);
            let word = self.one(opcodes::PMOVZXWD, None, half);
            return self.shift_left(word, 16);
        }
        let odd = self.shift_right(x, 16);
        let odd = self.and(odd, 1);
        let half = self.two(opcodes::PADDD, odd, StepArg::Bits(0x7fff));
        let sum = self.two(opcodes::PADDD, half, x);
        let nan = self.is_nan(x);
        let kept = self.merge(nan, sum, opcodes::PORD, x, StepArg::Bits(0x0040_0000));
        self.and(kept, 0xffff_0000)
    }

    /// Emits rounding to f16, as f32.
    pub fn round_to_f16(&mut self, x: StepValue) -> StepValue {
        let half = self.one(opcodes::CVTPS2PH, Some(0), x);
        self.one(opcodes::CVTPH2PS, None, half)
    }
}

/// Whether a constant is a normal number: only the same bits compare equal to it.
fn plain(bits: u32) -> bool {
    f32::from_bits(bits).is_normal()
}
