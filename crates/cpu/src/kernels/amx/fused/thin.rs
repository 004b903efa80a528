//! Products with few rows whose right operand has long rows. Words of such rows are two neighbouring columns of one
//! product, not two products of one column: the left operand comes twice, with each number in the low and in the high
//! half of a word. That takes twice the multiplications, and no packing of the greater operand.

use super::super::{LANES, LINE, Unit};
use super::{TileShape, Vectors, WIDTH};
use std::mem::MaybeUninit;

/// Bytes of a tile of the left operand.
const TILE: usize = LANES * LINE;

/// Products of one block, as even as blocks of at most [`LANES`] can be, and how many blocks there are.
pub fn blocks(k: usize) -> (usize, usize) {
    let count = k.div_ceil(LANES);
    (k.div_ceil(count), count)
}

/// The first product of block `b`: the last block may overlap with the one before.
fn first(b: usize, k: usize) -> usize {
    let (depth, _) = blocks(k);
    (b * depth).min(k - depth)
}

/// Bytes of a packed tile of rows of the left operand.
pub fn packed_bytes(k: usize) -> usize {
    blocks(k).1 * 2 * TILE
}

/// Packs up to [`LANES`] rows of the left operand, `at(row, product)`.
///
/// # Safety
/// There is room for [`packed_bytes`] at `to`.
pub unsafe fn pack(rows: usize, k: usize, at: impl Fn(usize, usize) -> u16, to: *mut u8) {
    let (depth, count) = blocks(k);
    // SAFETY: the caller's room.
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

/// Where results go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    F32,
    /// Added to the f32 that are there.
    Sum,
    Bf16,
}

/// Up to [`LANES`] rows of the result.
pub struct Call {
    pub rows: usize,
    pub k: usize,
    /// As [`pack`] makes it.
    pub a: *const u8,
    /// The first product's row, and elements from product to product.
    pub b: *const u16,
    pub b_k: usize,
    /// A multiple of [`WIDTH`].
    pub columns: usize,
    pub to: To,
    pub c: *mut u8,
    /// Elements from row to row.
    pub c_row: usize,
}

/// The registers for so many rows and products.
pub fn shapes(rows: usize, k: usize) -> [TileShape; 8] {
    let (depth, _) = blocks(k);
    let (sums, left, right) = ((rows, LINE), (rows, 4 * depth), (depth, LINE));
    [sums, sums, left, left, right, sums, sums, sums]
}

/// See the module text.
///
/// # Safety
/// Operands and result are as the call says; registers are configured as [`shapes`] says for its `k` and no fewer rows
/// than its own; the unit and the vectors are available.
#[inline(always)]
pub(super) unsafe fn run<U: Unit, V: Vectors>(c: &Call) {
    let mut sums = [const { MaybeUninit::<f32>::uninit() }; 2 * LANES * LANES];
    let even = sums.as_mut_ptr().cast::<f32>();
    let odd = even.wrapping_add(LANES * LANES);
    // SAFETY: by the caller's promise.
    unsafe {
        for j in (0..c.columns).step_by(WIDTH) {
            U::zero::<0>();
            U::zero::<1>();
            let mut a = c.a;
            for block in 0..blocks(c.k).1 {
                U::load::<4>(c.b.add(first(block, c.k) * c.b_k + j).cast(), 2 * c.b_k);
                U::load::<2>(a, LINE);
                U::bf16::<0, 2, 4>();
                U::load::<3>(a.wrapping_add(TILE), LINE);
                U::bf16::<1, 3, 4>();
                a = a.wrapping_add(2 * TILE);
            }
            U::store::<0>(even.cast(), LINE);
            U::store::<1>(odd.cast(), LINE);
            for i in 0..c.rows {
                let (even, odd) = (even.add(i * LANES), odd.add(i * LANES));
                let at = i * c.c_row + j;
                match c.to {
                    To::F32 => V::store(even, odd, c.c.cast::<f32>().add(at)),
                    To::Sum => V::add(even, odd, c.c.cast::<f32>().add(at)),
                    To::Bf16 => V::narrow(even, odd, c.c.cast::<u16>().add(at)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::units;
    use super::*;
    use crate::kernels::math::{from_bf16, to_bf16};

    #[test]
    fn rows_and_products_of_every_count() {
        let numbers = |n: usize, by: usize| -> Vec<f32> {
            (0..n).map(|i| ((i * by + i / 13) % 7) as f32 - 3.0).collect()
        };
        for unit in units() {
            for (rows, k) in [(1, 1), (3, 2), (16, 10), (10, 63), (7, 17), (16, 64), (2, 33)] {
                let (columns, row) = (3 * WIDTH, 3 * WIDTH + 5);
                let (a, b, old) = (numbers(rows * k, 5), numbers(k * row, 3), numbers(rows * row, 4));
                let half = |x: &[f32]| x.iter().map(|&x| to_bf16(x)).collect::<Vec<u16>>();
                let (left, right) = (half(&a), half(&b));
                let mut packed = vec![0xffu8; packed_bytes(k)];
                // SAFETY: there is room for all of it.
                unsafe { pack(rows, k, |i, x| left[i * k + x], packed.as_mut_ptr()) };
                for to in [To::F32, To::Sum, To::Bf16] {
                    let (mut wide, mut narrow) = (old.clone(), half(&old));
                    let c = if to == To::Bf16 { narrow.as_mut_ptr().cast() } else { wide.as_mut_ptr().cast() };
                    let (a, b) = (packed.as_ptr(), right.as_ptr());
                    let call = Call { rows, k, a, b, b_k: row, columns, to, c, c_row: row };
                    {
                        let _registers = unit.configure(shapes(rows, k));
                        // SAFETY: all arrays have the sizes of the call.
                        unsafe { (unit.thin)(&call) };
                    }
                    for i in 0..rows * row {
                        let sum = |j: usize| -> f32 {
                            (0..k).map(|x| numbers(rows * k, 5)[i / row * k + x] * from_bf16(right[x * row + j])).sum()
                        };
                        let want = match (i % row < columns, to) {
                            (false, _) => old[i],
                            (_, To::Sum) => old[i] + sum(i % row),
                            _ => sum(i % row),
                        };
                        let got = if to == To::Bf16 { from_bf16(narrow[i]) } else { wide[i] };
                        let want = if to == To::Bf16 { from_bf16(to_bf16(want)) } else { want };
                        assert_eq!(got, want, "{rows}×{k} {to:?}, element {i}");
                    }
                }
            }
        }
    }
}
