//! Finds the first op whose values differ between two devices: bisects the program by running prefixes of it on both.

use crate::compare::{Difference, Tolerance, compare};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use systole_base::{Error, Literal, Result, err};
use systole_ir::op::Op;
use systole_ir::{Graph, ValueId};
use systole_runtime::{Backend, CompileOptions, DeviceId, ExecutableArg};

/// Two devices to compare, and the tolerance.
pub struct DevicePair {
    /// First and second device; a difference does not tell which one is wrong, unless one is `ref`.
    pub devices: [Arc<dyn Backend>; 2],
    /// Device names for messages.
    pub names: [String; 2],
    /// See [`Tolerance`].
    pub tolerance: Tolerance,
}

/// Outcome of comparing two runs of a program.
#[derive(Clone, Debug)]
pub enum RunComparison {
    /// All results agree within the tolerance.
    Same,
    /// The result with this index differs.
    Differs(usize, Difference),
    /// This device, 0 or 1, returned an error; a panic is a `Bug`.
    Failed(usize, Error),
}

impl RunComparison {
    /// Whether another comparison has an outcome of the same kind: the same error (except for numbers) on the same
    /// device, or a difference.
    pub fn is_like(&self, other: &RunComparison) -> bool {
        let words = |e: &Error| e.what().replace(|c: char| c.is_ascii_digit(), "");
        match (self, other) {
            (RunComparison::Same, RunComparison::Same)
            | (RunComparison::Differs(..), RunComparison::Differs(..)) => true,
            (RunComparison::Failed(i, a), RunComparison::Failed(j, b)) => {
                i == j && a.kind() == b.kind() && words(a) == words(b)
            }
            _ => false,
        }
    }
}

/// Runs a program on a device; a panic becomes an error.
///
/// # Errors
/// Errors of the device.
pub fn run(graph: &Arc<Graph>, arguments: &[Literal], device: &dyn Backend) -> Result<Vec<Literal>> {
    let once = || -> Result<Vec<Literal>> {
        crate::run::fits(graph, device.name() == "ref")?;
        let options = CompileOptions { label: graph.name.clone(), ..CompileOptions::default() };
        let program = device.compile(graph, &options)?;
        let buffers = arguments.iter().map(|x| device.put(x, DeviceId(0))).collect::<Result<Vec<_>>>()?;
        let results = program.run(buffers.iter().map(ExecutableArg::Borrow).collect())?;
        results.iter().map(systole_runtime::Buffer::to_literal).collect()
    };
    catch_unwind(AssertUnwindSafe(once)).unwrap_or_else(|panic| Err(defect(panic.as_ref())))
}

/// Converts a panic to an error.
fn defect(panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panic without a message");
    err!(Bug, "panic: {text}").hint("report this bug with the program")
}

impl DevicePair {
    /// Runs a program on both devices and compares the results.
    pub fn compare(&self, graph: &Arc<Graph>, arguments: &[Literal]) -> RunComparison {
        let mut results = Vec::new();
        for (i, device) in self.devices.iter().enumerate() {
            match run(graph, arguments, &**device) {
                Ok(values) => results.push(values),
                Err(e) => return RunComparison::Failed(i, e),
            }
        }
        let [a, b] = &results[..] else { return RunComparison::Same };
        let mut pairs = a.iter().zip(b).enumerate();
        let found = pairs.find_map(|(i, (a, b))| Some((i, compare(a, b, self.tolerance)?)));
        found.map_or(RunComparison::Same, |(i, d)| RunComparison::Differs(i, d))
    }
}

/// The first op, in program order, whose results differ between two devices.
#[derive(Clone, Debug)]
pub struct DivergingOp {
    /// Index of the op's node in the graph.
    pub node: usize,
    /// The difference in one of its results, or the error of a device.
    pub what: RunComparison,
    /// Operands of the op, from the second device if available.
    pub operands: Vec<Literal>,
    /// Comparison of the op alone with these operands; `None` if they are not available.
    pub alone: Option<RunComparison>,
    /// Number of program prefixes that were run.
    pub runs: usize,
}

/// Returns the prefix of a graph that computes `results` from nodes up to `last`; all parameters are kept.
pub fn beginning(graph: &Graph, last: usize, results: Vec<ValueId>) -> Arc<Graph> {
    let nodes = graph.nodes.iter().take(last + 1).cloned().collect();
    let params: Vec<ValueId> = graph.params.iter().copied().filter(|p| p.index() <= last).collect();
    let names = graph.param_names.iter().take(params.len()).cloned().collect();
    Arc::new(Graph { nodes, params, param_names: names, results, ..graph.clone() })
}

/// Returns the values of nodes up to `last` that later nodes or the results use.
fn cut(graph: &Graph, last: usize) -> Vec<ValueId> {
    let later = graph.nodes.iter().skip(last + 1).flat_map(|n| n.inputs.iter());
    let mut values: Vec<ValueId> =
        later.chain(&graph.results).copied().filter(|v| v.index() <= last).collect();
    values.sort_unstable();
    values.dedup();
    values
}

/// Returns all values of a node.
fn values_of(graph: &Graph, node: usize) -> Vec<ValueId> {
    let count = graph.nodes.get(node).map_or(0, |n| n.outs.len());
    (0..count).map(|out| ValueId::new(node, out)).collect()
}

/// Finds the first op that differs between two devices; `None` if all results agree.
///
/// Prefixes are compared by the values that the rest of the program uses. If a difference is lost again (multiplied by
/// zero, or unused), a later op may be found.
pub fn first_difference(pair: &DevicePair, graph: &Arc<Graph>, arguments: &[Literal]) -> Option<DivergingOp> {
    if let RunComparison::Same = pair.compare(graph, arguments) {
        return None;
    }
    let parameters = graph.params.len();
    // Nodes up to `agree` agree; those up to `part` do not.
    let (mut agree, mut part) = (parameters, graph.nodes.len());
    let mut runs = 1;
    let same = |n: usize, runs: &mut usize| {
        let Some(last) = n.checked_sub(1) else { return true };
        *runs += 1;
        let begun = beginning(graph, last, cut(graph, last));
        matches!(pair.compare(&begun, arguments), RunComparison::Same)
    };
    while part > agree + 1 {
        let middle = agree.midpoint(part);
        match same(middle, &mut runs) {
            true => agree = middle,
            false => part = middle,
        }
    }
    let node = part.saturating_sub(1);
    let mut results = values_of(graph, node);
    let mut what = pair.compare(&beginning(graph, node, results.clone()), arguments);
    if matches!(what, RunComparison::Same) {
        // The op's values agree if nothing else is computed: the devices differ only when they are computed together.
        results = cut(graph, node);
        what = pair.compare(&beginning(graph, node, results), arguments);
    }
    let operands = operands(pair, graph, arguments, node);
    let alone = operands.as_ref().map(|o| pair.compare(&single(graph, node), o));
    Some(DivergingOp { node, what, operands: operands.unwrap_or_default(), alone, runs: runs + 2 })
}

/// Returns a node's operands from the second device, or from the first.
fn operands(pair: &DevicePair, graph: &Graph, arguments: &[Literal], node: usize) -> Option<Vec<Literal>> {
    let inputs = graph.nodes.get(node)?.inputs.to_vec();
    let Some(last) = inputs.iter().map(|v| v.index()).max() else { return Some(Vec::new()) };
    let begun = beginning(graph, last.max(graph.params.len().saturating_sub(1)), inputs);
    pair.devices.iter().rev().find_map(|device| run(&begun, arguments, &**device).ok())
}

/// Returns a program with a single node, whose operands are its parameters.
pub fn single(graph: &Graph, node: usize) -> Arc<Graph> {
    let Some(op) = graph.nodes.get(node) else { return Arc::new(Graph::default()) };
    let mut nodes: Vec<systole_ir::Node> = Vec::new();
    let mut params = Vec::new();
    for (index, v) in op.inputs.iter().enumerate() {
        let ty = graph.ty(*v).clone();
        let parameter = Op::Parameter(systole_ir::op::Parameter { index, ty: ty.clone() });
        params.push(ValueId::new(index, 0));
        nodes.push(systole_ir::Node {
            op: parameter,
            inputs: Default::default(),
            outs: std::iter::once(ty).collect(),
            loc: None,
            scope: 0,
        });
    }
    let at = nodes.len();
    nodes.push(systole_ir::Node { inputs: params.iter().copied().collect(), scope: 0, ..op.clone() });
    Arc::new(Graph {
        name: graph.name.clone(),
        results: (0..op.outs.len()).map(|out| ValueId::new(at, out)).collect(),
        param_names: params.iter().map(|_| String::new()).collect(),
        params,
        nodes,
        scopes: vec![String::new()],
    })
}
