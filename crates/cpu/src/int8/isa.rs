//! The instructions that multiply bytes.

use crate::simd::amx::int8::Bytes;
use crate::simd::int8::accumulator_block::Block;
#[cfg(target_arch = "x86_64")]
use crate::simd::int8::add_sub::row_sums_of_quads;
use crate::simd::int8::add_sub::{RowSums, row_sums};
use crate::simd::int8::{Form, ROWS, dots};
use crate::simd::level::Level;

/// What multiplies bytes: an instruction set.
#[derive(Clone, Copy)]
pub struct Unit {
    name: &'static str,
    /// Of its vectors.
    level: Level,
    pub(super) kind: Kind,
}

/// How products are computed.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Vectors(Form, unsafe fn(&[Block<'_>])),
    Tiles(&'static Bytes),
}

impl Unit {
    /// Plain loops.
    const PLAIN: Unit = Unit {
        name: "portable",
        level: Level::Portable,
        kind: Kind::Vectors(Form::Pairs, dots::pairs_plain),
    };

    /// The best of a level that this machine has: the level's own (AMX), VNNI where there is that, else products of 16 bits.
    pub fn of(level: Level) -> Unit {
        Unit::up_to(level).pop().unwrap_or(Unit::PLAIN)
    }

    /// All that this machine has, slowest first.
    pub fn all() -> Vec<Unit> {
        Unit::up_to(Level::Amx)
    }

    fn up_to(most: Level) -> Vec<Unit> {
        let mut all = vec![Unit::PLAIN];
        #[cfg(target_arch = "x86_64")]
        {
            let has = |level: Level| level <= most && level.is_available();
            let mut add = |name, level, form, kernel, there: bool| {
                if there {
                    all.push(Unit { name, level, kind: Kind::Vectors(form, kernel) });
                }
            };
            let (avx2, avx512) = (has(Level::Avx2), has(Level::Avx512));
            let vnni = avx512 && is_x86_feature_detected!("avx512vnni");
            let avx_vnni = avx2 && is_x86_feature_detected!("avxvnni");
            add("avx2", Level::Avx2, Form::Pairs, dots::pairs_avx2, avx2);
            add("avx-vnni", Level::Avx2, Form::Above, dots::above_avx_vnni, avx_vnni);
            add("avx512", Level::Avx512, Form::Pairs, dots::pairs_avx512, avx512);
            add("avx512-vnni", Level::Avx512, Form::Above, dots::above_avx512_vnni, vnni);
            if has(Level::Amx) {
                let kind = Kind::Tiles(&crate::simd::amx::int8::HARDWARE);
                all.push(Unit { name: "amx-int8", level: Level::Avx512, kind });
            }
        }
        let _ = most;
        all
    }

    /// Tile registers of a program.
    #[cfg(test)]
    pub(super) fn emulated() -> Unit {
        let kind = Kind::Tiles(&crate::simd::amx::int8::EMULATED);
        Unit { name: "amx-int8, emulated", level: Level::Portable, kind }
    }

    /// Its name: `amx-int8`.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// The level of its vectors.
    pub(super) fn level(self) -> Level {
        self.level
    }

    /// Whether its vectors round each result as it is asked to.
    pub(super) fn rounds_downwards(self) -> bool {
        self.level == Level::Avx512
    }

    /// Whether its vectors multiply bytes, 64 at a time.
    pub(super) fn has_quads(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        let there = is_x86_feature_detected!("avx512vnni");
        #[cfg(not(target_arch = "x86_64"))]
        let there = false;
        self.level == Level::Avx512 && self.form() != Form::Pairs && there
    }

    /// The least number of rows that it multiplies at full speed.
    pub(super) fn least_rows(self) -> usize {
        match self.kind {
            Kind::Tiles(_) => ROWS,
            Kind::Vectors(..) => 4,
        }
    }

    /// What gathering a row costs, in columns of products.
    pub(super) fn gathering(self) -> usize {
        match self.kind {
            Kind::Tiles(_) => 32,
            Kind::Vectors(..) => 12,
        }
    }

    /// What sums up rows.
    pub(super) fn row_sums(self) -> unsafe fn(&RowSums<'_>) {
        #[cfg(target_arch = "x86_64")]
        if self.has_quads() {
            return row_sums_of_quads;
        }
        row_sums(self.level())
    }

    /// How it takes operands.
    pub(super) fn form(self) -> Form {
        match self.kind {
            Kind::Vectors(form, _) => form,
            Kind::Tiles(_) => Form::Signed,
        }
    }

    /// Prepares this thread for blocks, until the guard is dropped.
    pub(super) fn configure(self) -> Configured {
        if let Kind::Tiles(bytes) = self.kind {
            // SAFETY: units are made where the machine has them.
            unsafe { (bytes.configure)() };
        }
        Configured(self)
    }
}

/// Guard of [`Unit::configure`].
pub(super) struct Configured(Unit);

impl Configured {
    /// Computes blocks.
    ///
    /// # Safety
    /// As [`Block`] says, in the unit's form.
    pub(super) unsafe fn blocks(&self, all: &[Block<'_>]) {
        // SAFETY: units are made where the machine has them; the rest is the caller's promise.
        unsafe {
            match self.0.kind {
                Kind::Vectors(_, kernel) => kernel(all),
                Kind::Tiles(bytes) => (bytes.blocks)(all),
            }
        }
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        if let Kind::Tiles(bytes) = self.0.kind {
            // SAFETY: this thread's registers are configured.
            unsafe { (bytes.release)() };
        }
    }
}

impl std::fmt::Debug for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}
