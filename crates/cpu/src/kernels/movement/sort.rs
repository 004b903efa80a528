//! Sort: a stable merge sort of each line along the sorted dimension, lines in parallel.
//!
//! It sorts the positions of a line's elements, then copies all operands in that order. Comparators that are one
//! comparison of two elements of one operand run directly, others in the interpreter, once per comparison. Not tuned:
//! operands are copied to literals first.

use crate::kernel::literal::literal;
use crate::kernel::{Cx, Io, Kernel, Ptr};
use std::sync::Mutex;
use systole_compile::Step;
use systole_ir::interp::EvalCx;
use systole_ir::op::{Compare, Sort};
use systole_ir::{Error, Graph, Literal, Op, Result, Scalar, TensorType};

/// A bound sort.
pub struct SortKernel {
    op: Sort,
    types: Vec<TensorType>,
    /// If the comparator is one comparison: the operand that it compares, the comparison, and whether its arguments are
    /// swapped.
    simple: Option<(usize, Compare, bool)>,
}

impl SortKernel {
    pub fn new(op: &Sort, step: &Step) -> SortKernel {
        SortKernel { simple: simple(&op.comparator), op: op.clone(), types: step.input_types.clone() }
    }

    /// Sorts `places`, row-major positions of the elements of one line.
    fn order(&self, args: &[Literal], places: &mut Vec<usize>) -> Result<()> {
        if let Some((k, compare, swapped)) = self.simple {
            let x = &args[k];
            let keys: Vec<(Scalar, usize)> = places.iter().map(|&p| (x.get(p), p)).collect();
            let before = |a: &(Scalar, usize), b: &(Scalar, usize)| {
                Ok(if swapped { compare.apply(b.0, a.0) } else { compare.apply(a.0, b.0) })
            };
            *places = merge_sort(keys, before)?.into_iter().map(|k| k.1).collect();
            return Ok(());
        }
        let mut cx = EvalCx::default();
        *places = merge_sort(std::mem::take(places), |&a, &b| {
            let pairs: Vec<Scalar> = args.iter().flat_map(|x| [x.get(a), x.get(b)]).collect();
            Ok(cx.run_scalars(&self.op.comparator, &pairs)?[0].as_bool())
        })?;
        Ok(())
    }
}

/// Matches a body that is `compare(param 2k, param 2k + 1)` (false) or with swapped arguments (true).
fn simple(body: &Graph) -> Option<(usize, Compare, bool)> {
    let node = body.node(*body.results.first()?);
    let Op::Compare(compare) = &node.op else { return None };
    let at = |k: usize| body.params.iter().position(|p| *p == node.inputs[k]);
    let (a, b) = (at(0)?, at(1)?);
    (a / 2 == b / 2 && a != b).then_some((a / 2, *compare, a > b))
}

/// Stable merge sort, bottom-up: a later element goes before an earlier one only if `before(later, earlier)`.
fn merge_sort<T: Copy>(items: Vec<T>, mut before: impl FnMut(&T, &T) -> Result<bool>) -> Result<Vec<T>> {
    let n = items.len();
    let (mut from, mut to) = (items.clone(), items);
    let mut width = 1;
    while width < n {
        for start in (0..n).step_by(2 * width) {
            let (middle, end) = ((start + width).min(n), (start + 2 * width).min(n));
            let (mut i, mut j) = (start, middle);
            for slot in &mut to[start..end] {
                let right = i == middle || (j < end && before(&from[j], &from[i])?);
                let taken = if right { &mut j } else { &mut i };
                *slot = from[*taken];
                *taken += 1;
            }
        }
        std::mem::swap(&mut from, &mut to);
        width *= 2;
    }
    Ok(from)
}

impl Kernel for SortKernel {
    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        let mut args = Vec::with_capacity(self.types.len());
        for (ty, &p) in self.types.iter().zip(io.inputs) {
            // SAFETY: by the contract of `Kernel::run`, inputs are arrays of the step's types.
            args.push(unsafe { literal(ty, p)? });
        }
        let shape = &self.types[0].shape;
        let (size, step) = (shape[self.op.dim], shape.strides()[self.op.dim]);
        let lines = shape.elements() / size.max(1);
        let failed: Mutex<Option<Error>> = Mutex::new(None);
        let outputs: Vec<Ptr> = io.outputs.iter().map(|&p| Ptr(p)).collect();
        let body = |line: usize| {
            let first = line / step * step * size + line % step;
            let mut places: Vec<usize> = (0..size).map(|j| first + j * step).collect();
            if let Err(e) = self.order(&args, &mut places) {
                failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(e);
                return;
            }
            for (x, out) in args.iter().zip(&outputs) {
                let bytes = x.ty().dtype.size();
                for (j, &from) in places.iter().enumerate() {
                    let source = &x.bytes()[from * bytes..(from + 1) * bytes];
                    let to = out.at((first + j * step) * bytes);
                    // SAFETY: the position lies inside the result; no other line writes it.
                    unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), to, bytes) };
                }
            }
        };
        let work = shape.elements() as f64 * 40.0 * (size.max(2) as f64).log2();
        cx.team.run_with(lines, work, cx.flush, &body);
        failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).map_or(Ok(()), Err)
    }
}
