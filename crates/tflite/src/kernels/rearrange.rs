//! TFLite kernels that rearrange tensors: TILE, PACK, UNPACK, SPLIT_V, REVERSE_V2, MIRROR_PAD, SPACE_TO_BATCH_ND and
//! others.

use super::call::{KernelOperand, OperatorCall};
use super::data_movement::{picked, taken};
use super::op_row::operators;
use super::slicing::places;
use crate::model::broken;
use crate::op::OptionField;
use systole_base::{Literal, Result, ensure};

operators! {
    BatchToSpace "BATCH_TO_SPACE_ND" 37; options 24 []; versions 1 2; Same; batch_to_space
    SpaceToBatch "SPACE_TO_BATCH_ND" 38; options 25 []; versions 1 2; Same; space_to_batch
    Tile "TILE" 69; options 51 []; versions 1 2; Same; tile
    Pack "PACK" 83; options 59 [0 ValuesCount, 1 Axis]; versions 1 2; Same; pack
    Unpack "UNPACK" 88; options 64 [0 Num, 1 Axis]; versions 1 2; Same; unpack
    MirrorPad "MIRROR_PAD" 100; options 77 [0 MirrorMode]; versions 1 2; Same; mirror_pad
    SplitV "SPLIT_V" 102; options 79 [0 NumSplits]; versions 1 2; Same; split_v
    ReverseV2 "REVERSE_V2" 105; options 81 []; versions 1 3; Same; reverse
    ReverseSequence "REVERSE_SEQUENCE" 112; options 87 [0 SeqDim, 1 BatchDim]; versions 1 1; NoInt8;
        reverse_sequence
}

/// Returns the sizes of a dimension list as sizes.
fn sizes(x: &KernelOperand) -> Result<Vec<usize>> {
    let one = |&v: &i64| {
        usize::try_from(v)
            .ok()
            .filter(|v| *v < 1 << 30)
            .ok_or_else(|| broken(format!("{v} is not a valid size")))
    };
    x.indices()?.iter().map(one).collect()
}

/// Computes TILE: repeats `x` in each dimension.
fn tile(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (x, times) = (call.input(0)?, sizes(&call.input(1)?)?);
    ensure!(
        times.len() == x.dims().len(),
        broken(format!("{} repeats do not match {}", times.len(), x.ty()))
    );
    let dims: Vec<usize> = x.dims().iter().zip(&times).map(|(d, n)| d.saturating_mul(*n)).collect();
    call.check_output(&dims)?;
    let indices: Vec<Vec<usize>> =
        x.dims().iter().zip(&dims).map(|(&d, &whole)| (0..whole).map(|k| k % d).collect()).collect();
    picked(call, &x, &places(x.dims(), &indices))
}

/// Computes PACK: stacks operands along a new axis.
fn pack(call: &OperatorCall) -> Result<Vec<Literal>> {
    let parts = (0..call.operator.inputs.len()).map(|n| call.input(n)).collect::<Result<Vec<_>>>()?;
    let first = parts.first().ok_or_else(|| broken("the operator has no operands".into()))?;
    ensure!(parts.iter().all(|p| p.ty() == first.ty()), broken("the operands have several types".into()));
    let axis = call.axis(call.operator.int(OptionField::Axis), first.dims().len() + 1)?;
    let mut dims = first.dims().to_vec();
    dims.insert(axis, parts.len());
    call.check_output(&dims)?;
    let outer: usize = first.dims()[..axis].iter().product();
    let inner = first.dims()[axis..].iter().product::<usize>() * first.dtype().size();
    let rows =
        (0..outer).flat_map(|o| parts.iter().map(move |p| &p.value.bytes()[o * inner..(o + 1) * inner]));
    Ok(vec![Literal::from_bytes(call.output_type()?, &rows.collect::<Vec<_>>().concat())?])
}

/// Returns the blocks of these sizes along an axis, without the axis if `is_gone`.
fn blocks(x: &KernelOperand, axis: usize, each: &[usize], is_gone: bool) -> Result<Vec<Literal>> {
    let mut start = 0usize;
    let mut made = Vec::new();
    for &size in each {
        let end = start.saturating_add(size);
        ensure!(end <= x.dims()[axis], broken(format!("the parts {each:?} exceed {}", x.ty())));
        let mut dims = x.dims().to_vec();
        dims[axis] = size;
        let mut indices: Vec<Vec<usize>> = dims.iter().map(|&d| (0..d).collect()).collect();
        indices[axis] = (start..end).collect();
        if is_gone {
            dims.remove(axis);
        }
        made.push(taken(x, &dims, &places(x.dims(), &indices))?);
        start = end;
    }
    Ok(made)
}

/// Computes UNPACK: the slices of an axis, without it.
fn unpack(call: &OperatorCall) -> Result<Vec<Literal>> {
    let x = call.input(0)?;
    let axis = call.axis(call.operator.int(OptionField::Axis), x.dims().len())?;
    let n = call.operator.outputs.len();
    ensure!(n == x.dims()[axis], broken(format!("{n} outputs do not match {}", x.ty())));
    blocks(&x, axis, &vec![1; n], true)
}

/// Computes SPLIT_V: `x`, the sizes of the parts, the axis; one size may be −1.
fn split_v(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (x, each, axis) = (call.input(0)?, call.input(1)?.indices()?, call.input(2)?.indices()?);
    let &[axis] = &axis[..] else { return Err(broken("the axis must be a scalar".into())) };
    let axis = call.axis(axis, x.dims().len())?;
    let known: i64 = each.iter().filter(|&&v| v >= 0).fold(0, |sum, v| sum.saturating_add(*v));
    let rest = (x.dims()[axis] as i64 - known).max(0);
    let each: Vec<usize> = each.iter().map(|&v| if v < 0 { rest } else { v } as usize).collect();
    ensure!(
        each.len() == call.operator.outputs.len(),
        broken(format!("{} parts have other outputs", each.len()))
    );
    blocks(&x, axis, &each, false)
}

/// Computes REVERSE_V2.
fn reverse(call: &OperatorCall) -> Result<Vec<Literal>> {
    let x = call.input(0)?;
    call.check_output(x.dims())?;
    let mut indices: Vec<Vec<usize>> = x.dims().iter().map(|&d| (0..d).collect()).collect();
    for axis in call.input(1)?.indices()? {
        indices[call.axis(axis, x.dims().len())?].reverse();
    }
    picked(call, &x, &places(x.dims(), &indices))
}

/// Computes REVERSE_SEQUENCE: reverses the first elements of each sample.
fn reverse_sequence(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (x, lengths) = (call.input(0)?, sizes(&call.input(1)?)?);
    let n = call.check_output(x.dims())?;
    let rank = x.dims().len();
    let [along, batch] =
        [OptionField::SeqDim, OptionField::BatchDim].map(|field| call.axis(call.operator.int(field), rank));
    let (along, batch) = (along?, batch?);
    let strides = x.ty().shape.strides();
    let fits = lengths.len() == x.dims()[batch] && lengths.iter().all(|l| *l <= x.dims()[along]);
    ensure!(fits, broken(format!("the lengths {lengths:?} do not match {}", x.ty())));
    let from = |at: usize| {
        let index = |d: usize| at / strides[d] % x.dims()[d];
        let (k, length) = (index(along), lengths[index(batch)]);
        if k < length { at - k * strides[along] + (length - 1 - k) * strides[along] } else { at }
    };
    picked(call, &x, &(0..n).map(from).collect::<Vec<_>>())
}

/// Computes MIRROR_PAD: pads with the elements near the edge, in reverse order.
fn mirror_pad(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (x, edges) = (call.input(0)?, sizes(&call.input(1)?)?);
    ensure!(edges.len() == 2 * x.dims().len(), broken(format!("paddings {edges:?} do not match {}", x.ty())));
    // Without the edge itself, at most all other elements are mirrored.
    let edge = usize::from(call.operator.int(OptionField::MirrorMode) == 0);
    let mut indices = Vec::new();
    for (&size, pair) in x.dims().iter().zip(edges.chunks_exact(2)) {
        let (before, after) = (pair[0], pair[1]);
        ensure!(before.max(after) + edge <= size, broken(format!("paddings {edges:?} exceed {}", x.ty())));
        let front = (0..before).map(|k| before - 1 - k + edge);
        let back = (0..after).map(|k| size - 1 - edge - k);
        indices.push(front.chain(0..size).chain(back).collect::<Vec<usize>>());
    }
    call.check_output(&indices.iter().map(Vec::len).collect::<Vec<_>>())?;
    picked(call, &x, &places(x.dims(), &indices))
}

/// Geometry of blocks in space: batch, block sizes, padded or cropped sizes, edges, and the sizes behind.
struct SpaceBlocks {
    block: Vec<usize>,
    edges: Vec<usize>,
    /// Elements behind the spatial dimensions.
    inner: usize,
}

impl SpaceBlocks {
    fn new(call: &OperatorCall) -> Result<SpaceBlocks> {
        let (x, block, edges) = (call.input(0)?, sizes(&call.input(1)?)?, sizes(&call.input(2)?)?);
        let fits = x.dims().len() > block.len()
            && edges.len() == 2 * block.len()
            && block.iter().all(|b| (1..1 << 20).contains(b));
        ensure!(fits, broken(format!("blocks {block:?} and edges {edges:?} do not match {}", x.ty())));
        let inner = x.dims()[1 + block.len()..].iter().product();
        Ok(SpaceBlocks { block, edges, inner })
    }

    fn count(&self) -> usize {
        self.block.iter().fold(1, |n, b| n.saturating_mul(*b))
    }
}

/// Splits a row-major index into coordinates.
fn coordinates(mut at: usize, dims: &[usize]) -> Vec<usize> {
    let mut found = vec![0; dims.len()];
    for (slot, &d) in found.iter_mut().zip(dims).rev() {
        *slot = at % d.max(1);
        at /= d.max(1);
    }
    found
}

/// Computes SPACE_TO_BATCH_ND: `x: T[B, H, W, …]`, blocks, paddings.
fn space_to_batch(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (x, blocks) = (call.input(0)?, SpaceBlocks::new(call)?);
    let m = blocks.block.len();
    let mut dims = x.dims().to_vec();
    for d in 0..m {
        let padded = x.dims()[1 + d] + blocks.edges[2 * d] + blocks.edges[2 * d + 1];
        ensure!(padded.is_multiple_of(blocks.block[d]), broken(format!("blocks do not divide {}", x.ty())));
        dims[1 + d] = padded / blocks.block[d];
    }
    dims[0] = dims[0].saturating_mul(blocks.count());
    let n = call.check_output(&dims)?;
    let (output, size) = (call.output()?, x.dtype().size());
    let zero = output.quantization.as_ref().and_then(|q| q.zero_point.first()).map_or(0, |z| *z as u8);
    let mut bytes = vec![if size == 1 { zero } else { 0 }; n * size];
    let own = |at: usize| -> Option<usize> {
        let place = coordinates(at / blocks.inner, &dims[..1 + m]);
        let block = coordinates(place[0] / x.dims()[0], &blocks.block);
        let mut from = place[0] % x.dims()[0];
        for d in 0..m {
            let k = (place[1 + d] * blocks.block[d] + block[d]).checked_sub(blocks.edges[2 * d])?;
            from = from * x.dims()[1 + d] + Some(k).filter(|&k| k < x.dims()[1 + d])?;
        }
        Some(from * blocks.inner + at % blocks.inner)
    };
    for at in 0..n {
        if let Some(from) = own(at) {
            bytes[at * size..(at + 1) * size]
                .copy_from_slice(&x.value.bytes()[from * size..(from + 1) * size]);
        }
    }
    Ok(vec![Literal::from_bytes(call.output_type()?, &bytes)?])
}

/// Computes BATCH_TO_SPACE_ND: `x: T[B · blocks, H, W, …]`, blocks, crops.
fn batch_to_space(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (x, blocks) = (call.input(0)?, SpaceBlocks::new(call)?);
    let m = blocks.block.len();
    let mut dims = x.dims().to_vec();
    ensure!(dims[0].is_multiple_of(blocks.count()), broken(format!("blocks do not divide {}", x.ty())));
    dims[0] /= blocks.count();
    for d in 0..m {
        let whole = x.dims()[1 + d].saturating_mul(blocks.block[d]);
        let left = whole.checked_sub(blocks.edges[2 * d] + blocks.edges[2 * d + 1]);
        dims[1 + d] = left.ok_or_else(|| broken(format!("the crops exceed {}", x.ty())))?;
    }
    let n = call.check_output(&dims)?;
    let from = |at: usize| {
        let place = coordinates(at / blocks.inner, &dims[..1 + m]);
        let (mut batch, mut from) = (0, Vec::new());
        for d in 0..m {
            let k = place[1 + d] + blocks.edges[2 * d];
            batch = batch * blocks.block[d] + k % blocks.block[d];
            from.push(k / blocks.block[d]);
        }
        let start = batch * dims[0] + place[0];
        let row = from.iter().zip(&x.dims()[1..]).fold(start, |row, (k, d)| row * d + k);
        row * blocks.inner + at % blocks.inner
    };
    picked(call, &x, &(0..n).map(from).collect::<Vec<_>>())
}
