//! Minimizes a failing program: removes results, ops and arguments, shrinks sizes, and replaces ops by arguments or
//! constants with their values, as long as it still fails in the same way. Bodies of loops, branches and calls replace
//! their op or are shrunk in place.

mod bodies;
mod sizes;

use bodies::{LoopControl, moved};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;
use systole_base::{Literal, TensorType};
use systole_ir::op::{Constant, Op, Parameter};
use systole_ir::{Graph, Node, ValueId};

/// A failing program and its arguments, to be minimized.
#[derive(Clone, Debug)]
pub struct FailingCase {
    /// The program.
    pub graph: Arc<Graph>,
    /// An array for each parameter.
    pub arguments: Vec<Literal>,
}

/// Decides whether a minimized program still fails, and computes values of it.
pub trait FailureOracle {
    /// Whether the case fails like the original.
    fn fails(&mut self, case: &FailingCase) -> bool;

    /// Computes the results of a program without failure; `None` if they cannot be computed.
    fn values(&mut self, case: &FailingCase) -> Option<Vec<Literal>>;

    /// Called for each smaller case that fails.
    fn smaller(&mut self, case: &FailingCase);
}

impl FailingCase {
    fn with_size(&self, size: usize, smaller: usize) -> Option<FailingCase> {
        let (graph, arguments) = sizes::with(&self.graph, &self.arguments, (size, smaller))?;
        Some(FailingCase { graph, arguments })
    }

    /// Returns the number of ops of the program other than parameters, including those in bodies.
    pub fn ops(&self) -> usize {
        bodies::count(&self.graph, true)
    }

    /// Returns the size that is minimized.
    fn weight(&self) -> (usize, usize, usize) {
        let elements = self.graph.nodes.iter().flat_map(|n| &n.outs).map(TensorType::elements);
        (bodies::count(&self.graph, false), self.graph.results.len() + self.arguments.len(), elements.sum())
    }

    /// Removes unused ops and arguments.
    fn tidy(&self) -> FailingCase {
        let live = self.graph.live(&self.graph.results);
        let mut new = BTreeMap::new();
        let mut out = Graph { name: "main".into(), scopes: vec![String::new()], ..Graph::default() };
        let mut arguments = Vec::new();
        for (i, node) in self.graph.nodes.iter().enumerate().filter(|(i, _)| live.get(*i) == Some(&true)) {
            let mut node = Node { scope: 0, loc: None, ..node.clone() };
            node.inputs.iter_mut().for_each(|v| *v = moved(&new, *v));
            if let Op::Parameter(p) = &mut node.op {
                arguments.extend(self.arguments.get(p.index).cloned());
                p.index = out.params.len();
                out.params.push(ValueId::new(out.nodes.len(), 0));
                out.param_names.push(String::new());
            }
            new.insert(i, out.nodes.len());
            out.nodes.push(node);
        }
        out.results = self.graph.results.iter().map(|v| moved(&new, *v)).collect();
        FailingCase { graph: Arc::new(out), arguments }
    }

    /// Returns the case with other results.
    fn returning(&self, results: Vec<ValueId>) -> FailingCase {
        let graph = Arc::new(Graph { results, ..(*self.graph).clone() });
        FailingCase { graph, arguments: self.arguments.clone() }.tidy()
    }

    /// Replaces nodes by their values: by an argument if `given` has an array.
    fn with_given(&self, replaced: &BTreeMap<ValueId, Literal>) -> FailingCase {
        let nodes: BTreeSet<usize> = replaced.keys().map(|v| v.index()).collect();
        let mut out = Graph { params: Vec::new(), nodes: Vec::new(), ..(*self.graph).clone() };
        let (mut new, mut place) = (BTreeMap::new(), BTreeMap::new());
        let mut arguments = Vec::new();
        let parameter = |out: &mut Graph, ty: TensorType| {
            let id = ValueId::new(out.nodes.len(), 0);
            let op = Op::Parameter(Parameter { index: out.params.len(), ty: ty.clone() });
            let outs = std::iter::once(ty).collect();
            out.nodes.push(Node { op, inputs: Default::default(), outs, loc: None, scope: 0 });
            out.params.push(id);
            id
        };
        for (p, x) in self.graph.params.iter().zip(&self.arguments) {
            place.insert(*p, parameter(&mut out, x.ty().clone()));
            arguments.push(x.clone());
        }
        for (v, x) in replaced {
            place.insert(*v, parameter(&mut out, x.ty().clone()));
            arguments.push(x.clone());
        }
        let at = |v: ValueId, new: &BTreeMap<usize, usize>| {
            place.get(&v).copied().unwrap_or_else(|| moved(new, v))
        };
        for (i, node) in self.graph.nodes.iter().enumerate() {
            if nodes.contains(&i) || matches!(node.op, Op::Parameter(_)) {
                continue;
            }
            let mut node = node.clone();
            node.inputs.iter_mut().for_each(|v| *v = at(*v, &new));
            new.insert(i, out.nodes.len());
            out.nodes.push(node);
        }
        out.results = self.graph.results.iter().map(|v| at(*v, &new)).collect();
        out.param_names = vec![String::new(); out.params.len()];
        FailingCase { graph: Arc::new(out), arguments }.tidy()
    }

    /// Replaces an argument by a constant.
    fn with_constant(&self, argument: usize, value: Literal) -> FailingCase {
        let mut graph = (*self.graph).clone();
        if let Some(node) = graph.params.get(argument).and_then(|p| graph.nodes.get_mut(p.index())) {
            node.op = Op::Constant(Constant { value });
        }
        // Parameters come first.
        let mut order: Vec<usize> = (0..graph.nodes.len()).collect();
        order.sort_by_key(|i| !graph.nodes.get(*i).is_some_and(|n| matches!(n.op, Op::Parameter(_))));
        let new: BTreeMap<usize, usize> = order.iter().enumerate().map(|(new, old)| (*old, new)).collect();
        let mut nodes: Vec<Node> = order.iter().filter_map(|i| graph.nodes.get(*i).cloned()).collect();
        nodes.iter_mut().flat_map(|n| n.inputs.iter_mut()).for_each(|v| *v = moved(&new, *v));
        graph.nodes = nodes;
        graph.results.iter_mut().for_each(|v| *v = moved(&new, *v));
        FailingCase { graph: Arc::new(graph), arguments: self.arguments.clone() }.tidy()
    }
}

/// Minimizes a failing case until `deadline`. `culprit` is the suspected node.
pub fn shrink(
    case: &FailingCase,
    culprit: Option<usize>,
    judge: &mut dyn FailureOracle,
    deadline: Instant,
) -> FailingCase {
    let mut work = Shrinker { case: case.clone(), judge, deadline };
    work.take(&case.tidy());
    if let Some(node) = culprit {
        let count = case.graph.nodes.get(node).map_or(0, |n| n.outs.len());
        work.take(&case.returning((0..count).map(|out| ValueId::new(node, out)).collect()));
    }
    loop {
        let before = work.case.weight();
        work.results();
        work.beginnings();
        work.givens();
        work.opened();
        work.bodies();
        work.sizes();
        work.constants();
        if work.case.weight() >= before || work.is_late() {
            return work.case;
        }
    }
}

struct Shrinker<'a> {
    /// Smallest failing case so far.
    case: FailingCase,
    judge: &'a mut dyn FailureOracle,
    deadline: Instant,
}

impl Shrinker<'_> {
    fn is_late(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// Adopts a case if it fails.
    fn take(&mut self, case: &FailingCase) -> bool {
        if self.is_late() || case.graph.results.is_empty() || case.graph.verify().is_err() {
            return false;
        }
        let fails = self.judge.fails(case);
        if fails {
            self.case = case.clone();
            self.judge.smaller(case);
        }
        fails
    }

    /// Tries one result, or half of them.
    fn results(&mut self) {
        let all = self.case.graph.results.clone();
        if all.len() > 1 {
            for one in &all {
                if self.take(&self.case.returning(vec![*one])) {
                    return;
                }
            }
        }
        let mut size = all.len() / 2;
        while size > 0 && self.case.graph.results.len() > 1 {
            let mut at = 0;
            while at < self.case.graph.results.len() && self.case.graph.results.len() > 1 {
                let mut fewer = self.case.graph.results.clone();
                fewer.drain(at..(at + size).min(fewer.len()));
                if !self.take(&self.case.returning(fewer)) {
                    at += size;
                }
            }
            size /= 2;
        }
    }

    /// Replaces a result by its operands while the case fails.
    fn beginnings(&mut self) {
        loop {
            let graph = self.case.graph.clone();
            let inputs: BTreeSet<ValueId> = graph
                .results
                .iter()
                .flat_map(|r| graph.node(*r).inputs.iter().copied())
                .filter(|v| !matches!(graph.node(*v).op, Op::Parameter(_) | Op::Constant(_)))
                .collect();
            if !inputs.into_iter().rev().any(|v| self.take(&self.case.returning(vec![v]))) {
                return;
            }
        }
    }

    /// Replaces ops by their values: many at once, then fewer.
    fn givens(&mut self) {
        let mut size = self.case.graph.nodes.len().next_power_of_two();
        while size > 0 && !self.is_late() {
            let mut end = self.case.graph.nodes.len();
            let known = self.known();
            let mut is_known = true;
            while end > 0 && !self.is_late() {
                let begin = end.saturating_sub(size);
                let values = if is_known { known.clone() } else { self.known() };
                let case = self.case.with_given(&self.replaceable(begin..end, &values));
                // Nodes are renumbered after removals.
                if case.ops() < self.case.ops() && self.take(&case) {
                    is_known = false;
                    end = begin.min(self.case.graph.nodes.len());
                } else {
                    end = begin;
                }
            }
            size /= 2;
        }
    }

    /// Returns the values of these nodes that others use, except operands of results and small constants.
    fn replaceable(
        &self,
        nodes: std::ops::Range<usize>,
        values: &BTreeMap<ValueId, Literal>,
    ) -> BTreeMap<ValueId, Literal> {
        let graph = &self.case.graph;
        let is_small =
            |op: &Op| matches!(op, Op::Constant(c) if c.value.is_splat() || c.value.ty().elements() <= 16);
        let last: BTreeSet<usize> = graph.results.iter().map(|r| r.index()).collect();
        let is_one = |v: &ValueId| {
            let node = graph.node(*v);
            nodes.contains(&v.index()) && !last.contains(&v.index()) && !is_small(&node.op)
        };
        values.iter().filter(|(v, _)| is_one(v)).map(|(v, x)| (*v, x.clone())).collect()
    }

    /// Returns the values of all nodes but parameters; zeros if they cannot be computed.
    fn known(&mut self) -> BTreeMap<ValueId, Literal> {
        let graph = &self.case.graph;
        let all: Vec<ValueId> = (0..graph.nodes.len())
            .filter(|i| !matches!(graph.nodes[*i].op, Op::Parameter(_)))
            .flat_map(|i| (0..graph.nodes[i].outs.len()).map(move |out| ValueId::new(i, out)))
            .collect();
        let whole = Graph { results: all.clone(), ..(**graph).clone() };
        let whole = FailingCase { graph: Arc::new(whole), arguments: self.case.arguments.clone() };
        let types: Vec<TensorType> = all.iter().map(|v| self.case.graph.ty(*v).clone()).collect();
        let values = self.judge.values(&whole).filter(|v| v.len() == all.len());
        let values = values.unwrap_or_else(|| types.into_iter().map(Literal::zeros).collect());
        all.into_iter().zip(values).collect()
    }

    /// Replaces ops by their bodies while the case fails.
    fn opened(&mut self) {
        let mut node = self.case.graph.nodes.len();
        while node > 0 && !self.is_late() {
            node -= 1;
            let graphs = bodies::opened(&self.case.graph, node, &LoopControl::default());
            let case = |g| FailingCase { graph: Arc::new(g), arguments: self.case.arguments.clone() }.tidy();
            let cases: Vec<FailingCase> = graphs.into_iter().map(case).collect();
            if cases.iter().any(|case| case.weight() < self.case.weight() && self.take(case)) {
                // The body may contain further bodies.
                node = self.case.graph.nodes.len();
            }
        }
    }

    /// Removes ops in each body: results become their operands, ops become numbers.
    fn bodies(&mut self) {
        let mut place = 0;
        while let Some(path) = bodies::paths(&self.case.graph).get(place).cloned() {
            self.body_opened(&path);
            self.body_results(&path);
            self.body_numbers(&path);
            place += 1;
            if self.is_late() {
                return;
            }
        }
    }

    fn body(&self, path: &[(usize, usize)]) -> Option<Graph> {
        bodies::at(&self.case.graph, path).cloned()
    }

    /// Adopts another body if it has fewer ops and the case fails.
    fn take_body(&mut self, path: &[(usize, usize)], body: Graph) -> bool {
        let graph = bodies::with(&self.case.graph, path, body);
        let case = |graph| FailingCase { graph: Arc::new(graph), arguments: self.case.arguments.clone() };
        graph.map(case).is_some_and(|case| case.weight() < self.case.weight() && self.take(&case))
    }

    /// Like [`Shrinker::opened`], inside a body.
    fn body_opened(&mut self, path: &[(usize, usize)]) {
        let mut node = self.body(path).map_or(0, |b| b.nodes.len());
        while node > 0 && !self.is_late() {
            node -= 1;
            let Some(body) = self.body(path) else { return };
            let graphs = bodies::opened(&body, node, &LoopControl::of(&self.case.graph, path));
            if graphs.iter().any(|g| self.take_body(path, bodies::tidy(g))) {
                node = self.body(path).map_or(0, |b| b.nodes.len());
            }
        }
    }

    fn body_results(&mut self, path: &[(usize, usize)]) {
        let count = self.body(path).map_or(0, |b| b.results.len());
        for result in 0..count {
            loop {
                let fixed = LoopControl::of(&self.case.graph, path);
                let all = self.body(path).map_or(Vec::new(), |b| bodies::with_results(&b, result, &fixed));
                if !all.into_iter().any(|body| self.take_body(path, body)) {
                    break;
                }
            }
        }
    }

    fn body_numbers(&mut self, path: &[(usize, usize)]) {
        let mut size = self.body(path).map_or(0, |b| b.nodes.len().next_power_of_two());
        while size > 0 && !self.is_late() {
            let mut end = self.body(path).map_or(0, |b| b.nodes.len());
            while end > 0 && !self.is_late() {
                let begin = end.saturating_sub(size);
                let numbers = if size == 1 { &[0.0, 1.0][..] } else { &[0.0] };
                let fixed = LoopControl::of(&self.case.graph, path);
                let fewer = numbers.iter().any(|number| {
                    let body = self.body(path);
                    let body = body.and_then(|b| bodies::with_numbers(&b, begin..end, *number, &fixed));
                    body.is_some_and(|body| self.take_body(path, body))
                });
                let nodes = self.body(path).map_or(0, |b| b.nodes.len());
                end = if fewer { begin.min(nodes) } else { begin };
            }
            size /= 2;
        }
    }

    /// Tries smaller sizes, each replaced everywhere.
    fn sizes(&mut self) {
        for size in sizes::of(&self.case.graph) {
            for smaller in [1, 2, size / 2, size - 1] {
                let case =
                    if smaller < size && smaller > 0 { self.case.with_size(size, smaller) } else { None };
                if case.is_some_and(|case| self.take(&case)) {
                    break;
                }
            }
        }
    }

    /// Replaces an argument by a constant: its value if it is a scalar, otherwise one number for all elements.
    fn constants(&mut self) {
        let mut argument = 0;
        while let Some(x) = self.case.arguments.get(argument).cloned() {
            let splat = match x.ty().elements() {
                0 => x.clone(),
                _ => Literal::splat(x.ty().clone(), x.get(0)),
            };
            if !self.take(&self.case.with_constant(argument, splat)) {
                argument += 1;
            }
        }
    }
}
