//! AMX tile instructions of this machine as inline assembly, and the permission request to the operating system.
//!
//! The compiler has no intrinsics for these instructions yet. It never uses tile registers itself, so their contents
//! survive between the `asm!` blocks.

use crate::simd::amx::kernels::{AmxKernels, UnitKernels};
use crate::simd::amx::tile::{F32x16, TileConfig, TileDot, TileUnit, TileWork};
use crate::simd::gemm::GemmTile;
use crate::simd::inline_methods::inlined;
use std::arch::asm;
use std::arch::x86_64::*;

pub static HARDWARE: AmxKernels = UnitKernels::<Hardware>::KERNELS;

pub(crate) struct Hardware;

macro_rules! dot {
    ($name:ident, $instruction:literal) => {
        #[inline(always)]
        unsafe fn $name<const C: u8, const A: u8, const B: u8>() {
            // SAFETY: touches tile registers only; the caller guarantees that they are configured.
            unsafe {
                asm!(
                    concat!($instruction, " tmm{c}, tmm{a}, tmm{b}"),
                    c = const C,
                    a = const A,
                    b = const B,
                    options(nomem, nostack, preserves_flags),
                )
            }
        }
    };
}

// SAFETY: each method executes the instruction that the trait describes.
unsafe impl TileUnit for Hardware {
    type Lanes = __m512;

    unsafe fn configure(config: &TileConfig) {
        // SAFETY: reads the 64 bytes of `config`, a valid configuration guaranteed by the caller.
        unsafe {
            asm!("ldtilecfg [{p}]", p = in(reg) config, options(readonly, nostack, preserves_flags));
        }
    }

    unsafe fn release() {
        // SAFETY: touches tile registers only.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
    }

    #[inline(always)]
    unsafe fn zero<const T: u8>() {
        // SAFETY: touches tile registers only; the caller guarantees that they are configured.
        unsafe { asm!("tilezero tmm{t}", t = const T, options(nomem, nostack, preserves_flags)) };
    }

    #[inline(always)]
    unsafe fn load<const T: u8>(from: *const u8, row: usize) {
        // SAFETY: the caller guarantees that all rows are readable.
        unsafe {
            asm!(
                "tileloadd tmm{t}, [{p} + 1*{row}]",
                t = const T,
                p = in(reg) from,
                row = in(reg) row,
                options(readonly, nostack, preserves_flags),
            );
        }
    }

    #[inline(always)]
    unsafe fn stream<const T: u8>(from: *const u8, row: usize) {
        // SAFETY: as for `load`.
        unsafe {
            asm!(
                "tileloaddt1 tmm{t}, [{p} + 1*{row}]",
                t = const T,
                p = in(reg) from,
                row = in(reg) row,
                options(readonly, nostack, preserves_flags),
            );
        }
    }

    #[inline(always)]
    unsafe fn store<const T: u8>(to: *mut u8, row: usize) {
        // SAFETY: the caller guarantees that all rows are writable.
        unsafe {
            asm!(
                "tilestored [{p} + 1*{row}], tmm{t}",
                t = const T,
                p = in(reg) to,
                row = in(reg) row,
                options(nostack, preserves_flags),
            );
        }
    }

    dot!(bf16, "tdpbf16ps");
    dot!(signed, "tdpbssd");
    dot!(unsigned, "tdpbuud");

    unsafe fn run<D: TileDot>(t: &GemmTile<D::Sum>) {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
        unsafe fn run<D: TileDot>(t: &GemmTile<D::Sum>) {
            // SAFETY: guaranteed by the contract of `TileKernel`.
            unsafe { crate::simd::amx::tile::tile::<Hardware, D>(t) }
        }
        // SAFETY: as above; machines with tile registers have these target features.
        unsafe { run::<D>(t) }
    }

    unsafe fn enter<W: TileWork>(work: &W) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
        unsafe fn enter<W: TileWork>(work: &W) {
            // SAFETY: guaranteed by the contract of `TileWork`.
            unsafe { work.run::<Hardware>() }
        }
        // SAFETY: as above; the features are part of the level.
        unsafe { enter::<W>(work) }
    }
}

/// Mask of the first `n` of sixteen lanes.
#[inline(always)]
fn first(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

// SAFETY of all methods: machines with tile registers have these target features.
impl F32x16 for __m512 {
    type Narrow = __m256bh;

    #[inline(always)]
    fn zero() -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_setzero_ps() }
    }
    inlined! {
        unsafe fn load(p: *const f32) -> __m512 = _mm512_loadu_ps(p);
        unsafe fn store(self, p: *mut f32, n: usize) = _mm512_mask_storeu_ps(p, first(n), self);
    }
    #[inline(always)]
    unsafe fn store_narrow(bits: __m256bh, p: *mut u16, n: usize) {
        // SAFETY: the caller has room for `n` elements; both types have 32 bytes.
        unsafe {
            _mm256_mask_storeu_epi16(p.cast(), first(n), std::mem::transmute::<__m256bh, __m256i>(bits))
        }
    }
    inlined! {
        fn add(self, other: __m512) -> __m512 = _mm512_add_ps(self, other);
        fn sub(self, other: __m512) -> __m512 = _mm512_sub_ps(self, other);
        fn scale(self, by: f32) -> __m512 = _mm512_mul_ps(self, _mm512_set1_ps(by));
        fn mul_add(self, by: __m512, other: __m512) -> __m512 = _mm512_fmadd_ps(self, by, other);
        fn narrow(self) -> __m256bh = _mm512_cvtneps_pbh(self);
        fn widen(bits: __m256bh) -> __m512 = _mm512_cvtpbh_ps(bits);
    }
}

/// Whether the machine has AMX with bf16 and int8 products, and the system lets this process use it.
pub fn permitted() -> bool {
    const PRODUCTS: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    const SYSTEM_SAVES_REGISTERS: u32 = 1 << 27;
    let has = __cpuid(0).eax >= 7
        && __cpuid(1).ecx & SYSTEM_SAVES_REGISTERS != 0
        && __cpuid_count(7, 0).edx & PRODUCTS == PRODUCTS;
    // SAFETY: `xsave` is available where the system has enabled it (OSXSAVE).
    has && unsafe { saves_tiles() } && asks_system()
}

/// Whether the system saves tile configuration and data on a context switch.
#[target_feature(enable = "xsave")]
unsafe fn saves_tiles() -> bool {
    const TILES: u64 = 1 << 17 | 1 << 18;
    // SAFETY: register 0 exists wherever the instruction does.
    unsafe { _xgetbv(0) & TILES == TILES }
}

/// Requests permission to use tile registers in this process (`arch_prctl`).
#[cfg(target_os = "linux")]
fn asks_system() -> bool {
    use std::ffi::c_long;
    unsafe extern "C" {
        fn syscall(number: c_long, ...) -> c_long;
    }
    const ARCH_PRCTL: c_long = 158;
    const ARCH_REQ_XCOMP_PERM: c_long = 0x1023;
    const TILE_DATA: c_long = 18;
    // SAFETY: reads and writes no memory of this process; an unknown request is rejected.
    unsafe { syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

/// Other systems: the request is unknown.
#[cfg(not(target_os = "linux"))]
fn asks_system() -> bool {
    false
}
