//! Narrows integers that are known to be small to 32 bits, by range analysis.
//!
//! JAX numbers the elements of an array in 64 bits for its random bits and then uses the halves. Vectors of 32-bit
//! elements hold twice as many, and the upper half is zero.

use crate::graph::rewrite::{Rewriter, rebuild};
use smallvec::smallvec;
use systole_ir::op::{Binary, Constant, Iota};
use systole_ir::{DType, Graph, Node, Op, ValueId};

/// Range of the first result of a node: unsigned integers below 2³².
#[derive(Clone, Copy)]
struct UnsignedRange {
    /// Maximum.
    most: u64,
    /// Whether all elements equal the maximum.
    is_one: bool,
}

/// Narrows 64-bit integers to 32 bits where range analysis allows it.
pub fn run(graph: &Graph) -> Graph {
    let mut known: Vec<Option<UnsignedRange>> = Vec::with_capacity(graph.nodes.len());
    rebuild(graph, |g, _, node, inputs| {
        let of = |k: usize| node.inputs.get(k).filter(|v| v.out == 0).and_then(|v| known[v.index()]);
        let (first, own) = (of(0), of_node(node, [of(0), of(1)]));
        known.push(own.filter(|k| u32::try_from(k.most).is_ok()));
        match &node.op {
            Op::Convert(c) if c.to == DType::U32 && first.is_some() => {
                in_32_bits(g, *inputs.first()?, node).map(|v| smallvec![v])
            }
            // All bits are shifted out.
            Op::Binary(Binary::ShiftRightLogical) if own.is_some_and(|k| k.most == 0) => {
                Some(smallvec![g.full(&node.outs[0], 0.0, node)])
            }
            _ => None,
        }
    })
}

/// Infers the range of a node from those of its operands.
fn of_node(node: &Node, [a, b]: [Option<UnsignedRange>; 2]) -> Option<UnsignedRange> {
    let out = node.outs.first()?;
    if !matches!(out.dtype, DType::U64 | DType::U32) {
        return None;
    }
    let of_two = |f: fn(u64, u64) -> Option<u64>| {
        let (a, b) = (a?, b?);
        Some(UnsignedRange { most: f(a.most, b.most)?, is_one: a.is_one && b.is_one })
    };
    match &node.op {
        Op::Iota(iota) => {
            let size = *out.shape.get(iota.dim)? as u64;
            Some(UnsignedRange { most: size.saturating_sub(1), is_one: size <= 1 })
        }
        Op::Constant(c) if c.value.is_splat() && out.elements() > 0 => {
            Some(UnsignedRange { most: c.value.get(0).to_bits(out.dtype), is_one: true })
        }
        Op::BroadcastInDim(_) | Op::Reshape(_) | Op::Convert(_) => a,
        Op::Binary(Binary::Add) => of_two(u64::checked_add),
        Op::Binary(Binary::Multiply) => of_two(u64::checked_mul),
        Op::Binary(Binary::ShiftRightLogical) if b?.is_one => {
            of_two(|a, by| Some(u32::try_from(by).ok().and_then(|by| a.checked_shr(by)).unwrap_or(0)))
        }
        _ => None,
    }
}

/// Recomputes the value with 32-bit integers; `None` if it depends on ops other than iota, sums and products.
fn in_32_bits(g: &mut Rewriter, v: ValueId, like: &Node) -> Option<ValueId> {
    if g.ty(v).dtype == DType::U32 {
        return Some(v);
    }
    let node = g.node(v).clone();
    let ty = node.outs.first()?.with_dtype(DType::U32);
    match &node.op {
        Op::Iota(iota) => Some(g.push(Iota { ty, ..iota.clone() }, &[], like)),
        Op::Constant(c) => Some(g.push(Constant { value: c.value.convert(DType::U32) }, &[], like)),
        Op::Convert(_) if g.ty(node.inputs[0]).dtype == DType::U32 => Some(node.inputs[0]),
        Op::BroadcastInDim(_) | Op::Reshape(_) | Op::Binary(Binary::Add | Binary::Multiply) => {
            let inputs = node.inputs.iter().map(|v| in_32_bits(g, *v, like)).collect::<Option<Vec<_>>>()?;
            Some(g.push(node.op.clone(), &inputs, like))
        }
        _ => None,
    }
}
