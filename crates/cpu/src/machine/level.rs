//! Detects which instruction-set levels (AVX2, AVX-512, AMX …) this machine supports.

#[cfg(target_arch = "x86_64")]
use crate::simd::amx;
use crate::simd::level::Level;
use systole_ir::{Error, Result, err, knobs};

/// A CPU feature: the lowest level that needs it, its name, and whether this machine has it.
type CpuFeature = (Level, &'static str, fn() -> bool);

/// CPU features by level, lowest first.
#[cfg(target_arch = "x86_64")]
const FEATURES: &[CpuFeature] = {
    macro_rules! features {
        ($($level:ident $name:tt)*) => {
            &[
                $((Level::$level, $name, || is_x86_feature_detected!($name)),)*
                // The check multiplies with AVX-512 around.
                (Level::Amx, "amx", || Level::Avx512Bf16.is_available() && amx::is_available()),
            ]
        };
    }
    features! {
        Avx2 "avx2" Avx2 "fma" Avx2 "bmi1" Avx2 "bmi2" Avx2 "f16c"
        Avx512 "avx512f" Avx512 "avx512bw" Avx512 "avx512cd" Avx512 "avx512dq" Avx512 "avx512vl"
        Avx512Bf16 "avx512bf16"
    }
};

#[cfg(not(target_arch = "x86_64"))]
const FEATURES: &[CpuFeature] = &[(Level::Avx2, "x86-64", || false)];

impl Level {
    /// Features of this level and of those below it.
    fn features(self) -> impl Iterator<Item = &'static CpuFeature> {
        FEATURES.iter().take_while(move |(level, ..)| *level <= self)
    }

    /// Whether this machine supports the instruction-set level.
    pub fn is_available(self) -> bool {
        self.features().all(|(_, _, is_here)| is_here())
    }

    /// Names of the CPU features that the level needs and this machine lacks. `amx` includes the permission of the operating
    /// system.
    pub fn missing_features(self) -> Vec<&'static str> {
        self.features().filter(|(_, _, is_here)| !is_here()).map(|(_, name, _)| *name).collect()
    }

    /// Returns the fastest level of this machine: the highest one, except AVX512_BF16 on CPUs where it is slow.
    pub fn best() -> Level {
        let good = |l: &Level| l.is_available() && (*l != Level::Avx512Bf16 || pairs_are_fast());
        Level::ALL.into_iter().rev().find(good).unwrap_or(Level::Portable)
    }

    /// Returns the error for a level that this machine does not support.
    pub(crate) fn lacking(self) -> Error {
        err!(Config, "this machine does not support the instruction-set level {}", self.name())
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
            None => Err(err!(Config, "unknown instruction-set level `{asked}`")
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
