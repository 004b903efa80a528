//! Imports ONNX control flow: If (both branches, or the constant one), Loop (unrolled, or as while) and Scan (unrolled).

use super::call::{NodeCall, RuleResult, axis, unsupported};
use super::elementwise::several_outputs;
use super::op_row::operators;
use super::values::RuleOutput;
use crate::model::{DimSize, OnnxGraph, ValueInfo, broken};
use std::cell::RefCell;
use systole_base::{DType, Error, Literal, Result, ResultExt, TensorType};
use systole_ir::{Tensor, control_builders};

operators! {
    "If" 1..25: branch;
    "Loop" 1..25: repeat;
    "Scan" 9..25: scan;
}

/// Imports a nested graph with values for its inputs; returns its outputs.
fn inlined(c: &mut NodeCall, graph: &OnnxGraph, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    if graph.inputs.len() != inputs.len() {
        let (n, k) = (graph.inputs.len(), inputs.len());
        return Err(broken(format!("the nested graph has {n} inputs, expected {k}")));
    }
    c.values.spend_nodes(graph.nodes.len())?;
    let (opset, import) = (c.opset, c.values.import);
    c.values.nested(|values| {
        for (name, value) in &graph.constants {
            let value = values.g.constant(value.clone());
            values.put(name, RuleOutput::Tensor(value))?;
        }
        for (port, t) in graph.inputs.iter().zip(inputs) {
            values.put(&port.name, RuleOutput::Tensor(t.clone()))?;
        }
        for (i, node) in graph.nodes.iter().enumerate() {
            import(node, values, opset).at(|| graph.place(i))?;
        }
        graph.outputs.iter().map(|p| values.tensor(&p.name)).collect()
    })
}

/// Imports nested graphs inside bodies of the IR, which cannot return errors: keeps the first one for the node.
struct BodyImport<'c, 'a, 'm> {
    call: RefCell<&'c mut NodeCall<'a, 'm>>,
    error: RefCell<Option<Error>>,
}

impl<'c, 'a, 'm> BodyImport<'c, 'a, 'm> {
    fn new(call: &'c mut NodeCall<'a, 'm>) -> Self {
        BodyImport { call: RefCell::new(call), error: RefCell::default() }
    }

    fn import(&self, graph: &OnnxGraph, inputs: &[Tensor]) -> Option<Vec<Tensor>> {
        match inlined(&mut self.call.borrow_mut(), graph, inputs) {
            Ok(outputs) => Some(outputs),
            Err(e) => {
                self.error.borrow_mut().get_or_insert(e);
                None
            }
        }
    }

    /// Reports the first error.
    fn finish(self) {
        let call = self.call.into_inner();
        call.values.nested_error = self.error.into_inner();
    }
}

/// Returns an operand that decides what is imported: `None` if it depends on the inputs of a program that serves all
/// inputs. Another import for the values of the inputs may follow if this one fails.
fn deciding(c: &mut NodeCall, i: usize) -> Result<Option<Literal>> {
    if c.values.stages.is_some() {
        return c.known(i).map(Some);
    }
    let known = c.perhaps_known(i)?;
    c.values.needs_a_value |= known.is_none();
    Ok(known)
}

/// Returns the only element of a condition.
fn known_bool(c: &mut NodeCall, i: usize) -> Result<Option<bool>> {
    match deciding(c, i)? {
        Some(v) if v.ty().elements() == 1 => Ok(Some(v.get(0).as_bool())),
        Some(v) => Err(broken(format!("operand {i} is {}, expected one bool", v.ty()))),
        None => Ok(None),
    }
}

/// Imports If. A constant condition selects the branch at import.
fn branch(c: &mut NodeCall) -> RuleResult {
    let (yes, no) = (c.graph("then_branch")?, c.graph("else_branch")?);
    if let Some(holds) = known_bool(c, 0)? {
        return several_outputs(inlined(c, if holds { yes } else { no }, &[])?);
    }
    let condition = c.tensor(0)?.reshape([]);
    let bodies = BodyImport::new(c);
    let run = |graph: &OnnxGraph| bodies.import(graph, &[]).unwrap_or_default();
    let outputs = control_builders::cond(&condition, || run(yes), || run(no));
    bodies.finish();
    several_outputs(outputs)
}

/// A Loop node: maximum number of iterations, condition and loop-carried values.
struct LoopCall<'a> {
    body: &'a OnnxGraph,
    carried: Vec<Tensor>,
    /// Number of outputs that are stacked over the iterations.
    stacked: usize,
}

fn repeat(c: &mut NodeCall) -> RuleResult {
    let body = c.graph("body")?;
    let carried = (2..c.node.inputs.len()).map(|i| c.tensor(i)).collect::<Result<Vec<_>>>()?;
    let stacked = body.outputs.len().checked_sub(1 + carried.len());
    let stacked = stacked.ok_or_else(|| broken("the body has fewer outputs than the loop has values"))?;
    let call = LoopCall { body, carried, stacked };
    let begins = if c.has(1) { known_bool(c, 1)? } else { Some(true) };
    let limit = if c.has(0) { deciding(c, 0)?.map(|v| v.get(0).as_i64()) } else { Some(i64::MAX) };
    if let (Some(begins), Some(limit)) = (begins, limit)
        && let Some(outputs) = call.unrolled(c, if begins { limit } else { 0 })?
    {
        return several_outputs(outputs);
    }
    call.looped(c)
}

impl LoopCall<'_> {
    /// Unrolls the loop; `None` if the inputs decide when it ends.
    fn unrolled(&self, c: &mut NodeCall, limit: i64) -> Result<Option<Vec<Tensor>>> {
        let mut state = self.carried.clone();
        let mut stacks = vec![Vec::new(); self.stacked];
        for i in 0..limit {
            let mut inputs = vec![
                c.g.constant(Literal::from_slice([], &[i])?),
                c.g.constant(Literal::scalar(DType::Bool, 1.0)),
            ];
            inputs.extend(state);
            let mut outputs = inlined(c, self.body, &inputs)?;
            let more = outputs.remove(0);
            let last = outputs.split_off(self.carried.len());
            state = outputs;
            stacks.iter_mut().zip(last).for_each(|(all, t)| all.push(t));
            if i + 1 == limit {
                break;
            }
            match c.values.evaluated(&[more])?.and_then(|mut all| all.pop()) {
                Some(v) if v.ty().elements() == 1 && v.get(0).as_bool() => {}
                Some(_) => break,
                None => return Ok(None),
            }
        }
        let ports = self.body.outputs.iter().skip(1 + self.carried.len());
        for (all, port) in stacks.iter().zip(ports) {
            state.push(stack(c, all, 0, port)?);
        }
        Ok(Some(state))
    }

    /// Imports the loop as a while op over values of fixed types.
    fn looped(&self, c: &mut NodeCall) -> RuleResult {
        if self.stacked > 0 {
            return Err(unsupported("a Loop with scan outputs whose length depends on the input data")
                .hint("export the model with a constant trip count"));
        }
        let limit = if c.has(0) { Some(c.tensor(0)?.reshape([]).convert(DType::I64)) } else { None };
        let begins =
            if c.has(1) { c.tensor(1)?.reshape([]) } else { c.g.constant(Literal::scalar(DType::Bool, 1.0)) };
        let zero = c.g.constant(Literal::from_slice([], &[0i64])?);
        let init: Vec<&Tensor> = [&zero, &begins].into_iter().chain(&self.carried).collect();
        let bodies = BodyImport::new(c);
        let test = |s: &[Tensor]| match &limit {
            Some(limit) => s[1].and(&s[0].less(limit)),
            None => s[1].clone(),
        };
        let step = |s: &[Tensor]| match bodies.import(self.body, s) {
            Some(mut outputs) => {
                outputs[0] = outputs[0].reshape([]);
                outputs.insert(0, &s[0] + 1.0);
                outputs
            }
            None => s.to_vec(),
        };
        let outputs = control_builders::while_loop(&init, test, step);
        bodies.finish();
        several_outputs(outputs.into_iter().skip(2).collect())
    }
}

/// Stacks the outputs of all iterations along a new dimension.
fn stack(c: &NodeCall, all: &[Tensor], dim: usize, port: &ValueInfo) -> Result<Tensor> {
    let apart = |t: &Tensor| {
        let mut dims = t.shape().to_vec();
        dims.insert(dim.min(dims.len()), 1);
        t.reshape(dims)
    };
    if let Some(first) = all.first() {
        if let Some(t) = all.iter().find(|t| t.ty() != first.ty()) {
            return Err(unsupported(format!("output {} is {} and {}", port.name, first.ty(), t.ty()))
                .because("the outputs of all iterations must have the same type"));
        }
        return Ok(Tensor::concatenate(
            &all.iter().map(apart).collect::<Vec<_>>().iter().collect::<Vec<_>>(),
            dim,
        ));
    }
    let size = |s: &DimSize| if let DimSize::Known(n) = s { Some(*n) } else { None };
    let sizes = port.sizes.as_ref().and_then(|s| s.iter().map(size).collect::<Option<Vec<_>>>());
    match (port.dtype, sizes) {
        (Some(dtype), Some(sizes)) => {
            let empty = TensorType::new(dtype, [&[0], &sizes[..]].concat());
            Ok(c.g.constant(Literal::zeros(empty)))
        }
        _ => Err(unsupported(format!("output {} has no iteration and no type", port.name))),
    }
}

/// Returns one integer per scanned value: an attribute, or zeros.
fn per_value(c: &NodeCall, name: &str, n: usize) -> Result<Vec<i64>> {
    let list = c.ints(name)?.unwrap_or(vec![0; n]);
    match list.len() == n {
        true => Ok(list),
        false => Err(broken(format!("attribute {name} must have {n} entries, got {list:?}"))),
    }
}

/// Imports Scan, unrolled.
fn scan(c: &mut NodeCall) -> RuleResult {
    let (body, count) = (c.graph("body")?, c.count("num_scan_inputs", 0)?);
    let all = (0..c.node.inputs.len()).map(|i| c.tensor(i)).collect::<Result<Vec<_>>>()?;
    let n = all.len().checked_sub(count).ok_or_else(|| broken("num_scan_inputs exceeds the inputs"))?;
    let stacked = body.outputs.len().checked_sub(n).ok_or_else(|| broken("the body lacks outputs"))?;
    let axes = per_value(c, "scan_input_axes", count)?;
    let reversed = per_value(c, "scan_input_directions", count)?;
    let output_axes = per_value(c, "scan_output_axes", stacked)?;
    let output_reversed = per_value(c, "scan_output_directions", stacked)?;
    let (mut state, xs) = (all[..n].to_vec(), &all[n..]);
    let dims = xs.iter().zip(&axes).map(|(x, &a)| axis(a, x.rank())).collect::<Result<Vec<_>>>()?;
    let steps = xs.iter().zip(&dims).map(|(x, &d)| x.shape()[d]).next().unwrap_or(0);
    if xs.iter().zip(&dims).any(|(x, &d)| x.shape()[d] != steps) {
        return Err(broken("the scan inputs have different lengths"));
    }
    let mut stacks = vec![Vec::new(); stacked];
    for i in 0..steps {
        for (k, (x, &d)) in xs.iter().zip(&dims).enumerate() {
            let at = if reversed[k] == 1 { steps - 1 - i } else { i };
            let mut rest = x.shape().to_vec();
            rest.remove(d);
            state.push(x.slice_dim(d, at, at + 1).reshape(rest));
        }
        let mut outputs = inlined(c, body, &state)?;
        let last = outputs.split_off(n);
        state = outputs;
        stacks.iter_mut().zip(last).for_each(|(all, t)| all.push(t));
    }
    for (k, port) in body.outputs.iter().skip(n).enumerate() {
        if output_reversed[k] == 1 {
            stacks[k].reverse();
        }
        let rank = stacks[k].first().map_or(0, Tensor::rank) + 1;
        let dim = axis(output_axes[k], rank)?;
        state.push(stack(c, &stacks[k], dim, port)?);
    }
    several_outputs(state)
}

#[cfg(test)]
mod tests {
    use crate::model::{OnnxAttribute, OnnxGraph, OnnxModel, OnnxNode, ValueInfo};
    use crate::test_node::{array, floats, ints, node_error, run_constants, run_node};
    use systole_base::Literal;

    fn graph(inputs: &[&str], nodes: Vec<OnnxNode>, outputs: &[&str]) -> OnnxAttribute {
        let port = |n: &&str| ValueInfo { name: n.to_string(), ..ValueInfo::default() };
        OnnxAttribute::Graph(Box::new(OnnxGraph {
            inputs: inputs.iter().map(port).collect(),
            outputs: outputs.iter().map(port).collect(),
            nodes,
            ..OnnxGraph::default()
        }))
    }

    /// Chooses 2·x or −x, where x = Identity(condition's outer value `x`).
    fn choice() -> OnnxNode {
        let yes = graph(&[], vec![OnnxNode::new("Add", ["x", "x"], "a")], &["a"]);
        let no = graph(&[], vec![OnnxNode::new("Neg", ["x"], "a")], &["a"]);
        OnnxNode::new("If", ["c", "x"], "y").with("then_branch", yes).with("else_branch", no)
    }

    #[test]
    fn branches_run_by_their_condition() {
        let x = floats([2], [1.0, -3.0]);
        for (holds, expected) in [(true, [2.0, -6.0]), (false, [-1.0, 3.0])] {
            let c = Literal::from_bools([], &[holds]).unwrap();
            assert_eq!(run_node(17, choice(), &[&c, &x])[0].to_f32s(), expected);
            assert_eq!(run_constants(17, choice(), &[&c, &x])[0].to_f32s(), expected);
        }
    }

    #[test]
    fn an_error_in_a_branch_names_its_node() {
        let no = graph(&[], vec![OnnxNode::new("Mine", ["x"], "a")], &["a"]);
        let c = Literal::from_bools([], &[true]).unwrap();
        let e = node_error(17, choice().with("else_branch", no), &[&c, &floats([1], [1.0])]);
        assert!(e.contains("`Mine`") && e.contains("node 0 a in If node 0 y"), "{e}");
    }

    /// sum += x and power *= 2 while power < limit; stacks the sums.
    fn loop_node(limit: f32) -> OnnxNode {
        let mut constant = OnnxNode::new("Constant", Vec::<String>::new(), "limit");
        constant = constant.with("value_float", OnnxAttribute::Float(limit));
        let nodes = vec![
            constant,
            OnnxNode::new("Add", ["power", "power"], "next"),
            OnnxNode::new("Add", ["sum", "x"], "total"),
            OnnxNode::new("Less", ["next", "limit"], "more"),
        ];
        let body = graph(&["i", "go", "power", "sum"], nodes, &["more", "next", "total", "total"]);
        let mut node = OnnxNode::new("Loop", ["n", "", "one", "x"], "p").with("body", body);
        node.outputs = ["p", "s", "all"].map(String::from).into();
        node
    }

    #[test]
    fn loops_unroll_or_become_while() {
        let (n, one, x) = (ints([], [10]), floats([], [1.0]), floats([1], [5.0]));
        let y = run_constants(17, loop_node(8.0), &[&n, &one, &x]);
        assert_eq!((y[0].to_f32s(), y[1].to_f32s()), (vec![8.0], vec![20.0]));
        assert_eq!((y[2].shape().dims(), y[2].to_f32s()), (&[3, 1][..], vec![10.0, 15.0, 20.0]));
        let e = node_error(17, loop_node(8.0), &[&n, &one, &x]);
        assert!(e.contains("Loop"), "{e}");
        let mut node = loop_node(8.0);
        node.outputs.pop();
        let Some(OnnxAttribute::Graph(body)) = node.attributes.get_mut("body") else { panic!() };
        body.outputs.pop();
        let y = run_node(17, node.clone(), &[&n, &one, &x]);
        assert_eq!((y[0].to_f32s(), y[1].to_f32s()), (vec![8.0], vec![20.0]));
        let y = run_node(17, node, &[&ints([], [2]), &one, &x]);
        assert_eq!((y[0].to_f32s(), y[1].to_f32s()), (vec![4.0], vec![15.0]));
    }

    #[test]
    fn scans_carry_values_and_stack_outputs() {
        let nodes = vec![OnnxNode::new("Add", ["sum", "x"], "total")];
        let body = graph(&["sum", "x"], nodes, &["total", "total"]);
        let mut node = OnnxNode::new("Scan", ["init", "xs"], "last")
            .with("body", body)
            .with("num_scan_inputs", OnnxAttribute::Int(1))
            .ints("scan_input_directions", [1]);
        node.outputs.push("all".into());
        let y =
            run_node(17, node, &[&floats([2], [0.0; 2]), &floats([3, 2], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])]);
        assert_eq!(y[0].to_f32s(), [9.0, 12.0]);
        assert_eq!(y[1].to_f32s(), [5.0, 6.0, 8.0, 10.0, 9.0, 12.0]);
    }

    #[test]
    fn nested_graphs_come_back_from_a_file_and_have_bounded_depth() {
        let mut m = OnnxModel { ir_version: 8, opset: 17, ..OnnxModel::default() };
        m.graph.nodes.push(choice());
        m.graph.constants.insert("w".into(), array([1], &[1i32]));
        assert_eq!(OnnxModel::from_bytes("if", &m.to_bytes()).unwrap(), m);
        for _ in 0..40 {
            let inner = std::mem::take(&mut m.graph);
            m.graph.nodes.push(
                OnnxNode::new("If", ["c"], "y").with("then_branch", OnnxAttribute::Graph(Box::new(inner))),
            );
        }
        let e = OnnxModel::from_bytes("deep", &m.to_bytes()).unwrap_err().to_string();
        assert!(e.contains("32"), "{e}");
    }
}
