//! Stored element types, and reduction functions that round to the stored type at every step.
//!
//! For kernels whose reductions follow the interpreter's order and rounding exactly: reduce-window and scatter.

use crate::simd::math;
use systole_ir::DType;
use systole_ir::op::Monoid;

/// A stored element type. Arithmetic is done on its `Lane` type: f32 for narrow floats.
pub(crate) trait StoredElement: Copy + Send + Sync + 'static {
    /// Type that arithmetic is done in.
    type Lane: Copy + PartialOrd;
    /// Integer as wide as a lane, so that comparisons of both share vector masks.
    type Mark: Copy + PartialEq + From<u32>;
    /// Whether its loops are compiled for every level (see
    /// [`TileLoop::EVERY_LEVEL`](crate::simd::level::TileLoop::EVERY_LEVEL)).
    const COMMON: bool;
    /// Widens to a lane.
    fn load(self) -> Self::Lane;
    /// Rounds a lane to the nearest stored value.
    fn store(lane: Self::Lane) -> Self;
    /// Adds zero: −0 becomes +0.
    fn unsigned_zero(self) -> Self;
}

macro_rules! plain {
    ($($t:ty, $mark:ty, $common:literal;)*) => { $(
        impl StoredElement for $t {
            type Lane = $t;
            type Mark = $mark;
            const COMMON: bool = $common;
            #[inline(always)] fn load(self) -> $t { self }
            #[inline(always)] fn store(lane: $t) -> $t { lane }
            #[inline(always)] fn unsigned_zero(self) -> $t { 0 as $t + self }
        }
    )* };
}
plain!(
    f32, u32, true; f64, u64, false; i8, u32, false; i16, u32, false; i32, u32, false; i64, u64, false;
    u8, u32, false; u16, u32, false; u32, u32, false; u64, u64, false;
);

/// bf16, as bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Bf16Bits(u16);

/// f16, as bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct F16Bits(u16);

macro_rules! narrow {
    ($($t:ident, $from:path, $to:path, |$x:ident| $unsigned:expr;)*) => { $(
        impl StoredElement for $t {
            type Lane = f32;
            type Mark = u32;
            const COMMON: bool = true;
            #[inline(always)] fn load(self) -> f32 { $from(self.0) }
            #[inline(always)] fn store(lane: f32) -> $t { $t($to(lane)) }
            #[inline(always)] fn unsigned_zero(self) -> $t { let $x = self; $unsigned }
        }
    )* };
}
narrow!(
    Bf16Bits, math::from_bf16, math::to_bf16, |x| Bf16Bits::store(0.0 + x.load());
    // Computed on bits: conversions take ten times as long.
    F16Bits, math::from_f16, math::to_f16, |x| F16Bits(if x.0 == 0x8000 { 0 } else { x.0 });
);

/// Reduction function on lanes whose results are representable in `C`.
pub(crate) trait ReduceFn<C: StoredElement>: Send + Sync + 'static {
    /// Whether its loops are compiled for every level.
    const COMMON: bool = false;
    /// Computes `(accumulator, next) → accumulator`.
    fn f(a: C::Lane, b: C::Lane) -> C::Lane;
}

pub(crate) struct Add;
pub(crate) struct Mul;
pub(crate) struct Min;
pub(crate) struct Max;
pub(crate) struct And;
pub(crate) struct Or;
/// Replaces the accumulator by the next element.
pub(crate) struct ReplaceWith;

macro_rules! ints {
    ($($t:ty),*) => { $(
        impl ReduceFn<$t> for Add { #[inline(always)] fn f(a: $t, b: $t) -> $t { a.wrapping_add(b) } }
        impl ReduceFn<$t> for Mul { #[inline(always)] fn f(a: $t, b: $t) -> $t { a.wrapping_mul(b) } }
        impl ReduceFn<$t> for Min { #[inline(always)] fn f(a: $t, b: $t) -> $t { a.min(b) } }
        impl ReduceFn<$t> for Max { #[inline(always)] fn f(a: $t, b: $t) -> $t { a.max(b) } }
        impl ReduceFn<$t> for And { #[inline(always)] fn f(a: $t, b: $t) -> $t { a & b } }
        impl ReduceFn<$t> for Or { #[inline(always)] fn f(a: $t, b: $t) -> $t { a | b } }
    )* };
}
ints!(i8, i16, i32, i64, u8, u16, u32, u64);

// A sum or product of two narrow floats, rounded to f32 and then to the narrow type, equals the exact result rounded
// once: f32 has more than twice their significand bits. Minimum and maximum return an operand.
macro_rules! floats {
    ($($t:ty, $lane:ty, $max:path, $min:path;)*) => { $(
        impl ReduceFn<$t> for Add {
            const COMMON: bool = true;
            #[inline(always)] fn f(a: $lane, b: $lane) -> $lane { <$t>::store(a + b).load() }
        }
        impl ReduceFn<$t> for Mul {
            #[inline(always)] fn f(a: $lane, b: $lane) -> $lane { <$t>::store(a * b).load() }
        }
        impl ReduceFn<$t> for Min { #[inline(always)] fn f(a: $lane, b: $lane) -> $lane { $min(a, b) } }
        impl ReduceFn<$t> for Max {
            const COMMON: bool = true;
            #[inline(always)] fn f(a: $lane, b: $lane) -> $lane { $max(a, b) }
        }
    )* };
}
floats!(
    f32, f32, math::maximum, math::minimum;
    f64, f64, math::maximum64, math::minimum64;
    Bf16Bits, f32, math::maximum, math::minimum;
    F16Bits, f32, math::maximum, math::minimum;
);

impl<C: StoredElement> ReduceFn<C> for ReplaceWith {
    #[inline(always)]
    fn f(_: C::Lane, b: C::Lane) -> C::Lane {
        b
    }
}

/// Generic code that is instantiated for an element type and a reduction function.
pub(crate) trait ReduceVisitor {
    type Out;
    fn with<C: StoredElement, F: ReduceFn<C>>(&self) -> Self::Out;
}

/// Calls `v` with the types for `dtype` and `monoid`; returns `None` if the type does not support the reduction.
pub(crate) fn for_fold<V: ReduceVisitor>(v: &V, dtype: DType, monoid: Monoid) -> Option<V::Out> {
    Some(match dtype {
        DType::F32 => for_float::<f32, V>(v, monoid)?,
        DType::F64 => for_float::<f64, V>(v, monoid)?,
        DType::BF16 => for_float::<Bf16Bits, V>(v, monoid)?,
        DType::F16 => for_float::<F16Bits, V>(v, monoid)?,
        DType::I8 => for_int::<u8, i8, V>(v, monoid),
        DType::I16 => for_int::<u16, i16, V>(v, monoid),
        DType::I32 => for_int::<u32, i32, V>(v, monoid),
        DType::I64 => for_int::<u64, i64, V>(v, monoid),
        DType::U8 => for_int::<u8, u8, V>(v, monoid),
        DType::U16 => for_int::<u16, u16, V>(v, monoid),
        DType::U32 => for_int::<u32, u32, V>(v, monoid),
        DType::U64 => for_int::<u64, u64, V>(v, monoid),
        DType::Bool => match monoid {
            Monoid::Add | Monoid::Maximum | Monoid::Or => v.with::<u8, Or>(),
            Monoid::Multiply | Monoid::Minimum | Monoid::And => v.with::<u8, And>(),
        },
    })
}

fn for_float<C: StoredElement, V: ReduceVisitor>(v: &V, monoid: Monoid) -> Option<V::Out>
where
    Add: ReduceFn<C>,
    Mul: ReduceFn<C>,
    Min: ReduceFn<C>,
    Max: ReduceFn<C>,
{
    match monoid {
        Monoid::Add => Some(v.with::<C, Add>()),
        Monoid::Multiply => Some(v.with::<C, Mul>()),
        Monoid::Minimum => Some(v.with::<C, Min>()),
        Monoid::Maximum => Some(v.with::<C, Max>()),
        Monoid::And | Monoid::Or => None,
    }
}

/// `U` is the unsigned type of the same size: in two's complement everything but the order is the same for both.
fn for_int<U: StoredElement, C: StoredElement, V: ReduceVisitor>(v: &V, monoid: Monoid) -> V::Out
where
    Add: ReduceFn<U>,
    Mul: ReduceFn<U>,
    And: ReduceFn<U>,
    Or: ReduceFn<U>,
    Min: ReduceFn<C>,
    Max: ReduceFn<C>,
{
    match monoid {
        Monoid::Add => v.with::<U, Add>(),
        Monoid::Multiply => v.with::<U, Mul>(),
        Monoid::And => v.with::<U, And>(),
        Monoid::Or => v.with::<U, Or>(),
        Monoid::Minimum => v.with::<C, Min>(),
        Monoid::Maximum => v.with::<C, Max>(),
    }
}
