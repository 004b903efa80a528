//! Evaluates values of an ONNX model during import, for sizes that depend on the data (NonZero, NonMaxSuppression, …).
//!
//! A stage is the part of the graph that computes one such value. It runs on the device for the caller's inputs; values that
//! later nodes read as well are kept, so that later stages start from them.

use crate::model::{OnnxAttribute, OnnxGraph, OnnxModel};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use systole_base::{Literal, Result, TensorType, err};
use systole_ir::{Graph, GraphBuilder, Node, Op, Tensor, ValueId, interp};
use systole_runtime::{Backend, CompileOptions, DeviceId, ExecutableArg};

/// Elements of a value of a stage: at most this many, or [`GROWTH`] times those of the inputs and constants. Fuzzers have no
/// other device than the interpreter.
#[allow(unexpected_cfgs)]
const MOST_ELEMENTS: usize = if cfg!(fuzzing) { 1 << 12 } else { 1 << 24 };
const GROWTH: usize = 1 << 10;

/// Stages whose values have fewer elements in total are interpreted, which takes less time than compiling them.
const MOST_INTERPRETED: usize = 1 << 12;

/// Evaluates values of the graph under construction.
pub(crate) struct StageRunner {
    device: Arc<dyn Backend>,
    /// The caller's inputs, one for each parameter; then the values of earlier stages.
    given: Vec<(Tensor, Literal)>,
    /// Number of parameters among them.
    inputs: usize,
    /// Elements of the model's inputs and constants.
    elements: usize,
    /// Number of stages that ran.
    pub count: usize,
}

/// Where stages run, and the values of all inputs of the model.
pub(crate) struct StageInputs {
    pub device: Arc<dyn Backend>,
    pub inputs: Vec<Literal>,
}

impl StageRunner {
    /// Creates an evaluator for the values of the parameters. Reading a small file must not take much memory, so that values
    /// far larger than the inputs and the constants are refused.
    pub fn new(given: StageInputs, parameters: &[Tensor], constant_elements: usize) -> StageRunner {
        let inputs: usize = given.inputs.iter().map(|x| x.ty().elements()).sum();
        let elements = inputs.saturating_add(constant_elements);
        let StageInputs { device, inputs } = given;
        let given = parameters.iter().cloned().zip(inputs).collect();
        StageRunner { device, inputs: parameters.len(), given, elements, count: 0 }
    }

    /// Whether a value of an earlier stage is kept.
    pub fn keeps(&self, t: &Tensor) -> bool {
        self.given[self.inputs..].iter().any(|(kept, _)| kept.id() == t.id())
    }

    /// Forgets values of earlier stages that no later node reads.
    pub fn retain(&mut self, is_live: impl Fn(&Tensor) -> bool) {
        let kept = self.given.split_off(self.inputs);
        self.given.extend(kept.into_iter().filter(|(t, _)| is_live(t)));
    }

    /// Returns the elements of `wanted`. Keeps the `live` values that the stage computes.
    pub fn run(&mut self, g: &GraphBuilder, wanted: &[Tensor], live: &[Tensor]) -> Result<Vec<Literal>> {
        let given: Vec<Tensor> = self.given.iter().map(|(t, _)| t.clone()).collect();
        let computed = g.nodes_between(&given, wanted);
        let ids: HashSet<_> = given.iter().map(Tensor::id).collect();
        let is_new = |t: &&Tensor| computed.contains(&t.id().index()) && !ids.contains(&t.id());
        let fresh: Vec<Tensor> = live.iter().filter(is_new).cloned().collect();
        let results: Vec<Tensor> = wanted.iter().chain(&fresh).cloned().collect();
        let (mut graph, used) = g.part("stage", &given, &results)?;
        // Constants need not be kept.
        let others = graph.results.split_off(wanted.len());
        let is_constant = |v: &ValueId| matches!(graph.node(*v).op, Op::Constant(_));
        let kept = fresh.into_iter().zip(others).filter(|(_, v)| !is_constant(v));
        let (fresh, others): (Vec<Tensor>, Vec<ValueId>) = kept.unzip();
        graph.results.extend(others);
        self.check_sizes(&graph)?;
        let arguments: Vec<&Literal> = used.iter().map(|&i| &self.given[i].1).collect();
        let mut values = evaluated(&*self.device, graph, &arguments)?;
        let others = values.split_off(wanted.len());
        self.given.extend(fresh.into_iter().zip(others));
        self.count += 1;
        Ok(values)
    }

    /// Rejects a stage with a value that is far larger than the inputs and constants of the model.
    fn check_sizes(&self, graph: &Graph) -> Result<()> {
        let most = self.elements.saturating_mul(GROWTH).max(MOST_ELEMENTS);
        let mut types = graph.nodes.iter().flat_map(|node| &node.outs);
        match types.find(|ty| ty.elements() > most) {
            None => Ok(()),
            Some(ty) => {
                Err(err!(Unsupported, "a size of the model depends on a value {ty}, which is too large")
                    .because(format!("the model's inputs and constants have {} elements", self.elements))
                    .hint("export the model for inputs with a fixed shape, or run it with onnxruntime"))
            }
        }
    }
}

/// Runs a stage: interprets a small one, compiles others.
fn evaluated(device: &dyn Backend, graph: Graph, arguments: &[&Literal]) -> Result<Vec<Literal>> {
    let elements = graph.nodes.iter().flat_map(|node| &node.outs).map(TensorType::elements);
    if elements.sum::<usize>() <= MOST_INTERPRETED && graph.nodes.iter().all(is_interpreted) {
        return interp::run(&graph, arguments);
    }
    let options = CompileOptions { label: "stage".into(), ..CompileOptions::default() };
    let program = device.compile(&Arc::new(graph), &options)?;
    let put = |x: &&Literal| device.put(x, DeviceId(0));
    let arguments = arguments.iter().map(put).collect::<Result<Vec<_>>>()?;
    let made = program.run(arguments.iter().map(ExecutableArg::Borrow).collect())?;
    made.iter().map(|buffer| buffer.to_literal()).collect()
}

/// Whether the time of an op depends on the elements of its operands and results alone.
fn is_interpreted(node: &Node) -> bool {
    let others = matches!(
        node.op,
        Op::While(_)
            | Op::Case(_)
            | Op::CustomCall(_)
            | Op::ReduceWindow(_)
            | Op::SelectAndScatter(_)
            | Op::Convolution(_)
    );
    !others
}

/// Returns the number of elements of a graph's constants: initializers, and those of Constant nodes.
pub(crate) fn constant_elements(graph: &OnnxGraph) -> usize {
    let initializers = graph.constants.values().map(|value| value.ty().elements());
    let nodes = graph.nodes.iter().filter(|node| node.op == "Constant");
    let attributes = nodes.flat_map(|node| node.attributes.values()).map(|attribute| match attribute {
        OnnxAttribute::Tensor(value) => value.ty().elements(),
        OnnxAttribute::Ints(list) => list.len(),
        OnnxAttribute::Floats(list) => list.len(),
        _ => 1,
    });
    initializers.chain(attributes).sum()
}

/// Returns, for each top-level node, the values that no later node reads; outputs of the model are read after all nodes.
pub(crate) fn last_uses(model: &OnnxModel) -> Vec<Vec<String>> {
    let mut last: HashMap<&str, usize> = HashMap::new();
    for (i, node) in model.graph.nodes.iter().enumerate() {
        last.extend(node.inputs.iter().chain(&node.outputs).map(|name| (name.as_str(), i)));
        for attribute in node.attributes.values() {
            if let OnnxAttribute::Graph(graph) = attribute {
                nested_reads(graph, i, &mut last);
            }
        }
    }
    let outputs = model.graph.outputs.iter().map(|port| (port.name.as_str(), usize::MAX));
    last.extend(outputs);
    let mut dying = vec![Vec::new(); model.graph.nodes.len()];
    for (name, at) in last.into_iter().filter(|(_, at)| *at < usize::MAX) {
        dying[at].push(name.to_string());
    }
    dying
}

fn nested_reads<'m>(graph: &'m OnnxGraph, at: usize, last: &mut HashMap<&'m str, usize>) {
    last.extend(graph.outputs.iter().map(|port| (port.name.as_str(), at)));
    for node in &graph.nodes {
        last.extend(node.inputs.iter().map(|name| (name.as_str(), at)));
        for attribute in node.attributes.values() {
            if let OnnxAttribute::Graph(inner) = attribute {
                nested_reads(inner, at, last);
            }
        }
    }
}
