//! Holds the float16 values of a graph in float32 between operations, for imported models on processors that compute
//! float16 in float32.
//!
//! ONNX Runtime does so on CPUs: it has no float16 kernels there, and drops the casts between two float32 kernels. Only
//! parameters, results and operands of the other ops are float16, so that fewer values are rounded, and constant weights
//! are converted once.

use crate::graph::rewrite::{NodeResults, Rewriter, rebuild};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;
use systole_ir::op::{Convert, Parameter};
use systole_ir::{DType, Graph, Node, Op, ValueId, bug};

/// Converts a graph's float16 constants, and float16 operands where an op computes, to float32, and its results back at the
/// end. Ops that move elements keep the type of their operands.
///
/// ```
/// use systole_compile::hold_float16_in_float32;
/// use systole_ir::{DType, GraphBuilder, TensorType};
/// let g = GraphBuilder::new("main");
/// let x = g.parameter(TensorType::new(DType::F16, [2]), "x");
/// let graph = hold_float16_in_float32(&*g.finish(&[(&x * &x).exp()])?);
/// let types: Vec<DType> = graph.nodes.iter().map(|n| n.outs[0].dtype).collect();
/// assert_eq!(types, [DType::F16, DType::F32, DType::F32, DType::F32, DType::F16]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn hold_float16_in_float32(graph: &Graph) -> Graph {
    let mut widened = HashMap::new();
    let mut new = rebuild(graph, |g, _, node, inputs| {
        if let Op::Constant(c) = &node.op {
            let is_narrow = c.value.ty().dtype == DType::F16;
            return is_narrow.then(|| push(g, in_float32(&node.op), &[], node));
        }
        let types = node.inputs.iter().map(|&v| graph.ty(v).dtype);
        let narrow: SmallVec<[bool; 4]> = types.map(|dtype| dtype == DType::F16).collect();
        let is_wide = |g: &Rewriter, k: usize| narrow[k] && g.ty(inputs[k]).dtype == DType::F32;
        let has_wide = (0..inputs.len()).any(|k| is_wide(g, k));
        if let (Op::Convert(_), DType::F16) = (&node.op, node.outs[0].dtype) {
            match graph.ty(node.inputs[0]).dtype {
                DType::F32 => return Some([inputs[0]].into_iter().collect()),
                DType::F64 | DType::BF16 => {
                    return Some([g.push(Convert { to: DType::F32 }, inputs, node)].into_iter().collect());
                }
                _ => {}
            }
        }
        if computes(&node.op) && narrow.contains(&true) || moves(&node.op) && has_wide {
            let operands: SmallVec<[ValueId; 4]> = (0..inputs.len())
                .map(|k| if narrow[k] { wide(g, inputs[k], node, &mut widened) } else { inputs[k] })
                .collect();
            return Some(push(g, in_float32(&node.op), &operands, node));
        }
        has_wide.then(|| {
            let to = DType::F16;
            let operands: SmallVec<[ValueId; 4]> = (0..inputs.len())
                .map(|k| if is_wide(g, k) { g.push(Convert { to }, &[inputs[k]], node) } else { inputs[k] })
                .collect();
            g.append(node.op.clone(), &operands, node.outs.clone(), node)
        })
    });
    for (result, old) in (0..graph.results.len()).zip(&graph.results) {
        let (v, ty) = (new.results[result], graph.ty(*old).clone());
        if new.ty(v) != &ty {
            let Node { loc, scope, .. } = *new.node(v);
            let op = Op::from(Convert { to: ty.dtype });
            new.nodes.push(Node {
                op,
                inputs: [v].into_iter().collect(),
                outs: [ty].into_iter().collect(),
                loc,
                scope,
            });
            new.results[result] = ValueId::new(new.nodes.len() - 1, 0);
        }
    }
    new
}

/// Whether an op computes the same on float32 operands, up to rounding.
fn computes(op: &Op) -> bool {
    matches!(
        op,
        Op::Unary(_)
            | Op::Binary(_)
            | Op::Compare(_)
            | Op::Clamp(_)
            | Op::Convert(_)
            | Op::DotGeneral(_)
            | Op::Convolution(_)
            | Op::Reduce(_)
            | Op::ReduceWindow(_)
    )
}

/// Whether an op moves elements of any type.
fn moves(op: &Op) -> bool {
    matches!(
        op,
        Op::Select(_)
            | Op::BroadcastInDim(_)
            | Op::Reshape(_)
            | Op::Transpose(_)
            | Op::Reverse(_)
            | Op::Concatenate(_)
            | Op::Slice(_)
            | Op::Pad(_)
            | Op::DynamicSlice(_)
            | Op::DynamicUpdateSlice(_)
            | Op::Gather(_)
    )
}

/// Returns the float32 form of a float16 value.
fn wide(g: &mut Rewriter, v: ValueId, like: &Node, widened: &mut HashMap<ValueId, ValueId>) -> ValueId {
    if g.ty(v).dtype == DType::F32 {
        return v;
    }
    *widened.entry(v).or_insert_with(|| g.push(Convert { to: DType::F32 }, &[v], like))
}

/// Returns an op with float32 in place of float16, in its attributes and body.
fn in_float32(op: &Op) -> Op {
    let mut op = op.clone();
    let widen = |dtype: &mut DType| {
        if *dtype == DType::F16 {
            *dtype = DType::F32;
        }
    };
    match &mut op {
        Op::DotGeneral(d) => widen(&mut d.element_type),
        Op::Convolution(c) => widen(&mut c.element_type),
        Op::Convert(c) => widen(&mut c.to),
        Op::Constant(c) if c.value.ty().dtype == DType::F16 => c.value = c.value.convert(DType::F32),
        Op::Reduce(r) => r.body = Arc::new(body_in_float32(&r.body)),
        Op::ReduceWindow(r) => r.body = Arc::new(body_in_float32(&r.body)),
        _ => {}
    }
    op
}

/// Returns a body over scalars with float32 in place of float16.
fn body_in_float32(body: &Graph) -> Graph {
    rebuild(body, |g, _, node, inputs| {
        let op = match &node.op {
            Op::Parameter(p) if p.ty.dtype == DType::F16 => {
                Parameter { index: p.index, ty: p.ty.with_dtype(DType::F32) }.into()
            }
            op => in_float32(op),
        };
        Some(push(g, op, inputs, node))
    })
}

/// Appends a node with inferred result types.
fn push(g: &mut Rewriter, op: Op, inputs: &[ValueId], like: &Node) -> NodeResults {
    let types: Vec<_> = inputs.iter().map(|&v| g.ty(v)).collect();
    let outs = match op.rule().infer(&types) {
        Ok(outs) => outs,
        Err(c) => bug!("a pass created an invalid {}: ({}) {}", op.name(), c.label, c.message),
    };
    g.append(op, inputs, outs, like)
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::{GraphBuilder, Literal, TensorType, control_builders, interp};

    fn f16(values: &[f64]) -> Literal {
        let wide = Literal::from_slice([values.len()], values).unwrap();
        wide.convert(DType::F16)
    }

    #[test]
    fn intermediate_values_are_not_rounded() {
        let g = GraphBuilder::new("main");
        let x = g.parameter(TensorType::new(DType::F16, [2]), "x");
        let graph = g.finish(&[(&x * 1.001) * 1000.0 - (&x * 1000.0), x.reduce_max(&[0])]).unwrap();
        let x = f16(&[1.0, 2.0]);
        let made = |graph: &Graph| -> Vec<Vec<f32>> {
            interp::run(graph, &[&x]).unwrap().iter().map(Literal::to_f32s).collect()
        };
        let wide = hold_float16_in_float32(&graph);
        wide.verify().unwrap();
        assert_eq!(made(&graph), [vec![1.0, 2.0], vec![2.0]]);
        // 1.001 itself is a float16 constant: 1.000977.
        let exact = made(&wide);
        assert!((exact[0][0] - 0.977).abs() < 1e-3 && (exact[0][1] - 1.953).abs() < 1e-3, "{exact:?}");
        assert_eq!(exact[1], [2.0]);
        assert!(wide.results.iter().all(|v| wide.ty(*v).dtype == DType::F16));
    }

    #[test]
    fn loops_and_sorts_keep_float16_operands() {
        let g = GraphBuilder::new("main");
        let x = g.parameter(TensorType::new(DType::F16, [3]), "x");
        let y = control_builders::fori_loop(2, &[&x.exp()], |_, s| vec![&s[0] + 1.0]).remove(0);
        let wide = hold_float16_in_float32(&g.finish(&[-y.sort(0, false)]).unwrap());
        wide.verify().unwrap();
        let out = interp::run(&wide, &[&f16(&[0.0, 2.0, 1.0])]).unwrap().remove(0);
        assert_eq!(out.ty().dtype, DType::F16);
        let expected = [-3.0, -(2.0 + 1f32.exp()), -(2.0 + 2f32.exp())];
        for (found, expected) in out.to_f32s().iter().zip(expected) {
            assert!((found - expected).abs() < 0.01, "{out:?}");
        }
    }
}
