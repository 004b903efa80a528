//! Requantizes int32 accumulators to int8 with TFLite's rounding.

use crate::simd::int8::i32x16::I32x16;
use crate::simd::int8::requantize_f32::RequantizeF32;
use crate::simd::int8::requantize_ref::{FixedPointScale, RequantizeScale};

/// Per-column requantization parameters, padded to whole panels. They are checked not to overflow.
#[derive(Clone, Debug)]
pub struct RequantizeParams {
    /// Initial accumulators.
    pub bias: Vec<i32>,
    pub scaled: RequantizeScale,
    /// Equivalent f32 formula with fewer instructions, if one was found. `bias` is then shifted for it, and the other
    /// fields are not used.
    pub near: Option<RequantizeF32>,
    /// Zero point of the result, and its minimum and maximum.
    pub zero: i32,
    pub low: i32,
    pub high: i32,
}

/// Parameters of sixteen columns. With `is_near` the fields hold [`RequantizeF32`]'s `high`, `low`, `start`, `below`
/// and `limit`, in this order.
pub struct RequantizeLanes<L> {
    is_near: bool,
    is_signed: bool,
    left: L,
    multiplier: L,
    right: L,
    half: L,
    some: L,
    is_shifted: bool,
    is_bounded: bool,
    has_zero: bool,
    factor: *const f64,
    zero: L,
    low: L,
    high: L,
}

impl RequantizeParams {
    /// Returns the parameters with columns permuted by `order`; out-of-range indices yield defaults.
    pub fn in_order(&self, order: &[usize]) -> RequantizeParams {
        fn of<T: Copy + Default>(all: &[T], order: &[usize]) -> Vec<T> {
            order.iter().map(|at| all.get(*at).copied().unwrap_or_default()).collect()
        }
        let scaled = match self.scaled.clone() {
            RequantizeScale::Factor(f) => RequantizeScale::Factor(of(&f, order)),
            RequantizeScale::Fixed(fixed) => {
                let FixedPointScale { left, multiplier, right, half, some, .. } = &fixed;
                let [left, multiplier, right, half, some] =
                    [left, multiplier, right, half, some].map(|all| of(all, order));
                RequantizeScale::Fixed(FixedPointScale { left, multiplier, right, half, some, ..fixed })
            }
        };
        RequantizeParams {
            bias: of(&self.bias, order),
            scaled,
            near: self.near.as_ref().map(|near| near.in_order(|all| of(all, order), |all| of(all, order))),
            ..*self
        }
    }

    /// Loads the parameters of columns `at` to `at + 16`.
    ///
    /// # Safety
    /// These columns exist, counting the padding to a whole panel.
    #[inline(always)]
    pub unsafe fn sixteen<L: I32x16>(&self, at: usize) -> RequantizeLanes<L> {
        let plain = RequantizeLanes::unscaled([self.zero, self.low, self.high].map(L::splat));
        if let Some(near) = &self.near {
            // SAFETY: the caller guarantees that all have these columns.
            unsafe {
                return RequantizeLanes {
                    is_near: true,
                    is_signed: near.is_signed,
                    left: L::load(near.high.as_ptr().add(at).cast()),
                    multiplier: L::load(near.low.as_ptr().add(at).cast()),
                    right: L::load(near.start.as_ptr().add(at).cast()),
                    half: L::load(near.below.as_ptr().add(at).cast()),
                    some: L::load(near.limit.as_ptr().add(at)),
                    ..plain
                };
            }
        }
        match &self.scaled {
            // SAFETY: the caller guarantees that all have these columns.
            RequantizeScale::Fixed(fixed) => unsafe {
                RequantizeLanes {
                    left: L::load(fixed.left.as_ptr().add(at)),
                    multiplier: L::load(fixed.multiplier.as_ptr().add(at)),
                    right: L::load(fixed.right.as_ptr().add(at)),
                    half: L::load(fixed.half.as_ptr().add(at)),
                    some: L::load(fixed.some.as_ptr().add(at)),
                    is_shifted: fixed.is_shifted,
                    is_bounded: fixed.is_bounded,
                    has_zero: fixed.has_zero,
                    ..plain
                }
            },
            // SAFETY: as above.
            RequantizeScale::Factor(f) => RequantizeLanes { factor: unsafe { f.as_ptr().add(at) }, ..plain },
        }
    }
}

impl<L: I32x16> RequantizeLanes<L> {
    /// Parameters without a scale: zero point and bounds.
    #[inline(always)]
    fn unscaled([zero, low, high]: [L; 3]) -> RequantizeLanes<L> {
        let nothing = L::splat(0);
        RequantizeLanes {
            is_near: false,
            is_signed: false,
            left: nothing,
            multiplier: nothing,
            right: nothing,
            half: nothing,
            some: nothing,
            is_shifted: false,
            is_bounded: false,
            has_zero: false,
            factor: std::ptr::null(),
            zero,
            low,
            high,
        }
    }

    /// Scales sixteen accumulators to the result's scale, before clamping.
    #[inline(always)]
    pub fn unbounded(&self, sums: L) -> L {
        if self.is_near {
            let start =
                if self.is_signed { sums.choose(self.some, self.half, self.right) } else { self.right };
            return sums.near(self.left, self.multiplier, start);
        }
        let y = if self.factor.is_null() {
            let x = if self.is_shifted { sums.shifted_left(self.left) } else { sums };
            let x = x.high(self.multiplier);
            if self.is_bounded {
                x.divided_down(self.right, self.half)
            } else {
                x.divided(self.right, self.half, self.some)
            }
        } else {
            // SAFETY: the factors of these columns.
            unsafe { sums.scaled(self.factor) }
        };
        if self.has_zero { y } else { y.add(self.zero) }
    }

    /// Returns sixteen int8 results, still as int32 lanes.
    #[inline(always)]
    pub fn of(&self, sums: L) -> L {
        self.unbounded(sums).max(self.low).min(self.high)
    }
}
