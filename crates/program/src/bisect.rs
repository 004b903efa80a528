//! Two devices, one program: where they part. The program's beginnings are run on both and halved, until the values before an op
//! agree and those behind it do not.

use crate::compare::{Difference, Tolerance, compare};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use systole_base::{Error, ErrorKind, Literal, Result};
use systole_ir::op::Op;
use systole_ir::{Graph, ValueId};
use systole_runtime::{Backend, CompileOptions, DeviceId, ExecutableArg};

/// Two devices and how far their values may be apart.
pub struct DevicePair {
    /// The first and the second; where they differ nothing says which is right, unless one is `ref`.
    pub devices: [Arc<dyn Backend>; 2],
    /// Names of the two, for messages.
    pub names: [String; 2],
    /// See [`Tolerance`].
    pub tolerance: Tolerance,
}

/// How two runs of a program compare.
#[derive(Clone, Debug)]
pub enum RunComparison {
    /// Every result is the same but for rounding.
    Same,
    /// This result differs.
    Differs(usize, Difference),
    /// This device, 0 or 1, ended with an error; a panic is a `Bug`.
    Failed(usize, Error),
}

impl RunComparison {
    /// Whether another outcome is of the same kind: the same device with the same error but for numbers, or a difference.
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

/// A program's results on a device. A panic of it is an error here.
///
/// # Errors
/// Those of the device.
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

/// A panic as an error.
fn defect(panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message");
    Error::new(ErrorKind::Bug, format!("panic: {text}")).hint("please report this, with the program")
}

impl DevicePair {
    /// Runs a program on both devices.
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

/// The first op, in the order of the program, with which two devices part.
#[derive(Clone, Debug)]
pub struct DivergingOp {
    /// Its index among the graph's nodes.
    pub node: usize,
    /// Which of its results differs, and where; or the error with which a device ends there.
    pub what: RunComparison,
    /// Its operands, of the second device where they could be had.
    pub operands: Vec<Literal>,
    /// How the op alone compares, given these operands; `None`: they could not be had.
    pub alone: Option<RunComparison>,
    /// Beginnings of the program that were run.
    pub runs: usize,
}

/// The part of a graph that makes `results`, of the values of its nodes up to `last`; all parameters stay.
pub fn beginning(graph: &Graph, last: usize, results: Vec<ValueId>) -> Arc<Graph> {
    let nodes = graph.nodes.iter().take(last + 1).cloned().collect();
    let params: Vec<ValueId> = graph.params.iter().copied().filter(|p| p.index() <= last).collect();
    let names = graph.param_names.iter().take(params.len()).cloned().collect();
    Arc::new(Graph { nodes, params, param_names: names, results, ..graph.clone() })
}

/// Values of nodes up to `last` that later nodes, or the results, need.
fn cut(graph: &Graph, last: usize) -> Vec<ValueId> {
    let later = graph.nodes.iter().skip(last + 1).flat_map(|n| n.inputs.iter());
    let mut values: Vec<ValueId> =
        later.chain(&graph.results).copied().filter(|v| v.index() <= last).collect();
    values.sort_unstable();
    values.dedup();
    values
}

/// All values of a node.
fn values_of(graph: &Graph, node: usize) -> Vec<ValueId> {
    let count = graph.nodes.get(node).map_or(0, |n| n.outs.len());
    (0..count).map(|out| ValueId::new(node, out)).collect()
}

/// Finds where two devices part; `None`: they agree on all results.
///
/// Each beginning of the program is compared by the values that the rest needs. Where a difference is lost again (it is
/// multiplied by zero, it is not looked at), a later op may be found instead of the first.
pub fn first_difference(pair: &DevicePair, graph: &Arc<Graph>, arguments: &[Literal]) -> Option<DivergingOp> {
    if let RunComparison::Same = pair.compare(graph, arguments) {
        return None;
    }
    let parameters = graph.params.len();
    // Nodes up to `agree` do, those up to `part` do not.
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
        // The op's own values agree when nothing else is asked for: the two part when they are computed together.
        results = cut(graph, node);
        what = pair.compare(&beginning(graph, node, results), arguments);
    }
    let operands = operands(pair, graph, arguments, node);
    let alone = operands.as_ref().map(|o| pair.compare(&single(graph, node), o));
    Some(DivergingOp { node, what, operands: operands.unwrap_or_default(), alone, runs: runs + 2 })
}

/// What a node is given, on the second device, or else on the first.
fn operands(pair: &DevicePair, graph: &Graph, arguments: &[Literal], node: usize) -> Option<Vec<Literal>> {
    let inputs = graph.nodes.get(node)?.inputs.to_vec();
    let Some(last) = inputs.iter().map(|v| v.index()).max() else { return Some(Vec::new()) };
    let begun = beginning(graph, last.max(graph.params.len().saturating_sub(1)), inputs);
    pair.devices.iter().rev().find_map(|device| run(&begun, arguments, &**device).ok())
}

/// A program of one node, whose operands are its parameters.
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
