//! Levels of instructions, and how kernels are instantiated for each.
//!
//! Kernels are written once, as inlined generic functions over an [`Isa`]. [`Level`] picks one of three wrappers whose
//! target features let the compiler vectorise the same code for that level. Only products and convolutions know more than
//! vectors: pairs of bf16 and tile registers, at the levels above.

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
