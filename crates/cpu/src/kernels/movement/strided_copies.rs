//! Ops that only copy elements: transpose, slice, reverse, concatenate, pad, dynamic slices, gather.
//!
//! Each is one or more strided copies of boxes ([`BoxCopy`]): a few dimensions, each with a source and a destination
//! stride. For the ops of [`StaticCopies`] all offsets are known when the step is bound; dynamic slices and gather read
//! their offsets from operands and clamp them, as the ops' definitions require. Scatter combines elements and is in
//! [`super::scatter`].

use crate::kernel::copy::{BoxCopy, Dim, fill};
use crate::kernel::{Io, Kernel, KernelContext, Ptr};
use systole_compile::Step;
use systole_ir::op::{Gather, Pad};
use systole_ir::{DType, Op, Result, TensorType};

/// Returns row-major strides, in elements.
fn element_strides(t: &TensorType) -> Vec<isize> {
    t.shape.strides().iter().map(|&s| s as isize).collect()
}

/// Returns one copy per operand, to its offset along `dim` of the result, whose strides are `sy`.
fn concatenated(dim: usize, step: &Step, sy: &[isize]) -> Vec<BoxCopy> {
    let mut at = 0;
    let copy = |part: &TensorType| {
        let sp = element_strides(part);
        let dims: Vec<Dim> =
            (0..part.rank()).map(|d| Dim { size: part.shape[d], src: sp[d], dst: sy[d] }).collect();
        let copy = BoxCopy::new(part.dtype.size(), &dims, 0, at);
        at += part.shape[dim] as isize * sy[dim];
        copy
    };
    step.input_types.iter().map(copy).collect()
}

/// Returns the copy of the operand's elements that negative padding does not cut off.
fn padded(p: &Pad, x: &TensorType, y: &TensorType) -> BoxCopy {
    let (sx, sy) = (element_strides(x), element_strides(y));
    let (mut src_at, mut dst_at, mut box_dims) = (0, 0, Vec::new());
    for d in 0..y.rank() {
        let (low, step) = (p.low[d], p.interior[d] as i64 + 1);
        // Operand indices `i` with `low + i·step` in `0..size`.
        let first = if low < 0 { (-low + step - 1) / step } else { 0 };
        let end = ((y.shape[d] as i64 - low + step - 1).div_euclid(step)).min(x.shape[d] as i64);
        let count = (end - first).max(0) as usize;
        box_dims.push(Dim { size: count, src: sx[d], dst: sy[d] * step as isize });
        src_at += first as isize * sx[d];
        dst_at += (low + first * step) as isize * sy[d];
    }
    BoxCopy::new(y.dtype.size(), &box_dims, src_at, dst_at)
}

/// Copies whose offsets are known when the step is bound: copy `k` reads input `k`.
pub struct StaticCopies {
    copies: Vec<BoxCopy>,
    /// Type of the result if it is first filled with input 1, the padding value.
    fill: Option<TensorType>,
}

impl StaticCopies {
    /// Creates the copies of an op. `None` for ops that are not such copies.
    pub fn new(op: &Op, step: &Step) -> Option<StaticCopies> {
        let (x, y) = (step.input_types.first()?, step.output_types.first()?);
        let (sx, sy) = (element_strides(x), element_strides(y));
        // One copy to the whole result: the source's stride per dimension, and its first element.
        let one = |strides: &dyn Fn(usize) -> isize, first: isize| {
            let dims: Vec<Dim> =
                (0..y.rank()).map(|d| Dim { size: y.shape[d], src: strides(d), dst: sy[d] }).collect();
            vec![BoxCopy::new(y.dtype.size(), &dims, first, 0)]
        };
        let copies = match op {
            Op::Transpose(t) => one(&|d| sx[t.permutation[d]], 0),
            Op::Slice(s) => {
                let first = (0..y.rank()).map(|d| s.start[d] as isize * sx[d]).sum();
                one(&|d| sx[d] * s.strides[d] as isize, first)
            }
            Op::Reverse(r) => {
                let back = |d: usize| r.dims.contains(&d);
                let last =
                    (0..y.rank()).filter(|&d| back(d)).map(|d| (y.shape[d] as isize - 1) * sx[d]).sum();
                one(&|d| if back(d) { -sx[d] } else { sx[d] }, if y.elements() == 0 { 0 } else { last })
            }
            Op::Concatenate(c) => concatenated(c.dim, step, &sy),
            Op::Pad(p) => vec![padded(p, x, y)],
            _ => return None,
        };
        Some(StaticCopies { copies, fill: matches!(op, Op::Pad(_)).then_some(y.clone()) })
    }
}

impl Kernel for StaticCopies {
    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let out = io.outputs[0];
        if let Some(ty) = &self.fill {
            // SAFETY: the padding value is a scalar of the result's element type.
            unsafe { fill(cx, out, ty.elements(), ty.dtype.size(), io.inputs[1]) };
        }
        for (copy, &src) in self.copies.iter().zip(io.inputs) {
            // SAFETY: `StaticCopies::new` creates boxes that are inside both arrays.
            unsafe { copy.run(cx, src, out) };
        }
        Ok(())
    }
}

/// Reads index element `i`. A u64 beyond the range of i64 saturates, which changes nothing: it is out of bounds of
/// every array, and callers clamp it if the op clamps indices.
///
/// # Safety
/// `p` points to an array of `dtype` that has element `i`.
pub unsafe fn index_at(p: *const u8, dtype: DType, i: usize) -> i64 {
    // SAFETY: by the caller's promise, `p` points to an array of `dtype` that has element `i`.
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

/// Start indices, one scalar operand per dimension, clamped so that the block is inside the array.
struct ClampedStarts {
    dtypes: Vec<DType>,
    /// Maximum valid start per dimension.
    max: Vec<i64>,
}

impl ClampedStarts {
    fn new(types: &[TensorType], whole: &TensorType, block: &TensorType) -> ClampedStarts {
        let max = (0..whole.rank()).map(|d| whole.shape[d] as i64 - block.shape[d] as i64).collect();
        ClampedStarts { dtypes: types.iter().map(|t| t.dtype).collect(), max }
    }

    /// Returns the offset of the block's first element in an array with these strides, in elements.
    unsafe fn offset(&self, inputs: &[*const u8], strides: &[isize]) -> isize {
        let mut at = 0;
        for (d, &p) in inputs.iter().enumerate() {
            // SAFETY: by the caller's promise, each input is a scalar of its type in `dtypes`.
            let start = unsafe { index_at(p, self.dtypes[d], 0) }.clamp(0, self.max[d]);
            at += start as isize * strides[d];
        }
        at
    }
}

/// Kernel of `dynamic_slice`: a slice whose start indices are operands 1 and up.
pub struct DynamicSliceKernel {
    /// The copy for start 0.
    copy: BoxCopy,
    starts: ClampedStarts,
    /// Strides of the operand, in elements.
    strides: Vec<isize>,
}

impl DynamicSliceKernel {
    /// Creates the kernel of a `dynamic_slice` step.
    pub fn new(step: &Step) -> DynamicSliceKernel {
        let (x, y) = (&step.input_types[0], &step.output_types[0]);
        let (strides, sy) = (element_strides(x), element_strides(y));
        let dims: Vec<Dim> =
            (0..y.rank()).map(|d| Dim { size: y.shape[d], src: strides[d], dst: sy[d] }).collect();
        let starts = ClampedStarts::new(&step.input_types[1..], x, y);
        DynamicSliceKernel { copy: BoxCopy::new(y.dtype.size(), &dims, 0, 0), starts, strides }
    }
}

impl Kernel for DynamicSliceKernel {
    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: starts are clamped, so the block is inside the operand.
        unsafe {
            let at = self.starts.offset(&io.inputs[1..], &self.strides);
            let moved = self.copy.from(at);
            moved.run(cx, io.inputs[0], io.outputs[0]);
        }
        Ok(())
    }

    unsafe fn part_at(&self, inputs: &[*const u8]) -> usize {
        // SAFETY: by the caller's promise, the indices can be read.
        unsafe { self.starts.offset(&inputs[1..], &self.strides) as usize * self.copy.size() }
    }
}

/// Kernel of `dynamic_update_slice`: operand 0 with a block overwritten by operand 1.
///
/// The block's start indices are operands 2 and up. It runs in place if the buffer plan gives operand 0 and the result
/// the same memory.
pub struct DynamicUpdateSliceKernel {
    /// Copies operand 0, as bytes.
    whole: BoxCopy,
    /// The copy of the block for start 0.
    copy: BoxCopy,
    starts: ClampedStarts,
    /// Strides of the result, in elements.
    strides: Vec<isize>,
}

impl DynamicUpdateSliceKernel {
    /// Creates the kernel of a `dynamic_update_slice` step.
    pub fn new(step: &Step) -> DynamicUpdateSliceKernel {
        let (x, update, y) = (&step.input_types[0], &step.input_types[1], &step.output_types[0]);
        let (su, strides) = (element_strides(update), element_strides(y));
        let dims: Vec<Dim> =
            (0..y.rank()).map(|d| Dim { size: update.shape[d], src: su[d], dst: strides[d] }).collect();
        DynamicUpdateSliceKernel {
            whole: BoxCopy::new(1, &[Dim { size: y.bytes(), src: 1, dst: 1 }], 0, 0),
            copy: BoxCopy::new(y.dtype.size(), &dims, 0, 0),
            starts: ClampedStarts::new(&step.input_types[2..], x, update),
            strides,
        }
    }
}

impl Kernel for DynamicUpdateSliceKernel {
    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let out = io.outputs[0];
        // SAFETY: operand and result have one type; starts are clamped, so the block is inside the result.
        unsafe {
            if !std::ptr::eq(io.inputs[0], out) {
                self.whole.run(cx, io.inputs[0], out);
            }
            let at = self.starts.offset(&io.inputs[2..], &self.strides);
            let moved = self.copy.to(at);
            moved.run(cx, io.inputs[1], out);
        }
        Ok(())
    }
}

/// Kernel of `gather`: copies one box of the operand per index vector. The index vectors are independent, so threads
/// share them.
pub struct GatherKernel {
    /// The copy for index vector 0 and start 0.
    copy: BoxCopy,
    index_dtype: DType,
    /// Per batch dimension of the indices: size, then its stride in the indices, in the result and in the operand (0
    /// unless it is a batching dimension), in elements.
    batch: Vec<[usize; 4]>,
    /// Per component of an index vector: its dimension's stride in the operand, and the maximum valid start.
    components: Vec<(usize, i64)>,
    /// Stride between components of an index vector.
    component_stride: usize,
}

impl GatherKernel {
    /// Creates the kernel of a `gather` step.
    pub fn new(g: &Gather, step: &Step) -> GatherKernel {
        let (x, indices, y) = (&step.input_types[0], &step.input_types[1], &step.output_types[0]);
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

    /// Copies the box of index vector `i`.
    unsafe fn one(&self, mut i: usize, x: *const u8, indices: *const u8, out: *mut u8) {
        let (mut at_index, mut at_out, mut at_x) = (0, 0, 0isize);
        for &[size, index, result, operand] in self.batch.iter().rev() {
            let k = i % size;
            i /= size;
            at_index += k * index;
            at_out += k * result;
            at_x += (k * operand) as isize;
        }
        // SAFETY: by the caller's promise, `i` is less than the number of index vectors; starts are clamped, so the box
        // is inside the operand.
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
    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let count: usize = self.batch.iter().map(|b| b[0]).product();
        let (x, indices, out) = (Ptr::of(io.inputs[0]), Ptr::of(io.inputs[1]), Ptr(io.outputs[0]));
        let bytes = self.copy.elements() * self.copy.size();
        // Index vectors per block of the parallel loop: about 16 KiB of copies.
        let group = (16_384 / bytes.max(16)).max(1);
        let body = |block: usize| {
            for i in block * group..((block + 1) * group).min(count) {
                // SAFETY: `i` is below `count`; index vectors write disjoint elements of the result.
                unsafe { self.one(i, x.at(0), indices.at(0), out.at(0)) };
            }
        };
        let work = count as f64 * (bytes as f64 * 0.1 + 15.0);
        cx.team.run_with(count.div_ceil(group), work, cx.flush, &body);
        Ok(())
    }
}
