//! Ops that move elements: transpose, slice, reverse, pad, concatenate, dynamic slices, gather.
//!
//! All are copies of boxes: some dimensions, each with a distance in the source and one in the target.

use crate::kernel::copy::{BoxCopy, Dim, fill};
use crate::kernel::{Cx, Io, Kernel, Ptr};
use systole_compile::Step;
use systole_ir::op::{Gather, Pad};
use systole_ir::{DType, Op, Result, TensorType};

/// The kernel of an op of this family; `None`: not of this family.
pub fn bind(op: &Op, step: &Step) -> Option<Box<dyn Kernel>> {
    let (x, y) = (step.input_types.first()?, step.output_types.first()?);
    let size = y.dtype.size();
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
        Op::Concatenate(c) => copies(joined(c.dim, step, &sy), false),
        Op::Pad(p) => copies(vec![padded(p, x, y)], true),
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

/// Distances between neighbours along each dimension, in elements.
fn own(t: &TensorType) -> Vec<isize> {
    t.shape.strides().iter().map(|&s| s as isize).collect()
}

/// Each operand to its place along `dim` in a result with strides `sy`.
fn joined(dim: usize, step: &Step, sy: &[isize]) -> Vec<BoxCopy> {
    let mut at = 0;
    let copy = |part: &TensorType| {
        let sp = own(part);
        let dims: Vec<Dim> =
            (0..part.rank()).map(|d| Dim { size: part.shape[d], src: sp[d], dst: sy[d] }).collect();
        let copy = BoxCopy::new(part.dtype.size(), &dims, 0, at);
        at += part.shape[dim] as isize * sy[dim];
        copy
    };
    step.input_types.iter().map(copy).collect()
}

/// The part of the operand that lands inside the result.
fn padded(p: &Pad, x: &TensorType, y: &TensorType) -> BoxCopy {
    let (sx, sy) = (own(x), own(y));
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
    BoxCopy::new(y.dtype.size(), &box_dims, src_at, dst_at)
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
            let moved = self.copy.from(at);
            moved.run(cx, io.inputs[0], io.outputs[0]);
        }
        Ok(())
    }

    unsafe fn part_at(&self, inputs: &[*const u8]) -> usize {
        // SAFETY: by the caller's promise.
        unsafe { self.starts.offset(&inputs[1..], &self.strides) as usize * self.copy.size() }
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
            let moved = self.copy.to(at);
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
        let bytes = self.copy.elements() * self.copy.size();
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
