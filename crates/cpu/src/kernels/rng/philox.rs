//! Philox4x32-10 random bits. Counters are independent, so blocks of them run in parallel.
//!
//! The vector loop is in `simd/philox.rs`.

use crate::kernel::{Io, Kernel, KernelContext, Ptr};
use crate::kernels::rng::rng_types::{BLOCK, BUFFER, Draw};
use crate::simd::level::{Level, TileFn};
use crate::simd::philox::{Philox, PhiloxStart, start_of};
use systole_ir::Result;

/// Philox kernel, bound to the types of a random bit generation step.
pub struct PhiloxKernel {
    /// 64-bit words of the state: the key and one or two words of counter.
    state_words: usize,
    elements: usize,
    /// Bytes of an element.
    size: usize,
    tile: TileFn,
}

impl PhiloxKernel {
    /// Creates the Philox kernel of a random bit generation step.
    pub fn new(draw: &Draw<'_>, level: Level) -> PhiloxKernel {
        PhiloxKernel {
            state_words: draw.state.elements(),
            elements: draw.bits.elements(),
            size: draw.bits.dtype.size(),
            tile: level.tile::<Philox>(),
        }
    }

    /// Elements per counter, which yields four 32-bit words. 8-bit and 16-bit elements use a word each.
    fn per_counter(&self) -> usize {
        if self.size == 8 { 2 } else { 4 }
    }

    /// Writes `n` elements to `out`, starting with the counter in `start`.
    unsafe fn draw(&self, mut start: PhiloxStart, out: Ptr, n: usize) {
        let per_counter = self.per_counter();
        // For 32-bit and 64-bit elements the words are the result's memory, so whole counters are written there
        // directly.
        let direct = if self.size >= 4 { n / per_counter } else { 0 };
        let a: *const u8 = (&raw const start).cast();
        // SAFETY: by the caller's promise, `out` has room for `n` elements, which are at least the words of `direct`
        // counters.
        unsafe { (self.tile)(out.at(0), a, a, a, direct) };
        let mut done = direct * per_counter;
        start.counter = start.counter.wrapping_add(direct as u128);
        while done < n {
            let mut words = [[0u32; 4]; BUFFER];
            let take = (BUFFER * per_counter).min(n - done);
            let counters = take.div_ceil(per_counter);
            let a: *const u8 = (&raw const start).cast();
            // SAFETY: `take` of the remaining elements of `out` are written; `words` has at least as many.
            unsafe {
                (self.tile)(words.as_mut_ptr().cast(), a, a, a, counters);
                let flat = words.as_flattened();
                match self.size {
                    1 => narrow(flat, take, out.at(done), |w| w as u8),
                    2 => narrow(flat, take, out.at(2 * done), |w| w as u16),
                    size => {
                        let bytes = flat.as_ptr().cast::<u8>();
                        std::ptr::copy_nonoverlapping(bytes, out.at(done * size), take * size);
                    }
                }
            }
            start.counter = start.counter.wrapping_add(counters as u128);
            done += take;
        }
    }
}

/// Writes the low bits of the first `n` words as elements of type `T`.
unsafe fn narrow<T>(words: &[u32], n: usize, out: *mut u8, low: impl Fn(u32) -> T) {
    for (i, &w) in words[..n].iter().enumerate() {
        // SAFETY: by the caller's promise, `out` has room for `n` elements.
        unsafe { *out.cast::<T>().add(i) = low(w) };
    }
}

impl Kernel for PhiloxKernel {
    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: the op's state is an array of `state_words` u64.
        let state = unsafe { std::slice::from_raw_parts(io.inputs[0].cast::<u64>(), self.state_words) };
        let PhiloxStart { key, counter } = start_of(state);
        let per_counter = self.per_counter();
        let used = self.elements.div_ceil(per_counter);
        let next = counter.wrapping_add(used as u128);
        let next = [key, next as u64, (next >> 64) as u64];
        // SAFETY: the next state has the state's type, of at most three words.
        unsafe { std::ptr::copy_nonoverlapping(next.as_ptr(), io.outputs[0].cast(), self.state_words) };
        let (bits, per_block) = (Ptr(io.outputs[1]), BLOCK * per_counter);
        let body = |block: usize| {
            let from = block * per_block;
            let start = PhiloxStart { key, counter: counter.wrapping_add((block * BLOCK) as u128) };
            // SAFETY: blocks are disjoint ranges of the result's elements.
            unsafe { self.draw(start, Ptr(bits.at(from * self.size)), per_block.min(self.elements - from)) };
        };
        cx.team.run_with(self.elements.div_ceil(per_block), used as f64 * 3.0, cx.flush, &body);
        Ok(())
    }
}
