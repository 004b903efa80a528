//! The ground of all kernels on tile registers: the instructions ([`Unit`]), their configuration, kinds of products
//! ([`Dot`]), and the microkernel of packed operands ([`tile`]).

use crate::simd::gemm::{Element, Tile, UNROLLED};
use crate::simd::prefetch::prefetch_far;
use std::mem::MaybeUninit;

/// Rows of a tile register, and 32-bit numbers of one of its rows.
pub const LANES: usize = 16;
/// Bytes of a row.
pub const LINE: usize = 64;
/// Columns that most fused kernels take at a time: two vectors of f32, one of bf16.
pub const WIDTH: usize = 32;

/// Rows of a tile register and bytes of one of its rows.
pub type TileShape = (usize, usize);

/// What `ldtilecfg` loads.
#[repr(C, align(64))]
pub(crate) struct Config {
    pub(crate) palette: u8,
    pub(crate) start_row: u8,
    pub(crate) reserved: [u8; 14],
    pub(crate) row_bytes: [u16; 16],
    pub(crate) rows: [u8; 16],
}

impl Config {
    /// For panels of `height` rows: one tile, or two of half the height.
    pub(crate) fn of(height: usize) -> Config {
        Config::of_rows(tile_rows(height))
    }

    /// For left tiles of so many rows.
    pub(crate) fn of_rows(rows: usize) -> Config {
        let rows = rows as u8;
        let mut config =
            Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        config.row_bytes[..8].fill(LINE as u16);
        config.rows[..6].fill(rows);
        config.rows[6..8].fill(LANES as u8);
        config
    }
}

/// Rows of each tile of a panel.
fn tile_rows(height: usize) -> usize {
    if height > LANES { height / 2 } else { height }
}

/// The instructions on tile registers, which are named by number.
///
/// # Safety
/// `configure` needs a machine that has them; all others a configured thread. Addresses cover the rows of the tile,
/// `row` bytes apart. Registers of one multiplication differ.
pub(crate) unsafe trait Unit: 'static {
    /// Vectors of such machines.
    type Lanes: Lanes;
    unsafe fn configure(config: &Config);
    unsafe fn release();
    unsafe fn zero<const T: u8>();
    unsafe fn load<const T: u8>(from: *const u8, row: usize);
    /// As `load`, for what is used once.
    unsafe fn stream<const T: u8>(from: *const u8, row: usize);
    unsafe fn store<const T: u8>(to: *mut u8, row: usize);
    /// `C += A · B` of pairs of bf16, of signed and of unsigned bytes.
    unsafe fn bf16<const C: u8, const A: u8, const B: u8>();
    unsafe fn signed<const C: u8, const A: u8, const B: u8>();
    unsafe fn unsigned<const C: u8, const A: u8, const B: u8>();
    /// [`tile`], compiled for machines that have the unit.
    unsafe fn run<D: Dot>(t: &Tile<D::Sum>);
    /// Other work, compiled so.
    unsafe fn enter<W: Work>(work: &W);
}

/// A kind of product.
pub(crate) trait Dot: 'static {
    type Sum: Element;
    /// Steps that one round of a kernel takes.
    const UNIT: usize = LANES;
    unsafe fn dot<U: Unit, const C: u8, const A: u8, const B: u8>();

    /// `count` rounds: all words of the left operand's tiles by those of the right one's. A register is loaded for the
    /// next round as soon as this one has used it, so that loads from the second cache wait beside products.
    #[inline(always)]
    unsafe fn rounds<U: Unit, const R: bool, const C: bool>(t: &mut Tiles, count: usize) {
        if count == 0 {
            return;
        }
        // SAFETY: the caller's tiles.
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

pub(crate) struct Bf16;
impl Dot for Bf16 {
    type Sum = f32;
    #[inline(always)]
    unsafe fn dot<U: Unit, const C: u8, const A: u8, const B: u8>() {
        // SAFETY: the caller's promise.
        unsafe { U::bf16::<C, A, B>() }
    }
}

pub(crate) struct Signed;
impl Dot for Signed {
    type Sum = i32;
    #[inline(always)]
    unsafe fn dot<U: Unit, const C: u8, const A: u8, const B: u8>() {
        // SAFETY: the caller's promise.
        unsafe { U::signed::<C, A, B>() }
    }
}

pub(crate) struct Unsigned;
impl Dot for Unsigned {
    type Sum = i32;
    #[inline(always)]
    unsafe fn dot<U: Unit, const C: u8, const A: u8, const B: u8>() {
        // SAFETY: the caller's promise.
        unsafe { U::unsigned::<C, A, B>() }
    }
}

/// f32 as the sum of two bf16: high by high, high by low and low by high. What is left out is some 2⁻¹⁶ of a product.
pub(crate) struct Split;
impl Dot for Split {
    type Sum = f32;
    const UNIT: usize = 2 * LANES;
    #[inline(always)]
    unsafe fn dot<U: Unit, const C: u8, const A: u8, const B: u8>() {
        // SAFETY: the caller's promise.
        unsafe { U::bf16::<C, A, B>() }
    }

    #[inline(always)]
    unsafe fn rounds<U: Unit, const R: bool, const C: bool>(t: &mut Tiles, count: usize) {
        for _ in 0..count {
            // SAFETY: the caller's tiles; each operand's high half is followed by its low half. Small products come first.
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

/// Packed operands of a round and of those that follow, in bytes.
pub(crate) struct Tiles {
    a: *const u8,
    /// From one tile of the left operand to the next, and to the other half of split numbers.
    a_tile: usize,
    a_plane: usize,
    /// Of a step.
    a_step: usize,
    b: *const u8,
    b_row: usize,
    ahead: *const u8,
    ahead_step: usize,
}

impl Tiles {
    /// To the next round, some steps further on, while what is needed later is asked for.
    #[inline(always)]
    fn advance(&mut self, steps: usize) {
        self.a = self.a.wrapping_add(steps * self.a_step);
        self.b = self.b.wrapping_add(steps * self.b_row);
        for _ in 0..steps / UNROLLED {
            prefetch_far(self.ahead);
            self.ahead = self.ahead.wrapping_add(self.ahead_step);
        }
    }

    /// Loads the left operand; `R`: two tiles.
    #[inline(always)]
    unsafe fn left<U: Unit, const R: bool>(&self, plane: usize) {
        let a = self.a.wrapping_add(plane * self.a_plane);
        // SAFETY: the caller's tiles.
        unsafe {
            U::load::<4>(a, LINE);
            if R {
                U::load::<5>(a.wrapping_add(self.a_tile), LINE);
            }
        }
    }

    /// Loads the right operand, of which another panel follows; `C`: two tiles.
    #[inline(always)]
    unsafe fn right<U: Unit, const C: bool>(&self, plane: usize) {
        let b = self.b.wrapping_add(plane * LANES * self.b_row);
        // SAFETY: the caller's tiles.
        unsafe {
            U::stream::<6>(b, self.b_row);
            if C {
                U::stream::<7>(b.wrapping_add(LINE), self.b_row);
            }
        }
    }
}

#[inline(always)]
pub(crate) unsafe fn dots<U: Unit, D: Dot + ?Sized, const R: bool, const C: bool>() {
    // SAFETY: the caller's promise.
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

/// Does something with each tile of sums: its register, and its offset where rows are `row` bytes apart.
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

/// A register kernel for packed operands of any number of rows and columns.
#[inline(always)]
pub(crate) unsafe fn tile<U: Unit, D: Dot>(t: &Tile<D::Sum>) {
    // SAFETY: the caller's promise.
    unsafe {
        match (t.a_k > LANES, t.b_k > LANES) {
            (true, true) => tiles::<U, D, true, true>(t),
            (true, false) => tiles::<U, D, true, false>(t),
            (false, true) => tiles::<U, D, false, true>(t),
            (false, false) => tiles::<U, D, false, false>(t),
        }
    }
}

/// As [`tile`]; `R`: two tiles of rows, `C`: two tiles of columns.
#[inline(always)]
unsafe fn tiles<U: Unit, D: Dot, const R: bool, const C: bool>(t: &Tile<D::Sum>) {
    let (height, width, rows) = (t.a_k, t.b_k, tile_rows(t.a_k));
    let whole = t.rows == height && t.columns == width;
    let loads = !t.from.is_null() && (whole || t.padded_sums[0]);
    // SAFETY: by the promise of `TileKernel`: packed operands cover whole tiles, sums too where so much is said.
    unsafe {
        each_tile!(R, C, rows, t.from_row * 4, |T, at| {
            if loads {
                U::load::<T>(t.from.cast::<u8>().wrapping_add(at), t.from_row * 4);
            } else {
                U::zero::<T>();
            }
        });
        let mut round = Tiles {
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
        // Rows that lie apart are written by vectors: the lines of a tile would share few places of the first cache.
        let mut sums = Sums::<D::Sum>::new();
        let (c, row) = (sums.0.as_mut_ptr().cast::<u8>(), 2 * LINE);
        each_tile!(R, C, rows, row, |T, at| U::store::<T>(c.wrapping_add(at), row));
        finish(t, &sums, !complete);
    }
}

/// Up to two by two tiles of sums.
#[repr(align(64))]
struct Sums<T>([MaybeUninit<T>; 4 * LANES * LANES]);

impl<T: Element> Sums<T> {
    #[inline(always)]
    fn new() -> Sums<T> {
        Sums([const { MaybeUninit::uninit() }; 4 * LANES * LANES])
    }
}

/// Writes rows and columns that exist; with `add`, the sums so far are not yet in them.
#[inline(always)]
unsafe fn finish<T: Element>(t: &Tile<T>, sums: &Sums<T>, add: bool) {
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

/// What is compiled for machines that have a unit.
pub(crate) trait Work: 'static {
    /// # Safety
    /// Registers are configured, and addresses cover what the numbers say.
    unsafe fn run<U: Unit>(&self);
}

/// Sixteen numbers.
pub(crate) trait Lanes: Copy {
    /// As many bf16.
    type Narrow: Copy;

    fn zero() -> Self;
    unsafe fn load(p: *const f32) -> Self;
    /// Stores the first `n`.
    unsafe fn store(self, p: *mut f32, n: usize);
    /// Stores the first `n`.
    unsafe fn store_narrow(bits: Self::Narrow, p: *mut u16, n: usize);
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn scale(self, by: f32) -> Self;
    fn mul_add(self, by: Self, other: Self) -> Self;
    /// To the nearest bf16.
    fn narrow(self) -> Self::Narrow;
    fn widen(bits: Self::Narrow) -> Self;
}
