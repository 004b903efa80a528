//! Narrows integers that are known to be small to 32 bits, by range analysis.
//!
//! JAX numbers the elements of an array in 64 bits for its random bits and then uses the halves, and with 64-bit types
//! enabled it compares such numbers for the masks of triangles. Vectors of 32-bit elements hold twice as many.

use crate::graph::rewrite::{Rewriter, rebuild};
use smallvec::smallvec;
use systole_ir::op::{Binary, Compare, CompareType, Constant, Convert, Iota};
use systole_ir::{DType, Graph, Node, Op, TensorType, ValueId};

/// Range of the first result of a node, which is a 64-bit or 32-bit integer.
#[derive(Clone, Copy)]
struct IntegerRange {
    least: i128,
    most: i128,
}

impl IntegerRange {
    /// The range of all values of a narrow integer type.
    fn of_type(dtype: DType) -> Option<IntegerRange> {
        let bits = dtype.bits();
        match () {
            () if !dtype.is_int() || bits > 32 => None,
            () if dtype.is_signed_int() => {
                Some(IntegerRange { least: -(1 << (bits - 1)), most: (1 << (bits - 1)) - 1 })
            }
            () => Some(IntegerRange { least: 0, most: (1 << bits) - 1 }),
        }
    }

    fn is_within(self, other: IntegerRange) -> bool {
        other.least <= self.least && self.most <= other.most
    }

    fn is_one(self) -> bool {
        self.least == self.most
    }
}

/// The 32-bit type with the signedness of an integer type of 64 or 32 bits; `None` for other types.
fn narrow(dtype: DType) -> Option<DType> {
    match dtype {
        DType::U64 | DType::U32 => Some(DType::U32),
        DType::I64 | DType::I32 => Some(DType::I32),
        _ => None,
    }
}

/// Narrows 64-bit integers to 32 bits where range analysis allows it.
pub fn run(graph: &Graph) -> Graph {
    let mut known: Vec<Option<IntegerRange>> = Vec::with_capacity(graph.nodes.len());
    rebuild(graph, |g, _, node, inputs| {
        let of = |k: usize| node.inputs.get(k).filter(|v| v.out == 0).and_then(|v| known[v.index()]);
        let ty = |k: usize| node.inputs.get(k).map(|v| graph.ty(*v));
        let (first, second) = (of(0), of(1));
        let own = of_node(node, ty(0), [first, second]);
        known.push(own);
        match &node.op {
            Op::Convert(c) if c.to == DType::U32 && first.is_some_and(|a| a.least >= 0) => {
                in_32_bits(g, *inputs.first()?, c.to, node).map(|v| smallvec![v])
            }
            Op::Compare(c) if ty(0)?.dtype.bits() == 64 && first.is_some() && second.is_some() => {
                let to = narrow(ty(0)?.dtype)?;
                let operands = [in_32_bits(g, inputs[0], to, node)?, in_32_bits(g, inputs[1], to, node)?];
                let op = Compare { compare_type: CompareType::of(to), ..*c };
                Some(smallvec![g.push(op, &operands, node)])
            }
            // All bits are shifted out.
            Op::Binary(Binary::ShiftRightLogical) if own.is_some_and(|k| k.most == 0) => {
                Some(smallvec![g.full(&node.outs[0], 0.0, node)])
            }
            _ => None,
        }
    })
}

/// Infers the range of a node from those of its operands; `None` if it may not fit in 32 bits.
fn of_node(
    node: &Node,
    operand: Option<&TensorType>,
    [a, b]: [Option<IntegerRange>; 2],
) -> Option<IntegerRange> {
    let out = node.outs.first()?;
    let limit = IntegerRange::of_type(narrow(out.dtype)?)?;
    let range = |ends: &[i128]| Some(IntegerRange { least: *ends.iter().min()?, most: *ends.iter().max()? });
    let all = match &node.op {
        Op::Iota(iota) => range(&[0, (*out.shape.get(iota.dim)? as i128 - 1).max(0)]),
        Op::Constant(c) if c.value.is_splat() && out.elements() > 0 => {
            let bits = c.value.get(0).to_bits(out.dtype);
            range(&[if out.dtype == DType::U64 { bits.into() } else { c.value.get(0).as_i64().into() }])
        }
        Op::Convert(_) => a.or_else(|| IntegerRange::of_type(operand?.dtype)),
        Op::BroadcastInDim(_) | Op::Reshape(_) => a,
        Op::Binary(Binary::Add) => range(&[a?.least + b?.least, a?.most + b?.most]),
        Op::Binary(Binary::Subtract) => range(&[a?.least - b?.most, a?.most - b?.least]),
        Op::Binary(Binary::Multiply) => {
            let ([l, m], [n, o]) = ([a?.least, a?.most], [b?.least, b?.most]);
            range(&[l * n, l * o, m * n, m * o])
        }
        Op::Binary(Binary::ShiftRightLogical) if b?.is_one() && a?.least >= 0 => {
            let by = u32::try_from(b?.most).unwrap_or(u32::MAX);
            let bits = if by < out.dtype.bits() { by } else { 127 };
            range(&[a?.least >> bits, a?.most >> bits])
        }
        _ => None,
    };
    all.filter(|all| all.is_within(limit))
}

/// Recomputes the value with 32-bit integers of type `to`; `None` if it depends on ops other than iota, sums and
/// products. The value and those that it depends on fit.
fn in_32_bits(g: &mut Rewriter, v: ValueId, to: DType, like: &Node) -> Option<ValueId> {
    if g.ty(v).dtype == to {
        return Some(v);
    }
    let node = g.node(v).clone();
    let ty = node.outs.first()?.with_dtype(to);
    match &node.op {
        Op::Iota(iota) => Some(g.push(Iota { ty, ..iota.clone() }, &[], like)),
        Op::Constant(c) => Some(g.push(Constant { value: c.value.convert(to) }, &[], like)),
        Op::Convert(_) if g.ty(node.inputs[0]).dtype == to => Some(node.inputs[0]),
        Op::Convert(_) if g.ty(node.inputs[0]).dtype.is_int() => {
            Some(g.push(Convert { to }, &node.inputs, like))
        }
        Op::BroadcastInDim(_)
        | Op::Reshape(_)
        | Op::Binary(Binary::Add | Binary::Subtract | Binary::Multiply) => {
            let inputs =
                node.inputs.iter().map(|v| in_32_bits(g, *v, to, like)).collect::<Option<Vec<_>>>()?;
            Some(g.push(node.op.clone(), &inputs, like))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::op::Direction;
    use systole_ir::{GraphBuilder, Literal, Tensor, interp};

    /// Compares 64-bit integers that `make` builds, and returns whether it is done in 32 bits.
    fn compared(make: impl Fn(&GraphBuilder) -> [Tensor; 2]) -> bool {
        let g = GraphBuilder::new("compared");
        let [a, b] = make(&g);
        let graph = g.finish(&[Direction::Ge, Direction::Lt].map(|d| a.compare(&b, d))).unwrap();
        let after = run(&graph);
        after.verify().unwrap();
        let args: Vec<Literal> = graph
            .param_types()
            .iter()
            .map(|t| Literal::splat(t.clone(), systole_ir::Scalar::Int(-3)))
            .collect();
        let args: Vec<&Literal> = args.iter().collect();
        assert_eq!(interp::run(&graph, &args).unwrap(), interp::run(&after, &args).unwrap());
        let narrow = |v: &ValueId| after.ty(after.node(*v).inputs[0]).dtype.bits() == 32;
        after.results.iter().all(narrow)
    }

    #[test]
    fn the_mask_of_a_triangle_is_compared_in_32_bits() {
        for dtype in [DType::I64, DType::U64] {
            let ty = TensorType::new(dtype, [5, 7]);
            for k in [0.0, 1.0, -2.0] {
                let row = |g: &GraphBuilder| match k < 0.0 {
                    true => g.iota(ty.clone(), 0) - -k,
                    false => g.iota(ty.clone(), 0) + k,
                };
                let mask = |g: &GraphBuilder| [row(g), g.iota(ty.clone(), 1)];
                // Below zero, unsigned numbers wrap.
                assert_eq!(compared(mask), dtype == DType::I64 || k >= 0.0, "{dtype} {k}");
            }
        }
    }

    #[test]
    fn numbers_that_may_not_fit_stay() {
        let ty = TensorType::new(DType::I64, [9]);
        let iota = |g: &GraphBuilder| g.iota(ty.clone(), 0);
        let fits = 2f64.powi(31) - 9.0;
        assert!(compared(|g| [iota(g) + fits, iota(g) * 3.0 - 8.0]));
        assert!(!compared(|g| [iota(g) + (fits + 1.0), iota(g)]));
        assert!(!compared(|g| [iota(g) * 2f64.powi(29), iota(g)]));
        assert!(compared(|g| [iota(g) * -(2f64.powi(28)), iota(g)]));
        // A 64-bit argument may be anything; one of 32 bits fits.
        assert!(!compared(|g| [g.parameter(ty.clone(), "x"), iota(g)]));
        assert!(compared(|g| [g.parameter(ty.with_dtype(DType::I32), "x").convert(DType::I64), iota(g)]));
        assert!(!compared(|g| [g.parameter(ty.with_dtype(DType::U32), "x").convert(DType::I64), iota(g)]));
    }
}
