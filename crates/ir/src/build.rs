//! Building graphs: [`GraphBuilder`] and the methods of [`Tensor`], one for each op.
//!
//! Nothing here returns `Result` and nothing panics: the first error poisons the builder, every tensor made
//! from a poisoned one is poisoned, and the error surfaces once, from [`GraphBuilder::finish`], with the op, the
//! violated constraint, the types, the layer's path and the user's file and line.
//!
//! Operators (`+ - * /`) and the two-operand methods broadcast as NumPy does; the ops themselves never do.

use crate::graph::{Graph, Loc, Node, ValueId};
use crate::op::*;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::{self, Range};
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;
use systole_base::{DType, Error, ErrorKind, Literal, Result, Shape, TensorType};

/// A graph under construction. Clones share it. Not `Send`: finish it to get an `Arc<Graph>` that is.
#[derive(Clone)]
pub struct GraphBuilder(Rc<Inner>);

struct Inner {
    state: RefCell<State>,
    /// 0 for a whole program, one more inside each region.
    depth: usize,
    /// The region that is being traced inside this graph: new nodes go there.
    region: RefCell<Option<GraphBuilder>>,
}

#[derive(Default)]
struct State {
    name: String,
    nodes: Vec<Node>,
    params: Vec<ValueId>,
    param_names: Vec<String>,
    scopes: Vec<String>,
    scope: Vec<u32>,
    /// Values of enclosing graphs that this region uses, and the parameters that stand for them.
    captures: Vec<(Tensor, Tensor)>,
    /// Runs of nodes that derivatives compute again.
    rematerialized: Vec<Range<usize>>,
    first_error: Option<Error>,
}

/// A value in a graph that is being built. Cheap to clone.
#[derive(Clone)]
pub struct Tensor {
    builder: GraphBuilder,
    id: ValueId,
    ty: TensorType,
}

const POISON: u32 = u32::MAX;

impl GraphBuilder {
    /// Starts an empty graph.
    pub fn new(name: &str) -> GraphBuilder {
        GraphBuilder::at_depth(name, 0)
    }

    /// Starts a region inside this graph: it may use this graph's tensors, which become captures.
    pub fn child(&self, name: &str) -> GraphBuilder {
        GraphBuilder::at_depth(name, self.active().0.depth + 1)
    }

    /// Runs `f`, during which every new node goes to `region`, also where only tensors of this graph are used.
    pub(crate) fn in_region<R>(&self, region: &GraphBuilder, f: impl FnOnce() -> R) -> R {
        let outer = self.active();
        *outer.0.region.borrow_mut() = Some(region.clone());
        let result = f();
        *outer.0.region.borrow_mut() = None;
        result
    }

    /// The builder that new nodes go to: this one, or the innermost region that is being traced.
    pub(crate) fn active(&self) -> GraphBuilder {
        match &*self.0.region.borrow() {
            Some(region) => region.active(),
            None => self.clone(),
        }
    }

    /// The builder that an op over `tensors` goes to; `None` when there are none.
    pub(crate) fn of(tensors: &[&Tensor]) -> Option<GraphBuilder> {
        tensors.iter().max_by_key(|t| t.builder.0.depth).map(|t| t.builder.active())
    }

    fn at_depth(name: &str, depth: usize) -> GraphBuilder {
        let state =
            State { name: name.into(), scopes: vec![String::new()], scope: vec![0], ..State::default() };
        GraphBuilder(Rc::new(Inner { state: RefCell::new(state), depth, region: RefCell::default() }))
    }

    /// Adds a parameter.
    #[track_caller]
    pub fn parameter(&self, ty: TensorType, name: &str) -> Tensor {
        let index = self.0.state.borrow().params.len();
        let t = self.emit_here(Parameter { index, ty }.into(), &[]).remove(0);
        let mut state = self.0.state.borrow_mut();
        state.params.push(t.id);
        state.param_names.push(name.into());
        t
    }

    /// Adds a constant array.
    #[track_caller]
    pub fn constant(&self, value: Literal) -> Tensor {
        self.emit(Constant { value }, &[]).remove(0)
    }

    /// Adds a rank-0 constant, converted to `dtype`.
    #[track_caller]
    pub fn scalar(&self, dtype: DType, value: f64) -> Tensor {
        self.constant(Literal::scalar(dtype, value))
    }

    /// `→ T[shape]` filled with one value.
    #[track_caller]
    pub fn full(&self, ty: &TensorType, value: f64) -> Tensor {
        self.scalar(ty.dtype, value).broadcast_to(&ty.shape)
    }

    /// `→ T[…]`: coordinates along `dim`.
    #[track_caller]
    pub fn iota(&self, ty: TensorType, dim: usize) -> Tensor {
        self.emit(Iota { dim, ty }, &[]).remove(0)
    }

    /// Appends a node and returns its results. The general form behind every method of [`Tensor`].
    #[track_caller]
    pub fn emit(&self, op: impl Into<Op>, inputs: &[&Tensor]) -> Vec<Tensor> {
        self.active().emit_here(op.into(), inputs)
    }

    #[track_caller]
    fn emit_here(&self, op: Op, inputs: &[&Tensor]) -> Vec<Tensor> {
        let loc = Location::caller();
        let count = op.result_count(inputs.len());
        let inputs: Vec<Tensor> = inputs.iter().map(|t| self.bring_in(t)).collect();
        if inputs.iter().any(|t| t.id.node == POISON) {
            return self.poison(count, &inputs);
        }
        let types: SmallVec<[&TensorType; 4]> = inputs.iter().map(|t| &t.ty).collect();
        match op.rule().infer(&types) {
            Ok(outs) => self.push(op, inputs.iter().map(|t| t.id).collect(), outs, loc),
            Err(constraint) => {
                let shown: Vec<String> = types.iter().map(|t| t.to_string()).collect();
                let label =
                    if constraint.label == "-" { String::new() } else { format!(" ({})", constraint.label) };
                self.fail(
                    Error::new(ErrorKind::Graph, format!("{}{label}: {}", op.name(), constraint.message))
                        .because(format!("operands: {}", shown.join(", ")))
                        .at(format!("{}:{}", loc.file(), loc.line())),
                );
                self.poison(count, &inputs)
            }
        }
    }

    fn push(
        &self,
        op: Op,
        inputs: SmallVec<[ValueId; 2]>,
        outs: Outs,
        loc: &'static Location<'static>,
    ) -> Vec<Tensor> {
        let mut state = self.0.state.borrow_mut();
        let node = state.nodes.len();
        let scope = state.scope.last().copied().unwrap_or(0);
        let loc = Some(Loc { file: loc.file(), line: loc.line() });
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

    /// `count` tensors without meaning, after an error.
    pub(crate) fn poisoned(&self, count: usize, like: &[&Tensor]) -> Vec<Tensor> {
        self.poison(count, &like.iter().map(|&t| t.clone()).collect::<Vec<_>>())
    }

    /// A tensor of this or an enclosing graph as a tensor of this graph.
    pub(crate) fn capture(&self, t: &Tensor) -> Tensor {
        self.bring_in(t)
    }

    /// Makes a tensor of an enclosing graph usable here, as a captured parameter.
    fn bring_in(&self, t: &Tensor) -> Tensor {
        if Rc::ptr_eq(&t.builder.0, &self.0) || t.id.node == POISON {
            return t.clone();
        }
        if t.builder.0.depth >= self.0.depth {
            self.fail(
                Error::new(ErrorKind::Graph, "a tensor of another graph is used here")
                    .because("every tensor belongs to the graph it was made in")
                    .hint("pass it as an argument of the traced function"),
            );
            return self.poison(1, std::slice::from_ref(t)).remove(0);
        }
        let known = |(outer, inner): &(Tensor, Tensor)| outer.same_as(t).then(|| inner.clone());
        let found = self.0.state.borrow().captures.iter().find_map(known);
        found.unwrap_or_else(|| {
            let inner = self.push(
                Parameter { index: 0, ty: t.ty.clone() }.into(),
                SmallVec::new(),
                SmallVec::from_elem(t.ty.clone(), 1),
                Location::caller(),
            );
            let inner = inner[0].clone();
            self.0.state.borrow_mut().captures.push((t.clone(), inner.clone()));
            inner
        })
    }

    /// The outer tensors that this region's nodes and `results` use, in order of first use.
    pub fn captured(&self, results: &[Tensor]) -> Vec<Tensor> {
        let results: Vec<ValueId> = results.iter().map(|t| self.bring_in(t).id).collect();
        let state = self.0.state.borrow();
        let mut used: Vec<&(Tensor, Tensor)> = Vec::new();
        for &id in state.nodes.iter().flat_map(|n| &n.inputs).chain(&results) {
            if used.iter().all(|(_, inner)| inner.id != id) {
                used.extend(state.captures.iter().find(|(_, inner)| inner.id == id));
            }
        }
        used.into_iter().map(|(outer, _)| outer.clone()).collect()
    }

    /// Records an error; the first one is kept and surfaces from [`GraphBuilder::finish`].
    pub fn fail(&self, error: Error) {
        let mut state = self.0.state.borrow_mut();
        let scope = state.scope.last().copied().unwrap_or(0) as usize;
        let path = state.scopes[scope].clone();
        let error = if path.is_empty() { error } else { error.at(format!("layer {path}")) };
        state.first_error.get_or_insert(error);
    }

    /// The first error so far.
    pub fn error(&self) -> Option<Error> {
        self.0.state.borrow().first_error.clone()
    }

    /// Runs `f` with `name` appended to the layer path that new nodes carry.
    pub fn scope<R>(&self, name: &str, f: impl FnOnce() -> R) -> R {
        {
            let mut state = self.0.state.borrow_mut();
            let current = state.scope.last().copied().unwrap_or(0) as usize;
            let path = match state.scopes[current].as_str() {
                "" => name.to_string(),
                outer => format!("{outer}/{name}"),
            };
            let id = state.scopes.iter().position(|s| *s == path).unwrap_or_else(|| {
                state.scopes.push(path);
                state.scopes.len() - 1
            });
            state.scope.push(id as u32);
        }
        let result = f();
        self.0.state.borrow_mut().scope.pop();
        result
    }

    /// Runs `f`, whose nodes a derivative computes again from their inputs instead of keeping their values: less memory
    /// for more time. Values and derivatives are the same.
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
        // What lies inside is computed again with the whole.
        state.rematerialized.retain(|inner| inner.start < run.start);
        state.rematerialized.push(run);
        result
    }

    /// The run of nodes with `node` in it that derivatives compute again.
    pub(crate) fn rematerialized_around(&self, node: usize) -> Option<Range<usize>> {
        self.0.state.borrow().rematerialized.iter().find(|run| run.contains(&node)).cloned()
    }

    /// The finished graph, or the first error made while building it.
    pub fn finish(&self, results: &[Tensor]) -> Result<Arc<Graph>> {
        self.finish_region(results, &[])
    }

    /// A finished region whose first parameters stand for `captures`, used by it or not.
    pub fn finish_region(&self, results: &[Tensor], captures: &[Tensor]) -> Result<Arc<Graph>> {
        let results: Vec<Tensor> = results.iter().map(|t| self.bring_in(t)).collect();
        let inner: Vec<Tensor> = captures.iter().map(|t| self.bring_in(t)).collect();
        let state = self.0.state.borrow();
        if let Some(e) = &state.first_error {
            return Err(e.clone());
        }
        if self.captured(&results).iter().any(|t| captures.iter().all(|c| !c.same_as(t))) {
            return Err(Error::new(ErrorKind::Graph, format!("the body `{}` uses outer values", state.name))
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

    /// Appends a copy of `graph` with `args` as its parameters and returns its results.
    #[track_caller]
    pub fn inline(&self, graph: &Graph, args: &[&Tensor]) -> Vec<Tensor> {
        let values = self.inline_all(graph, args);
        graph.results.iter().map(|r| values[r.index()][r.out as usize].clone()).collect()
    }

    /// As [`GraphBuilder::inline`]; returns the values of all nodes.
    #[track_caller]
    pub(crate) fn inline_all(&self, graph: &Graph, args: &[&Tensor]) -> Vec<Vec<Tensor>> {
        let mut values: Vec<Vec<Tensor>> = Vec::with_capacity(graph.nodes.len());
        let mut bound: Vec<Option<&Tensor>> = vec![None; graph.nodes.len()];
        for (p, arg) in graph.params.iter().zip(args) {
            bound[p.index()] = Some(arg);
        }
        for (i, node) in graph.nodes.iter().enumerate() {
            let outs = match (&node.op, bound[i]) {
                (_, Some(arg)) => vec![self.bring_in(arg)],
                (Op::Parameter(_), None) => {
                    let what = format!(
                        "`{}` takes {} arguments, got {}",
                        graph.name,
                        graph.params.len(),
                        args.len()
                    );
                    self.fail(Error::new(ErrorKind::Graph, what));
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

    /// Appends what `results` of `graph` need besides the values of it that are `known`: parameters and others.
    #[track_caller]
    pub(crate) fn inline_given(
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

    /// How many nodes there are.
    pub(crate) fn node_count(&self) -> usize {
        self.0.state.borrow().nodes.len()
    }

    /// Runs `f` on node `i`; for autodiff, which reads nodes while it appends others.
    pub(crate) fn with_node<R>(&self, i: usize, f: impl FnOnce(&Node) -> R) -> R {
        f(&self.0.state.borrow().nodes[i])
    }

    /// Replaces the op of node `i` by one with `extra` operands after the old ones and more results likewise.
    /// The extra operands may be made later than node `i`: [`GraphBuilder::finish`] puts nodes in order.
    pub(crate) fn augment_node(&self, i: usize, op: Op, extra: &[Tensor], outs: Outs) {
        if extra.iter().any(|t| !Rc::ptr_eq(&t.builder.0, &self.0)) {
            self.fail(
                Error::new(ErrorKind::Graph, format!("{} cannot be differentiated from here", op.name()))
                    .because("it lies outside of the body that asks for the derivative")
                    .hint("take the gradient outside of the loop or branch"),
            );
            return;
        }
        let mut state = self.0.state.borrow_mut();
        state.nodes[i].op = op;
        state.nodes[i].inputs.extend(extra.iter().map(|t| t.id));
        state.nodes[i].outs = outs;
    }

    /// Whether a value is zeros by its making: a constant 0, broadcast or not.
    pub(crate) fn is_zeros(&self, v: ValueId) -> bool {
        self.with_node(v.index(), |n| match &n.op {
            Op::Constant(c) => c.value.bytes().iter().all(|&b| b == 0),
            Op::BroadcastInDim(_) => self.is_zeros(n.inputs[0]),
            _ => false,
        })
    }

    /// The tensor that stands for a result of one of this builder's nodes.
    pub(crate) fn value(&self, id: ValueId) -> Tensor {
        let ty = self.0.state.borrow().nodes[id.index()].outs[id.out as usize].clone();
        Tensor { builder: self.clone(), id, ty }
    }

    /// The enclosed layer path of node `i`, to give derivative nodes the scope of what they derive.
    pub(crate) fn in_scope_of<R>(&self, i: usize, f: impl FnOnce() -> R) -> R {
        let scope = self.0.state.borrow().nodes[i].scope;
        self.0.state.borrow_mut().scope.push(scope);
        let result = f();
        self.0.state.borrow_mut().scope.pop();
        result
    }
}

/// A graph of `nodes` with the parameters first and every other node after those it uses, else in the given order.
/// Captures that nothing uses are no parameters and disappear.
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

/// Places what node `i` uses, then node `i`. Recursion ends early: only operands that autodiff added come later
/// than their user, and those are constants.
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

/// The builder that an op over `tensors` goes to.
fn innermost(tensors: &[&Tensor]) -> GraphBuilder {
    match GraphBuilder::of(tensors) {
        Some(g) => g,
        None => systole_base::bug!("an op over tensors needs at least one"),
    }
}

#[track_caller]
fn emit(op: impl Into<Op>, inputs: &[&Tensor]) -> Vec<Tensor> {
    innermost(inputs).emit(op, inputs)
}

#[track_caller]
fn emit1(op: impl Into<Op>, inputs: &[&Tensor]) -> Tensor {
    emit(op, inputs).remove(0)
}

/// Reading a tensor's type.
impl Tensor {
    /// Element type and shape.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// Shape.
    pub fn shape(&self) -> &Shape {
        &self.ty.shape
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.ty.rank()
    }

    /// Size of dimension `d`; negative counts from the last. 1 when there is no such dimension.
    pub fn dim(&self, d: isize) -> usize {
        let d = if d < 0 { d + self.rank() as isize } else { d };
        usize::try_from(d).ok().and_then(|d| self.ty.shape.get(d).copied()).unwrap_or(1)
    }

    /// The graph it belongs to.
    pub fn builder(&self) -> &GraphBuilder {
        &self.builder
    }

    /// Its place in the graph.
    pub fn id(&self) -> ValueId {
        self.id
    }

    /// Whether this is the same value of the same graph.
    pub(crate) fn same_as(&self, other: &Tensor) -> bool {
        Rc::ptr_eq(&self.builder.0, &other.builder.0) && self.id == other.id
    }

    /// True when an earlier error made it meaningless.
    pub fn is_poisoned(&self) -> bool {
        self.id.node == POISON
    }

    /// Records an error in the graph and returns a poisoned tensor.
    pub fn fail(&self, error: Error) -> Tensor {
        self.builder.fail(error);
        self.builder.poison(1, std::slice::from_ref(self)).remove(0)
    }
}

macro_rules! unary_methods {
    ($($(#[$doc:meta])* $method:ident => $op:ident),* $(,)?) => {
        /// Element-wise, one operand: `x: T[…] → T[…]`.
        impl Tensor {
            $($(#[$doc])* #[track_caller] pub fn $method(&self) -> Tensor {
                emit1(Unary::$op, &[self])
            })*
        }
    };
}

unary_methods!(
    /// |x|.
    abs => Abs,
    /// Cube root.
    cbrt => Cbrt,
    /// Rounds up.
    ceil => Ceil,
    /// Leading zero bits of an integer.
    count_leading_zeros => CountLeadingZeros,
    /// cos x, radians.
    cosine => Cosine,
    /// The error function.
    erf => Erf,
    /// eˣ.
    exp => Exponential,
    /// eˣ − 1, accurate near 0.
    expm1 => ExponentialMinusOne,
    /// Rounds down.
    floor => Floor,
    /// Neither infinite nor NaN, as bool.
    is_finite => IsFinite,
    /// ln x.
    log => Log,
    /// ln(1 + x), accurate near 0.
    log1p => LogPlusOne,
    /// 1 / (1 + e⁻ˣ).
    logistic => Logistic,
    /// −x.
    negate => Negate,
    /// Complement of bits or of bool.
    not => Not,
    /// Number of set bits.
    popcnt => Popcnt,
    /// Rounds to nearest, halves away from zero.
    round_nearest_afz => RoundNearestAfz,
    /// Rounds to nearest, halves to even.
    round_nearest_even => RoundNearestEven,
    /// 1/√x.
    rsqrt => Rsqrt,
    /// −1, 0 or 1.
    sign => Sign,
    /// sin x, radians.
    sine => Sine,
    /// √x.
    sqrt => Sqrt,
    /// tan x, radians.
    tan => Tan,
    /// tanh x.
    tanh => Tanh,
);

macro_rules! binary_methods {
    ($($(#[$doc:meta])* $method:ident => $op:ident),* $(,)?) => {
        /// Element-wise, two operands, broadcast as NumPy does: `a: T[…], b: T[…] → T[…]`.
        impl Tensor {
            $($(#[$doc])* #[track_caller] pub fn $method(&self, other: &Tensor) -> Tensor {
                let (a, b) = self.broadcast_with(other);
                emit1(Binary::$op, &[&a, &b])
            })*
        }
    };
}

binary_methods!(
    /// Bit-wise or logical and.
    and => And,
    /// Angle of the point (x: other, y: self).
    atan2 => Atan2,
    /// The greater; NaN wins.
    maximum => Maximum,
    /// The lesser; NaN wins.
    minimum => Minimum,
    /// Bit-wise or logical or.
    or => Or,
    /// self^other.
    power => Power,
    /// Remainder with the sign of `self`.
    remainder => Remainder,
    /// Shifts bits up.
    shift_left => ShiftLeft,
    /// Shifts bits down, keeping the sign.
    shift_right_arithmetic => ShiftRightArithmetic,
    /// Shifts bits down, filling with zeros.
    shift_right_logical => ShiftRightLogical,
    /// Exclusive or.
    xor => Xor,
);

macro_rules! operators {
    ($($trait:ident, $method:ident, $op:ident);* $(;)?) => { $(
        impl ops::$trait<&Tensor> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                let (a, b) = self.broadcast_with(other);
                emit1(Binary::$op, &[&a, &b])
            }
        }
        impl ops::$trait<Tensor> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor { ops::$trait::$method(self, &other) }
        }
        impl ops::$trait<&Tensor> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor { ops::$trait::$method(&self, other) }
        }
        impl ops::$trait<Tensor> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor { ops::$trait::$method(&self, &other) }
        }
        impl ops::$trait<f64> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: f64) -> Tensor { ops::$trait::$method(self, &self.scalar_like(other)) }
        }
        impl ops::$trait<f64> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: f64) -> Tensor { ops::$trait::$method(&self, other) }
        }
        impl ops::$trait<&Tensor> for f64 {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor { ops::$trait::$method(&other.scalar_like(self), other) }
        }
        impl ops::$trait<Tensor> for f64 {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor { ops::$trait::$method(self, &other) }
        }
    )* };
}

operators!(Add, add, Add; Sub, sub, Subtract; Mul, mul, Multiply; Div, div, Divide);

impl ops::Neg for &Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        self.negate()
    }
}

impl ops::Neg for Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        self.negate()
    }
}

macro_rules! compare_methods {
    ($($(#[$doc:meta])* $method:ident => $direction:ident),* $(,)?) => {
        /// Comparisons, broadcast as NumPy does: `a: T[…], b: T[…] → bool[…]`.
        impl Tensor {
            $($(#[$doc])* #[track_caller] pub fn $method(&self, other: &Tensor) -> Tensor {
                self.compare(other, Direction::$direction)
            })*
        }
    };
}

compare_methods!(
    /// self == other.
    equal => Eq,
    /// self != other.
    not_equal => Ne,
    /// self >= other.
    greater_equal => Ge,
    /// self > other.
    greater => Gt,
    /// self <= other.
    less_equal => Le,
    /// self < other.
    less => Lt,
);

/// Constants like this tensor, choices and conversions.
impl Tensor {
    /// `→ T[]`: a constant of this element type.
    #[track_caller]
    pub fn scalar_like(&self, value: f64) -> Tensor {
        self.builder.scalar(self.dtype(), value)
    }

    /// `→ T[…]`: zeros of this type.
    #[track_caller]
    pub fn zeros_like(&self) -> Tensor {
        self.builder.full(&self.ty, 0.0)
    }

    /// `→ T[…]`: ones of this type.
    #[track_caller]
    pub fn ones_like(&self) -> Tensor {
        self.builder.full(&self.ty, 1.0)
    }

    /// `→ bool[…]`: the relation between elements, broadcast as NumPy does.
    #[track_caller]
    pub fn compare(&self, other: &Tensor, direction: Direction) -> Tensor {
        let (a, b) = self.broadcast_with(other);
        emit1(Compare { direction, compare_type: CompareType::of(a.dtype()) }, &[&a, &b])
    }

    /// `self: bool[…] → T[…]`: `on_true` where true, else `on_false`; all broadcast as NumPy does.
    #[track_caller]
    pub fn select(&self, on_true: &Tensor, on_false: &Tensor) -> Tensor {
        let (t, f) = on_true.broadcast_with(on_false);
        if self.rank() == 0 || self.shape() == t.shape() {
            return emit1(Select, &[self, &t, &f]);
        }
        let Some(shape) = broadcast_shape(self.shape(), t.shape()) else {
            return emit1(Select, &[self, &t, &f]);
        };
        emit1(Select, &[&self.broadcast_to(&shape), &t.broadcast_to(&shape), &f.broadcast_to(&shape)])
    }

    /// `min(max(x, low), high)`; bounds are scalars or of this shape.
    #[track_caller]
    pub fn clamp(&self, low: &Tensor, high: &Tensor) -> Tensor {
        emit1(Clamp, &[low, self, high])
    }

    /// `x: T[…] → U[…]`; no node when the type is already right.
    #[track_caller]
    pub fn convert(&self, to: DType) -> Tensor {
        if self.dtype() == to { self.clone() } else { emit1(Convert { to }, &[self]) }
    }

    /// The same bits as another type.
    #[track_caller]
    pub fn bitcast_convert(&self, to: DType) -> Tensor {
        emit1(BitcastConvert { to }, &[self])
    }

    /// Rounds to fewer exponent and mantissa bits.
    #[track_caller]
    pub fn reduce_precision(&self, exponent_bits: u32, mantissa_bits: u32) -> Tensor {
        emit1(ReducePrecision { exponent_bits, mantissa_bits }, &[self])
    }

    /// The same value, through which no gradient flows.
    #[track_caller]
    pub fn stop_gradient(&self) -> Tensor {
        emit1(OptimizationBarrier { stop_gradient: true }, &[self])
    }
}

/// The NumPy broadcast of two shapes, or `None` where they do not fit.
pub(crate) fn broadcast_shape(a: &Shape, b: &Shape) -> Option<Shape> {
    let rank = a.rank().max(b.rank());
    let size = |s: &Shape, i: usize| (i + s.rank()).checked_sub(rank).map_or(1, |d| s[d]);
    (0..rank)
        .map(|i| match (size(a, i), size(b, i)) {
            (x, y) if x == y => Some(x),
            (1, y) => Some(y),
            (x, 1) => Some(x),
            _ => None,
        })
        .collect::<Option<Vec<usize>>>()
        .map(Shape::from)
}

/// Moving elements.
impl Tensor {
    /// Both tensors broadcast to their common NumPy shape (unchanged where there is none: the op then reports it).
    #[track_caller]
    pub fn broadcast_with(&self, other: &Tensor) -> (Tensor, Tensor) {
        match broadcast_shape(self.shape(), other.shape()) {
            Some(shape) => (self.broadcast_to(&shape), other.broadcast_to(&shape)),
            None => (self.clone(), other.clone()),
        }
    }

    /// `x: T[…] → T[shape]`, aligned at the last dimension as NumPy does.
    #[track_caller]
    pub fn broadcast_to(&self, shape: &Shape) -> Tensor {
        if self.shape() == shape {
            return self.clone();
        }
        let offset = shape.rank().saturating_sub(self.rank());
        let dims: Vec<usize> = (0..self.rank()).map(|d| d + offset).collect();
        self.broadcast_in_dim(shape, &dims)
    }

    /// `x: T[…] → T[shape]`: operand dimension `i` becomes result dimension `dims[i]`.
    #[track_caller]
    pub fn broadcast_in_dim(&self, shape: &Shape, dims: &[usize]) -> Tensor {
        emit1(BroadcastInDim { dims: dims.into(), shape: shape.clone() }, &[self])
    }

    /// Puts a reduced tensor back into the shape it was reduced from: repeats it along `reduced`.
    #[track_caller]
    pub fn broadcast_except(&self, shape: &Shape, reduced: &[usize]) -> Tensor {
        let kept: Vec<usize> = (0..shape.rank()).filter(|d| !reduced.contains(d)).collect();
        self.broadcast_in_dim(shape, &kept)
    }

    /// `x: T[…] → T[shape]`, same elements in row-major order.
    #[track_caller]
    pub fn reshape(&self, shape: impl Into<Shape>) -> Tensor {
        let shape = shape.into();
        if *self.shape() == shape { self.clone() } else { emit1(Reshape { shape }, &[self]) }
    }

    /// Result dimension `i` is operand dimension `permutation[i]`.
    #[track_caller]
    pub fn transpose(&self, permutation: &[usize]) -> Tensor {
        if permutation.iter().copied().eq(0..self.rank()) {
            return self.clone();
        }
        emit1(Transpose { permutation: permutation.into() }, &[self])
    }

    /// The named dimensions backwards.
    #[track_caller]
    pub fn reverse(&self, dims: &[usize]) -> Tensor {
        emit1(Reverse { dims: dims.into() }, &[self])
    }

    /// Elements `start, start + stride, …` below `limit`.
    #[track_caller]
    pub fn slice(&self, start: &[usize], limit: &[usize], strides: &[usize]) -> Tensor {
        emit1(Slice { start: start.into(), limit: limit.into(), strides: strides.into() }, &[self])
    }

    /// Elements `start..limit` of one dimension.
    #[track_caller]
    pub fn slice_dim(&self, dim: usize, start: usize, limit: usize) -> Tensor {
        let (mut starts, mut limits) = (vec![0; self.rank()], self.shape().to_vec());
        if dim < self.rank() {
            (starts[dim], limits[dim]) = (start, limit);
        }
        self.slice(&starts, &limits, &vec![1; self.rank()])
    }

    /// `value: T[]` around and between the elements.
    #[track_caller]
    pub fn pad(&self, value: &Tensor, low: &[i64], high: &[i64], interior: &[usize]) -> Tensor {
        emit1(Pad { low: low.into(), high: high.into(), interior: interior.into() }, &[self, value])
    }

    /// Joins tensors along `dim`. `parts` must not be empty.
    #[track_caller]
    pub fn concatenate(parts: &[&Tensor], dim: usize) -> Tensor {
        emit1(Concatenate { dim }, parts)
    }

    /// The block of `sizes` that begins at `start` (scalar integer tensors, clamped into range).
    #[track_caller]
    pub fn dynamic_slice(&self, start: &[&Tensor], sizes: &[usize]) -> Tensor {
        let inputs: Vec<&Tensor> = std::iter::once(self).chain(start.iter().copied()).collect();
        emit1(DynamicSlice { sizes: sizes.into() }, &inputs)
    }

    /// This tensor with `update` written at `start` (scalar integer tensors, clamped into range).
    #[track_caller]
    pub fn dynamic_update_slice(&self, update: &Tensor, start: &[&Tensor]) -> Tensor {
        let inputs: Vec<&Tensor> = [self, update].into_iter().chain(start.iter().copied()).collect();
        emit1(DynamicUpdateSlice, &inputs)
    }

    /// Slices of this tensor at positions named by `indices`. Spec: gather.
    #[track_caller]
    pub fn gather(&self, indices: &Tensor, spec: Gather) -> Tensor {
        emit1(spec, &[self, indices])
    }

    /// `self: T[N, …], indices: I[…] → T[indices…, …]`: rows by number, out of range clamped (embedding look-up).
    #[track_caller]
    pub fn take(&self, indices: &Tensor) -> Tensor {
        emit1(Gather::rows(self.ty(), indices.rank()), &[self, indices])
    }

    /// Folds `updates` into this tensor at positions named by `indices`. Spec: scatter.
    #[track_caller]
    pub fn scatter(&self, indices: &Tensor, updates: &Tensor, spec: Scatter) -> Tensor {
        emit1(spec, &[self, indices, updates])
    }
}

/// Folding dimensions.
impl Tensor {
    /// Sum over `dims`, which disappear.
    #[track_caller]
    pub fn sum(&self, dims: &[usize]) -> Tensor {
        Monoid::Add.over(self, dims)
    }

    /// Product over `dims`.
    #[track_caller]
    pub fn prod(&self, dims: &[usize]) -> Tensor {
        Monoid::Multiply.over(self, dims)
    }

    /// Greatest element over `dims`.
    #[track_caller]
    pub fn reduce_max(&self, dims: &[usize]) -> Tensor {
        Monoid::Maximum.over(self, dims)
    }

    /// Least element over `dims`.
    #[track_caller]
    pub fn reduce_min(&self, dims: &[usize]) -> Tensor {
        Monoid::Minimum.over(self, dims)
    }

    /// True where all are true (bool).
    #[track_caller]
    pub fn all(&self, dims: &[usize]) -> Tensor {
        Monoid::And.over(self, dims)
    }

    /// True where any is true (bool).
    #[track_caller]
    pub fn any(&self, dims: &[usize]) -> Tensor {
        Monoid::Or.over(self, dims)
    }

    /// Sum of all elements, `→ T[]`.
    #[track_caller]
    pub fn sum_all(&self) -> Tensor {
        if self.rank() == 0 { self.clone() } else { self.sum(&(0..self.rank()).collect::<Vec<_>>()) }
    }

    /// Any fold over several operands at once. `inits` are scalars. Spec: reduce.
    #[track_caller]
    pub fn reduce(xs: &[&Tensor], inits: &[&Tensor], dims: &[usize], body: Arc<Graph>) -> Vec<Tensor> {
        emit(Reduce { dims: dims.into(), body }, &[xs, inits].concat())
    }

    /// Any fold over sliding windows. Spec: reduce_window.
    #[track_caller]
    pub fn reduce_window(xs: &[&Tensor], inits: &[&Tensor], window: Window, body: Arc<Graph>) -> Vec<Tensor> {
        emit(ReduceWindow { window, body }, &[xs, inits].concat())
    }

    /// Sorts several tensors together along `dim`. Spec: sort.
    #[track_caller]
    pub fn sort_by(xs: &[&Tensor], dim: usize, stable: bool, comparator: Arc<Graph>) -> Vec<Tensor> {
        emit(Sort { dim, stable, comparator }, xs)
    }
}

/// Sums of products.
impl Tensor {
    /// The general product; batch dimensions come first in the result, then this one's free ones, then `other`'s.
    #[track_caller]
    pub fn dot_general(
        &self,
        other: &Tensor,
        lhs_batch: &[usize],
        rhs_batch: &[usize],
        lhs_contract: &[usize],
        rhs_contract: &[usize],
    ) -> Tensor {
        let op = DotGeneral {
            lhs_batch: lhs_batch.into(),
            rhs_batch: rhs_batch.into(),
            lhs_contract: lhs_contract.into(),
            rhs_contract: rhs_contract.into(),
            element_type: self.dtype(),
        };
        emit1(op, &[self, other])
    }

    /// `x: T[…, K], w: T[K, …] → T[…, …]`: the last dimension with the first.
    #[track_caller]
    pub fn dot(&self, other: &Tensor) -> Tensor {
        if self.rank() == 0 || other.rank() == 0 {
            return self * other;
        }
        self.dot_general(other, &[], &[], &[self.rank() - 1], &[0])
    }

    /// `a: T[B…, M, K], b: T[B…, K, N] → T[B…, M, N]` with equal leading dimensions.
    #[track_caller]
    pub fn matmul(&self, other: &Tensor) -> Tensor {
        let n = self.rank();
        if n < 2 || other.rank() != n {
            return self.dot(other);
        }
        let batch: Vec<usize> = (0..n - 2).collect();
        self.dot_general(other, &batch, &batch, &[n - 1], &[n - 2])
    }

    /// Convolution of this input with `kernel`. Spec: convolution.
    #[track_caller]
    pub fn convolution(&self, kernel: &Tensor, spec: Convolution) -> Tensor {
        emit1(spec, &[self, kernel])
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
