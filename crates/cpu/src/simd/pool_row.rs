//! Max pooling of one row of windows, with each window's argmax.
//!
//! Values equal those of `reduce_window` with `maximum`; argmax equals that of `select_and_scatter` with `ge`. This
//! includes NaN, ties, and zeros of both signs.

use crate::simd::level::{Isa, Level, TileFn, TileLoop};
use crate::simd::loops::{lanes, lanes_mut};
use crate::simd::math;
use crate::simd::narrow_floats::{NarrowF16, WidenF16};
use crate::simd::stored_elements::{Bf16Bits, F16Bits, StoredElement};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use systole_compile::{DEAD, Relu};
use systole_ir::DType;

/// Channels compared at a time; their state stays in L1.
const LANES: usize = 64;
/// Arguments of max pooling: a row of adjacent windows, channels innermost. Strides are in elements.
pub struct PoolRowArgs {
    /// Window height and width.
    pub window: [usize; 2],
    /// Stride between windows.
    pub step: usize,
    /// Stride between rows of the operand.
    pub line: usize,
    pub channels: usize,
    pub relu: Relu,
    /// Argmax of the first window, or null.
    pub argmax: *mut u8,
}

/// Pools `n` windows. `dst`: maxima, `[n, channels]`; `a`: the operand at the first window; `b`: a [`PoolRowArgs`]. `A`
/// and `Z` are the stored types of operand and result; all values must be representable in `Z`.
pub struct PoolRow<A, Z>(PhantomData<(A, Z)>);
impl<A: StoredElement<Lane = f32>, Z: StoredElement<Lane = f32>> TileLoop for PoolRow<A, Z> {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, b: *const u8, _: *const u8, n: usize) {
        // SAFETY: guaranteed by the contract of `TileLoop::run`, with the operands that the type's documentation names.
        unsafe {
            let r = &*b.cast::<PoolRowArgs>();
            for i in 0..n {
                let mut at = 0;
                while at < r.channels {
                    let part = LANES.min(r.channels - at);
                    let x = a.cast::<A>().add(i * r.step + at);
                    let to = i * r.channels + at;
                    let y = lanes_mut::<Z>(dst.cast::<Z>().add(to).cast(), part);
                    let argmax =
                        if r.argmax.is_null() { None } else { Some(lanes_mut(r.argmax.add(to), part)) };
                    pool(x, r, y, argmax);
                    at += part;
                }
            }
        }
    }
}

/// Elements of the largest f16 window that is widened as a whole.
const WIDENED: usize = 64;

/// Like [`PoolRow`] to f16, from f32 (`WIDE`) or f16: instructions widen elements and round maxima.
struct PoolF16<const WIDE: bool>;
impl<const WIDE: bool> TileLoop for PoolF16<WIDE> {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize) {
        // SAFETY: as for `PoolRow`; a window of at most `WIDENED` elements is written before it is pooled.
        unsafe {
            let r = &*b.cast::<PoolRowArgs>();
            let [height, width] = r.window;
            if !WIDE && height * width > WIDENED {
                return Level::Portable.tile::<PoolRow<F16Bits, F16Bits>>()(dst, a, b, c, n);
            }
            let near = PoolRowArgs { line: width * LANES, channels: LANES, ..*r };
            let mut wide = [const { MaybeUninit::<[f32; LANES]>::uninit() }; WIDENED];
            let mut top = [0f32; LANES];
            for i in 0..n {
                for at in (0..r.channels).step_by(LANES) {
                    let (part, from) = (LANES.min(r.channels - at), i * r.step + at);
                    let to = i * r.channels + at;
                    let argmax =
                        if r.argmax.is_null() { None } else { Some(lanes_mut(r.argmax.add(to), part)) };
                    if WIDE {
                        pool(a.cast::<f32>().add(from), r, &mut top[..part], argmax);
                    } else {
                        for (number, wide) in wide[..height * width].iter_mut().enumerate() {
                            let at = number / width * r.line + number % width * r.channels;
                            let x = a.cast::<u16>().add(from + at).cast();
                            WidenF16::run::<I>(wide.as_mut_ptr().cast(), x, x, x, part);
                        }
                        pool(wide.as_ptr().cast::<f32>(), &near, &mut top[..part], argmax);
                    }
                    let top = top.as_ptr().cast();
                    NarrowF16::run::<I>(dst.cast::<u16>().add(to).cast(), top, top, top, part);
                }
            }
        }
    }
}

/// Pools some channels of a window.
#[inline(always)]
unsafe fn pool<A: StoredElement<Lane = f32>, Z: StoredElement<Lane = f32>>(
    x: *const A,
    r: &PoolRowArgs,
    y: &mut [Z],
    argmax: Option<&mut [u8]>,
) {
    // SAFETY: the window's elements lie inside the operand.
    unsafe {
        match (r.window, r.relu) {
            ([2, 2], Relu::Before) => four::<A, Z, true>(x, r, y, argmax),
            ([2, 2], _) => four::<A, Z, false>(x, r, y, argmax),
            (_, Relu::Before) => window::<A, Z, true>(x, r, y, argmax),
            _ => window::<A, Z, false>(x, r, y, argmax),
        }
    }
}

#[inline(always)]
fn relu(x: f32) -> f32 {
    if x <= 0.0 { 0.0 } else { x }
}

/// Returns the argmax marker of an element `kept`, after ReLU of the elements.
#[inline(always)]
fn mark<const RELU: bool>(kept: f32) -> u32 {
    if RELU && kept <= 0.0 { DEAD as u32 } else { 0 }
}

/// Stores maxima and argmax of one window's channels. If ReLU of the maximum is inactive, argmax is [`DEAD`].
#[inline(always)]
fn put<Z: StoredElement<Lane = f32>>(
    r: &PoolRowArgs,
    y: &mut [Z],
    argmax: Option<&mut [u8]>,
    top: &[f32],
    which: &[u32],
) {
    let after = r.relu == Relu::After;
    for (y, top) in y.iter_mut().zip(top) {
        *y = Z::store(if after { relu(*top) } else { *top });
    }
    let Some(argmax) = argmax else { return };
    let mark = if after { DEAD as u32 } else { 0 };
    for ((argmax, which), top) in argmax.iter_mut().zip(which).zip(top) {
        *argmax = (*which | if *top <= 0.0 { mark } else { 0 }) as u8;
    }
}

/// Pools a window of any size.
#[inline(always)]
unsafe fn window<A: StoredElement<Lane = f32>, Z: StoredElement<Lane = f32>, const RELU: bool>(
    x: *const A,
    r: &PoolRowArgs,
    y: &mut [Z],
    argmax: Option<&mut [u8]>,
) {
    let n = y.len();
    let (mut kept, mut which) = ([0f32; LANES], [0u32; LANES]);
    let mut top = [f32::NEG_INFINITY; LANES];
    for number in 0..r.window[0] * r.window[1] {
        let at = number / r.window[1] * r.line + number % r.window[1] * r.channels;
        // SAFETY: the window's elements lie inside the operand.
        let others = unsafe { lanes::<A>(x.add(at).cast(), n) };
        for (((kept, which), top), other) in kept.iter_mut().zip(&mut which).zip(&mut top).zip(others) {
            let other = if RELU { relu(other.load()) } else { other.load() };
            // Position 0 is always selected, whatever it compares to (NaN).
            let keeps = number > 0 && *kept >= other;
            *kept = if keeps { *kept } else { other };
            *which = if keeps { *which } else { number as u32 };
            *top = math::maximum(*top, other);
        }
    }
    // The gradient follows the element that comparisons keep; with a NaN in the window this is not the maximum.
    for (which, kept) in which[..n].iter_mut().zip(&kept) {
        *which |= mark::<RELU>(*kept);
    }
    put(r, y, argmax, &top[..n], &which[..n]);
}

/// Pools a 2×2 window, the usual case, in registers.
#[inline(always)]
unsafe fn four<A: StoredElement<Lane = f32>, Z: StoredElement<Lane = f32>, const RELU: bool>(
    x: *const A,
    r: &PoolRowArgs,
    y: &mut [Z],
    argmax: Option<&mut [u8]>,
) {
    let n = y.len();
    // SAFETY: the window's elements lie inside the operand.
    let [x0, x1, x2, x3] =
        unsafe { [0, r.channels, r.line, r.line + r.channels].map(|at| lanes::<A>(x.add(at).cast(), n)) };
    let (mut top, mut which) = ([0f32; LANES], [0u32; LANES]);
    let load = |x: &A| if RELU { relu(x.load()) } else { x.load() };
    for (((((top, which), a), b), c), d) in
        top[..n].iter_mut().zip(&mut which).zip(x0).zip(x1).zip(x2).zip(x3)
    {
        let [a, b, c, d] = [load(a), load(b), load(c), load(d)];
        let first = a >= b;
        let (kept, number) = (if first { a } else { b }, if first { 0 } else { 1 });
        let keeps = kept >= c;
        let (kept, number) = (if keeps { kept } else { c }, if keeps { number } else { 2 });
        let keeps = kept >= d;
        let (kept, number) = (if keeps { kept } else { d }, if keeps { number } else { 3 });
        *which = number | mark::<RELU>(kept);
        *top = math::maximum(math::maximum(a, b), math::maximum(c, d));
    }
    put(r, y, argmax, &top[..n], &which[..n]);
}

/// Returns the pooling loop for an operand and result of these types, if there is one.
pub fn pool_row(operand: DType, result: DType, level: Level) -> Option<TileFn> {
    match (operand, result) {
        (DType::F32, DType::F32) => Some(level.tile::<PoolRow<f32, f32>>()),
        (DType::F32, DType::BF16) => Some(level.tile::<PoolRow<f32, Bf16Bits>>()),
        (DType::BF16, DType::BF16) => Some(level.tile::<PoolRow<Bf16Bits, Bf16Bits>>()),
        (DType::F32, DType::F16) => Some(level.tile::<PoolF16<true>>()),
        (DType::F16, DType::F16) => Some(level.tile::<PoolF16<false>>()),
        _ => None,
    }
}
