//! Instruction-set levels ([`Level`], AVX2 to AMX), and instantiation of kernels for each.
//!
//! Kernels are written once, as inlined generic functions over an [`Isa`]. [`Level`] selects one of three wrappers
//! whose target features let the compiler vectorize the same code for that level. Only GEMM and convolution use more
//! than vectors: bf16 pairs and tile registers, at the higher levels.

/// Instruction-set level of all kernels of a program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Level {
    /// The baseline of the target architecture.
    Portable,
    /// x86-64-v3: AVX2, FMA and F16C.
    Avx2,
    /// x86-64-v4: AVX-512 F, BW, CD, DQ, VL.
    Avx512,
    /// AVX-512 as above, and dot products of bf16 pairs (AVX512_BF16).
    Avx512Bf16,
    /// AVX-512 with AVX512_BF16, and AMX tile registers with bf16 and int8 products.
    Amx,
}

impl Level {
    /// All instruction-set levels, lowest first.
    pub const ALL: [Level; 5] = [Level::Portable, Level::Avx2, Level::Avx512, Level::Avx512Bf16, Level::Amx];

    /// Returns the level's name, a value of the environment variable `SYSTOLE_ISA`.
    pub fn name(self) -> &'static str {
        match self {
            Level::Portable => "portable",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
            Level::Avx512Bf16 => "avx512bf16",
            Level::Amx => "amx",
        }
    }

    /// Returns the level of its vector instructions, which is all that most kernels depend on.
    pub(crate) fn vectors(self) -> Level {
        self.min(Level::Avx512)
    }
}

/// Compilation target of kernels: instruction-set level, and allowed approximations.
#[derive(Clone, Copy, Debug)]
pub struct CompileTarget {
    pub level: Level,
    /// Whether f32 products may use 16 of the 24 significand bits of each factor (split bf16).
    pub tensor_float_32: bool,
    /// Whether convolutions may use Winograd transforms.
    pub winograd: bool,
    /// Whether narrow floats may be kept in higher precision until they are stored.
    pub excess_precision: bool,
    /// Whether subnormal numbers are treated as zero (FTZ, DAZ).
    pub flush: bool,
}

impl CompileTarget {
    /// Returns the level of element-wise programs. The instruction that rounds to bf16 always flushes subnormals, so it
    /// needs `flush`.
    pub(crate) fn programs(self) -> Level {
        match self.level {
            Level::Avx512Bf16 | Level::Amx if self.flush => Level::Avx512Bf16,
            level => level.vectors(),
        }
    }
}

/// Selects one of three values by vector level: AVX-512, AVX2, portable. Only x86-64 has the first two.
macro_rules! by_level {
    ($level:expr, $avx512:expr, $avx2:expr, $portable:expr) => {
        match $level {
            #[cfg(target_arch = "x86_64")]
            $crate::simd::level::Level::Avx512 => $avx512,
            #[cfg(target_arch = "x86_64")]
            $crate::simd::level::Level::Avx2 => $avx2,
            _ => $portable,
        }
    };
}
pub(crate) use by_level;

/// Properties of the instruction set that a generic kernel is instantiated for.
pub trait Isa: Copy + Send + Sync + 'static {
    /// The level; every machine that runs the instance has it.
    const LEVEL: Level;
    /// Whether it has fused multiply-add. Without it `f32::mul_add` is a slow library call.
    const FMA: bool;
}

/// Code generation for [`Level::Portable`] (no vector instructions).
#[derive(Clone, Copy)]
pub struct Portable;
/// Code generation for [`Level::Avx2`].
#[derive(Clone, Copy)]
pub struct Avx2;
/// Code generation for [`Level::Avx512`].
#[derive(Clone, Copy)]
pub struct Avx512;

impl Isa for Portable {
    const LEVEL: Level = Level::Portable;
    const FMA: bool = false;
}
impl Isa for Avx2 {
    const LEVEL: Level = Level::Avx2;
    const FMA: bool = true;
}
impl Isa for Avx512 {
    const LEVEL: Level = Level::Avx512;
    const FMA: bool = true;
}

/// A loop over at most one tile: `(dst, a, b, c, n)` with up to three operands and `n` elements. Unused operands may
/// dangle.
pub type TileFn = unsafe fn(*mut u8, *const u8, *const u8, *const u8, usize);

/// A loop that is instantiated for each level.
pub trait TileLoop {
    /// Whether it is instantiated for the vector levels. Rarely used element types and reductions have the portable
    /// instance only, because hundreds of instances would take a large part of this crate's compile time.
    const EVERY_LEVEL: bool = true;

    /// Runs the loop.
    ///
    /// # Safety
    /// `dst` and the operands that the loop uses hold `n` elements of its lane types. `dst` overlaps no operand unless
    /// the loop's documentation says that it accumulates into `dst`.
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize);
}

unsafe fn tile_portable<T: TileLoop>(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize) {
    // SAFETY: guaranteed by the contract of `TileLoop::run`.
    unsafe { T::run::<Portable>(dst, a, b, c, n) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,f16c")]
unsafe fn tile_avx2<T: TileLoop>(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize) {
    // SAFETY: guaranteed by the contract of `TileLoop::run`.
    unsafe { T::run::<Avx2>(dst, a, b, c, n) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,f16c")]
unsafe fn tile_avx512<T: TileLoop>(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize) {
    // SAFETY: guaranteed by the contract of `TileLoop::run`.
    unsafe { T::run::<Avx512>(dst, a, b, c, n) }
}

impl Level {
    /// Returns the instance of a loop for this level. It may only be called if the CPU has the level.
    pub fn tile<T: TileLoop>(self) -> TileFn {
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
