//! Stable sort and top-k of each line along a dimension, lines in parallel.
//!
//! A sort orders the indices of a line's elements, then copies all operands in that order. If the comparator compares
//! elements of one operand, keys are sorted ([`SortKeys`]); other comparators run in the interpreter, once per
//! comparison.

mod keys;

use crate::kernel::literal::literal;
use crate::kernel::{Io, Kernel, KernelContext, Ptr};
use crate::kernels::movement::sort::keys::SortKeys;
use std::sync::{Mutex, PoisonError};
use systole_compile::{Step, TopK};
use systole_ir::interp::EvalCx;
use systole_ir::op::Sort;
use systole_ir::{Error, Literal, Result, Scalar, TensorType};

/// Maximum number of first elements that are kept in order while a line is read; more are selected, then sorted.
const FEW: usize = 64;

/// Kernel of a sort or top-k.
pub struct SortKernel {
    op: Sort,
    types: Vec<TensorType>,
    /// Keys, if the comparator compares elements of one operand.
    keys: Option<SortKeys>,
    /// Number of first elements of each sorted line that are stored.
    count: usize,
    /// Operand of each result.
    of: Vec<usize>,
}

/// A line of an array: its first element, and the distance between its elements.
#[derive(Clone, Copy)]
struct SortLine {
    first: usize,
    step: usize,
    size: usize,
}

impl SortKernel {
    /// Creates a kernel that sorts whole lines.
    pub fn new(op: &Sort, step: &Step) -> SortKernel {
        let count = step.input_types[0].shape[op.dim];
        SortKernel::of_first(op, count, (0..step.input_types.len()).collect(), step)
    }

    /// Creates a top-k kernel: the first elements of sorted lines.
    pub fn top_k(t: &TopK, step: &Step) -> SortKernel {
        SortKernel::of_first(&t.sort, t.k, t.of.clone(), step)
    }

    fn of_first(op: &Sort, count: usize, of: Vec<usize>, step: &Step) -> SortKernel {
        let keys = SortKeys::of(&op.comparator);
        SortKernel { keys, op: op.clone(), types: step.input_types.clone(), count, of }
    }

    /// Returns the indices of a line's first elements, in order.
    ///
    /// # Safety
    /// `inputs` are arrays of the step's types, and the line belongs to one of them.
    unsafe fn order(&self, inputs: &[Ptr], copies: &OperandLiterals, line: SortLine) -> Result<Vec<usize>> {
        if let Some(keys) = &self.keys {
            let mut all = Vec::with_capacity(line.size);
            let first = inputs[keys.operand].at(line.first * self.types[keys.operand].dtype.size());
            // SAFETY: by the caller's promise.
            if unsafe { keys.keys(first, line.step, line.size, &mut all) } {
                return Ok(self.by_keys(keys, all));
            }
        }
        let args = copies.get(&self.types, inputs)?;
        let mut cx = EvalCx::default();
        let at = |i: usize| line.first + i * line.step;
        let mut sorted = merge_sort((0..line.size).collect(), |&a, &b| {
            let pairs: Vec<Scalar> = args.iter().flat_map(|x| [x.get(at(a)), x.get(at(b))]).collect();
            Ok(cx.run_scalars(&self.op.comparator, &pairs)?[0].as_bool())
        })?;
        sorted.truncate(self.count);
        Ok(sorted)
    }

    /// Returns the order of keys; elements with the same key keep their order.
    fn by_keys(&self, keys: &SortKeys, mut all: Vec<u64>) -> Vec<usize> {
        if keys.bits() <= 32 && u32::try_from(all.len()).is_ok() {
            // Key and index in one word.
            all.iter_mut().enumerate().for_each(|(i, key)| *key = *key << 32 | i as u64);
            return least(all, self.count).into_iter().map(|k| k as u32 as usize).collect();
        }
        let keyed = all.into_iter().enumerate().map(|(i, key)| (key, i)).collect();
        least(keyed, self.count).into_iter().map(|(_, i)| i).collect()
    }
}

/// Returns the smallest `count` of distinct items, in order.
fn least<T: Copy + Ord>(mut items: Vec<T>, count: usize) -> Vec<T> {
    if count == 0 {
        return Vec::new();
    }
    if count >= items.len() || count > FEW {
        if count < items.len() {
            items.select_nth_unstable(count - 1);
            items.truncate(count);
        }
        items.sort_unstable();
        return items;
    }
    let (first, rest) = items.split_at_mut(count);
    first.sort_unstable();
    for &mut item in rest {
        if item < first[count - 1] {
            let place = first.partition_point(|other| *other < item);
            first.copy_within(place..count - 1, place + 1);
            first[place] = item;
        }
    }
    items.truncate(count);
    items
}

/// The operands as literals, created for the first line that needs them.
#[derive(Default)]
struct OperandLiterals(std::sync::OnceLock<Result<Vec<Literal>>>);

impl OperandLiterals {
    fn get(&self, types: &[TensorType], inputs: &[Ptr]) -> Result<&[Literal]> {
        let copy = |(ty, &p): (&TensorType, &Ptr)| {
            // SAFETY: by the contract of `Kernel::run`, inputs are arrays of the step's types.
            unsafe { literal(ty, p.at(0)) }
        };
        let made = self.0.get_or_init(|| types.iter().zip(inputs).map(copy).collect());
        made.as_deref().map_err(Clone::clone)
    }
}

/// Copies elements `order` of a line to the start of a line of the result.
///
/// # Safety
/// Both lines can be accessed, and no other thread accesses that of the result.
unsafe fn copy_line(from: Ptr, of: SortLine, to: Ptr, at: SortLine, order: &[usize], bytes: usize) {
    for (j, &i) in order.iter().enumerate() {
        let (source, place) =
            (from.at((of.first + i * of.step) * bytes), to.at((at.first + j * at.step) * bytes));
        // SAFETY: by the caller's promise; widths are those of the elements.
        unsafe {
            match bytes {
                1 => *place = *source,
                2 => place.cast::<u16>().write_unaligned(source.cast::<u16>().read_unaligned()),
                4 => place.cast::<u32>().write_unaligned(source.cast::<u32>().read_unaligned()),
                _ => place.cast::<u64>().write_unaligned(source.cast::<u64>().read_unaligned()),
            }
        }
    }
}

/// Sorts by a stable bottom-up merge sort: a later element precedes an earlier one only if `before(later, earlier)`.
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
    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let shape = &self.types[0].shape;
        let (size, step) = (shape[self.op.dim], shape.strides()[self.op.dim]);
        let lines = shape.elements() / size.max(1);
        let failed: Mutex<Option<Error>> = Mutex::new(None);
        let inputs: Vec<Ptr> = io.inputs.iter().map(|&p| Ptr::of(p)).collect();
        let outputs: Vec<Ptr> = io.outputs.iter().map(|&p| Ptr(p)).collect();
        let copies = OperandLiterals::default();
        let body = |line: usize| {
            let (block, rest) = (line / step, line % step);
            let from = SortLine { first: block * step * size + rest, step, size };
            let to = SortLine { first: block * step * self.count + rest, step, size: self.count };
            // SAFETY: by the contract of `Kernel::run`, inputs are arrays of the step's types.
            let order = match unsafe { self.order(&inputs, &copies, from) } {
                Ok(order) => order,
                Err(e) => {
                    failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
                    return;
                }
            };
            for (&x, &out) in self.of.iter().zip(&outputs) {
                let bytes = self.types[x].dtype.size();
                // SAFETY: both lines are inside their arrays; no other call writes this line.
                unsafe { copy_line(inputs[x], from, out, to, &order, bytes) };
            }
        };
        let each = if self.keys.is_some() { 3.0 } else { 200.0 };
        let work = shape.elements() as f64 * each * (self.count.max(2) as f64).log2();
        cx.team.run_with(lines, work, cx.flush, &body);
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}
