//! Kernels for bf16 that do more with tiles of sums than store them, and read operands where they lie: products with
//! long rows ([`few_rows`]), with few columns ([`few_columns`]), windows of a convolution ([`pooled`]) and the gradient of its
//! kernel ([`unpooled`]).
//!
//! Each is written once over a [`Unit`] and the [`Vectors`] beside it; callers configure the unit's registers first
//! ([`Fused::configure`]).

pub mod few_columns;
pub mod few_rows;
pub mod pooled;
pub mod unpooled;
mod vectors;

use crate::simd::amx::fused::vectors::Vectors;
use crate::simd::amx::tile::{Config, LINE, TileShape, Unit};
use crate::simd::level::Level;

pub use crate::simd::amx::tile::WIDTH;

/// The kernels of one unit.
pub struct Fused {
    configure: unsafe fn(&Config),
    release: unsafe fn(),
    pub few_rows: unsafe fn(&few_rows::TileRowsArgs),
    pub few_columns: unsafe fn(&few_columns::TileColumnsArgs),
    /// See [`pooled`]: `n` groups of a number of each of four lines.
    pub groups: unsafe fn([*const u16; 4], usize, *mut u16),
    pub pooled: unsafe fn(&pooled::Row),
    pub unpooled: unsafe fn(&unpooled::TileGradientArgs<'_>),
}

impl Fused {
    /// Prepares this thread's tile registers until the answer is dropped.
    pub fn configure(&self, shapes: [TileShape; 8]) -> Configured<'_> {
        let mut config =
            Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for (i, (rows, bytes)) in shapes.into_iter().enumerate() {
            debug_assert!(
                (1..=crate::simd::amx::LANES).contains(&rows) && (4..=LINE).contains(&bytes),
                "{shapes:?}"
            );
            (config.rows[i], config.row_bytes[i]) = (rows as u8, bytes as u16);
        }
        // SAFETY: kernels of a unit are chosen where the machine has it; rows and bytes are those of a register.
        unsafe { (self.configure)(&config) };
        Configured(self)
    }
}

/// See [`Fused::configure`].
pub struct Configured<'a>(&'a Fused);

impl Drop for Configured<'_> {
    fn drop(&mut self) {
        // SAFETY: as for `configure`.
        unsafe { (self.0.release)() };
    }
}

/// The kernels of a unit with some vectors, compiled for what these need.
macro_rules! fused {
    ($name:ident, $unit:ty, $vectors:ty $(, $feature:literal)?) => {
        static $name: Fused = {
            $(#[target_feature(enable = $feature)])?
            unsafe fn few_rows(c: &few_rows::TileRowsArgs) {
                // SAFETY: by the caller's promise.
                unsafe { few_rows::run::<$unit, $vectors>(c) }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn few_columns(c: &few_columns::TileColumnsArgs) {
                // SAFETY: by the caller's promise.
                unsafe { few_columns::run::<$unit>(c) }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn groups(lines: [*const u16; 4], n: usize, to: *mut u16) {
                // SAFETY: by the caller's promise.
                unsafe { <$vectors>::groups(lines, n, to) }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn pooled(r: &pooled::Row) {
                // SAFETY: by the caller's promise.
                unsafe { pooled::run::<$unit, $vectors>(r) }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn unpooled(c: &unpooled::TileGradientArgs<'_>) {
                // SAFETY: by the caller's promise.
                unsafe { unpooled::run::<$unit, $vectors>(c) }
            }
            Fused {
                configure: <$unit>::configure,
                release: <$unit>::release,
                few_rows,
                few_columns,
                groups,
                pooled,
                unpooled,
            }
        };
    };
}
#[cfg(target_arch = "x86_64")]
fused!(
    HARDWARE,
    crate::simd::amx::unit::Hardware,
    vectors::Avx512Bf16,
    "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma"
);
#[cfg(test)]
fused!(EMULATED, crate::simd::amx::emulated::Emulated, vectors::Plain);

/// The kernels of a level, if it has tile registers.
pub fn fused_of(level: Level) -> Option<&'static Fused> {
    #[cfg(target_arch = "x86_64")]
    if level == Level::Amx && is_x86_feature_detected!("avx512bf16") {
        return Some(&HARDWARE);
    }
    let _ = level;
    None
}

/// The emulated unit's kernels, and the machine's where it has them.
#[cfg(test)]
pub fn units() -> impl Iterator<Item = &'static Fused> {
    let best = Level::ALL.into_iter().rev().find(|l| l.is_available());
    std::iter::once(&EMULATED).chain(best.and_then(fused_of))
}
