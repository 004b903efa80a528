//! Products of rows and panels of signed bytes on tile registers. The results of one block are rounded and stored between the
//! products of the next: the registers multiply while vectors do the rest.

use crate::simd::amx::tile::{LANES, LINE, SignedDot, TileConfig, TileUnit, dots};
use crate::simd::int8::accumulator_block::{AccumulatorBlock, SumsBuffer, finish};
use crate::simd::int8::i32x16::I32x16;
use crate::simd::int8::{COLUMNS, ROWS};

/// The kernels of one unit. A thread that calls `blocks` has configured its registers.
#[derive(Clone, Copy)]
pub struct AmxInt8Kernels {
    pub configure: unsafe fn(),
    pub release: unsafe fn(),
    /// Blocks whose operands are signed bytes.
    pub blocks: unsafe fn(&[AccumulatorBlock<'_>]),
}

unsafe fn configure<U: TileUnit>() {
    // SAFETY: the caller's machine has the unit.
    unsafe { U::configure(&TileConfig::of_rows(LANES)) };
}

/// Bytes from a word of a panel to the next.
const PANEL: usize = COLUMNS * 4;

/// A block whose products are done, and the next of its rows to be finished.
struct PendingBlock<'a, 'b> {
    block: &'a AccumulatorBlock<'b>,
    sums: *mut SumsBuffer,
    row: usize,
    /// Whether its sums, whole tiles, are still in registers.
    is_held: bool,
}

impl PendingBlock<'_, '_> {
    #[inline(always)]
    unsafe fn finish<L: I32x16>(&mut self, rows: usize) {
        let to = (self.row + rows).min(self.block.rows);
        // SAFETY: by the promise of `Block`; the sums have been stored.
        unsafe { finish::<L>(self.block, &*self.sums, self.row, to) };
        self.row = to;
    }
}

/// Stores the sums of a register.
#[inline(always)]
unsafe fn store<U: TileUnit, const T: u8>(sums: *mut SumsBuffer) {
    let (down, across) = (usize::from(T / 2), usize::from(T % 2));
    // SAFETY: by the caller's promise that this is a buffer of sums.
    unsafe { U::store::<T>((*sums).row_mut(down * LANES).cast::<u8>().add(across * LINE), PANEL) };
}

/// Stores the sums that a register holds, if any, and begins new ones.
#[inline(always)]
unsafe fn begin<U: TileUnit, const T: u8>(bias: *const u8, held: Option<*mut SumsBuffer>) {
    // SAFETY: by the caller's promise; all rows of a tile of sums begin as the same line.
    unsafe {
        if let Some(sums) = held {
            store::<U, T>(sums);
        }
        U::load::<T>(bias.add(usize::from(T % 2) * LINE), 0);
    }
}

/// Loads the operands of a step: rows from `a`, columns from `b`.
#[inline(always)]
unsafe fn load<U: TileUnit, const R: bool, const C: bool>(
    t: &AccumulatorBlock<'_>,
    a: *const u8,
    b: *const u8,
) {
    // SAFETY: by the promise of `Block`.
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

/// The products of a step. Each register is loaded for the next, from `a` and `b`, as soon as its last product has been issued.
#[inline(always)]
unsafe fn step<U: TileUnit, const R: bool, const C: bool>(
    t: &AccumulatorBlock<'_>,
    a: *const u8,
    b: *const u8,
) {
    // SAFETY: by the promise of `Block`.
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

/// The products of a block of up to two by two tiles, and meanwhile the end of the one before it. Sums of whole blocks stay in
/// their registers: they are stored between the first products of the next.
#[inline(always)]
unsafe fn products<U: TileUnit, L: I32x16, const R: bool, const C: bool>(
    t: &AccumulatorBlock<'_>,
    sums: *mut SumsBuffer,
    mut before: Option<PendingBlock<'_, '_>>,
) {
    let Some((first, more)) = t.steps.split_first() else { return };
    let each = before.as_ref().map_or(0, |b| b.block.rows.div_ceil(more.len().max(1)));
    let mut held = before.as_ref().filter(|b| b.is_held).map(|b| b.sums);
    // SAFETY: by the promise of `Block`; registers are configured.
    unsafe {
        let bias = t.ends.bias.as_ptr().add(t.first).cast::<u8>();
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

/// Stores the sums of a block.
#[inline(always)]
unsafe fn store_all<U: TileUnit, const R: bool, const C: bool>(sums: *mut SumsBuffer) {
    // SAFETY: by the caller's promise.
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

/// All blocks.
#[inline(always)]
unsafe fn blocks<U: TileUnit, L: I32x16>(all: &[AccumulatorBlock<'_>]) {
    let mut buffers = [SumsBuffer::new(), SumsBuffer::new()];
    let [even, odd] = &mut buffers;
    let (mut own, mut other): (*mut SumsBuffer, *mut SumsBuffer) = (even, odd);
    let mut before: Option<PendingBlock<'_, '_>> = None;
    for block in all {
        let (is_tall, is_wide) = (block.rows > LANES, block.columns > LANES);
        // SAFETY: by the caller's promise.
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
        // SAFETY: by the promise of `Block`; the registers hold whole tiles where it says so.
        unsafe {
            if last.is_held {
                store_all::<U, true, true>(last.sums);
            }
            last.finish::<L>(ROWS);
        }
    }
}

/// The machine's registers.
#[cfg(target_arch = "x86_64")]
pub static HARDWARE: AmxInt8Kernels = {
    use crate::simd::amx::unit::Hardware;
    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,f16c")]
    unsafe fn all(all: &[AccumulatorBlock<'_>]) {
        // SAFETY: by the caller's promise.
        unsafe { blocks::<Hardware, std::arch::x86_64::__m512i>(all) }
    }
    AmxInt8Kernels { configure: configure::<Hardware>, release: Hardware::release, blocks: all }
};

/// Registers of a program, for tests.
#[cfg(test)]
pub static EMULATED: AmxInt8Kernels = {
    use crate::simd::amx::emulated::Emulated;
    use crate::simd::int8::i32x16::PortableI32x16;
    unsafe fn all(all: &[AccumulatorBlock<'_>]) {
        // SAFETY: by the caller's promise.
        unsafe { blocks::<Emulated, PortableI32x16>(all) }
    }
    AmxInt8Kernels { configure: configure::<Emulated>, release: Emulated::release, blocks: all }
};
