//! Rewrites outer products (`dot_general` without contraction) as multiplications of broadcast arrays.
//!
//! The multiplication of `einsum("i,j->ij")` fuses with neighboring loops and writes memory once. As a GEMM with an
//! inner dimension of one it took 2.3 times as long.

use crate::graph::rewrite::Rewriter;
use systole_ir::op::{Binary, BroadcastInDim, Convert, DotGeneral};
use systole_ir::{DType, Dims, Node, ValueId};

/// Rewrites a `dot_general` that contracts nothing.
pub(super) fn run(g: &mut Rewriter, d: &DotGeneral, node: &Node, inputs: &[ValueId]) -> Option<ValueId> {
    if !d.lhs_contract.is_empty() {
        return None;
    }
    let result = &node.outs[0];
    let types = [0, 1].map(|i| g.ty(inputs[i]).dtype);
    let by = match d.element_type {
        to if to.is_float() && types.contains(&DType::F64) => DType::F64,
        DType::F16 | DType::BF16 => DType::F32,
        to => to,
    };
    let batch = d.lhs_batch.len();
    let free = [d.lhs_free(g.ty(inputs[0]).rank()), d.rhs_free(g.ty(inputs[1]).rank())];
    let begins = [batch, batch + free[0].len()];
    let wide = [0, 1].map(|i| {
        let own = if i == 0 { &d.lhs_batch } else { &d.rhs_batch };
        let place = |k: usize| match own.iter().position(|b| *b == k) {
            Some(at) => at,
            None => begins[i] + free[i].iter().filter(|f| **f < k).count(),
        };
        let dims: Dims = (0..g.ty(inputs[i]).rank()).map(place).collect();
        let x = if types[i] == by { inputs[i] } else { g.push(Convert { to: by }, &[inputs[i]], node) };
        g.push(BroadcastInDim { dims, shape: result.shape.clone() }, &[x], node)
    });
    let y = g.push(Binary::Multiply, &wide, node);
    Some(if by == d.element_type { y } else { g.push(Convert { to: d.element_type }, &[y], node) })
}

#[cfg(test)]
mod tests {
    use super::super::run;
    use systole_ir::op::DotGeneral;
    use systole_ir::{DType, GraphBuilder, Literal, Op, TensorType, interp};

    #[test]
    fn a_product_without_a_sum_is_a_multiplication() {
        for (from, to) in [
            (DType::F32, DType::F32),
            (DType::BF16, DType::F32),
            (DType::BF16, DType::BF16),
            (DType::I8, DType::I32),
        ] {
            let g = GraphBuilder::new("main");
            let a = g.parameter(TensorType::new(from, [3, 2, 5]), "a");
            let b = g.parameter(TensorType::new(from, [4, 3]), "b");
            let none = || [].into_iter().collect();
            let op = DotGeneral {
                lhs_batch: [0].into_iter().collect(),
                rhs_batch: [1].into_iter().collect(),
                lhs_contract: none(),
                rhs_contract: none(),
                element_type: to,
            };
            let graph = g.finish(&g.emit(op, &[&a, &b])).unwrap();
            let new = run(&graph);
            assert!(!new.nodes.iter().any(|n| matches!(n.op, Op::DotGeneral(_))), "{from}");
            let args = [[3, 2, 5].to_vec(), vec![4, 3]].map(|shape| {
                let numbers: Vec<f64> =
                    (0..shape.iter().product()).map(|i: usize| (i as f64 * 7.0) % 13.0 - 6.0).collect();
                Literal::from_slice(shape, &numbers).unwrap().convert(from)
            });
            let args: Vec<&Literal> = args.iter().collect();
            assert_eq!(interp::run(&graph, &args).unwrap(), interp::run(&new, &args).unwrap(), "{from} {to}");
        }
    }
}
