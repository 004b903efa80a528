//! Sort: each line along the sorted dimension by itself, lines in parallel.
//!
//! It sorts the positions of a line's elements, then copies all operands in that order. Where the comparator compares
//! one function of either element, keys are sorted ([`SortKeys`]), or only the first of them found; other comparators run
//! in the interpreter, once per comparison, in a stable merge sort.

use crate::kernel::literal::literal;
use crate::kernel::{Cx, Io, Kernel, Ptr};
use crate::kernels::movement::sort_keys::SortKeys;
use crate::simd::level::Level;
use std::sync::{Mutex, OnceLock, PoisonError};
use systole_compile::Step;
use systole_ir::interp::EvalCx;
use systole_ir::op::Sort;
use systole_ir::{Error, Literal, Result, Scalar, TensorType};

/// Most elements that are found by comparing with the worst of the best; more are selected first, then sorted.
const FEW: usize = 64;

/// A bound sort.
pub struct SortKernel {
    op: Sort,
    types: Vec<TensorType>,
    /// If the comparator compares one function of both elements.
    keys: Option<SortKeys>,
    /// How many elements of each line are wanted.
    count: usize,
}

impl SortKernel {
    /// `count`: how many elements of each line are wanted; `None`: all.
    pub fn new(op: &Sort, step: &Step, count: Option<usize>, level: Level) -> SortKernel {
        let size = step.input_types[0].shape[op.dim];
        SortKernel {
            keys: SortKeys::of(&op.comparator, size, level),
            op: op.clone(),
            types: step.input_types.clone(),
            count: count.unwrap_or(size),
        }
    }

    /// The order of the elements of one line, numbers within it: `first` is row-major the line's first element, `step`
    /// the distance of the others.
    fn order(&self, arrays: &Arrays<'_>, first: usize, step: usize) -> Result<Vec<u32>> {
        let size = self.types[0].shape[self.op.dim];
        if let Some(keys) = &self.keys {
            let base = arrays.inputs[keys.operand];
            // SAFETY: by the contract of `Kernel::run`, the operand is an array that has this line.
            let line = unsafe { keys.line(base.cast_const(), first, step) };
            if let Some(line) = line {
                return Ok(first_of(&line, self.count, keys.bits()));
            }
        }
        let args = arrays.literals(&self.types)?;
        let mut cx = EvalCx::default();
        let places: Vec<u32> = (0..size as u32).collect();
        let mut places = merge_sort(places, |&a, &b| {
            let at = |i: u32| first + i as usize * step;
            let pairs: Vec<Scalar> = args.iter().flat_map(|x| [x.get(at(a)), x.get(at(b))]).collect();
            Ok(cx.run_scalars(&self.op.comparator, &pairs)?[0].as_bool())
        })?;
        places.truncate(self.count);
        Ok(places)
    }
}

/// The operands of one call.
struct Arrays<'a> {
    inputs: &'a [*mut u8],
    /// Copies for the interpreter, made when it is first asked.
    literals: OnceLock<std::result::Result<Vec<Literal>, Error>>,
}

// SAFETY: the operands are only read while a kernel runs.
unsafe impl Sync for Arrays<'_> {}

impl Arrays<'_> {
    fn literals(&self, types: &[TensorType]) -> Result<&[Literal]> {
        let made = self.literals.get_or_init(|| {
            // SAFETY: by the contract of `Kernel::run`, inputs are arrays of the step's types.
            types.iter().zip(self.inputs).map(|(ty, &p)| unsafe { literal(ty, p) }).collect()
        });
        made.as_deref().map_err(Clone::clone)
    }
}

/// The numbers of the `count` elements with the least keys, least first; of equal keys the lower number first.
fn first_of(keys: &[u64], count: usize, bits: usize) -> Vec<u32> {
    if bits <= 32 {
        // Key and number in one word.
        let packed = keys.iter().enumerate().map(|(i, key)| key << 32 | i as u64).collect();
        return least(packed, count).into_iter().map(|k| k as u32).collect();
    }
    let keyed = keys.iter().enumerate().map(|(i, &key)| (key, i as u32)).collect();
    least(keyed, count).into_iter().map(|(_, i)| i).collect()
}

/// The `count` least of different items, in order.
fn least<T: Copy + Ord>(mut items: Vec<T>, count: usize) -> Vec<T> {
    if count == 0 || 2 * count > items.len() {
        items.sort_unstable();
    } else if count > FEW {
        items.select_nth_unstable(count - 1);
        items.truncate(count);
        items.sort_unstable();
    } else {
        let (head, rest) = items.split_at_mut(count);
        head.sort_unstable();
        for &x in rest.iter() {
            if x < head[count - 1] {
                let at = head.partition_point(|y| *y < x);
                head.copy_within(at..count - 1, at + 1);
                head[at] = x;
            }
        }
    }
    items.truncate(count);
    items
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

/// Copies elements of `size` bytes: number `order[j]` of the line at `from` to number `j` of that at `to`.
unsafe fn pick(from: *const u8, to: *mut u8, size: usize, step: usize, order: &[u32]) {
    unsafe fn all<T: Copy>(from: *const u8, to: *mut u8, step: usize, order: &[u32]) {
        let (from, to) = (from.cast::<T>(), to.cast::<T>());
        for (j, &i) in order.iter().enumerate() {
            // SAFETY: by the caller's promise.
            unsafe { to.add(j * step).write(from.add(i as usize * step).read()) };
        }
    }
    // SAFETY: by the caller's promise, both lines have these elements of `size` bytes.
    unsafe {
        match size {
            1 => all::<u8>(from, to, step, order),
            2 => all::<u16>(from, to, step, order),
            4 => all::<u32>(from, to, step, order),
            _ => all::<u64>(from, to, step, order),
        }
    }
}

impl Kernel for SortKernel {
    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        let inputs: Vec<*mut u8> = io.inputs.iter().map(|p| p.cast_mut()).collect();
        let arrays = Arrays { inputs: &inputs, literals: OnceLock::new() };
        let arrays = &arrays;
        let shape = &self.types[0].shape;
        let (size, step) = (shape[self.op.dim], shape.strides()[self.op.dim]);
        let lines = shape.elements() / size.max(1);
        let failed: Mutex<Option<Error>> = Mutex::new(None);
        let outputs: Vec<Ptr> = io.outputs.iter().map(|&p| Ptr(p)).collect();
        let body = |line: usize| {
            let at = |size: usize| line / step * step * size + line % step;
            let order = match self.order(arrays, at(size), step) {
                Ok(order) => order,
                Err(e) => {
                    failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
                    return;
                }
            };
            for ((ty, &from), out) in self.types.iter().zip(arrays.inputs).zip(&outputs) {
                let bytes = ty.dtype.size();
                let from = from.wrapping_add(at(size) * bytes).cast_const();
                // SAFETY: the line lies inside operand and result; no other line writes there.
                unsafe { pick(from, out.at(at(self.count) * bytes), bytes, step, &order) };
            }
        };
        let depth = if self.count == size { (size.max(2) as f64).log2() } else { 2.0 };
        cx.team.run_with(lines, shape.elements() as f64 * 2.0 * depth, cx.flush, &body);
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}
