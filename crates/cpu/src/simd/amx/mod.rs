//! AMX GEMM kernels: bf16 with f32 accumulators, int8 with i32 accumulators, and f32 as three bf16 products.
//!
//! A tile register holds 16 rows of 64 bytes. One instruction multiplies 16 rows of 16 words of A by 16 words of 16
//! columns of B; a word is two bf16 or four bytes along K. Kernels keep two by two accumulator tiles (registers 0 to
//! 3); A is loaded to registers 4 and 5, B to registers 6 and 7. Both are packed so that a tile is consecutive cache
//! lines ([`pack`]).
//!
//! The instructions are behind [`TileUnit`], so that tests run all kernels on any machine with [`emulated`] tiles. Tile
//! registers belong to a thread and must be configured before use, which is the caller's task ([`TileRegisters`]). The
//! instructions round to nearest and flush subnormal numbers to zero, whatever the thread's floating-point mode.

#[cfg(test)]
#[path = "tests/emulated.rs"]
mod emulated;
pub mod fused;
pub mod int8;
mod kernels;
pub mod pack;
pub mod strided;
mod tile;
#[cfg(target_arch = "x86_64")]
mod unit;

#[cfg(test)]
pub use crate::simd::amx::emulated::EMULATED;
pub use crate::simd::amx::kernels::{AT_MOST, AmxKernels};
pub use crate::simd::amx::tile::{LANES, LINE};

use crate::simd::gemm::{GemmElement, GemmTile, LhsLayout, MicrokernelShape};
use crate::simd::level::Level;
use crate::simd::math;
use crate::simd::pack::{PackFn, PanelArgs};
use systole_ir::DType;

/// Returns the kernels of a level, if it has tile registers.
pub fn kernels_of(level: Level) -> Option<&'static AmxKernels> {
    #[cfg(target_arch = "x86_64")]
    if level == Level::Amx {
        return Some(&unit::HARDWARE);
    }
    let _ = level;
    None
}

/// Whether this machine has AMX, this process may use it, and it computes correctly. Checked once.
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
            systole_runtime::events::emit(1, || {
                "this machine's AMX instructions give wrong sums: matrix products run without AMX".to_string()
            });
        }
        right
    })
}

/// Checks small integer products against exact sums. Some virtual machines report the instructions but do not implement
/// them, which must not corrupt results.
fn computes_right(kernels: &AmxKernels) -> bool {
    let pair = |x: i32| u32::from(math::to_bf16(x as f32));
    let byte = |x: i32| u32::from(x as u8);
    trial(&kernels.bf16, DType::BF16, (-5, 11), pair, |sum| sum as f32)
        && trial(&kernels.signed, DType::I8, (-120, 241), byte, |sum| sum)
        && trial(&kernels.unsigned, DType::U8, (0, 241), byte, |sum| sum)
}

/// Rows and columns of the trial products.
const SIZE: usize = 2 * LANES;

/// Packs one operand of a trial product to `k` words along K.
fn packed<T: GemmElement>(
    stored: DType,
    lanes: &[i32],
    bits: impl Fn(i32) -> u32,
    pack: PackFn<T>,
    k: usize,
) -> Vec<T> {
    let products = lanes.len() / SIZE;
    let bytes = |&x: &i32| bits(x).to_le_bytes().into_iter().take(stored.size());
    let from: Vec<u8> = lanes.iter().flat_map(bytes).collect();
    let mut to = vec![T::default(); SIZE * k];
    let (step, lane) = (stored.size(), products * stored.size());
    let (src, dst) = (from.as_ptr(), to.as_mut_ptr());
    let panel = PanelArgs { src, lane, step, lanes: SIZE, fill: SIZE, k, products, dst, stride: SIZE };
    // SAFETY: the source has these lanes and elements, the destination `k` words of each lane.
    unsafe { pack(&[panel]) };
    to
}

/// Whether a product `[32, K] · [K, 32]` is exact. Its elements are `count` integers from `least` on; `bits` returns
/// their representation, of which `stored` bytes are stored.
fn trial<T: GemmElement + PartialEq>(
    shape: &MicrokernelShape<T>,
    stored: DType,
    (least, count): (i32, usize),
    bits: impl Fn(i32) -> u32,
    number: impl Fn(i32) -> T,
) -> bool {
    let k = 3 * LANES;
    let products = k * 4 / stored.size();
    let lanes = |by: usize| -> Vec<i32> {
        (0..SIZE * products).map(|i| least + (i * by % 1009 % count) as i32).collect()
    };
    let packed = |lanes: &[i32], pack| packed(stored, lanes, &bits, pack, k);
    let Some([pack_left, pack_right]) = pack::packs(stored, Level::Portable) else { return false };
    let (rows, columns) = (lanes(7), lanes(11));
    let (a, b) = (packed(&rows, pack_left), packed(&columns, pack_right));
    let mut c = [T::default(); SIZE * SIZE];
    let tile = GemmTile {
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
            shape.kernel(SIZE, LhsLayout::Packed, SIZE)(&tile);
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
        // Treats bytes above 127 as negative.
        let wrong = AmxKernels { unsigned: EMULATED.signed, ..EMULATED };
        assert!(!computes_right(&wrong));
        let wrong = AmxKernels { bf16: EMULATED.split, ..EMULATED };
        assert!(!computes_right(&wrong));
    }

    #[test]
    fn registers_alone_multiply_what_is_counted() {
        // Per instruction 16 by 16 sums of 32 bf16 or 64 int8 products, times four tiles.
        assert_eq!(AT_MOST, [4 * 16 * 16 * 32 * 2, 4 * 16 * 16 * 64 * 2]);
        for at_most in EMULATED.at_most {
            // SAFETY: emulated registers are available everywhere.
            unsafe { at_most(3) };
        }
        assert!(computes_right(&EMULATED), "at_most left the registers in a wrong state");
    }
}
