//! Binary int8 ops by arithmetic formulas (min, max, linear, product) in place of lookup tables.

use crate::simd::int8::add_sub::LinearFormula;
use crate::simd::int8::i32x16::{I32x16, PortableI32x16};
use crate::simd::int8::windows::instances;
use crate::simd::level::Level;

/// Formula of a binary int8 function, before clamping.
#[derive(Clone, Copy, Debug)]
pub enum BinaryFormula {
    Least,
    Greatest,
    Linear(LinearFormula),
    Product(ProductFormula),
}

/// `⌊p · (high + low) + start⌋` of `p = (x − zeros[0]) · (y − zeros[1]) + constant`, where `below` replaces `start` if
/// `p` is less than `limit`. See `simd::int8::requantize_f32`.
#[derive(Clone, Copy, Debug)]
pub struct ProductFormula {
    pub zeros: [i32; 2],
    pub constant: i32,
    pub line: [f32; 2],
    pub start: f32,
    pub below: f32,
    pub limit: i32,
}

/// Arguments of [`pairs`]: `n` elements per operand, and the result's range.
pub struct BinaryArgs<'a> {
    pub how: &'a BinaryFormula,
    pub bounds: [i8; 2],
    pub x: *const i8,
    /// One element for all, or `n` elements.
    pub y: *const i8,
    pub is_one: bool,
    pub n: usize,
    pub to: *mut i8,
}

const LEAST: u8 = 0;
const GREATEST: u8 = 1;
const LINEAR: u8 = 2;
const PRODUCT: u8 = 3;

/// A formula's constants as vectors.
struct FormulaLanes<L> {
    /// The second operand if it has one element.
    one: L,
    first: L,
    second: L,
    constant: L,
    high: L,
    low: L,
    start: L,
    below: L,
    limit: L,
    shift: i32,
}

#[inline(always)]
fn numbers<L: I32x16>(how: &BinaryFormula, one: i8) -> FormulaLanes<L> {
    let nothing = L::splat(0);
    let bits = |v: f32| L::splat(v.to_bits() as i32);
    let mut all = FormulaLanes {
        one: L::splat(one.into()),
        first: nothing,
        second: nothing,
        constant: nothing,
        high: nothing,
        low: nothing,
        start: nothing,
        below: nothing,
        limit: nothing,
        shift: 0,
    };
    match how {
        BinaryFormula::Least | BinaryFormula::Greatest => {}
        BinaryFormula::Linear(l) => {
            (all.first, all.second) = (L::splat(l.weights[0]), L::splat(l.weights[1]));
            (all.constant, all.shift) = (L::splat(l.constant), l.shift);
        }
        BinaryFormula::Product(p) => {
            (all.first, all.second) = (L::splat(p.zeros[0]), L::splat(p.zeros[1]));
            (all.constant, all.limit) = (L::splat(p.constant), L::splat(p.limit));
            (all.high, all.low) = (bits(p.line[0]), bits(p.line[1]));
            (all.start, all.below) = (bits(p.start), bits(p.below));
        }
    }
    all
}

#[inline(always)]
unsafe fn value<L: I32x16, const KIND: u8>(p: &BinaryArgs<'_>, k: &FormulaLanes<L>, at: usize) -> L {
    // SAFETY: guaranteed by the caller.
    let x = unsafe { L::widen(p.x.add(at), p.n - at) };
    // SAFETY: as above.
    let y = if p.is_one { k.one } else { unsafe { L::widen(p.y.add(at), p.n - at) } };
    match KIND {
        LEAST => x.min(y),
        GREATEST => x.max(y),
        LINEAR => x.times(k.first).add(y.times(k.second)).add(k.constant).shifted_right(k.shift),
        _ => {
            let product = x.sub(k.first).times(y.sub(k.second)).add(k.constant);
            product.near(k.high, k.low, product.choose(k.limit, k.below, k.start))
        }
    }
}

#[inline(always)]
unsafe fn all<L: I32x16, const KIND: u8>(p: &BinaryArgs<'_>) {
    let [low, high] = p.bounds;
    let whole = p.n / 32 * 32;
    // SAFETY: guaranteed by the caller.
    unsafe {
        let k = numbers::<L>(p.how, if p.is_one { *p.y } else { 0 });
        for at in (0..whole).step_by(32) {
            let (one, two) = (value::<L, KIND>(p, &k, at), value::<L, KIND>(p, &k, at + 16));
            L::narrow_two(one, two, low, high, p.to.add(at));
        }
        let (low, high) = (L::splat(low.into()), L::splat(high.into()));
        for at in (whole..p.n).step_by(16) {
            value::<L, KIND>(p, &k, at).max(low).min(high).narrow(p.to.add(at), p.n - at);
        }
    }
}

#[inline(always)]
unsafe fn run<L: I32x16>(p: &BinaryArgs<'_>) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match p.how {
            BinaryFormula::Least => all::<L, LEAST>(p),
            BinaryFormula::Greatest => all::<L, GREATEST>(p),
            BinaryFormula::Linear(_) => all::<L, LINEAR>(p),
            BinaryFormula::Product(_) => all::<L, PRODUCT>(p),
        }
    }
}

instances!(
    /// Returns the kernel of binary int8 formulas for a level.
    pairs(BinaryArgs<'_>) = run
);
