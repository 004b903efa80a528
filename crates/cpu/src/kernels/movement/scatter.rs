//! Scatter with a single operand: copies `x` to `y`, then combines each block of updates into `y` at run-time indices.
//!
//! The body is one associative op, or returns the update (overwrites). Each element gets its updates in the order of
//! the index vectors, so results do not depend on the number of threads. If any two blocks are equal or disjoint (whole
//! rows by index: the gradient of an embedding), a counting sort assigns the index vectors to ranges of the result,
//! which threads share. Other scatters run on one thread. Indices out of bounds are dropped.

use crate::kernel::copy::Dim;
use crate::kernel::{Io, Kernel, KernelContext, Ptr};
use crate::kernels::movement::strided_copies::index_at;
use crate::simd::level::{Isa, Level, TileFn, TileLoop};
use crate::simd::stored_elements::{ReduceFn, ReduceVisitor, ReplaceWith, StoredElement, for_fold};
use smallvec::SmallVec;
use std::marker::PhantomData;
use systole_compile::Step;
use systole_ir::op::{Monoid, Scatter};
use systole_ir::{DType, Graph, Result, TensorType};

/// Creates the kernel of a scatter, or returns why there is none.
pub(crate) fn bind(op: &Scatter, step: &Step, level: Level) -> Result<ScatterKernel, &'static str> {
    let [x, indices, updates] = &step.input_types[..] else { return Err("it has more than one operand") };
    let fold = if overwrites(&op.body) {
        last(x.dtype, level)
    } else {
        let monoid = Monoid::of(&op.body).ok_or("its body is neither the update nor one associative op")?;
        for_fold(&ScatterLineFactory(level), x.dtype, monoid)
            .ok_or("its element type does not support the op of the body")?
    };
    Ok(ScatterKernel::new(op, x, indices, updates, fold))
}

/// Whether the body returns the update.
pub(crate) fn overwrites(body: &Graph) -> bool {
    body.params.len() == 2 && body.results[..] == body.params[1..]
}

/// Instantiates [`ScatterLine`] for an element type and a fold.
struct ScatterLineFactory(Level);
impl ReduceVisitor for ScatterLineFactory {
    type Out = TileFn;
    fn with<C: StoredElement, F: ReduceFn<C>>(&self) -> TileFn {
        self.0.tile::<ScatterLine<C, F>>()
    }
}

/// Returns the loop that overwrites: it depends only on the element's size.
fn last(dtype: DType, level: Level) -> TileFn {
    match dtype.size() {
        1 => level.tile::<ScatterLine<u8, ReplaceWith>>(),
        2 => level.tile::<ScatterLine<u16, ReplaceWith>>(),
        4 => level.tile::<ScatterLine<u32, ReplaceWith>>(),
        _ => level.tile::<ScatterLine<u64, ReplaceWith>>(),
    }
}

/// Computes `dst[i·stride] = F(dst[i·stride], a[i·stride])` for `n` elements; `b`: a [`Dim`] with both strides.
struct ScatterLine<C, F>(PhantomData<(C, F)>);
impl<C: StoredElement, F: ReduceFn<C>> TileLoop for ScatterLine<C, F> {
    const EVERY_LEVEL: bool = C::COMMON && F::COMMON;

    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, b: *const u8, _: *const u8, n: usize) {
        // SAFETY: by the promises of `TileLoop::run`, `b` is a `Dim` and both arrays have the elements; they do not
        // overlap.
        unsafe {
            let (d, out, updates) = (&*b.cast::<Dim>(), dst.cast::<C>(), a.cast::<C>());
            if d.src == 1 && d.dst == 1 {
                let out = std::slice::from_raw_parts_mut(out, n);
                let updates = std::slice::from_raw_parts(updates, n);
                for (x, u) in out.iter_mut().zip(updates) {
                    *x = C::store(F::f((*x).load(), (*u).load()));
                }
                return;
            }
            for i in 0..n as isize {
                let x = out.offset(i * d.dst);
                *x = C::store(F::f((*x).load(), (*updates.offset(i * d.src)).load()));
            }
        }
    }
}

/// Batch dimension of the indices: any dimension except that of an index vector's components.
#[derive(Clone, Copy)]
struct ScatterBatchDim {
    size: usize,
    /// Strides in the indices, in the updates, and in the operand (0 unless it is a batching dimension), in elements.
    index: usize,
    update: usize,
    operand: usize,
}

/// Kernel of a scatter.
pub(crate) struct ScatterKernel {
    /// Bytes of an element.
    size: usize,
    /// Elements of the operand.
    elements: usize,
    /// Dimensions of a block, with strides in the updates (`src`) and in the operand (`dst`); dimensions that are
    /// contiguous in both are merged.
    dims: SmallVec<[Dim; 6]>,
    /// Elements of a block.
    block: usize,
    index_dtype: DType,
    batch: Vec<ScatterBatchDim>,
    /// Per component of an index vector: its dimension's stride in the operand, and the maximum valid start.
    components: Vec<(usize, i64)>,
    /// Stride between components of an index vector.
    component_stride: usize,
    /// Number of index vectors.
    count: usize,
    /// Ranges of the result that threads share; 1: everything runs on the calling thread.
    parts: usize,
    fold: TileFn,
}

/// Maximum number of parts. More than threads, because parts have unequal numbers of updates.
const PARTS: usize = 64;
/// Minimum update elements per part: fewer do not pay for the counting sort and the threads.
const PER_PART: usize = 1 << 13;
/// Target of an index vector that is dropped because its block is not inside the operand.
const NOWHERE: usize = usize::MAX;

impl ScatterKernel {
    fn new(s: &Scatter, x: &TensorType, indices: &TensorType, updates: &TensorType, fold: TileFn) -> Self {
        let (sx, si, su) = (x.shape.strides(), indices.shape.strides(), updates.shape.strides());
        let hidden = |d: &usize| s.inserted_window_dims.contains(d) || s.input_batching_dims.contains(d);
        let mut sizes = vec![1; x.rank()];
        let mut dims: SmallVec<[Dim; 6]> = SmallVec::new();
        for (d, &w) in (0..x.rank()).filter(|d| !hidden(d)).zip(&s.update_window_dims) {
            sizes[d] = updates.shape[w];
            let dim = Dim { size: sizes[d], src: su[w] as isize, dst: sx[d] as isize };
            push_dim(&mut dims, dim);
        }
        let block: usize = dims.iter().map(|d| d.size).product();
        let index_dims = (0..indices.rank()).filter(|&d| d != s.index_vector_dim);
        let update_dims = (0..updates.rank()).filter(|d| !s.update_window_dims.contains(d));
        let batch: Vec<ScatterBatchDim> = index_dims
            .zip(update_dims)
            .map(|(i, u)| {
                let paired = s.scatter_indices_batching_dims.iter().position(|&b| b == i);
                let operand = paired.map_or(0, |k| sx[s.input_batching_dims[k]]);
                ScatterBatchDim { size: indices.shape[i], index: si[i], update: su[u], operand }
            })
            .collect();
        let named = &s.scatter_dims_to_operand_dims;
        let room = |&d: &usize| (sx[d], x.shape[d] as i64 - sizes[d] as i64);
        let count: usize = batch.iter().map(|b| b.size).product();
        // If the block has size 1 along every indexed dimension, blocks with different starts are disjoint.
        let disjoint = named.iter().all(|&d| sizes[d] == 1);
        let parts = if disjoint { (count * block / PER_PART).clamp(1, PARTS) } else { 1 };
        ScatterKernel {
            size: x.dtype.size(),
            elements: x.elements(),
            dims,
            block,
            index_dtype: indices.dtype,
            batch,
            components: named.iter().map(room).collect(),
            component_stride: si.get(s.index_vector_dim).copied().unwrap_or(0),
            count,
            parts,
            fold,
        }
    }

    /// Returns the first elements of index vector `i`: in the indices, of its block in the updates, and of its batch in
    /// the operand.
    fn offsets(&self, mut i: usize) -> [usize; 3] {
        let mut at = [0; 3];
        for b in self.batch.iter().rev() {
            let k = i % b.size;
            i /= b.size;
            at[0] += k * b.index;
            at[1] += k * b.update;
            at[2] += k * b.operand;
        }
        at
    }

    /// Returns the first element of the block of index vector `i` in the operand, or [`NOWHERE`].
    unsafe fn target(&self, i: usize, indices: *const u8) -> usize {
        let [index, _, mut at] = self.offsets(i);
        for (k, &(stride, most)) in self.components.iter().enumerate() {
            // SAFETY: by the caller's promise, `i` is below `count`, so the index vector exists.
            let start = unsafe { index_at(indices, self.index_dtype, index + k * self.component_stride) };
            if start < 0 || start > most {
                return NOWHERE;
            }
            at += start as usize * stride;
        }
        at
    }

    /// Combines the update block of index vector `i` with the block of `out` that starts at element `target`.
    unsafe fn one(&self, i: usize, target: usize, updates: Ptr, out: Ptr) {
        let update = self.offsets(i)[1];
        // SAFETY: by the caller's promise, `target` is that of index vector `i`, whose block is inside both arrays.
        unsafe { self.fold_dims(&self.dims, updates.at(update * self.size), out.at(target * self.size)) };
    }

    /// Combines the elements of `dims`, one call of the loop per line of the last dimension.
    unsafe fn fold_dims(&self, dims: &[Dim], updates: *const u8, out: *mut u8) {
        let (first, rest) = match dims {
            [] => (Dim { size: 1, src: 1, dst: 1 }, dims),
            [first, rest @ ..] => (*first, rest),
        };
        if rest.is_empty() {
            let line = (&raw const first).cast();
            // SAFETY: by the caller's promise, the line is inside both arrays.
            return unsafe { (self.fold)(out, updates, line, line, first.size) };
        }
        let size = self.size as isize;
        for i in 0..first.size as isize {
            let (src, dst) = (i * first.src * size, i * first.dst * size);
            // SAFETY: `i` is below the dimension's size, so these elements belong to the block.
            unsafe { self.fold_dims(rest, updates.wrapping_offset(src), out.wrapping_offset(dst)) };
        }
    }

    /// Scratch in words: `targets[count]`, `order[count]`, `begins[parts + 1]`.
    fn words(&self) -> usize {
        if self.parts == 1 { 0 } else { 2 * self.count + self.parts + 1 }
    }

    /// Sorts the index vectors by the part of their target (counting sort).
    ///
    /// The sort is stable, so each element keeps the order of its updates. The index vectors of part `k` are
    /// `order[begins[k]..begins[k + 1]]`.
    fn sort(&self, targets: &[usize], order: &mut [usize], begins: &mut [usize]) {
        let per_part = self.elements.div_ceil(self.parts).max(1);
        begins.fill(0);
        for &t in targets.iter().filter(|&&t| t != NOWHERE) {
            begins[t / per_part + 1] += 1;
        }
        for k in 1..begins.len() {
            begins[k] += begins[k - 1];
        }
        // This moves `begins[k]` to the end of part `k`, which is the start of part `k + 1`; hence the shift
        // afterwards.
        for (i, &t) in targets.iter().enumerate().filter(|(_, t)| **t != NOWHERE) {
            let at = &mut begins[t / per_part];
            order[*at] = i;
            *at += 1;
        }
        begins.copy_within(..begins.len() - 1, 1);
        begins[0] = 0;
    }

    /// Runs the parts in parallel.
    unsafe fn shared(&self, cx: &KernelContext<'_>, indices: Ptr, updates: Ptr, out: Ptr, scratch: *mut u8) {
        // SAFETY: by the caller's promise, scratch has `words()` aligned words; zeroing initializes them.
        let words = unsafe {
            std::ptr::write_bytes(scratch, 0, self.words() * size_of::<usize>());
            std::slice::from_raw_parts_mut(scratch.cast::<usize>(), self.words())
        };
        let (targets, words) = words.split_at_mut(self.count);
        let (order, begins) = words.split_at_mut(self.count);
        for (i, t) in targets.iter_mut().enumerate() {
            // SAFETY: `i` is below `count`.
            *t = unsafe { self.target(i, indices.at(0)) };
        }
        self.sort(targets, order, begins);
        let (targets, order, begins) = (&*targets, &*order, &*begins);
        let body = |part: usize| {
            for &i in &order[begins[part]..begins[part + 1]] {
                // SAFETY: `sort` dropped targets outside; with several parts, blocks are equal or disjoint, and equal
                // blocks are in one part.
                unsafe { self.one(i, targets[i], updates, out) };
            }
        };
        let work = self.count as f64 * (self.block as f64 * 0.2 + 10.0);
        cx.team.run_with(self.parts, work, cx.flush, &body);
    }
}

/// Appends a dimension, or merges it with the last one if both arrays are contiguous across the two.
fn push_dim(dims: &mut SmallVec<[Dim; 6]>, d: Dim) {
    match dims.last_mut() {
        Some(p) if p.src == d.src * d.size as isize && p.dst == d.dst * d.size as isize => {
            *p = Dim { size: p.size * d.size, ..d };
        }
        _ if d.size == 1 => {}
        _ => dims.push(d),
    }
}

impl Kernel for ScatterKernel {
    fn scratch(&self) -> usize {
        self.words() * size_of::<usize>()
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> systole_ir::Result<()> {
        let [x, indices, updates] = [0, 1, 2].map(|k| Ptr::of(io.inputs[k]));
        let out = Ptr(io.outputs[0]);
        if !std::ptr::eq(x.at(0), out.at(0)) {
            copy(cx, x, out, self.elements * self.size);
        }
        // With an empty operand or block there is nothing to do, and no start would be valid.
        if self.block == 0 || self.elements == 0 {
            return Ok(());
        }
        if self.parts > 1 {
            // SAFETY: by the contract of `Kernel::run`; scratch has the size that `scratch` returns.
            unsafe { self.shared(cx, indices, updates, out, io.scratch) };
            return Ok(());
        }
        for i in 0..self.count {
            // SAFETY: `i` is below `count`; targets outside the operand are skipped.
            unsafe {
                let target = self.target(i, indices.at(0));
                if target != NOWHERE {
                    self.one(i, target, updates, out);
                }
            }
        }
        Ok(())
    }
}

/// Copies memory in parallel.
fn copy(cx: &KernelContext<'_>, from: Ptr, to: Ptr, bytes: usize) {
    const BLOCK: usize = 1 << 18;
    let body = |block: usize| {
        let at = block * BLOCK;
        // SAFETY: blocks are disjoint ranges of `bytes`; the arrays have one type and, being different, do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from.at(at), to.at(at), BLOCK.min(bytes - at)) };
    };
    cx.team.run_with(bytes.div_ceil(BLOCK), bytes as f64 * 0.1, cx.flush, &body);
}
