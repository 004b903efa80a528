//! Vectorized reduction loops for each associative op and element type; narrow floats are reduced as f32 lanes.

use crate::simd::level::{Isa, Level, TileFn, TileLoop};
use crate::simd::loops::{LoopElement, lanes, lanes_mut};
use crate::simd::stored_elements::{Add, And, Max, Min, Mul, Or, ReduceFn, StoredElement};
use std::marker::PhantomData;
use systole_ir::DType;
use systole_ir::op::Monoid;

/// Accumulators of a reduction along contiguous elements. The number is fixed, so that results do not depend on the
/// vector width.
pub const LANES: usize = 64;

/// Element types that are their own lane type.
trait ReduceElement: LoopElement + StoredElement<Lane = Self> {}
impl<T: LoopElement + StoredElement<Lane = T>> ReduceElement for T {}

/// Reduces `n` contiguous elements into [`LANES`] accumulators at `dst`: element `i` into accumulator `i % LANES`.
struct ReduceToLanes<T, F>(PhantomData<(T, F)>);
impl<T: ReduceElement, F: ReduceFn<T>> TileLoop for ReduceToLanes<T, F> {
    const EVERY_LEVEL: bool = <T as LoopElement>::COMMON;

    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        // SAFETY: guaranteed by the contract of `TileLoop::run`; the accumulators do not overlap the elements.
        let (d, a) = unsafe { (&mut *dst.cast::<[T; LANES]>(), lanes::<T>(a, n)) };
        let mut acc = *d;
        let chunks = a.chunks_exact(LANES);
        let rest = chunks.remainder();
        for chunk in chunks {
            for (x, y) in acc.iter_mut().zip(chunk) {
                *x = F::f(*x, *y);
            }
        }
        for (x, y) in acc.iter_mut().zip(rest) {
            *x = F::f(*x, *y);
        }
        *d = acc;
    }
}

/// Reduces `n` elements into `n` accumulators, element by element.
struct ReduceElementwise<T, F>(PhantomData<(T, F)>);
impl<T: ReduceElement, F: ReduceFn<T>> TileLoop for ReduceElementwise<T, F> {
    const EVERY_LEVEL: bool = <T as LoopElement>::COMMON;

    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        // SAFETY: guaranteed by the contract of `TileLoop::run`; the accumulators do not overlap the elements.
        let (d, a) = unsafe { (lanes_mut::<T>(dst, n), lanes::<T>(a, n)) };
        for (x, y) in d.iter_mut().zip(a) {
            *x = F::f(*x, *y);
        }
    }
}

/// Reduces [`LANES`] accumulators to one, as a binary tree.
struct ReduceLanes<T, F>(PhantomData<(T, F)>);
impl<T: ReduceElement, F: ReduceFn<T>> TileLoop for ReduceLanes<T, F> {
    const EVERY_LEVEL: bool = <T as LoopElement>::COMMON;

    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, _: usize) {
        // SAFETY: the caller has the accumulators at `a` and a lane at `dst`.
        unsafe {
            let mut acc = *a.cast::<[T; LANES]>();
            let mut half = LANES / 2;
            while half > 0 {
                let (low, high) = acc.split_at_mut(half);
                for (x, y) in low.iter_mut().zip(high) {
                    *x = F::f(*x, *y);
                }
                half /= 2;
            }
            *dst.cast::<T>() = acc[0];
        }
    }
}

/// Reduces each of `n` rows at `a` to one lane of `dst`; `b` points to the row length (a `usize`).
struct ReduceShortRows<T, F>(PhantomData<(T, F)>);
impl<T: ReduceElement, F: ReduceFn<T>> TileLoop for ReduceShortRows<T, F> {
    const EVERY_LEVEL: bool = <T as LoopElement>::COMMON;

    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, b: *const u8, _: *const u8, n: usize) {
        // SAFETY: guaranteed by the contract of `TileLoop::run`; rows have at least one element.
        unsafe {
            let row = *b.cast::<usize>();
            let elements = lanes::<T>(a, n * row);
            for (x, row) in lanes_mut::<T>(dst, n).iter_mut().zip(elements.chunks_exact(row)) {
                *x = row[1..].iter().fold(row[0], |x, y| F::f(x, *y));
            }
        }
    }
}

/// All loops of one reduction op (accumulate, combine, reduce) for an element type.
#[derive(Clone, Copy)]
pub struct ReduceLoops {
    /// Loop [`ReduceToLanes`].
    pub along: TileFn,
    /// Loop [`ReduceElementwise`].
    pub across: TileFn,
    /// Loop [`ReduceLanes`].
    pub within: TileFn,
    /// Loop [`ReduceShortRows`].
    pub short: TileFn,
}

fn loops<T: ReduceElement, F: ReduceFn<T>>(level: Level) -> ReduceLoops {
    ReduceLoops {
        along: level.tile::<ReduceToLanes<T, F>>(),
        across: level.tile::<ReduceElementwise<T, F>>(),
        within: level.tile::<ReduceLanes<T, F>>(),
        short: level.tile::<ReduceShortRows<T, F>>(),
    }
}

fn float_loops<T: ReduceElement>(monoid: Monoid, level: Level) -> ReduceLoops
where
    Add: ReduceFn<T>,
    Mul: ReduceFn<T>,
    Min: ReduceFn<T>,
    Max: ReduceFn<T>,
{
    match monoid {
        Monoid::Multiply => loops::<T, Mul>(level),
        Monoid::Minimum => loops::<T, Min>(level),
        Monoid::Maximum => loops::<T, Max>(level),
        // Bitwise reductions of floats are rejected by the type checker.
        Monoid::Add | Monoid::And | Monoid::Or => loops::<T, Add>(level),
    }
}

fn int_loops<T: ReduceElement>(monoid: Monoid, level: Level) -> ReduceLoops
where
    Add: ReduceFn<T>,
    Mul: ReduceFn<T>,
    Min: ReduceFn<T>,
    Max: ReduceFn<T>,
    And: ReduceFn<T>,
    Or: ReduceFn<T>,
{
    match monoid {
        Monoid::And => loops::<T, And>(level),
        Monoid::Or => loops::<T, Or>(level),
        other => match other {
            Monoid::Multiply => loops::<T, Mul>(level),
            Monoid::Minimum => loops::<T, Min>(level),
            Monoid::Maximum => loops::<T, Max>(level),
            _ => loops::<T, Add>(level),
        },
    }
}

/// Returns the loops that reduce elements of a type.
pub fn loops_of(monoid: Monoid, dtype: DType, level: Level) -> ReduceLoops {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => float_loops::<f32>(monoid, level),
        DType::F64 => float_loops::<f64>(monoid, level),
        DType::I8 => int_loops::<i8>(monoid, level),
        DType::I16 => int_loops::<i16>(monoid, level),
        DType::I32 => int_loops::<i32>(monoid, level),
        DType::I64 => int_loops::<i64>(monoid, level),
        DType::U8 => int_loops::<u8>(monoid, level),
        DType::U16 => int_loops::<u16>(monoid, level),
        DType::U32 => int_loops::<u32>(monoid, level),
        DType::U64 => int_loops::<u64>(monoid, level),
        DType::Bool => match monoid {
            Monoid::Add | Monoid::Maximum | Monoid::Or => loops::<u8, Or>(level),
            Monoid::Multiply | Monoid::Minimum | Monoid::And => loops::<u8, And>(level),
        },
    }
}

/// Returns the loop that adds `n` elements to `dst`. Narrow floats must be widened first: it treats them as f32.
pub fn adder(dtype: DType, level: Level) -> TileFn {
    loops_of(Monoid::Add, dtype, level.vectors()).across
}
