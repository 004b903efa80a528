//! Which levels of instructions this machine has.

use crate::simd::amx;
use crate::simd::level::Level;
use systole_ir::{Error, ErrorKind, Result, knobs};

impl Level {
    /// Whether this machine can run it.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2");
            match self {
                Level::Portable => true,
                Level::Avx2 => avx2,
                Level::Avx512 => {
                    avx2 && is_x86_feature_detected!("avx512f")
                        && is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("avx512cd")
                        && is_x86_feature_detected!("avx512dq")
                        && is_x86_feature_detected!("avx512vl")
                }
                Level::Avx512Bf16 => Level::Avx512.is_available() && is_x86_feature_detected!("avx512bf16"),
                Level::Amx => Level::Avx512Bf16.is_available() && amx::is_available(),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Level::Portable
        }
    }

    /// The level that programs run fastest at on this machine: the highest, but for pairs of bf16 where these are slow.
    pub fn best() -> Level {
        let good = |l: &Level| l.is_available() && (*l != Level::Avx512Bf16 || pairs_are_fast());
        Level::ALL.into_iter().rev().find(good).unwrap_or(Level::Portable)
    }

    /// The error that this machine does not have this level.
    pub(crate) fn lacking(self) -> Error {
        Error::new(ErrorKind::Config, format!("this machine lacks {}", self.name()))
            .hint(format!("the best level here is {}", Level::best().name()))
    }

    /// The level that the knob `SYSTOLE_ISA` asks for.
    pub fn from_knob() -> Result<Level> {
        let asked = knobs::ISA.get();
        if asked == "auto" {
            return Ok(Level::best());
        }
        match Level::ALL.into_iter().find(|l| l.name() == asked) {
            Some(level) if level.is_available() => Ok(level),
            Some(level) => Err(level.lacking().at(knobs::ISA.name)),
            None => Err(Error::new(ErrorKind::Config, format!("`{asked}` is no instruction-set level"))
                .at(knobs::ISA.name)
                .hint(format!("one of {}", knobs::ISA.values))),
        }
    }
}

/// Whether a product of bf16 pairs takes no longer than one of f32: AMD's cores do both at one rate, Intel's that were
/// made with tile registers (AMX) take four times as long for the former. Virtual machines may be shown no tile
/// registers; those cores are then known by their arithmetic of 16-bit floats, which Intel's had not before.
#[cfg(target_arch = "x86_64")]
fn pairs_are_fast() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const TILES: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    const FP16: u32 = 1 << 23;
    let first = __cpuid(0);
    let intel = [first.ebx, first.edx, first.ecx].map(u32::to_le_bytes).concat() == b"GenuineIntel";
    let of_tiles = if intel { TILES | FP16 } else { TILES };
    first.eax >= 7 && __cpuid_count(7, 0).edx & of_tiles == 0
}

#[cfg(not(target_arch = "x86_64"))]
fn pairs_are_fast() -> bool {
    false
}
