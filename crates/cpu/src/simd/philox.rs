//! Philox4x32-10 random number generator, vectorized over counters; bit-identical to `systole_ir::op::rng`.
//!
//! The documentation of `systole_ir::op::rng` describes how words and elements correspond.

use crate::simd::level::{Isa, Level, TileFn, TileLoop};
use crate::simd::loops::lanes_mut;

/// Returns the low and the high 32 bits of a 64-bit integer.
pub fn halves(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

/// Key and first counter of a Philox generator.
pub struct PhiloxStart {
    pub key: u64,
    pub counter: u128,
}

/// Splits `n` counters from `first` on into runs whose lowest word does not overflow. Calls `f` with the words of a
/// run's first counter and the run's range.
#[inline(always)]
pub fn runs(first: u128, n: usize, mut f: impl FnMut([u32; 4], std::ops::Range<usize>)) {
    let mut done = 0;
    while done < n {
        let at = first.wrapping_add(done as u128);
        let ([a, b], [c, d]) = (halves(at as u64), halves((at >> 64) as u64));
        let run = (n - done).min((u32::MAX - a) as usize + 1);
        f([a, b, c, d], done..done + run);
        done += run;
    }
}

/// Generates four words for each of `n` counters, `dst: [n, 4]`; `a` points to the [`PhiloxStart`].
pub struct Philox;
impl TileLoop for Philox {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        // SAFETY: guaranteed by the contract of `TileLoop::run`, with the operands that the type's documentation names.
        let (start, out) = unsafe { (&*a.cast::<PhiloxStart>(), lanes_mut::<[u32; 4]>(dst, n)) };
        let [k0, k1] = halves(start.key);
        runs(start.counter, n, |[a, b, c, d], range| {
            for (j, out) in out[range].iter_mut().enumerate() {
                // Straight-line code of one counter, which the compiler vectorizes over counters.
                let (mut w, mut k0, mut k1) = ([a.wrapping_add(j as u32), b, c, d], k0, k1);
                for _ in 0..10 {
                    let p0 = 0xD251_1F53u64 * w[0] as u64;
                    let p1 = 0xCD9E_8D57u64 * w[2] as u64;
                    w = [(p1 >> 32) as u32 ^ w[1] ^ k0, p1 as u32, (p0 >> 32) as u32 ^ w[3] ^ k1, p0 as u32];
                    k0 = k0.wrapping_add(0x9E37_79B9);
                    k1 = k1.wrapping_add(0xBB67_AE85);
                }
                *out = w;
            }
        });
    }
}

/// Returns key and first counter of a Philox state of two or three words.
pub fn start_of(state: &[u64]) -> PhiloxStart {
    // With two words of state, the key is also the counter's high half.
    let high = *state.get(2).unwrap_or(&state[0]);
    PhiloxStart { key: state[0], counter: (high as u128) << 64 | state[1] as u128 }
}

/// Random access to the 32-bit elements of one Philox draw.
pub struct PhiloxWords(TileFn);

impl PhiloxWords {
    /// Creates a generator for a level (its vector instructions).
    pub fn new(level: Level) -> PhiloxWords {
        PhiloxWords(level.tile::<Philox>())
    }

    /// Writes the `n` elements from index `first` on to `buffer`; returns the position of the first one in it.
    ///
    /// # Safety
    /// `state` points to two words; `buffer` has room for `n + 6` elements.
    pub unsafe fn draw(
        &self,
        state: *const [u64; 2],
        first: usize,
        n: usize,
        buffer: *mut u32,
    ) -> *const u32 {
        // SAFETY: guaranteed by the caller.
        let mut start = start_of(unsafe { &*state });
        start.counter = start.counter.wrapping_add((first / 4) as u128);
        let a: *const u8 = (&raw const start).cast();
        // SAFETY: whole counters: at most three words before the first element and three after the last.
        unsafe { (self.0)(buffer.cast(), a, a, a, (first % 4 + n).div_ceil(4)) };
        buffer.wrapping_add(first % 4).cast_const()
    }
}
