//! Converts whole arrays to another element type, in parallel.

use crate::kernel::{KernelContext, Ptr};
use crate::simd::level::TileFn;

/// Applies a unary element-wise loop to `n` elements. `from` and `to`: address, and element size in bytes.
///
/// # Safety
/// Both arrays have `n` elements.
pub unsafe fn convert(
    cx: &KernelContext<'_>,
    f: TileFn,
    from: (*const u8, usize),
    to: (*mut u8, usize),
    n: usize,
) {
    const BLOCK: usize = 1 << 14;
    let (src, dst) = (Ptr::of(from.0), Ptr(to.0));
    let body = |block: usize| {
        let at = block * BLOCK;
        let (s, d) = (src.at(at * from.1).cast_const(), dst.at(at * to.1));
        // SAFETY: tasks have disjoint blocks of the arrays.
        unsafe { f(d, s, s, s, BLOCK.min(n - at)) };
    };
    cx.team.run_with(n.div_ceil(BLOCK), n as f64 * 0.2, cx.flush, &body);
}
