//! Computes float32 products and convolutions from operands rounded to bf16 or f16, with float32 sums, as
//! `mixed_bfloat16` does for layers: for imported programs.

use crate::graph::rewrite::rebuild;
use smallvec::smallvec;
use std::sync::Arc;
use systole_ir::op::Convert;
use systole_ir::{DType, Graph, Op, TensorType, ValueId};

/// Rounds the float32 operands of products and convolutions to `dtype`, in the graph and in the bodies of its loops and
/// branches. Sums, results and all other operations stay in float32, and so do depthwise convolutions, which are as fast as
/// memory in either type.
///
/// ```
/// use systole_compile::round_product_operands;
/// use systole_ir::{DType, GraphBuilder, TensorType};
/// let g = GraphBuilder::new("main");
/// let x = g.parameter(TensorType::new(DType::F32, [2, 3]), "x");
/// let y = x.dot_general(&x, &[], &[], &[1], &[1]);
/// let rounded = round_product_operands(&*g.finish(&[y])?, DType::BF16);
/// assert_eq!(rounded.nodes.iter().filter(|n| n.outs[0].dtype == DType::BF16).count(), 2);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn round_product_operands(graph: &Graph, dtype: DType) -> Graph {
    let inner = |body: &mut Arc<Graph>| *body = Arc::new(round_product_operands(body, dtype));
    rebuild(graph, |g, _, node, inputs| {
        let mut op = node.op.clone();
        match &mut op {
            Op::DotGeneral(_) | Op::Convolution(_) => {
                if is_depthwise(&op, g.ty(inputs[1])) {
                    return None;
                }
                if inputs.iter().any(|&v| g.ty(v).dtype != DType::F32) || node.outs[0].dtype != DType::F32 {
                    return None;
                }
                let rounded: Vec<ValueId> =
                    inputs.iter().map(|&v| g.push(Convert { to: dtype }, &[v], node)).collect();
                return Some(smallvec![g.push(op, &rounded, node)]);
            }
            Op::While(w) => [&mut w.cond, &mut w.body].into_iter().for_each(inner),
            Op::Case(c) => c.branches.iter_mut().for_each(inner),
            _ => return None,
        }
        Some(g.append(op, inputs, node.outs.clone(), node))
    })
}

/// Whether each filter of a convolution reads one channel.
fn is_depthwise(op: &Op, kernel: &TensorType) -> bool {
    match op {
        Op::Convolution(c) => c.feature_groups > 1 && kernel.shape[c.dims.kernel_input_feature] == 1,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::op::Convolution;
    use systole_ir::{GraphBuilder, Literal, control_builders, interp};

    #[test]
    fn operands_are_rounded_and_sums_are_not() {
        let g = GraphBuilder::new("main");
        let x = g.parameter(TensorType::new(DType::F32, [1, 300]), "x");
        let graph = g.finish(&[x.dot_general(&x, &[], &[], &[1], &[1])]).unwrap();
        // 1 + 2^-9 is 1 in bf16; 300 itself is no bf16 value.
        let x = Literal::from_slice([1, 300], &[1.001_953_1_f32; 300]).unwrap();
        let run = |graph: &Graph| interp::run(graph, &[&x]).unwrap().remove(0).to_f32s()[0];
        assert!(run(&graph) > 301.0);
        assert_eq!(run(&round_product_operands(&graph, DType::BF16)), 300.0);
    }

    #[test]
    fn depthwise_convolutions_stay_in_float32() {
        let rounded = |groups: usize| {
            let g = GraphBuilder::new("main");
            let x = g.parameter(TensorType::new(DType::F32, [1, 5, 5, 4]), "x");
            let kernel = g.parameter(TensorType::new(DType::F32, [3, 3, 4 / groups, 4]), "kernel");
            let op = Convolution::valid(x.ty(), &[1, 1], &[1, 1], groups);
            let graph =
                round_product_operands(&g.finish(&[x.convolution(&kernel, op)]).unwrap(), DType::BF16);
            graph.verify().unwrap();
            graph.nodes.iter().filter(|n| n.outs[0].dtype == DType::BF16).count()
        };
        assert_eq!([1, 2, 4].map(rounded), [2, 2, 0]);
    }

    #[test]
    fn integers_stay_and_bodies_of_loops_are_changed() {
        let g = GraphBuilder::new("main");
        let n = g.parameter(TensorType::new(DType::I32, [2, 2]), "n");
        let x = g.parameter(TensorType::new(DType::F32, [2, 2]), "x");
        let counted = n.dot_general(&n, &[], &[], &[1], &[0]);
        let looped = control_builders::fori_loop(3, &[&x], |_, s| vec![s[0].dot(&s[0])]).remove(0);
        let graph = g.finish(&[counted, looped]).unwrap();
        let rounded = round_product_operands(&graph, DType::F16);
        rounded.verify().unwrap();
        let converts = |graph: &Graph| graph.nodes.iter().filter(|n| matches!(n.op, Op::Convert(_))).count();
        assert_eq!(converts(&rounded), 0);
        let body =
            rounded.nodes.iter().find_map(|n| if let Op::While(w) = &n.op { Some(&w.body) } else { None });
        assert_eq!(body.map(|body| converts(body)), Some(2));
    }
}
