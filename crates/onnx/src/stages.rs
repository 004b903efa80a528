//! Evaluates values of an ONNX model during import, for sizes that depend on the data (NonZero, NonMaxSuppression, …).
//!
//! A stage is the part of the graph that computes one such value. It runs on the device for the caller's inputs; values that
//! later nodes read as well are kept, so that later stages start from them.

use crate::model::{OnnxAttribute, OnnxGraph, OnnxModel};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use systole_base::{Literal, Result, err};
use systole_ir::{Graph, GraphBuilder, Node, Op, Tensor, ValueId};
use systole_runtime::{Backend, CompileOptions, DeviceId, ExecutableArg};

/// Elements of a value of a stage: at most this many, or [`GROWTH`] times those of the inputs and constants.
const MOST_ELEMENTS: usize = 1 << 24;
const GROWTH: usize = 1 << 10;

/// Evaluates values of the graph under construction.
pub(crate) struct StageRunner {
    device: Arc<dyn Backend>,
    /// The caller's inputs, one for each parameter.
    inputs: Vec<Literal>,
    /// Values of earlier stages.
    kept: Vec<(Tensor, Literal)>,
    /// Number of stages that ran.
    pub count: usize,
}

impl StageRunner {
    pub fn new(device: Arc<dyn Backend>, inputs: Vec<Literal>) -> StageRunner {
        StageRunner { device, inputs, kept: Vec::new(), count: 0 }
    }

    /// Forgets kept values that no later node reads.
    pub fn retain(&mut self, is_live: impl Fn(&Tensor) -> bool) {
        self.kept.retain(|(t, _)| is_live(t));
    }

    /// Returns the elements of `wanted`. Keeps the `live` values that the stage computes.
    pub fn run(&mut self, g: &GraphBuilder, wanted: &[Tensor], live: &[Tensor]) -> Result<Vec<Literal>> {
        let kept: Vec<Tensor> = self.kept.iter().map(|(t, _)| t.clone()).collect();
        let whole = g.finish(&[wanted, &kept, live].concat())?;
        let (targets, others) = whole.results.split_at(wanted.len());
        let (kept, candidates) = others.split_at(kept.len());
        let given: HashMap<ValueId, &Literal> = whole
            .params
            .iter()
            .zip(&self.inputs)
            .map(|(p, x)| (*p, x))
            .chain(kept.iter().zip(&self.kept).map(|(id, (_, value))| (*id, value)))
            .collect();
        let computed = needed(&whole, targets, &given);
        check_sizes(&whole, &computed)?;
        let is_new = |id: &ValueId| computed.contains(&id.index()) && !is_constant(&whole, *id);
        let fresh: Vec<usize> = (0..candidates.len()).filter(|&i| is_new(&candidates[i])).collect();
        let results: Vec<ValueId> =
            targets.iter().copied().chain(fresh.iter().map(|&i| candidates[i])).collect();
        let mut values = self.evaluated(&whole, &results, &given)?;
        let others = values.split_off(wanted.len());
        self.kept.extend(fresh.iter().map(|&i| live[i].clone()).zip(others));
        self.count += 1;
        Ok(values)
    }

    /// Compiles and runs the part of a graph that computes `results` from the given values.
    fn evaluated(
        &self,
        whole: &Graph,
        results: &[ValueId],
        given: &HashMap<ValueId, &Literal>,
    ) -> Result<Vec<Literal>> {
        let g = GraphBuilder::new("stage");
        let mut used: Vec<(&ValueId, &&Literal)> = given.iter().collect();
        used.sort_by_key(|(id, _)| **id);
        let parameters = used.iter().map(|(id, x)| (**id, g.parameter(x.ty().clone(), "")));
        let parameters: HashMap<ValueId, Tensor> = parameters.collect();
        let outputs = g.inline_given(whole, parameters, results);
        let graph = g.finish(&outputs)?;
        let options = CompileOptions { label: "stage".into(), ..CompileOptions::default() };
        let program = self.device.compile(&graph, &options)?;
        let put = |(_, x): &(&ValueId, &&Literal)| self.device.put(x, DeviceId(0));
        let arguments = used.iter().map(put).collect::<Result<Vec<_>>>()?;
        let made = program.run(arguments.iter().map(ExecutableArg::Borrow).collect())?;
        made.iter().map(|buffer| buffer.to_literal()).collect()
    }
}

/// Returns the nodes that compute `results`, without those before the given values.
fn needed(graph: &Graph, results: &[ValueId], given: &HashMap<ValueId, &Literal>) -> HashSet<usize> {
    let mut found = HashSet::new();
    let mut open: Vec<ValueId> = results.to_vec();
    while let Some(id) = open.pop() {
        if !given.contains_key(&id) && found.insert(id.index()) {
            open.extend(graph.nodes[id.index()].inputs.iter().copied());
        }
    }
    found
}

/// Rejects a stage with a value that is far larger than the inputs and constants that it is computed from: reading a small
/// file must not take much memory.
fn check_sizes(graph: &Graph, computed: &HashSet<usize>) -> Result<()> {
    let is_given = |node: &&Node| matches!(node.op, Op::Constant(_) | Op::Parameter(_));
    let given: usize = graph.nodes.iter().filter(is_given).map(|node| node.outs[0].elements()).sum();
    let most = given.saturating_mul(GROWTH).max(MOST_ELEMENTS);
    let mut types = computed.iter().flat_map(|&i| &graph.nodes[i].outs);
    match types.find(|ty| ty.elements() > most) {
        None => Ok(()),
        Some(ty) => Err(err!(Unsupported, "a size of the model depends on a value {ty}, which is too large")
            .because(format!("the model's inputs and constants have {given} elements"))
            .hint("export the model for inputs with a fixed shape, or run it with onnxruntime")),
    }
}

fn is_constant(graph: &Graph, id: ValueId) -> bool {
    matches!(graph.nodes[id.index()].op, Op::Constant(_) | Op::Parameter(_))
}

/// Returns the index of the last top-level node that reads each value; outputs of the model are read after all nodes.
pub(crate) fn last_reads(model: &OnnxModel) -> HashMap<String, usize> {
    let mut last = HashMap::new();
    for (i, node) in model.graph.nodes.iter().enumerate() {
        last.extend(node.inputs.iter().map(|name| (name.clone(), i)));
        for attribute in node.attributes.values() {
            if let OnnxAttribute::Graph(graph) = attribute {
                nested_reads(graph, i, &mut last);
            }
        }
    }
    last.extend(model.graph.outputs.iter().map(|port| (port.name.clone(), usize::MAX)));
    last
}

fn nested_reads(graph: &OnnxGraph, at: usize, last: &mut HashMap<String, usize>) {
    last.extend(graph.outputs.iter().map(|port| (port.name.clone(), at)));
    for node in &graph.nodes {
        last.extend(node.inputs.iter().map(|name| (name.clone(), at)));
        for attribute in node.attributes.values() {
            if let OnnxAttribute::Graph(inner) = attribute {
                nested_reads(inner, at, last);
            }
        }
    }
}
