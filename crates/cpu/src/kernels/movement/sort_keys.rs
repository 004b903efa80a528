//! Comparators that compare one function of either element: each element has a key, and the order of keys, as whole
//! numbers, is that of the elements. JAX's comparators are such: they make −0 and 0, and all NaN, the same first.

use crate::kernel::program::MapKernel;
use crate::kernel::with_scratch;
use crate::simd::level::Level;
use std::collections::HashSet;
use systole_compile::{Instr, Load, Map};
use systole_ir::op::{Compare, CompareType, Direction, Lowering};
use systole_ir::{DType, Graph, Op, ValueId};

/// A comparator as keys of the elements of one operand.
pub struct SortKeys {
    /// The operand that is compared.
    pub operand: usize,
    compare_type: CompareType,
    is_descending: bool,
    /// Elements of a line.
    size: usize,
    /// Type of the operand's elements, and that of the function's values.
    from: DType,
    dtype: DType,
    /// The function on a line; `None`: the elements themselves.
    function: Option<MapKernel>,
}

impl SortKeys {
    /// Of a line of `size` elements. `None`: the comparator is no comparison, below or above, of one function of both
    /// elements of an operand.
    pub fn of(body: &Graph, size: usize, level: Level) -> Option<SortKeys> {
        let node = body.node(*body.results.first()?);
        let Op::Compare(Compare { direction, compare_type }) = node.op else { return None };
        let [a, b] = [*node.inputs.first()?, *node.inputs.get(1)?];
        let (p, q) = (source(body, a)?, source(body, b)?);
        if p / 2 != q / 2 || p == q || !alike(body, a, b) || u32::try_from(size).is_err() {
            return None;
        }
        let is_descending = match direction {
            Direction::Lt => p > q,
            Direction::Gt => p < q,
            _ => return None,
        };
        let element = *body.params.get(p)?;
        let function = match element == a {
            true => None,
            false => Some(MapKernel::new(&function(body, element, a, size)?, level)),
        };
        let (from, dtype) = (body.ty(element).dtype, body.ty(a).dtype);
        Some(SortKeys { operand: p / 2, compare_type, is_descending, size, from, dtype, function })
    }

    /// Bits of a key.
    pub fn bits(&self) -> usize {
        self.dtype.bits() as usize
    }

    /// The keys of a line of the operand at `base`: of element `first` and those at a distance of `step`. `None` where some
    /// element has no place in the order.
    ///
    /// # Safety
    /// The array has this line.
    pub unsafe fn line(&self, base: *const u8, first: usize, step: usize) -> Option<Vec<u64>> {
        let start = base.wrapping_add(first * self.from.size());
        let Some(function) = &self.function else {
            // SAFETY: by the caller's promise.
            return unsafe { self.keys(start, step) };
        };
        let (from, to) = (self.from.size(), self.dtype.size());
        let half = (self.size * from).next_multiple_of(64);
        with_scratch(half + self.size * to, |scratch| {
            // SAFETY: scratch has room for the line's elements, and behind them for the function's values.
            unsafe {
                let line = if step == 1 {
                    start
                } else {
                    for i in 0..self.size {
                        let element = start.wrapping_add(i * step * from);
                        std::ptr::copy_nonoverlapping(element, scratch.wrapping_add(i * from), from);
                    }
                    scratch.cast_const()
                };
                let values = scratch.wrapping_add(half);
                function.range(&[line], &[values], 0..self.size);
                self.keys(values, 1)
            }
        })
    }

    /// Values of the function as keys.
    unsafe fn keys(&self, values: *const u8, step: usize) -> Option<Vec<u64>> {
        // SAFETY: by the caller's promise, a line of values of this size begins there.
        unsafe {
            match self.dtype.size() {
                1 => self.keys_of::<u8>(values, step),
                2 => self.keys_of::<u16>(values, step),
                4 => self.keys_of::<u32>(values, step),
                _ => self.keys_of::<u64>(values, step),
            }
        }
    }

    unsafe fn keys_of<T: Copy + Into<u64>>(&self, values: *const u8, step: usize) -> Option<Vec<u64>> {
        let values = values.cast::<T>();
        // SAFETY: by the caller's promise.
        let bits = (0..self.size).map(|i| unsafe { (*values.add(i * step)).into() });
        let (width, ones) = (self.bits(), u64::MAX >> (64 - self.bits()));
        let sign = 1u64 << (width - 1);
        let turned = if self.is_descending { ones } else { 0 };
        if !self.dtype.is_float() {
            let flip = if self.dtype.is_signed_int() { sign } else { 0 } ^ turned;
            return Some(bits.map(|b| b & ones ^ flip).collect());
        }
        let ordered = |b: u64| if b & sign != 0 { b ^ ones } else { b | sign };
        if self.compare_type == CompareType::TotalOrder {
            return Some(bits.map(|b| ordered(b) ^ turned).collect());
        }
        let infinity = match self.dtype {
            DType::F16 => 0x7c00,
            DType::BF16 => 0x7f80,
            DType::F32 => 0x7f80_0000,
            _ => 0x7ff0_0000_0000_0000,
        };
        let mut is_number = true;
        let keys = bits.map(|b| {
            is_number &= b & !sign <= infinity;
            // The zeros are the same.
            ordered(if b == sign { 0 } else { b }) ^ turned
        });
        let keys = keys.collect();
        is_number.then_some(keys)
    }
}

/// What the comparator makes of an element, on a line of elements.
fn function(body: &Graph, element: ValueId, value: ValueId, size: usize) -> Option<Map> {
    let mut needed = vec![false; body.nodes.len()];
    needed[value.index()] = true;
    for i in (0..=value.index()).rev() {
        if needed[i] {
            body.nodes[i].inputs.iter().for_each(|v| needed[v.index()] = true);
        }
    }
    let dtype = body.ty(element).dtype;
    let mut loads = vec![Load::Array { input: 0, dtype, strides: [1].into_iter().collect(), offset: 0 }];
    let constants: Vec<usize> =
        (0..body.nodes.len()).filter(|&i| needed[i] && matches!(body.nodes[i].op, Op::Constant(_))).collect();
    let mut at = vec![usize::MAX; body.nodes.len()];
    at[element.index()] = 0;
    for i in constants {
        let Op::Constant(c) = &body.nodes[i].op else { return None };
        at[i] = loads.len();
        loads.push(Load::Splat { value: c.value.get(0), dtype: c.value.dtype() });
    }
    let mut instrs = Vec::new();
    for (i, node) in body.nodes.iter().enumerate().filter(|(i, _)| needed[*i]) {
        if matches!(node.op, Op::Parameter(_) | Op::Constant(_)) {
            continue;
        }
        if node.op.rule().lower() != Lowering::Map || node.outs.len() != 1 {
            return None;
        }
        let kind = usize::from(matches!(node.op, Op::Select(_)));
        at[i] = loads.len() + instrs.len();
        instrs.push(Instr {
            op: node.op.clone(),
            args: node.inputs.iter().map(|v| at[v.index()]).collect(),
            from: body.ty(*node.inputs.get(kind)?).dtype,
            to: node.outs[0].dtype,
        });
    }
    Some(Map { shape: [size].into(), loads, instrs, stores: vec![at[value.index()]] })
}

/// The one parameter that a value depends on.
fn source(body: &Graph, v: ValueId) -> Option<usize> {
    // Of each node: none yet, one, or several.
    let mut of: Vec<Result<Option<usize>, ()>> = Vec::with_capacity(v.index() + 1);
    for node in body.nodes.iter().take(v.index() + 1) {
        let join = |a: Result<Option<usize>, ()>, b: Result<Option<usize>, ()>| match (a?, b?) {
            (Some(a), Some(b)) if a != b => Err(()),
            (a, b) => Ok(a.or(b)),
        };
        let mut found = node.inputs.iter().try_fold(None, |all, v| join(Ok(all), of[v.index()]));
        if let Op::Parameter(p) = &node.op {
            found = Ok(Some(p.index));
        }
        of.push(found);
    }
    of.pop()?.ok()?
}

/// Whether two values are the same function of their parameter.
fn alike(body: &Graph, a: ValueId, b: ValueId) -> bool {
    let (mut seen, mut open) = (HashSet::new(), vec![(a, b)]);
    while let Some((a, b)) = open.pop() {
        if !seen.insert((a, b)) {
            continue;
        }
        let (x, y) = (body.node(a), body.node(b));
        let same = x.op == y.op || matches!((&x.op, &y.op), (Op::Parameter(_), Op::Parameter(_)));
        if !same || x.inputs.len() != y.inputs.len() {
            return false;
        }
        open.extend(x.inputs.iter().copied().zip(y.inputs.iter().copied()));
    }
    true
}
