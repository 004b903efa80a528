//! Finds all operators of a model that cannot be imported, so that one error names them.

use crate::model::{OnnxAttribute, OnnxGraph, OnnxModel, OnnxNode};
use crate::ops::find_row;
use std::collections::BTreeSet;
use systole_base::{Error, err};

/// Nodes that are named for each operator.
const MOST_NODES: usize = 3;

/// Maximum operators that are named.
const MOST_OPERATORS: usize = 100;

/// Unsupported operators of a model, in the order of its nodes.
pub(crate) struct UnsupportedOperators<'m> {
    model: &'m OnnxModel,
    found: Vec<UnsupportedOperator>,
    /// Functions whose nodes were checked.
    functions: BTreeSet<usize>,
    /// Whether a node outside of nested graphs, which may not run, is one of them.
    pub is_certain: bool,
}

struct UnsupportedOperator {
    name: String,
    /// The opset that defines it, if that of the model is too old.
    first: Option<i64>,
    /// Why the opset of the model does not define it; empty if it is in no opset here.
    why: String,
    nodes: Vec<String>,
    count: usize,
}

impl<'m> UnsupportedOperators<'m> {
    pub fn of(model: &'m OnnxModel) -> UnsupportedOperators<'m> {
        let (found, functions) = (Vec::new(), BTreeSet::new());
        let mut all = UnsupportedOperators { model, found, functions, is_certain: false };
        all.visit(&model.graph.nodes, "", model.opset, true);
        all
    }

    /// Adds the unsupported operators among nodes; `place` is where the nodes are.
    fn visit(&mut self, nodes: &[OnnxNode], place: &str, opset: i64, is_certain: bool) {
        for (i, node) in nodes.iter().enumerate() {
            let named =
                [Some(&node.name), node.outputs.first()].into_iter().flatten().find(|s| !s.is_empty());
            let own = || format!("node {i}{}{place}", named.map_or(String::new(), |name| format!(" {name}")));
            let is_call = |f: &crate::model::OnnxFunction| f.name == node.op && f.domain == node.domain;
            if let Some(at) = self.model.functions.iter().position(is_call) {
                if self.functions.insert(at) {
                    let function = &self.model.functions[at];
                    let opset = if function.opset > 0 { function.opset } else { opset };
                    let place = format!(" of function {}", function.name);
                    self.visit(&function.nodes, &place, opset, is_certain);
                }
                continue;
            }
            let row = find_row(&node.op, &node.domain);
            let refused = row.and_then(|row| row.defined_in(opset).err());
            if row.is_none() || refused.is_some() {
                self.is_certain |= is_certain;
                let first = row.map(|row| row.opsets.0).filter(|first| *first > opset);
                let why = refused.map_or(String::new(), |e| e.reasons().join("; "));
                self.add(node, (first, why), own());
            }
            for graph in node.attributes.values().filter_map(nested) {
                self.visit(&graph.nodes, &format!(" in {} {}", node.op, own()), opset, false);
            }
        }
    }

    fn add(&mut self, node: &OnnxNode, (first, why): (Option<i64>, String), place: String) {
        let whose = match node.domain.as_str() {
            "" | "ai.onnx" => String::new(),
            domain => format!(" of {domain}"),
        };
        let name = format!("`{}`{whose}", node.op);
        let known = self.found.iter().position(|other| other.name == name);
        let at = known.unwrap_or_else(|| {
            self.found.push(UnsupportedOperator { name, first, why, nodes: Vec::new(), count: 0 });
            self.found.len() - 1
        });
        let operator = &mut self.found[at];
        operator.count += 1;
        if operator.nodes.len() < MOST_NODES {
            operator.nodes.push(place);
        }
    }

    /// Returns the error that names them; `None` if all operators are supported.
    pub fn error(&self) -> Option<Error> {
        let names: Vec<String> = self.found.iter().take(MOST_OPERATORS).map(describe).collect();
        let more = match self.found.len().saturating_sub(MOST_OPERATORS) {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        let (first, one) = (self.found.first()?, self.found.len() == 1);
        let e = err!(
            Unsupported,
            "unsupported operator{} in opset {}: {}{more}",
            if one { "" } else { "s" },
            self.model.opset,
            names.join(", ")
        );
        let e = e.at(first.nodes.first().cloned().unwrap_or_default());
        let newest = self.found.iter().map(|operator| operator.first).collect::<Option<Vec<_>>>();
        Some(match newest.and_then(|all| all.into_iter().max()) {
            Some(newest) => e.because("a newer opset defines them").hint(format!(
                "export the model with opset {newest}, or convert it: onnx.version_converter.convert_version(model, {newest})"
            )),
            None if self.found.iter().any(|o| o.name.ends_with(" of com.microsoft")) => e
                .because("`systole ops --onnx` lists the supported ones; ONNX Runtime's optimizer writes those of com.microsoft")
                .hint("use the file from before onnxruntime optimized or quantized it (QuantFormat.QDQ is supported), or run it with onnxruntime"),
            None => e
                .because("`systole ops --onnx` lists the supported ones")
                .hint("export the model without them, or run it with onnxruntime"),
        })
    }
}

fn nested(attribute: &OnnxAttribute) -> Option<&OnnxGraph> {
    if let OnnxAttribute::Graph(graph) = attribute { Some(graph) } else { None }
}

/// `` `Gelu` (node 3 /act, node 7 /act_1 and 5 more; opset 20 introduces it) ``
fn describe(o: &UnsupportedOperator) -> String {
    let more = match o.count - o.nodes.len() {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    let why = if o.why.is_empty() { String::new() } else { format!("; {}", o.why) };
    format!("{} ({}{more}{why})", o.name, o.nodes.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DimSizes, OnnxFunction, ValueInfo};
    use systole_base::{DType, ErrorKind, Literal};

    /// x → nodes → y, both `f32[2]`.
    fn model(nodes: Vec<OnnxNode>) -> OnnxModel {
        let mut m = OnnxModel { ir_version: 8, opset: 17, ..OnnxModel::default() };
        let port =
            |name: &str| ValueInfo { name: name.into(), dtype: Some(DType::F32), ..ValueInfo::default() };
        m.graph.inputs = vec![ValueInfo { sizes: Some(vec![crate::DimSize::Known(2)]), ..port("x") }];
        m.graph.outputs = vec![port("y")];
        m.graph.nodes = nodes;
        m
    }

    fn refused(m: &OnnxModel) -> String {
        let e = m.import(&DimSizes::default()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        e.to_string()
    }

    #[test]
    fn all_unsupported_operators_are_named_with_their_nodes() {
        let named = |op: &str, name: &str| OnnxNode { name: name.into(), ..OnnxNode::new(op, ["x"], name) };
        let fused = OnnxNode { domain: "com.microsoft".into(), ..named("FusedGemm", "f") };
        let call = OnnxNode { domain: "mine".into(), ..named("block", "b") };
        let mut m = model(vec![
            named("Splat", "s0"),
            named("Relu", "r"),
            fused,
            named("Gelu", "g"),
            named("Splat", "s1"),
            call,
        ]);
        let nodes = vec![OnnxNode::new("Within", ["p"], "q")];
        let (name, domain) = ("block".into(), "mine".into());
        m.functions = vec![OnnxFunction { name, domain, nodes, ..OnnxFunction::default() }];
        let what = refused(&m);
        let all = [
            "`Splat` (node 0 s0, node 4 s1)",
            "`FusedGemm` of com.microsoft (node 2 f)",
            "opset 17",
            "onnxruntime",
            "`Gelu` (node 3 g; opset 20 introduces it)",
            "`Within` (node 0 q of function block)",
        ];
        for named in all {
            assert!(what.contains(named), "{what}");
        }
        let what = refused(&model(vec![named("Gelu", "g"), named("Swish", "y")]));
        assert!(what.contains("opset 24") && what.contains("convert_version"), "{what}");
    }

    #[test]
    fn an_operator_that_a_newer_opset_replaces_is_named_with_its_successor() {
        let what = refused(&model(vec![OnnxNode::new("Upsample", ["x"], "y")]));
        assert!(what.contains("`Upsample` (node 0 y; opset 10 replaces it by Resize)"), "{what}");
    }

    #[test]
    fn operators_of_branches_that_do_not_run_are_no_error() {
        let branch = |op: &str| {
            let mut graph = OnnxGraph { nodes: vec![OnnxNode::new(op, ["x"], "t")], ..OnnxGraph::default() };
            graph.outputs = vec![ValueInfo { name: "t".into(), ..ValueInfo::default() }];
            OnnxAttribute::Graph(Box::new(graph))
        };
        let choice = |one: &str, other: &str| {
            let node = OnnxNode::new("If", ["c"], "y")
                .with("then_branch", branch(one))
                .with("else_branch", branch(other));
            let mut m = model(vec![node]);
            m.graph.constants.insert("c".into(), Literal::scalar(DType::Bool, 1.0));
            m
        };
        assert!(choice("Relu", "Splat").import(&DimSizes::default()).is_ok());
        let what = refused(&choice("Splat", "Other"));
        assert!(what.contains("`Splat` (node 0 t in If node 0 y)") && what.contains("`Other`"), "{what}");
    }

    #[test]
    fn all_unknown_attributes_are_named_at_once() {
        let node = |name: &str, output: &str| {
            let node = OnnxNode::new("Relu", ["x"], output).with("strange", OnnxAttribute::Int(1));
            OnnxNode { name: name.into(), ..node }
        };
        let what = refused(&model(vec![node("one", "a"), node("two", "y")]));
        assert!(what.contains("`strange` of Relu one, `strange` of Relu two"), "{what}");
    }
}
