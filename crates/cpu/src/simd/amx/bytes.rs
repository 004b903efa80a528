//! Products of rows and panels of signed bytes on tile registers. The results of one block are rounded and stored between the
//! products of the next: the registers multiply while vectors do the rest.

use crate::simd::amx::tile::{Config, LANES, LINE, Unit};
use crate::simd::int8::ends::finish;
use crate::simd::int8::lanes::Lanes;
use crate::simd::int8::{Block, COLUMNS, ROWS, Sums};

/// The kernels of one unit. A thread that calls `blocks` has configured its registers.
#[derive(Clone, Copy)]
pub struct Bytes {
    pub configure: unsafe fn(),
    pub release: unsafe fn(),
    /// Blocks whose operands are signed bytes.
    pub blocks: unsafe fn(&[Block<'_>]),
}

unsafe fn configure<U: Unit>() {
    // SAFETY: the caller's machine has the unit.
    unsafe { U::configure(&Config::of_rows(LANES)) };
}

/// Bytes from a word of a panel to the next.
const PANEL: usize = COLUMNS * 4;

/// A block whose sums are complete, and the next of its rows to be finished.
struct Before<'a, 'b> {
    block: &'a Block<'b>,
    sums: &'a Sums,
    row: usize,
}

impl Before<'_, '_> {
    #[inline(always)]
    unsafe fn finish<L: Lanes>(&mut self, rows: usize) {
        let to = (self.row + rows).min(self.block.rows);
        // SAFETY: by the promise of `Block`.
        unsafe { finish::<L>(self.block, self.sums, self.row, to) };
        self.row = to;
    }
}

/// The sums of a block of up to two by two tiles, and meanwhile the end of the one before it.
#[inline(always)]
unsafe fn sums<U: Unit, L: Lanes, const R: bool, const C: bool>(
    t: &Block<'_>,
    sums: &mut Sums,
    mut before: Option<Before<'_, '_>>,
) {
    let each = before.as_ref().map_or(0, |b| b.block.rows.div_ceil(t.steps.len().max(1)));
    // SAFETY: by the promise of `Block`; registers are configured.
    unsafe {
        let bias = t.ends.bias.as_ptr().add(t.first).cast::<u8>();
        // All rows of a tile of sums begin as the same line.
        U::load::<0>(bias, 0);
        if C {
            U::load::<1>(bias.add(LINE), 0);
        }
        if R {
            U::load::<2>(bias, 0);
        }
        if R && C {
            U::load::<3>(bias.add(LINE), 0);
        }
        let mut b = t.b;
        for step in t.steps {
            let a = t.a.add(*step);
            U::load::<6>(b, PANEL);
            U::load::<4>(a, t.a_row);
            U::signed::<0, 4, 6>();
            if C {
                U::load::<7>(b.add(LINE), PANEL);
                U::signed::<1, 4, 7>();
            }
            if R {
                U::load::<5>(a.add(LANES * t.a_row), t.a_row);
                U::signed::<2, 5, 6>();
            }
            if R && C {
                U::signed::<3, 5, 7>();
            }
            b = b.add(LANES * PANEL);
            if let Some(before) = &mut before {
                before.finish::<L>(each);
            }
        }
        if let Some(before) = &mut before {
            before.finish::<L>(ROWS);
        }
        let to = sums.row_mut(0).cast::<u8>();
        U::store::<0>(to, PANEL);
        if C {
            U::store::<1>(to.add(LINE), PANEL);
        }
        if R {
            U::store::<2>(to.add(LANES * PANEL), PANEL);
        }
        if R && C {
            U::store::<3>(to.add(LANES * PANEL + LINE), PANEL);
        }
    }
}

/// All blocks.
#[inline(always)]
unsafe fn blocks<U: Unit, L: Lanes>(all: &[Block<'_>]) {
    let mut buffers = [Sums::new(), Sums::new()];
    for (n, t) in all.iter().enumerate() {
        let [even, odd] = &mut buffers;
        let (own, other) = if n % 2 == 0 { (even, odd) } else { (odd, even) };
        let before =
            n.checked_sub(1).and_then(|n| all.get(n)).map(|block| Before { block, sums: other, row: 0 });
        // SAFETY: by the caller's promise.
        unsafe {
            match (t.rows > LANES, t.columns > LANES) {
                (true, true) => sums::<U, L, true, true>(t, own, before),
                (true, false) => sums::<U, L, true, false>(t, own, before),
                (false, true) => sums::<U, L, false, true>(t, own, before),
                (false, false) => sums::<U, L, false, false>(t, own, before),
            }
        }
    }
    if let Some((block, n)) = all.last().zip(all.len().checked_sub(1)) {
        // SAFETY: by the promise of `Block`.
        unsafe { finish::<L>(block, &buffers[n % 2], 0, block.rows) };
    }
}

/// The machine's registers.
#[cfg(target_arch = "x86_64")]
pub static HARDWARE: Bytes = {
    use crate::simd::amx::unit::Hardware;
    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,f16c")]
    unsafe fn all(all: &[Block<'_>]) {
        // SAFETY: by the caller's promise.
        unsafe { blocks::<Hardware, std::arch::x86_64::__m512i>(all) }
    }
    Bytes { configure: configure::<Hardware>, release: Hardware::release, blocks: all }
};

/// Registers of a program, for tests.
#[cfg(test)]
pub static EMULATED: Bytes = {
    use crate::simd::amx::emulated::Emulated;
    use crate::simd::int8::lanes::Plain;
    unsafe fn all(all: &[Block<'_>]) {
        // SAFETY: by the caller's promise.
        unsafe { blocks::<Emulated, Plain>(all) }
    }
    Bytes { configure: configure::<Emulated>, release: Emulated::release, blocks: all }
};
