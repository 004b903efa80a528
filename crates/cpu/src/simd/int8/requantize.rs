//! What becomes of sums of 32 bits: bytes under the scale of the result, as `.tflite` rounds them.

use crate::simd::int8::i32x16::I32x16;
use crate::simd::int8::requantize_f32::RequantizeF32;
use crate::simd::int8::requantize_ref::RequantizeScale;

/// For each column, in whole panels. What wraps around has been ruled out.
#[derive(Clone, Debug)]
pub struct RequantizeParams {
    /// What sums begin with.
    pub bias: Vec<i32>,
    pub scaled: RequantizeScale,
    /// What gives the same in fewer instructions, if such was found: `bias` is shifted then, and nothing else counts.
    pub near: Option<RequantizeF32>,
    /// Zero point of the result, and its least and greatest value.
    pub zero: i32,
    pub low: i32,
    pub high: i32,
}

/// The numbers of sixteen columns. With `is_near` those of [`Near`]: `high`, `low`, `start`, `below` and `limit`, in the order of fields.
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
    /// The same of other columns: those at each place of `order`; where that is no column, of none.
    pub fn in_order(&self, order: &[usize]) -> RequantizeParams {
        fn of<T: Copy + Default>(all: &[T], order: &[usize]) -> Vec<T> {
            order.iter().map(|at| all.get(*at).copied().unwrap_or_default()).collect()
        }
        let scaled = match self.scaled.clone() {
            RequantizeScale::Factor(f) => RequantizeScale::Factor(of(&f, order)),
            RequantizeScale::Fixed {
                left,
                multiplier,
                right,
                half,
                some,
                is_shifted,
                is_bounded,
                has_zero,
            } => {
                let [left, multiplier, right, half, some] =
                    [left, multiplier, right, half, some].map(|all| of(&all, order));
                RequantizeScale::Fixed {
                    left,
                    multiplier,
                    right,
                    half,
                    some,
                    is_shifted,
                    is_bounded,
                    has_zero,
                }
            }
        };
        RequantizeParams {
            bias: of(&self.bias, order),
            scaled,
            near: self.near.as_ref().map(|near| near.in_order(|all| of(all, order), |all| of(all, order))),
            ..*self
        }
    }

    /// Those of columns `at` to `at + 16`.
    ///
    /// # Safety
    /// There are such, rounded up to a whole panel.
    #[inline(always)]
    pub unsafe fn sixteen<L: I32x16>(&self, at: usize) -> RequantizeLanes<L> {
        let nothing = L::splat(0);
        let (zero, low, high) = (L::splat(self.zero), L::splat(self.low), L::splat(self.high));
        let plain = RequantizeLanes {
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
        };
        if let Some(near) = &self.near {
            // SAFETY: by the caller's promise all have these columns.
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
            RequantizeScale::Fixed {
                left,
                multiplier,
                right,
                half,
                some,
                is_shifted,
                is_bounded,
                has_zero,
            } => {
                // SAFETY: by the caller's promise all have these columns.
                unsafe {
                    RequantizeLanes {
                        left: L::load(left.as_ptr().add(at)),
                        multiplier: L::load(multiplier.as_ptr().add(at)),
                        right: L::load(right.as_ptr().add(at)),
                        half: L::load(half.as_ptr().add(at)),
                        some: L::load(some.as_ptr().add(at)),
                        is_shifted: *is_shifted,
                        is_bounded: *is_bounded,
                        has_zero: *has_zero,
                        ..plain
                    }
                }
            }
            // SAFETY: as above.
            RequantizeScale::Factor(f) => RequantizeLanes { factor: unsafe { f.as_ptr().add(at) }, ..plain },
        }
    }
}

impl<L: I32x16> RequantizeLanes<L> {
    /// Sixteen sums under the scale of the result, before its bounds.
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

    /// The bytes of sixteen sums, still of 32 bits.
    #[inline(always)]
    pub fn of(&self, sums: L) -> L {
        self.unbounded(sums).max(self.low).min(self.high)
    }
}
