//! Instruction sets for int8 dot products (AMX, VNNI, AVX2 …) and their selection.

use crate::simd::amx::int8::AmxInt8Kernels;
use crate::simd::int8::accumulator_block::AccumulatorBlock;
#[cfg(target_arch = "x86_64")]
use crate::simd::int8::add_sub::row_sums_of_quads;
use crate::simd::int8::add_sub::{Int8RowSums, row_sums};
use crate::simd::int8::{Int8WeightLayout, ROWS, dots};
use crate::simd::level::Level;

/// Instruction set that int8 kernels use.
#[derive(Clone, Copy)]
pub struct Int8Isa {
    name: &'static str,
    /// Level of its vector code.
    level: Level,
    pub(super) kind: Int8IsaKind,
}

/// Instructions that compute dot products.
#[derive(Clone, Copy)]
pub(super) enum Int8IsaKind {
    Vectors(Int8WeightLayout, unsafe fn(&[AccumulatorBlock<'_>])),
    Tiles(&'static AmxInt8Kernels),
}

impl Int8Isa {
    /// Portable scalar loops.
    const PLAIN: Int8Isa = Int8Isa {
        name: "portable",
        level: Level::Portable,
        kind: Int8IsaKind::Vectors(Int8WeightLayout::Pairs, dots::pairs_plain),
    };

    /// Returns the fastest instruction set of a level that this machine supports: AMX, VNNI, or int16 products.
    pub fn of(level: Level) -> Int8Isa {
        Int8Isa::up_to(level).pop().unwrap_or(Int8Isa::PLAIN)
    }

    /// Returns all int8 instruction sets of this machine, slowest first.
    pub fn all() -> Vec<Int8Isa> {
        Int8Isa::up_to(Level::Amx)
    }

    fn up_to(most: Level) -> Vec<Int8Isa> {
        let mut all = vec![Int8Isa::PLAIN];
        #[cfg(target_arch = "x86_64")]
        {
            let has = |level: Level| level <= most && level.is_available();
            let mut add = |name, level, form, kernel, there: bool| {
                if there {
                    all.push(Int8Isa { name, level, kind: Int8IsaKind::Vectors(form, kernel) });
                }
            };
            let (avx2, avx512) = (has(Level::Avx2), has(Level::Avx512));
            let vnni = avx512 && is_x86_feature_detected!("avx512vnni");
            let avx_vnni = avx2 && is_x86_feature_detected!("avxvnni");
            add("avx2", Level::Avx2, Int8WeightLayout::Pairs, dots::pairs_avx2, avx2);
            add("avx-vnni", Level::Avx2, Int8WeightLayout::Above, dots::above_avx_vnni, avx_vnni);
            add("avx512", Level::Avx512, Int8WeightLayout::Pairs, dots::pairs_avx512, avx512);
            add("avx512-vnni", Level::Avx512, Int8WeightLayout::Above, dots::above_avx512_vnni, vnni);
            if has(Level::Amx) {
                let kind = Int8IsaKind::Tiles(&crate::simd::amx::int8::HARDWARE);
                all.push(Int8Isa { name: "amx-int8", level: Level::Avx512, kind });
            }
        }
        let _ = most;
        all
    }

    /// Software-emulated tile registers.
    #[cfg(test)]
    pub(super) fn emulated() -> Int8Isa {
        let kind = Int8IsaKind::Tiles(&crate::simd::amx::int8::EMULATED);
        Int8Isa { name: "amx-int8, emulated", level: Level::Portable, kind }
    }

    /// Returns the instruction set's name, such as `amx-int8`.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Returns the level of its vector code.
    pub(super) fn level(self) -> Level {
        self.level
    }

    /// Whether its vector instructions support an explicit rounding mode.
    pub(super) fn rounds_downwards(self) -> bool {
        self.level == Level::Avx512
    }

    /// Whether it has vector dot products of four int8 (64 bytes at a time).
    pub(super) fn has_quads(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        let there = is_x86_feature_detected!("avx512vnni");
        #[cfg(not(target_arch = "x86_64"))]
        let there = false;
        self.level == Level::Avx512 && self.form() != Int8WeightLayout::Pairs && there
    }

    /// Returns the fewest rows that run at full speed.
    pub(super) fn least_rows(self) -> usize {
        match self.kind {
            Int8IsaKind::Tiles(_) => ROWS,
            Int8IsaKind::Vectors(..) => 4,
        }
    }

    /// Returns the cost of gathering a row, in columns multiplied.
    pub(super) fn gathering(self) -> usize {
        match self.kind {
            Int8IsaKind::Tiles(_) => 32,
            Int8IsaKind::Vectors(..) => 12,
        }
    }

    /// Returns the kernel that sums rows.
    pub(super) fn row_sums(self) -> unsafe fn(&Int8RowSums<'_>) {
        #[cfg(target_arch = "x86_64")]
        if self.has_quads() {
            return row_sums_of_quads;
        }
        row_sums(self.level())
    }

    /// Returns the operand layout it reads.
    pub(super) fn form(self) -> Int8WeightLayout {
        match self.kind {
            Int8IsaKind::Vectors(form, _) => form,
            Int8IsaKind::Tiles(_) => Int8WeightLayout::Signed,
        }
    }

    /// Configures this thread's tile registers until the guard is dropped.
    pub(super) fn configure(self) -> Int8TileGuard {
        if let Int8IsaKind::Tiles(bytes) = self.kind {
            // SAFETY: values of this type exist only if the machine has the instructions.
            unsafe { (bytes.configure)() };
        }
        Int8TileGuard(self)
    }
}

/// Guard of [`Int8Isa::configure`].
pub(super) struct Int8TileGuard(Int8Isa);

impl Int8TileGuard {
    /// Computes blocks.
    ///
    /// # Safety
    /// See [`AccumulatorBlock`]; operands have this instruction set's layout.
    pub(super) unsafe fn blocks(&self, all: &[AccumulatorBlock<'_>]) {
        // SAFETY: values of this type exist only if the machine has the instructions; the rest is guaranteed by the
        // caller.
        unsafe {
            match self.0.kind {
                Int8IsaKind::Vectors(_, kernel) => kernel(all),
                Int8IsaKind::Tiles(bytes) => (bytes.blocks)(all),
            }
        }
    }
}

impl Drop for Int8TileGuard {
    fn drop(&mut self) {
        if let Int8IsaKind::Tiles(bytes) = self.0.kind {
            // SAFETY: this thread's registers are configured.
            unsafe { (bytes.release)() };
        }
    }
}

impl std::fmt::Debug for Int8Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}
