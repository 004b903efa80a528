//! Ops that move elements: transpose, slice, reverse, pad, concatenate, dynamic slices, gather.
//!
//! All are copies of boxes: some dimensions, each with a distance in the source and one in the target.

use crate::kernel::Cx;
use crate::kernel::{Io, Kernel, Ptr};
use smallvec::SmallVec;
use systole_compile::Step;
use systole_ir::op::Gather;
use systole_ir::{DType, Op, Result, TensorType};

/// One dimension of a box.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dim {
    /// How many.
    pub size: usize,
    /// Distance in the source, in elements.
    pub src: isize,
    /// Distance in the target.
    pub dst: isize,
}

/// A copy of elements that lie in a box.
#[derive(Clone, Debug)]
pub struct BoxCopy {
    size: usize,
    dims: SmallVec<[Dim; 6]>,
    src: isize,
    dst: isize,
}

/// Bytes that one block of the parallel loop moves, at the least.
const BLOCK_BYTES: usize = 64 << 10;
/// Edge of a tile of a transposition.
const EDGE: usize = 16;
/// Lines that are few, and elements of them that are moved before those of the next: the nearest cache holds them all.
const FEW: usize = 32;
const LONG: usize = 256;

impl BoxCopy {
    /// A copy of elements of `size` bytes, from element `src` to element `dst` on.
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

    /// Elements moved.
    pub fn elements(&self) -> usize {
        self.dims.iter().map(|d| d.size).product()
    }

    /// Copies, all threads sharing the work.
    ///
    /// # Safety
    /// Every element of the box exists in the source and, once only, in the target; they do not overlap.
    pub unsafe fn run(&self, cx: &Cx<'_>, src: *const u8, dst: *mut u8) {
        let (src, dst) = (Ptr::of(src), Ptr(dst));
        let bytes = self.elements() * self.size;
        // The outermost dimension is cut into strips, and a single long run into pieces; of a matrix that is transposed, the
        // longer one, so that no line is read for several strips.
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
            // SAFETY: the strips are disjoint parts of the box.
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

    /// Copies on this thread, with offsets added to the box's own.
    ///
    /// # Safety
    /// As for [`BoxCopy::run`].
    pub unsafe fn run_here(&self, src: *const u8, src_at: isize, dst: *mut u8, dst_at: isize) {
        // SAFETY: by the caller's promise.
        unsafe { copy_box(self.size, &self.dims, self.src + src_at, self.dst + dst_at, src, dst) }
    }
}

unsafe fn copy_box(size: usize, dims: &[Dim], src_at: isize, dst_at: isize, src: *const u8, dst: *mut u8) {
    // SAFETY: by the caller's promise; types of a size move any elements of that size.
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
    // The dimension along which the source is contiguous, when that is not the last one.
    let along = outer.iter().rposition(|d| d.src == 1 && d.size > 1);
    // SAFETY: by the caller's promise.
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
        // SAFETY: inside the box.
        unsafe {
            each_index(rest, src.wrapping_offset(i * first.src), dst.wrapping_offset(i * first.dst), f)
        };
    }
}

unsafe fn copy_line<T: Copy>(d: Dim, src: *const T, dst: *mut T) {
    // SAFETY: inside the box.
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

/// Source contiguous along `a`, target along `b`: tile by tile, so that both sides use whole cache lines; of few lines,
/// line by line.
unsafe fn transpose<T: Copy>(a: Dim, b: Dim, src: *const T, dst: *mut T) {
    if a.size.min(b.size) <= FEW {
        // The long dimension, and lines of it side by side.
        let (long, few) = if b.size >= a.size { (b, a) } else { (a, b) };
        for from in (0..long.size).step_by(LONG) {
            let to = (from + LONG).min(long.size);
            for k in 0..few.size as isize {
                let (src, dst) = (src.wrapping_offset(k * few.src), dst.wrapping_offset(k * few.dst));
                for i in from as isize..to as isize {
                    // SAFETY: inside the box.
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
                    // SAFETY: inside the box.
                    unsafe { *dst.offset(i * a.dst + j) = *src.offset(i + j * b.src) };
                }
            }
        }
    }
}

/// The kernel of an op of this family; `None`: not of this family.
pub fn bind(op: &Op, step: &Step) -> Option<Box<dyn Kernel>> {
    let (x, y) = (step.input_types.first()?, step.output_types.first()?);
    let size = y.dtype.size();
    let own = |t: &TensorType| -> Vec<isize> { t.shape.strides().iter().map(|&s| s as isize).collect() };
    let (sx, sy) = (own(x), own(y));
    let dims = |f: &dyn Fn(usize) -> Dim| -> Vec<Dim> { (0..y.rank()).map(f).collect() };
    let copies = |copies: Vec<BoxCopy>, fill: bool| -> Option<Box<dyn Kernel>> {
        Some(Box::new(Copies { copies, fill: fill.then_some(y.clone()) }))
    };
    match op {
        Op::Transpose(t) => {
            let d = dims(&|d| Dim { size: y.shape[d], src: sx[t.permutation[d]], dst: sy[d] });
            copies(vec![BoxCopy::new(size, &d, 0, 0)], false)
        }
        Op::Slice(s) => {
            let d = dims(&|d| Dim { size: y.shape[d], src: sx[d] * s.strides[d] as isize, dst: sy[d] });
            let at = (0..y.rank()).map(|d| s.start[d] as isize * sx[d]).sum();
            copies(vec![BoxCopy::new(size, &d, at, 0)], false)
        }
        Op::Reverse(r) => {
            let back = |d: usize| r.dims.contains(&d);
            let d =
                dims(&|d| Dim { size: y.shape[d], src: if back(d) { -sx[d] } else { sx[d] }, dst: sy[d] });
            let at = (0..y.rank()).filter(|&d| back(d)).map(|d| (y.shape[d] as isize - 1) * sx[d]).sum();
            copies(vec![BoxCopy::new(size, &d, if y.elements() == 0 { 0 } else { at }, 0)], false)
        }
        Op::Concatenate(c) => {
            let mut parts = Vec::new();
            let mut at = 0;
            for part in &step.input_types {
                let sp = own(part);
                let d: Vec<Dim> =
                    (0..y.rank()).map(|d| Dim { size: part.shape[d], src: sp[d], dst: sy[d] }).collect();
                parts.push(BoxCopy::new(size, &d, 0, at));
                at += part.shape[c.dim] as isize * sy[c.dim];
            }
            copies(parts, false)
        }
        Op::Pad(p) => {
            let (mut src_at, mut dst_at, mut box_dims) = (0, 0, Vec::new());
            for d in 0..y.rank() {
                let (low, step) = (p.low[d], p.interior[d] as i64 + 1);
                // Operand coordinates that land inside: low + i·step in 0..size.
                let first = if low < 0 { (-low + step - 1) / step } else { 0 };
                let end = ((y.shape[d] as i64 - low + step - 1).div_euclid(step)).min(x.shape[d] as i64);
                let count = (end - first).max(0) as usize;
                box_dims.push(Dim { size: count, src: sx[d], dst: sy[d] * step as isize });
                src_at += first as isize * sx[d];
                dst_at += (low + first * step) as isize * sy[d];
            }
            copies(vec![BoxCopy::new(size, &box_dims, src_at, dst_at)], true)
        }
        Op::DynamicSlice(_) => {
            let d = dims(&|d| Dim { size: y.shape[d], src: sx[d], dst: sy[d] });
            let starts = Starts::new(&step.input_types[1..], x, y);
            Some(Box::new(DynamicSliceKernel { copy: BoxCopy::new(size, &d, 0, 0), starts, strides: sx }))
        }
        Op::DynamicUpdateSlice(_) => {
            let update = &step.input_types[1];
            let su = own(update);
            let d = dims(&|d| Dim { size: update.shape[d], src: su[d], dst: sy[d] });
            let starts = Starts::new(&step.input_types[2..], x, update);
            let whole = BoxCopy::new(1, &[Dim { size: y.bytes(), src: 1, dst: 1 }], 0, 0);
            Some(Box::new(DynamicUpdateSliceKernel {
                whole,
                copy: BoxCopy::new(size, &d, 0, 0),
                starts,
                strides: sy,
            }))
        }
        Op::Gather(g) => Some(Box::new(GatherKernel::new(g, x, &step.input_types[1], y))),
        _ => None,
    }
}

/// Boxes copied from the inputs in order; before that the result is filled with the last input, when asked.
struct Copies {
    copies: Vec<BoxCopy>,
    fill: Option<TensorType>,
}

impl Kernel for Copies {
    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        let out = io.outputs[0];
        if let Some(ty) = &self.fill {
            // SAFETY: the padding value is a scalar of the result's element type.
            unsafe { fill(cx, out, ty.elements(), ty.dtype.size(), io.inputs[1]) };
        }
        for (copy, &src) in self.copies.iter().zip(io.inputs) {
            // SAFETY: boxes were built inside both arrays.
            unsafe { copy.run(cx, src, out) };
        }
        Ok(())
    }
}

/// Repeats the element at `value` `n` times.
///
/// # Safety
/// `out` has room for `n` elements of `size` bytes.
pub unsafe fn fill(cx: &Cx<'_>, out: *mut u8, n: usize, size: usize, value: *const u8) {
    const BLOCK: usize = 1 << 16;
    let (out, value) = (Ptr(out), Ptr::of(value));
    let body = |block: usize| {
        let from = block * BLOCK;
        let len = BLOCK.min(n - from);
        // SAFETY: blocks are disjoint parts of the output.
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
    // SAFETY: the caller has `n` elements there.
    unsafe { std::slice::from_raw_parts_mut(out, n) }.fill(value);
}

/// Reads an index element; values beyond i64 saturate, which clamping makes harmless.
pub unsafe fn index_at(p: *const u8, dtype: DType, i: usize) -> i64 {
    // SAFETY: the caller has element `i` of that type.
    unsafe {
        match dtype {
            DType::I8 => *p.cast::<i8>().add(i) as i64,
            DType::I16 => *p.cast::<i16>().add(i) as i64,
            DType::I32 => *p.cast::<i32>().add(i) as i64,
            DType::I64 => *p.cast::<i64>().add(i),
            DType::U8 => *p.cast::<u8>().add(i) as i64,
            DType::U16 => *p.cast::<u16>().add(i) as i64,
            DType::U32 => *p.cast::<u32>().add(i) as i64,
            _ => (*p.cast::<u64>().add(i)).min(i64::MAX as u64) as i64,
        }
    }
}

/// Start indices as scalar operands, clamped so that the block lies inside.
struct Starts {
    dtypes: Vec<DType>,
    most: Vec<i64>,
}

impl Starts {
    fn new(types: &[TensorType], whole: &TensorType, block: &TensorType) -> Starts {
        let most = (0..whole.rank()).map(|d| whole.shape[d] as i64 - block.shape[d] as i64).collect();
        Starts { dtypes: types.iter().map(|t| t.dtype).collect(), most }
    }

    unsafe fn offset(&self, inputs: &[*const u8], strides: &[isize]) -> isize {
        let mut at = 0;
        for (d, &p) in inputs.iter().enumerate() {
            // SAFETY: each is a scalar of its type.
            let start = unsafe { index_at(p, self.dtypes[d], 0) }.clamp(0, self.most[d]);
            at += start as isize * strides[d];
        }
        at
    }
}

struct DynamicSliceKernel {
    copy: BoxCopy,
    starts: Starts,
    strides: Vec<isize>,
}

impl Kernel for DynamicSliceKernel {
    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: the block lies inside the operand for every start, which is clamped.
        unsafe {
            let at = self.starts.offset(&io.inputs[1..], &self.strides);
            let moved = BoxCopy { src: at, ..self.copy.clone() };
            moved.run(cx, io.inputs[0], io.outputs[0]);
        }
        Ok(())
    }

    unsafe fn part_at(&self, inputs: &[*const u8]) -> usize {
        // SAFETY: by the caller's promise.
        unsafe { self.starts.offset(&inputs[1..], &self.strides) as usize * self.copy.size }
    }
}

struct DynamicUpdateSliceKernel {
    whole: BoxCopy,
    copy: BoxCopy,
    starts: Starts,
    strides: Vec<isize>,
}

impl Kernel for DynamicUpdateSliceKernel {
    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        let out = io.outputs[0];
        // SAFETY: operand and result have one type; the block lies inside for every start, which is clamped.
        unsafe {
            if !std::ptr::eq(io.inputs[0], out) {
                self.whole.run(cx, io.inputs[0], out);
            }
            let at = self.starts.offset(&io.inputs[2..], &self.strides);
            let moved = BoxCopy { dst: at, ..self.copy.clone() };
            moved.run(cx, io.inputs[1], out);
        }
        Ok(())
    }
}

/// `gather`: a box of the operand for each index vector.
struct GatherKernel {
    copy: BoxCopy,
    index_dtype: DType,
    /// Result positions of the index vectors: size, distance in the indices, in the result, in the operand (for
    /// batching dimensions).
    batch: Vec<[usize; 4]>,
    /// For each component of an index vector: distance in the operand and greatest start.
    components: Vec<(usize, i64)>,
    component_stride: usize,
}

impl GatherKernel {
    fn new(g: &Gather, x: &TensorType, indices: &TensorType, y: &TensorType) -> GatherKernel {
        let (sx, si, sy) = (x.shape.strides(), indices.shape.strides(), y.shape.strides());
        let sliced: Vec<usize> = (0..x.rank())
            .filter(|d| !g.collapsed_slice_dims.contains(d) && !g.operand_batching_dims.contains(d))
            .collect();
        let dims: Vec<Dim> = sliced
            .iter()
            .zip(&g.offset_dims)
            .map(|(&d, &o)| Dim { size: g.slice_sizes[d], src: sx[d] as isize, dst: sy[o] as isize })
            .collect();
        let batch_dims = (0..y.rank()).filter(|d| !g.offset_dims.contains(d));
        let index_dims = (0..indices.rank()).filter(|&d| d != g.index_vector_dim);
        let batch = index_dims
            .zip(batch_dims)
            .map(|(i, o)| {
                let paired = g.start_indices_batching_dims.iter().position(|&b| b == i);
                let in_operand = paired.map_or(0, |k| sx[g.operand_batching_dims[k]]);
                [indices.shape[i], si[i], sy[o], in_operand]
            })
            .collect();
        let components =
            g.start_index_map.iter().map(|&d| (sx[d], x.shape[d] as i64 - g.slice_sizes[d] as i64)).collect();
        let component_stride = si.get(g.index_vector_dim).copied().unwrap_or(0);
        let copy = BoxCopy::new(y.dtype.size(), &dims, 0, 0);
        GatherKernel { copy, index_dtype: indices.dtype, batch, components, component_stride }
    }

    unsafe fn one(&self, mut i: usize, x: *const u8, indices: *const u8, out: *mut u8) {
        let (mut at_index, mut at_out, mut at_x) = (0, 0, 0isize);
        for &[size, index, result, operand] in self.batch.iter().rev() {
            let k = i % size;
            i /= size;
            at_index += k * index;
            at_out += k * result;
            at_x += (k * operand) as isize;
        }
        // SAFETY: the index vector exists; starts are clamped so that the box lies inside the operand.
        unsafe {
            for (k, &(stride, most)) in self.components.iter().enumerate() {
                let at = at_index + k * self.component_stride;
                at_x += index_at(indices, self.index_dtype, at).clamp(0, most) as isize * stride as isize;
            }
            self.copy.run_here(x, at_x, out, at_out as isize);
        }
    }
}

impl Kernel for GatherKernel {
    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        let count: usize = self.batch.iter().map(|b| b[0]).product();
        let (x, indices, out) = (Ptr::of(io.inputs[0]), Ptr::of(io.inputs[1]), Ptr(io.outputs[0]));
        let bytes = self.copy.elements() * self.copy.size;
        let group = (16_384 / bytes.max(16)).max(1);
        let body = |block: usize| {
            for i in block * group..((block + 1) * group).min(count) {
                // SAFETY: each index vector owns its part of the result.
                unsafe { self.one(i, x.at(0), indices.at(0), out.at(0)) };
            }
        };
        let work = count as f64 * (bytes as f64 * 0.1 + 15.0);
        cx.team.run_with(count.div_ceil(group), work, cx.flush, &body);
        Ok(())
    }
}
