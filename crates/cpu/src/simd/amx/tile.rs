//! AMX instruction abstraction ([`TileUnit`]), tile configuration, dot-product kinds, and the packed GEMM microkernel.

use crate::simd::gemm::{GemmElement, GemmTile, UNROLLED};
use crate::simd::prefetch::prefetch_far;
use std::mem::MaybeUninit;

/// Rows of a tile register, and 32-bit elements per row.
pub const LANES: usize = 16;
/// Bytes per row of a tile register.
pub const LINE: usize = 64;
/// Columns that most fused kernels compute at a time: two vectors of f32, one of bf16.
pub const WIDTH: usize = 32;

/// Shape of a tile register: rows, and bytes per row.
pub type TileShape = (usize, usize);

/// Tile configuration: the operand of `ldtilecfg`.
#[repr(C, align(64))]
pub(crate) struct TileConfig {
    pub(crate) palette: u8,
    pub(crate) start_row: u8,
    pub(crate) reserved: [u8; 14],
    pub(crate) row_bytes: [u16; 16],
    pub(crate) rows: [u8; 16],
}

impl TileConfig {
    /// Returns the configuration for A panels of `height` rows: one tile, or two of half the height.
    pub(crate) fn of(height: usize) -> TileConfig {
        TileConfig::of_rows(tile_rows(height))
    }

    /// Returns the configuration for A tiles of `rows` rows.
    pub(crate) fn of_rows(rows: usize) -> TileConfig {
        let rows = rows as u8;
        let mut config =
            TileConfig { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        config.row_bytes[..8].fill(LINE as u16);
        config.rows[..6].fill(rows);
        config.rows[6..8].fill(LANES as u8);
        config
    }
}

/// Returns the rows of each A tile of a panel.
fn tile_rows(height: usize) -> usize {
    if height > LANES { height / 2 } else { height }
}

/// Instructions on tile registers; registers are named by number.
///
/// # Safety
/// `configure` needs a machine with tile registers; all other methods need a configured thread. Addresses cover the
/// tile's rows, which are `row` bytes apart. The registers of one multiplication are distinct.
pub(crate) unsafe trait TileUnit: 'static {
    /// 512-bit vectors of such machines.
    type Lanes: F32x16;
    unsafe fn configure(config: &TileConfig);
    unsafe fn release();
    unsafe fn zero<const T: u8>();
    unsafe fn load<const T: u8>(from: *const u8, row: usize);
    /// Like `load`, for data used once (non-temporal hint).
    unsafe fn stream<const T: u8>(from: *const u8, row: usize);
    unsafe fn store<const T: u8>(to: *mut u8, row: usize);
    /// `C += A · B` on pairs of bf16, on int8, and on uint8.
    unsafe fn bf16<const C: u8, const A: u8, const B: u8>();
    unsafe fn signed<const C: u8, const A: u8, const B: u8>();
    unsafe fn unsigned<const C: u8, const A: u8, const B: u8>();
    /// Runs [`tile`], compiled with the unit's target features.
    unsafe fn run<D: TileDot>(t: &GemmTile<D::Sum>);
    /// Runs other code, compiled with the unit's target features.
    unsafe fn enter<W: TileWork>(work: &W);
}

/// Kind of dot product: element types and the instruction for them.
pub(crate) trait TileDot: 'static {
    type Sum: GemmElement;
    /// Words along K that one iteration of a kernel consumes.
    const UNIT: usize = LANES;
    unsafe fn dot<U: TileUnit, const C: u8, const A: u8, const B: u8>();

    /// Runs `count` iterations over K. A register is reloaded for the next iteration as soon as its last product has
    /// been issued, so that loads from L2 overlap with multiplications.
    #[inline(always)]
    unsafe fn rounds<U: TileUnit, const R: bool, const C: bool>(t: &mut PackedTiles, count: usize) {
        if count == 0 {
            return;
        }
        // SAFETY: the caller's packed operands cover these tiles.
        unsafe {
            t.right::<U, C>(0);
            t.left::<U, R>(0);
            for _ in 1..count {
                t.advance(Self::UNIT);
                Self::dot::<U, 0, 4, 6>();
                if R {
                    Self::dot::<U, 2, 5, 6>();
                }
                U::stream::<6>(t.b, t.b_row);
                if C {
                    Self::dot::<U, 1, 4, 7>();
                }
                U::load::<4>(t.a, LINE);
                if R && C {
                    Self::dot::<U, 3, 5, 7>();
                }
                if C {
                    U::stream::<7>(t.b.wrapping_add(LINE), t.b_row);
                }
                if R {
                    U::load::<5>(t.a.wrapping_add(t.a_tile), LINE);
                }
            }
            t.advance(Self::UNIT);
            dots::<U, Self, R, C>();
        }
    }
}

pub(crate) struct Bf16Dot;
impl TileDot for Bf16Dot {
    type Sum = f32;
    #[inline(always)]
    unsafe fn dot<U: TileUnit, const C: u8, const A: u8, const B: u8>() {
        // SAFETY: the caller guarantees configured registers.
        unsafe { U::bf16::<C, A, B>() }
    }
}

pub(crate) struct SignedDot;
impl TileDot for SignedDot {
    type Sum = i32;
    #[inline(always)]
    unsafe fn dot<U: TileUnit, const C: u8, const A: u8, const B: u8>() {
        // SAFETY: the caller guarantees configured registers.
        unsafe { U::signed::<C, A, B>() }
    }
}

pub(crate) struct UnsignedDot;
impl TileDot for UnsignedDot {
    type Sum = i32;
    #[inline(always)]
    unsafe fn dot<U: TileUnit, const C: u8, const A: u8, const B: u8>() {
        // SAFETY: the caller guarantees configured registers.
        unsafe { U::unsigned::<C, A, B>() }
    }
}

/// f32 as the sum of two bf16: high·high + high·low + low·high. The omitted low·low is about 2⁻¹⁶ of a product.
pub(crate) struct SplitF32Dot;
impl TileDot for SplitF32Dot {
    type Sum = f32;
    const UNIT: usize = 2 * LANES;
    #[inline(always)]
    unsafe fn dot<U: TileUnit, const C: u8, const A: u8, const B: u8>() {
        // SAFETY: the caller guarantees configured registers.
        unsafe { U::bf16::<C, A, B>() }
    }

    #[inline(always)]
    unsafe fn rounds<U: TileUnit, const R: bool, const C: bool>(t: &mut PackedTiles, count: usize) {
        for _ in 0..count {
            // Order: low·high, high·high, high·low. Only one operand is reloaded between two of them.
            // SAFETY: the caller's tiles; in each operand the plane of high parts is followed by that of low parts.
            unsafe {
                t.left::<U, R>(1);
                t.right::<U, C>(0);
                dots::<U, Self, R, C>();
                t.left::<U, R>(0);
                dots::<U, Self, R, C>();
                t.right::<U, C>(1);
                dots::<U, Self, R, C>();
            }
            t.advance(Self::UNIT);
        }
    }
}

/// Position in the packed operands; strides in bytes.
pub(crate) struct PackedTiles {
    a: *const u8,
    /// Bytes between A tiles, and between the high and low planes of split numbers.
    a_tile: usize,
    a_plane: usize,
    /// Bytes per word along K.
    a_step: usize,
    b: *const u8,
    b_row: usize,
    ahead: *const u8,
    ahead_step: usize,
}

impl PackedTiles {
    /// Advances by `steps` words along K, and prefetches.
    #[inline(always)]
    fn advance(&mut self, steps: usize) {
        self.a = self.a.wrapping_add(steps * self.a_step);
        self.b = self.b.wrapping_add(steps * self.b_row);
        for _ in 0..steps / UNROLLED {
            prefetch_far(self.ahead);
            self.ahead = self.ahead.wrapping_add(self.ahead_step);
        }
    }

    /// Loads the A tiles; `R`: whether there are two.
    #[inline(always)]
    unsafe fn left<U: TileUnit, const R: bool>(&self, plane: usize) {
        let a = self.a.wrapping_add(plane * self.a_plane);
        // SAFETY: the caller's packed operands cover these tiles.
        unsafe {
            U::load::<4>(a, LINE);
            if R {
                U::load::<5>(a.wrapping_add(self.a_tile), LINE);
            }
        }
    }

    /// Loads the B tiles; `C`: whether there are two.
    #[inline(always)]
    unsafe fn right<U: TileUnit, const C: bool>(&self, plane: usize) {
        let b = self.b.wrapping_add(plane * LANES * self.b_row);
        // SAFETY: the caller's packed operands cover these tiles.
        unsafe {
            U::stream::<6>(b, self.b_row);
            if C {
                U::stream::<7>(b.wrapping_add(LINE), self.b_row);
            }
        }
    }
}

#[inline(always)]
pub(crate) unsafe fn dots<U: TileUnit, D: TileDot + ?Sized, const R: bool, const C: bool>() {
    // SAFETY: the caller guarantees configured registers.
    unsafe {
        D::dot::<U, 0, 4, 6>();
        if C {
            D::dot::<U, 1, 4, 7>();
        }
        if R {
            D::dot::<U, 2, 5, 6>();
        }
        if R && C {
            D::dot::<U, 3, 5, 7>();
        }
    }
}

/// Runs `body` for each accumulator tile: its register, and its offset if rows are `row` bytes apart.
macro_rules! each_tile {
    ($r:ident, $c:ident, $rows:expr, $row:expr, |$t:ident, $at:ident| $body:expr) => {{
        let (down, across) = ($rows * $row, LINE);
        each_tile!(@ 0, $t, $at, 0, $body);
        if $c {
            each_tile!(@ 1, $t, $at, across, $body);
        }
        if $r {
            each_tile!(@ 2, $t, $at, down, $body);
        }
        if $r && $c {
            each_tile!(@ 3, $t, $at, down + across, $body);
        }
    }};
    (@ $n:literal, $t:ident, $at:ident, $offset:expr, $body:expr) => {{
        const $t: u8 = $n;
        let $at: usize = $offset;
        $body
    }};
}

/// GEMM microkernel for packed operands of up to two by two tiles.
#[inline(always)]
pub(crate) unsafe fn tile<U: TileUnit, D: TileDot>(t: &GemmTile<D::Sum>) {
    // SAFETY: `TileKernel`'s contract, and configured registers.
    unsafe {
        match (t.a_k > LANES, t.b_k > LANES) {
            (true, true) => tiles::<U, D, true, true>(t),
            (true, false) => tiles::<U, D, true, false>(t),
            (false, true) => tiles::<U, D, false, true>(t),
            (false, false) => tiles::<U, D, false, false>(t),
        }
    }
}

/// Like [`tile`]; `R`: two tiles of rows, `C`: two tiles of columns.
#[inline(always)]
unsafe fn tiles<U: TileUnit, D: TileDot, const R: bool, const C: bool>(t: &GemmTile<D::Sum>) {
    let (height, width, rows) = (t.a_k, t.b_k, tile_rows(t.a_k));
    let whole = t.rows == height && t.columns == width;
    let loads = !t.from.is_null() && (whole || t.padded_sums[0]);
    // SAFETY: guaranteed by the contract of `TileKernel`: packed operands cover whole tiles; so do `from` and `c` if
    // `padded_sums` is set.
    unsafe {
        each_tile!(R, C, rows, t.from_row * 4, |T, at| {
            if loads {
                U::load::<T>(t.from.cast::<u8>().wrapping_add(at), t.from_row * 4);
            } else {
                U::zero::<T>();
            }
        });
        let mut round = PackedTiles {
            a: t.a.cast(),
            a_tile: rows * LINE,
            a_plane: height * LINE,
            a_step: height * 4,
            b: t.b.cast(),
            b_row: width * 4,
            ahead: t.ahead.cast(),
            ahead_step: t.ahead_step * 4,
        };
        D::rounds::<U, R, C>(&mut round, t.k / D::UNIT);
        let complete = loads || t.from.is_null();
        if complete && t.bias.is_null() && t.padded_sums[1] {
            let (c, row) = (t.c.cast::<u8>(), t.c_row * 4);
            each_tile!(R, C, rows, row, |T, at| U::store::<T>(c.wrapping_add(at), row));
            return;
        }
        // Stored through a buffer: the rows of C may map to few sets of L1.
        let mut sums = AccumulatorTiles::<D::Sum>::new();
        let (c, row) = (sums.0.as_mut_ptr().cast::<u8>(), 2 * LINE);
        each_tile!(R, C, rows, row, |T, at| U::store::<T>(c.wrapping_add(at), row));
        finish(t, &sums, !complete);
    }
}

/// Buffer of up to two by two accumulator tiles.
#[repr(align(64))]
struct AccumulatorTiles<T>([MaybeUninit<T>; 4 * LANES * LANES]);

impl<T: GemmElement> AccumulatorTiles<T> {
    #[inline(always)]
    fn new() -> AccumulatorTiles<T> {
        AccumulatorTiles([const { MaybeUninit::uninit() }; 4 * LANES * LANES])
    }
}

/// Writes the rows and columns that exist. `add`: partial sums have not been added yet.
#[inline(always)]
unsafe fn finish<T: GemmElement>(t: &GemmTile<T>, sums: &AccumulatorTiles<T>, add: bool) {
    let sums = sums.0.as_ptr().cast::<T>();
    for i in 0..t.rows {
        // SAFETY: rows and columns are those of the tile; all its sums were stored.
        unsafe {
            let (sums, c) = (sums.add(i * 2 * LANES), t.c.add(i * t.c_row));
            for j in 0..t.columns {
                let mut y = *sums.add(j);
                if add {
                    y = (*t.from.add(i * t.from_row + j)).plus(y);
                }
                if !t.bias.is_null() {
                    y = y.plus(*t.bias.add(j));
                }
                c.add(j).write(y);
            }
        }
    }
}

/// Code that is compiled with a unit's target features.
pub(crate) trait TileWork: 'static {
    /// # Safety
    /// Registers are configured, and addresses cover the given sizes.
    unsafe fn run<U: TileUnit>(&self);
}

/// Vector of sixteen f32.
pub(crate) trait F32x16: Copy {
    /// Vector of sixteen bf16.
    type Narrow: Copy;

    fn zero() -> Self;
    unsafe fn load(p: *const f32) -> Self;
    /// Stores the first `n` lanes.
    unsafe fn store(self, p: *mut f32, n: usize);
    /// Stores the first `n` lanes of a bf16 vector.
    unsafe fn store_narrow(bits: Self::Narrow, p: *mut u16, n: usize);
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn scale(self, by: f32) -> Self;
    fn mul_add(self, by: Self, other: Self) -> Self;
    /// Rounds to the nearest bf16.
    fn narrow(self) -> Self::Narrow;
    fn widen(bits: Self::Narrow) -> Self;
}
