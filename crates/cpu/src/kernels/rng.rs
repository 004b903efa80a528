//! rng_bit_generator: Philox and Threefry, many counters at a time, blocks shared by the threads. Bit for bit what
//! the rule in `systole_ir::op::rng` draws, whose text says how words and elements correspond.

use crate::kernel::Cx;
use crate::kernel::{Io, Kernel, Ptr};
use crate::select::{Candidate, EVERY, Family};
use crate::simd::level::{Isa, Level, Tile, TileFn};
use crate::simd::loops::lanes_mut;
use systole_compile::Step;
use systole_ir::op::{RngAlgorithm, RngBitGenerator};
use systole_ir::{Op, Result, TensorType};

/// Counters of one block of the parallel loop.
const BLOCK: usize = 1 << 12;
/// Counters that are drawn into a buffer before their words are put in place.
const BUFFER: usize = 256;

/// The kernel of an op of this family; `None`: not of this family.
pub(crate) fn bind(op: &Op, step: &Step, level: Level) -> Option<Box<dyn Kernel>> {
    let Op::RngBitGenerator(RngBitGenerator { algorithm, .. }) = op else { return None };
    let (state, ty) = (step.input_types.first()?, step.output_types.get(1)?);
    // 64-bit elements are written as two words, low first.
    if cfg!(target_endian = "big") {
        return None;
    }
    let state_words = state.elements();
    Some(match algorithm {
        RngAlgorithm::Philox => Box::new(PhiloxKernel {
            state_words,
            elements: ty.elements(),
            size: ty.dtype.size(),
            tile: level.tile::<Philox>(),
        }),
        RngAlgorithm::ThreeFry => Box::new(ThreefryKernel::new(ty, level.tile::<Threefry>())),
    })
}

fn halves(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

/// Where a generator starts.
struct Start {
    key: u64,
    counter: u128,
}

/// Calls `f` for runs of `n` counters from `first` on in whose lowest words there is no carry: the first counter's
/// words, and which counters.
#[inline(always)]
fn runs(first: u128, n: usize, mut f: impl FnMut([u32; 4], std::ops::Range<usize>)) {
    let mut done = 0;
    while done < n {
        let at = first.wrapping_add(done as u128);
        let ([a, b], [c, d]) = (halves(at as u64), halves((at >> 64) as u64));
        let run = (n - done).min((u32::MAX - a) as usize + 1);
        f([a, b, c, d], done..done + run);
        done += run;
    }
}

/// Four words for each of `n` counters at `dst`; `a`: the [`Start`].
struct Philox;
impl Tile for Philox {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        // SAFETY: as the type says.
        let (start, out) = unsafe { (&*a.cast::<Start>(), lanes_mut::<[u32; 4]>(dst, n)) };
        let [k0, k1] = halves(start.key);
        runs(start.counter, n, |[a, b, c, d], range| {
            for (j, out) in out[range].iter_mut().enumerate() {
                // Straight code of one counter, which the compiler does for many at a time.
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

/// The key and the first counter of a Philox state of two or three words.
fn start_of(state: &[u64]) -> Start {
    // With two words of state the key is the counter's high half too.
    let high = *state.get(2).unwrap_or(&state[0]);
    Start { key: state[0], counter: (high as u128) << 64 | state[1] as u128 }
}

/// The 32-bit elements of one Philox draw, any of them at a time.
pub(crate) struct Words(TileFn);

impl Words {
    pub fn new(level: Level) -> Words {
        Words(level.tile::<Philox>())
    }

    /// The `n` elements from number `first` on; they lie in `buffer`.
    ///
    /// # Safety
    /// `state` points to two words, `buffer` to room for `n + 6` elements.
    pub unsafe fn draw(
        &self,
        state: *const [u64; 2],
        first: usize,
        n: usize,
        buffer: *mut u32,
    ) -> *const u32 {
        // SAFETY: by the caller's promise.
        let mut start = start_of(unsafe { &*state });
        start.counter = start.counter.wrapping_add((first / 4) as u128);
        let a: *const u8 = (&raw const start).cast();
        // SAFETY: at most three words come before the first element and three after the last.
        unsafe { (self.0)(buffer.cast(), a, a, a, (first % 4 + n).div_ceil(4)) };
        buffer.wrapping_add(first % 4).cast_const()
    }
}

struct PhiloxKernel {
    state_words: usize,
    elements: usize,
    size: usize,
    tile: TileFn,
}

impl PhiloxKernel {
    /// Elements of one counter.
    fn per_counter(&self) -> usize {
        if self.size == 8 { 2 } else { 4 }
    }

    /// `n` elements at `out` from the counter in `start`.
    unsafe fn draw(&self, mut start: Start, out: Ptr, n: usize) {
        let per_counter = self.per_counter();
        // Words that are elements, or halves of them, are drawn in place.
        let direct = if self.size >= 4 { n / per_counter } else { 0 };
        let a: *const u8 = (&raw const start).cast();
        // SAFETY: the result has room for `n` elements.
        unsafe { (self.tile)(out.at(0), a, a, a, direct) };
        let mut done = direct * per_counter;
        start.counter = start.counter.wrapping_add(direct as u128);
        while done < n {
            let mut words = [[0u32; 4]; BUFFER];
            let take = (BUFFER * per_counter).min(n - done);
            let counters = take.div_ceil(per_counter);
            let a: *const u8 = (&raw const start).cast();
            // SAFETY: `take` elements are left at `out`, and the words are as many.
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

/// The low bits of the first `n` words.
unsafe fn narrow<T>(words: &[u32], n: usize, out: *mut u8, low: impl Fn(u32) -> T) {
    for (i, &w) in words[..n].iter().enumerate() {
        // SAFETY: the caller has room for `n` elements.
        unsafe { *out.cast::<T>().add(i) = low(w) };
    }
}

impl Kernel for PhiloxKernel {
    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: the state is of two or three u64.
        let state = unsafe { std::slice::from_raw_parts(io.inputs[0].cast::<u64>(), self.state_words) };
        let Start { key, counter } = start_of(state);
        let per_counter = self.per_counter();
        let used = self.elements.div_ceil(per_counter);
        let next = counter.wrapping_add(used as u128);
        let next = [key, next as u64, (next >> 64) as u64];
        // SAFETY: the next state has the state's type.
        unsafe { std::ptr::copy_nonoverlapping(next.as_ptr(), io.outputs[0].cast(), self.state_words) };
        let (bits, per_block) = (Ptr(io.outputs[1]), BLOCK * per_counter);
        let body = |block: usize| {
            let from = block * per_block;
            let start = Start { key, counter: counter.wrapping_add((block * BLOCK) as u128) };
            // SAFETY: blocks are disjoint parts of the result.
            unsafe { self.draw(start, Ptr(bits.at(from * self.size)), per_block.min(self.elements - from)) };
        };
        cx.team.run_with(self.elements.div_ceil(per_block), used as f64 * 3.0, cx.flush, &body);
        Ok(())
    }
}

/// Two words for each of `n` counters at `dst`; `a`: the [`Start`].
struct Threefry;
impl Tile for Threefry {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        // SAFETY: as the type says.
        let (start, out) = unsafe { (&*a.cast::<Start>(), lanes_mut::<[u32; 2]>(dst, n)) };
        let [k0, k1] = halves(start.key);
        let keys = [k0, k1, 0x1BD1_1BDA ^ k0 ^ k1];
        runs(start.counter, n, |[a, b, ..], range| {
            for (j, out) in out[range].iter_mut().enumerate() {
                *out = threefry([a.wrapping_add(j as u32), b], keys);
            }
        });
    }
}

/// Threefry2x32-20 of one counter.
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

/// Elements as `[outer, size, inner]`: counters run over `[outer, ⌈size / 2⌉, inner]`, each for elements `2k` and
/// `2k + 1` of the middle dimension.
struct ThreefryKernel {
    size: usize,
    inner: usize,
    middle: usize,
    counters: usize,
    bytes: usize,
    tile: TileFn,
}

impl ThreefryKernel {
    fn new(ty: &TensorType, tile: TileFn) -> ThreefryKernel {
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

    /// Writes the words of the counters from `from` on.
    unsafe fn place<T>(&self, from: usize, words: &[[u32; 2]], out: Ptr, low: impl Fn(u32) -> T) {
        let mut done = 0;
        while done < words.len() {
            // A run of counters along the inner dimension, or along the middle one when that is innermost.
            let (row, at) = ((from + done) / self.inner, (from + done) % self.inner);
            let (outer, k) = (row / self.middle, row % self.middle);
            let first = out.elem::<T>((outer * self.size + 2 * k) * self.inner + at);
            // With an odd size the last elements of the middle dimension have no partners.
            let (run, pairs, stride, second) = match self.inner {
                1 => (self.middle - k, self.size / 2 - k, 2, 1),
                inner if 2 * k + 1 < self.size => (inner - at, inner - at, 1, inner),
                inner => (inner - at, 0, 1, 0),
            };
            let words = &words[done..];
            let words = &words[..run.min(words.len())];
            // SAFETY: the elements exist and belong to these counters only.
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

    unsafe fn place_wide(from: usize, words: &[[u32; 2]], out: Ptr) {
        for (j, [a, b]) in words.iter().enumerate() {
            // SAFETY: each element is one counter's.
            unsafe { *out.elem::<u64>(from + j) = *a as u64 | (*b as u64) << 32 };
        }
    }
}

impl Kernel for ThreefryKernel {
    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: the state is of two u64.
        let [key, counter] = unsafe { *io.inputs[0].cast::<[u64; 2]>() };
        // SAFETY: the next state is too.
        unsafe { *io.outputs[0].cast::<[u64; 2]>() = [key, counter.wrapping_add(self.counters as u64)] };
        let bits = Ptr(io.outputs[1]);
        let body = |block: usize| {
            let end = ((block + 1) * BLOCK).min(self.counters);
            for from in (block * BLOCK..end).step_by(BUFFER) {
                let mut words = [[0u32; 2]; BUFFER];
                let words = &mut words[..BUFFER.min(end - from)];
                let start = Start { key, counter: counter.wrapping_add(from as u64) as u128 };
                let a = (&raw const start).cast();
                // SAFETY: counters write the elements that are theirs.
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

/// Random bits.
pub static FAMILY: Family = Family {
    name: "rng",
    doc: "random bits by counters",
    takes: |step| matches!(&step.kernel, systole_compile::Kernel::Op { op: Op::RngBitGenerator(_), .. }),
    candidates: &[
        Candidate {
            name: "philox",
            why: "Philox of 32 and 64 bits",
            levels: EVERY,
            accepts: |p| match &p.step.kernel {
                systole_compile::Kernel::Op { op, .. } => {
                    bind(op, p.step, p.target.level.vectors()).ok_or_else(|| "it is not Philox".into())
                }
                _ => Err("no random bits".into()),
            },
        },
        crate::kernels::reference::CANDIDATE,
    ],
};
