//! AMX GEMM with few columns (N ≤ 16), bf16: tiles of A are loaded in place, B is packed.
//!
//! Rows of A are contiguous along K.

use crate::simd::amx::tile::{LANES, LINE, TileShape, TileUnit};

/// K elements per tile: sixteen words of two.
pub const BLOCK: usize = 2 * LANES;
/// Accumulator tiles (of 16 rows each) computed at a time.
const TILES: usize = 4;
/// Bytes per tile of B.
const TILE: usize = LANES * LINE;

/// Returns the size of packed B for an AMX GEMM with few columns, in bytes.
pub fn packed_bytes(k: usize) -> usize {
    k / BLOCK * TILE
}

/// Packs B: `n` columns (at most [`LANES`]) of `k` elements (a multiple of [`BLOCK`]), each column contiguous.
///
/// # Safety
/// `b` has all columns; there is room for [`packed_bytes`] at `to`.
pub unsafe fn pack(b: *const u16, n: usize, k: usize, to: *mut u8) {
    let to = to.cast::<u32>();
    for pair in 0..k / 2 {
        for j in 0..LANES {
            // SAFETY: a pair of an existing column, and a word of the packed tile.
            unsafe {
                let word = if j < n { b.add(j * k + 2 * pair).cast::<u32>().read_unaligned() } else { 0 };
                *to.add(pair * LANES + j) = word;
            }
        }
    }
}

/// Arguments of the GEMM `c[rows, LANES] = A[rows, k] · B[k, n]`.
pub struct TileColumnsArgs {
    pub rows: usize,
    /// A multiple of [`BLOCK`].
    pub k: usize,
    /// Row stride of A, in elements.
    pub a: *const u16,
    pub a_row: usize,
    /// B, packed by [`pack`].
    pub b: *const u8,
    /// Result, [`LANES`] elements per row.
    pub c: *mut f32,
}

/// Returns the tile register shapes for `rows` rows.
pub fn shapes(rows: usize) -> [TileShape; 8] {
    let (rows, right) = ((rows.min(LANES), LINE), (LANES, LINE));
    [rows, rows, rows, rows, rows, rows, right, right]
}

/// Computes all rows.
///
/// # Safety
/// Operands and result are as described in [`TileColumnsArgs`]; registers are configured with [`shapes`]; the unit is
/// available.
#[inline(always)]
pub(crate) unsafe fn run<U: TileUnit>(c: &TileColumnsArgs) {
    let height = c.rows.min(LANES);
    let mut first = [0; TILES];
    let mut from = 0;
    while from < c.rows {
        let mut n = 0;
        while n < TILES && from < c.rows {
            // The last tile overlaps the previous one.
            first[n] = from.min(c.rows - height);
            from += height;
            n += 1;
        }
        // SAFETY: guaranteed by the caller; rows in two tiles are computed twice, with equal results.
        unsafe {
            match n {
                1 => tiles::<U, 1>(c, first),
                2 => tiles::<U, 2>(c, first),
                3 => tiles::<U, 3>(c, first),
                _ => tiles::<U, 4>(c, first),
            }
        }
    }
}

/// Computes `N` tiles of rows, starting at rows `first`.
#[inline(always)]
unsafe fn tiles<U: TileUnit, const N: usize>(c: &TileColumnsArgs, first: [usize; TILES]) {
    /// For each tile: its index, its accumulator register, and a register for A.
    macro_rules! each {
        ($i:ident, $c:ident, $a:ident => $body:expr) => {
            each!(@ $i, $c, $a => $body, [0 0 4] [1 1 5] [2 2 4] [3 3 5])
        };
        (@ $i:ident, $c:ident, $a:ident => $body:expr, $([$n:literal $sum:literal $left:literal])*) => {
            $(if $n < N {
                // Some bodies do not use all constants.
                #[allow(dead_code)]
                const $i: usize = $n;
                const $c: u8 = $sum;
                #[allow(dead_code)]
                const $a: u8 = $left;
                $body
            })*
        };
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        each!(I, C, A => U::zero::<C>());
        let mut b = c.b;
        for k in (0..c.k).step_by(BLOCK) {
            U::stream::<6>(b, LINE);
            b = b.wrapping_add(TILE);
            each!(I, C, A => {
                U::load::<A>(c.a.add(first[I] * c.a_row + k).cast(), 2 * c.a_row);
                U::bf16::<C, A, 6>();
            });
        }
        each!(I, C, A => U::store::<C>(c.c.add(first[I] * LANES).cast(), LINE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::amx::fused::units;
    use crate::simd::math::to_bf16;

    #[test]
    fn rows_of_every_count() {
        let number = |i: usize, by: usize| ((i * by + i / 13) % 7) as f32 - 3.0;
        for unit in units() {
            for (rows, n, k) in
                [(1, 10, 32), (15, 16, 96), (16, 1, 64), (17, 10, 64), (63, 10, 64), (100, 3, 32)]
            {
                let a_row = k + 6;
                let half = |n: usize, by: usize| (0..n).map(|i| to_bf16(number(i, by))).collect::<Vec<u16>>();
                let (a, b) = (half(rows * a_row, 5), half(n * k, 3));
                let mut packed = vec![0u32; packed_bytes(k) / 4];
                let mut c = vec![f32::NAN; rows * LANES];
                // SAFETY: all arrays have the sizes of the product.
                unsafe {
                    pack(b.as_ptr(), n, k, packed.as_mut_ptr().cast());
                    let (a, b) = (a.as_ptr(), packed.as_ptr().cast());
                    let _registers = unit.configure(shapes(rows));
                    (unit.few_columns)(&TileColumnsArgs { rows, k, a, a_row, b, c: c.as_mut_ptr() });
                }
                for (i, &got) in c.iter().enumerate() {
                    let (row, j) = (i / LANES, i % LANES);
                    let product = |x: usize| number(row * a_row + x, 5) * number(j * k + x, 3);
                    let want: f32 = if j < n { (0..k).map(product).sum() } else { 0.0 };
                    assert_eq!(got, want, "{rows}×{n}×{k}, element {i}");
                }
            }
        }
    }
}
