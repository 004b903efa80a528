//! Threefry2x32-20 random bits. Counters are independent, so blocks of them run in parallel.
//!
//! A counter yields two words. They become elements `2k` and `2k + 1` along one dimension of the result, as in XLA's
//! algorithm. So they are not adjacent in memory unless that dimension is the innermost one; the words go through a
//! buffer.

use crate::kernel::{Io, Kernel, KernelContext, Ptr};
use crate::kernels::rng::rng_types::{BLOCK, BUFFER};
use crate::simd::level::{Isa, Level, TileFn, TileLoop};
use crate::simd::loops::lanes_mut;
use crate::simd::philox::{PhiloxStart, halves, runs};
use systole_ir::{Result, TensorType};

/// Writes two words for each of `n` counters to `dst`; `a`: the [`PhiloxStart`].
struct Threefry;
impl TileLoop for Threefry {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        // SAFETY: by the promises of `TileLoop::run`, `a` is a `PhiloxStart` and `dst` has room for `n` pairs of words.
        let (start, out) = unsafe { (&*a.cast::<PhiloxStart>(), lanes_mut::<[u32; 2]>(dst, n)) };
        let [k0, k1] = halves(start.key);
        let keys = [k0, k1, 0x1BD1_1BDA ^ k0 ^ k1];
        runs(start.counter, n, |[a, b, ..], range| {
            for (j, out) in out[range].iter_mut().enumerate() {
                *out = threefry([a.wrapping_add(j as u32), b], keys);
            }
        });
    }
}

/// Computes Threefry2x32-20 of one counter: 20 rounds, a key injection after every 4.
#[inline(always)]
fn threefry([a, b]: [u32; 2], keys: [u32; 3]) -> [u32; 2] {
    const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
    let (mut a, mut b) = (a.wrapping_add(keys[0]), b.wrapping_add(keys[1]));
    for group in 0..5 {
        for r in ROTATIONS[group % 2] {
            a = a.wrapping_add(b);
            b = b.rotate_left(r) ^ a;
        }
        a = a.wrapping_add(keys[(group + 1) % 3]);
        b = b.wrapping_add(keys[(group + 2) % 3]).wrapping_add(group as u32 + 1);
    }
    [a, b]
}

/// Threefry kernel, bound to the types of a random bit generation step.
///
/// The result is viewed as `[outer, size, inner]`: counters run over `[outer, ⌈size / 2⌉, inner]`, and counter `[o, k,
/// i]` yields elements `[o, 2k, i]` and `[o, 2k + 1, i]`. 64-bit elements use both words of a counter, in order.
pub struct ThreefryKernel {
    size: usize,
    inner: usize,
    /// Counters along the middle dimension: `⌈size / 2⌉`.
    middle: usize,
    counters: usize,
    /// Bytes of an element.
    bytes: usize,
    tile: TileFn,
}

impl ThreefryKernel {
    /// Creates the kernel that generates random bits of type `ty`.
    pub fn new(ty: &TensorType, level: Level) -> ThreefryKernel {
        let tile = level.tile::<Threefry>();
        let (shape, bytes) = (&ty.shape, ty.dtype.size());
        let even = (0..shape.rank()).find(|&d| shape[d].is_multiple_of(2));
        let split = even.or_else(|| (0..shape.rank()).rev().max_by_key(|&d| shape[d]));
        let size = split.map_or(1, |d| shape[d]);
        let inner = split.map_or(1, |d| shape[d + 1..].iter().product());
        let outer: usize = split.map_or(1, |d| shape[..d].iter().product());
        let middle = size.div_ceil(2);
        let counters = if bytes == 8 { ty.elements() } else { outer * middle * inner };
        ThreefryKernel { size, inner, middle, counters, bytes, tile }
    }

    /// Writes the words of counters `from..from + words.len()` to their elements, of at most 32 bits.
    unsafe fn place<T>(&self, from: usize, words: &[[u32; 2]], out: Ptr, low: impl Fn(u32) -> T) {
        let mut done = 0;
        while done < words.len() {
            // A run of counters along the inner dimension, or along the middle one if `inner` is 1.
            let (row, at) = ((from + done) / self.inner, (from + done) % self.inner);
            let (outer, k) = (row / self.middle, row % self.middle);
            let first = out.elem::<T>((outer * self.size + 2 * k) * self.inner + at);
            // Elements between pairs, and from the first to the second of a pair. If `size` is odd, the last counters
            // of the middle dimension have no second element.
            let (run, pairs, stride, second) = match self.inner {
                1 => (self.middle - k, self.size / 2 - k, 2, 1),
                inner if 2 * k + 1 < self.size => (inner - at, inner - at, 1, inner),
                inner => (inner - at, 0, 1, 0),
            };
            let words = &words[done..];
            let words = &words[..run.min(words.len())];
            // SAFETY: by the caller's promise, these counters exist; each element belongs to one counter.
            unsafe {
                for (j, [a, _]) in words.iter().enumerate() {
                    *first.add(j * stride) = low(*a);
                }
                for (j, [_, b]) in words.iter().enumerate().take(pairs) {
                    *first.add(j * stride + second) = low(*b);
                }
            }
            done += words.len();
        }
    }

    /// Writes the words of counters to 64-bit elements; the first word is the low half.
    unsafe fn place_wide(from: usize, words: &[[u32; 2]], out: Ptr) {
        for (j, [a, b]) in words.iter().enumerate() {
            // SAFETY: by the caller's promise, element `from + j`, that of counter `from + j`, exists.
            unsafe { *out.elem::<u64>(from + j) = *a as u64 | (*b as u64) << 32 };
        }
    }
}

impl Kernel for ThreefryKernel {
    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: the op's state is two u64.
        let [key, counter] = unsafe { *io.inputs[0].cast::<[u64; 2]>() };
        // SAFETY: the next state has the same type.
        unsafe { *io.outputs[0].cast::<[u64; 2]>() = [key, counter.wrapping_add(self.counters as u64)] };
        let bits = Ptr(io.outputs[1]);
        let body = |block: usize| {
            let end = ((block + 1) * BLOCK).min(self.counters);
            for from in (block * BLOCK..end).step_by(BUFFER) {
                let mut words = [[0u32; 2]; BUFFER];
                let words = &mut words[..BUFFER.min(end - from)];
                let start = PhiloxStart { key, counter: counter.wrapping_add(from as u64) as u128 };
                let a = (&raw const start).cast();
                // SAFETY: the counters are below `self.counters`; different counters write different elements.
                unsafe {
                    (self.tile)(words.as_mut_ptr().cast(), a, a, a, words.len());
                    match self.bytes {
                        1 => self.place(from, words, bits, |w| w as u8),
                        2 => self.place(from, words, bits, |w| w as u16),
                        4 => self.place(from, words, bits, |w| w),
                        _ => Self::place_wide(from, words, bits),
                    }
                }
            }
        };
        cx.team.run_with(self.counters.div_ceil(BLOCK), self.counters as f64 * 4.0, cx.flush, &body);
        Ok(())
    }
}
