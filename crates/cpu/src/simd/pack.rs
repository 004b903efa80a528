//! Packs GEMM operands into micro-panels, the layout that microkernels read, converting to the panel's element type.
//!
//! A panel is `k` groups of a few lanes (rows of A, or columns of B); the lanes of one group are adjacent. A group is
//! one float, or the narrow integers along K that one instruction sums (four bytes or two 16-bit words in an i32: VNNI
//! layout). Source strides are in bytes, so that one loop serves every stored type. Panels for tile registers are
//! packed in `amx/pack.rs`.

use crate::simd::level::Level;
use crate::simd::math;
use systole_ir::DType;

/// Arguments of packing one GEMM panel: source `[lanes, products]`, destination `[k, fill]`.
pub struct PanelArgs<T> {
    /// Source of lane 0, first element along K.
    pub src: *const u8,
    /// Source strides in bytes: between lanes, and between elements along K.
    pub lane: usize,
    pub step: usize,
    /// Lanes of the source, and lanes to write; lanes beyond the source's are zero.
    pub lanes: usize,
    pub fill: usize,
    /// Groups to write.
    pub k: usize,
    /// Elements along K that the source has; the rest of the last group is zero.
    pub products: usize,
    pub dst: *mut T,
    /// Destination stride between groups, in elements.
    pub stride: usize,
}

/// Packs adjacent panels of one source (all have the same strides and `k`).
///
/// Callers ensure that the source covers `lanes` by `products`, that each destination covers `k` groups of `fill`
/// lanes, and that the CPU has the level's instructions.
pub type PackFn<T> = unsafe fn(&[PanelArgs<T>]);

/// Layout of a group of integers in a GEMM panel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IntegerGroup {
    /// Four bytes, unchanged.
    Bytes,
    /// Four signed bytes plus 128: unsigned.
    Offset,
    /// Two integers, widened to 16 bits.
    Words,
}

/// Returns the function that packs stored floats as f32.
pub fn floats(stored: DType, level: Level) -> PackFn<f32> {
    match (stored, level) {
        #[cfg(target_arch = "x86_64")]
        (DType::BF16, Level::Avx512) => avx512::panel::<x86::Bf16Load>,
        #[cfg(target_arch = "x86_64")]
        (DType::F16, Level::Avx512) => avx512::panel::<x86::F16Load>,
        #[cfg(target_arch = "x86_64")]
        (_, Level::Avx512) => avx512::panel::<x86::WordLoad>,
        #[cfg(target_arch = "x86_64")]
        (DType::BF16, Level::Avx2) => avx2::panel::<x86::Bf16Load>,
        #[cfg(target_arch = "x86_64")]
        (DType::F16, Level::Avx2) => avx2::panel::<x86::F16Load>,
        #[cfg(target_arch = "x86_64")]
        (_, Level::Avx2) => avx2::panel::<x86::WordLoad>,
        (DType::BF16, _) => plain::<f32, Bf16Cell>,
        (DType::F16, _) => plain::<f32, F16Cell>,
        _ => plain::<f32, UnconvertedCell>,
    }
}

/// Returns the function that packs pairs of bf16 along K; an f32 of the panel holds the bits of one pair.
#[cfg(target_arch = "x86_64")]
pub fn halves() -> PackFn<f32> {
    avx512::halves
}

/// Returns the function that packs f64.
pub fn doubles() -> PackFn<f64> {
    plain::<f64, UnconvertedCell>
}

/// Returns the function that packs integers in groups; `None` if the group cannot hold the stored type.
pub fn integers(stored: DType, group: IntegerGroup, level: Level) -> Option<PackFn<i32>> {
    Some(match (stored, group) {
        (DType::I8 | DType::U8, IntegerGroup::Bytes) => quads::<0>(level),
        (DType::I8, IntegerGroup::Offset) => quads::<{ FLIP }>(level),
        (DType::I8, IntegerGroup::Words) => pairs::<i8>,
        (DType::U8, IntegerGroup::Words) => pairs::<u8>,
        (DType::I16, IntegerGroup::Words) => pairs::<i16>,
        _ => return None,
    })
}

/// Adds 128 to each of four bytes, modulo 256.
const FLIP: u32 = 0x8080_8080;

fn quads<const FLIP: u32>(level: Level) -> PackFn<i32> {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => avx512::quads::<FLIP>,
        _ => plain_quads::<FLIP>,
    }
}

/// Loads one stored element as the panel's type.
pub trait PanelElement<T> {
    unsafe fn get(p: *const u8) -> T;
}

pub struct UnconvertedCell;
impl<T: Copy> PanelElement<T> for UnconvertedCell {
    #[inline(always)]
    unsafe fn get(p: *const u8) -> T {
        // SAFETY: the caller has an element there.
        unsafe { p.cast::<T>().read_unaligned() }
    }
}

pub struct Bf16Cell;
impl PanelElement<f32> for Bf16Cell {
    #[inline(always)]
    unsafe fn get(p: *const u8) -> f32 {
        // SAFETY: the caller has an element there.
        math::from_bf16(unsafe { p.cast::<u16>().read_unaligned() })
    }
}

pub struct F16Cell;
impl PanelElement<f32> for F16Cell {
    #[inline(always)]
    unsafe fn get(p: *const u8) -> f32 {
        // SAFETY: the caller has an element there.
        math::from_f16(unsafe { p.cast::<u16>().read_unaligned() })
    }
}

/// Packs element by element, with the source's smaller stride innermost.
unsafe fn plain<T: Copy + Default, C: PanelElement<T>>(panels: &[PanelArgs<T>]) {
    // SAFETY: guaranteed by the contract of `PackFn`.
    panels.iter().for_each(|p| unsafe { plain_panel::<T, C>(p) });
}

unsafe fn plain_panel<T: Copy + Default, C: PanelElement<T>>(p: &PanelArgs<T>) {
    // SAFETY: guaranteed by the contract of `PackFn`.
    unsafe { part::<T, C>(p, 0..p.lanes, 0..p.k) };
    for step in 0..p.k {
        for lane in p.lanes..p.fill {
            // SAFETY: as above.
            unsafe { *p.dst.add(step * p.stride + lane) = T::default() };
        }
    }
}

/// Packs a range of lanes and groups of a panel (groups of one element).
#[inline(always)]
unsafe fn part<T: Copy, C: PanelElement<T>>(
    p: &PanelArgs<T>,
    lanes: std::ops::Range<usize>,
    steps: std::ops::Range<usize>,
) {
    let one = |lane: usize, step: usize| {
        // SAFETY: guaranteed by the contract of `PackFn`.
        unsafe { *p.dst.add(step * p.stride + lane) = C::get(p.src.add(lane * p.lane + step * p.step)) };
    };
    if p.lane < p.step {
        steps.for_each(|step| lanes.clone().for_each(|lane| one(lane, step)));
    } else {
        lanes.for_each(|lane| steps.clone().for_each(|step| one(lane, step)));
    }
}

/// Returns up to four bytes of a lane, from element `4 · step` along K; zero beyond the source.
#[inline(always)]
unsafe fn quad(p: &PanelArgs<i32>, lane: usize, step: usize) -> u32 {
    let from = p.src.wrapping_add(lane * p.lane + 4 * step * p.step);
    let count = p.products.saturating_sub(4 * step).min(4);
    let mut bytes = [0u8; 4];
    for (i, b) in bytes[..count].iter_mut().enumerate() {
        // SAFETY: the contract of `PackFn` guarantees that the source has these products.
        *b = unsafe { *from.add(i * p.step) };
    }
    u32::from_le_bytes(bytes)
}

unsafe fn plain_quads<const FLIP: u32>(panels: &[PanelArgs<i32>]) {
    // SAFETY: guaranteed by the contract of `PackFn`.
    panels.iter().for_each(|p| unsafe { quads_of_panel::<FLIP>(p) });
}

unsafe fn quads_of_panel<const FLIP: u32>(p: &PanelArgs<i32>) {
    for step in 0..p.k {
        for lane in 0..p.fill {
            // SAFETY: guaranteed by the contract of `PackFn`.
            unsafe {
                let bits = if lane < p.lanes { quad(p, lane, step) ^ FLIP } else { 0 };
                *p.dst.add(step * p.stride + lane) = bits as i32;
            }
        }
    }
}

unsafe fn pairs<S: Copy + Into<i16>>(panels: &[PanelArgs<i32>]) {
    // SAFETY: guaranteed by the contract of `PackFn`.
    panels.iter().for_each(|p| unsafe { pairs_of_panel::<i32, S>(p) });
}

/// Packs pairs of 16-bit integers, for any strides.
unsafe fn pairs_of_panel<T, S: Copy + Into<i16>>(p: &PanelArgs<T>) {
    for step in 0..p.k {
        for lane in 0..p.fill {
            let get = |i: usize| -> u32 {
                if lane >= p.lanes || 2 * step + i >= p.products {
                    return 0;
                }
                let at = lane * p.lane + (2 * step + i) * p.step;
                // SAFETY: the contract of `PackFn` guarantees that the source has this product.
                let x = unsafe { p.src.add(at).cast::<S>().read_unaligned() };
                u32::from(x.into() as u16)
            };
            // SAFETY: guaranteed by the contract of `PackFn`.
            unsafe { *p.dst.add(step * p.stride + lane).cast::<u32>() = get(0) | get(1) << 16 };
        }
    }
}

/// Vector loads of stored types, as 32-bit SIMD lanes.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Bf16Cell, F16Cell, PanelElement, UnconvertedCell};
    use std::arch::x86_64::*;

    /// Vector loads of a stored type. Callers ensure that the CPU has the instructions of each.
    pub trait VectorLoad {
        type Cell: PanelElement<f32>;
        const SIZE: usize;
        /// Loads the lanes of the mask with AVX-512; other lanes are zero.
        unsafe fn load16(p: *const u8, mask: __mmask16) -> __m512;
        /// Loads eight lanes with AVX2.
        unsafe fn load8(p: *const u8) -> __m256;
    }

    /// Word source for packing: f32, or any four bytes.
    pub struct WordLoad;
    impl VectorLoad for WordLoad {
        type Cell = UnconvertedCell;
        const SIZE: usize = 4;
        #[inline(always)]
        unsafe fn load16(p: *const u8, mask: __mmask16) -> __m512 {
            // SAFETY: guaranteed by the caller.
            unsafe { _mm512_maskz_loadu_ps(mask, p.cast()) }
        }
        #[inline(always)]
        unsafe fn load8(p: *const u8) -> __m256 {
            // SAFETY: guaranteed by the caller.
            unsafe { _mm256_loadu_ps(p.cast()) }
        }
    }

    pub struct Bf16Load;
    impl VectorLoad for Bf16Load {
        type Cell = Bf16Cell;
        const SIZE: usize = 2;
        #[inline(always)]
        unsafe fn load16(p: *const u8, mask: __mmask16) -> __m512 {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
            }
        }
        #[inline(always)]
        unsafe fn load8(p: *const u8) -> __m256 {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
            }
        }
    }

    pub struct F16Load;
    impl VectorLoad for F16Load {
        type Cell = F16Cell;
        const SIZE: usize = 2;
        #[inline(always)]
        unsafe fn load16(p: *const u8, mask: __mmask16) -> __m512 {
            // SAFETY: guaranteed by the caller.
            unsafe { _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p.cast())) }
        }
        #[inline(always)]
        unsafe fn load8(p: *const u8) -> __m256 {
            // SAFETY: guaranteed by the caller.
            unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512 {
    use super::x86::{VectorLoad, WordLoad};
    use super::{PanelArgs, pairs_of_panel, plain, quads_of_panel};
    use std::arch::x86_64::*;

    /// Prefetch distance, in source rows.
    const AHEAD: usize = 8;

    /// Mask of the lowest `n` lanes, at most all 16.
    #[inline(always)]
    fn mask(n: usize) -> __mmask16 {
        if n >= 16 { !0 } else { (1 << n) - 1 }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub unsafe fn panel<S: VectorLoad>(panels: &[PanelArgs<f32>]) {
        let Some(first) = panels.first() else { return };
        // SAFETY: guaranteed by the contract of `PackFn`.
        unsafe {
            if first.lane == S::SIZE {
                rows::<S>(panels, first.k);
            } else if first.step == S::SIZE {
                panels.iter().for_each(|p| columns::<S>(p, 0.0));
            } else {
                plain::<f32, S::Cell>(panels);
            }
        }
    }

    /// Packs lanes that are contiguous in the source: copies row by row, across all panels.
    #[inline(always)]
    unsafe fn rows<S: VectorLoad>(panels: &[PanelArgs<f32>], k: usize) {
        for step in 0..k {
            for p in panels {
                let (from, to) = (p.src.wrapping_add(step * p.step), p.dst.wrapping_add(step * p.stride));
                // Source rows are far apart: the hardware prefetcher does not find the next one.
                prefetch(from.wrapping_add(AHEAD * p.step));
                if p.lanes == 32 && p.fill == 32 {
                    // SAFETY: two whole vectors of source and panel.
                    unsafe {
                        prefetch(from.wrapping_add(AHEAD * p.step + 16 * S::SIZE));
                        _mm512_storeu_ps(to, S::load16(from, !0));
                        _mm512_storeu_ps(to.wrapping_add(16), S::load16(from.wrapping_add(16 * S::SIZE), !0));
                    }
                    continue;
                }
                for lane in (0..p.fill).step_by(16) {
                    let (read, write) = (mask(p.lanes.saturating_sub(lane)), mask(p.fill - lane));
                    // SAFETY: masks keep to the lanes of source and panel.
                    unsafe {
                        let x = S::load16(from.wrapping_add(lane * S::SIZE), read);
                        _mm512_mask_storeu_ps(to.wrapping_add(lane), write, x);
                    }
                }
            }
        }
    }

    /// Prefetches a cache line into L1.
    #[inline(always)]
    fn prefetch(p: *const u8) {
        // SAFETY: a prefetch may have any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) };
    }

    /// Packs a source with contiguous K: transposes 16 × 16 blocks. `flip` is XORed to the bits of each present
    /// element.
    #[inline(always)]
    unsafe fn columns<S: VectorLoad>(p: &PanelArgs<f32>, flip: f32) {
        let steps = p.k;
        // SAFETY: masks keep reads and writes within the lanes and K of source and panel.
        unsafe {
            let flip = _mm512_set1_ps(flip);
            for lane in (0..p.fill).step_by(16) {
                let lanes = p.lanes.saturating_sub(lane).min(16);
                let (present, write) = (mask(lanes), mask(p.fill - lane));
                let from = p.src.wrapping_add(lane * p.lane);
                for step in (0..steps).step_by(16) {
                    let read = if lanes > 0 { mask(steps - step) } else { 0 };
                    // Missing lanes read the last present one, and are zeroed at the store.
                    let mut square = [_mm512_setzero_ps(); 16];
                    for (i, row) in square.iter_mut().enumerate() {
                        let at = i.min(lanes.saturating_sub(1)) * p.lane + step * S::SIZE;
                        *row = S::load16(from.wrapping_add(at), read);
                    }
                    let square = transposed(square);
                    let to = p.dst.wrapping_add(step * p.stride + lane);
                    for (i, row) in square.iter().enumerate() {
                        if i < steps - step {
                            let row = _mm512_maskz_xor_ps(present, *row, flip);
                            _mm512_mask_storeu_ps(to.wrapping_add(i * p.stride), write, row);
                        }
                    }
                }
            }
        }
    }

    /// Prefetches a cache line into L2: lanes a power of two apart share few sets of L1.
    #[inline(always)]
    fn far(p: *const u8) {
        // SAFETY: a prefetch may have any address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) };
    }

    /// Transposes a block of 16 × 16 32-bit words.
    #[inline(always)]
    pub unsafe fn transposed_words(r: [__m512i; 16]) -> [__m512i; 16] {
        // SAFETY: the caller has AVX-512; both vector types have the same size, and any bits are valid.
        unsafe { std::mem::transmute(transposed(std::mem::transmute::<[__m512i; 16], [__m512; 16]>(r))) }
    }

    #[inline(always)]
    unsafe fn transposed(r: [__m512; 16]) -> [__m512; 16] {
        // SAFETY: the caller has AVX-512.
        unsafe {
            let zero = _mm512_setzero_ps();
            let (mut t, mut q, mut y) = ([zero; 16], [zero; 16], [zero; 16]);
            for i in 0..8 {
                t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
                t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
            }
            let low = |a, b| _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
            let high = |a, b| _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
            for i in 0..4 {
                q[4 * i] = low(t[4 * i], t[4 * i + 2]);
                q[4 * i + 1] = high(t[4 * i], t[4 * i + 2]);
                q[4 * i + 2] = low(t[4 * i + 1], t[4 * i + 3]);
                q[4 * i + 3] = high(t[4 * i + 1], t[4 * i + 3]);
            }
            // q[4i + c] has, in its quarter l, column 4l + c of rows 4i…4i+3.
            for c in 0..4 {
                let even = |a, b| _mm512_shuffle_f32x4::<0x88>(a, b);
                let odd = |a, b| _mm512_shuffle_f32x4::<0xdd>(a, b);
                let (e0, e1) = (even(q[c], q[4 + c]), even(q[8 + c], q[12 + c]));
                let (o0, o1) = (odd(q[c], q[4 + c]), odd(q[8 + c], q[12 + c]));
                y[c] = even(e0, e1);
                y[4 + c] = even(o0, o1);
                y[8 + c] = odd(e0, e1);
                y[12 + c] = odd(o0, o1);
            }
            y
        }
    }

    /// Packs pairs of bf16 along K, for adjacent GEMM panels of one source.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub unsafe fn halves(panels: &[PanelArgs<f32>]) {
        let Some(first) = panels.first() else { return };
        let whole = first.products.min(2 * first.k) / 2;
        // SAFETY: guaranteed by the contract of `PackFn`.
        unsafe {
            if first.step == 2 {
                // The two elements of a pair are adjacent: pairs are transposed as 32-bit words.
                panels
                    .iter()
                    .for_each(|p| columns::<WordLoad>(&PanelArgs { k: whole, products: whole, ..*p }, 0.0));
            } else if first.lane == 2 {
                halves_of_rows(panels, whole);
            } else {
                return panels.iter().for_each(|p| pairs_of_panel::<f32, i16>(p));
            }
            for p in panels.iter().filter(|p| whole < p.k) {
                pairs_of_panel::<f32, i16>(&PanelArgs {
                    src: p.src.wrapping_add(2 * whole * p.step),
                    dst: p.dst.wrapping_add(whole * p.stride),
                    k: p.k - whole,
                    products: p.products - 2 * whole,
                    ..*p
                });
            }
        }
    }

    /// Packs contiguous lanes: interleaves two source rows, across all panels.
    #[inline(always)]
    unsafe fn halves_of_rows(panels: &[PanelArgs<f32>], steps: usize) {
        for step in 0..steps {
            for p in panels {
                let from = p.src.wrapping_add(2 * step * p.step);
                (0..2).for_each(|i| prefetch(from.wrapping_add((2 * AHEAD + i) * p.step)));
                let to = p.dst.wrapping_add(step * p.stride);
                for lane in (0..p.fill).step_by(16) {
                    let (read, write) = (mask(p.lanes.saturating_sub(lane)), mask(p.fill - lane));
                    let from = from.wrapping_add(lane * 2);
                    // SAFETY: masks keep to the lanes of source and panel.
                    unsafe {
                        let row =
                            |p: *const u8| _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(read, p.cast()));
                        let (x, y) = (row(from), row(from.wrapping_add(p.step)));
                        let pairs = _mm512_or_si512(x, _mm512_slli_epi32::<16>(y));
                        _mm512_mask_storeu_epi32(to.wrapping_add(lane).cast(), write, pairs);
                    }
                }
            }
        }
    }

    /// Packs groups of four bytes along K, for adjacent GEMM panels of one source.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub unsafe fn quads<const FLIP: u32>(panels: &[PanelArgs<i32>]) {
        // SAFETY: guaranteed by the contract of `PackFn`.
        panels.iter().for_each(|p| unsafe { quads_of::<FLIP>(p) });
    }

    #[inline(always)]
    unsafe fn quads_of<const FLIP: u32>(p: &PanelArgs<i32>) {
        let full = p.products.min(4 * p.k) / 4;
        // SAFETY: guaranteed by the contract of `PackFn`.
        unsafe {
            if p.step == 1 {
                // The four bytes of a group are adjacent: groups are transposed as 32-bit words.
                let words = PanelArgs {
                    src: p.src,
                    lane: p.lane,
                    step: p.step,
                    lanes: p.lanes,
                    fill: p.fill,
                    k: full,
                    products: full,
                    dst: p.dst.cast::<f32>(),
                    stride: p.stride,
                };
                columns::<WordLoad>(&words, f32::from_bits(FLIP));
            } else if p.lane == 1 {
                interleaved::<FLIP>(p, full);
            } else {
                return quads_of_panel::<FLIP>(p);
            }
            if full < p.k {
                let rest = PanelArgs {
                    src: p.src.wrapping_add(4 * full * p.step),
                    dst: p.dst.wrapping_add(full * p.stride),
                    k: p.k - full,
                    products: p.products - 4 * full,
                    ..*p
                };
                quads_of_panel::<FLIP>(&rest);
            }
        }
    }

    /// Packs contiguous lanes: interleaves 16 bytes of each of four source rows.
    #[inline(always)]
    unsafe fn interleaved<const FLIP: u32>(p: &PanelArgs<i32>, steps: usize) {
        for step in 0..steps {
            let from = p.src.wrapping_add(4 * step * p.step);
            (0..4).for_each(|i| far(from.wrapping_add((4 * AHEAD + i) * p.step)));
            for lane in (0..p.fill).step_by(16) {
                let (read, write) = (mask(p.lanes.saturating_sub(lane)), mask(p.fill - lane));
                let from = from.wrapping_add(lane).cast::<i8>();
                // SAFETY: masks keep to the lanes of source and panel.
                unsafe {
                    let x = |i: usize| _mm_maskz_loadu_epi8(read, from.wrapping_add(i * p.step));
                    let (a, b, c, d) = (x(0), x(1), x(2), x(3));
                    let (ab, cd) = (_mm_unpacklo_epi8(a, b), _mm_unpacklo_epi8(c, d));
                    let (ab2, cd2) = (_mm_unpackhi_epi8(a, b), _mm_unpackhi_epi8(c, d));
                    let y = _mm512_castsi128_si512(_mm_unpacklo_epi16(ab, cd));
                    let y = _mm512_inserti32x4::<1>(y, _mm_unpackhi_epi16(ab, cd));
                    let y = _mm512_inserti32x4::<2>(y, _mm_unpacklo_epi16(ab2, cd2));
                    let y = _mm512_inserti32x4::<3>(y, _mm_unpackhi_epi16(ab2, cd2));
                    let y = _mm512_xor_si512(y, _mm512_set1_epi32(FLIP as i32));
                    _mm512_mask_storeu_epi32(p.dst.wrapping_add(step * p.stride + lane), write, y);
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::x86::VectorLoad;
    use super::{PanelArgs, part, plain_panel};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx2,fma,f16c")]
    pub unsafe fn panel<S: VectorLoad>(panels: &[PanelArgs<f32>]) {
        // SAFETY: guaranteed by the contract of `PackFn`.
        panels.iter().for_each(|p| unsafe { one::<S>(p) });
    }

    #[inline(always)]
    unsafe fn one<S: VectorLoad>(p: &PanelArgs<f32>) {
        // SAFETY: guaranteed by the contract of `PackFn`; whole vectors are read and written only where there are eight lanes.
        unsafe {
            if p.lane != S::SIZE && p.step != S::SIZE {
                return plain_panel::<f32, S::Cell>(p);
            }
            let whole = p.lanes / 8 * 8;
            for lane in (0..whole).step_by(8) {
                let (from, to) = (p.src.wrapping_add(lane * p.lane), p.dst.wrapping_add(lane));
                if p.lane == S::SIZE {
                    for step in 0..p.k {
                        _mm256_storeu_ps(to.add(step * p.stride), S::load8(from.add(step * p.step)));
                    }
                    continue;
                }
                for step in (0..p.k / 8 * 8).step_by(8) {
                    let mut square = [_mm256_setzero_ps(); 8];
                    for (i, row) in square.iter_mut().enumerate() {
                        *row = S::load8(from.add(i * p.lane + step * S::SIZE));
                    }
                    for (i, row) in transposed(square).iter().enumerate() {
                        _mm256_storeu_ps(to.add((step + i) * p.stride), *row);
                    }
                }
                part::<f32, S::Cell>(p, lane..lane + 8, p.k / 8 * 8..p.k);
            }
            let rest = PanelArgs {
                src: p.src.wrapping_add(whole * p.lane),
                dst: p.dst.wrapping_add(whole),
                lanes: p.lanes - whole,
                fill: p.fill - whole,
                ..*p
            };
            plain_panel::<f32, S::Cell>(&rest);
        }
    }

    #[inline(always)]
    unsafe fn transposed(r: [__m256; 8]) -> [__m256; 8] {
        // SAFETY: the caller has AVX2.
        unsafe {
            let zero = _mm256_setzero_ps();
            let (mut t, mut q, mut y) = ([zero; 8], [zero; 8], [zero; 8]);
            for i in 0..4 {
                t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
                t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
            }
            for i in 0..2 {
                q[4 * i] = _mm256_shuffle_ps::<0x44>(t[4 * i], t[4 * i + 2]);
                q[4 * i + 1] = _mm256_shuffle_ps::<0xee>(t[4 * i], t[4 * i + 2]);
                q[4 * i + 2] = _mm256_shuffle_ps::<0x44>(t[4 * i + 1], t[4 * i + 3]);
                q[4 * i + 3] = _mm256_shuffle_ps::<0xee>(t[4 * i + 1], t[4 * i + 3]);
            }
            for c in 0..4 {
                y[c] = _mm256_permute2f128_ps::<0x20>(q[c], q[4 + c]);
                y[4 + c] = _mm256_permute2f128_ps::<0x31>(q[c], q[4 + c]);
            }
            y
        }
    }
}
