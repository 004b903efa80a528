//! AMX GEMM with few rows (M ≤ 16 per call) and long rows of B, bf16, without packing B.
//!
//! A 32-bit word of a row of B is two adjacent columns of one k, not two k of one column as the instruction expects. A
//! is therefore packed twice, with each element in the low or in the high half of a word and zero in the other. This
//! doubles the multiplications but avoids packing the larger operand; even and odd columns accumulate in separate
//! tiles.

use crate::simd::amx::fused::vectors::FusedVectors;
use crate::simd::amx::tile::{LANES, LINE, TileShape, TileUnit, WIDTH};
use crate::simd::prefetch::fetch;
use std::mem::MaybeUninit;

/// Prefetch distance, in columns.
const AHEAD: usize = 128;
/// Bytes per tile of A.
const TILE: usize = LANES * LINE;

/// Returns the K elements per block (at most [`LANES`], blocks as even as possible), and the number of blocks.
pub fn blocks(k: usize) -> (usize, usize) {
    let count = k.div_ceil(LANES);
    (k.div_ceil(count), count)
}

/// Returns the first k of block `b`; the last block may overlap the previous one.
fn first(b: usize, k: usize) -> usize {
    let (depth, _) = blocks(k);
    (b * depth).min(k - depth)
}

/// Returns the size of a packed tile of rows of A in bytes.
pub fn packed_bytes(k: usize) -> usize {
    blocks(k).1 * 2 * TILE
}

/// Packs up to [`LANES`] rows of A, `at(row, k)`; zero where the last block overlaps.
///
/// # Safety
/// There is room for [`packed_bytes`] at `to`.
pub unsafe fn pack(rows: usize, k: usize, at: impl Fn(usize, usize) -> u16, to: *mut u8) {
    let (depth, count) = blocks(k);
    // SAFETY: the caller has room for the packed operand.
    unsafe { to.write_bytes(0, packed_bytes(k)) };
    for b in 0..count {
        for x in first(b, k).max(b * depth)..first(b, k) + depth {
            for i in 0..rows {
                let word = b * 2 * TILE + i * LINE + (x - first(b, k)) * 4;
                // SAFETY: words of the block's two tiles.
                unsafe {
                    *to.add(word).cast::<u16>() = at(i, x);
                    *to.add(word + TILE + 2).cast::<u16>() = at(i, x);
                }
            }
        }
    }
}

/// Element type of the result, and whether to accumulate into it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreMode {
    F32,
    /// f32, added to `c` (beta = 1).
    Sum,
    Bf16,
}

/// Arguments of the GEMM `C[rows, columns] = A[rows, k] · B[k, columns]`, for up to [`LANES`] rows.
pub struct TileRowsArgs {
    pub rows: usize,
    pub k: usize,
    /// A, packed by [`pack`].
    pub a: *const u8,
    /// First row of B, and its row stride in elements.
    pub b: *const u16,
    pub b_k: usize,
    /// Columns, a multiple of [`WIDTH`].
    pub columns: usize,
    pub to: StoreMode,
    pub c: *mut u8,
    /// Row stride of C, in elements.
    pub c_row: usize,
}

/// Returns the tile register shapes for these rows and K.
pub fn shapes(rows: usize, k: usize) -> [TileShape; 8] {
    let (depth, _) = blocks(k);
    let (sums, left, right) = ((rows, LINE), (rows, 4 * depth), (depth, LINE));
    [sums, sums, sums, sums, left, left, right, right]
}

/// Accumulators of the even and odd columns of two blocks of [`WIDTH`] columns.
#[repr(align(64))]
struct EvenOddTiles([MaybeUninit<f32>; 4 * LANES * LANES]);

/// Initial value of accumulators: loading it is faster than `tilezero`.
#[repr(align(64))]
struct Zeros([f32; LANES]);
static ZEROS: Zeros = Zeros([0.0; LANES]);

/// Computes all columns.
///
/// # Safety
/// Operands and result are as described in [`TileRowsArgs`]; registers are configured with [`shapes`] for its `k` and
/// at least its rows; the unit and the vectors are available.
#[inline(always)]
pub(crate) unsafe fn run<U: TileUnit, V: FusedVectors>(c: &TileRowsArgs) {
    let mut sums = EvenOddTiles([const { MaybeUninit::uninit() }; 4 * LANES * LANES]);
    let sums = sums.0.as_mut_ptr().cast::<f32>();
    let mut from = 0;
    // SAFETY: guaranteed by the caller.
    unsafe {
        while from + 2 * WIDTH <= c.columns {
            strip::<U, true>(c, from, sums);
            put::<V, true>(c, from, sums);
            from += 2 * WIDTH;
        }
        if from < c.columns {
            strip::<U, false>(c, from, sums);
            put::<V, false>(c, from, sums);
        }
    }
}

/// Computes a strip of `2 · WIDTH` columns from `from` on (`TWO`), or of `WIDTH`.
#[inline(always)]
unsafe fn strip<U: TileUnit, const TWO: bool>(c: &TileRowsArgs, from: usize, sums: *mut f32) {
    let tile = |i: usize| sums.wrapping_add(i * LANES * LANES).cast::<u8>();
    let zeros = ZEROS.0.as_ptr().cast();
    // SAFETY: guaranteed by the caller.
    unsafe {
        // A stride of zero: every row is zeros.
        U::load::<0>(zeros, 0);
        U::load::<1>(zeros, 0);
        if TWO {
            U::load::<2>(zeros, 0);
            U::load::<3>(zeros, 0);
        }
        let mut a = c.a;
        for block in 0..blocks(c.k).1 {
            let b = c.b.add(first(block, c.k) * c.b_k + from);
            U::load::<4>(a, LINE);
            U::load::<5>(a.wrapping_add(TILE), LINE);
            U::load::<6>(b.cast(), 2 * c.b_k);
            U::bf16::<0, 4, 6>();
            U::bf16::<1, 5, 6>();
            if TWO {
                U::load::<7>(b.wrapping_add(WIDTH).cast(), 2 * c.b_k);
                U::bf16::<2, 4, 7>();
                U::bf16::<3, 5, 7>();
            }
            a = a.wrapping_add(2 * TILE);
        }
        // The hardware prefetcher does not track this many rows.
        for x in 0..c.k {
            let ahead = c.b.wrapping_add(x * c.b_k + from + AHEAD);
            fetch(ahead);
            fetch(ahead.wrapping_add(WIDTH));
        }
        U::store::<0>(tile(0), LINE);
        U::store::<1>(tile(1), LINE);
        if TWO {
            U::store::<2>(tile(2), LINE);
            U::store::<3>(tile(3), LINE);
        }
    }
}

/// Interleaves even and odd columns of a strip and stores them.
#[inline(always)]
unsafe fn put<V: FusedVectors, const TWO: bool>(c: &TileRowsArgs, from: usize, sums: *const f32) {
    let tile = |i: usize, row: usize| sums.wrapping_add((i * LANES + row) * LANES);
    for i in 0..c.rows {
        for half in 0..1 + usize::from(TWO) {
            let (even, odd) = (tile(2 * half, i), tile(2 * half + 1, i));
            let at = i * c.c_row + from + half * WIDTH;
            // SAFETY: guaranteed by the caller.
            unsafe {
                match c.to {
                    StoreMode::F32 => V::store(even, odd, c.c.cast::<f32>().add(at)),
                    StoreMode::Sum => V::add(even, odd, c.c.cast::<f32>().add(at)),
                    StoreMode::Bf16 => V::narrow(even, odd, c.c.cast::<u16>().add(at)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::amx::fused::units;
    use crate::simd::math::{from_bf16, to_bf16};

    #[test]
    fn rows_and_products_of_every_count() {
        let numbers = |n: usize, by: usize| -> Vec<f32> {
            (0..n).map(|i| ((i * by + i / 13) % 7) as f32 - 3.0).collect()
        };
        for unit in units() {
            for (rows, k) in [(1, 1), (3, 2), (16, 10), (10, 63), (7, 17), (16, 64), (2, 33)] {
                let (columns, row) = (3 * WIDTH, 3 * WIDTH + 5);
                let old = numbers(rows * row, 4);
                let half = |x: &[f32]| x.iter().map(|&x| to_bf16(x)).collect::<Vec<u16>>();
                let (left, right) = (half(&numbers(rows * k, 5)), half(&numbers(k * row, 3)));
                let mut packed = vec![0xffu8; packed_bytes(k)];
                // SAFETY: the destination has `packed_bytes`.
                unsafe { pack(rows, k, |i, x| left[i * k + x], packed.as_mut_ptr()) };
                for to in [StoreMode::F32, StoreMode::Sum, StoreMode::Bf16] {
                    let (mut wide, mut narrow) = (old.clone(), half(&old));
                    let c = if to == StoreMode::Bf16 {
                        narrow.as_mut_ptr().cast()
                    } else {
                        wide.as_mut_ptr().cast()
                    };
                    let (a, b) = (packed.as_ptr(), right.as_ptr());
                    let call = TileRowsArgs { rows, k, a, b, b_k: row, columns, to, c, c_row: row };
                    {
                        let _registers = unit.configure(shapes(rows, k));
                        // SAFETY: all arrays have the sizes of the call.
                        unsafe { (unit.few_rows)(&call) };
                    }
                    for i in 0..rows * row {
                        let sum = |j: usize| -> f32 {
                            let product =
                                |x: usize| from_bf16(left[i / row * k + x]) * from_bf16(right[x * row + j]);
                            (0..k).map(product).sum()
                        };
                        let want = match (i % row < columns, to) {
                            (false, _) => old[i],
                            (_, StoreMode::Sum) => old[i] + sum(i % row),
                            _ => sum(i % row),
                        };
                        let got = if to == StoreMode::Bf16 { from_bf16(narrow[i]) } else { wide[i] };
                        let want = if to == StoreMode::Bf16 { from_bf16(to_bf16(want)) } else { want };
                        assert_eq!(got, want, "{rows}×{k} {to:?}, element {i}");
                    }
                }
            }
        }
    }
}
