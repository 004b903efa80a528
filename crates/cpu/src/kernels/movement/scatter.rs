//! scatter with one operand whose body is one associative op or leaves the update. (gather is a copy: see `moves`.)
//!
//! Each element meets its updates in the order of the index vectors, so results do not depend on threads. Where
//! blocks are equal or disjoint (rows by number: the gradient of an embedding), index vectors are sorted into parts
//! of the result that threads share.

use crate::kernel::Cx;
use crate::kernel::copy::Dim;
use crate::kernel::{Io, Kernel, Ptr};
use crate::simd::cells::{Cell, Fold, ForFold, Last, for_fold};
use crate::simd::level::{Isa, Level, Tile, TileFn};
use smallvec::SmallVec;
use std::marker::PhantomData;
use systole_compile::Step;
use systole_ir::op::{Monoid, Scatter};
use systole_ir::{DType, Graph, Op, Result, TensorType};

/// The kernel of an op of this family; `None`: not of this family, or of another body or arity.
pub(crate) fn bind(op: &Op, step: &Step, level: Level) -> Option<Box<dyn Kernel>> {
    let Op::Scatter(op) = op else { return None };
    let [x, indices, updates] = &step.input_types[..] else { return None };
    let fold = if overwrites(&op.body) {
        last(x.dtype, level)
    } else {
        for_fold(&LineAt(level), x.dtype, Monoid::of(&op.body)?)?
    };
    Some(Box::new(ScatterKernel::new(op, x, indices, updates, fold)))
}

fn overwrites(body: &Graph) -> bool {
    body.params.len() == 2 && body.results[..] == body.params[1..]
}

struct LineAt(Level);
impl ForFold for LineAt {
    type Out = TileFn;
    fn with<C: Cell, F: Fold<C>>(&self) -> TileFn {
        self.0.tile::<Line<C, F>>()
    }
}

fn last(dtype: DType, level: Level) -> TileFn {
    match dtype.size() {
        1 => level.tile::<Line<u8, Last>>(),
        2 => level.tile::<Line<u16, Last>>(),
        4 => level.tile::<Line<u32, Last>>(),
        _ => level.tile::<Line<u64, Last>>(),
    }
}

/// Folds `n` updates into as many elements; `a`: the updates, `b`: a [`Dim`] with both distances.
struct Line<C, F>(PhantomData<(C, F)>);
impl<C: Cell, F: Fold<C>> Tile for Line<C, F> {
    const EVERY_LEVEL: bool = C::COMMON && F::COMMON;

    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, b: *const u8, _: *const u8, n: usize) {
        // SAFETY: as the type says; result and updates are different arrays.
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

/// A dimension of the index vectors.
#[derive(Clone, Copy)]
struct Batch {
    size: usize,
    /// Distances of neighbours in the indices, the updates, and the operand (for batching dimensions).
    index: usize,
    update: usize,
    operand: usize,
}

struct ScatterKernel {
    size: usize,
    /// Elements of the operand.
    elements: usize,
    /// One block, from updates to operand, longest contiguous run last.
    dims: SmallVec<[Dim; 6]>,
    /// Elements of a block.
    block: usize,
    index_dtype: DType,
    batch: Vec<Batch>,
    /// For each component of an index vector: distance in the operand and greatest start.
    components: Vec<(usize, i64)>,
    component_stride: usize,
    /// Index vectors.
    count: usize,
    /// Parts of the result that are worked on at the same time.
    parts: usize,
    fold: TileFn,
}

/// Greatest number of parts: enough for the threads of any machine to share unequal ones.
const PARTS: usize = 64;
/// Elements of updates that one part stands for, at the least.
const PER_PART: usize = 1 << 13;
/// Where an index vector points that is dropped.
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
        let batch: Vec<Batch> = index_dims
            .zip(update_dims)
            .map(|(i, u)| {
                let paired = s.scatter_indices_batching_dims.iter().position(|&b| b == i);
                let operand = paired.map_or(0, |k| sx[s.input_batching_dims[k]]);
                Batch { size: indices.shape[i], index: si[i], update: su[u], operand }
            })
            .collect();
        let named = &s.scatter_dims_to_operand_dims;
        let room = |&d: &usize| (sx[d], x.shape[d] as i64 - sizes[d] as i64);
        let count: usize = batch.iter().map(|b| b.size).product();
        // Blocks that start at different places are disjoint where no index moves along a dimension of the block.
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

    /// Distances of index vector `i` in the indices, the updates and the operand.
    fn places(&self, mut i: usize) -> [usize; 3] {
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

    /// Where the block of index vector `i` starts in the operand; [`NOWHERE`] when it does not lie inside.
    unsafe fn target(&self, i: usize, indices: *const u8) -> usize {
        let [index, _, mut at] = self.places(i);
        for (k, &(stride, most)) in self.components.iter().enumerate() {
            // SAFETY: the index vector exists.
            let start = unsafe { index_at(indices, self.index_dtype, index + k * self.component_stride) };
            if start < 0 || start > most {
                return NOWHERE;
            }
            at += start as usize * stride;
        }
        at
    }

    /// Folds the block of index vector `i` into the operand from `target` on.
    unsafe fn one(&self, i: usize, target: usize, updates: Ptr, out: Ptr) {
        let update = self.places(i)[1];
        // SAFETY: the block lies inside both arrays.
        unsafe { self.fold_dims(&self.dims, updates.at(update * self.size), out.at(target * self.size)) };
    }

    unsafe fn fold_dims(&self, dims: &[Dim], updates: *const u8, out: *mut u8) {
        let (first, rest) = match dims {
            [] => (Dim { size: 1, src: 1, dst: 1 }, dims),
            [first, rest @ ..] => (*first, rest),
        };
        if rest.is_empty() {
            let line = (&raw const first).cast();
            // SAFETY: by the caller's promise.
            return unsafe { (self.fold)(out, updates, line, line, first.size) };
        }
        let size = self.size as isize;
        for i in 0..first.size as isize {
            let (src, dst) = (i * first.src * size, i * first.dst * size);
            // SAFETY: inside the block.
            unsafe { self.fold_dims(rest, updates.wrapping_offset(src), out.wrapping_offset(dst)) };
        }
    }

    /// Words of scratch: targets, the order of the index vectors, where each part's begin.
    fn words(&self) -> usize {
        if self.parts == 1 { 0 } else { 2 * self.count + self.parts + 1 }
    }

    /// Sorts the index vectors by the part of the result that they point into, keeping their order in each part.
    fn sort(&self, targets: &[usize], order: &mut [usize], begins: &mut [usize]) {
        let per_part = self.elements.div_ceil(self.parts).max(1);
        begins.fill(0);
        for &t in targets.iter().filter(|&&t| t != NOWHERE) {
            begins[t / per_part + 1] += 1;
        }
        for k in 1..begins.len() {
            begins[k] += begins[k - 1];
        }
        // `begins[k]` walks to the end of part `k`, which is where part `k + 1` begins: shift back afterwards.
        for (i, &t) in targets.iter().enumerate().filter(|(_, t)| **t != NOWHERE) {
            let at = &mut begins[t / per_part];
            order[*at] = i;
            *at += 1;
        }
        begins.copy_within(..begins.len() - 1, 1);
        begins[0] = 0;
    }

    /// All parts at the same time.
    unsafe fn shared(&self, cx: &Cx<'_>, indices: Ptr, updates: Ptr, out: Ptr, scratch: *mut u8) {
        // SAFETY: scratch has `words` words, aligned, which zeroing initialises.
        let words = unsafe {
            std::ptr::write_bytes(scratch, 0, self.words() * size_of::<usize>());
            std::slice::from_raw_parts_mut(scratch.cast::<usize>(), self.words())
        };
        let (targets, words) = words.split_at_mut(self.count);
        let (order, begins) = words.split_at_mut(self.count);
        for (i, t) in targets.iter_mut().enumerate() {
            // SAFETY: the indices have `count` vectors.
            *t = unsafe { self.target(i, indices.at(0)) };
        }
        self.sort(targets, order, begins);
        let (targets, order, begins) = (&*targets, &*order, &*begins);
        let body = |part: usize| {
            for &i in &order[begins[part]..begins[part + 1]] {
                // SAFETY: targets lie inside; no two parts have a block in common.
                unsafe { self.one(i, targets[i], updates, out) };
            }
        };
        let work = self.count as f64 * (self.block as f64 * 0.2 + 10.0);
        cx.team.run_with(self.parts, work, cx.flush, &body);
    }
}

/// Joins a dimension to the one before where both arrays allow it.
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

    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        let [x, indices, updates] = [0, 1, 2].map(|k| Ptr::of(io.inputs[k]));
        let out = Ptr(io.outputs[0]);
        if !std::ptr::eq(x.at(0), out.at(0)) {
            copy(cx, x, out, self.elements * self.size);
        }
        // Without elements even a block that starts at 0 lies outside.
        if self.block == 0 || self.elements == 0 {
            return Ok(());
        }
        if self.parts > 1 {
            // SAFETY: as of this function.
            unsafe { self.shared(cx, indices, updates, out, io.scratch) };
            return Ok(());
        }
        for i in 0..self.count {
            // SAFETY: blocks are folded only where they lie inside.
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

fn copy(cx: &Cx<'_>, from: Ptr, to: Ptr, bytes: usize) {
    const BLOCK: usize = 1 << 18;
    let body = |block: usize| {
        let at = block * BLOCK;
        // SAFETY: operand and result have one type and do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from.at(at), to.at(at), BLOCK.min(bytes - at)) };
    };
    cx.team.run_with(bytes.div_ceil(BLOCK), bytes as f64 * 0.1, cx.flush, &body);
}

/// Reads an index; values beyond i64 saturate, which is outside of any array.
unsafe fn index_at(p: *const u8, dtype: DType, i: usize) -> i64 {
    // SAFETY: the caller has element `i` of that type.
    unsafe {
        match dtype {
            DType::I8 => *p.cast::<i8>().add(i) as i64,
            DType::I16 => *p.cast::<i16>().add(i) as i64,
            DType::I32 => *p.cast::<i32>().add(i) as i64,
            DType::I64 => *p.cast::<i64>().add(i),
            DType::U8 => *p.add(i) as i64,
            DType::U16 => *p.cast::<u16>().add(i) as i64,
            DType::U32 => *p.cast::<u32>().add(i) as i64,
            _ => (*p.cast::<u64>().add(i)).min(i64::MAX as u64) as i64,
        }
    }
}
