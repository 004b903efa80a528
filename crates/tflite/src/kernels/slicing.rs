//! TFLite kernels that select parts of tensors: SLICE, STRIDED_SLICE, SPLIT, GATHER, SPACE_TO_DEPTH and others.

use super::call::OperatorCall;
use super::data_movement::{picked, taken};
use super::op_row::operators;
use crate::model::broken;
use crate::op::OptionField;
use systole_base::{Literal, Result, ensure};

operators! {
    DepthToSpace "DEPTH_TO_SPACE" 5; options 94 [0 BlockSize]; versions 1 1; Same; |call| space_and_depth(call, false)
    SpaceToDepth "SPACE_TO_DEPTH" 26; options 19 [0 BlockSize]; versions 1 2; Same; |call| space_and_depth(call, true)
    Gather "GATHER" 36; options 23 [0 Axis, 1 BatchDims]; versions 1 2; Same; gather
    StridedSlice "STRIDED_SLICE" 45;
        options 32 [0 BeginMask, 1 EndMask, 2 EllipsisMask, 3 NewAxisMask, 4 ShrinkAxisMask, 5 Offset];
        versions 1 2; Same; strided_slice
    Split "SPLIT" 49; options 35 [0 NumSplits]; versions 1 2; Same; split
    Slice "SLICE" 65; options 48 []; versions 1 2; Same; slice
}

/// Returns the flat indices of the elements at `indices[d]` of each dimension.
pub(super) fn places(dims: &[usize], indices: &[Vec<usize>]) -> Vec<usize> {
    let mut at = vec![0usize];
    let mut stride: usize = dims.iter().product();
    for (&size, chosen) in dims.iter().zip(indices) {
        stride /= size.max(1);
        at = at.iter().flat_map(|&base| chosen.iter().map(move |k| base + k * stride)).collect();
    }
    at
}

/// Computes SLICE: `x`, begin, size; size −1 means the rest.
fn slice(call: &OperatorCall) -> Result<Vec<Literal>> {
    let x = call.input(0)?;
    let (begin, size) = (call.input(1)?.indices()?, call.input(2)?.indices()?);
    if begin.len() != x.dims().len() || size.len() != begin.len() {
        return Err(broken(format!("a slice of {} dimensions does not match {}", begin.len(), x.ty())));
    }
    let mut indices = Vec::new();
    for ((&d, &b), &s) in x.dims().iter().zip(&begin).zip(&size) {
        let end = if s == -1 { d as i64 } else { b.saturating_add(s) };
        if b < 0 || end < b || end > d as i64 {
            return Err(broken(format!("a slice of {s} elements from {b} exceeds {d}")));
        }
        indices.push((b as usize..end as usize).collect::<Vec<_>>());
    }
    call.check_output(&indices.iter().map(Vec::len).collect::<Vec<_>>())?;
    picked(call, &x, &places(x.dims(), &indices))
}

/// A dimension of STRIDED_SLICE's operand, and how it is sliced.
struct SlicedDimension {
    begin: Option<i64>,
    end: Option<i64>,
    stride: i64,
    shrinks: bool,
}

/// Entries of STRIDED_SLICE: the dimensions of the operand in order, and `None` for each new dimension of size 1.
fn sliced_dimensions(call: &OperatorCall, rank: usize) -> Result<Vec<Option<SlicedDimension>>> {
    let [begin, end, strides] = [1, 2, 3].map(|n| call.input(n).and_then(|a| a.indices()));
    let (begin, end, strides) = (begin?, end?, strides?);
    if end.len() != begin.len() || strides.len() != begin.len() || begin.len() > 32 {
        return Err(broken(format!("a slice of {} dimensions does not match its end", begin.len())));
    }
    let bit = |field: OptionField, d: usize| call.operator.int(field) >> d & 1 == 1;
    let is_new = |d: usize| bit(OptionField::NewAxisMask, d) && !bit(OptionField::EllipsisMask, d);
    let of_operand = (0..begin.len()).filter(|&d| !is_new(d) && !bit(OptionField::EllipsisMask, d)).count();
    let whole = || Some(SlicedDimension { begin: None, end: None, stride: 1, shrinks: false });
    let left = rank.checked_sub(of_operand);
    let mut left = left.ok_or_else(|| broken(format!("a slice of {of_operand} dimensions of {rank}")))?;
    let mut all = Vec::new();
    for d in 0..begin.len() {
        if bit(OptionField::EllipsisMask, d) {
            all.extend((0..std::mem::take(&mut left)).map(|_| whole()));
        } else if is_new(d) {
            all.push(None);
        } else {
            let end =
                if call.operator.is(OptionField::Offset) { begin[d].saturating_add(end[d]) } else { end[d] };
            all.push(Some(SlicedDimension {
                begin: (!bit(OptionField::BeginMask, d)).then_some(begin[d]),
                end: (!bit(OptionField::EndMask, d)).then_some(end),
                stride: strides[d],
                shrinks: bit(OptionField::ShrinkAxisMask, d),
            }));
        }
    }
    all.extend((0..left).map(|_| whole()));
    Ok(all)
}

impl SlicedDimension {
    /// Returns the indices of a dimension of size `size` that are chosen.
    fn indices(&self, size: usize) -> Result<Vec<usize>> {
        let n = size as i64;
        ensure!(self.stride != 0, broken("the stride is 0".into()));
        let step = if self.shrinks { 1 } else { self.stride };
        let limit = |v: i64| if v < 0 { v.saturating_add(n) } else { v };
        let (low, high) = if self.stride > 0 { (0, n) } else { (-1, n - 1) };
        let ends = if self.stride > 0 { (0, n) } else { (n - 1, -1) };
        let first = self.begin.map_or(ends.0, |v| limit(v).clamp(low, high));
        let last = if self.shrinks {
            first.saturating_add(1)
        } else {
            self.end.map_or(ends.1, |v| limit(v).clamp(low, high))
        };
        let mut chosen = Vec::new();
        let mut at = first;
        while (step > 0 && at < last) || (step < 0 && at > last) {
            let index = usize::try_from(at).ok().filter(|&k| k < size);
            chosen.push(index.ok_or_else(|| broken(format!("index {at} is out of range for size {n}")))?);
            at = at.saturating_add(step);
        }
        Ok(chosen)
    }
}

/// Computes STRIDED_SLICE: `x`, begin, end, strides, with the masks of Python slices.
fn strided_slice(call: &OperatorCall) -> Result<Vec<Literal>> {
    let x = call.input(0)?;
    let mut sizes = x.dims().iter();
    let (mut indices, mut dims) = (Vec::new(), Vec::new());
    for entry in sliced_dimensions(call, x.dims().len())? {
        let Some(sliced) = entry else {
            dims.push(1);
            continue;
        };
        let size = sizes.next().ok_or_else(|| broken("the slice has too many dimensions".into()))?;
        let chosen = sliced.indices(*size)?;
        if !sliced.shrinks {
            dims.push(chosen.len());
        }
        indices.push(chosen);
    }
    call.check_output(&dims)?;
    picked(call, &x, &places(x.dims(), &indices))
}

/// Computes SPLIT: the axis, then `x`; equal parts.
fn split(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (axis, x) = (call.input(0)?.indices()?, call.input(1)?);
    let &[axis] = &axis[..] else { return Err(broken("the axis must be a scalar".into())) };
    let axis = call.axis(axis, x.dims().len())?;
    let parts = call.operator.outputs.len();
    if parts == 0 || !x.dims()[axis].is_multiple_of(parts) {
        return Err(broken(format!("cannot split into {parts} equal parts: {}", x.ty())));
    }
    let own = x.dims()[axis] / parts;
    let mut dims = x.dims().to_vec();
    dims[axis] = own;
    let part = |n: usize| {
        let range = |(d, &size): (usize, &usize)| match d == axis {
            true => (n * own..(n + 1) * own).collect(),
            false => (0..size).collect(),
        };
        let indices: Vec<Vec<usize>> = x.dims().iter().enumerate().map(range).collect();
        taken(&x, &dims, &places(x.dims(), &indices))
    };
    (0..parts).map(part).collect()
}

/// Computes GATHER: slices of an axis by index, the indices of each sample if there are batch dimensions.
fn gather(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (x, chosen) = (call.input(0)?, call.input(1)?);
    let rank = x.dims().len();
    let axis = call.axis(call.operator.int(OptionField::Axis), rank)?;
    let batch = call.operator.int(OptionField::BatchDims);
    let batch = usize::try_from(if batch < 0 { batch + chosen.dims().len() as i64 } else { batch });
    let batch = batch.ok().filter(|&b| b <= axis && chosen.dims().get(..b) == x.dims().get(..b));
    let batch = batch.ok_or_else(|| broken("the batch dimensions of indices and values differ".into()))?;
    let dims = [&x.dims()[..axis], &chosen.dims()[batch..], &x.dims()[axis + 1..]].concat();
    call.check_output(&dims)?;
    let n = x.dims()[axis];
    let index = |&k: &i64| {
        let found = usize::try_from(k).ok().filter(|&k| k < n);
        found.ok_or_else(|| broken(format!("index {k} is out of range for size {n}")))
    };
    let chosen_of = chosen.indices()?.iter().map(index).collect::<Result<Vec<usize>>>()?;
    let batches: usize = x.dims()[..batch].iter().product();
    let (each, per) = (x.ty().elements() / batches.max(1), chosen_of.len() / batches.max(1));
    let mut all = Vec::new();
    for b in 0..batches {
        let own = &chosen_of[b * per..(b + 1) * per];
        let mut indices: Vec<Vec<usize>> = x.dims()[batch..].iter().map(|&d| (0..d).collect()).collect();
        indices[axis - batch] = own.to_vec();
        all.extend(places(&x.dims()[batch..], &indices).into_iter().map(|at| b * each + at));
    }
    picked(call, &x, &all)
}

/// Computes SPACE_TO_DEPTH and DEPTH_TO_SPACE.
fn space_and_depth(call: &OperatorCall, to_depth: bool) -> Result<Vec<Literal>> {
    let x = call.input(0)?;
    let [b, h, w, c] = x.of_rank::<4>()?;
    let block = call.at_least_1(OptionField::BlockSize)?;
    let squared = block.saturating_mul(block);
    let fits = if to_depth { h % block == 0 && w % block == 0 } else { c % squared == 0 };
    if !fits || c == 0 || squared > 1 << 20 {
        return Err(broken(format!("block size {block} does not match {}", x.ty())));
    }
    let [oh, ow, oc] = match to_depth {
        true => [h / block, w / block, c * squared],
        false => [h * block, w * block, c / squared],
    };
    let n = call.check_output(&[b, oh, ow, oc])?;
    let from = |at: usize| {
        let (channel, ox, oy, ob) = (at % oc, at / oc % ow, at / oc / ow % oh, at / oc / ow / oh);
        let (y, x, channel) = match to_depth {
            true => (oy * block + channel / c / block, ox * block + channel / c % block, channel % c),
            false => (oy / block, ox / block, (oy % block * block + ox % block) * oc + channel),
        };
        ((ob * h + y) * w + x) * c + channel
    };
    picked(call, &x, &(0..n).map(from).collect::<Vec<_>>())
}
