//! Products by tile registers (AMX): bf16 with f32 sums, bytes with 32-bit sums, and f32 as three products of bf16.
//!
//! A tile register holds 16 rows of 64 bytes. One instruction multiplies 16 rows of 16 words of the left operand with 16
//! words of 16 columns of the right one; a word is two bf16 or four bytes. Kernels keep two by two tiles of sums
//! (registers 0 to 3); the left operand passes through registers 4 and 5, the right one through 6 and 7. Both are packed
//! so that a tile is a few whole cache lines ([`pack`]).
//!
//! The instructions are behind [`Unit`], so that tests run all of this on any machine with [`emulated`] tiles.
//! Tile registers belong to a thread and must be configured before use; whoever calls kernels does that
//! ([`Registers`]). The instructions round to nearest and treat numbers below the normal range as zero, whatever the
//! thread's floating-point mode.

#[cfg(test)]
mod emulated;
pub mod fused;
pub mod pack;
pub mod spread;
#[cfg(target_arch = "x86_64")]
mod unit;

#[cfg(test)]
pub use crate::simd::amx::emulated::EMULATED;

use crate::simd::amx::spread::{Lanes, Spread, Work};
use crate::simd::gemm::{Element, Left, Registers, Shape, Table, Tile, TileKernel, UNROLLED};
use crate::simd::level::Level;
use crate::simd::math;
use crate::simd::pack::{PackFn, PanelArgs};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use systole_ir::DType;

/// Rows of a tile register, and 32-bit numbers of one of its rows.
pub const LANES: usize = 16;
/// Bytes of a row.
pub const LINE: usize = 64;
/// Steps of a block: the longer, the less often sums are read and written, but a panel of the left operand has to stay in
/// the first cache.
const CHAIN: usize = 256;

/// What `ldtilecfg` loads.
#[repr(C, align(64))]
pub(crate) struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Config {
    /// For panels of `height` rows: one tile, or two of half the height.
    fn of(height: usize) -> Config {
        Config::of_rows(tile_rows(height))
    }

    /// For left tiles of so many rows.
    fn of_rows(rows: usize) -> Config {
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

struct Bf16;
impl Dot for Bf16 {
    type Sum = f32;
    #[inline(always)]
    unsafe fn dot<U: Unit, const C: u8, const A: u8, const B: u8>() {
        // SAFETY: the caller's promise.
        unsafe { U::bf16::<C, A, B>() }
    }
}

struct Signed;
impl Dot for Signed {
    type Sum = i32;
    #[inline(always)]
    unsafe fn dot<U: Unit, const C: u8, const A: u8, const B: u8>() {
        // SAFETY: the caller's promise.
        unsafe { U::signed::<C, A, B>() }
    }
}

struct Unsigned;
impl Dot for Unsigned {
    type Sum = i32;
    #[inline(always)]
    unsafe fn dot<U: Unit, const C: u8, const A: u8, const B: u8>() {
        // SAFETY: the caller's promise.
        unsafe { U::unsigned::<C, A, B>() }
    }
}

/// f32 as the sum of two bf16: high by high, high by low and low by high. What is left out is some 2⁻¹⁶ of a product.
struct Split;
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
            prefetch(self.ahead);
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
unsafe fn dots<U: Unit, D: Dot + ?Sized, const R: bool, const C: bool>() {
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
unsafe fn tile<U: Unit, D: Dot>(t: &Tile<D::Sum>) {
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

/// Asks for a cache line for the second cache: into the first one it would drive out what is in use.
#[inline(always)]
fn prefetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; SSE is part of the architecture.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(p.cast())
    };
    let _ = p;
}

/// The kernels of one unit.
#[derive(Clone, Copy)]
pub struct Kernels {
    pub bf16: Shape<f32>,
    /// Of f32, see [`Split`].
    pub split: Shape<f32>,
    pub signed: Shape<i32>,
    pub unsigned: Shape<i32>,
    /// Products of bf16 with operands in place.
    pub spread: Spread,
    /// So many times [`AT_MOST`] products of registers alone, of bf16 and of bytes: what the unit can do at most.
    pub at_most: [unsafe fn(usize); 2],
}

/// Operations that [`Kernels::at_most`] does each time, of bf16 and of bytes: on four tiles of sums.
pub const AT_MOST: [usize; 2] = [LANES.pow(3) * 4 * 2 * 2, LANES.pow(3) * 4 * 4 * 2];

/// Products of what is in the registers.
struct Rounds<D>(usize, PhantomData<D>);

impl<D: Dot> Work for Rounds<D> {
    #[inline(always)]
    unsafe fn run<U: Unit>(&self) {
        // SAFETY: by the promise of `Work`; all registers are set.
        unsafe {
            U::zero::<0>();
            U::zero::<1>();
            U::zero::<2>();
            U::zero::<3>();
            U::zero::<4>();
            U::zero::<5>();
            U::zero::<6>();
            U::zero::<7>();
            for _ in 0..self.0 {
                dots::<U, D, true, true>();
            }
        }
    }
}

unsafe fn at_most<U: Unit, D: Dot>(times: usize) {
    // SAFETY: the caller's machine has the unit.
    unsafe {
        configure::<U>(2 * LANES);
        U::enter(&Rounds::<D>(times, PhantomData));
        U::release();
    }
}

/// What is made of a unit, and of one kind of its products.
struct Of<U, D = ()>(PhantomData<(U, D)>);

impl<U: Unit, D: Dot> Of<U, D> {
    const TABLE: Table<D::Sum> =
        Table { packed: &[U::run::<D> as TileKernel<D::Sum>; 2 * LANES], strided: &[] };
    const SHAPE: Shape<D::Sum> = {
        let registers = Registers { configure: configure::<U>, release: U::release };
        Shape::tiled(&Self::TABLE, LANES, (CHAIN, D::UNIT), registers)
    };
}

impl<U: Unit> Of<U> {
    const KERNELS: Kernels = Kernels {
        bf16: Of::<U, Bf16>::SHAPE,
        split: Of::<U, Split>::SHAPE,
        signed: Of::<U, Signed>::SHAPE,
        unsigned: Of::<U, Unsigned>::SHAPE,
        spread: Spread::of::<U>(),
        at_most: [at_most::<U, Bf16>, at_most::<U, Signed>],
    };
}

unsafe fn configure<U: Unit>(height: usize) {
    // SAFETY: the caller's machine has the unit.
    unsafe { U::configure(&Config::of(height)) };
}

/// The kernels of a level, if it has tile registers.
pub fn kernels_of(level: Level) -> Option<&'static Kernels> {
    #[cfg(target_arch = "x86_64")]
    if level == Level::Amx {
        return Some(&unit::HARDWARE);
    }
    let _ = level;
    None
}

/// Whether this machine has tile registers, this process may use them, and they compute what they should. The first
/// call finds out.
#[cfg(target_arch = "x86_64")]
pub fn is_available() -> bool {
    use std::sync::OnceLock;
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        if !unit::permitted() {
            return false;
        }
        let right = computes_right(&unit::HARDWARE);
        if !right {
            systole_runtime::event::emit(1, || {
                "this machine's AMX instructions give wrong sums: products go without them".to_string()
            });
        }
        right
    })
}

/// Compares small products of whole numbers with sums computed otherwise: a virtual machine that has the instructions
/// but not their effect must not spoil results.
fn computes_right(kernels: &Kernels) -> bool {
    let pair = |x: i32| u32::from(math::to_bf16(x as f32));
    let byte = |x: i32| u32::from(x as u8);
    trial(&kernels.bf16, DType::BF16, (-5, 11), pair, |sum| sum as f32)
        && trial(&kernels.signed, DType::I8, (-120, 241), byte, |sum| sum)
        && trial(&kernels.unsigned, DType::U8, (0, 241), byte, |sum| sum)
}

/// Whether one product of `[32, K]` and `[K, 32]` comes out right. Its elements are `count` whole numbers from `least`
/// on, `stored` says how many bytes of their `bits` are stored.
fn trial<T: Element + PartialEq>(
    shape: &Shape<T>,
    stored: DType,
    (least, count): (i32, usize),
    bits: impl Fn(i32) -> u32,
    number: impl Fn(i32) -> T,
) -> bool {
    const SIZE: usize = 2 * LANES;
    let k = 3 * LANES;
    let products = k * 4 / stored.size();
    let lanes = |by: usize| -> Vec<i32> {
        (0..SIZE * products).map(|i| least + (i * by % 1009 % count) as i32).collect()
    };
    let packed = |lanes: &[i32], pack: PackFn<T>| -> Vec<T> {
        let bytes = |&x: &i32| bits(x).to_le_bytes().into_iter().take(stored.size());
        let from: Vec<u8> = lanes.iter().flat_map(bytes).collect();
        let mut to = vec![T::default(); SIZE * k];
        let (step, lane) = (stored.size(), products * stored.size());
        let (src, dst) = (from.as_ptr(), to.as_mut_ptr());
        let panel = PanelArgs { src, lane, step, lanes: SIZE, fill: SIZE, k, products, dst, stride: SIZE };
        // SAFETY: source and destination have these lanes and steps.
        unsafe { pack(&[panel]) };
        to
    };
    let Some([pack_left, pack_right]) = pack::packs(stored, Level::Portable) else { return false };
    let (rows, columns) = (lanes(7), lanes(11));
    let (a, b) = (packed(&rows, pack_left), packed(&columns, pack_right));
    let mut c = [T::default(); SIZE * SIZE];
    let tile = Tile {
        k,
        rows: SIZE,
        a: a.as_ptr(),
        a_row: 1,
        a_k: SIZE,
        b: b.as_ptr(),
        b_k: SIZE,
        padded: true,
        from: std::ptr::null(),
        from_row: 0,
        c: c.as_mut_ptr(),
        c_row: SIZE,
        padded_sums: [true; 2],
        bias: std::ptr::null(),
        columns: SIZE,
        ahead: a.as_ptr(),
        ahead_step: 0,
    };
    if let Some(registers) = shape.registers {
        // SAFETY: the caller's kernels are of this machine; operands and result have the tile's sizes.
        unsafe {
            (registers.configure)(SIZE);
            shape.kernel(SIZE, Left::Packed, SIZE)(&tile);
            (registers.release)();
        }
    }
    let exact = |i: usize| -> i32 {
        let (row, column) = (&rows[i / SIZE * products..], &columns[i % SIZE * products..]);
        row.iter().zip(column).take(products).map(|(a, b)| a * b).sum()
    };
    c.iter().enumerate().all(|(i, c)| *c == number(exact(i)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_unit_is_found_out() {
        assert!(computes_right(&EMULATED));
        // Bytes above 127 are taken as negative ones.
        let wrong = Kernels { unsigned: EMULATED.signed, ..EMULATED };
        assert!(!computes_right(&wrong));
        let wrong = Kernels { bf16: EMULATED.split, ..EMULATED };
        assert!(!computes_right(&wrong));
    }

    #[test]
    fn registers_alone_multiply_what_is_counted() {
        // 16 by 16 sums of 32 products of bf16, or 64 of bytes, in each of four tiles.
        assert_eq!(AT_MOST, [4 * 16 * 16 * 32 * 2, 4 * 16 * 16 * 64 * 2]);
        for at_most in EMULATED.at_most {
            // SAFETY: emulated registers are everywhere.
            unsafe { at_most(3) };
        }
        assert!(computes_right(&EMULATED), "registers were left as they must be");
    }
}
