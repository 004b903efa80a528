//! Detects which instruction-set levels (AVX2, AVX-512, AMX …) this machine supports.

use crate::simd::amx;
use crate::simd::level::Level;
use systole_ir::{Error, ErrorKind, Result, knobs};

impl Level {
    /// Whether this machine supports the instruction-set level.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("f16c");
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

    /// Returns the fastest level of this machine: the highest one, except AVX512_BF16 on CPUs where it is slow.
    pub fn best() -> Level {
        let good = |l: &Level| l.is_available() && (*l != Level::Avx512Bf16 || pairs_are_fast());
        Level::ALL.into_iter().rev().find(good).unwrap_or(Level::Portable)
    }

    /// Returns the error for a level that this machine does not support.
    pub(crate) fn lacking(self) -> Error {
        Error::new(
            ErrorKind::Config,
            format!("this machine does not support the instruction-set level {}", self.name()),
        )
        .hint(format!("use {}, the best level of this machine", Level::best().name()))
    }

    /// Returns the level selected by the environment variable `SYSTOLE_ISA`.
    pub fn from_knob() -> Result<Level> {
        let asked = knobs::ISA.get();
        if asked == "auto" {
            return Ok(Level::best());
        }
        match Level::ALL.into_iter().find(|l| l.name() == asked) {
            Some(level) if level.is_available() => Ok(level),
            Some(level) => Err(level.lacking().at(knobs::ISA.name)),
            None => Err(Error::new(ErrorKind::Config, format!("unknown instruction-set level `{asked}`"))
                .at(knobs::ISA.name)
                .hint(format!("use one of these levels: {}", knobs::ISA.values))),
        }
    }
}

/// Whether `VDPBF16PS` is as fast as an f32 multiply-add. It is on AMD cores; on Intel cores with AMX it takes four
/// times as long. Virtual machines may hide AMX, so those cores are also recognized by AVX512_FP16, which earlier Intel
/// cores lack.
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
