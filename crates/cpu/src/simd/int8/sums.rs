//! Sums and differences of two tensors of bytes, element by element, under three scales; and sums of rows.

use crate::simd::int8::lanes::{Lanes, Plain};
use crate::simd::int8::windows::instances;
use crate::simd::level::Level;

/// A fixed-point factor below 1.
#[derive(Clone, Copy, Debug, Default)]
pub struct Factor {
    pub multiplier: i32,
    pub right: i32,
}

impl Factor {
    #[inline(always)]
    fn of<L: Lanes>(self, x: L) -> L {
        let [by, half, some] = [self.right, (1 << self.right) >> 1, -i32::from(self.right > 0)];
        x.high(L::splat(self.multiplier)).divided(L::splat(by), L::splat(half), L::splat(some))
    }
}

/// How two numbers are added.
#[derive(Clone, Copy, Debug)]
pub struct Addition {
    /// Zero points of both, and their factors, for 20 bits more.
    pub zeros: [i32; 2],
    pub factors: [Factor; 2],
    /// Whether the second is taken off.
    pub is_difference: bool,
    /// What the sum is multiplied with.
    pub factor: Factor,
    /// Zero point and bounds of the result.
    pub zero: i32,
    pub low: i32,
    pub high: i32,
}

/// `n` elements of each.
pub struct Both<'a> {
    pub how: &'a Addition,
    pub x: [*const i8; 2],
    pub n: usize,
    pub to: *mut i8,
}

/// The scaled elements of an operand from `at` on.
#[inline(always)]
unsafe fn scaled<L: Lanes>(b: &Both<'_>, i: usize, at: usize) -> L {
    // SAFETY: by the caller's promise.
    let x = unsafe { L::widen(b.x[i].add(at), b.n - at) }.sub(L::splat(b.how.zeros[i]));
    b.how.factors[i].of(x.shifted_left(L::splat(20)))
}

#[inline(always)]
unsafe fn add<L: Lanes>(b: &Both<'_>) {
    let how = b.how;
    for at in (0..b.n).step_by(16) {
        let n = b.n - at;
        // SAFETY: by the caller's promise.
        unsafe {
            let (one, two) = (scaled::<L>(b, 0, at), scaled::<L>(b, 1, at));
            let sum = if how.is_difference { one.sub(two) } else { one.add(two) };
            let y = how.factor.of(sum).add(L::splat(how.zero));
            y.max(L::splat(how.low)).min(L::splat(how.high)).narrow(b.to.add(at), n);
        }
    }
}
instances!(
    /// Additions.
    addition(Both<'_>) = add
);

/// Rows whose bytes are summed up.
pub struct RowSums<'a> {
    pub a: *const u8,
    pub a_row: usize,
    pub rows: usize,
    /// Where each step of a row begins, and the bytes of all of them that count.
    pub steps: &'a [usize],
    pub bytes: usize,
    /// −128 times the sum of each row.
    pub to: *mut i32,
}

#[inline(always)]
unsafe fn sum<L: Lanes>(r: &RowSums<'_>) {
    for row in 0..r.rows {
        let (mut left, mut all) = (r.bytes, L::splat(0));
        for step in r.steps {
            let n = left.min(crate::simd::int8::STEP);
            // SAFETY: by the caller's promise the rows have these bytes.
            unsafe {
                let from = r.a.add(row * r.a_row + step).cast::<i8>();
                for at in (0..n).step_by(16) {
                    all = all.add(L::widen(from.add(at), n - at));
                }
            }
            left -= n;
        }
        let mut lanes = [0i32; 16];
        // SAFETY: sixteen lanes; the result has these rows.
        unsafe {
            all.store(lanes.as_mut_ptr());
            r.to.add(row).write(lanes.iter().fold(0i32, |s, v| s.wrapping_add(*v)).wrapping_mul(-128));
        }
    }
}
instances!(
    /// Sums of rows.
    row_sums(RowSums<'_>) = sum
);
