//! Sort: a stable merge sort of each line along the sorted dimension, lines in parallel.
//!
//! It sorts the positions of a line's elements, then copies all operands in that order. Where the comparator compares
//! one function of either element, keys are sorted ([`SortKeys`]); others run in the interpreter, once per comparison. Not
//! tuned: operands are copied to literals first.

use crate::kernel::literal::literal;
use crate::kernel::{Cx, Io, Kernel, Ptr};
use crate::kernels::movement::sort_keys::SortKeys;
use std::sync::Mutex;
use systole_compile::Step;
use systole_ir::interp::EvalCx;
use systole_ir::op::Sort;
use systole_ir::{Error, Literal, Result, Scalar, TensorType};

/// A bound sort.
pub struct SortKernel {
    op: Sort,
    types: Vec<TensorType>,
    /// If the comparator compares one function of both elements.
    keys: Option<SortKeys>,
}

impl SortKernel {
    pub fn new(op: &Sort, step: &Step) -> SortKernel {
        SortKernel { keys: SortKeys::of(&op.comparator), op: op.clone(), types: step.input_types.clone() }
    }

    /// Sorts `places`, row-major positions of the elements of one line.
    fn order(&self, args: &[Literal], places: &mut Vec<usize>) -> Result<()> {
        if let Some(sorted) =
            self.keys.as_ref().and_then(|keys| self.by_keys(keys, &args[keys.operand], places))
        {
            *places = sorted;
            return Ok(());
        }
        let mut cx = EvalCx::default();
        *places = merge_sort(std::mem::take(places), |&a, &b| {
            let pairs: Vec<Scalar> = args.iter().flat_map(|x| [x.get(a), x.get(b)]).collect();
            Ok(cx.run_scalars(&self.op.comparator, &pairs)?[0].as_bool())
        })?;
        Ok(())
    }

    /// The order of keys; elements with the same key stay in order. `None`: some element has none.
    fn by_keys(&self, keys: &SortKeys, x: &Literal, places: &[usize]) -> Option<Vec<usize>> {
        let mut memory = keys.memory();
        let mut key = |place: usize| keys.key(&self.op.comparator, x.get(place), &mut memory);
        if keys.bits() <= 32 && places.len() <= u32::MAX as usize {
            // Key and number in one word.
            let packed = places.iter().enumerate().map(|(i, &place)| Some(key(place)? << 32 | i as u64));
            let mut packed = packed.collect::<Option<Vec<u64>>>()?;
            packed.sort_unstable();
            return Some(packed.into_iter().map(|k| places[k as u32 as usize]).collect());
        }
        let keyed = places.iter().enumerate().map(|(i, &place)| Some((key(place)?, i)));
        let mut keyed = keyed.collect::<Option<Vec<(u64, usize)>>>()?;
        keyed.sort_unstable();
        Some(keyed.into_iter().map(|(_, i)| places[i]).collect())
    }
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
