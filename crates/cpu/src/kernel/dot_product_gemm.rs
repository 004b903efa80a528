//! Dot-product GEMM `[M, K] · [N, K]ᵀ` for N ≤ 16 and K ≥ 128, with both operands contiguous along K.
//!
//! An example is a classifier with transposed weights. Vectors run along K: each SIMD lane accumulates its own part of
//! a sum, and a lane reduction at the end gives the dot product. Nothing is packed. A K block of all columns of B stays
//! in L1 while a task's rows of A stream past it; between K blocks, the lane sums are kept in scratch. The order of
//! additions depends on the level and the element type, not on which rows are computed together.

use crate::kernel::gemm_dims::{Epilogue, OperandDims, count, joint_stride};
use crate::kernel::{Io, Kernel, KernelContext, Ptr, with_scratch};
use crate::simd::level::{Isa, Level, TileFn, TileLoop, by_level};
use crate::simd::loops::widen;
use crate::simd::math;
use crate::simd::narrow_floats::{BF16, F16, F32, NarrowFloats, NarrowFormat};
use crate::simd::prefetch::fetch;
use crate::simd::ranges::pieces;
use crate::simd::vector::{Portable32, Vector};
use std::ops::Range;
use systole_ir::{DType, ensure};

/// Largest N.
const MAX_N: usize = 16;
/// Smallest K: below, the lane reduction costs more than it saves.
const MIN_K: usize = 128;
/// Elements of a K block, and rows of a task: a K block of B and the rows' lane sums fit L1 together.
const KC: usize = 416;
const ROWS: usize = 16;
/// f32 lanes of the widest vector: elements of one sum in scratch.
const LANES: usize = 16;
/// Reduction elements of a vector of bf16 pairs.
const PAIRED: usize = 32;

/// Arguments of a microkernel: sums of some rows by some columns over a K block.
struct DotArgs {
    /// Vectors along K.
    steps: usize,
    a: *const u8,
    /// Row stride in elements.
    a_row: usize,
    /// Rows of A to prefetch, with the same stride.
    next: *const u8,
    /// B, as f32, or as bf16 with pairs.
    b: *const u8,
    b_row: usize,
    /// Lane sums: [`LANES`] elements for each row and column; row stride in elements.
    sums: *mut f32,
    sums_row: usize,
    /// Whether this is the first K block: sums start at zero.
    first: bool,
}

/// Operand loads of a vector type along K.
///
/// # Safety
/// As for [`Vector`].
unsafe trait LoadAlongK: Vector<T = f32> {
    /// Reduction elements of a vector.
    const PRODUCTS: usize;
    /// Loads A, of format `F`, from element `at` on.
    unsafe fn left<const F: NarrowFormat>(a: *const u8, at: usize) -> Self;
    /// Loads B from element `at` on.
    unsafe fn right(b: *const u8, at: usize) -> Self;
}

// SAFETY: `V` meets the contract of `Vector`, and the loads add no requirements.
unsafe impl<V: NarrowFloats> LoadAlongK for V {
    const PRODUCTS: usize = V::LANES;
    #[inline(always)]
    unsafe fn left<const F: NarrowFormat>(a: *const u8, at: usize) -> V {
        // SAFETY: the caller guarantees that the operand has a vector from `at` on.
        unsafe {
            match F {
                F32 => V::load(a.cast::<f32>().add(at)),
                _ => V::load_wide::<F>(a.cast::<u16>().add(at)),
            }
        }
    }
    #[inline(always)]
    unsafe fn right(b: *const u8, at: usize) -> V {
        // SAFETY: the caller guarantees that the operand has a vector from `at` on.
        unsafe { V::load(b.cast::<f32>().add(at)) }
    }
}

// SAFETY: as for the other vectors. Both operands are contiguous along K, so that pairs need no interleaving.
#[cfg(target_arch = "x86_64")]
unsafe impl LoadAlongK for HalfPairs16 {
    const PRODUCTS: usize = PAIRED;
    #[inline(always)]
    unsafe fn left<const F: NarrowFormat>(a: *const u8, at: usize) -> HalfPairs16 {
        // SAFETY: the caller guarantees that the operand has a vector from `at` on.
        unsafe { HalfPairs16::load(a.cast::<u16>().add(at).cast()) }
    }
    #[inline(always)]
    unsafe fn right(b: *const u8, at: usize) -> HalfPairs16 {
        // SAFETY: the caller guarantees that the operand has a vector from `at` on.
        unsafe { HalfPairs16::load(b.cast::<u16>().add(at).cast()) }
    }
}

/// Microkernel of `R` rows by `N` columns. `F`: format of A.
/// Plain loops, as closures would not inherit the level's target features.
#[allow(clippy::needless_range_loop)] // Iterators over several arrays at once are harder to read.
#[inline(always)]
unsafe fn dots<V: LoadAlongK, const R: usize, const N: usize, const F: NarrowFormat>(c: &DotArgs) {
    // SAFETY: the caller's operands cover the rows, columns and the K block; the level is available.
    unsafe {
        let mut acc = [[V::splat(0.0); N]; R];
        if !c.first {
            for i in 0..R {
                for j in 0..N {
                    acc[i][j] = V::load(c.sums.add(i * c.sums_row + j * LANES));
                }
            }
        }
        for k in 0..c.steps {
            let mut b = [acc[0][0]; N];
            for j in 0..N {
                b[j] = V::right(c.b, j * c.b_row + k * V::PRODUCTS);
            }
            for i in 0..R {
                let at = i * c.a_row + k * V::PRODUCTS;
                // A K block of a row is too short a run for the hardware prefetcher.
                fetch(c.next.wrapping_add(at * if F == F32 { 4 } else { 2 }));
                let a = V::left::<F>(c.a, at);
                for j in 0..N {
                    acc[i][j] = a.mul_add(b[j], acc[i][j]);
                }
            }
        }
        for i in 0..R {
            for j in 0..N {
                acc[i][j].store(c.sums.add(i * c.sums_row + j * LANES));
            }
        }
    }
}

/// A microkernel for any numbers of rows and columns up to the level's.
type DotsFn = unsafe fn(usize, usize, &DotArgs);

macro_rules! kernels {
    ($name:ident, $v:ty, [$($r:literal: $($n:literal)*;)*] $(, $feature:literal)?) => {
        $(#[cfg(target_arch = "x86_64")] #[target_feature(enable = $feature)])?
        unsafe fn $name<const F: NarrowFormat>(rows: usize, columns: usize, c: &DotArgs) {
            match (rows, columns) {
                // SAFETY: the contract is that of `dots`.
                $($(($r, $n) => unsafe { dots::<$v, $r, $n, F>(c) },)*)*
                _ => {}
            }
        }
    };
}
kernels!(portable, Portable32, [1: 1 2 3 4; 2: 1 2 3 4;]);
#[cfg(target_arch = "x86_64")]
use crate::simd::vector::x86::{HalfPairs16, V8x32, V16x32};
kernels!(avx2, V8x32, [1: 1 2 3 4 5; 2: 1 2 3 4 5;], "avx2,fma,f16c");
kernels!(
    avx512,
    V16x32,
    [1: 1 2 3 4 5 6; 2: 1 2 3 4 5 6; 3: 1 2 3 4 5 6; 4: 1 2 3 4 5 6;],
    "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
);
#[cfg(target_arch = "x86_64")]
kernels!(
    of_pairs,
    HalfPairs16,
    [1: 1 2 3 4 5 6; 2: 1 2 3 4 5 6; 3: 1 2 3 4 5 6; 4: 1 2 3 4 5 6;],
    "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma"
);

/// Reduces the lanes of `n` sums at `a`, [`LANES`] elements apart, to `dst`, as a binary tree. `c` points to the number
/// of lanes (a `usize`).
struct LaneReduction;
impl TileLoop for LaneReduction {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, _: *const u8, c: *const u8, n: usize) {
        // SAFETY: the caller guarantees that `a` and `dst` have `n` sums, and `c` points to a `usize`.
        unsafe {
            let lanes = *c.cast::<usize>();
            for i in 0..n {
                let mut sum = *a.cast::<[f32; LANES]>().add(i);
                let mut half = LANES / 2;
                while half > 0 {
                    for j in 0..half {
                        sum[j] = if 2 * half <= lanes { sum[j] + sum[j + half] } else { sum[j] };
                    }
                    half /= 2;
                }
                *dst.cast::<f32>().add(i) = sum[0];
            }
        }
    }
}

/// Lane sums of some rows while K blocks are added: see [`InnerProducts::start`].
pub struct RowLaneSums {
    rows: Range<usize>,
    /// First of the rows of A, and B.
    a: *const u8,
    b: *const u8,
    sums: *mut f32,
    /// Scratch for a K block of B as f32, and for the K remainders of both operands.
    wide: *mut f32,
    ends: *mut f32,
}

/// GEMM `[M, K] · [N, K]ᵀ` of f32, bf16 or f16 for small N, by inner products along K.
pub struct InnerProducts {
    m: usize,
    n: usize,
    k: usize,
    a_row: usize,
    b_row: usize,
    from: DType,
    to: DType,
    epilogue: Epilogue,
    /// The level's microkernels, for A in f32 and in its own type, and their maximum rows and columns.
    run: [DotsFn; 2],
    most: [usize; 2],
    lanes: usize,
    /// Elements along K per microkernel step.
    step: usize,
    totals: TileFn,
    widen: Option<TileFn>,
}

impl InnerProducts {
    /// Returns the inner-product GEMM, or `None` if these kernels reject the problem.
    pub fn new(
        ra: &OperandDims,
        rb: &OperandDims,
        types: [DType; 2],
        epilogue: Epilogue,
        level: Level,
    ) -> Option<InnerProducts> {
        InnerProducts::accept(ra, rb, types, epilogue, level).ok()
    }

    /// Returns the inner-product GEMM, or the reason why these kernels reject the problem.
    pub fn accept(
        ra: &OperandDims,
        rb: &OperandDims,
        [from, to]: [DType; 2],
        epilogue: Epilogue,
        level: Level,
    ) -> Result<InnerProducts, &'static str> {
        let (m, n, k) = (count(&ra.free), count(&rb.free), count(&ra.inner));
        let known = |t: DType| matches!(t, DType::F32 | DType::BF16 | DType::F16);
        ensure!(known(from) && known(to), "its elements are not f32, bf16 or f16");
        ensure!(count(&ra.batch) == 1, "it is a batch of GEMMs");
        ensure!((1..=MAX_N).contains(&n), "N is more than 16");
        ensure!(k >= MIN_K, "K is less than 128");
        if joint_stride(&ra.inner) != Some(1) || joint_stride(&rb.inner) != Some(1) {
            return Err("an operand is not contiguous along K");
        }
        let (Some(a_row), Some(b_row)) = (joint_stride(&ra.free), joint_stride(&rb.free)) else {
            return Err("the rows of an operand have no single stride");
        };
        let half = from == DType::F16;
        let (run, most, lanes): ([DotsFn; 2], [usize; 2], usize) = by_level!(
            level,
            ([avx512::<F32>, if half { avx512::<F16> } else { avx512::<BF16> }], [4, 6], 16),
            ([avx2::<F32>, if half { avx2::<F16> } else { avx2::<BF16> }], [2, 5], 8),
            ([portable::<F32>, if half { portable::<F16> } else { portable::<BF16> }], [2, 4], 4)
        );
        Ok(InnerProducts {
            m,
            n,
            k,
            a_row,
            b_row,
            from,
            to,
            epilogue,
            run,
            most,
            lanes,
            step: lanes,
            totals: level.tile::<LaneReduction>(),
            widen: widen(from, level),
        })
    }

    /// Uses bf16 pairs if the level has the instruction, and if both K and the `at_a_time` elements of each
    /// [`add`](InnerProducts::add) (0: all of K) are whole vectors of pairs.
    pub fn with_pairs(mut self, level: Level, at_a_time: usize) -> InnerProducts {
        let whole = self.k.is_multiple_of(PAIRED) && at_a_time.is_multiple_of(PAIRED);
        #[cfg(target_arch = "x86_64")]
        if level == Level::Avx512Bf16 && self.from == DType::BF16 && whole {
            self.run[1] = of_pairs::<BF16>;
            self.step = PAIRED;
            self.widen = None;
        }
        let _ = (level, whole);
        self
    }

    /// Returns the size of the scratch memory for the sums of some rows, in bytes.
    pub fn bytes(rows: usize) -> usize {
        (rows * MAX_N * LANES + MAX_N * KC + (rows + MAX_N) * LANES) * 4
    }

    /// Starts the sums of some rows, before the first K block. The result does not depend on how many rows are summed
    /// together.
    ///
    /// # Safety
    /// `a` and `b` are the operands, and `memory` has [`bytes`](InnerProducts::bytes) bytes, until
    /// [`finish`](InnerProducts::finish).
    pub unsafe fn start(&self, rows: Range<usize>, a: Ptr, b: Ptr, memory: *mut u8) -> RowLaneSums {
        let sums = memory.cast::<f32>();
        let wide = sums.wrapping_add(rows.len() * MAX_N * LANES);
        let ends = wide.wrapping_add(MAX_N * KC);
        let a = a.at(rows.start * self.a_row * self.from.size()).cast_const();
        RowLaneSums { rows, a, b: b.at(0).cast_const(), sums, wide, ends }
    }

    /// Adds a range of K in whole vectors; ranges are consecutive. `near`: these elements of A are still cached, and
    /// are not prefetched.
    ///
    /// # Safety
    /// As for [`start`](InnerProducts::start); the operands' elements of this range are written.
    pub unsafe fn add(&self, s: &RowLaneSums, products: Range<usize>, near: bool) {
        let size = self.from.size();
        // SAFETY: operands have the shapes of `new`; `s` has the arrays that `start` lays out.
        unsafe {
            for from in products.clone().step_by(KC) {
                let n = KC.min(products.end - from);
                let (mut b, mut b_row) = (s.b.add(from * size), self.b_row);
                if let Some(widen) = self.widen {
                    for j in 0..self.n {
                        let row = s.b.add((j * self.b_row + from) * size);
                        widen(s.wide.add(j * KC).cast(), row, row, row, n);
                    }
                    (b, b_row) = (s.wide.cast_const().cast(), KC);
                }
                for first in (0..s.rows.len()).step_by(ROWS) {
                    let a = s.a.add((first * self.a_row + from) * size);
                    let call = DotArgs {
                        steps: n / self.step,
                        a,
                        a_row: self.a_row,
                        next: a,
                        b,
                        b_row,
                        sums: s.sums.add(first * self.sums_row()),
                        sums_row: self.sums_row(),
                        first: from == 0,
                    };
                    self.tiles(ROWS.min(s.rows.len() - first), self.from, near, &call);
                }
            }
        }
    }

    /// Adds the tail of K, reduces the lanes, and stores the results, with the bias if there is one.
    ///
    /// # Safety
    /// As for [`start`](InnerProducts::start); the rest of K has been added, and no other thread accesses these rows of
    /// `c`.
    pub unsafe fn finish(&self, s: RowLaneSums, bias: Option<Ptr>, c: Ptr) {
        let (size, whole, count) = (self.from.size(), self.k / self.step * self.step, s.rows.len());
        // SAFETY: as for `add`; `ends` has a vector for each row of both operands.
        unsafe {
            if whole < self.k {
                let right = s.ends.add(count * LANES);
                for (operand, row, to, count) in
                    [(s.a, self.a_row, s.ends, count), (s.b, self.b_row, right, self.n)]
                {
                    for i in 0..count {
                        let from = operand.add((i * row + whole) * size);
                        self.copy_end(from, to.add(i * LANES), self.k - whole);
                    }
                }
                let (a, b) = (s.ends.cast_const().cast(), right.cast_const().cast());
                let (a_row, b_row, sums_row) = (LANES, LANES, self.sums_row());
                let first = whole == 0;
                let call = DotArgs { steps: 1, a, a_row, next: a, b, b_row, sums: s.sums, sums_row, first };
                self.tiles(count, DType::F32, true, &call);
            }
            for (i, row) in s.rows.enumerate() {
                self.put(s.sums.wrapping_add(i * self.sums_row()), row, bias, c);
            }
        }
    }

    /// Copies the last `n` elements of a row as f32, zero-padded to [`LANES`].
    unsafe fn copy_end(&self, from: *const u8, to: *mut f32, n: usize) {
        // SAFETY: the caller guarantees that the row has `n` elements here, and `to` room for `LANES`.
        unsafe {
            to.write_bytes(0, LANES);
            match self.widen {
                Some(widen) => widen(to.cast(), from, from, from, n),
                None => std::ptr::copy_nonoverlapping(from.cast(), to, n),
            }
        }
    }

    /// Returns the row stride of lane sums, in elements.
    fn sums_row(&self) -> usize {
        self.n * LANES
    }

    /// Calls microkernels for `rows` rows and all columns. `left`: element type of `c.a`.
    unsafe fn tiles(&self, rows: usize, left: DType, near: bool, c: &DotArgs) {
        let run = self.run[usize::from(left != DType::F32)];
        let paired = self.step == PAIRED && left == DType::BF16;
        let row = |i: usize| c.a.wrapping_add(i * c.a_row * left.size());
        let behind = c.a.wrapping_add(c.steps * self.step * left.size());
        for (i, r) in pieces(rows, self.most[0]) {
            // Prefetch the next rows; during the last ones, the next K block of the first.
            let next = if i + r < rows { row(i + r) } else { behind };
            for (j, n) in pieces(self.n, self.most[1]) {
                let a = row(i);
                let call = DotArgs {
                    a,
                    next: if j == 0 && !near { next } else { a },
                    b: c.b.wrapping_add(j * c.b_row * if paired { 2 } else { 4 }),
                    sums: c.sums.wrapping_add(i * c.sums_row + j * LANES),
                    ..*c
                };
                // SAFETY: the caller's operands cover the call; the level was available when the kernels were chosen.
                unsafe { run(r, n, &call) };
            }
        }
    }

    /// Reduces the lanes of one row of sums and stores the results.
    unsafe fn put(&self, sums: *const f32, row: usize, bias: Option<Ptr>, c: Ptr) {
        let mut totals = [0f32; MAX_N];
        let (sums, lanes) = (sums.cast(), (&raw const self.lanes).cast());
        // SAFETY: the caller guarantees that `sums` has `n` lane sums, and this thread alone writes the row of `c`.
        unsafe {
            (self.totals)(totals.as_mut_ptr().cast(), sums, sums, lanes, self.n);
            for (j, &total) in totals.iter().enumerate().take(self.n) {
                let at = row * self.n + j;
                let sum = total + bias.map_or(0.0, |b| *b.elem::<f32>(j));
                match self.to {
                    DType::BF16 => *c.elem::<u16>(at) = math::to_bf16(sum),
                    DType::F16 => *c.elem::<u16>(at) = math::to_f16(sum),
                    _ if self.epilogue.accumulate => *c.elem::<f32>(at) += sum,
                    _ => *c.elem::<f32>(at) = sum,
                }
            }
        }
    }
}

impl Kernel for InnerProducts {
    /// Not supported if results are rounded.
    fn add_to_result(&mut self) -> bool {
        self.epilogue.accumulate = self.to == DType::F32;
        self.epilogue.accumulate
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> systole_ir::Result<()> {
        let (a, b, c) = (Ptr::of(io.inputs[0]), Ptr::of(io.inputs[1]), Ptr(io.outputs[0]));
        let bias = io.inputs.get(2).filter(|_| self.epilogue.bias).map(|&p| Ptr::of(p));
        let body = |task: usize| {
            let rows = task * ROWS..((task + 1) * ROWS).min(self.m);
            with_scratch(InnerProducts::bytes(rows.len()), |memory| {
                // SAFETY: tasks have disjoint rows; `memory` has `bytes` bytes.
                unsafe {
                    let sums = self.start(rows, a, b, memory);
                    self.add(&sums, 0..self.k / self.step * self.step, false);
                    self.finish(sums, bias, c);
                }
            });
        };
        let work = (self.m * self.k * self.n) as f64 / 60.0;
        cx.team.run_with(self.m.div_ceil(ROWS), work, cx.flush, &body);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::copy::Dim;
    use crate::machine::thread_pool::ThreadPool;
    use systole_ir::{bf16, f16};

    fn bits(dtype: DType, x: f32) -> u16 {
        if dtype == DType::F16 { f16::from_f32(x).to_bits() } else { bf16::from_f32(x).to_bits() }
    }

    fn value(dtype: DType, bits: u16) -> f32 {
        if dtype == DType::F16 { f16::from_bits(bits).to_f32() } else { bf16::from_bits(bits).to_f32() }
    }

    /// Compares a product of small integers, whose sums are exact, with a plain loop. Rows of the operands are `gap`
    /// elements longer than K.
    fn check(
        level: Level,
        (m, n, k): (usize, usize, usize),
        types: [DType; 2],
        gap: usize,
        epilogue: Epilogue,
    ) {
        let numbers = |count: usize, by: usize| -> Vec<f32> {
            (0..count).map(|i| ((i * by + i / 13) % 7) as f32 - 3.0).collect()
        };
        let row = k + gap;
        let (a, b, bias, old) = (numbers(m * row, 5), numbers(n * row, 3), numbers(n, 2), numbers(m * n, 4));
        let dim = |size: usize, src: usize| vec![Dim { size, src: src as isize, dst: 0 }];
        let roles = |size: usize| OperandDims { batch: vec![], free: dim(size, row), inner: dim(k, 1) };
        let dots = InnerProducts::new(&roles(m), &roles(n), types, epilogue, level.vectors())
            .unwrap()
            .with_pairs(level, 0);
        let half = |x: &[f32]| x.iter().map(|&x| bits(types[0], x)).collect::<Vec<u16>>();
        let (half_a, half_b) = (half(&a), half(&b));
        let inputs: [*const u8; 3] = match types[0] {
            DType::F32 => [a.as_ptr().cast(), b.as_ptr().cast(), bias.as_ptr().cast()],
            _ => [half_a.as_ptr().cast(), half_b.as_ptr().cast(), bias.as_ptr().cast()],
        };
        let (mut wide, mut narrow) = (old.clone(), half(&old));
        let c: *mut u8 =
            if types[1] == DType::F32 { wide.as_mut_ptr().cast() } else { narrow.as_mut_ptr().cast() };
        let io = Io { inputs: &inputs, outputs: &[c], scratch: std::ptr::null_mut() };
        // SAFETY: all arrays have the product's sizes.
        unsafe { dots.run(&KernelContext { team: &ThreadPool::new(2), flush: false }, &io).unwrap() };
        for i in 0..m * n {
            let mut want: f32 = (0..k).map(|x| a[i / n * row + x] * b[i % n * row + x]).sum();
            want += if epilogue.bias { bias[i % n] } else { 0.0 };
            want += if epilogue.accumulate { old[i] } else { 0.0 };
            let (got, want) = match types[1] {
                DType::F32 => (wide[i], want),
                _ => (value(types[1], narrow[i]), value(types[1], bits(types[1], want))),
            };
            assert_eq!(got, want, "{level:?} {m}×{n}×{k} {types:?} {epilogue:?}, element {i}");
        }
    }

    #[test]
    fn rows_and_columns_of_every_count_with_every_epilogue() {
        use DType::{BF16, F16, F32};
        for level in Level::ALL.into_iter().filter(|l| l.is_available()) {
            for (bias, accumulate) in [(false, false), (true, false), (false, true), (true, true)] {
                let epilogue = Epilogue { bias, accumulate };
                for n in 1..=MAX_N {
                    check(level, (7, n, 135), [F32, F32], 0, epilogue);
                }
                check(level, (60, 10, 1200), [F32, F32], 3, epilogue);
                for half in [BF16, F16] {
                    check(level, (25, 3, 515), [half, F32], 1, epilogue);
                    check(level, (9, 11, 480), [half, F32], 6, epilogue);
                }
            }
            // K of whole vectors of pairs, and others.
            for size in [(25, 10, 1030), (1, 1, 128), (49, 16, 513), (25, 10, 1056), (18, 16, 448)] {
                check(level, size, [BF16, BF16], 2, Epilogue::default());
                check(level, size, [F16, F16], 2, Epilogue::default());
            }
        }
    }
}
