//! Int8 GEMM on AMX tile registers, pipelined with the requantization of the previous block.
//!
//! The results of one block are rounded and stored between the products of the next: tile units multiply while vector
//! units do the rest.

use crate::simd::amx::tile::{LANES, LINE, SignedDot, TileConfig, TileUnit, dots};
use crate::simd::int8::accumulator_block::{AccumulatorBlock, SumsBuffer, finish};
use crate::simd::int8::i32x16::I32x16;
use crate::simd::int8::{COLUMNS, ROWS};

/// Int8 kernels of one tile unit. Threads must configure their registers before they call `blocks`.
#[derive(Clone, Copy)]
pub struct AmxInt8Kernels {
    pub configure: unsafe fn(),
    pub release: unsafe fn(),
    /// Computes blocks whose operands are int8.
    pub blocks: unsafe fn(&[AccumulatorBlock<'_>]),
}

unsafe fn configure<U: TileUnit>() {
    // SAFETY: the caller's machine has the unit.
    unsafe { U::configure(&TileConfig::of_rows(LANES)) };
}

/// Bytes between words of a panel.
const PANEL: usize = COLUMNS * 4;

/// A block whose products are computed, and the next of its rows to requantize.
struct PendingBlock<'a, 'b> {
    block: &'a AccumulatorBlock<'b>,
    sums: *mut SumsBuffer,
    row: usize,
    /// Whether its accumulators, whole tiles, are still in registers.
    is_held: bool,
}

impl PendingBlock<'_, '_> {
    #[inline(always)]
    unsafe fn finish<L: I32x16>(&mut self, rows: usize) {
        let to = (self.row + rows).min(self.block.rows);
        // SAFETY: guaranteed by the contract of `AccumulatorBlock`; the sums have been stored.
        unsafe { finish::<L>(self.block, &*self.sums, self.row, to) };
        self.row = to;
    }
}

/// Stores the accumulators of a register.
#[inline(always)]
unsafe fn store<U: TileUnit, const T: u8>(sums: *mut SumsBuffer) {
    let (down, across) = (usize::from(T / 2), usize::from(T % 2));
    // SAFETY: the caller guarantees that that this is a buffer of sums.
    unsafe { U::store::<T>((*sums).row_mut(down * LANES).cast::<u8>().add(across * LINE), PANEL) };
}

/// Stores the accumulators that a register holds, if any, and initializes it for the next block.
#[inline(always)]
unsafe fn begin<U: TileUnit, const T: u8>(bias: *const u8, held: Option<*mut SumsBuffer>) {
    // SAFETY: guaranteed by the caller; all rows of a tile of sums begin as the same line.
    unsafe {
        if let Some(sums) = held {
            store::<U, T>(sums);
        }
        U::load::<T>(bias.add(usize::from(T % 2) * LINE), 0);
    }
}

/// Loads the operands of a K step: rows from `a`, columns from `b`.
#[inline(always)]
unsafe fn load<U: TileUnit, const R: bool, const C: bool>(
    t: &AccumulatorBlock<'_>,
    a: *const u8,
    b: *const u8,
) {
    // SAFETY: guaranteed by the contract of `AccumulatorBlock`.
    unsafe {
        U::load::<6>(b, PANEL);
        U::stream::<4>(a, t.a_row);
        if C {
            U::load::<7>(b.add(LINE), PANEL);
        }
        if R {
            U::stream::<5>(a.add(LANES * t.a_row), t.a_row);
        }
    }
}

/// Computes the products of a K step. Each register is reloaded, from `a` and `b`, as soon as its last product has been
/// issued.
#[inline(always)]
unsafe fn step<U: TileUnit, const R: bool, const C: bool>(
    t: &AccumulatorBlock<'_>,
    a: *const u8,
    b: *const u8,
) {
    // SAFETY: guaranteed by the contract of `AccumulatorBlock`.
    unsafe {
        U::signed::<0, 4, 6>();
        if R {
            U::signed::<2, 5, 6>();
        }
        U::load::<6>(b, PANEL);
        if C {
            U::signed::<1, 4, 7>();
        }
        U::stream::<4>(a, t.a_row);
        if R && C {
            U::signed::<3, 5, 7>();
        }
        if C {
            U::load::<7>(b.add(LINE), PANEL);
        }
        if R {
            U::stream::<5>(a.add(LANES * t.a_row), t.a_row);
        }
    }
}

/// Computes the products of a block of up to two by two tiles, and in parallel finishes the previous block.
/// Accumulators of whole blocks stay in their registers; they are stored between the first products of the next block.
#[inline(always)]
unsafe fn products<U: TileUnit, L: I32x16, const R: bool, const C: bool>(
    t: &AccumulatorBlock<'_>,
    sums: *mut SumsBuffer,
    mut before: Option<PendingBlock<'_, '_>>,
) {
    let Some((first, more)) = t.steps.split_first() else { return };
    let each = before.as_ref().map_or(0, |b| b.block.rows.div_ceil(more.len().max(1)));
    let mut held = before.as_ref().filter(|b| b.is_held).map(|b| b.sums);
    // SAFETY: guaranteed by the contract of `AccumulatorBlock`; registers are configured.
    unsafe {
        let bias = t.bias.cast::<u8>();
        if !(R && C)
            && let Some(sums) = held.take()
        {
            store_all::<U, true, true>(sums);
        }
        load::<U, R, C>(t, t.a.add(*first), t.b);
        begin::<U, 0>(bias, held);
        if R {
            begin::<U, 2>(bias, held);
        }
        if C {
            begin::<U, 1>(bias, held);
        }
        if R && C {
            begin::<U, 3>(bias, held);
        }
        for (n, a) in more.iter().enumerate() {
            step::<U, R, C>(t, t.a.add(*a), t.b.add((n + 1) * LANES * PANEL));
            if let Some(before) = &mut before {
                before.finish::<L>(each);
            }
        }
        dots::<U, SignedDot, R, C>();
        if let Some(before) = &mut before {
            before.finish::<L>(ROWS);
        }
        if !(R && C) {
            store_all::<U, R, C>(sums);
        }
    }
}

/// Stores the accumulators of a block.
#[inline(always)]
unsafe fn store_all<U: TileUnit, const R: bool, const C: bool>(sums: *mut SumsBuffer) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        store::<U, 0>(sums);
        if C {
            store::<U, 1>(sums);
        }
        if R {
            store::<U, 2>(sums);
        }
        if R && C {
            store::<U, 3>(sums);
        }
    }
}

/// Computes all blocks.
#[inline(always)]
unsafe fn blocks<U: TileUnit, L: I32x16>(all: &[AccumulatorBlock<'_>]) {
    let mut buffers = [SumsBuffer::new(), SumsBuffer::new()];
    let [even, odd] = &mut buffers;
    let (mut own, mut other): (*mut SumsBuffer, *mut SumsBuffer) = (even, odd);
    let mut before: Option<PendingBlock<'_, '_>> = None;
    for block in all {
        let (is_tall, is_wide) = (block.rows > LANES, block.columns > LANES);
        // SAFETY: guaranteed by the caller.
        unsafe {
            match (is_tall, is_wide) {
                (true, true) => products::<U, L, true, true>(block, own, before),
                (true, false) => products::<U, L, true, false>(block, own, before),
                (false, true) => products::<U, L, false, true>(block, own, before),
                (false, false) => products::<U, L, false, false>(block, own, before),
            }
        }
        before = Some(PendingBlock { block, sums: own, row: 0, is_held: is_tall && is_wide });
        std::mem::swap(&mut own, &mut other);
    }
    if let Some(mut last) = before {
        // SAFETY: guaranteed by the contract of `AccumulatorBlock`; the registers hold whole tiles if `is_held`.
        unsafe {
            if last.is_held {
                store_all::<U, true, true>(last.sums);
            }
            last.finish::<L>(ROWS);
        }
    }
}

/// AMX int8 kernels on the machine's tile registers.
#[cfg(target_arch = "x86_64")]
pub static HARDWARE: AmxInt8Kernels = {
    use crate::simd::amx::unit::Hardware;
    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,f16c")]
    unsafe fn all(all: &[AccumulatorBlock<'_>]) {
        // SAFETY: guaranteed by the caller.
        unsafe { blocks::<Hardware, std::arch::x86_64::__m512i>(all) }
    }
    AmxInt8Kernels { configure: configure::<Hardware>, release: Hardware::release, blocks: all }
};

/// AMX int8 kernels on emulated tile registers, for tests.
#[cfg(test)]
pub static EMULATED: AmxInt8Kernels = {
    use crate::simd::amx::emulated::Emulated;
    use crate::simd::int8::i32x16::PortableI32x16;
    unsafe fn all(all: &[AccumulatorBlock<'_>]) {
        // SAFETY: guaranteed by the caller.
        unsafe { blocks::<Emulated, PortableI32x16>(all) }
    }
    AmxInt8Kernels { configure: configure::<Emulated>, release: Emulated::release, blocks: all }
};
