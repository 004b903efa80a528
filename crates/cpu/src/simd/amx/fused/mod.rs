//! Fused AMX kernels for bf16: read operands in place and post-process accumulator tiles (bias, pooling, interleaving).
//!
//! GEMM with few rows of A and long rows of B ([`few_rows`]), GEMM with few columns ([`few_columns`]), convolution with
//! max pooling ([`pooled`]), and its gradient w.r.t. the weights ([`unpooled`]). Each is written once, generic over
//! [`TileUnit`] and [`FusedVectors`]. Callers configure the tile registers first ([`FusedAmxKernels::configure`]).

pub mod few_columns;
pub mod few_rows;
pub mod pooled;
pub mod unpooled;
mod vectors;

use crate::simd::amx::fused::vectors::FusedVectors;
use crate::simd::amx::tile::{LINE, TileConfig, TileShape, TileUnit};
use crate::simd::level::Level;

pub use crate::simd::amx::tile::WIDTH;

/// Fused AMX kernels (function pointers) of one tile unit.
pub struct FusedAmxKernels {
    configure: unsafe fn(&TileConfig),
    release: unsafe fn(),
    pub few_rows: unsafe fn(&few_rows::TileRowsArgs),
    pub few_columns: unsafe fn(&few_columns::TileColumnsArgs),
    /// For [`pooled`]: interleaves `n` elements of four image rows.
    pub groups: unsafe fn([*const u16; 4], usize, *mut u16),
    pub pooled: unsafe fn(&pooled::PooledConvRow),
    pub unpooled: unsafe fn(&unpooled::TileGradientArgs<'_>),
}

impl FusedAmxKernels {
    /// Configures this thread's tile registers until the guard is dropped.
    pub fn configure(&self, shapes: [TileShape; 8]) -> FusedTileGuard<'_> {
        let mut config =
            TileConfig { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for (i, (rows, bytes)) in shapes.into_iter().enumerate() {
            debug_assert!(
                (1..=crate::simd::amx::LANES).contains(&rows) && (4..=LINE).contains(&bytes),
                "{shapes:?}"
            );
            (config.rows[i], config.row_bytes[i]) = (rows as u8, bytes as u16);
        }
        // SAFETY: a unit's kernels are selected only if the machine has it; the shapes fit a register.
        unsafe { (self.configure)(&config) };
        FusedTileGuard(self)
    }
}

/// Guard of [`FusedAmxKernels::configure`].
pub struct FusedTileGuard<'a>(&'a FusedAmxKernels);

impl Drop for FusedTileGuard<'_> {
    fn drop(&mut self) {
        // SAFETY: as for `configure`.
        unsafe { (self.0.release)() };
    }
}

/// Instantiates the kernels for a unit and vectors, compiled with the target features of both.
macro_rules! fused {
    ($name:ident, $unit:ty, $vectors:ty $(, $feature:literal)?) => {
        static $name: FusedAmxKernels = {
            $(#[target_feature(enable = $feature)])?
            unsafe fn few_rows(c: &few_rows::TileRowsArgs) {
                // SAFETY: guaranteed by the caller.
                unsafe { few_rows::run::<$unit, $vectors>(c) }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn few_columns(c: &few_columns::TileColumnsArgs) {
                // SAFETY: guaranteed by the caller.
                unsafe { few_columns::run::<$unit>(c) }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn groups(lines: [*const u16; 4], n: usize, to: *mut u16) {
                // SAFETY: guaranteed by the caller.
                unsafe { <$vectors>::groups(lines, n, to) }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn pooled(r: &pooled::PooledConvRow) {
                // SAFETY: guaranteed by the caller.
                unsafe { pooled::run::<$unit, $vectors>(r) }
            }
            $(#[target_feature(enable = $feature)])?
            unsafe fn unpooled(c: &unpooled::TileGradientArgs<'_>) {
                // SAFETY: guaranteed by the caller.
                unsafe { unpooled::run::<$unit, $vectors>(c) }
            }
            FusedAmxKernels {
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
fused!(EMULATED, crate::simd::amx::emulated::Emulated, vectors::ScalarVectors);

/// Returns the fused kernels of a level, if it has tile registers.
pub fn fused_of(level: Level) -> Option<&'static FusedAmxKernels> {
    #[cfg(target_arch = "x86_64")]
    if level == Level::Amx && is_x86_feature_detected!("avx512bf16") {
        return Some(&HARDWARE);
    }
    let _ = level;
    None
}

/// Returns the emulated kernels, and the machine's own if it has tile registers.
#[cfg(test)]
pub fn units() -> impl Iterator<Item = &'static FusedAmxKernels> {
    let best = Level::ALL.into_iter().rev().find(|l| l.is_available());
    std::iter::once(&EMULATED).chain(best.and_then(fused_of))
}
