//! rng_bit_generator by Philox: counters are independent, so blocks of elements are drawn in parallel.

use super::{Io, Kernel, Ptr};
use crate::exec::Cx;
use systole_compile::Step;
use systole_ir::op::{RngAlgorithm, RngBitGenerator};
use systole_ir::rng::philox4x32;
use systole_ir::{Result, TensorType};

/// Counters that one block of the parallel loop takes.
const BLOCK: usize = 4096;

/// Philox4x32-10 into integers of any width, as the op's own rule defines it.
pub struct Philox {
    state_words: usize,
    ty: TensorType,
}

impl Philox {
    pub fn new(op: &RngBitGenerator, step: &Step) -> Option<Philox> {
        (op.algorithm == RngAlgorithm::Philox)
            .then(|| Philox { state_words: step.input_types[0].elements(), ty: op.ty.clone() })
    }
}

/// Writes the elements that one counter gives: at most `n`.
unsafe fn write(words: [u32; 4], size: usize, out: *mut u8, n: usize) {
    // SAFETY: the caller has room for `n` elements of `size` bytes.
    unsafe {
        if size == 8 {
            for i in 0..n {
                let bits = words[2 * i] as u64 | (words[2 * i + 1] as u64) << 32;
                out.cast::<u64>().add(i).write(bits);
            }
            return;
        }
        for (i, word) in words.iter().enumerate().take(n) {
            // Little endian: the low bytes are the low bits.
            std::ptr::copy_nonoverlapping(word.to_le_bytes().as_ptr(), out.add(i * size), size);
        }
    }
}

impl Kernel for Philox {
    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: the state is u64[2] or u64[3].
        let state = unsafe { std::slice::from_raw_parts(io.inputs[0].cast::<u64>(), self.state_words) };
        let high = if state.len() == 3 { state[2] } else { state[0] };
        let (key, counter) = (state[0], (high as u128) << 64 | state[1] as u128);
        let (size, n) = (self.ty.dtype.size(), self.ty.elements());
        let per = if size == 8 { 2 } else { 4 };
        let counters = n.div_ceil(per);
        let out = Ptr(io.outputs[1]);
        let body = |block: usize| {
            for i in block * BLOCK..((block + 1) * BLOCK).min(counters) {
                let at = counter.wrapping_add(i as u128);
                let c = [at as u32, (at >> 32) as u32, (at >> 64) as u32, (at >> 96) as u32];
                let words = philox4x32(c, [key as u32, (key >> 32) as u32]);
                // SAFETY: each counter has its own elements.
                unsafe { write(words, size, out.at(i * per * size), per.min(n - i * per)) };
            }
        };
        cx.team.run_with(counters.div_ceil(BLOCK), counters as f64 * 12.0, cx.flush, &body);
        let next = counter.wrapping_add(counters as u128);
        let next = [key, next as u64, (next >> 64) as u64];
        // SAFETY: the next state has the state's type.
        unsafe {
            std::ptr::copy_nonoverlapping(next.as_ptr(), io.outputs[0].cast::<u64>(), self.state_words)
        };
        Ok(())
    }
}
