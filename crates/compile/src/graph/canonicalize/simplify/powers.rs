//! Rewrites powers with a constant exponent of −1, 0.5, 2, 3 or 4 as division, square root or products.
//!
//! XLA multiplies likewise for 2 and 3 (AlgebraicSimplifier), so that `x ** 3` has the bits of `x * x * x`.

use crate::graph::canonicalize::simplify::constant_folding::splat;
use crate::graph::rewrite::Rewriter;
use systole_ir::op::{Binary, BroadcastInDim, Compare, CompareType, Constant, Direction, Select, Unary};
use systole_ir::{DType, Dims, Literal, Node, ValueId};

/// Rewrites `power(x, c)` of floats; `None` for other exponents.
pub(super) fn run(g: &mut Rewriter, node: &Node, inputs: &[ValueId]) -> Option<ValueId> {
    let (x, dtype) = (inputs[0], node.outs[0].dtype);
    if !dtype.is_float() {
        return None;
    }
    let exponent = splat(g, inputs[1])?.as_f64();
    // Each product of narrow floats is rounded, where a power is rounded once.
    let is_wide = matches!(dtype, DType::F32 | DType::F64);
    if exponent == -1.0 {
        let one = full(g, node, 1.0);
        return Some(g.push(Binary::Divide, &[one, x], node));
    }
    if exponent == 0.5 {
        return Some(root(g, node, x));
    }
    if exponent != 2.0 && !(is_wide && (exponent == 3.0 || exponent == 4.0)) {
        return None;
    }
    let square = g.push(Binary::Multiply, &[x, x], node);
    Some(match exponent {
        2.0 => square,
        3.0 => g.push(Binary::Multiply, &[square, x], node),
        _ => g.push(Binary::Multiply, &[square, square], node),
    })
}

/// √x, with the values of the power at −0 and −∞: 0 and ∞.
fn root(g: &mut Rewriter, node: &Node, x: ValueId) -> ValueId {
    let [zero, least, infinity] = [0.0, f64::NEG_INFINITY, f64::INFINITY].map(|v| full(g, node, v));
    let positive = g.push(Binary::Add, &[x, zero], node);
    let root = g.push(Unary::Sqrt, &[positive], node);
    let op = Compare { direction: Direction::Eq, compare_type: CompareType::Float };
    let is_least = g.push(op, &[x, least], node);
    g.push(Select, &[is_least, infinity, root], node)
}

/// An array of the node's result type with equal elements.
fn full(g: &mut Rewriter, node: &Node, value: f64) -> ValueId {
    let ty = &node.outs[0];
    let one = g.push(Constant { value: Literal::scalar(ty.dtype, value) }, &[], node);
    match ty.rank() {
        0 => one,
        _ => g.push(BroadcastInDim { dims: Dims::new(), shape: ty.shape.clone() }, &[one], node),
    }
}

#[cfg(test)]
mod tests {
    use super::super::run;
    use std::sync::Arc;
    use systole_ir::op::{Binary, Unary};
    use systole_ir::{DType, Graph, GraphBuilder, Literal, Op, TensorType, interp};

    fn power_of(dtype: DType, exponent: f64) -> Arc<Graph> {
        let g = GraphBuilder::new("main");
        let x = g.parameter(TensorType::new(dtype, [300]), "x");
        let y = x.power(&(x.zeros_like() + exponent));
        g.finish(&[y]).unwrap()
    }

    fn has_power(graph: &Graph) -> bool {
        graph.nodes.iter().any(|n| n.op == Op::Binary(Binary::Power))
    }

    #[test]
    fn constant_exponents_become_products_divisions_and_roots() {
        let special = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1.0, -1.0, -2.5, 1e30, -1e-30];
        for dtype in [DType::F64, DType::F32, DType::BF16] {
            for exponent in [-1.0, 0.5, 2.0, 3.0, 4.0] {
                let graph = power_of(dtype, exponent);
                let simple = run(&graph);
                let kept = dtype == DType::BF16 && exponent > 2.0;
                assert_eq!(has_power(&simple), kept, "{dtype:?} {exponent}");
                let value = |i: usize| if i < special.len() { special[i] } else { i as f64 * 0.013 - 2.0 };
                let x = Literal::from_slice([300], &(0..300).map(value).collect::<Vec<f64>>())
                    .unwrap()
                    .convert(dtype);
                let [before, after] = [&*graph, &simple].map(|g| interp::run(g, &[&x]).unwrap().remove(0));
                for i in 0..300 {
                    let [a, b] = [&before, &after].map(|y| y.get(i).as_f64());
                    let near = (a - b).abs() <= a.abs() * if dtype == DType::F64 { 4e-16 } else { 2e-7 };
                    let same = a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                    assert!(
                        same || near && a != 0.0,
                        "{dtype:?}: {} ^ {exponent} = {a} or {b}",
                        x.get(i).as_f64()
                    );
                }
            }
        }
    }

    #[test]
    fn the_cube_has_the_bits_of_products() {
        let numbers: Vec<f64> = (0..300).map(|i| i as f64 * 0.37 - 41.1).collect();
        let x = Literal::from_slice([300], &numbers).unwrap();
        let y = interp::run(&run(&power_of(DType::F64, 3.0)), &[&x]).unwrap().remove(0);
        for i in 0..300 {
            let x = x.get(i).as_f64();
            assert_eq!(y.get(i).as_f64(), x * x * x);
        }
    }

    #[test]
    fn other_exponents_and_integers_stay_powers() {
        assert!(has_power(&run(&power_of(DType::F64, 2.5))));
        assert!(has_power(&run(&power_of(DType::I32, 3.0))));
        let root = run(&power_of(DType::F64, 0.5));
        assert!(root.nodes.iter().any(|n| n.op == Op::Unary(Unary::Sqrt)));
    }
}
