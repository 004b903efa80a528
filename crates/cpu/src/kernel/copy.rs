//! Strided N-dimensional copies: transpose, slice, the interior of pad, and reordering of operands.
//!
//! A copy has a list of dimensions, each with a size and a stride in source and destination. Dimensions that are
//! contiguous to each other on both sides are merged. Two-dimensional transposition is blocked for cache lines.

use crate::kernel::{KernelContext, Ptr};
use smallvec::SmallVec;

/// One dimension of a strided copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dim {
    /// Number of indices.
    pub size: usize,
    /// Stride in the source, in elements.
    pub src: isize,
    /// Stride in the destination, in elements.
    pub dst: isize,
}

/// A strided copy of an N-dimensional box.
#[derive(Clone, Debug)]
pub struct BoxCopy {
    size: usize,
    dims: SmallVec<[Dim; 6]>,
    src: isize,
    dst: isize,
}

/// Minimum bytes per task of the parallel loop.
const BLOCK_BYTES: usize = 64 << 10;
/// Edge of a square transposition tile, in elements.
const EDGE: usize = 16;
/// If a transposition has a dimension of at most `FEW`, the other one is blocked by `LONG` elements, so that a block
/// stays in L1.
const FEW: usize = 32;
const LONG: usize = 256;

impl BoxCopy {
    /// Creates a copy of elements of `size` bytes, from source element `src` to destination element `dst`.
    pub fn new(size: usize, dims: &[Dim], src: isize, dst: isize) -> BoxCopy {
        let mut kept: SmallVec<[Dim; 6]> = SmallVec::new();
        let empty = dims.iter().any(|d| d.size == 0);
        for &d in dims.iter().filter(|d| d.size != 1) {
            match kept.last_mut() {
                Some(p) if p.src == d.src * d.size as isize && p.dst == d.dst * d.size as isize => {
                    *p = Dim { size: p.size * d.size, ..d };
                }
                _ => kept.push(d),
            }
        }
        if empty {
            kept = SmallVec::from_slice(&[Dim { size: 0, src: 1, dst: 1 }]);
        }
        if kept.is_empty() {
            kept.push(Dim { size: 1, src: 1, dst: 1 });
        }
        BoxCopy { size, dims: kept, src, dst }
    }

    /// Returns the same copy, from source element `src`.
    pub fn from(&self, src: isize) -> BoxCopy {
        BoxCopy { src, ..self.clone() }
    }

    /// Returns the same copy, to destination element `dst`.
    pub fn to(&self, dst: isize) -> BoxCopy {
        BoxCopy { dst, ..self.clone() }
    }

    /// Returns the size of one copied element in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the number of copied elements.
    pub fn elements(&self) -> usize {
        self.dims.iter().map(|d| d.size).product()
    }

    /// Runs the strided copy in parallel.
    ///
    /// # Safety
    /// All indices are inside source and destination; no two map to the same destination element; the arrays do not
    /// overlap.
    pub unsafe fn run(&self, cx: &KernelContext<'_>, src: *const u8, dst: *mut u8) {
        let (src, dst) = (Ptr::of(src), Ptr(dst));
        let bytes = self.elements() * self.size;
        // The outermost dimension is divided among tasks. For a transposition it is the longer one, so that tasks share
        // as few cache lines as possible.
        let cut = match &self.dims[..] {
            [a, b] if b.src != 1 && b.size > a.size => 1,
            _ => 0,
        };
        let outer = self.dims[cut].size;
        let strip = (BLOCK_BYTES * outer.max(1)).div_ceil(bytes.max(1)).clamp(1, outer.max(1));
        let body = |block: usize| {
            let from = block * strip;
            let size = strip.min(outer - from);
            let first = self.dims[cut];
            let mut dims = self.dims.clone();
            dims[cut].size = size;
            let at = |base: isize, step: isize| base + from as isize * step;
            // SAFETY: guaranteed by the caller; strips are disjoint parts of the box.
            unsafe {
                copy_box(
                    self.size,
                    &dims,
                    at(self.src, first.src),
                    at(self.dst, first.dst),
                    src.at(0),
                    dst.at(0),
                );
            }
        };
        cx.team.run_with(outer.div_ceil(strip), bytes as f64 * 0.1, cx.flush, &body);
    }

    /// Runs the strided copy on this thread, with offsets in elements added to the copy's own.
    ///
    /// # Safety
    /// As for [`BoxCopy::run`].
    pub unsafe fn run_here(&self, src: *const u8, src_at: isize, dst: *mut u8, dst_at: isize) {
        // SAFETY: guaranteed by the caller.
        unsafe { copy_box(self.size, &self.dims, self.src + src_at, self.dst + dst_at, src, dst) }
    }
}

unsafe fn copy_box(size: usize, dims: &[Dim], src_at: isize, dst_at: isize, src: *const u8, dst: *mut u8) {
    // SAFETY: guaranteed by the caller; an integer of the same size copies the bits of any element.
    unsafe {
        match size {
            1 => copy_dims::<u8>(dims, src.cast::<u8>().offset(src_at), dst.cast::<u8>().offset(dst_at)),
            2 => copy_dims::<u16>(dims, src.cast::<u16>().offset(src_at), dst.cast::<u16>().offset(dst_at)),
            4 => copy_dims::<u32>(dims, src.cast::<u32>().offset(src_at), dst.cast::<u32>().offset(dst_at)),
            _ => copy_dims::<u64>(dims, src.cast::<u64>().offset(src_at), dst.cast::<u64>().offset(dst_at)),
        }
    }
}

unsafe fn copy_dims<T: Copy>(dims: &[Dim], src: *const T, dst: *mut T) {
    let Some((last, outer)) = dims.split_last() else { return };
    // The dimension along which the source is contiguous, if it is not the last one: a transposition.
    let along = outer.iter().rposition(|d| d.src == 1 && d.size > 1);
    // SAFETY: guaranteed by the caller.
    unsafe {
        match along {
            Some(k) if last.src != 1 && last.dst == 1 => {
                let rest: SmallVec<[Dim; 6]> =
                    outer.iter().enumerate().filter(|(d, _)| *d != k).map(|(_, d)| *d).collect();
                each_index(&rest, src, dst, &mut |s, d| transpose(outer[k], *last, s, d));
            }
            _ => each_index(outer, src, dst, &mut |s, d| copy_line(*last, s, d)),
        }
    }
}

unsafe fn each_index<T>(dims: &[Dim], src: *const T, dst: *mut T, f: &mut impl FnMut(*const T, *mut T)) {
    let Some((first, rest)) = dims.split_first() else { return f(src, dst) };
    for i in 0..first.size as isize {
        // SAFETY: the caller guarantees that these indices are inside both arrays.
        unsafe {
            each_index(rest, src.wrapping_offset(i * first.src), dst.wrapping_offset(i * first.dst), f)
        };
    }
}

unsafe fn copy_line<T: Copy>(d: Dim, src: *const T, dst: *mut T) {
    // SAFETY: the caller guarantees that these indices are inside both arrays.
    unsafe {
        match (d.src, d.dst) {
            (1, 1) => std::ptr::copy_nonoverlapping(src, dst, d.size),
            (s, t) => {
                for i in 0..d.size as isize {
                    *dst.offset(i * t) = *src.offset(i * s);
                }
            }
        }
    }
}

/// Transposes: source contiguous along `a`, destination along `b`. Works in square tiles, so that both sides use whole
/// cache lines; if one dimension is short, along the long one.
unsafe fn transpose<T: Copy>(a: Dim, b: Dim, src: *const T, dst: *mut T) {
    if a.size.min(b.size) <= FEW {
        // For each index of the short dimension, a run of the long one.
        let (long, few) = if b.size >= a.size { (b, a) } else { (a, b) };
        for from in (0..long.size).step_by(LONG) {
            let to = (from + LONG).min(long.size);
            for k in 0..few.size as isize {
                let (src, dst) = (src.wrapping_offset(k * few.src), dst.wrapping_offset(k * few.dst));
                for i in from as isize..to as isize {
                    // SAFETY: the caller guarantees that these indices are inside both arrays.
                    unsafe { *dst.offset(i * long.dst) = *src.offset(i * long.src) };
                }
            }
        }
        return;
    }
    for i0 in (0..a.size).step_by(EDGE) {
        for j0 in (0..b.size).step_by(EDGE) {
            for i in i0..(i0 + EDGE).min(a.size) {
                for j in j0..(j0 + EDGE).min(b.size) {
                    let (i, j) = (i as isize, j as isize);
                    // SAFETY: the caller guarantees that these indices are inside both arrays.
                    unsafe { *dst.offset(i * a.dst + j) = *src.offset(i + j * b.src) };
                }
            }
        }
    }
}

/// Fills `n` elements with the element at `value`, in parallel.
///
/// # Safety
/// `out` has room for `n` elements of `size` bytes.
pub unsafe fn fill(cx: &KernelContext<'_>, out: *mut u8, n: usize, size: usize, value: *const u8) {
    const BLOCK: usize = 1 << 16;
    let (out, value) = (Ptr(out), Ptr::of(value));
    let body = |block: usize| {
        let from = block * BLOCK;
        let len = BLOCK.min(n - from);
        // SAFETY: blocks are disjoint parts of the output; `value` has one element of `size` bytes.
        unsafe {
            match size {
                1 => fill_with::<u8>(out.elem(from), len, *value.elem(0)),
                2 => fill_with::<u16>(out.elem(from), len, *value.elem(0)),
                4 => fill_with::<u32>(out.elem(from), len, *value.elem(0)),
                _ => fill_with::<u64>(out.elem(from), len, *value.elem(0)),
            }
        }
    };
    cx.team.run_with(n.div_ceil(BLOCK), (n * size) as f64 * 0.05, cx.flush, &body);
}

unsafe fn fill_with<T: Copy>(out: *mut T, n: usize, value: T) {
    // SAFETY: the caller guarantees that `out` has room for `n` elements.
    unsafe { std::slice::from_raw_parts_mut(out, n) }.fill(value);
}
