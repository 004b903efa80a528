//! Graph construction: [`GraphBuilder`] appends typed nodes; a [`Tensor`] is a value of the graph under construction.
//!
//! No method returns `Result` or panics. The first error poisons the builder, and every tensor computed from a poisoned
//! one is poisoned. [`GraphBuilder::finish`] returns the error, with the op, the violated constraint, the types, the
//! layer path and the user's file and line.

use super::{
    Constant, DERIVATIVE, Graph, Iota, Node, Op, Parameter, ResultTypes, SourceLoc, SpecConstraint, ValueId,
};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;
use systole_base::{DType, Error, ErrorKind, Literal, Result, Shape, TensorType, err, user_line};

/// A graph under construction. Clones share it. Not `Send`, unlike the finished `Arc<Graph>`.
#[derive(Clone)]
pub struct GraphBuilder(Rc<BuilderInner>);

type LocationStack = Rc<RefCell<Vec<&'static Location<'static>>>>;

struct BuilderInner {
    state: RefCell<BuilderState>,
    /// Nesting depth: 0 for a whole program, one more in each region.
    depth: usize,
    /// The region being traced inside this graph; new nodes are added to it.
    region: RefCell<Option<GraphBuilder>>,
    /// Stack of user code locations for error messages, innermost last. Shared by a graph and its regions.
    asked: LocationStack,
}

#[derive(Default)]
struct BuilderState {
    name: String,
    nodes: Vec<Node>,
    params: Vec<ValueId>,
    param_names: Vec<String>,
    scopes: Vec<String>,
    scope: Vec<u32>,
    /// Values of enclosing graphs that this region uses, with the parameters that represent them: ids, because a tensor
    /// would keep its own builder alive.
    captures: Vec<(Tensor, ValueId)>,
    /// Ranges of nodes that derivatives recompute.
    rematerialized: Vec<Range<usize>>,
    first_error: Option<Error>,
}

/// A value in a graph under construction. Cheap to clone.
#[derive(Clone)]
pub struct Tensor {
    pub(super) builder: GraphBuilder,
    id: ValueId,
    pub(super) ty: TensorType,
}

const POISON: u32 = u32::MAX;

impl GraphBuilder {
    /// Creates a builder of an empty graph.
    pub fn new(name: &str) -> GraphBuilder {
        GraphBuilder::at_depth(name, 0, Rc::default())
    }

    /// Creates a region inside this graph. Tensors of this graph that it uses become captures.
    pub fn child(&self, name: &str) -> GraphBuilder {
        GraphBuilder::at_depth(name, self.active().0.depth + 1, self.0.asked.clone())
    }

    /// Runs `f` and adds every new node to `region`, even if its operands are tensors of this graph.
    pub(crate) fn in_region<R>(&self, region: &GraphBuilder, f: impl FnOnce() -> R) -> R {
        let outer = self.active();
        *outer.0.region.borrow_mut() = Some(region.clone());
        let result = f();
        *outer.0.region.borrow_mut() = None;
        result
    }

    /// The builder that receives new nodes: this one, or the innermost region being traced.
    pub(crate) fn active(&self) -> GraphBuilder {
        match &*self.0.region.borrow() {
            Some(region) => region.active(),
            None => self.clone(),
        }
    }

    /// The builder for an op over `tensors`: that of the innermost graph. `None` if there are no tensors.
    pub(crate) fn of(tensors: &[&Tensor]) -> Option<GraphBuilder> {
        tensors.iter().max_by_key(|t| t.builder.0.depth).map(|t| t.builder.active())
    }

    fn at_depth(name: &str, depth: usize, asked: LocationStack) -> GraphBuilder {
        let (name, scopes, scope) = (name.into(), vec![String::new()], vec![0]);
        let state = BuilderState { name, scopes, scope, ..Default::default() };
        GraphBuilder(Rc::new(BuilderInner { state: state.into(), depth, region: RefCell::default(), asked }))
    }

    /// Appends a parameter to the graph.
    #[track_caller]
    pub fn parameter(&self, ty: TensorType, name: &str) -> Tensor {
        let index = self.0.state.borrow().params.len();
        let t = self.emit_here(Parameter { index, ty }.into(), &[]).remove(0);
        let mut state = self.0.state.borrow_mut();
        state.params.push(t.id);
        state.param_names.push(name.into());
        t
    }

    /// Appends a constant array to the graph.
    #[track_caller]
    pub fn constant(&self, value: Literal) -> Tensor {
        self.emit(Constant { value }, &[]).remove(0)
    }

    /// Appends a rank-0 constant, converted to `dtype`.
    #[track_caller]
    pub fn scalar(&self, dtype: DType, value: f64) -> Tensor {
        self.constant(Literal::scalar(dtype, value))
    }

    /// `→ T[…]`: each element is its index along `dim`.
    #[track_caller]
    pub fn iota(&self, ty: TensorType, dim: usize) -> Tensor {
        self.emit(Iota { dim, ty }, &[]).remove(0)
    }

    /// Appends a node and returns its results. Every method of [`Tensor`] uses this.
    #[track_caller]
    pub fn emit(&self, op: impl Into<Op>, inputs: &[&Tensor]) -> Vec<Tensor> {
        self.active().emit_here(op.into(), inputs)
    }

    #[track_caller]
    fn emit_here(&self, op: Op, inputs: &[&Tensor]) -> Vec<Tensor> {
        let loc = Location::caller();
        let count = op.rule().result_count(inputs.len());
        let inputs: Vec<Tensor> = inputs.iter().map(|t| self.capture_at(t, loc)).collect();
        if inputs.iter().any(|t| t.id.node == POISON) {
            return self.poison(count, &inputs);
        }
        let types: SmallVec<[&TensorType; 4]> = inputs.iter().map(|t| &t.ty).collect();
        match op.rule().infer(&types).and_then(representable) {
            Ok(outs) => self.push(op, inputs.iter().map(|t| t.id).collect(), outs, loc),
            Err(constraint) => {
                let shown: Vec<String> = types.iter().map(|t| t.to_string()).collect();
                let label =
                    if constraint.label == "-" { String::new() } else { format!(" ({})", constraint.label) };
                self.record(
                    err!(Graph, "{}{label}: {}", op.name(), constraint.message)
                        .because(format!("operands: {}", shown.join(", ")))
                        .at(self.users_line(loc).unwrap_or_else(|| format!("{}:{}", loc.file(), loc.line()))),
                );
                self.poison(count, &inputs)
            }
        }
    }

    fn push(
        &self,
        op: Op,
        inputs: SmallVec<[ValueId; 2]>,
        outs: ResultTypes,
        loc: &'static Location<'static>,
    ) -> Vec<Tensor> {
        let mut state = self.0.state.borrow_mut();
        let node = state.nodes.len();
        let scope = state.scope.last().copied().unwrap_or(0);
        let loc = Some(SourceLoc { file: loc.file(), line: loc.line() });
        state.nodes.push(Node { op, inputs, outs: outs.clone(), loc, scope });
        let tensor =
            |(i, ty): (usize, TensorType)| Tensor { builder: self.clone(), id: ValueId::new(node, i), ty };
        outs.into_iter().enumerate().map(tensor).collect()
    }

    fn poison(&self, count: usize, inputs: &[Tensor]) -> Vec<Tensor> {
        let ty = inputs.first().map_or(TensorType::scalar(DType::F32), |t| t.ty.clone());
        let id = ValueId { node: POISON, out: 0 };
        vec![Tensor { builder: self.clone(), id, ty }; count]
    }

    /// Creates `count` poisoned tensors after an error.
    pub(crate) fn poisoned(&self, count: usize, like: &[&Tensor]) -> Vec<Tensor> {
        self.poison(count, &like.iter().map(|&t| t.clone()).collect::<Vec<_>>())
    }

    /// Converts a tensor of this or an enclosing graph to a tensor of this graph; the latter becomes a parameter.
    #[track_caller]
    pub(crate) fn capture(&self, t: &Tensor) -> Tensor {
        self.capture_at(t, Location::caller())
    }

    fn capture_at(&self, t: &Tensor, loc: &'static Location<'static>) -> Tensor {
        if Rc::ptr_eq(&t.builder.0, &self.0) || t.id.node == POISON {
            return t.clone();
        }
        if t.builder.0.depth >= self.0.depth {
            self.fail_at(
                err!(Graph, "cannot use a tensor of another graph here")
                    .because("a tensor can be used only in the graph that created it and in its regions")
                    .hint("pass the tensor as an argument of the traced function"),
                loc,
            );
            return self.poison(1, std::slice::from_ref(t)).remove(0);
        }
        let inner = |id| Tensor { builder: self.clone(), id, ty: t.ty.clone() };
        let known = |(outer, id): &(Tensor, ValueId)| outer.same_as(t).then(|| inner(*id));
        let found = self.0.state.borrow().captures.iter().find_map(known);
        found.unwrap_or_else(|| {
            let (ty, outs) = (t.ty.clone(), SmallVec::from_elem(t.ty.clone(), 1));
            let inner = self.push(Parameter { index: 0, ty }.into(), SmallVec::new(), outs, loc).remove(0);
            self.0.state.borrow_mut().captures.push((t.clone(), inner.id));
            inner
        })
    }

    /// Returns the outer tensors that this region's nodes and `results` use (captures), in order of first use.
    pub fn captured(&self, results: &[Tensor]) -> Vec<Tensor> {
        let results: Vec<ValueId> = results.iter().map(|t| self.capture(t).id).collect();
        let state = self.0.state.borrow();
        let mut used: Vec<&(Tensor, ValueId)> = Vec::new();
        for &id in state.nodes.iter().flat_map(|n| &n.inputs).chain(&results) {
            if used.iter().all(|(_, inner)| *inner != id) {
                used.extend(state.captures.iter().find(|(_, inner)| *inner == id));
            }
        }
        used.into_iter().map(|(outer, _)| outer.clone()).collect()
    }

    /// Records an error at the caller's line. The first error is kept and returned by [`GraphBuilder::finish`].
    #[track_caller]
    pub fn fail(&self, error: Error) {
        self.fail_at(error, Location::caller());
    }

    fn fail_at(&self, error: Error, loc: &'static Location<'static>) {
        self.record(match self.users_line(loc) {
            Some(line) => error.at(line),
            None => error,
        });
    }

    /// User code line for a node created at `loc`.
    fn users_line(&self, loc: &Location) -> Option<String> {
        user_line(loc).or_else(|| self.0.asked.borrow().last().and_then(|asked| user_line(asked)))
    }

    /// Runs `f`; errors that would point to a line of Systole's source point to `place`, the user's line, instead.
    ///
    /// ```
    /// use std::panic::Location;
    /// use systole_ir::{DType::F32, GraphBuilder, TensorType};
    /// let g = GraphBuilder::new("main");
    /// let x = g.parameter(TensorType::new(F32, [2, 3]), "x");
    /// let y = g.asked_at(Some(Location::caller()), || x.reshape([7]));
    /// assert!(g.finish(&[y]).unwrap_err().to_string().contains(".rs:"));
    /// ```
    pub fn asked_at<R>(&self, place: Option<&'static Location<'static>>, f: impl FnOnce() -> R) -> R {
        let Some(place) = place else { return f() };
        self.0.asked.borrow_mut().push(place);
        let result = f();
        self.0.asked.borrow_mut().pop();
        result
    }

    /// Records an error that already has its location. The first error is kept.
    pub(crate) fn record(&self, error: Error) {
        let mut state = self.0.state.borrow_mut();
        let scope = state.scope.last().copied().unwrap_or(0) & !DERIVATIVE;
        let path = state.scopes[scope as usize].clone();
        let error = if path.is_empty() { error } else { error.at(format!("layer {path}")) };
        state.first_error.get_or_insert(error);
    }

    /// Returns the first error of the graph so far.
    pub fn error(&self) -> Option<Error> {
        self.0.state.borrow().first_error.clone()
    }

    /// Runs `f` with `name` appended to the layer path of new nodes.
    pub fn scope<R>(&self, name: &str, f: impl FnOnce() -> R) -> R {
        {
            let mut state = self.0.state.borrow_mut();
            let current = state.scope.last().copied().unwrap_or(0);
            let path = match state.scopes[(current & !DERIVATIVE) as usize].as_str() {
                "" => name.to_string(),
                outer => format!("{outer}/{name}"),
            };
            let id = state.scopes.iter().position(|s| *s == path).unwrap_or_else(|| {
                state.scopes.push(path);
                state.scopes.len() - 1
            });
            state.scope.push(id as u32 | current & DERIVATIVE);
        }
        let result = f();
        self.0.state.borrow_mut().scope.pop();
        result
    }

    /// Runs `f` with gradient checkpointing: the derivative recomputes its nodes from their inputs instead of storing
    /// their values. Saves memory at the cost of time; values and derivatives are unchanged.
    ///
    /// ```
    /// use systole_ir::{grad, interp, DType::F32, GraphBuilder, Literal, TensorType};
    /// let g = GraphBuilder::new("main");
    /// let x = g.parameter(TensorType::scalar(F32), "x");
    /// let y = g.rematerialized(|| x.exp().sine());
    /// let dx = grad(&y, &[&x]).remove(0);
    /// let graph = g.finish(&[y, dx]).unwrap();
    /// let count = graph.nodes.iter().filter(|n| n.op.name() == "exponential").count();
    /// assert_eq!(count, 2);
    /// let out = interp::run(&graph, &[&Literal::scalar(F32, 0.0)]).unwrap();
    /// assert!((out[1].to_f32s()[0] - 1f32.cos()).abs() < 1e-6);
    /// ```
    pub fn rematerialized<R>(&self, f: impl FnOnce() -> R) -> R {
        let g = self.active();
        let start = g.0.state.borrow().nodes.len();
        let result = f();
        let mut state = g.0.state.borrow_mut();
        let run = start..state.nodes.len();
        // Nested ranges are recomputed with the outer one.
        state.rematerialized.retain(|inner| inner.start < run.start);
        state.rematerialized.push(run);
        result
    }

    /// The range of recomputed nodes that contains `node`.
    pub(crate) fn rematerialized_around(&self, node: usize) -> Option<Range<usize>> {
        self.0.state.borrow().rematerialized.iter().find(|run| run.contains(&node)).cloned()
    }

    /// Returns the finished graph, or the first error.
    pub fn finish(&self, results: &[Tensor]) -> Result<Arc<Graph>> {
        self.finish_region(results, &[])
    }

    /// Returns the finished region. Its first parameters are `captures`, whether used or not.
    pub fn finish_region(&self, results: &[Tensor], captures: &[Tensor]) -> Result<Arc<Graph>> {
        let results: Vec<Tensor> = results.iter().map(|t| self.capture(t)).collect();
        let inner: Vec<Tensor> = captures.iter().map(|t| self.capture(t)).collect();
        if let Some(e) = self.error().or_else(|| error_of(&results)) {
            return Err(e);
        }
        let state = self.0.state.borrow();
        if self.captured(&results).iter().any(|t| captures.iter().all(|c| !c.same_as(t))) {
            return Err(err!(Graph, "the body `{}` uses outer values", state.name)
                .because("only while and case bodies may capture values of the enclosing graph")
                .hint("pass the value as an operand of the op"));
        }
        let params: Vec<ValueId> = inner.iter().map(|t| t.id).chain(state.params.iter().copied()).collect();
        let names = (0..inner.len()).map(|i| format!("capture{i}")).chain(state.param_names.clone());
        let results: Vec<ValueId> = results.iter().map(|t| t.id).collect();
        Ok(Arc::new(Graph {
            name: state.name.clone(),
            param_names: names.collect(),
            scopes: state.scopes.clone(),
            ..in_order(&state.nodes, &params, &results)
        }))
    }

    /// Returns the indices of the nodes that compute `results` from the values `given`.
    pub fn nodes_between(&self, given: &[Tensor], results: &[Tensor]) -> BTreeSet<usize> {
        let state = self.0.state.borrow();
        let given: HashSet<ValueId> = given.iter().map(|t| t.id).collect();
        let mut found = BTreeSet::new();
        let mut open: Vec<ValueId> = results.iter().filter(|t| !t.is_poisoned()).map(|t| t.id).collect();
        while let Some(id) = open.pop() {
            if !given.contains(&id) && found.insert(id.index()) {
                open.extend(state.nodes[id.index()].inputs.iter().copied());
            }
        }
        found
    }

    /// Returns the part of the graph that computes `results` from the values `given`, as a graph whose parameters are those of
    /// them that it reads, and their indices.
    ///
    /// # Errors
    /// The first error of the graph; if a result depends on a parameter that is not given.
    ///
    /// ```
    /// use systole_ir::{interp, DType::F32, GraphBuilder, Literal, TensorType};
    /// let g = GraphBuilder::new("main");
    /// let x = g.parameter(TensorType::scalar(F32), "x");
    /// let y = x.exp() + 1.0;
    /// let (part, read) = g.part("part", &[x, y.clone()], &[&y * 2.0])?;
    /// assert_eq!(read, [1]);
    /// assert_eq!(interp::run(&part, &[&Literal::scalar(F32, 3.0)])?[0].to_f32s(), [6.0]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    pub fn part(&self, name: &str, given: &[Tensor], results: &[Tensor]) -> Result<(Graph, Vec<usize>)> {
        if let Some(e) = self.error().or_else(|| error_of(results)) {
            return Err(e);
        }
        let between = self.nodes_between(given, results);
        let state = self.0.state.borrow();
        let mut read: HashSet<ValueId> = results.iter().map(|t| t.id).collect();
        between.iter().for_each(|&i| read.extend(state.nodes[i].inputs.iter().copied()));
        let used: Vec<usize> = (0..given.len()).filter(|&i| read.contains(&given[i].id)).collect();
        let mut nodes: Vec<Node> = Vec::with_capacity(used.len() + between.len());
        let mut renumbered: HashMap<ValueId, ValueId> = HashMap::new();
        for (index, &k) in used.iter().enumerate() {
            let Tensor { id, ty, .. } = &given[k];
            let Node { loc, scope, .. } = state.nodes[id.index()];
            let op = Parameter { index, ty: ty.clone() }.into();
            renumbered.insert(*id, ValueId::new(index, 0));
            nodes.push(Node {
                op,
                inputs: SmallVec::new(),
                outs: [ty.clone()].into_iter().collect(),
                loc,
                scope,
            });
        }
        let renumber = |v: &ValueId, renumbered: &HashMap<ValueId, ValueId>| {
            let missing = || err!(Graph, "the part `{name}` depends on a value that is not given");
            renumbered.get(v).copied().ok_or_else(missing)
        };
        for i in between.into_iter().filter(|&i| !matches!(state.nodes[i].op, Op::Parameter(_))) {
            let mut node = state.nodes[i].clone();
            for v in &mut node.inputs {
                *v = renumber(v, &renumbered)?;
            }
            for k in 0..node.outs.len() {
                renumbered.entry(ValueId::new(i, k)).or_insert(ValueId::new(nodes.len(), k));
            }
            nodes.push(node);
        }
        let graph = Graph {
            name: name.into(),
            nodes,
            params: (0..used.len()).map(|index| ValueId::new(index, 0)).collect(),
            param_names: vec![String::new(); used.len()],
            results: results.iter().map(|t| renumber(&t.id, &renumbered)).collect::<Result<_>>()?,
            scopes: state.scopes.clone(),
        };
        Ok((graph, used))
    }

    /// Appends a copy of `graph` with `args` as its parameters; returns its results.
    #[track_caller]
    pub fn inline(&self, graph: &Graph, args: &[&Tensor]) -> Vec<Tensor> {
        let values = self.inline_all(graph, args);
        graph.results.iter().map(|r| values[r.index()][r.out as usize].clone()).collect()
    }

    /// Like [`GraphBuilder::inline`], but returns the values of all nodes.
    #[track_caller]
    pub(crate) fn inline_all(&self, graph: &Graph, args: &[&Tensor]) -> Vec<Vec<Tensor>> {
        let mut values: Vec<Vec<Tensor>> = Vec::with_capacity(graph.nodes.len());
        let mut bound: Vec<Option<&Tensor>> = vec![None; graph.nodes.len()];
        for (p, arg) in graph.params.iter().zip(args) {
            bound[p.index()] = Some(arg);
        }
        for (i, node) in graph.nodes.iter().enumerate() {
            let outs = match (&node.op, bound[i]) {
                (_, Some(arg)) => vec![self.capture(arg)],
                (Op::Parameter(_), None) => {
                    let what = format!(
                        "`{}` takes {} arguments, got {}",
                        graph.name,
                        graph.params.len(),
                        args.len()
                    );
                    self.record(Error::new(ErrorKind::Graph, what));
                    self.poison(1, &[])
                }
                (op, _) => {
                    let inputs: Vec<&Tensor> =
                        node.inputs.iter().map(|v| &values[v.index()][v.out as usize]).collect();
                    self.emit(op.clone(), &inputs)
                }
            };
            values.push(outs);
        }
        values
    }

    /// Appends copies of the nodes of `graph` that compute `results`, given replacements for the values in `known`.
    #[track_caller]
    pub fn inline_given(
        &self,
        graph: &Graph,
        known: HashMap<ValueId, Tensor>,
        results: &[ValueId],
    ) -> Vec<Tensor> {
        let mut needed = vec![false; graph.nodes.len()];
        let mark = |needed: &mut [bool], v: &ValueId| needed[v.index()] |= !known.contains_key(v);
        results.iter().for_each(|r| mark(&mut needed, r));
        for (i, node) in graph.nodes.iter().enumerate().rev() {
            if needed[i] {
                node.inputs.iter().for_each(|v| mark(&mut needed, v));
            }
        }
        let mut values = known.clone();
        for (i, node) in graph.nodes.iter().enumerate().filter(|(i, _)| needed[*i]) {
            let inputs: Vec<&Tensor> = node.inputs.iter().map(|v| &values[v]).collect();
            for (k, out) in self.emit(node.op.clone(), &inputs).into_iter().enumerate() {
                values.entry(ValueId::new(i, k)).or_insert(out);
            }
        }
        results.iter().map(|r| values[r].clone()).collect()
    }

    /// Number of nodes.
    pub(crate) fn node_count(&self) -> usize {
        self.0.state.borrow().nodes.len()
    }

    /// Runs `f` on node `i`. Autodiff uses it to read nodes while it appends others.
    pub(crate) fn with_node<R>(&self, i: usize, f: impl FnOnce(&Node) -> R) -> R {
        f(&self.0.state.borrow().nodes[i])
    }

    /// Replaces the op of node `i` by one with the `extra` operands and additional results appended. The extra operands
    /// may be created after node `i`: [`GraphBuilder::finish`] sorts the nodes.
    pub(crate) fn augment_node(&self, i: usize, op: Op, extra: &[Tensor], outs: ResultTypes) {
        if extra.iter().any(|t| !Rc::ptr_eq(&t.builder.0, &self.0)) {
            self.fail(
                err!(Graph, "cannot differentiate `{}` in this body", op.name())
                    .because("the op is outside of the body that requests the derivative")
                    .hint("take the gradient outside of the loop or branch"),
            );
            return;
        }
        let mut state = self.0.state.borrow_mut();
        state.nodes[i].op = op;
        state.nodes[i].inputs.extend(extra.iter().map(|t| t.id));
        state.nodes[i].outs = outs;
    }

    /// Whether a value is a constant zero or a broadcast of one.
    pub(crate) fn is_zeros(&self, v: ValueId) -> bool {
        self.with_node(v.index(), |n| match &n.op {
            Op::Constant(c) => c.value.bytes().iter().all(|&b| b == 0),
            Op::BroadcastInDim(_) => self.is_zeros(n.inputs[0]),
            _ => false,
        })
    }

    /// Address that identifies this graph among those under construction.
    pub(crate) fn address(&self) -> usize {
        Rc::as_ptr(&self.0) as usize
    }

    /// The outer value that a parameter of this region captures.
    pub(crate) fn captured_as(&self, id: ValueId) -> Option<Tensor> {
        self.0.state.borrow().captures.iter().find(|(_, inner)| *inner == id).map(|c| c.0.clone())
    }

    /// Returns a result of one of this builder's nodes as a tensor.
    pub(crate) fn value(&self, id: ValueId) -> Tensor {
        let ty = self.0.state.borrow().nodes[id.index()].outs[id.out as usize].clone();
        Tensor { builder: self.clone(), id, ty }
    }

    /// Runs `f` with the layer path of node `i` for new nodes, marked with `mark`: 0 or [`DERIVATIVE`].
    pub(crate) fn in_scope_of<R>(&self, i: usize, mark: u32, f: impl FnOnce() -> R) -> R {
        let scope = self.with_node(i, |n| n.scope) | mark;
        self.0.state.borrow_mut().scope.push(scope);
        let result = f();
        self.0.state.borrow_mut().scope.pop();
        result
    }
}

/// Finds the error behind a poisoned result; it may be in another graph if tensors of two graphs were mixed.
fn error_of(results: &[Tensor]) -> Option<Error> {
    let poisoned = results.iter().find(|t| t.is_poisoned())?;
    let unknown = || err!(Graph, "a result is invalid because of an error in another graph");
    Some(poisoned.builder.error().unwrap_or_else(unknown))
}

/// Rejects results whose size overflows; operands without elements can have such results.
fn representable(outs: ResultTypes) -> Result<ResultTypes, SpecConstraint> {
    let fits = outs.iter().all(|ty| ty.shape.checked_elements().is_some());
    if fits { Ok(outs) } else { Err(SpecConstraint::new("-", "the size of a result overflows")) }
}

/// Sorts `nodes` topologically into a graph: parameters first, otherwise in creation order. Drops captures that nothing uses.
fn in_order(nodes: &[Node], params: &[ValueId], results: &[ValueId]) -> Graph {
    let mut order: Vec<usize> = params.iter().map(|p| p.index()).collect();
    let mut placed = vec![false; nodes.len()];
    order.iter().for_each(|&i| placed[i] = true);
    nodes.iter().zip(&mut placed).for_each(|(n, placed)| *placed |= matches!(n.op, Op::Parameter(_)));
    for i in 0..nodes.len() {
        place(i, nodes, &mut placed, &mut order);
    }
    let mut new_index = vec![0; nodes.len()];
    order.iter().enumerate().for_each(|(new, &old)| new_index[old] = new);
    let renumber = |v: &ValueId| ValueId::new(new_index[v.index()], v.out as usize);
    let mut graph = Graph {
        nodes: order.iter().map(|&i| nodes[i].clone()).collect(),
        params: params.iter().map(renumber).collect(),
        results: results.iter().map(renumber).collect(),
        ..Graph::default()
    };
    for node in &mut graph.nodes {
        node.inputs.iter_mut().for_each(|v| *v = renumber(v));
    }
    for (index, p) in graph.params.iter().enumerate() {
        if let Op::Parameter(param) = &mut graph.nodes[p.index()].op {
            param.index = index;
        }
    }
    graph
}

/// Appends the operands of node `i`, then node `i`. The recursion is shallow: only operands added by autodiff come
/// after their user, and those are constants.
fn place(i: usize, nodes: &[Node], placed: &mut [bool], order: &mut Vec<usize>) {
    if placed[i] {
        return;
    }
    placed[i] = true;
    for v in &nodes[i].inputs {
        place(v.index(), nodes, placed, order);
    }
    order.push(i);
}

/// Accessors of a tensor's type.
impl Tensor {
    /// Element type and shape of the tensor.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Element type of the tensor.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// Shape of the tensor.
    pub fn shape(&self) -> &Shape {
        &self.ty.shape
    }

    /// Number of dimensions of the tensor.
    pub fn rank(&self) -> usize {
        self.ty.rank()
    }

    /// Size of dimension `d`; negative counts from the last. 1 if there is no such dimension.
    pub fn dim(&self, d: isize) -> usize {
        let d = if d < 0 { d + self.rank() as isize } else { d };
        usize::try_from(d).ok().and_then(|d| self.ty.shape.get(d).copied()).unwrap_or(1)
    }

    /// The graph that the tensor belongs to.
    pub fn builder(&self) -> &GraphBuilder {
        &self.builder
    }

    /// Returns the id of the tensor's value in its graph.
    pub fn id(&self) -> ValueId {
        self.id
    }

    /// Whether this is the same value of the same graph.
    pub(crate) fn same_as(&self, other: &Tensor) -> bool {
        Rc::ptr_eq(&self.builder.0, &other.builder.0) && self.id == other.id
    }

    /// Whether the tensor is invalid because of an earlier error.
    pub fn is_poisoned(&self) -> bool {
        self.id.node == POISON
    }

    /// Records an error at the caller's line and returns a poisoned tensor.
    #[track_caller]
    pub fn fail(&self, error: Error) -> Tensor {
        self.builder.fail(error);
        self.builder.poison(1, std::slice::from_ref(self)).remove(0)
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_poisoned() {
            return write!(f, "poisoned {}", self.ty);
        }
        write!(f, "%{}:{} {}", self.id.node, self.id.out, self.ty)
    }
}

#[cfg(test)]
#[path = "../../tests/unit/builder.rs"]
mod tests;
