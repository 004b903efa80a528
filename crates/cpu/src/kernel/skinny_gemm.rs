//! Skinny GEMM `[M, K] · [K, N]` with M, K ≤ 64 and N ≥ 256; B is not packed.
//!
//! An example is the weight gradient of a classifier whose weights are transposed. B is read in place (bf16 and f16 are
//! widened in registers), since each element is used for few rows: packing would move more data than the product does.
//! A is copied once, k-major and as f32. Each microkernel call computes a strip: some rows of two vectors, over all K
//! or over a block of it. With f32 results, K blocks are added in order to C. Variants use bf16 pairs (AVX512_BF16) or
//! AMX tile registers.

use crate::kernel::gemm_dims::{OperandDims, count, joint_stride};
use crate::kernel::{Io, Kernel, KernelContext, Ptr, with_scratch};
use crate::machine::thread_pool::inside;
use crate::simd::amx::LANES;
use crate::simd::amx::fused::few_rows::StoreMode;
use crate::simd::amx::fused::{FusedAmxKernels, WIDTH, few_rows as tiles};
use crate::simd::level::{Level, by_level};
use crate::simd::math;
use crate::simd::narrow_floats::{BF16, F16, F32, NarrowFloats, NarrowFormat};
use crate::simd::prefetch::fetch;
use crate::simd::ranges::pieces;
use crate::simd::vector::Portable32;
use std::ops::Range;
use systole_ir::{DType, ensure};

/// Maximum M and maximum K.
const MAX_MK: usize = 64;
/// Minimum N.
const MIN_N: usize = 256;
/// Columns per task; their results stay in L1.
const TASK: usize = 512;
/// Rows of B that a strip reads at a time, if sums may be stored in between.
const KC: usize = 32;
/// Prefetch distance in the rows of B, in bytes. The hardware prefetcher does not follow so many streams.
const AHEAD: usize = 256;
/// Columns of the widest strip of any level.
const STRIP: usize = 32;

/// Arguments of a microkernel: a strip of C with some rows and two vectors of columns.
#[derive(Clone, Copy)]
struct RowsArgs {
    k: usize,
    /// A, k-major: element `(row, k)` at `k · a_k + row`. With bf16 pairs, words of two k.
    a: *const f32,
    a_k: usize,
    /// B, as f32, bf16 or f16: row k starts at element `k · b_k`.
    b: *const u8,
    b_k: usize,
    c: *mut u8,
    c_row: usize,
    /// Whether to accumulate into C instead of overwriting it.
    add: bool,
}

/// Microkernel of `R` rows by two vectors. `FROM`, `TO`: formats of B and C.
/// Plain loops, as closures would not inherit the level's target features.
#[allow(clippy::needless_range_loop)] // Iterators over several arrays at once are harder to read.
#[inline(always)]
unsafe fn strip<V: NarrowFloats, const R: usize, const FROM: NarrowFormat, const TO: NarrowFormat>(
    c: &RowsArgs,
) {
    // SAFETY: the caller's operands cover `R` rows, `k` and two vectors of columns; the level is available.
    unsafe {
        let mut acc = [[V::splat(0.0); 2]; R];
        let (mut a, mut at) = (c.a, 0);
        for _ in 0..c.k {
            let mut b = [acc[0][0]; 2];
            for j in 0..2 {
                let at = at + j * V::LANES;
                fetch(c.b.wrapping_add(at * if FROM == F32 { 4 } else { 2 } + AHEAD));
                b[j] = if FROM == F32 {
                    V::load(c.b.cast::<f32>().add(at))
                } else {
                    V::load_wide::<FROM>(c.b.cast::<u16>().add(at))
                };
            }
            for i in 0..R {
                let x = V::splat(*a.add(i));
                for j in 0..2 {
                    acc[i][j] = x.mul_add(b[j], acc[i][j]);
                }
            }
            a = a.wrapping_add(c.a_k);
            at += c.b_k;
        }
        for i in 0..R {
            for j in 0..2 {
                let at = i * c.c_row + j * V::LANES;
                if TO != F32 {
                    acc[i][j].narrow::<TO>().store_narrow::<TO>(c.c.cast::<u16>().add(at));
                } else {
                    let to = c.c.cast::<f32>().add(at);
                    let sum = if c.add { V::load(to).add(acc[i][j]) } else { acc[i][j] };
                    sum.store(to);
                }
            }
        }
    }
}

/// Like [`strip`], with VDPBF16PS. Two rows of B are interleaved in registers to VNNI layout: one word of two k per
/// column.
#[cfg(target_arch = "x86_64")]
#[allow(clippy::needless_range_loop)] // Iterators over several arrays at once are harder to read.
#[inline(always)]
unsafe fn strip_of_pairs<const R: usize, const NARROW: bool>(c: &RowsArgs) {
    use crate::simd::vector::Vector;
    use crate::simd::vector::x86::{HalfPairs16, V16x32, in_turn};
    // SAFETY: as for `strip`; the level has AVX512_BF16.
    unsafe {
        let mut acc = [[HalfPairs16::splat(0.0); 2]; R];
        let (mut a, mut b) = (c.a, c.b.cast::<u16>());
        for k in (0..c.k).step_by(2) {
            fetch(b.wrapping_add(AHEAD / 2));
            let second = if k + 1 < c.k {
                let second = b.add(c.b_k);
                fetch(second.wrapping_add(AHEAD / 2));
                Some(second)
            } else {
                None
            };
            let words = in_turn(b, second);
            for i in 0..R {
                let x = HalfPairs16::splat(*a.add(i));
                for j in 0..2 {
                    acc[i][j] = x.mul_add(words[j], acc[i][j]);
                }
            }
            a = a.wrapping_add(c.a_k);
            b = b.wrapping_add(2 * c.b_k);
        }
        for i in 0..R {
            for j in 0..2 {
                let (at, y) = (i * c.c_row + j * V16x32::LANES, acc[i][j]);
                if NARROW {
                    y.store_rounded(c.c.cast::<u16>().add(at));
                } else {
                    let (to, y) = (c.c.cast::<f32>().add(at), V16x32(y.0));
                    let sum = if c.add { V16x32::load(to).add(y) } else { y };
                    sum.store(to);
                }
            }
        }
    }
}

/// A microkernel for any number of rows up to the level's MR.
type StripFn = unsafe fn(usize, &RowsArgs);

macro_rules! kernels {
    ($name:ident, $v:ty, [$($r:literal)*] $(, $feature:literal)?) => {
        $(#[cfg(target_arch = "x86_64")] #[target_feature(enable = $feature)])?
        unsafe fn $name<const FROM: NarrowFormat, const TO: NarrowFormat>(rows: usize, c: &RowsArgs) {
            match rows {
                // SAFETY: the contract is that of `strip`.
                $($r => unsafe { strip::<$v, $r, FROM, TO>(c) },)*
                _ => {}
            }
        }
    };
}
kernels!(portable, Portable32, [1 2 3 4]);
#[cfg(target_arch = "x86_64")]
use crate::simd::vector::x86::{V8x32, V16x32};
kernels!(avx2, V8x32, [1 2 3 4 5 6], "avx2,fma,f16c");
kernels!(avx512, V16x32, [1 2 3 4 5 6 7 8 9 10 11 12 13], "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");

/// Microkernel on bf16 pairs.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
unsafe fn of_pairs<const NARROW: bool>(rows: usize, c: &RowsArgs) {
    macro_rules! by_rows {
        ($($r:literal)*) => {
            match rows {
                // SAFETY: the contract is that of `strip_of_pairs`.
                $($r => unsafe { strip_of_pairs::<$r, NARROW>(c) },)*
                _ => {}
            }
        };
    }
    by_rows!(1 2 3 4 5 6 7 8 9 10 11 12 13);
}

/// Returns the microkernel of a level for element types of B and C, its MR, and its columns.
fn kernel(level: Level, [from, to]: [DType; 2]) -> Option<(StripFn, usize, usize)> {
    macro_rules! of_types {
        ($name:ident, $rows:literal, $columns:literal) => {{
            let run: StripFn = match (from, to) {
                (DType::F32, DType::F32) => $name::<F32, F32>,
                (DType::BF16, DType::F32) => $name::<BF16, F32>,
                (DType::BF16, DType::BF16) => $name::<BF16, BF16>,
                (DType::F16, DType::F32) => $name::<F16, F32>,
                (DType::F16, DType::F16) => $name::<F16, F16>,
                _ => return None,
            };
            Some((run, $rows, $columns))
        }};
    }
    by_level!(level, of_types!(avx512, 13, 32), of_types!(avx2, 6, 16), of_types!(portable, 4, 8))
}

/// GEMM `[M, K] · [K, N]` for small M and K, where the rows of B are contiguous.
pub struct FewRows {
    m: usize,
    n: usize,
    k: usize,
    a_row: usize,
    a_k: usize,
    b_k: usize,
    from: DType,
    to: DType,
    add: bool,
    run: StripFn,
    rows: usize,
    columns: usize,
    /// Whether the microkernel reads bf16 pairs along K.
    pairs: bool,
    /// AMX kernel, which takes precedence if present.
    tiles: Option<&'static FusedAmxKernels>,
}

impl FewRows {
    /// Returns the skinny GEMM, or the reason why these kernels reject the problem.
    pub fn accept(
        ra: &OperandDims,
        rb: &OperandDims,
        [from, to]: [DType; 2],
        level: Level,
    ) -> Result<FewRows, &'static str> {
        let (m, n, k) = (count(&ra.free), count(&rb.free), count(&ra.inner));
        let small = |n: usize| (1..=MAX_MK).contains(&n);
        ensure!(small(m) && small(k), "M or K is more than 64");
        ensure!(n >= MIN_N, "N is less than 256");
        ensure!(count(&ra.batch) == 1, "it is a batch of GEMMs");
        let strides = |r: &OperandDims| Some((joint_stride(&r.free)?, joint_stride(&r.inner)?));
        let (Some((a_row, a_k)), Some((1, b_k))) = (strides(ra), strides(rb)) else {
            return Err("the right operand is not contiguous along N");
        };
        let (run, rows, columns) =
            kernel(level, [from, to]).ok_or("its elements are neither f32 nor bf16 or f16 summed as f32")?;
        Ok(FewRows {
            m,
            n,
            k,
            a_row,
            a_k,
            b_k,
            from,
            to,
            add: false,
            run,
            rows,
            columns,
            pairs: false,
            tiles: None,
        })
    }

    /// Returns MR: the rows of the skinny GEMM that a strip computes at a time.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns K, and the strides along K in elements: of the copied left operand `[K, M]`, and of the right operand.
    pub fn terms(&self) -> (usize, usize, usize) {
        (self.k, self.m, self.b_k)
    }

    /// Uses AMX for bf16 if N is a multiple of [`WIDTH`]. Columns must then be computed in multiples of it.
    pub fn with_tiles(mut self, fused: Option<&'static FusedAmxKernels>) -> FewRows {
        self.tiles = fused.filter(|_| self.from == DType::BF16 && self.n.is_multiple_of(WIDTH));
        self
    }

    /// Uses bf16 pairs if the level has the instruction.
    pub fn with_pairs(mut self, level: Level) -> FewRows {
        #[cfg(target_arch = "x86_64")]
        if level == Level::Avx512Bf16 && self.from == DType::BF16 {
            self.run = if self.to == DType::F32 { of_pairs::<false> } else { of_pairs::<true> };
            self.pairs = true;
        }
        let _ = level;
        self
    }

    /// Copies the left operand to the layout that [`part`](FewRows::part) reads.
    ///
    /// # Safety
    /// `a` is the left operand; `left` has room for [`scratch`](FewRows::scratch) bytes.
    pub unsafe fn copy_left(&self, a: *const u8, left: *mut f32) {
        if self.tiles.is_some() {
            for from in (0..self.m).step_by(LANES) {
                let rows = LANES.min(self.m - from);
                let to = left.cast::<u8>().wrapping_add(from / LANES * tiles::packed_bytes(self.k));
                // SAFETY: indices are inside A; `left` has room for all tiles.
                unsafe {
                    let at =
                        |i: usize, k: usize| *a.cast::<u16>().add((from + i) * self.a_row + k * self.a_k);
                    tiles::pack(rows, self.k, at, to);
                }
            }
            return;
        }
        if self.pairs {
            let (a, words) = (a.cast::<u16>(), left.cast::<[u16; 2]>());
            for k in (0..self.k).step_by(2) {
                for i in 0..self.m {
                    let at = i * self.a_row + k * self.a_k;
                    // SAFETY: indices are inside A; `left` has room for `M · K`, K rounded up to pairs.
                    unsafe {
                        let second = if k + 1 < self.k { *a.add(at + self.a_k) } else { 0 };
                        *words.add(k / 2 * self.m + i) = [*a.add(at), second];
                    }
                }
            }
            return;
        }
        for k in 0..self.k {
            for i in 0..self.m {
                let at = i * self.a_row + k * self.a_k;
                // SAFETY: indices are inside A; `left` has room for `M · K` elements.
                unsafe {
                    *left.add(k * self.m + i) = match self.from {
                        DType::F32 => *a.cast::<f32>().add(at),
                        DType::F16 => math::from_f16(*a.cast::<u16>().add(at)),
                        _ => math::from_bf16(*a.cast::<u16>().add(at)),
                    };
                }
            }
        }
    }

    /// Computes some rows and columns of the result, to `c.0` with row stride `c.1` in elements.
    ///
    /// # Safety
    /// `left` was filled by [`copy_left`](FewRows::copy_left), `b` is the right operand, and the rows and columns exist
    /// in both and in `c`.
    pub unsafe fn part(
        &self,
        left: *const f32,
        b: *const u8,
        rows: Range<usize>,
        columns: Range<usize>,
        c: (*mut u8, usize),
    ) {
        if let Some(fused) = self.tiles {
            // SAFETY: guaranteed by the caller.
            return unsafe { self.part_by_tiles(fused, left, b, rows, columns, c) };
        }
        // Narrow results are rounded once, so one call covers all of K.
        let products = if self.to == DType::F32 { KC } else { self.k };
        for (from, k) in pieces(self.k, products) {
            let add = self.add || from > 0;
            let steps = if self.pairs { from / 2 } else { from };
            let left = left.wrapping_add(steps * self.m + rows.start);
            for (row, count) in pieces(rows.len(), self.rows) {
                for at in columns.clone().step_by(self.columns) {
                    let n = self.columns.min(columns.end - at);
                    let call = RowsArgs {
                        k,
                        a: left.wrapping_add(row),
                        a_k: self.m,
                        b: b.wrapping_add((from * self.b_k + at) * self.from.size()),
                        b_k: self.b_k,
                        c: c.0.wrapping_add((row * c.1 + at - columns.start) * self.to.size()),
                        c_row: c.1,
                        add,
                    };
                    // SAFETY: the caller's operands and result cover the strip.
                    unsafe { self.strip(&call, count, n) };
                }
            }
        }
    }

    /// Like [`part`](FewRows::part), with AMX; `rows` starts at a multiple of a tile's rows.
    unsafe fn part_by_tiles(
        &self,
        fused: &FusedAmxKernels,
        left: *const f32,
        b: *const u8,
        rows: Range<usize>,
        columns: Range<usize>,
        c: (*mut u8, usize),
    ) {
        let _registers = fused.configure(tiles::shapes(rows.len().min(LANES), self.k));
        let to = match self.to {
            DType::F32 if self.add => StoreMode::Sum,
            DType::F32 => StoreMode::F32,
            _ => StoreMode::Bf16,
        };
        for from in rows.clone().step_by(LANES) {
            let call = tiles::TileRowsArgs {
                rows: LANES.min(rows.end - from),
                k: self.k,
                a: left.cast::<u8>().wrapping_add(from / LANES * tiles::packed_bytes(self.k)),
                b: b.cast::<u16>().wrapping_add(columns.start),
                b_k: self.b_k,
                columns: columns.len(),
                to,
                c: c.0.wrapping_add((from - rows.start) * c.1 * self.to.size()),
                c_row: c.1,
            };
            // SAFETY: the caller's operands and result cover the tiles; AMX was available when it was chosen.
            unsafe { (fused.few_rows)(&call) };
        }
    }

    /// Computes a strip of `n` columns. If the microkernel has more columns, it works on padded copies.
    unsafe fn strip(&self, call: &RowsArgs, rows: usize, n: usize) {
        if n == self.columns {
            // SAFETY: the caller's strip has the microkernel's columns; its level was available when it was chosen.
            return unsafe { (self.run)(rows, call) };
        }
        let (from, size) = (self.from.size(), self.to.size());
        let right = call.k * STRIP * from;
        with_scratch(right + rows * STRIP * 4, |wide| {
            let sums = wide.wrapping_add(right);
            // SAFETY: rows of B and C have `n` elements from here on; `wide` has `k` rows of B and `rows` rows of C.
            unsafe {
                wide.write_bytes(0, right);
                for k in 0..call.k {
                    let row = call.b.add(k * self.b_k * from);
                    std::ptr::copy_nonoverlapping(row, wide.add(k * STRIP * from), n * from);
                }
                let row = |i: usize| (call.c.add(i * call.c_row * size), sums.add(i * STRIP * size));
                for (c, sums) in (0..rows).map(row).filter(|_| call.add) {
                    std::ptr::copy_nonoverlapping(c.cast_const(), sums, n * size);
                }
                let copy = RowsArgs { b: wide, b_k: STRIP, c: sums, c_row: STRIP, ..*call };
                (self.run)(rows, &copy);
                for (c, sums) in (0..rows).map(row) {
                    std::ptr::copy_nonoverlapping(sums.cast_const(), c, n * size);
                }
            }
        });
    }
}

impl Kernel for FewRows {
    /// Returns the size of the scratch memory in bytes, which holds a copy of A.
    fn scratch(&self) -> usize {
        match self.tiles {
            Some(_) => self.m.div_ceil(LANES) * tiles::packed_bytes(self.k),
            None => (self.m * self.k.next_multiple_of(2) * 4).next_multiple_of(64),
        }
    }

    /// Not supported if results are rounded.
    fn add_to_result(&mut self) -> bool {
        self.add = self.to == DType::F32;
        self.add
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> systole_ir::Result<()> {
        let (b, c, left) = (Ptr::of(io.inputs[1]), Ptr(io.outputs[0]), Ptr(io.scratch));
        // SAFETY: `inputs[0]` is A; scratch has `scratch()` bytes.
        unsafe { self.copy_left(io.inputs[0], left.elem(0)) };
        // AMX tiles are configured once per task. Inside a parallel loop tasks run serially: one is enough.
        let size = if self.tiles.is_some() && inside() { self.n } else { TASK };
        let tasks = self.n.div_ceil(size);
        let body = |task: usize| {
            // In descending order: the end of B was written last and is most likely still cached.
            let task = tasks - 1 - task;
            let columns = task * size..((task + 1) * size).min(self.n);
            let c = c.at(columns.start * self.to.size());
            // SAFETY: tasks have disjoint columns of C.
            unsafe { self.part(left.elem(0), b.at(0), 0..self.m, columns, (c, self.n)) };
        };
        let work = (self.m * self.n * self.k) as f64 / 60.0;
        cx.team.run_with(tasks, work, cx.flush, &body);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::copy::Dim;
    use crate::machine::memory::AlignedMemory;
    use crate::machine::thread_pool::ThreadPool;
    use systole_ir::{bf16, f16};

    fn bits(dtype: DType, x: f32) -> u16 {
        if dtype == DType::F16 { f16::from_f32(x).to_bits() } else { bf16::from_f32(x).to_bits() }
    }

    fn value(dtype: DType, bits: u16) -> f32 {
        if dtype == DType::F16 { f16::from_bits(bits).to_f32() } else { bf16::from_bits(bits).to_f32() }
    }

    /// Compares a product of small integers, whose sums are exact, with a plain loop. `turned`: A is stored transposed.
    fn check(
        level: Level,
        (m, n, k): (usize, usize, usize),
        [from, to]: [DType; 2],
        turned: bool,
        add: bool,
    ) {
        let numbers = |count: usize, by: usize| -> Vec<f32> {
            (0..count).map(|i| ((i * by + i / 13) % 7) as f32 - 3.0).collect()
        };
        let (a, b, old) = (numbers(m * k, 5), numbers(k * n, 3), numbers(m * n, 4));
        let (a_row, a_k) = if turned { (1, m) } else { (k, 1) };
        let dim = |size: usize, src: usize| vec![Dim { size, src: src as isize, dst: 0 }];
        let ra = OperandDims { batch: vec![], free: dim(m, a_row), inner: dim(k, a_k) };
        let rb = OperandDims { batch: vec![], free: dim(n, 1), inner: dim(k, n) };
        let mut thin = FewRows::accept(&ra, &rb, [from, to], level.vectors()).unwrap().with_pairs(level);
        assert!(!add || thin.add_to_result());
        let scratch = AlignedMemory::new(thin.scratch()).unwrap();
        let half = |x: &[f32]| x.iter().map(|&x| bits(from, x)).collect::<Vec<u16>>();
        let (half_a, half_b) = (half(&a), half(&b));
        let inputs: [*const u8; 2] = match from {
            DType::F32 => [a.as_ptr().cast(), b.as_ptr().cast()],
            _ => [half_a.as_ptr().cast(), half_b.as_ptr().cast()],
        };
        let (mut wide, mut narrow) = (old.clone(), half(&old));
        let c: *mut u8 = if to == DType::F32 { wide.as_mut_ptr().cast() } else { narrow.as_mut_ptr().cast() };
        let io = Io { inputs: &inputs, outputs: &[c], scratch: scratch.ptr() };
        // SAFETY: all arrays have the product's sizes, scratch `scratch()` bytes.
        unsafe { thin.run(&KernelContext { team: &ThreadPool::new(2), flush: false }, &io).unwrap() };
        for i in 0..m * n {
            let mut want: f32 = (0..k).map(|x| a[i / n * a_row + x * a_k] * b[x * n + i % n]).sum();
            want += if add { old[i] } else { 0.0 };
            let (got, want) = match to {
                DType::F32 => (wide[i], want),
                _ => (value(to, narrow[i]), value(to, bits(to, want))),
            };
            assert_eq!(got, want, "{level:?} {m}×{n}×{k} {from} {to} turned {turned} add {add}, element {i}");
        }
    }

    #[test]
    fn rows_of_every_count_for_every_type() {
        for level in Level::ALL.into_iter().filter(|l| l.is_available()) {
            use DType::{BF16, F16, F32};
            for types in [[F32, F32], [BF16, F32], [BF16, BF16], [F16, F32], [F16, F16]] {
                let adds = types[1] == DType::F32;
                for m in 1..=14 {
                    check(level, (m, 300, 10), types, m % 2 == 0, adds && m % 3 == 0);
                }
                check(level, (10, 2500, 7), types, true, adds);
                check(level, (33, 257, 64), types, false, false);
                check(level, (10, 2500, 63), types, false, adds);
            }
        }
    }
}
