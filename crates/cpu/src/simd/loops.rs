//! Vectorizable loops over one tile of elements, for each element-wise op and element type.
//!
//! The interpreter of element-wise programs calls these; `jit` compiles whole programs instead. Lanes are the elements
//! as loops see them: f32, f64 and integers unchanged, bool as bytes 0 and 1, f16 and bf16 as f32 that is rounded to
//! the narrow type after every op. Results therefore equal those of an engine that stores every intermediate value. An
//! op without a loop is evaluated element by element.

use crate::simd::level::{Isa, Level, TileFn, TileLoop};
use crate::simd::narrow_floats::{NarrowF16, WidenF16};
use crate::simd::{math, math64};
use std::marker::PhantomData;
use systole_compile::{Contraction, MapInstr};
use systole_ir::op::{Binary, Direction, Unary};
use systole_ir::{DType, Op};

/// Returns the size of one lane (an element as loops see it) in bytes.
pub fn lane_size(dtype: DType) -> usize {
    match dtype {
        DType::F16 | DType::BF16 => 4,
        d => d.size(),
    }
}

/// Rounds an f32 lane to the stored type.
pub trait RoundLane {
    fn round(x: f32) -> f32;
}
pub struct NoRounding;
pub struct Bf16Rounding;
pub struct F16Rounding;
impl RoundLane for NoRounding {
    #[inline(always)]
    fn round(x: f32) -> f32 {
        x
    }
}
impl RoundLane for Bf16Rounding {
    #[inline(always)]
    fn round(x: f32) -> f32 {
        math::from_bf16(math::to_bf16(x))
    }
}
impl RoundLane for F16Rounding {
    #[inline(always)]
    fn round(x: f32) -> f32 {
        math::from_f16(math::to_f16(x))
    }
}

/// Unary function of a lane, compiled for instruction set `I`.
trait Fn1<A, Z> {
    fn f<I: Isa>(a: A) -> Z;
}
trait Fn2<A, Z> {
    fn f<I: Isa>(a: A, b: A) -> Z;
}

/// Element type of the vectorized loops.
pub trait LoopElement: Copy {
    /// Whether its loops are compiled for every level; others run the portable code (see [`TileLoop::EVERY_LEVEL`]).
    const COMMON: bool;
    /// The same for loops without reductions.
    const COMMON_ELEMENTWISE: bool;
}
macro_rules! lane_types {
    ($($t:ty: $common:literal $elementwise:literal),*) => { $(impl LoopElement for $t {
        const COMMON: bool = $common;
        const COMMON_ELEMENTWISE: bool = $elementwise;
    })* };
}
lane_types!(
    f32: true true, i32: true true, u8: true true, u32: true true, f64: false true,
    i8: false false, i16: false false, u16: false false, i64: false false, u64: false false
);

struct Loop1<A, Z, F>(PhantomData<(A, Z, F)>);
impl<A: LoopElement, Z: LoopElement, F: Fn1<A, Z>> TileLoop for Loop1<A, Z, F> {
    // Either type: f16 and bf16 are u16 in memory and f32 lanes, and u16 alone is not common.
    const EVERY_LEVEL: bool = A::COMMON_ELEMENTWISE || Z::COMMON_ELEMENTWISE;

    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        // SAFETY: guaranteed by the contract of `TileLoop::run`.
        let (d, a) = unsafe { (lanes_mut::<Z>(dst, n), lanes::<A>(a, n)) };
        for (d, a) in d.iter_mut().zip(a) {
            *d = F::f::<I>(*a);
        }
    }
}

struct Loop2<A, Z, F>(PhantomData<(A, Z, F)>);
impl<A: LoopElement, Z, F: Fn2<A, Z>> TileLoop for Loop2<A, Z, F> {
    const EVERY_LEVEL: bool = A::COMMON_ELEMENTWISE;

    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, b: *const u8, _: *const u8, n: usize) {
        // SAFETY: guaranteed by the contract of `TileLoop::run`.
        let (d, a, b) = unsafe { (lanes_mut::<Z>(dst, n), lanes::<A>(a, n), lanes::<A>(b, n)) };
        for ((d, a), b) in d.iter_mut().zip(a).zip(b) {
            *d = F::f::<I>(*a, *b);
        }
    }
}

#[inline(always)]
pub unsafe fn lanes<'a, T>(p: *const u8, n: usize) -> &'a [T] {
    // SAFETY: the caller has `n` lanes at `p`.
    unsafe { std::slice::from_raw_parts(p.cast(), n) }
}

#[inline(always)]
pub unsafe fn lanes_mut<'a, T>(p: *mut u8, n: usize) -> &'a mut [T] {
    // SAFETY: the caller has `n` lanes at `p` that nothing else refers to.
    unsafe { std::slice::from_raw_parts_mut(p.cast(), n) }
}

macro_rules! fn1 {
    ($($name:ident: $a:ty => $z:ty, |$x:ident, $i:ident| $body:expr;)*) => { $(
        struct $name;
        impl Fn1<$a, $z> for $name {
            #[inline(always)]
            fn f<$i: Isa>($x: $a) -> $z { $body }
        }
    )* };
}

fn1!(
    Cos32: f32 => f32, |x, I| math::sin_cos::<I>(x, 1);
    Sin32: f32 => f32, |x, I| math::sin_cos::<I>(x, 0);
    Tan32: f32 => f32, |x, I| math::tan::<I>(x);
    Same32: f32 => f32, |x, I| x;
    Finite32: f32 => u8, |x, I| x.is_finite() as u8;
    Finite64: f64 => u8, |x, I| x.is_finite() as u8;
    Cos64: f64 => f64, |x, I| math64::sin_cos::<I>(x, 1);
    Sin64: f64 => f64, |x, I| math64::sin_cos::<I>(x, 0);
    Tan64: f64 => f64, |x, I| math64::tan::<I>(x);
    Not8: u8 => u8, |x, I| x ^ 1;
    FromBf16: u16 => f32, |x, I| math::from_bf16(x);
    IntoBf16: f32 => u16, |x, I| math::to_bf16(x);
    NonZero32: f32 => u8, |x, I| (x != 0.0) as u8;
    NonZero64: f64 => u8, |x, I| (x != 0.0) as u8;
);

macro_rules! f32_loops {
    ($($op:ident: |$x:ident, $i:ident| $body:expr;)*) => {
        mod of_f32 {
            use super::{Fn1, Isa, math};
            $(
                pub struct $op;
                impl Fn1<f32, f32> for $op {
                    #[inline(always)]
                    fn f<$i: Isa>($x: f32) -> f32 {
                        $body
                    }
                }
            )*
        }

        /// Returns the loop of an op of [`math::f32_functions`], rounded if the type is narrower; `None` if the op is
        /// not listed there.
        fn f32_function(op: Unary, dtype: DType, level: Level) -> Option<TileFn> {
            Some(match op {
                $(Unary::$op => float1::<of_f32::$op>(dtype, level),)*
                _ => return None,
            })
        }
    };
}

math::f32_functions!(f32_loops);

macro_rules! f64_loops {
    ($($op:ident: |$x:ident, $i:ident| $body:expr;)*) => {
        mod of_f64 {
            use super::{Fn1, Isa, math64};
            $(
                pub struct $op;
                impl Fn1<f64, f64> for $op {
                    #[inline(always)]
                    fn f<$i: Isa>($x: f64) -> f64 {
                        $body
                    }
                }
            )*
        }

        /// Returns the loop of an op of [`math64::f64_functions`]; `None` if the op is not listed there.
        fn f64_function(op: Unary, level: Level) -> Option<TileFn> {
            Some(match op {
                $(Unary::$op => loop1::<f64, f64, of_f64::$op>(level),)*
                _ => return None,
            })
        }
    };
}

math64::f64_functions!(f64_loops);

/// An f32 function whose result is rounded by `R`.
struct RoundedFn<F, R>(PhantomData<(F, R)>);
impl<F: Fn1<f32, f32>, R: RoundLane> Fn1<f32, f32> for RoundedFn<F, R> {
    #[inline(always)]
    fn f<I: Isa>(a: f32) -> f32 {
        R::round(F::f::<I>(a))
    }
}
impl<F: Fn2<f32, f32>, R: RoundLane> Fn2<f32, f32> for RoundedFn<F, R> {
    #[inline(always)]
    fn f<I: Isa>(a: f32, b: f32) -> f32 {
        R::round(F::f::<I>(a, b))
    }
}

macro_rules! fn2 {
    ($($name:ident: $a:ty => $z:ty, |$x:ident, $y:ident| $body:expr;)*) => { $(
        struct $name;
        impl Fn2<$a, $z> for $name {
            #[inline(always)]
            fn f<I: Isa>($x: $a, $y: $a) -> $z { $body }
        }
    )* };
}

fn2!(
    Add32: f32 => f32, |a, b| a + b;
    Sub32: f32 => f32, |a, b| a - b;
    Mul32: f32 => f32, |a, b| a * b;
    Div32: f32 => f32, |a, b| a / b;
    Max32: f32 => f32, |a, b| math::maximum(a, b);
    Min32: f32 => f32, |a, b| math::minimum(a, b);
    Add64: f64 => f64, |a, b| a + b;
    Sub64: f64 => f64, |a, b| a - b;
    Mul64: f64 => f64, |a, b| a * b;
    Div64: f64 => f64, |a, b| a / b;
    Max64: f64 => f64, |a, b| math::maximum64(a, b);
    Min64: f64 => f64, |a, b| math::minimum64(a, b);
);

struct Atan32;
impl Fn2<f32, f32> for Atan32 {
    #[inline(always)]
    fn f<I: Isa>(a: f32, b: f32) -> f32 {
        math64::atan2::<I>(a as f64, b as f64) as f32
    }
}
struct Atan64;
impl Fn2<f64, f64> for Atan64 {
    #[inline(always)]
    fn f<I: Isa>(a: f64, b: f64) -> f64 {
        math64::atan2::<I>(a, b)
    }
}
struct Remainder32;
impl Fn2<f32, f32> for Remainder32 {
    #[inline(always)]
    fn f<I: Isa>(a: f32, b: f32) -> f32 {
        math::remainder::<I>(a, b)
    }
}
struct Pow32;
impl Fn2<f32, f32> for Pow32 {
    #[inline(always)]
    fn f<I: Isa>(a: f32, b: f32) -> f32 {
        math::pow::<I>(a, b)
    }
}
struct Pow64;
impl Fn2<f64, f64> for Pow64 {
    #[inline(always)]
    fn f<I: Isa>(a: f64, b: f64) -> f64 {
        math64::pow::<I>(a, b)
    }
}

/// A vector function that covers some arguments only, and the standard library's function for the others.
trait Limited1<A>: Fn1<A, A> {
    fn covers(a: A) -> bool;
    fn library(a: A) -> A;
}
trait Limited2<A>: Fn2<A, A> {
    fn covers(a: A, b: A) -> bool;
    fn library(a: A, b: A) -> A;
}

macro_rules! limited {
    ($($name:ident: $trait:ident<$t:ty>, |$($x:ident),*| $covers:expr, $library:expr;)*) => { $(
        impl $trait<$t> for $name {
            #[inline(always)]
            fn covers($($x: $t),*) -> bool { $covers }
            fn library($($x: $t),*) -> $t { $library }
        }
    )* };
}
// A NaN compares false, so it is not covered either. Functions of f32 are computed in f64.
limited!(
    Sin32: Limited1<f32>, |x| x.abs() <= math::TRIG_LIMIT, (x as f64).sin() as f32;
    Cos32: Limited1<f32>, |x| x.abs() <= math::TRIG_LIMIT, (x as f64).cos() as f32;
    Sin64: Limited1<f64>, |x| x.abs() <= math64::TRIG_LIMIT, x.sin();
    Cos64: Limited1<f64>, |x| x.abs() <= math64::TRIG_LIMIT, x.cos();
    Tan64: Limited1<f64>, |x| x.abs() <= math64::TRIG_LIMIT, x.tan();
    Tan32: Limited1<f32>, |x| x.abs() <= math::TRIG_LIMIT, (x as f64).tan() as f32;
    Atan32: Limited2<f32>, |y, x| y.is_finite() & x.is_finite(), (y as f64).atan2(x as f64) as f32;
    Atan64: Limited2<f64>, |y, x| math64::atan2_is_plain(y, x), y.atan2(x);
    Remainder32: Limited2<f32>, |a, b| math::remainder_is_plain(a, b), a % b;
    Pow32: Limited2<f32>, |a, b| math::pow_is_plain(a, b), (a as f64).powf(b as f64) as f32;
    Pow64: Limited2<f64>, |a, b| math64::pow_is_plain(a, b), a.powf(b);
);

/// The vector loop of a limited function, then the library's function for elements that it does not cover.
struct LimitedLoop1<A, F>(PhantomData<(A, F)>);
impl<A: LoopElement, F: Limited1<A>> TileLoop for LimitedLoop1<A, F> {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize) {
        // SAFETY: guaranteed by the contract of `TileLoop::run`.
        unsafe { Loop1::<A, A, F>::run::<I>(dst, a, b, c, n) };
        // SAFETY: guaranteed by the contract of `TileLoop::run`.
        let (d, a) = unsafe { (lanes_mut::<A>(dst, n), lanes::<A>(a, n)) };
        if !a.iter().fold(true, |all, &a| all & F::covers(a)) {
            d.iter_mut().zip(a).filter(|(_, a)| !F::covers(**a)).for_each(|(d, a)| *d = F::library(*a));
        }
    }
}

/// Like [`LimitedLoop1`], for two operands.
struct LimitedLoop2<A, F>(PhantomData<(A, F)>);
impl<A: LoopElement, F: Limited2<A>> TileLoop for LimitedLoop2<A, F> {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize) {
        // SAFETY: guaranteed by the contract of `TileLoop::run`.
        unsafe { Loop2::<A, A, F>::run::<I>(dst, a, b, c, n) };
        // SAFETY: guaranteed by the contract of `TileLoop::run`.
        let (d, a, b) = unsafe { (lanes_mut::<A>(dst, n), lanes::<A>(a, n), lanes::<A>(b, n)) };
        if !a.iter().zip(b).fold(true, |all, (&a, &b)| all & F::covers(a, b)) {
            for ((d, &a), &b) in d.iter_mut().zip(a).zip(b) {
                if !F::covers(a, b) {
                    *d = F::library(a, b);
                }
            }
        }
    }
}

/// Wrapping integer arithmetic.
trait Int: Copy + Ord {
    fn add(self, b: Self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    fn and(self, b: Self) -> Self;
    fn or(self, b: Self) -> Self;
    fn xor(self, b: Self) -> Self;
    fn shl(self, b: Self) -> Self;
    fn shr_logical(self, b: Self) -> Self;
    fn neg(self) -> Self;
    fn not(self) -> Self;
}

macro_rules! ints {
    ($($t:ty, $u:ty);*) => { $(
        impl Int for $t {
            #[inline(always)] fn add(self, b: $t) -> $t { self.wrapping_add(b) }
            #[inline(always)] fn sub(self, b: $t) -> $t { self.wrapping_sub(b) }
            #[inline(always)] fn mul(self, b: $t) -> $t { self.wrapping_mul(b) }
            #[inline(always)] fn and(self, b: $t) -> $t { self & b }
            #[inline(always)] fn or(self, b: $t) -> $t { self | b }
            #[inline(always)] fn xor(self, b: $t) -> $t { self ^ b }
            #[inline(always)] fn shl(self, b: $t) -> $t {
                if (b as $u) < <$t>::BITS as $u { self.wrapping_shl(b as u32) } else { 0 }
            }
            #[inline(always)] fn shr_logical(self, b: $t) -> $t {
                if (b as $u) < <$t>::BITS as $u { (self as $u).wrapping_shr(b as u32) as $t } else { 0 }
            }
            #[inline(always)] fn neg(self) -> $t { self.wrapping_neg() }
            #[inline(always)] fn not(self) -> $t { !self }
        }
    )* };
}
ints!(i8, u8; i16, u16; i32, u32; i64, u64; u8, u8; u16, u16; u32, u32; u64, u64);

struct IntAdd;
struct IntSub;
struct IntMul;
struct IntAnd;
struct IntOr;
struct IntXor;
struct IntMax;
struct IntMin;
struct IntShl;
struct IntShr;
struct IntNeg;
struct IntNot;

macro_rules! int_fns {
    ($($name:ident, |$a:ident, $b:ident| $body:expr;)*) => { $(
        impl<T: Int> Fn2<T, T> for $name {
            #[inline(always)]
            fn f<I: Isa>($a: T, $b: T) -> T { $body }
        }
    )* };
}
int_fns!(
    IntAdd, |a, b| a.add(b);
    IntSub, |a, b| a.sub(b);
    IntMul, |a, b| a.mul(b);
    IntAnd, |a, b| a.and(b);
    IntOr, |a, b| a.or(b);
    IntXor, |a, b| a.xor(b);
    IntMax, |a, b| a.max(b);
    IntMin, |a, b| a.min(b);
    IntShl, |a, b| a.shl(b);
    IntShr, |a, b| a.shr_logical(b);
);
impl<T: Int> Fn1<T, T> for IntNeg {
    #[inline(always)]
    fn f<I: Isa>(a: T) -> T {
        a.neg()
    }
}
impl<T: Int> Fn1<T, T> for IntNot {
    #[inline(always)]
    fn f<I: Isa>(a: T) -> T {
        a.not()
    }
}

macro_rules! relations {
    ($($name:ident, $op:tt;)*) => { $(
        struct $name;
        impl<T: PartialOrd + Copy> Fn2<T, u8> for $name {
            #[inline(always)]
            fn f<I: Isa>(a: T, b: T) -> u8 { (a $op b) as u8 }
        }
    )* };
}
relations!(IsEq, ==; IsNe, !=; IsGe, >=; IsGt, >; IsLe, <=; IsLt, <;);

/// Bitwise view of an element.
trait ElementBits: Copy {
    /// Returns all bits set if the predicate holds, else no bits.
    fn all_if(p: u8) -> Self;
    fn choose(self, a: Self, b: Self) -> Self;
}
macro_rules! bits {
    ($($t:ty),*) => { $(
        impl ElementBits for $t {
            #[inline(always)]
            fn all_if(p: u8) -> $t {
                <$t>::from(p != 0).wrapping_neg()
            }
            #[inline(always)]
            fn choose(self, a: $t, b: $t) -> $t {
                (a & self) | (b & !self)
            }
        }
    )* };
}
bits!(u8, u16, u32, u64);

/// `pred ? a : b`; the predicate is the first operand.
struct SelectLoop<T>(PhantomData<T>);
impl<T: ElementBits> TileLoop for SelectLoop<T> {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, p: *const u8, a: *const u8, b: *const u8, n: usize) {
        // SAFETY: guaranteed by the contract of `TileLoop::run`.
        let (d, p, a, b) =
            unsafe { (lanes_mut::<T>(dst, n), lanes::<u8>(p, n), lanes::<T>(a, n), lanes::<T>(b, n)) };
        for (((d, p), a), b) in d.iter_mut().zip(p).zip(a).zip(b) {
            // Bitwise: an `if` would be a branch, and a conditional move is not vectorized.
            *d = T::all_if(*p).choose(*a, *b);
        }
    }
}

/// Lanes of contracted sums.
trait MulAddLane: LoopElement + std::ops::Neg<Output = Self> {
    fn mul_add<I: Isa>(a: Self, b: Self, c: Self) -> Self;
}
impl MulAddLane for f32 {
    #[inline(always)]
    fn mul_add<I: Isa>(a: f32, b: f32, c: f32) -> f32 {
        math::mul_add::<I>(a, b, c)
    }
}
impl MulAddLane for f64 {
    #[inline(always)]
    fn mul_add<I: Isa>(a: f64, b: f64, c: f64) -> f64 {
        math::mul_add64::<I>(a, b, c)
    }
}

/// ±(a · b) ± c, rounded once.
struct ContractedLoop<T, const MINUS_PRODUCT: bool, const MINUS_ADDEND: bool>(PhantomData<T>);
impl<T: MulAddLane, const MINUS_PRODUCT: bool, const MINUS_ADDEND: bool> TileLoop
    for ContractedLoop<T, MINUS_PRODUCT, MINUS_ADDEND>
{
    // Without FMA, the portable code would round twice.
    const EVERY_LEVEL: bool = true;

    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize) {
        // SAFETY: guaranteed by the contract of `TileLoop::run`.
        let (d, a, b, c) =
            unsafe { (lanes_mut::<T>(dst, n), lanes::<T>(a, n), lanes::<T>(b, n), lanes::<T>(c, n)) };
        for (((d, a), b), c) in d.iter_mut().zip(a).zip(b).zip(c) {
            let a = if MINUS_PRODUCT { -*a } else { *a };
            let c = if MINUS_ADDEND { -*c } else { *c };
            *d = T::mul_add::<I>(a, *b, c);
        }
    }
}

struct Clamp32;
impl TileLoop for Clamp32 {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, lo: *const u8, x: *const u8, hi: *const u8, n: usize) {
        // SAFETY: guaranteed by the contract of `TileLoop::run`.
        let (d, lo, x, hi) = unsafe {
            (lanes_mut::<f32>(dst, n), lanes::<f32>(lo, n), lanes::<f32>(x, n), lanes::<f32>(hi, n))
        };
        // Two loops: the compiler's code for a fused loop keeps subnormal numbers even if the thread treats them as
        // zero (DAZ); each loop alone does not.
        d.iter_mut().zip(x).zip(lo).for_each(|((d, x), lo)| *d = math::maximum(*x, *lo));
        d.iter_mut().zip(hi).for_each(|(d, hi)| *d = math::minimum(*d, *hi));
    }
}

/// `a as Z`: floats to integers truncate and saturate, integers wrap, conversion to float rounds.
struct CastLoop<A, Z>(PhantomData<(A, Z)>);
macro_rules! casts {
    ($($a:ty => $($z:ty),*;)*) => { $( $(
        impl Fn1<$a, $z> for CastLoop<$a, $z> {
            #[inline(always)]
            fn f<I: Isa>(a: $a) -> $z { a as $z }
        }
    )* )* };
}
casts!(
    f32 => f64, i8, i16, i32, i64, u8, u16, u32, u64;
    f64 => f32, i32, i64, u32;
    i8 => f32, i32; i16 => f32, i32; i32 => f32, f64, i64, u32, u64; i64 => f32, f64, i32;
    u8 => f32, f64, i32, i64, u32; u16 => f32, i32; u32 => f32, f64, i32, u64, i64; u64 => f32, u32;
);

fn loop1<A: LoopElement, Z: LoopElement, F: Fn1<A, Z>>(level: Level) -> TileFn {
    level.tile::<Loop1<A, Z, F>>()
}

fn loop2<A: LoopElement, Z, F: Fn2<A, Z>>(level: Level) -> TileFn {
    level.tile::<Loop2<A, Z, F>>()
}

fn float1<F: Fn1<f32, f32>>(dtype: DType, level: Level) -> TileFn {
    match dtype {
        DType::BF16 => loop1::<f32, f32, RoundedFn<F, Bf16Rounding>>(level),
        DType::F16 => loop1::<f32, f32, RoundedFn<F, F16Rounding>>(level),
        _ => loop1::<f32, f32, RoundedFn<F, NoRounding>>(level),
    }
}

fn float2<F: Fn2<f32, f32>>(dtype: DType, level: Level) -> TileFn {
    match dtype {
        DType::BF16 => loop2::<f32, f32, RoundedFn<F, Bf16Rounding>>(level),
        DType::F16 => loop2::<f32, f32, RoundedFn<F, F16Rounding>>(level),
        _ => loop2::<f32, f32, RoundedFn<F, NoRounding>>(level),
    }
}

/// Whether an element-wise op on f32 has a vector loop; otherwise it is evaluated element by element.
pub fn has_vector_form(op: &Op) -> bool {
    let is_finite = *op == Op::Unary(Unary::IsFinite);
    loop_of(op, DType::F32, if is_finite { DType::Bool } else { DType::F32 }, Level::Portable).is_some()
}

/// Returns the loop of an instruction; `None` if it must be evaluated element by element.
pub fn loop_of_instruction(instr: &MapInstr, level: Level) -> Option<TileFn> {
    let Some(place) = instr.contraction else { return loop_of(&instr.op, instr.from, instr.to, level) };
    let minus = if instr.op == Op::Binary(Binary::Subtract) { Some(place) } else { None };
    Some(match instr.from {
        DType::F64 => contracted::<f64>(minus, level),
        _ => contracted::<f32>(minus, level),
    })
}

/// Returns the loop of a · b + c; `minus`: of a · b − c (left) or c − a · b (right).
fn contracted<T: MulAddLane>(minus: Option<Contraction>, level: Level) -> TileFn {
    match minus {
        None => level.tile::<ContractedLoop<T, false, false>>(),
        Some(Contraction::Left) => level.tile::<ContractedLoop<T, false, true>>(),
        Some(Contraction::Right) => level.tile::<ContractedLoop<T, true, false>>(),
    }
}

/// Returns the loop of an op from lanes of `from` to lanes of `to`; `None` if it must be evaluated element by element.
pub fn loop_of(op: &Op, from: DType, to: DType, level: Level) -> Option<TileFn> {
    match op {
        Op::Unary(op) => unary(*op, from, level),
        Op::Binary(op) => binary(*op, from, level),
        Op::Compare(c) if c.compare_type != systole_ir::op::CompareType::TotalOrder => {
            Some(compare(c.direction, from, level))
        }
        Op::Select(_) => Some(match lane_size(to) {
            1 => level.tile::<SelectLoop<u8>>(),
            2 => level.tile::<SelectLoop<u16>>(),
            4 => level.tile::<SelectLoop<u32>>(),
            _ => level.tile::<SelectLoop<u64>>(),
        }),
        // Clamp returns one of its operands, so the narrow floats need no rounding.
        Op::Clamp(_) if matches!(from, DType::F32 | DType::F16 | DType::BF16) => {
            Some(level.tile::<Clamp32>())
        }
        Op::Convert(_) => convert(from, to, level),
        _ => None,
    }
}

fn unary(op: Unary, dtype: DType, level: Level) -> Option<TileFn> {
    use DType::*;
    Some(match (dtype, op) {
        (Bool, Unary::Not) => loop1::<u8, u8, Not8>(level),
        (F64, Unary::IsFinite) => loop1::<f64, u8, Finite64>(level),
        (F32 | F16 | BF16, Unary::IsFinite) => loop1::<f32, u8, Finite32>(level),
        (F32, Unary::Sine) => level.tile::<LimitedLoop1<f32, Sin32>>(),
        (F32, Unary::Cosine) => level.tile::<LimitedLoop1<f32, Cos32>>(),
        (F32, Unary::Tan) => level.tile::<LimitedLoop1<f32, Tan32>>(),
        (F64, Unary::Sine) => level.tile::<LimitedLoop1<f64, Sin64>>(),
        (F64, Unary::Cosine) => level.tile::<LimitedLoop1<f64, Cos64>>(),
        (F64, Unary::Tan) => level.tile::<LimitedLoop1<f64, Tan64>>(),
        (F64, op) => return f64_function(op, level),
        (F32 | F16 | BF16, op) => return f32_function(op, dtype, level),
        (d, Unary::Negate | Unary::Not) if d.is_int() => {
            let not = op == Unary::Not;
            match d.size() {
                1 if not => loop1::<u8, u8, IntNot>(level),
                1 => loop1::<u8, u8, IntNeg>(level),
                2 if not => loop1::<u16, u16, IntNot>(level),
                2 => loop1::<u16, u16, IntNeg>(level),
                4 if not => loop1::<u32, u32, IntNot>(level),
                4 => loop1::<u32, u32, IntNeg>(level),
                _ if not => loop1::<u64, u64, IntNot>(level),
                _ => loop1::<u64, u64, IntNeg>(level),
            }
        }
        _ => return None,
    })
}

fn binary(op: Binary, dtype: DType, level: Level) -> Option<TileFn> {
    use DType::*;
    Some(match (dtype, op) {
        (F32 | F16 | BF16, op) => match op {
            Binary::Add => float2::<Add32>(dtype, level),
            Binary::Subtract => float2::<Sub32>(dtype, level),
            Binary::Multiply => float2::<Mul32>(dtype, level),
            Binary::Divide => float2::<Div32>(dtype, level),
            Binary::Maximum => float2::<Max32>(dtype, level),
            Binary::Minimum => float2::<Min32>(dtype, level),
            Binary::Atan2 if dtype == F32 => level.tile::<LimitedLoop2<f32, Atan32>>(),
            Binary::Remainder if dtype == F32 => level.tile::<LimitedLoop2<f32, Remainder32>>(),
            Binary::Power if dtype == F32 => level.tile::<LimitedLoop2<f32, Pow32>>(),
            _ => return None,
        },
        (F64, op) => match op {
            Binary::Add => loop2::<f64, f64, Add64>(level),
            Binary::Subtract => loop2::<f64, f64, Sub64>(level),
            Binary::Multiply => loop2::<f64, f64, Mul64>(level),
            Binary::Divide => loop2::<f64, f64, Div64>(level),
            Binary::Maximum => loop2::<f64, f64, Max64>(level),
            Binary::Minimum => loop2::<f64, f64, Min64>(level),
            Binary::Atan2 => level.tile::<LimitedLoop2<f64, Atan64>>(),
            Binary::Power => level.tile::<LimitedLoop2<f64, Pow64>>(),
            _ => return None,
        },
        (Bool, op) => match op {
            Binary::Add | Binary::Or | Binary::Maximum => loop2::<u8, u8, IntOr>(level),
            Binary::Multiply | Binary::And | Binary::Minimum => loop2::<u8, u8, IntAnd>(level),
            Binary::Xor => loop2::<u8, u8, IntXor>(level),
            _ => return None,
        },
        (I8, Binary::Maximum | Binary::Minimum) => int_order::<i8>(op, level)?,
        (I16, Binary::Maximum | Binary::Minimum) => int_order::<i16>(op, level)?,
        (I32, Binary::Maximum | Binary::Minimum) => int_order::<i32>(op, level)?,
        (I64, Binary::Maximum | Binary::Minimum) => int_order::<i64>(op, level)?,
        (U8, Binary::Maximum | Binary::Minimum) => int_order::<u8>(op, level)?,
        (U16, Binary::Maximum | Binary::Minimum) => int_order::<u16>(op, level)?,
        (U32, Binary::Maximum | Binary::Minimum) => int_order::<u32>(op, level)?,
        (U64, Binary::Maximum | Binary::Minimum) => int_order::<u64>(op, level)?,
        // Two's complement: the same code for signed and unsigned.
        (I8 | U8, _) => int_binary::<u8>(op, level)?,
        (I16 | U16, _) => int_binary::<u16>(op, level)?,
        (I32 | U32, _) => int_binary::<u32>(op, level)?,
        (I64 | U64, _) => int_binary::<u64>(op, level)?,
    })
}

fn int_order<T: Int + LoopElement>(op: Binary, level: Level) -> Option<TileFn> {
    match op {
        Binary::Maximum => Some(loop2::<T, T, IntMax>(level)),
        Binary::Minimum => Some(loop2::<T, T, IntMin>(level)),
        _ => None,
    }
}

fn int_binary<T: Int + LoopElement>(op: Binary, level: Level) -> Option<TileFn> {
    Some(match op {
        Binary::Add => loop2::<T, T, IntAdd>(level),
        Binary::Subtract => loop2::<T, T, IntSub>(level),
        Binary::Multiply => loop2::<T, T, IntMul>(level),
        Binary::And => loop2::<T, T, IntAnd>(level),
        Binary::Or => loop2::<T, T, IntOr>(level),
        Binary::Xor => loop2::<T, T, IntXor>(level),
        Binary::ShiftLeft => loop2::<T, T, IntShl>(level),
        Binary::ShiftRightLogical => loop2::<T, T, IntShr>(level),
        _ => return None,
    })
}

fn compare(direction: Direction, dtype: DType, level: Level) -> TileFn {
    use DType::*;
    match dtype {
        F32 | F16 | BF16 => compare_lanes::<f32>(direction, level),
        F64 => compare_lanes::<f64>(direction, level),
        I8 => compare_lanes::<i8>(direction, level),
        I16 => compare_lanes::<i16>(direction, level),
        I32 => compare_lanes::<i32>(direction, level),
        I64 => compare_lanes::<i64>(direction, level),
        Bool | U8 => compare_lanes::<u8>(direction, level),
        U16 => compare_lanes::<u16>(direction, level),
        U32 => compare_lanes::<u32>(direction, level),
        U64 => compare_lanes::<u64>(direction, level),
    }
}

fn compare_lanes<T: PartialOrd + LoopElement>(direction: Direction, level: Level) -> TileFn {
    match direction {
        Direction::Eq => loop2::<T, u8, IsEq>(level),
        Direction::Ne => loop2::<T, u8, IsNe>(level),
        Direction::Ge => loop2::<T, u8, IsGe>(level),
        Direction::Gt => loop2::<T, u8, IsGt>(level),
        Direction::Le => loop2::<T, u8, IsLe>(level),
        Direction::Lt => loop2::<T, u8, IsLt>(level),
    }
}

fn cast<A: LoopElement, Z: LoopElement>(level: Level) -> TileFn
where
    CastLoop<A, Z>: Fn1<A, Z>,
{
    loop1::<A, Z, CastLoop<A, Z>>(level)
}

fn convert(from: DType, to: DType, level: Level) -> Option<TileFn> {
    use DType::*;
    Some(match (from, to) {
        (F32 | F16 | BF16, F32 | F16 | BF16) => float1::<Same32>(to, level),
        (F32 | F16 | BF16, Bool) => loop1::<f32, u8, NonZero32>(level),
        (F64, Bool) => loop1::<f64, u8, NonZero64>(level),
        // A bool lane is 0 or 1, so it reads as u8.
        (Bool | U8, F32) => cast::<u8, f32>(level),
        (Bool | U8, F64) => cast::<u8, f64>(level),
        (Bool | U8, I32) => cast::<u8, i32>(level),
        (Bool | U8, I64) => cast::<u8, i64>(level),
        (Bool | U8, U32) => cast::<u8, u32>(level),
        // 8-bit integers are exact in every float. Wider ones may need rounding and are evaluated element by element.
        (Bool | U8, F16 | BF16) => cast::<u8, f32>(level),
        (F32 | F16 | BF16, F64) => cast::<f32, f64>(level),
        (F32 | F16 | BF16, I8) => cast::<f32, i8>(level),
        (F32 | F16 | BF16, I16) => cast::<f32, i16>(level),
        (F32 | F16 | BF16, I32) => cast::<f32, i32>(level),
        (F32 | F16 | BF16, I64) => cast::<f32, i64>(level),
        (F32 | F16 | BF16, U8) => cast::<f32, u8>(level),
        (F32 | F16 | BF16, U16) => cast::<f32, u16>(level),
        (F32 | F16 | BF16, U32) => cast::<f32, u32>(level),
        (F32 | F16 | BF16, U64) => cast::<f32, u64>(level),
        (F64, F32) => cast::<f64, f32>(level),
        (F64, I32) => cast::<f64, i32>(level),
        (F64, I64) => cast::<f64, i64>(level),
        (F64, U32) => cast::<f64, u32>(level),
        (I8, F32) => cast::<i8, f32>(level),
        (I8, I32) => cast::<i8, i32>(level),
        (I16, F32) => cast::<i16, f32>(level),
        (I16, I32) => cast::<i16, i32>(level),
        (I32, F32) => cast::<i32, f32>(level),
        (I32, F64) => cast::<i32, f64>(level),
        (I32, I64) => cast::<i32, i64>(level),
        (I32, U32) => cast::<i32, u32>(level),
        (I32, U64) => cast::<i32, u64>(level),
        (I64, F32) => cast::<i64, f32>(level),
        (I64, F64) => cast::<i64, f64>(level),
        (I64, I32) => cast::<i64, i32>(level),
        (U16, F32) => cast::<u16, f32>(level),
        (U16, I32) => cast::<u16, i32>(level),
        (U32, F32) => cast::<u32, f32>(level),
        (U32, F64) => cast::<u32, f64>(level),
        (U32, I32) => cast::<u32, i32>(level),
        (U32, I64) => cast::<u32, i64>(level),
        (U32, U64) => cast::<u32, u64>(level),
        (U64, F32) => cast::<u64, f32>(level),
        (U64, U32) => cast::<u64, u32>(level),
        _ => return None,
    })
}

/// Returns the loop that loads stored narrow floats as f32 lanes; `None` if storage and lanes are the same.
pub fn widen(dtype: DType, level: Level) -> Option<TileFn> {
    match dtype {
        DType::BF16 => Some(loop1::<u16, f32, FromBf16>(level)),
        DType::F16 => Some(level.tile::<WidenF16>()),
        _ => None,
    }
}

/// Interleaves 16-bit numbers into 32-bit words: the low half from `a`, the high half from `b`; zero for an absent
/// operand.
struct InterleaveU16<const A: bool, const B: bool>;
impl<const A: bool, const B: bool> TileLoop for InterleaveU16<A, B> {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, b: *const u8, _: *const u8, n: usize) {
        // SAFETY: guaranteed by the contract of `TileLoop::run`, for the operands that are present.
        unsafe {
            let d = lanes_mut::<u32>(dst, n);
            let a = if A { lanes::<u16>(a, n) } else { &[] };
            let b = if B { lanes::<u16>(b, n) } else { &[] };
            match (A, B) {
                (true, true) => d
                    .iter_mut()
                    .zip(a)
                    .zip(b)
                    .for_each(|((d, &a), &b)| *d = u32::from(a) | u32::from(b) << 16),
                (true, false) => d.iter_mut().zip(a).for_each(|(d, &a)| *d = u32::from(a)),
                (false, true) => d.iter_mut().zip(b).for_each(|(d, &b)| *d = u32::from(b) << 16),
                (false, false) => d.fill(0),
            }
        }
    }
}

/// Interleaves two arrays of bf16 into 32-bit words (VNNI pairs).
#[derive(Clone, Copy)]
pub struct InterleaveBf16 {
    both: TileFn,
    first: TileFn,
    second: TileFn,
}

impl InterleaveBf16 {
    pub fn new(level: Level) -> InterleaveBf16 {
        InterleaveBf16 {
            both: level.tile::<InterleaveU16<true, true>>(),
            first: level.tile::<InterleaveU16<true, false>>(),
            second: level.tile::<InterleaveU16<false, true>>(),
        }
    }

    /// Writes `n` words to `to`; zero in the half of an absent array.
    ///
    /// # Safety
    /// The arrays have `n` elements, and `to` has room for `n` words.
    #[inline(always)]
    pub unsafe fn put(&self, a: Option<*const u8>, b: Option<*const u8>, to: *mut f32, n: usize) {
        let d = to.cast::<u8>();
        // SAFETY: guaranteed by the caller.
        unsafe {
            match (a, b) {
                (Some(a), Some(b)) => (self.both)(d, a, b, a, n),
                (Some(a), None) => (self.first)(d, a, a, a, n),
                (None, Some(b)) => (self.second)(d, b, b, b, n),
                (None, None) => d.write_bytes(0, n * 4),
            }
        }
    }
}

/// Returns the loop that stores f32 lanes as narrow floats: the inverse of [`widen`].
pub fn narrow(dtype: DType, level: Level) -> Option<TileFn> {
    match dtype {
        DType::BF16 => Some(loop1::<f32, u16, IntoBf16>(level)),
        DType::F16 => Some(level.tile::<NarrowF16>()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Element-wise f32 ops that are evaluated element by element, each about a hundred times slower than a vector loop
    /// (`cargo run --release -p systole-cpu --example elementwise` measures it). No preset's training step has one.
    const WITHOUT_VECTORS: &[&str] = &[];

    #[test]
    fn ops_without_a_vector_form_are_listed() {
        let unary =
            Unary::ALL.iter().filter(|op| op.row().float.is_some()).map(|&op| (op.name(), Op::Unary(op)));
        let binary = Binary::ALL.iter().filter(|op| op.row().float.is_some());
        let all = unary.chain(binary.map(|&op| (op.name(), Op::Binary(op))));
        let lacking = |op: &Op| !has_vector_form(op);
        let mut found: Vec<&str> = all.filter(|(_, op)| lacking(op)).map(|(name, _)| name).collect();
        let mut listed = WITHOUT_VECTORS.to_vec();
        found.sort();
        listed.sort();
        assert_eq!(
            found, listed,
            "add a loop for the new op here and in `jit`, or add it to the list with its cost"
        );
    }
}
