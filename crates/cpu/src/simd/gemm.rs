//! GEMM microkernels: f32, f64, bf16 pairs, and narrow integers in groups that one instruction sums (VNNI).
//!
//! A microkernel computes a register tile of C: up to `M` rows by one or two vectors of columns. A is read from packed
//! micro-panels or in place with any two strides; B is read one vector of columns at a time, packed or in place. The
//! caller does blocking, packing and threading ([`GemmTile`] is one call). An element of C is one accumulator: a chain
//! of multiply-adds in the order of K, whatever the size of the tile. Its rounding depends on how K is blocked, not on
//! how M and N are.

use crate::simd::level::{Level, by_level};
use crate::simd::prefetch::{prefetch_far, prefetch_row};
#[cfg(target_arch = "x86_64")]
use crate::simd::vector::x86;
use crate::simd::vector::{Portable32, Portable64, PortablePairs, Vector};

/// KC of the kernels that read A through offset tables ([`IndirectKernel`]): longest chain of multiply-adds of one
/// accumulator.
pub const KC: usize = 256;

/// One microkernel call: `C[rows, columns] = from + A[rows, k] · B[k, columns] + bias`. Strides are in elements.
#[derive(Clone, Copy)]
pub struct GemmTile<T> {
    /// K in groups: a group is one element, or the two or four narrow elements that one instruction sums.
    pub k: usize,
    /// Rows to write. A kernel compiled for one number of rows has exactly these.
    pub rows: usize,
    /// A: element (row, k) at `row · a_row + k · a_k`. For a packed panel, `a_k` is its height (rows it has room for).
    pub a: *const T,
    pub a_row: usize,
    pub a_k: usize,
    /// B: row k at `k · b_k`.
    pub b: *const T,
    pub b_k: usize,
    /// Whether whole vectors of B may be read beyond its last column.
    pub padded: bool,
    /// Partial sums of earlier K blocks, rows `from_row` apart; null if none.
    pub from: *const T,
    pub from_row: usize,
    /// C, rows `c_row` apart.
    pub c: *mut T,
    pub c_row: usize,
    /// Whether `from` and `c` have room for whole tiles.
    pub padded_sums: [bool; 2],
    /// `bias[columns]`, added to each row; null if none.
    pub bias: *const T,
    /// Columns to write.
    pub columns: usize,
    /// Prefetched into L2: one address per [`UNROLLED`] iterations over k, `ahead_step` elements apart.
    pub ahead: *const T,
    pub ahead_step: usize,
}

/// Layout in which a GEMM kernel reads its left operand, A.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LhsLayout {
    /// Micro-panels: the rows of one k group are adjacent, and k groups follow each other.
    Packed,
    /// In place, with any strides.
    Strided,
}

/// One call of a microkernel that reads A through offset tables (im2col without a copy). Strides are in elements.
pub struct TileArgs<T> {
    /// K: multiply-adds per element of C.
    pub k: usize,
    /// Base address of A.
    pub a: *const T,
    /// B: row k at `k · b_k`, whole vectors readable.
    pub b: *const T,
    pub b_k: usize,
    /// C, rows `c_row` apart.
    pub c: *mut T,
    pub c_row: usize,
    /// Whether to add to C (beta = 1) instead of overwriting it.
    pub add: bool,
    /// `bias[columns]`, added to each row, whole vectors readable; null if none.
    pub bias: *const T,
    /// Columns to write, at most the kernel's.
    pub columns: usize,
}

/// Function type of a GEMM microkernel.
///
/// Callers ensure that the operands cover the tile's rows, k and columns, and that the CPU has the level's
/// instructions.
pub type TileKernel<T> = unsafe fn(&GemmTile<T>);

/// Unrolls `body` for each row `I < M`. Accumulators stay in registers only if every index is a constant, and the
/// compiler does not unroll this many iterations itself. A branch behind a false `const` is not compiled, so a kernel
/// costs compile time for its own rows only.
macro_rules! each_row {
    ($m:ident, $i:ident => $body:expr) => {
        each_row!(@ $m, $i => $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23)
    };
    (@ $m:ident, $i:ident => $body:expr, $($n:literal)*) => {
        $(if const { $n < $m } {
            const $i: usize = $n;
            $body
        })*
    };
}

/// Computes a tile of `M` rows by `N` vectors. `STRIDED`: A is read in place. `PADDED`: B is always padded to whole
/// vectors. `add` is [`add_rows`] for these vectors.
#[allow(clippy::needless_range_loop)] // Iterators over several arrays at once are harder to read.
#[inline(always)]
unsafe fn tile<V: Vector, const M: usize, const N: usize, const STRIDED: bool, const PADDED: bool>(
    t: &GemmTile<V::T>,
    add: unsafe fn(&GemmTile<V::T>, *const V, usize),
) {
    // SAFETY: the caller's operands cover `M` rows, `k` and the columns; the level's instructions are available.
    unsafe {
        let mut acc = [[V::splat(std::mem::zeroed()); N]; M];
        let whole = t.columns == N * V::LANES;
        if const { PADDED } || t.padded || whole {
            k_loop::<V, M, N, STRIDED, false>(t, &mut acc);
        } else {
            k_loop::<V, M, N, STRIDED, true>(t, &mut acc);
        }
        if whole && t.from.is_null() && t.bias.is_null() {
            each_row!(M, I => for j in 0..N {
                acc[I][j].store(t.c.wrapping_add(I * t.c_row + j * V::LANES));
            });
            return;
        }
        // Accumulators go through memory, so that one loop serves every number of rows.
        let mut sums = [[acc[0][0]; N]; M];
        each_row!(M, I => sums[I] = acc[I]);
        add(t, sums.as_ptr().cast(), M);
    }
}

/// Number of SIMD lanes of vector `j` that are columns of the tile.
#[inline(always)]
fn lanes_of<V: Vector>(t: &GemmTile<V::T>, j: usize) -> usize {
    t.columns.saturating_sub(j * V::LANES).min(V::LANES)
}

/// Unroll factor of the loop over k.
pub const UNROLLED: usize = 4;

/// Prefetch distance of packed operands, in k groups: packed blocks are read from L2.
const AHEAD: usize = 16;

/// Rows per pointer of a strided A: the other rows are addressed at one and two times `a_row`, which saves registers.
const ROWS_PER_POINTER: usize = 3;

/// Loop over k. `MASKED`: only the tile's own columns of B may be read.
#[inline(always)]
unsafe fn k_loop<V: Vector, const M: usize, const N: usize, const STRIDED: bool, const MASKED: bool>(
    t: &GemmTile<V::T>,
    acc: &mut [[V; N]; M],
) {
    let mut a = [t.a; M];
    each_row!(M, I => a[I] = t.a.wrapping_add(I * t.a_row));
    let mut b = t.b;
    let mut done = 0;
    if const { !STRIDED && !MASKED } {
        let rounds = t.k / UNROLLED;
        // Rows of C are prefetched one per iteration, since all at once would delay the operands' cache lines; and in
        // the last iterations only, since the operands would evict them from L1 again.
        let late = rounds.saturating_sub(M + 1);
        let last = t.c.wrapping_add((M - 1) * t.c_row);
        let (mut row, mut ahead) = (t.c, t.ahead);
        let mut from = if t.from.is_null() { t.c } else { t.from };
        for round in 0..rounds {
            if round >= late {
                prefetch_row::<V, N>(row);
                prefetch_row::<V, N>(from);
                row = row.wrapping_add(t.c_row).min(last);
                from = from.wrapping_add(t.from_row);
            }
            prefetch_far(ahead);
            ahead = ahead.wrapping_add(t.ahead_step);
            // SAFETY: as for `tile`.
            unsafe {
                step::<V, M, N, STRIDED, MASKED>(t, &mut a, &mut b, acc);
                step::<V, M, N, STRIDED, MASKED>(t, &mut a, &mut b, acc);
                step::<V, M, N, STRIDED, MASKED>(t, &mut a, &mut b, acc);
                step::<V, M, N, STRIDED, MASKED>(t, &mut a, &mut b, acc);
            }
        }
        done = UNROLLED * rounds;
    }
    for _ in done..t.k {
        // SAFETY: as for `tile`.
        unsafe { step::<V, M, N, STRIDED, MASKED>(t, &mut a, &mut b, acc) };
    }
}

/// One rank-1 update (one k group) of all accumulators; advances the pointers to A and B.
#[allow(clippy::needless_range_loop)] // Iterators over several arrays at once are harder to read.
#[inline(always)]
unsafe fn step<V: Vector, const M: usize, const N: usize, const STRIDED: bool, const MASKED: bool>(
    t: &GemmTile<V::T>,
    a: &mut [*const V::T; M],
    b: &mut *const V::T,
    acc: &mut [[V; N]; M],
) {
    // SAFETY: as for `tile`.
    unsafe {
        let mut row = [acc[0][0]; N];
        prefetch_row::<V, N>(b.wrapping_add(AHEAD * t.b_k));
        if !STRIDED {
            prefetch_row::<V, 1>(a[0].wrapping_add(AHEAD * M));
        }
        for j in 0..N {
            let p = b.wrapping_add(j * V::LANES);
            row[j] = if MASKED { V::load_part(p, lanes_of::<V>(t, j)) } else { V::load(p) };
        }
        each_row!(M, I => {
            let (base, off) = (I / ROWS_PER_POINTER * ROWS_PER_POINTER, I % ROWS_PER_POINTER);
            let p = if STRIDED { a[base].wrapping_add(off * t.a_row) } else { a[0].wrapping_add(I) };
            let x = V::splat(*p);
            for j in 0..N {
                acc[I][j] = x.mul_add(row[j], acc[I][j]);
            }
        });
        each_row!(M, I => if const { if STRIDED { I.is_multiple_of(ROWS_PER_POINTER) } else { I == 0 } } {
            a[I] = a[I].wrapping_add(if STRIDED { t.a_k } else { M });
        });
        *b = b.wrapping_add(t.b_k);
    }
}

/// Stores accumulators (`rows` by `N` vectors) to C, plus `from` and the bias if present.
#[inline(always)]
unsafe fn add_rows<V: Vector, const N: usize>(t: &GemmTile<V::T>, sums: *const V, rows: usize) {
    for i in 0..rows {
        for j in 0..N {
            let lanes = lanes_of::<V>(t, j);
            // SAFETY: as for `tile`; the result has these rows, and `sums` their vectors.
            unsafe {
                let mut y = *sums.add(i * N + j);
                if !t.from.is_null() {
                    y = V::load_part(t.from.wrapping_add(i * t.from_row + j * V::LANES), lanes).add(y);
                }
                if !t.bias.is_null() {
                    y = y.add(V::load_part(t.bias.wrapping_add(j * V::LANES), lanes));
                }
                y.store_part(t.c.wrapping_add(i * t.c_row + j * V::LANES), lanes);
            }
        }
    }
}

/// Stores accumulators to C: directly if `columns` fills the vectors, else through a buffer of whole vectors.
#[inline(always)]
unsafe fn write_tile<V: Vector, const M: usize, const N: usize>(t: &TileArgs<V::T>, acc: &[[V; N]; M]) {
    // SAFETY: the caller's result has `M` rows of `columns` columns.
    unsafe {
        if t.columns == N * V::LANES {
            finish_whole::<V, M, N>(t, acc, t.c, t.c_row);
            return;
        }
        let mut buffer = [std::mem::zeroed::<V::T>(); 24 * 32];
        let wide = N * V::LANES;
        for i in 0..M {
            let kept = if t.add { t.columns } else { 0 };
            std::ptr::copy_nonoverlapping(t.c.add(i * t.c_row), buffer.as_mut_ptr().add(i * wide), kept);
        }
        finish_whole::<V, M, N>(t, acc, buffer.as_mut_ptr(), wide);
        for i in 0..M {
            std::ptr::copy_nonoverlapping(buffer.as_ptr().add(i * wide), t.c.add(i * t.c_row), t.columns);
        }
    }
}

/// Computes a tile with A read through offset tables: element (row, k) at `rows[row] + steps[k]`.
#[inline(always)]
unsafe fn indirect<V: Vector, const M: usize, const N: usize>(
    t: &TileArgs<V::T>,
    rows: *const usize,
    steps: *const usize,
) {
    // SAFETY: as for `tile`; the tables have `M` and `k` entries.
    unsafe {
        let zero = V::splat(std::mem::zeroed());
        let mut acc = [[zero; N]; M];
        let mut at = [t.a; M];
        let mut i = 0;
        while i < M {
            at[i] = t.a.add(*rows.add(i));
            i += 1;
        }
        let mut b = t.b;
        for k in 0..t.k {
            let step = *steps.add(k);
            let mut row = [zero; N];
            let mut j = 0;
            while j < N {
                row[j] = V::load(b.add(j * V::LANES));
                j += 1;
            }
            let mut i = 0;
            while i < M {
                let x = V::splat(*at[i].add(step));
                let mut j = 0;
                while j < N {
                    acc[i][j] = x.mul_add(row[j], acc[i][j]);
                    j += 1;
                }
                i += 1;
            }
            b = b.wrapping_add(t.b_k);
        }
        write_tile::<V, M, N>(t, &acc);
    }
}

#[inline(always)]
unsafe fn finish_whole<V: Vector, const M: usize, const N: usize>(
    t: &TileArgs<V::T>,
    acc: &[[V; N]; M],
    c: *mut V::T,
    c_row: usize,
) {
    // SAFETY: `c` has `M` rows of `N` vectors.
    unsafe {
        for (i, row) in acc.iter().enumerate() {
            for (j, sum) in row.iter().enumerate() {
                let p = c.add(i * c_row + j * V::LANES);
                let mut y = *sum;
                if t.add {
                    y = V::load(p).add(y);
                }
                if !t.bias.is_null() {
                    y = y.add(V::load(t.bias.add(j * V::LANES)));
                }
                y.store(p);
            }
        }
    }
}

/// Microkernels of one vector count, indexed by rows − 1: for packed A, and for strided A (may be empty).
pub struct MicrokernelTable<T: 'static> {
    pub packed: &'static [TileKernel<T>],
    pub strided: &'static [TileKernel<T>],
}

macro_rules! kernels {
    ($table:ident, $run:ident, $v:ty, $t:ty, $n:literal, $padded:literal, [$($m:literal)*], [$($s:literal)*] $(, $feature:literal)?) => {
        $(#[cfg(target_arch = "x86_64")] #[target_feature(enable = $feature)])?
        unsafe fn $run<const M: usize, const STRIDED: bool>(t: &GemmTile<$t>) {
            $(#[target_feature(enable = $feature)])?
            unsafe fn add(t: &GemmTile<$t>, sums: *const $v, rows: usize) {
                // SAFETY: `TileKernel`'s contract, and that of `tile`.
                unsafe { add_rows::<$v, $n>(t, sums, rows) }
            }
            // SAFETY: `TileKernel`'s contract.
            unsafe { tile::<$v, M, $n, STRIDED, $padded>(t, add) }
        }
        $(#[cfg(target_arch = "x86_64")] #[doc = $feature])?
        static $table: MicrokernelTable<$t> = MicrokernelTable { packed: &[$($run::<$m, false>),*], strided: &[$($run::<$s, true>),*] };
    };
    // A and B packed or in place.
    (any $table:ident, $run:ident, $v:ty, $t:ty, $n:literal, [$($m:literal)*] $(, $feature:literal)?) => {
        kernels!($table, $run, $v, $t, $n, false, [$($m)*], [$($m)*] $(, $feature)?);
    };
    // A and B packed, B padded.
    (packed $table:ident, $run:ident, $v:ty, $t:ty, $n:literal, [$($m:literal)*] $(, $feature:literal)?) => {
        kernels!($table, $run, $v, $t, $n, true, [$($m)*], [] $(, $feature)?);
    };
}

kernels!(any PORTABLE_32, portable_32, Portable32, f32, 2, [1 2 3 4]);
kernels!(packed PORTABLE_64, portable_64, Portable64, f64, 2, [1 2 3 4]);
kernels!(packed PORTABLE_PAIRS, portable_pairs, PortablePairs, i32, 2, [1 2 3 4]);
kernels!(any AVX2_32, avx2_32, x86::V8x32, f32, 2, [1 2 3 4 5 6], "avx2,fma");
kernels!(any AVX2_32_NARROW, avx2_32_narrow, x86::V8x32, f32, 1, [1 2 3 4 5 6 7 8 9 10 11 12], "avx2,fma");
kernels!(packed AVX2_64, avx2_64, x86::V4x64, f64, 2, [1 2 3 4 5 6], "avx2,fma");
kernels!(packed AVX2_PAIRS, avx2_pairs, x86::Pairs8, i32, 2, [1 2 3 4 5 6], "avx2,fma");
kernels!(any AVX512_32, avx512_32, x86::V16x32, f32, 2, [1 2 3 4 5 6 7 8 9 10 11 12 13 14], "avx512f,avx2,fma");
kernels!(any AVX512_32_NARROW, avx512_32_narrow, x86::V16x32, f32, 1, [1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24], "avx512f,avx2,fma");
kernels!(any AVX512_HALVES, avx512_halves, x86::HalfPairs16, f32, 2, [1 2 3 4 5 6 7 8 9 10 11 12 13 14], "avx512f,avx512bf16,avx2,fma");
kernels!(any AVX512_HALVES_NARROW, avx512_halves_narrow, x86::HalfPairs16, f32, 1, [1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24], "avx512f,avx512bf16,avx2,fma");
kernels!(packed AVX512_64, avx512_64, x86::V8x64, f64, 2, [1 2 3 4 5 6 7 8 9 10 11 12 13 14], "avx512f,avx2,fma");
kernels!(packed AVX512_PAIRS, avx512_pairs, x86::Pairs16, i32, 2, [1 2 3 4 5 6 7 8 9 10 11 12 13 14], "avx512f,avx512bw,avx2,fma");
kernels!(packed AVX512_QUADS, avx512_quads, x86::Quads16, i32, 2, [1 2 3 4 5 6 7 8 9 10 11 12 13 14], "avx512f,avx512vnni,avx2,fma");

macro_rules! indirect_kernels {
    ($name:ident, $v:ty, $t:ty, $n:literal, [$($m:literal)*] $(, $feature:literal)?) => {
        $(#[cfg(target_arch = "x86_64")] #[doc = $feature])?
        unsafe fn $name(count: usize, t: &TileArgs<$t>, rows: *const usize, steps: *const usize) {
            $(#[target_feature(enable = $feature)])?
            unsafe fn of<const M: usize>(t: &TileArgs<$t>, rows: *const usize, steps: *const usize) {
                // SAFETY: the contract is that of `indirect`.
                unsafe { indirect::<$v, M, $n>(t, rows, steps) }
            }
            match count {
                // SAFETY: as above; the level is available.
                $($m => unsafe { of::<$m>(t, rows, steps) },)*
                _ => {}
            }
        }
    };
}

indirect_kernels!(portable32x2_indirect, Portable32, f32, 2, [1 2 3 4]);
indirect_kernels!(avx2_32x2_indirect, x86::V8x32, f32, 2, [1 2 3 4 5 6], "avx2,fma");
indirect_kernels!(avx512_32x2_indirect, x86::V16x32, f32, 2, [1 2 3 4 5 6 7 8 9 10 11 12], "avx512f,avx2,fma");
indirect_kernels!(avx512_32x1_indirect, x86::V16x32, f32, 1, [1 2 3 4 5 6 7 8 9 10 11 12], "avx512f,avx2,fma");

/// Microkernel that reads A through tables of row and k offsets. The first argument is the number of rows.
pub type IndirectKernel = unsafe fn(usize, &TileArgs<f32>, *const usize, *const usize);

/// Returns the f32 microkernel with offset tables for N = `n`: kernel, rows (MR), columns (NR).
pub fn indirect_shape(level: Level, n: usize) -> (IndirectKernel, usize, usize) {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 if n <= 16 => (avx512_32x1_indirect, 12, 16),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => (avx512_32x2_indirect, 12, 32),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => (avx2_32x2_indirect, 6, 16),
        _ => {
            let _ = n;
            (portable32x2_indirect, 4, 8)
        }
    }
}

/// KC of the vector kernels, in k groups. A larger KC reads and writes partial sums less often.
pub const CHAIN: usize = 768;
/// NC of the vector kernels, in bytes of one row of B: a packed block of KC by NC stays in L2.
const NC_BYTES: usize = 512;
/// Largest NC of all kernels, in columns.
pub const WIDEST: usize = 256;

/// Microkernels of one vector width, with their blocking.
#[derive(Clone, Copy)]
pub struct MicrokernelShape<T: 'static> {
    table: &'static MicrokernelTable<T>,
    /// NR: columns of a tile; and SIMD lanes of one vector.
    pub columns: usize,
    pub lanes: usize,
    /// Kernels of one vector, for the column tail.
    narrow: Option<&'static MicrokernelTable<T>>,
    /// Approximate KC (blocks of K are made even), and the multiple that K is padded to; both in k groups.
    pub chain: usize,
    pub unit: usize,
    /// NC: columns of a block of packed B that stays in L2.
    pub group: usize,
    /// MC: maximum rows per task, if partial sums are kept between blocks of K. Tile-register kernels are fast enough
    /// to need their sums in L2; vector kernels have no limit.
    pub task_rows: usize,
    /// Cost estimate: nanoseconds of one core for one k group of `lanes` elements of C.
    pub step_ns: f64,
    /// Configuration of tile registers, for kernels that use them.
    pub registers: Option<TileRegisters>,
}

/// Tile-register configuration around kernel calls (AMX `LDTILECFG` and `TILERELEASE`).
#[derive(Clone, Copy)]
pub struct TileRegisters {
    /// Configures this thread's tile registers for A panels of this many rows.
    pub configure: unsafe fn(usize),
    /// Releases this thread's tile registers.
    pub release: unsafe fn(),
}

/// Guard: this thread's tile registers are configured until it is dropped.
pub struct TileConfigGuard(TileRegisters);

impl TileConfigGuard {
    pub fn new(r: TileRegisters, height: usize) -> TileConfigGuard {
        // SAFETY: such kernels are selected only if the CPU has tile registers.
        unsafe { (r.configure)(height) };
        TileConfigGuard(r)
    }
}

impl Drop for TileConfigGuard {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { (self.0.release)() };
    }
}

impl<T> MicrokernelShape<T> {
    const fn new(
        table: &'static MicrokernelTable<T>,
        lanes: usize,
        narrow: Option<&'static MicrokernelTable<T>>,
    ) -> MicrokernelShape<T> {
        MicrokernelShape {
            table,
            columns: 2 * lanes,
            lanes,
            narrow,
            chain: CHAIN,
            unit: 1,
            group: NC_BYTES / size_of::<T>(),
            task_rows: usize::MAX,
            step_ns: 0.16,
            registers: None,
        }
    }

    /// Creates kernels of one vector.
    const fn single(table: &'static MicrokernelTable<T>, lanes: usize) -> MicrokernelShape<T> {
        MicrokernelShape { columns: lanes, ..MicrokernelShape::new(table, lanes, None) }
    }

    /// Creates tile-register kernels: two adjacent tiles of `lanes` columns, KC = `chain`, K padded to `unit`.
    pub const fn tiled(
        table: &'static MicrokernelTable<T>,
        lanes: usize,
        (chain, unit): (usize, usize),
        registers: TileRegisters,
    ) -> MicrokernelShape<T> {
        let registers = Some(registers);
        MicrokernelShape {
            chain,
            unit,
            group: WIDEST,
            task_rows: 512,
            step_ns: 0.02,
            registers,
            ..MicrokernelShape::new(table, lanes, Some(table))
        }
    }

    /// Returns the height of a packed A panel of `rows` rows. Above one tile's rows, two tiles of equal height hold it:
    /// an even number.
    pub fn height(&self, rows: usize) -> usize {
        if self.registers.is_some() && rows > self.lanes { rows.next_multiple_of(2) } else { rows }
    }

    /// Returns MR: the maximum rows of a tile.
    pub fn rows(&self) -> usize {
        self.table.packed.len()
    }

    /// Returns the kernel for a tile of `rows` by `columns`.
    pub fn kernel(&self, rows: usize, left: LhsLayout, columns: usize) -> TileKernel<T> {
        let table = match self.narrow {
            Some(narrow) if columns <= self.lanes => narrow,
            _ => self.table,
        };
        match left {
            LhsLayout::Packed => table.packed[rows - 1],
            LhsLayout::Strided => table.strided[rows - 1],
        }
    }

    /// Returns the columns that the kernel for `columns` columns reads from a padded B.
    pub fn width(&self, columns: usize) -> usize {
        if self.narrow.is_some() && columns <= self.lanes { self.lanes } else { self.columns }
    }
}

/// Accumulator type of the microkernels.
pub trait GemmElement: Copy + Send + Sync + Default + 'static {
    /// Returns the sum of two values; wraps for integers.
    fn plus(self, other: Self) -> Self;
}

macro_rules! elements {
    ($($t:ty, $plus:expr;)*) => {$(
        impl GemmElement for $t {
            #[inline(always)]
            fn plus(self, other: $t) -> $t {
                $plus(self, other)
            }
        }
    )*};
}
elements! {
    f32, |a, b| a + b;
    f64, |a, b| a + b;
    i32, i32::wrapping_add;
}

/// Returns the f32 kernels for N = `n`.
pub fn shape_f32(level: Level, n: usize) -> MicrokernelShape<f32> {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 if n <= 16 => MicrokernelShape::single(&AVX512_32_NARROW, 16),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => MicrokernelShape::new(&AVX512_32, 16, Some(&AVX512_32_NARROW)),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 if n <= 8 => MicrokernelShape::single(&AVX2_32_NARROW, 8),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => MicrokernelShape::new(&AVX2_32, 8, Some(&AVX2_32_NARROW)),
        _ => {
            let _ = n;
            MicrokernelShape::new(&PORTABLE_32, 4, None)
        }
    }
}

/// Returns the kernels whose k group is a pair of bf16 (`VDPBF16PS`), for N = `n`; `None` if the level lacks the
/// instruction.
pub fn shape_halves(level: Level, n: usize) -> Option<MicrokernelShape<f32>> {
    #[cfg(target_arch = "x86_64")]
    if level == Level::Avx512Bf16 {
        return Some(match n {
            ..=16 => MicrokernelShape::single(&AVX512_HALVES_NARROW, 16),
            _ => MicrokernelShape::new(&AVX512_HALVES, 16, Some(&AVX512_HALVES_NARROW)),
        });
    }
    let _ = (level, n);
    None
}

/// Returns the f64 GEMM microkernels.
pub fn shape_f64(level: Level) -> MicrokernelShape<f64> {
    by_level!(
        level,
        MicrokernelShape::new(&AVX512_64, 8, None),
        MicrokernelShape::new(&AVX2_64, 4, None),
        MicrokernelShape::new(&PORTABLE_64, 2, None)
    )
}

/// Returns the kernels whose k group is a pair of i16.
pub fn shape_pairs(level: Level) -> MicrokernelShape<i32> {
    by_level!(
        level,
        MicrokernelShape::new(&AVX512_PAIRS, 16, None),
        MicrokernelShape::new(&AVX2_PAIRS, 8, None),
        MicrokernelShape::new(&PORTABLE_PAIRS, 4, None)
    )
}

/// Returns the kernels whose k group is four u8 by four i8 (VNNI); `None` if the machine lacks the instruction.
pub fn shape_quads(level: Level) -> Option<MicrokernelShape<i32>> {
    #[cfg(target_arch = "x86_64")]
    if level == Level::Avx512 && is_x86_feature_detected!("avx512vnni") {
        return Some(MicrokernelShape::new(&AVX512_QUADS, 16, None));
    }
    let _ = level;
    None
}

/// Returns a peak-rate loop of int8 multiply-adds on registers, with the instructions of the level's kernels, and the
/// operations (two per multiply-add) of one iteration. The loop's argument is the number of iterations.
pub fn int8_peak_loop(level: Level) -> (unsafe fn(usize), usize) {
    /// `ROWS` by four accumulators, as many as the registers hold.
    #[allow(clippy::needless_range_loop)] // Iterators over several arrays at once are harder to read.
    #[inline(always)]
    unsafe fn busy<V: Vector<T = i32>, const ROWS: usize>(steps: usize) {
        // SAFETY: the caller has the level.
        unsafe {
            let [a, b, c, d] = std::hint::black_box([1, 2, 3, 4]);
            let columns = [V::splat(a), V::splat(b), V::splat(c), V::splat(d)];
            let (mut rows, mut sums) = ([columns[1]; ROWS], [[columns[0]; 4]; ROWS]);
            for _ in 0..steps {
                // Factors change in each iteration and differ: the compiler would hoist or share equal products.
                each_row!(ROWS, I => {
                    rows[I] = rows[I].add(columns[I % 4]);
                    for j in 0..4 {
                        sums[I][j] = rows[I].mul_add(columns[j], sums[I][j]);
                    }
                });
            }
            std::hint::black_box(sums);
        }
    }
    macro_rules! at {
        ($v:ty, $products:literal, $rows:literal $(, $feature:literal)?) => {{
            $(#[target_feature(enable = $feature)])?
            unsafe fn run(steps: usize) {
                // SAFETY: as for `busy`.
                unsafe { busy::<$v, $rows>(steps) }
            }
            (run as unsafe fn(usize), 2 * $products * <$v>::LANES * 4 * $rows)
        }};
    }
    #[cfg(target_arch = "x86_64")]
    match level {
        Level::Portable => {}
        Level::Avx2 => return at!(x86::Pairs8, 2, 2, "avx2"),
        _ if is_x86_feature_detected!("avx512vnni") => return at!(x86::Quads16, 4, 3, "avx512f,avx512vnni"),
        _ => return at!(x86::Pairs16, 2, 3, "avx512f,avx512bw"),
    }
    let _ = level;
    at!(PortablePairs, 2, 2)
}

/// A matrix in memory: element (i, j) at `i · row + j · col` elements.
#[derive(Clone, Copy)]
pub struct MatrixView<T> {
    pub ptr: *const T,
    pub row: usize,
    pub col: usize,
}

/// Returns the number of elements of packed B, `[k, n]` in panels of `columns` columns.
pub fn packed_len(columns: usize, k: usize, n: usize) -> usize {
    n.next_multiple_of(columns) * k
}

/// Packs B `[k, n]` into panels of `w` columns: `[ceil(n / w), k, w]`, zero beyond the last column.
///
/// # Safety
/// The view covers `k` by `n`; `dst` has room for [`packed_len`] elements.
pub unsafe fn pack_right<T: GemmElement>(w: usize, b: MatrixView<T>, k: usize, n: usize, dst: *mut T) {
    for (p, j0) in (0..n).step_by(w).enumerate() {
        let columns = w.min(n - j0);
        let panel = dst.wrapping_add(p * w * k);
        // SAFETY: guaranteed by the caller.
        unsafe {
            if b.col == 1 {
                for i in 0..k {
                    let to = panel.add(i * w);
                    std::ptr::copy_nonoverlapping(b.ptr.add(i * b.row + j0), to, columns);
                    (columns..w).for_each(|j| *to.add(j) = T::default());
                }
            } else {
                // Rows of B are strided: copy by columns, which are contiguous if B is transposed.
                for j in 0..columns {
                    let from = b.ptr.add((j0 + j) * b.col);
                    for i in 0..k {
                        *panel.add(i * w + j) = *from.add(i * b.row);
                    }
                }
                for i in 0..k {
                    (columns..w).for_each(|j| *panel.add(i * w + j) = T::default());
                }
            }
        }
    }
}
