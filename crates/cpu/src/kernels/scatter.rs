//! scatter with one input: rows of updates folded into the operand by one associative op, or written over it.
//!
//! Updates are applied in their own order at every place, so results do not depend on threads: threads share the
//! columns of the updates' windows, each going through all index vectors.

use super::moves::{Dim, index_at};
use super::reduce::across_stored;
use super::{Io, Kernel, Ptr};
use crate::detect::{Level, TileFn};
use crate::exec::Cx;
use systole_compile::Step;
use systole_ir::op::{Monoid, Scatter};
use systole_ir::{DType, Result};

/// Columns that one block of the parallel loop takes.
const COLUMNS: usize = 256;

/// The kernel of a scatter whose windows end in a contiguous run of the operand.
pub struct ScatterRows {
    /// `None`: the update replaces the element.
    fold: Option<TileFn>,
    size: usize,
    bytes: usize,
    index_dtype: DType,
    /// Dimensions of the updates over index vectors: size, distance in updates, in indices, in the operand.
    batch: Vec<[usize; 4]>,
    /// Window dimensions but the last: size, distance in updates (`src`) and operand (`dst`).
    window: Vec<Dim>,
    /// Elements of the last window dimension.
    run: usize,
    /// For each component of an index vector: distance in the operand and greatest start.
    components: Vec<(usize, i64)>,
    component_stride: usize,
}

impl ScatterRows {
    pub fn new(op: &Scatter, step: &Step, level: Level) -> Option<ScatterRows> {
        let [x, indices, updates] = &step.input_types[..] else { return None };
        let overwrites = op.body.results[..] == op.body.params[1..];
        let fold = match Monoid::of(&op.body) {
            Some(m) => Some(across_stored(m, x.dtype, level)),
            None if overwrites => None,
            None => return None,
        };
        let (sx, si, su) = (x.shape.strides(), indices.shape.strides(), updates.shape.strides());
        let in_window =
            |d: &usize| !op.inserted_window_dims.contains(d) && !op.input_batching_dims.contains(d);
        let operand_dims: Vec<usize> = (0..x.rank()).filter(in_window).collect();
        let mut window: Vec<Dim> = operand_dims
            .iter()
            .zip(&op.update_window_dims)
            .map(|(&d, &u)| Dim { size: updates.shape[u], src: su[u] as isize, dst: sx[d] as isize })
            .collect();
        let contiguous = window.last().is_some_and(|d| d.src == 1 && d.dst == 1);
        let run = if contiguous { window.pop().map_or(1, |d| d.size) } else { 1 };
        let block = |d: usize| match operand_dims.iter().position(|&o| o == d) {
            Some(k) => updates.shape[op.update_window_dims[k]],
            None => 1,
        };
        let batch_dims = (0..updates.rank()).filter(|d| !op.update_window_dims.contains(d));
        let index_dims = (0..indices.rank()).filter(|&d| d != op.index_vector_dim);
        let batch = index_dims
            .zip(batch_dims)
            .map(|(i, u)| {
                let paired = op.scatter_indices_batching_dims.iter().position(|&b| b == i);
                let operand = paired.map_or(0, |k| sx[op.input_batching_dims[k]]);
                [updates.shape[u], su[u], si[i], operand]
            })
            .collect();
        let components = op
            .scatter_dims_to_operand_dims
            .iter()
            .map(|&d| (sx[d], x.shape[d] as i64 - block(d) as i64))
            .collect();
        Some(ScatterRows {
            fold,
            size: x.dtype.size(),
            bytes: x.bytes(),
            index_dtype: indices.dtype,
            batch,
            window,
            run,
            components,
            component_stride: si.get(op.index_vector_dim).copied().unwrap_or(0),
        })
    }

    /// Where index vector `i` puts its window in the operand, and where its updates lie; `None`: outside.
    unsafe fn locate(&self, mut i: usize, indices: *const u8) -> Option<(usize, usize)> {
        let (mut at_index, mut at_update, mut at) = (0, 0, 0);
        for &[size, update, index, operand] in self.batch.iter().rev() {
            let k = i % size;
            i /= size;
            at_update += k * update;
            at_index += k * index;
            at += k * operand;
        }
        for (k, &(stride, most)) in self.components.iter().enumerate() {
            // SAFETY: the index vector exists.
            let start = unsafe { index_at(indices, self.index_dtype, at_index + k * self.component_stride) };
            if start < 0 || start > most {
                return None;
            }
            at += start as usize * stride;
        }
        Some((at, at_update))
    }

    /// Applies columns `from..from + n` of every window.
    unsafe fn columns(&self, out: Ptr, indices: Ptr, updates: Ptr, from: usize, n: usize) {
        let count: usize = self.batch.iter().map(|b| b[0]).product();
        let rows: usize = self.window.iter().map(|d| d.size).product();
        for i in 0..count {
            // SAFETY: index vectors and updates of the step's types; windows outside the operand are left out.
            unsafe {
                let Some((at, update)) = self.locate(i, indices.at(0)) else { continue };
                for mut r in 0..rows {
                    let (mut to, mut source) = (at + from, update + from);
                    for d in self.window.iter().rev() {
                        let k = r % d.size;
                        r /= d.size;
                        to += k * d.dst as usize;
                        source += k * d.src as usize;
                    }
                    let (to, source) = (out.at(to * self.size), updates.at(source * self.size).cast_const());
                    match self.fold {
                        Some(f) => f(to, source, source, source, n),
                        None => std::ptr::copy_nonoverlapping(source, to, n * self.size),
                    }
                }
            }
        }
    }
}

impl Kernel for ScatterRows {
    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        let (out, indices, updates) = (Ptr(io.outputs[0]), Ptr::of(io.inputs[1]), Ptr::of(io.inputs[2]));
        if !std::ptr::eq(io.inputs[0], io.outputs[0]) {
            // SAFETY: operand and result have one type.
            unsafe { std::ptr::copy_nonoverlapping(io.inputs[0], io.outputs[0], self.bytes) };
        }
        let body = |block: usize| {
            let from = block * COLUMNS;
            // SAFETY: blocks have their own columns of every window.
            unsafe { self.columns(out, indices, updates, from, COLUMNS.min(self.run - from)) };
        };
        let windows: usize =
            self.batch.iter().map(|b| b[0]).chain(self.window.iter().map(|d| d.size)).product();
        let work = windows as f64 * (self.run as f64 * 0.2 + 10.0);
        cx.team.run_with(self.run.div_ceil(COLUMNS), work, cx.flush, &body);
        Ok(())
    }
}
