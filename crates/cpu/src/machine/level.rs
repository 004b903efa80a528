//! Which instruction sets this machine has, and how kernels are instantiated for each.
//!
//! Kernels are written once, as inlined generic functions over an [`Isa`]. [`Level`] picks one of three wrappers whose
//! target features let the compiler vectorise the same code for that level. Only products and convolutions know more than
//! vectors: pairs of bf16 and tile registers, at the levels above.

use crate::simd::amx;
use systole_ir::{Error, ErrorKind, Result, knobs};

/// Instruction-set level of all kernels of a program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Level {
    /// What every machine of this architecture has.
    Portable,
    /// x86-64-v3: AVX2 and FMA.
    Avx2,
    /// x86-64-v4: AVX-512 F, BW, CD, DQ, VL.
    Avx512,
    /// The same, and products of bf16 in pairs (AVX512_BF16).
    Avx512Bf16,
    /// AVX-512 with AVX512_BF16, and AMX tile registers for products of bf16 and of bytes.
    Amx,
}

impl Level {
    /// All levels, lowest first.
    pub const ALL: [Level; 5] = [Level::Portable, Level::Avx2, Level::Avx512, Level::Avx512Bf16, Level::Amx];

    /// The spelling in the knob `SYSTOLE_ISA`.
    pub fn name(self) -> &'static str {
        match self {
            Level::Portable => "portable",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
            Level::Avx512Bf16 => "avx512bf16",
            Level::Amx => "amx",
        }
    }

    /// The level of its vectors, which is all that most kernels ask about.
    pub(crate) fn vectors(self) -> Level {
        self.min(Level::Avx512)
    }

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

/// What a program is compiled for.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub level: Level,
    /// Whether products of f32 may be computed from 16 bits of each factor's 24.
    pub tensor_float_32: bool,
    /// Whether convolutions may be computed through transforms of their operands.
    pub winograd: bool,
    /// Whether narrow floats may keep more digits than their type has until they are stored.
    pub excess_precision: bool,
    /// Whether numbers below the normal range are taken as zero.
    pub flush: bool,
}

impl Target {
    /// The level of element-wise programs: the instruction that rounds to bf16 takes such numbers as zero always.
    pub(crate) fn programs(self) -> Level {
        match self.level {
            Level::Avx512Bf16 | Level::Amx if self.flush => Level::Avx512Bf16,
            level => level.vectors(),
        }
    }
}

/// What generic kernels may ask about the level they are instantiated for.
pub trait Isa: Copy + Send + Sync + 'static {
    /// Whether fused multiply-add is one instruction. Without it `mul_add` would be a slow call.
    const FMA: bool;
}

/// See [`Level::Portable`].
#[derive(Clone, Copy)]
pub struct Portable;
/// See [`Level::Avx2`].
#[derive(Clone, Copy)]
pub struct Avx2;
/// See [`Level::Avx512`].
#[derive(Clone, Copy)]
pub struct Avx512;

impl Isa for Portable {
    const FMA: bool = false;
}
impl Isa for Avx2 {
    const FMA: bool = true;
}
impl Isa for Avx512 {
    const FMA: bool = true;
}

/// A loop over at most one tile: result, three operands (unused ones dangle), number of elements.
pub type TileFn = unsafe fn(*mut u8, *const u8, *const u8, *const u8, usize);

/// A loop that is instantiated for each level.
pub trait Tile {
    /// Whether it is worth its instances for the vector levels. Loops over element types and folds that networks
    /// hardly use have the portable one only: hundreds of them take a good part of the time to build this crate.
    const EVERY_LEVEL: bool = true;

    /// The loop.
    ///
    /// # Safety
    /// `dst` and the operands that the loop uses hold `n` elements of its lane types; `dst` overlaps none of them
    /// unless the loop says that it accumulates into `dst`.
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize);
}

unsafe fn tile_portable<T: Tile>(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize) {
    // SAFETY: the caller's promises are those of `Tile::run`.
    unsafe { T::run::<Portable>(dst, a, b, c, n) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,f16c")]
unsafe fn tile_avx2<T: Tile>(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize) {
    // SAFETY: the caller's promises are those of `Tile::run`.
    unsafe { T::run::<Avx2>(dst, a, b, c, n) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,f16c")]
unsafe fn tile_avx512<T: Tile>(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize) {
    // SAFETY: the caller's promises are those of `Tile::run`.
    unsafe { T::run::<Avx512>(dst, a, b, c, n) }
}

impl Level {
    /// The instance of a loop for this level. The level must be available where it is called.
    pub fn tile<T: Tile>(self) -> TileFn {
        if const { !T::EVERY_LEVEL } {
            return tile_portable::<T>;
        }
        match self {
            Level::Portable => tile_portable::<T>,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => tile_avx2::<T>,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Avx512Bf16 | Level::Amx => tile_avx512::<T>,
            #[cfg(not(target_arch = "x86_64"))]
            _ => tile_portable::<T>,
        }
    }
}
