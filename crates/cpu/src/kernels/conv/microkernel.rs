//! Convolution microkernels: register tiles of several rows (M) by one to four vectors of columns (N).
//!
//! Both kinds read B by rows of whole vectors. They differ in how they address A:
//! * [`across`]: each row of the tile is a pixel at any address, and K runs along pieces of consecutive elements
//!   (channels, and filter columns if these are contiguous). For the forward pass and the input gradient.
//! * [`down`]: the rows of the tile are consecutive elements, and each K step is a pixel at any address. For the filter
//!   gradient.
//!
//! Within a call, every element is one chain of multiply-adds in the order of K, whatever the tile: the division into
//! tiles changes no bits.

use crate::simd::level::Level;
use crate::simd::prefetch::{fetch, prefetch_far, prefetch_row};
use crate::simd::ranges::pieces;
use crate::simd::vector::{Portable32, Vector};

#[cfg(target_arch = "x86_64")]
use crate::simd::vector::x86;

/// Destination of the accumulators of a convolution tile.
pub struct TileDestination {
    /// Base address of the result.
    pub c: *mut f32,
    /// Row offsets in elements: row `i` starts at `c + rows[i]`.
    pub rows: *const usize,
    /// Columns to write, at most the tile's width.
    pub columns: usize,
    /// Whether to add to the values at `c` rather than overwrite them.
    pub add: bool,
    /// Bias that is added to each row, or null. Whole vectors are readable.
    pub bias: *const f32,
}

/// Cache lines to prefetch to L2 while a tile is computed.
///
/// A few lines are prefetched in each unrolled round of K steps, so that the tile's own loads do not wait for them.
#[derive(Clone, Copy)]
pub struct PrefetchLines {
    /// Address of the first line.
    pub at: *const u8,
    /// End of the last line.
    pub end: *const u8,
}

/// Bytes of a cache line.
pub const LINE: usize = 64;
/// Cache lines that are prefetched in each round of K steps.
pub const LINES_PER_ROUND: usize = 4;

impl PrefetchLines {
    /// Prefetches at most `n` lines.
    #[inline(always)]
    fn fetch(&mut self, n: usize) {
        let mut i = 0;
        while i < n && self.at < self.end {
            prefetch_far(self.at);
            self.at = self.at.wrapping_add(LINE);
            i += 1;
        }
    }
}

/// Arguments of [`across`]: A of row `i` is `a + rows[i] + runs[r] + 0..length` for each of `count` runs `r`.
pub struct AcrossArgs {
    pub a: *const f32,
    pub rows: *const usize,
    pub runs: *const usize,
    pub count: usize,
    pub length: usize,
    pub ahead: PrefetchLines,
    /// B: a contiguous row of the tile's width for each K step.
    pub b: *const f32,
    pub out: TileDestination,
}

/// Arguments of [`down`]: A of row `i` at K step `k` is `a + k_offsets[k] + i`, for `count` K steps.
pub struct DownArgs {
    pub a: *const f32,
    pub k_offsets: *const usize,
    pub count: usize,
    pub ahead: PrefetchLines,
    /// B: one row for each K step, `b_row` elements apart.
    pub b: *const f32,
    pub b_row: usize,
    pub out: TileDestination,
}

/// Function type of an [`across`] microkernel. The first argument is the number of rows, at most the maximum of the
/// tile.
pub type AcrossFn = unsafe fn(usize, &AcrossArgs);
/// Function type of a [`down`] microkernel. The first argument is the number of rows, at most the maximum of the tile.
pub type DownFn = unsafe fn(usize, &DownArgs);

/// Convolution microkernels for panels of one width.
#[derive(Clone, Copy)]
pub struct ConvMicrokernels {
    pub across: AcrossFn,
    pub down: DownFn,
    /// Maximum rows of a tile.
    pub rows: usize,
    /// Columns of a tile: whole vectors.
    pub columns: usize,
}

/// Maximum K steps that one accumulator sums (KC). Longer sums continue in memory.
pub const KC: usize = 384;

/// Number of unrolled K steps. The processor issues four instructions per cycle, and a tile of two vectors leaves
/// little room for loop overhead.
pub const UNROLL: usize = 8;

/// Rounds between the prefetch of the last result row and the end of the K loop. Result rows may be far away or may
/// never have been in cache. If they were prefetched earlier, the operands would evict them from L1 again.
const ROW_PREFETCH_LEAD: usize = 2;

/// Maximum rows for which [`across`] has general-purpose registers left for prefetch addresses in addition to the row
/// addresses.
const FEW_ROWS: usize = 9;

/// K steps below which [`across`] prefetches nothing: it would take as long as the products.
const FEW_STEPS: usize = 64;

/// Prefetch distance of A in [`down`], in K steps: its pixels are too far apart for the hardware prefetcher.
const A_PREFETCH_DISTANCE: usize = 8;

/// Readable entries that the table of K steps needs beyond its end. They are only prefetched.
pub const SLACK: usize = A_PREFETCH_DISTANCE;

// The loops over rows and vectors are written by hand: they must unroll completely so that accumulators stay in
// registers. A closure would not be compiled for the instruction set of the level.

/// Computes one K step: for each row `$i`, adds the element of A at `$x` times the vectors of B at `$b`.
macro_rules! multiply {
    ($acc:ident, $b:ident, $i:ident => $x:expr) => {{
        let right = vectors::<V, N>($b);
        let mut $i = 0;
        while $i < M {
            let x = V::splat(*$x);
            let mut j = 0;
            while j < N {
                $acc[$i][j] = x.mul_add(right[j], $acc[$i][j]);
                j += 1;
            }
            $i += 1;
        }
    }};
}

/// Prefetches the result rows of a tile of `M` rows and `N` vectors, two rows in each of the last of `rounds` rounds.
struct RowPrefetch {
    wait: usize,
    next: usize,
}

impl RowPrefetch {
    #[inline(always)]
    fn new<const M: usize>(rounds: usize) -> RowPrefetch {
        RowPrefetch { wait: rounds.saturating_sub(M.div_ceil(2) + ROW_PREFETCH_LEAD), next: 0 }
    }

    #[inline(always)]
    unsafe fn fetch<V: Vector<T = f32>, const M: usize, const N: usize>(&mut self, o: &TileDestination) {
        if self.wait > 0 {
            self.wait -= 1;
        } else if self.next < M {
            let other = (self.next + 1).min(M - 1);
            // SAFETY: the caller's table has `M` rows.
            let [row, other] = [self.next, other].map(|i| o.c.wrapping_add(unsafe { *o.rows.add(i) }));
            prefetch_row::<V, N>(row);
            prefetch_row::<V, N>(other);
            self.next += 2;
        }
    }
}

#[inline(always)]
unsafe fn across<V: Vector<T = f32>, const M: usize, const N: usize>(t: &AcrossArgs) {
    // SAFETY: the caller's pointers and tables cover `M` rows, all K steps and `N` vectors; the level is available.
    unsafe {
        let mut acc = [[V::splat(0.0); N]; M];
        let mut b = t.b;
        let (mut ahead, mut result) = (t.ahead, RowPrefetch::new::<M>(t.count * (t.length / UNROLL)));
        let few = t.count * t.length < FEW_STEPS;
        if M > FEW_ROWS && !few {
            ahead.fetch(usize::MAX);
        }
        for r in 0..t.count {
            let run = t.a.add(*t.runs.add(r));
            let mut rows = [run; M];
            let mut i = 0;
            while i < M {
                rows[i] = run.add(*t.rows.add(i));
                i += 1;
            }
            let mut k = 0;
            while k + UNROLL <= t.length {
                if M <= FEW_ROWS && !few {
                    ahead.fetch(LINES_PER_ROUND);
                    result.fetch::<V, M, N>(&t.out);
                }
                let mut u = 0;
                while u < UNROLL {
                    multiply!(acc, b, i => rows[i].add(k + u));
                    b = b.wrapping_add(N * V::LANES);
                    u += 1;
                }
                k += UNROLL;
            }
            while k < t.length {
                multiply!(acc, b, i => rows[i].add(k));
                b = b.wrapping_add(N * V::LANES);
                k += 1;
            }
        }
        write::<V, M, N>(&t.out, acc);
    }
}

#[inline(always)]
unsafe fn down<V: Vector<T = f32>, const M: usize, const N: usize>(t: &DownArgs) {
    // SAFETY: as for `across`; the table of K steps has `SLACK` more entries, which are only prefetched.
    unsafe {
        let mut acc = [[V::splat(0.0); N]; M];
        let mut b = t.b;
        let (mut ahead, mut result) = (t.ahead, RowPrefetch::new::<M>(t.count / UNROLL));
        let mut k = 0;
        while k + UNROLL <= t.count {
            ahead.fetch(LINES_PER_ROUND);
            result.fetch::<V, M, N>(&t.out);
            let mut u = 0;
            while u < UNROLL {
                let a = t.a.wrapping_add(*t.k_offsets.add(k + u));
                fetch(t.a.wrapping_add(*t.k_offsets.add(k + u + A_PREFETCH_DISTANCE)));
                multiply!(acc, b, i => a.add(i));
                b = b.wrapping_add(t.b_row);
                u += 1;
            }
            k += UNROLL;
        }
        while k < t.count {
            let a = t.a.wrapping_add(*t.k_offsets.add(k));
            multiply!(acc, b, i => a.add(i));
            b = b.wrapping_add(t.b_row);
            k += 1;
        }
        write::<V, M, N>(&t.out, acc);
    }
}

#[inline(always)]
unsafe fn vectors<V: Vector<T = f32>, const N: usize>(p: *const f32) -> [V; N] {
    // SAFETY: the caller has `N` vectors at the address; the level is available.
    unsafe {
        let mut all = [V::splat(0.0); N];
        let mut j = 0;
        while j < N {
            all[j] = V::load(p.add(j * V::LANES));
            j += 1;
        }
        all
    }
}

/// Writes whole vectors, or through a small buffer if the result has fewer columns.
#[inline(always)]
unsafe fn write<V: Vector<T = f32>, const M: usize, const N: usize>(
    o: &TileDestination,
    mut acc: [[V; N]; M],
) {
    // SAFETY: the caller's result has `M` rows of `columns` columns; the buffer holds the largest tile, 14 by 32.
    unsafe {
        if !o.bias.is_null() {
            let bias = vectors::<V, N>(o.bias);
            each::<M, N>(|i, j| acc[i][j] = acc[i][j].add(bias[j]));
        }
        let row = |i: usize| o.c.add(*o.rows.add(i));
        let mut buffer = [0f32; 14 * 32];
        let line = buffer.as_mut_ptr();
        let whole = o.columns == N * V::LANES;
        if o.add && whole {
            each::<M, N>(|i, j| acc[i][j] = V::load(row(i).add(j * V::LANES)).add(acc[i][j]));
        }
        if whole {
            each::<M, N>(|i, j| acc[i][j].store(row(i).add(j * V::LANES)));
            return;
        }
        each::<M, N>(|i, j| acc[i][j].store(line.add((i * N + j) * V::LANES)));
        write_part(o, line, M, N * V::LANES);
    }
}

/// Writes the first `columns` columns of `m` rows of `width` accumulators.
#[inline(never)]
unsafe fn write_part(o: &TileDestination, sums: *const f32, m: usize, width: usize) {
    for i in 0..m {
        // SAFETY: the caller's result has `m` rows of `columns` columns, its accumulators `m` rows of at least as
        // many.
        unsafe {
            let (to, from) = (o.c.add(*o.rows.add(i)), sums.add(i * width));
            for j in 0..o.columns {
                let before = if o.add { *to.add(j) } else { 0.0 };
                *to.add(j) = before + *from.add(j);
            }
        }
    }
}

/// Calls `f` for every row and vector of a tile, unrolled.
#[inline(always)]
fn each<const M: usize, const N: usize>(mut f: impl FnMut(usize, usize)) {
    let mut i = 0;
    while i < M {
        let mut j = 0;
        while j < N {
            f(i, j);
            j += 1;
        }
        i += 1;
    }
}

// Each number of rows is a separate function: the compiler takes far longer over one function with all of them.
macro_rules! kernels {
    ($across:ident, $down:ident, $v:ty, $n:literal, [$($m:literal)*] $(, $feature:literal)?) => {
        $(#[cfg(target_arch = "x86_64")] #[doc = $feature])?
        unsafe fn $across(rows: usize, t: &AcrossArgs) {
            $(#[target_feature(enable = $feature)])?
            unsafe fn of<const M: usize>(t: &AcrossArgs) {
                // SAFETY: the caller's promises are those of `across`.
                unsafe { across::<$v, M, $n>(t) }
            }
            match rows {
                // SAFETY: as above; the level is available.
                $($m => unsafe { of::<$m>(t) },)*
                _ => {}
            }
        }
        $(#[cfg(target_arch = "x86_64")] #[doc = $feature])?
        unsafe fn $down(rows: usize, t: &DownArgs) {
            $(#[target_feature(enable = $feature)])?
            unsafe fn of<const M: usize>(t: &DownArgs) {
                // SAFETY: the caller's promises are those of `down`.
                unsafe { down::<$v, M, $n>(t) }
            }
            match rows {
                // SAFETY: as above; the level is available.
                $($m => unsafe { of::<$m>(t) },)*
                _ => {}
            }
        }
    };
}

kernels!(across_portable, down_portable, Portable32, 2, [1 2 3 4]);
kernels!(across_avx2_1, down_avx2_1, x86::V8x32, 1, [1 2 3 4 5 6 7 8 9 10 11 12], "avx2,fma");
kernels!(across_avx2_2, down_avx2_2, x86::V8x32, 2, [1 2 3 4 5 6], "avx2,fma");
kernels!(across_512_1, down_512_1, x86::V16x32, 1, [1 2 3 4 5 6 7 8 9 10 11 12 13 14], "avx512f,avx2,fma");
kernels!(across_512_2, down_512_2, x86::V16x32, 2, [1 2 3 4 5 6 7 8 9 10 11 12 13 14], "avx512f,avx2,fma");
kernels!(across_512_3, down_512_3, x86::V16x32, 3, [1 2 3 4 5 6 7 8 9], "avx512f,avx2,fma");
kernels!(across_512_4, down_512_4, x86::V16x32, 4, [1 2 3 4 5 6], "avx512f,avx2,fma");

// Elements of both operands are 32-bit words, pairs of bf16 (VDPBF16PS).
kernels!(across_halves_1, down_halves_1, x86::HalfPairs16, 1, [1 2 3 4 5 6 7 8 9 10 11 12 13 14], "avx512f,avx512bf16,avx2,fma");
kernels!(across_halves_2, down_halves_2, x86::HalfPairs16, 2, [1 2 3 4 5 6 7 8 9 10 11 12 13 14], "avx512f,avx512bf16,avx2,fma");
kernels!(across_halves_3, down_halves_3, x86::HalfPairs16, 3, [1 2 3 4 5 6 7 8 9], "avx512f,avx512bf16,avx2,fma");
kernels!(across_halves_4, down_halves_4, x86::HalfPairs16, 4, [1 2 3 4 5 6], "avx512f,avx512bf16,avx2,fma");

impl ConvMicrokernels {
    /// Returns the microkernels for `vectors` vectors, limited to the level's widest tile.
    fn new(level: Level, vectors: usize) -> ConvMicrokernels {
        let shape = |across, down, rows, columns| ConvMicrokernels { across, down, rows, columns };
        match (level, vectors) {
            #[cfg(target_arch = "x86_64")]
            (Level::Avx512, 1) => shape(across_512_1, down_512_1, 14, 16),
            #[cfg(target_arch = "x86_64")]
            (Level::Avx512, 2) => shape(across_512_2, down_512_2, 14, 32),
            #[cfg(target_arch = "x86_64")]
            (Level::Avx512, 3) => shape(across_512_3, down_512_3, 9, 48),
            #[cfg(target_arch = "x86_64")]
            (Level::Avx512, _) => shape(across_512_4, down_512_4, 6, 64),
            #[cfg(target_arch = "x86_64")]
            (Level::Avx512Bf16, 1) => shape(across_halves_1, down_halves_1, 14, 16),
            #[cfg(target_arch = "x86_64")]
            (Level::Avx512Bf16, 2) => shape(across_halves_2, down_halves_2, 14, 32),
            #[cfg(target_arch = "x86_64")]
            (Level::Avx512Bf16, 3) => shape(across_halves_3, down_halves_3, 9, 48),
            #[cfg(target_arch = "x86_64")]
            (Level::Avx512Bf16, _) => shape(across_halves_4, down_halves_4, 6, 64),
            #[cfg(target_arch = "x86_64")]
            (Level::Avx2, 1) => shape(across_avx2_1, down_avx2_1, 12, 8),
            #[cfg(target_arch = "x86_64")]
            (Level::Avx2, _) => shape(across_avx2_2, down_avx2_2, 6, 16),
            _ => shape(across_portable, down_portable, 4, 8),
        }
    }
}

/// Columns of the result that one microkernel call covers.
#[derive(Clone, Copy)]
pub struct ColumnPanel {
    /// First column of the result.
    pub from: usize,
    /// First column of the packed filter, in which panels are whole vectors.
    pub packed: usize,
    /// First channel that the panel reads.
    pub channel: usize,
    /// Number of the tile's columns that exist.
    pub columns: usize,
    /// Microkernels for the panel.
    pub shape: ConvMicrokernels,
}

/// Cuts `features` columns into panels of nearly equal width. At [`Level::Avx512Bf16`] both operands are words of two
/// bf16; for f32 operands pass [`Level::vectors`].
pub fn panels(level: Level, features: usize) -> Vec<ColumnPanel> {
    grouped_panels(level, features, 1, 0)
}

/// Like [`panels`], for `groups` of columns with as many columns each, which read `channels` channels each.
pub fn grouped_panels(level: Level, features: usize, groups: usize, channels: usize) -> Vec<ColumnPanel> {
    let own = features / groups;
    let (lanes, widest) = match level {
        Level::Avx512 | Level::Avx512Bf16 | Level::Amx => (16, 4),
        Level::Avx2 => (8, 2),
        Level::Portable => (8, 1),
    };
    let mut packed = 0;
    let mut all = Vec::new();
    for group in 0..groups {
        let mut at = 0;
        for (_, n) in pieces(own.div_ceil(lanes), widest) {
            let shape = ConvMicrokernels::new(level, n);
            let (from, columns) = (group * own + at, shape.columns.min(own - at));
            all.push(ColumnPanel { from, packed, channel: group * channels, columns, shape });
            (at, packed) = (at + shape.columns, packed + shape.columns);
        }
    }
    all
}
