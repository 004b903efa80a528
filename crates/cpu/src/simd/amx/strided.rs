//! AMX bf16 products that read operands in place: tile rows at a constant stride, K in runs of chunks.
//!
//! A chunk is sixteen words along K; a run is a number of consecutive chunks at an address of its own. In a convolution
//! the rows of A tiles are consecutive output pixels and a run is the channels of one filter tap ([`StridedProduct`]).
//! In its gradient w.r.t. the weights the rows of B tiles are pairs of pixels (K) and a run is an image
//! ([`StridedSums`]). Attention's products have one run.

use crate::simd::amx::tile::{Bf16Dot, F32x16, LANES, LINE, TileConfig, TileDot, TileUnit, TileWork};
#[cfg(test)]
use crate::simd::math;
use crate::simd::prefetch::prefetch_far;
use std::mem::MaybeUninit;

/// Columns of two adjacent AMX tiles.
pub const COLUMNS: usize = 2 * LANES;
/// f32 elements of the batch statistics of one image and one panel of [`COLUMNS`] output columns: shift, sum and sum of
/// squares of each column.
pub const STATISTICS: usize = 3 * COLUMNS;
/// Cache lines prefetched per chunk.
const FETCHED: usize = 4;

/// Operands of up to two by two tiles; strides in bytes.
pub struct StridedOperands {
    /// First row of each A tile.
    pub a: [*const u8; 2],
    pub a_row: usize,
    pub a_chunk: usize,
    /// First row of the first B tile, and the distance to the second tile.
    pub b: *const u8,
    pub b_next: usize,
    pub b_row: usize,
    pub b_chunk: usize,
    /// Offsets of each run from the addresses above; number of runs, and chunks per run.
    pub a_runs: *const usize,
    pub b_runs: *const usize,
    pub runs: usize,
    pub chunks: usize,
    /// Memory to prefetch during the product: start and end.
    pub ahead: [*const u8; 2],
    /// Whether there are two tiles of rows, and two of columns.
    pub two: [bool; 2],
}

/// Output of one AMX tile of rows: address and strides.
#[derive(Clone, Copy)]
pub struct TileRowOutput {
    /// First row in the result, and bytes between rows.
    pub to: *mut u8,
    pub row: usize,
    /// Number of first rows that are already written (tiles overlap).
    pub skip: usize,
    /// [`STATISTICS`] elements that the rows are added to, or null; and whether these are the first rows. `apart`:
    /// elements between the statistics of consecutive rows; 0 if all rows belong to one image.
    pub statistics: *mut f32,
    pub apart: usize,
    pub begins: bool,
}

/// Computes sums over all runs, rounds them if the result is bf16, and writes them to a result with any row stride.
pub struct StridedProduct {
    pub operands: StridedOperands,
    /// Rows of each tile, as configured.
    pub height: usize,
    pub columns: usize,
    pub rows: [TileRowOutput; 2],
    /// Bias, readable for whole tiles of columns, or null. bf16 results are rounded before and after it is added.
    pub bias: *const f32,
    /// Whether results are bf16 instead of f32.
    pub narrow: bool,
}

/// Computes sums over all runs into whole tiles of f32.
pub struct StridedSums {
    pub operands: StridedOperands,
    pub c: *mut f32,
    /// Bytes between rows of `c`.
    pub c_row: usize,
    /// Whether to add to `c` (beta = 1).
    pub add: bool,
}

/// Kernels of one tile unit. Callers of `windows` and `sums` have configured this thread's tile registers.
#[derive(Clone, Copy)]
pub struct StridedKernels {
    /// Configures registers for A tiles of this many rows.
    pub configure: unsafe fn(usize),
    pub release: unsafe fn(),
    pub windows: unsafe fn(&StridedProduct),
    pub sums: unsafe fn(&StridedSums),
}

impl StridedKernels {
    pub(crate) const fn of<U: TileUnit>() -> StridedKernels {
        StridedKernels {
            configure: configure::<U>,
            release: U::release,
            windows: U::enter::<StridedProduct>,
            sums: U::enter::<StridedSums>,
        }
    }
}

unsafe fn configure<U: TileUnit>(rows: usize) {
    // SAFETY: the caller's machine has the unit.
    unsafe { U::configure(&TileConfig::of_rows(rows)) };
}

impl StridedOperands {
    /// Adds the products of all runs to the accumulators. `ONCE`: whether B is used only once before it leaves L1.
    #[inline(always)]
    unsafe fn add<U: TileUnit, const R: bool, const C: bool, const ONCE: bool>(&self) {
        let [mut ahead, end] = self.ahead;
        for run in 0..self.runs {
            // SAFETY: guaranteed by the contract of `TileWork`.
            unsafe {
                let from = *self.a_runs.add(run);
                let mut a = self.a.map(|a| a.wrapping_add(from));
                let mut b = self.b.wrapping_add(*self.b_runs.add(run));
                for _ in 0..self.chunks {
                    // The operand from L2 first, and each product as early as possible: loads overlap with products.
                    if ONCE {
                        U::stream::<6>(b, self.b_row);
                    } else {
                        U::load::<6>(b, self.b_row);
                    }
                    if C && ONCE {
                        U::stream::<7>(b.wrapping_add(self.b_next), self.b_row);
                    } else if C {
                        U::load::<7>(b.wrapping_add(self.b_next), self.b_row);
                    }
                    U::load::<4>(a[0], self.a_row);
                    Bf16Dot::dot::<U, 0, 4, 6>();
                    if C {
                        Bf16Dot::dot::<U, 1, 4, 7>();
                    }
                    if R {
                        U::load::<5>(a[1], self.a_row);
                        Bf16Dot::dot::<U, 2, 5, 6>();
                    }
                    if R && C {
                        Bf16Dot::dot::<U, 3, 5, 7>();
                    }
                    a = a.map(|a| a.wrapping_add(self.a_chunk));
                    b = b.wrapping_add(self.b_chunk);
                    let mut i = 0;
                    while i < FETCHED && ahead < end {
                        prefetch_far(ahead);
                        ahead = ahead.wrapping_add(LINE);
                        i += 1;
                    }
                }
            }
        }
    }
}

/// Evaluates an expression with constants for one or two tiles of rows and of columns.
macro_rules! with_tiles {
    ($two:expr, |$r:ident, $c:ident| $body:expr) => {
        match $two {
            [true, true] => with_tiles!(@ $r, $c, true, true, $body),
            [true, false] => with_tiles!(@ $r, $c, true, false, $body),
            [false, true] => with_tiles!(@ $r, $c, false, true, $body),
            [false, false] => with_tiles!(@ $r, $c, false, false, $body),
        }
    };
    (@ $r:ident, $c:ident, $one:literal, $other:literal, $body:expr) => {{
        const $r: bool = $one;
        const $c: bool = $other;
        $body
    }};
}

/// Bytes between rows in the buffer.
const ROW: usize = 2 * LINE;

#[inline(always)]
unsafe fn zero<U: TileUnit>() {
    // SAFETY: guaranteed by the contract of `TileWork`.
    unsafe {
        U::zero::<0>();
        U::zero::<1>();
        U::zero::<2>();
        U::zero::<3>();
    }
}

/// Stores accumulator tiles of `height` rows as a block whose rows are `row` bytes apart.
#[inline(always)]
unsafe fn store<U: TileUnit, const R: bool, const C: bool>(to: *mut u8, row: usize, height: usize) {
    let down = to.wrapping_add(height * row);
    // SAFETY: guaranteed by the contract of `TileWork`.
    unsafe {
        U::store::<0>(to, row);
        if C {
            U::store::<1>(to.wrapping_add(LINE), row);
        }
        if R {
            U::store::<2>(down, row);
        }
        if R && C {
            U::store::<3>(down.wrapping_add(LINE), row);
        }
    }
}

impl TileWork for StridedSums {
    #[inline(always)]
    unsafe fn run<U: TileUnit>(&self) {
        let (c, row) = (self.c.cast::<u8>(), self.c_row);
        // SAFETY: guaranteed by the contract of `TileWork`.
        unsafe {
            with_tiles!(self.operands.two, |R, C| {
                if !self.add {
                    zero::<U>();
                } else {
                    let down = c.wrapping_add(LANES * row);
                    U::load::<0>(c, row);
                    if C {
                        U::load::<1>(c.wrapping_add(LINE), row);
                    }
                    if R {
                        U::load::<2>(down, row);
                    }
                    if R && C {
                        U::load::<3>(down.wrapping_add(LINE), row);
                    }
                }
                self.operands.add::<U, R, C, false>();
                store::<U, R, C>(c, row, LANES);
            })
        }
    }
}

/// Two by two accumulator tiles, aligned to cache lines.
#[repr(align(64))]
struct TileBuffer([MaybeUninit<f32>; COLUMNS * COLUMNS]);

impl TileWork for StridedProduct {
    #[inline(always)]
    unsafe fn run<U: TileUnit>(&self) {
        let mut buffer = TileBuffer([const { MaybeUninit::uninit() }; COLUMNS * COLUMNS]);
        let sums = buffer.0.as_mut_ptr().cast::<f32>();
        // SAFETY: guaranteed by the contract of `TileWork`; all rows of the tiles that there are were stored.
        unsafe {
            with_tiles!(self.operands.two, |R, C| {
                zero::<U>();
                self.operands.add::<U, R, C, true>();
                store::<U, R, C>(sums.cast(), ROW, self.height);
                self.finish::<U, { if C { 2 } else { 1 } }>(&self.rows[0], sums);
                if R {
                    let sums = sums.add(self.height * COLUMNS);
                    self.finish::<U, { if C { 2 } else { 1 } }>(&self.rows[1], sums);
                }
            })
        }
    }
}

/// Loads a row of `N` tiles: sixteen f32 of each.
#[inline(always)]
unsafe fn load<V: F32x16, const N: usize>(from: *const f32) -> [V; N] {
    let mut all = [V::zero(); N];
    let mut j = 0;
    while j < N {
        // SAFETY: the caller has `N` vectors there.
        all[j] = unsafe { V::load(from.wrapping_add(j * LANES)) };
        j += 1;
    }
    all
}

#[inline(always)]
unsafe fn put<V: F32x16, const N: usize>(all: &[V; N], to: *mut f32) {
    let mut j = 0;
    while j < N {
        // SAFETY: the caller has `N` vectors there.
        unsafe { all[j].store(to.wrapping_add(j * LANES), LANES) };
        j += 1;
    }
}

/// Sums and sums of squares of differences from a shift.
struct Statistics<V, const N: usize> {
    from: [V; N],
    sums: [V; N],
    squares: [V; N],
}

impl<V: F32x16, const N: usize> Statistics<V, N> {
    #[inline(always)]
    fn add(&mut self, y: &[V; N]) {
        let mut j = 0;
        while j < N {
            let off = y[j].sub(self.from[j]);
            self.sums[j] = self.sums[j].add(off);
            self.squares[j] = off.mul_add(off, self.squares[j]);
            j += 1;
        }
    }
}

/// Adds a row to the statistics of its image. If it `begins` them, it becomes the shift.
#[inline(always)]
unsafe fn add_row<V: F32x16, const N: usize>(to: *mut f32, y: &[V; N], begins: bool) {
    let place = |k: usize| to.wrapping_add(k * COLUMNS);
    // SAFETY: the caller has [`STATISTICS`] elements there.
    unsafe {
        let mut all = Statistics { from: *y, sums: [V::zero(); N], squares: [V::zero(); N] };
        if begins {
            put(y, place(0));
        } else {
            all = Statistics { from: load(place(0)), sums: load(place(1)), squares: load(place(2)) };
            all.add(y);
        }
        put(&all.sums, place(1));
        put(&all.squares, place(2));
    }
}

impl StridedProduct {
    /// Writes the rows of one tile, and adds them to the statistics. Its sums are rows of [`COLUMNS`] elements.
    #[inline(always)]
    unsafe fn finish<U: TileUnit, const N: usize>(&self, rows: &TileRowOutput, sums: *mut f32) {
        // SAFETY: guaranteed by the contract of `TileWork`.
        unsafe {
            let bias = match self.bias.is_null() {
                true => None,
                false => Some(load::<U::Lanes, N>(self.bias)),
            };
            if rows.statistics.is_null() {
                for i in rows.skip..self.height {
                    self.write::<U::Lanes, N>(rows, sums, i, bias);
                }
                return;
            }
            if rows.apart != 0 {
                for i in rows.skip..self.height {
                    let y = self.write::<U::Lanes, N>(rows, sums, i, bias);
                    add_row(rows.statistics.wrapping_add(i * rows.apart), &y, rows.begins);
                }
                return;
            }
            let place = |k: usize| rows.statistics.wrapping_add(k * COLUMNS);
            let mut all = Statistics {
                from: [U::Lanes::zero(); N],
                sums: [U::Lanes::zero(); N],
                squares: [U::Lanes::zero(); N],
            };
            if rows.begins {
                // The shift is the mean of the first rows. It is close to the overall mean, so that subtracting the
                // squared difference later cancels few digits.
                let mut total = [U::Lanes::zero(); N];
                for i in rows.skip..self.height {
                    let y = self.write::<U::Lanes, N>(rows, sums, i, bias);
                    put(&y, sums.wrapping_add(i * COLUMNS));
                    let mut j = 0;
                    while j < N {
                        total[j] = total[j].add(y[j]);
                        j += 1;
                    }
                }
                let share = 1.0 / (self.height - rows.skip) as f32;
                all.from = total.map(|sum| sum.scale(share));
                put(&all.from, place(0));
                for i in rows.skip..self.height {
                    all.add(&load::<U::Lanes, N>(sums.wrapping_add(i * COLUMNS)));
                }
            } else {
                all = Statistics { from: load(place(0)), sums: load(place(1)), squares: load(place(2)) };
                for i in rows.skip..self.height {
                    let y = self.write::<U::Lanes, N>(rows, sums, i, bias);
                    all.add(&y);
                }
            }
            put(&all.sums, place(1));
            put(&all.squares, place(2));
        }
    }

    /// Writes row `i`; returns the values as stored.
    #[inline(always)]
    unsafe fn write<V: F32x16, const N: usize>(
        &self,
        rows: &TileRowOutput,
        sums: *const f32,
        i: usize,
        bias: Option<[V; N]>,
    ) -> [V; N] {
        let to = rows.to.wrapping_add(i * rows.row);
        // SAFETY: guaranteed by the contract of `TileWork`.
        unsafe {
            let mut y = load::<V, N>(sums.wrapping_add(i * COLUMNS));
            let mut j = 0;
            while j < N {
                if let Some(bias) = &bias {
                    y[j] = if self.narrow { V::widen(y[j].narrow()) } else { y[j] }.add(bias[j]);
                }
                let count = LANES.min(self.columns - j * LANES);
                if self.narrow {
                    let bits = y[j].narrow();
                    V::store_narrow(bits, to.cast::<u16>().wrapping_add(j * LANES), count);
                    y[j] = V::widen(bits);
                } else {
                    y[j].store(to.cast::<f32>().wrapping_add(j * LANES), count);
                }
                j += 1;
            }
            y
        }
    }
}

#[cfg(test)]
impl F32x16 for [f32; LANES] {
    type Narrow = [u16; LANES];

    fn zero() -> Self {
        [0.0; LANES]
    }
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller has sixteen f32 at `p`.
        unsafe { *p.cast() }
    }
    unsafe fn store(self, p: *mut f32, n: usize) {
        // SAFETY: the caller has room for `n` elements.
        unsafe { std::ptr::copy_nonoverlapping(self.as_ptr(), p, n) }
    }
    unsafe fn store_narrow(bits: [u16; LANES], p: *mut u16, n: usize) {
        // SAFETY: the caller has room for `n` elements.
        unsafe { std::ptr::copy_nonoverlapping(bits.as_ptr(), p, n) }
    }
    fn add(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i] + other[i])
    }
    fn sub(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i] - other[i])
    }
    fn scale(self, by: f32) -> Self {
        self.map(|x| x * by)
    }
    fn mul_add(self, by: Self, other: Self) -> Self {
        std::array::from_fn(|i| self[i].mul_add(by[i], other[i]))
    }
    fn narrow(self) -> [u16; LANES] {
        self.map(|x| math::to_bf16(if x.is_subnormal() { 0f32.copysign(x) } else { x }))
    }
    fn widen(bits: [u16; LANES]) -> Self {
        bits.map(math::from_bf16)
    }
}
