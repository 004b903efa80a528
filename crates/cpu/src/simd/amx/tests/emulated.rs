//! Software emulation of AMX tile registers, as Intel's manual defines them, for tests.

use crate::simd::amx::kernels::{AmxKernels, UnitKernels};
use crate::simd::amx::tile::{LANES, LINE, TileConfig, TileDot, TileUnit, TileWork};
use crate::simd::gemm::GemmTile;
use std::cell::RefCell;

pub static EMULATED: AmxKernels = UnitKernels::<Emulated>::KERNELS;

type Register = [[u8; LINE]; LANES];

/// Configured rows, bytes per row, and contents of each register.
struct EmulatedTiles {
    shape: [(usize, usize); 8],
    registers: [Register; 8],
}

thread_local! {
    static STATE: RefCell<Option<EmulatedTiles>> = const { RefCell::new(None) };
}

impl EmulatedTiles {
    /// Runs `f` on this thread's registers, which must be configured.
    fn with<R>(f: impl FnOnce(&mut EmulatedTiles) -> R) -> R {
        STATE.with(|s| f(s.borrow_mut().as_mut().expect("tile registers are not configured")))
    }

    /// `C += A · B`; `row` computes one row of C from one row of A and all of B.
    fn dot(c: u8, a: u8, b: u8, row: impl Fn(&[[u8; 4]], &[Vec<[u8; 4]>], &mut [[u8; 4]])) {
        assert!(c != a && a != b && b != c, "registers {c}, {a} and {b}");
        EmulatedTiles::with(|s| {
            let [c, a, b] = [c, a, b].map(usize::from);
            let ((m, n), (rows, k)) = (s.shape[c], s.shape[a]);
            assert_eq!((m, k, n), (rows, 4 * s.shape[b].0, s.shape[b].1), "tile shapes do not match");
            let words = |r: &Register, rows: usize, bytes: usize| -> Vec<Vec<[u8; 4]>> {
                r[..rows].iter().map(|row| row[..bytes].as_chunks().0.to_vec()).collect()
            };
            let (left, right) = (words(&s.registers[a], m, k), words(&s.registers[b], k / 4, n));
            for (to, left) in s.registers[c].iter_mut().zip(&left) {
                row(left, &right, to[..n].as_chunks_mut().0);
            }
        });
    }

    fn bytes(c: u8, a: u8, b: u8, product: impl Fn(u8, u8) -> i32) {
        EmulatedTiles::dot(c, a, b, |left, right, sums| {
            for (j, sum) in sums.iter_mut().enumerate() {
                let mut y = i32::from_le_bytes(*sum);
                for (x, row) in left.iter().zip(right) {
                    for i in 0..4 {
                        y = y.wrapping_add(product(x[i], row[j][i]));
                    }
                }
                *sum = y.to_le_bytes();
            }
        });
    }
}

/// Flushes subnormals to zero.
fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

/// The `i`-th bf16 of a word, flushed.
fn half(word: [u8; 4], i: usize) -> f32 {
    flush(f32::from_le_bytes([0, 0, word[2 * i], word[2 * i + 1]]))
}

pub(crate) struct Emulated;

// SAFETY: accesses the same memory as the instructions.
unsafe impl TileUnit for Emulated {
    type Lanes = [f32; LANES];

    unsafe fn configure(config: &TileConfig) {
        assert_eq!((config.palette, config.start_row, config.reserved), (1, 0, [0; 14]));
        assert!(config.row_bytes[8..].iter().all(|&n| n == 0) && config.rows[8..].iter().all(|&n| n == 0));
        let shape = std::array::from_fn(|i| (config.rows[i].into(), config.row_bytes[i].into()));
        assert!(shape.iter().all(|&(rows, bytes)| (1..=LANES).contains(&rows) && bytes <= LINE), "{shape:?}");
        STATE.with(|s| *s.borrow_mut() = Some(EmulatedTiles { shape, registers: [[[0; LINE]; LANES]; 8] }));
    }

    unsafe fn release() {
        STATE.with(|s| *s.borrow_mut() = None);
    }

    unsafe fn zero<const T: u8>() {
        EmulatedTiles::with(|s| s.registers[usize::from(T)] = [[0; LINE]; LANES]);
    }

    unsafe fn load<const T: u8>(from: *const u8, row: usize) {
        EmulatedTiles::with(|s| {
            let (rows, bytes) = s.shape[usize::from(T)];
            let mut register = [[0; LINE]; LANES];
            for (i, to) in register.iter_mut().enumerate().take(rows) {
                // SAFETY: the caller's address covers the tile's rows.
                unsafe { std::ptr::copy_nonoverlapping(from.add(i * row), to.as_mut_ptr(), bytes) };
            }
            s.registers[usize::from(T)] = register;
        });
    }

    unsafe fn stream<const T: u8>(from: *const u8, row: usize) {
        // SAFETY: the caller's address covers the tile's rows.
        unsafe { Self::load::<T>(from, row) };
    }

    unsafe fn store<const T: u8>(to: *mut u8, row: usize) {
        EmulatedTiles::with(|s| {
            let (rows, bytes) = s.shape[usize::from(T)];
            for (i, from) in s.registers[usize::from(T)].iter().enumerate().take(rows) {
                // SAFETY: the caller's address covers the tile's rows.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.add(i * row), bytes) };
            }
        });
    }

    /// Even and odd products are summed separately by fused multiply-adds, and then added to the accumulator. Every
    /// result is rounded to nearest; subnormal operands and results are zero.
    unsafe fn bf16<const C: u8, const A: u8, const B: u8>() {
        EmulatedTiles::dot(C, A, B, |left, right, sums| {
            for (j, sum) in sums.iter_mut().enumerate() {
                let mut halves = [0f32; 2];
                for (x, row) in left.iter().zip(right) {
                    for (i, y) in halves.iter_mut().enumerate() {
                        *y = flush(half(*x, i).mul_add(half(row[j], i), *y));
                    }
                }
                let added = flush(halves[0] + halves[1]);
                *sum = flush(flush(f32::from_le_bytes(*sum)) + added).to_le_bytes();
            }
        });
    }

    unsafe fn signed<const C: u8, const A: u8, const B: u8>() {
        EmulatedTiles::bytes(C, A, B, |x, y| i32::from(x as i8) * i32::from(y as i8));
    }

    unsafe fn unsigned<const C: u8, const A: u8, const B: u8>() {
        EmulatedTiles::bytes(C, A, B, |x, y| i32::from(x) * i32::from(y));
    }

    unsafe fn run<D: TileDot>(t: &GemmTile<D::Sum>) {
        // SAFETY: guaranteed by the contract of `TileKernel`.
        unsafe { crate::simd::amx::tile::tile::<Emulated, D>(t) }
    }

    unsafe fn enter<W: TileWork>(work: &W) {
        // SAFETY: guaranteed by the contract of `TileWork`.
        unsafe { work.run::<Emulated>() }
    }
}
