//! Control flow ops while and case with their derivatives, and optimization_barrier.
//!
//! Operands captured by the bodies come first among the operands, and are the first parameters of the bodies. In text,
//! bodies refer to the outer values by name instead, as in StableHLO.
//!
//! The builders are in [`control_builders`].

use super::control_builders::{self, entry, read_trip, write_trip};
use super::elementwise_samples::moved;
use super::sample::{WIDE, sample};
use super::*;
use crate::ValueId;
use std::collections::{BTreeSet, HashMap, HashSet};
use systole_base::Error;

impl OpRule for While {
    lowered!(Control);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        require!(
            self.captures <= args.len(),
            "-",
            "got {} captures but only {} operands",
            self.captures,
            args.len()
        );
        let state = &args[self.captures..];
        let cond = self.cond.result_types();
        require!(
            takes(&self.cond, args) && cond == [TensorType::scalar(DType::Bool)],
            "C1",
            "the condition has type {:?} → {cond:?}, expected a predicate of the state {state:?}",
            self.cond.param_types()
        );
        let results = self.body.result_types();
        require!(
            takes(&self.body, args) && results.iter().eq(state.iter().copied()),
            "C2",
            "the body has type {:?} → {results:?}, expected results of the state's types {state:?}",
            self.body.param_types()
        );
        if let Some(recorded) = &self.recorded {
            require!(
                self.records(recorded, state),
                "-",
                "the recorded values {recorded:?} do not match the state {state:?}"
            );
        }
        Ok(results.into())
    }

    fn result_count(&self, _: usize) -> usize {
        self.body.results.len()
    }

    fn eval(&self, cx: &mut EvalCx, args: &[&Literal], _: &ResultTypes) -> Result<Vec<Literal>> {
        let (captures, init) = args.split_at(self.captures);
        let mut state: Vec<Literal> = init.iter().map(|&l| l.clone()).collect();
        loop {
            let all: Vec<&Literal> = captures.iter().copied().chain(&state).collect();
            if !cx.run(&self.cond, &all)?[0].get(0).as_bool() {
                return Ok(state);
            }
            state = cx.run(&self.body, &all)?;
        }
    }

    /// Adds an iteration counter and the stacked arrays that store what the derivative needs of each iteration.
    fn augment(&self, x: &[Tensor]) -> Option<(Op, Vec<Tensor>)> {
        let trips = self.trip_count.filter(|&n| n > 0)?;
        if self.recorded.is_some() {
            return None;
        }
        // If the body is not differentiable, vjp reports it.
        let mut needed = self.needed().ok()?;
        needed.retain(|&v| v != self.body.params[self.captures] || !self.counts_trips(x));
        let g = x.first()?.builder();
        let buffers = needed.iter().map(|&v| g.full(&stacked(self.body.ty(v), trips), 0.0));
        let extra: Vec<Tensor> = std::iter::once(g.scalar(DType::I32, 0.0)).chain(buffers).collect();
        let op = self.recording(&needed, &extra).ok()?;
        Some((op.into(), extra))
    }

    fn vjp(&self, x: &[Tensor], y: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        let Some(trips) = self.trip_count else {
            let why = "the number of iterations is unknown when the graph is built; use fori_loop or scan";
            return vec![Grad::None { why }; x.len()];
        };
        if trips == 0 {
            let through = dy.iter().map(|d| d.clone().map_or(Grad::Zero, Grad::Of));
            return std::iter::repeat_n(Grad::Zero, self.captures).chain(through).collect();
        }
        match &self.recorded {
            Some(recorded) => self.backward(trips, recorded, x, y, dy),
            None => {
                let why = Error::new(systole_base::ErrorKind::Graph, "cannot differentiate this loop");
                refused(x, &self.needed().err().unwrap_or(why))
            }
        }
    }

    fn attrs(&self) -> AttrList {
        let trips = self.trip_count.map(|n| ("systole.trip_count", Attr::Int(n as i64)));
        let keeps = self.keeps.then_some(("systole.keeps", Attr::Bool(true)));
        let recorded = self.recorded.as_ref().map(|r| ("systole.recorded", attr::ints(r)));
        trips.into_iter().chain(keeps).chain(recorded).collect()
    }

    fn regions(&self) -> SmallVec<[&Arc<Graph>; 2]> {
        SmallVec::from_slice(&[&self.cond, &self.body])
    }

    fn captures(&self) -> usize {
        self.captures
    }

    fn cost(&self, _: &[&TensorType], _: &ResultTypes) -> OpCost {
        let trips = self.trip_count.unwrap_or(1) as f64;
        let (cond, body) = (crate::cost::cost(&self.cond), crate::cost::cost(&self.body));
        OpCost { flops: trips * (cond.flops + body.flops), bytes: trips * (cond.bytes + body.bytes) }
    }
}

impl While {
    /// The limit in `state < limit`, if that is the loop's condition, and the index of the state: the number of
    /// iterations if the state counts them from zero. `captured` returns the value of a capture, if it is known.
    pub fn limit(&self, captured: impl Fn(usize) -> Option<i64>) -> Option<(usize, usize)> {
        let test = self.cond.node(*self.cond.results.first()?);
        let Op::Compare(Compare { direction: Direction::Lt, .. }) = test.op else { return None };
        let number = match &self.cond.node(test.inputs[1]).op {
            Op::Constant(c) => c.value.get(0).as_i64(),
            Op::Parameter(p) if p.index < self.captures => captured(p.index)?,
            _ => return None,
        };
        let k = self.cond.params[self.captures..].iter().position(|p| *p == test.inputs[0])?;
        Some((usize::try_from(number).ok()?, k))
    }
}

/// Not split here: bodies are graphs over all rows, and the partitioner handles them.
impl StructuralOp for While {
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        let has = |name: &'static str| s.has(name).then_some(name);
        Ok(While {
            captures: s.captures,
            cond: s.region(0)?,
            body: s.region(1)?,
            trip_count: has("systole.trip_count").map(|n| s.size(n)).transpose()?,
            keeps: s.flag("systole.keeps")?,
            recorded: has("systole.recorded").map(|n| s.sizes(n)).transpose()?,
        })
    }

    fn samples() -> Vec<OpSample> {
        let sized = |what: &str, dtype: DType, n: usize, build: &dyn Fn(&[Tensor]) -> Vec<Tensor>| {
            let params = [(TensorType::new(dtype, [3]), WIDE), (TensorType::new(dtype, [n, 3]), WIDE)];
            let differentiable = dtype == DType::F64 && what != "until";
            sample(format!("{what}_{dtype}"), &params, 64, differentiable, build)
        };
        let case =
            |what: &str, dtype: DType, build: &dyn Fn(&[Tensor]) -> Vec<Tensor>| sized(what, dtype, 5, build);
        let recurrent = |x: &[Tensor]| {
            let (last, ys) = control_builders::scan(&[&x[0]], &[&x[1]], |carry, row| {
                let next = (&carry[0] * &x[0] + &row[0]).tanh();
                (vec![next.clone()], vec![next.sine()])
            });
            [last, ys].concat()
        };
        let nested = |x: &[Tensor]| {
            control_builders::fori_loop(3, &[&x[0]], |i, s| {
                let i = i.convert(s[0].dtype());
                control_builders::fori_loop(2, &[&s[0]], |_, t| vec![(&t[0] * &i + &x[0]).sine()])
            })
        };
        let until = |x: &[Tensor]| {
            let limit = x[0].scalar_like(100.0);
            let small = |s: &[Tensor]| s[0].abs().sum_all().less(&limit);
            control_builders::while_loop(&[&x[0].abs()], small, |s| vec![&s[0] * 2.0 + 1.0])
        };
        vec![
            case("scan", DType::F64, &recurrent),
            case("scan", DType::F32, &recurrent),
            sized("scan_nothing", DType::F64, 0, &recurrent),
            case("nested", DType::F64, &nested),
            case("until", DType::F32, &until),
            case("until", DType::I32, &until),
            case("never", DType::F64, &|x| {
                control_builders::fori_loop(0, &[&x[0]], |_, s| vec![&s[0] * &x[0]])
            }),
        ]
    }
}

/// Whether the parameters of `graph` have the types `args`.
fn takes(graph: &Graph, args: &[&TensorType]) -> bool {
    graph.params.len() == args.len() && graph.params.iter().zip(args).all(|(&p, &t)| graph.ty(p) == t)
}

/// Type of a stacked array: `T[…] → T[trips, …]`.
fn stacked(ty: &TensorType, trips: usize) -> TensorType {
    ty.with_shape([&[trips], ty.shape.dims()].concat())
}

/// Whether `x[i]` is the first of equal tensors: a value captured several times contributes once.
fn is_first(x: &[Tensor], i: usize) -> bool {
    x[..i].iter().all(|t| t.id() != x[i].id())
}

impl While {
    /// Number of the user's state values, without those added by autodiff.
    fn own_state(&self) -> usize {
        let recorded = self.recorded.as_ref().map_or(0, |r| r.len() + 1);
        self.body.results.len().saturating_sub(recorded)
    }

    fn records(&self, recorded: &Dims, state: &[&TensorType]) -> bool {
        let Some(own) = state.len().checked_sub(recorded.len() + 1) else { return false };
        let Some(trips) = self.trip_count else { return false };
        *state[own] == TensorType::scalar(DType::I32)
            && recorded.iter().zip(&state[own + 1..]).all(|(&k, &t)| {
                if k < own { stacked(state[k], trips) == *t } else { t.shape.first() == Some(&trips) }
            })
    }

    /// Whether state 0 is the iteration counter, starting from 0, as in [`control_builders::fori_loop`] and
    /// [`control_builders::scan`].
    fn counts_trips(&self, x: &[Tensor]) -> bool {
        let (body, Some(from)) = (&self.body, x.get(self.captures)) else { return false };
        let (counter, next) = (body.params[self.captures], body.node(body.results[0]));
        let is_one = |v: ValueId| matches!(&body.node(v).op, Op::Constant(c) if c.value.get(0).as_i64() == 1);
        *from.ty() == TensorType::scalar(DType::I32)
            && from.builder().is_zeros(from.id())
            && next.op == Op::Binary(Binary::Add)
            && next.inputs[0] == counter
            && is_one(next.inputs[1])
    }

    /// The body without autodiff's additions and with the recorded values as further results. Also returns which
    /// results are only entries written to a stacked array that nothing reads before the loop ends.
    fn body_of_a_trip(&self, trips: usize, counted: bool) -> (Graph, Vec<usize>) {
        let (nc, own) = (self.captures, self.own_state());
        let mut results = self.body.results[..own].to_vec();
        let outputs: Vec<usize> = (0..own).filter(|&k| counted && self.is_output(k, trips)).collect();
        for &k in &outputs {
            results[k] = self.body.node(results[k]).inputs[1];
        }
        let recorded = self.recorded.iter().flatten().zip(&self.body.results[own + 1..]);
        let of_body = recorded.filter(|(k, _)| **k >= own);
        results.extend(of_body.map(|(_, &written)| {
            let entry = self.body.node(written).inputs[1];
            self.body.node(entry).inputs[0] // the value that was reshaped to an entry
        }));
        (self.body.pruned(&results, nc + own), outputs)
    }

    /// Whether state `k` is a stacked array in which each iteration only writes its own entry.
    fn is_output(&self, k: usize, trips: usize) -> bool {
        let (nc, body) = (self.captures, &self.body);
        let (before, made) = (body.params[nc + k], body.node(body.results[k]));
        let counts = |graph: &Graph, v: ValueId| {
            let uses = graph.nodes.iter().flat_map(|n| n.inputs.iter()).chain(&graph.results);
            uses.filter(|&&u| u == v).count()
        };
        matches!(made.op, Op::DynamicUpdateSlice(_))
            && made.inputs[0] == before
            && made.inputs[2] == body.params[nc]
            && is_entry(body.ty(before), body.ty(made.inputs[1]), trips)
            && counts(body, before) == 1
            && counts(&self.cond, self.cond.params[nc + k]) == 0
    }

    /// For each node of the body, whether it is a transcendental function of the state or of expensive results, without
    /// another such function in between.
    fn functions(&self) -> Vec<bool> {
        let state = &self.body.params[self.captures..];
        let mut found: Vec<bool> = Vec::with_capacity(self.body.nodes.len());
        // Nodes derived from state or expensive results, without and with such a function in between.
        let (mut direct, mut through) = (found.clone(), found.clone());
        for (i, node) in self.body.nodes.iter().enumerate() {
            let any = |of: &[bool]| node.inputs.iter().any(|v| of[v.index()]);
            let of_function = any(&through);
            found.push(is_function(&node.op) && any(&direct) && !of_function);
            through.push(is_function(&node.op) || of_function);
            direct.push(is_work(&node.op) || any(&direct) || state.iter().any(|p| p.index() == i));
        }
        found
    }

    /// Values to store for each iteration, for the derivative of the body: the state that it reads and, if this loop
    /// stores them, the results of expensive ops. Functions of these are stored instead if they are not larger, for
    /// example a recurrent layer's gates instead of their pre-activations.
    fn needed(&self) -> Result<Vec<ValueId>> {
        let g = GraphBuilder::new("backward");
        let args: Vec<Tensor> = self.body.param_types().into_iter().map(|t| g.parameter(t, "x")).collect();
        let values = g.inline_all(&self.body, &args.iter().collect::<Vec<_>>());
        let results = self.body.results.iter().map(|r| &values[r.index()][r.out as usize]);
        let ys: Vec<&Tensor> = results.filter(|y| y.dtype().is_float()).collect();
        let dys: Vec<Tensor> = ys.iter().map(|y| g.parameter(y.ty().clone(), "dy")).collect();
        let xs: Vec<&Tensor> = args.iter().filter(|x| x.dtype().is_float()).collect();
        let grads = crate::vjp(&ys, &dys.iter().collect::<Vec<_>>(), &xs);
        if let Some(e) = g.error() {
            return Err(e);
        }
        let of_body: HashMap<ValueId, ValueId> = (values.iter().enumerate())
            .flat_map(|(i, outs)| outs.iter().enumerate().map(move |(k, t)| (t.id(), ValueId::new(i, k))))
            .collect();
        let state: HashSet<ValueId> =
            self.body.params[self.captures..][..self.own_state()].iter().copied().collect();
        let found = self.functions();
        let read = |functions: bool| {
            let kept = |v: &ValueId| {
                state.contains(v)
                    || self.keeps && is_work(&self.body.node(*v).op)
                    || functions && found[v.index()]
            };
            let mut needed = BTreeSet::new();
            let mut seen = HashSet::new();
            let mut open: Vec<ValueId> = grads.iter().map(Tensor::id).collect();
            while let Some(v) = open.pop() {
                if !seen.insert(v) {
                    continue;
                }
                match of_body.get(&v).filter(|v| kept(v)) {
                    Some(&own) => _ = needed.insert(own),
                    None => open.extend(g.with_node(v.index(), |n| n.inputs.clone())),
                }
            }
            needed
        };
        let bytes = |of: &BTreeSet<ValueId>| of.iter().map(|&v| self.body.ty(v).bytes()).sum::<usize>();
        let [arguments, functions] = [false, true].map(read);
        let least = if bytes(&functions) <= bytes(&arguments) { functions } else { arguments };
        Ok(least.into_iter().collect())
    }

    /// This loop with `extra` state: a counter, and a stacked array for each body value in `needed`.
    fn recording(&self, needed: &[ValueId], extra: &[Tensor]) -> Result<While> {
        let start = |graph: &Graph| {
            let g = GraphBuilder::new(&graph.name);
            let types = graph.param_types().into_iter().chain(extra.iter().map(|t| t.ty().clone()));
            let params: Vec<Tensor> = types.map(|t| g.parameter(t, "state")).collect();
            let own: Vec<&Tensor> = params[..graph.params.len()].iter().collect();
            let values = g.inline_all(graph, &own);
            (g, params, values)
        };
        let of = |values: &[Vec<Tensor>], v: ValueId| values[v.index()][v.out as usize].clone();
        let (g, _, values) = start(&self.cond);
        let cond = g.finish(&[of(&values, self.cond.results[0])])?;
        let (g, params, values) = start(&self.body);
        let extra = &params[self.body.params.len()..];
        let mut results: Vec<Tensor> = self.body.results.iter().map(|&r| of(&values, r)).collect();
        results.push(&extra[0] + 1.0);
        for (&v, stack) in needed.iter().zip(&extra[1..]) {
            results.push(write_trip(stack, &of(&values, v), &extra[0]));
        }
        let body = g.finish(&results)?;
        let (nc, own) = (self.captures, self.own_state());
        let of_state = |v: ValueId| self.body.params[nc..].iter().position(|&p| p == v);
        let recorded = needed.iter().enumerate().map(|(i, &v)| of_state(v).unwrap_or(own + i)).collect();
        Ok(While { cond, body, recorded: Some(recorded), ..self.clone() })
    }

    /// Determines what to differentiate; `outputs` are the states that no later iteration reads.
    fn differentiated(
        &self,
        recorded: &Dims,
        outputs: &[usize],
        (x, y, dy): (&[Tensor], &[Tensor], &[Option<Tensor>]),
    ) -> LoopGradientSpec {
        let (nc, own) = (self.captures, self.own_state());
        let floats = || (0..own).filter(|&k| y[k].dtype().is_float());
        let state: Vec<usize> = floats().filter(|k| !outputs.contains(k)).collect();
        let outputs: Vec<usize> = floats().filter(|&k| outputs.contains(&k) && dy[k].is_some()).collect();
        let captures: Vec<usize> =
            (0..nc).filter(|&k| x[k].dtype().is_float() && is_first(&x[..nc], k)).collect();
        // Stacked arrays that hold values of the body, in the order of the body's further results.
        let stacks = recorded.iter().enumerate().filter(|(_, k)| **k >= own).map(|(p, _)| own + 1 + p);
        let stacks: Vec<usize> = stacks.collect();
        // For second derivatives: stored values have their own cotangents.
        let owed: Vec<usize> = (0..stacks.len()).filter(|&j| dy[stacks[j]].is_some()).collect();
        LoopGradientSpec { state, outputs, captures, stacks, owed }
    }

    /// Builds the backward loop, which runs the iterations in reverse. Its state consists of the cotangents of the
    /// state and the summed cotangents of captures.
    fn backward(
        &self,
        trips: usize,
        recorded: &Dims,
        x: &[Tensor],
        y: &[Tensor],
        dy: &[Option<Tensor>],
    ) -> Vec<Grad> {
        let (nc, own, counted) = (self.captures, self.own_state(), self.counts_trips(x));
        let (body, outputs) = self.body_of_a_trip(trips, counted);
        let g = x[0].builder().clone();
        let LoopGradientSpec { state, outputs, captures, stacks, owed } =
            self.differentiated(recorded, &outputs, (x, y, dy));
        let trip = BodyGradientSpec {
            ys: state.iter().chain(&outputs).copied().chain(owed.iter().map(|j| own + j)).collect(),
            xs: state.iter().map(|k| nc + k).chain(captures.iter().copied()).collect(),
            kept: (own..body.results.len()).collect(),
        };
        let wanted = trip.xs.len();
        let derivative = match trip.derivative(&body) {
            Ok(graph) => graph,
            Err(e) => return refused(x, &e),
        };
        let init = first_cotangents(&state, &captures, (x, y, dy));

        let body = |r: &GraphBuilder, trip: &Tensor, carried: &[Tensor]| {
            let at = r.scalar(DType::I32, trips as f64 - 1.0) - trip;
            let kept = |k: usize| recorded.iter().position(|&s| s == k).map(|p| own + 1 + p);
            let value = |k: usize| match kept(k) {
                Some(s) => read_trip(&y[s], &at),
                None if k == 0 && counted => at.clone(),
                None => r.full(y[k].ty(), 0.0), // not read by the derivative
            };
            let args = x[..nc].iter().map(|t| r.capture(t)).chain((0..own).map(value));
            let (dys, sums) = carried.split_at(state.len());
            let of_outputs = outputs.iter().filter_map(|&k| dy[k].as_ref()).map(|d| entry(d, &at));
            let of_kept = owed.iter().filter_map(|&j| dy[stacks[j]].as_ref()).map(|d| read_trip(d, &at));
            let args: Vec<Tensor> =
                args.chain(dys.iter().cloned()).chain(of_outputs).chain(of_kept).collect();
            let (grads, held) = derivative.results.split_at(wanted);
            let known = derivative.params.iter().copied().zip(args);
            let held = held.iter().copied().zip(stacks.iter().map(|&s| read_trip(&y[s], &at)));
            let mut grads = r.inline_given(&derivative, known.chain(held).collect(), grads);
            for (grad, &k) in grads.iter_mut().zip(&state) {
                if let Some(d) = kept(k).and_then(|s| dy[s].as_ref()) {
                    *grad = &*grad + &read_trip(d, &at);
                }
            }
            for (grad, sum) in grads[state.len()..].iter_mut().zip(sums) {
                *grad = add_to(sum, grad, &at, trips);
            }
            grads
        };
        let outs =
            control_builders::fori_in(&g, trips, false, &init.iter().collect::<Vec<_>>(), Box::new(body));
        let mut grads = vec![Grad::Zero; x.len()];
        let places = state.iter().map(|k| nc + k).chain(captures);
        places.zip(outs).for_each(|(place, d)| grads[place] = Grad::Of(d));
        grads
    }
}

/// Initial state of the backward loop: the results' cotangents, and zeros for the sums over captures.
fn first_cotangents(
    state: &[usize],
    captures: &[usize],
    (x, y, dy): (&[Tensor], &[Tensor], &[Option<Tensor>]),
) -> Vec<Tensor> {
    let cotangents = state.iter().map(|&k| dy[k].clone().unwrap_or_else(|| y[k].zeros_like()));
    cotangents.chain(captures.iter().map(|&k| x[k].zeros_like())).collect()
}

/// Indices of the parts of a loop that are differentiated.
struct LoopGradientSpec {
    /// States whose cotangent is passed from iteration to iteration.
    state: Vec<usize>,
    /// States with a cotangent that are only results of the loop.
    outputs: Vec<usize>,
    /// Captured values, without duplicates.
    captures: Vec<usize>,
    /// Stacked arrays that hold values of the body, in the order of the body's further results.
    stacks: Vec<usize>,
    /// Stacks with their own cotangents, for second derivatives.
    owed: Vec<usize>,
}

/// Indices that define the derivative of a body.
struct BodyGradientSpec {
    /// Results with cotangents.
    ys: Vec<usize>,
    /// Parameters whose cotangents are computed.
    xs: Vec<usize>,
    /// Results whose values are stored.
    kept: Vec<usize>,
}

impl BodyGradientSpec {
    /// Builds the derivative: `body's parameters …, cotangents of ys … → cotangents of xs …, kept results …`.
    fn derivative(&self, body: &Graph) -> Result<Arc<Graph>> {
        let g = GraphBuilder::new("trip");
        let args: Vec<Tensor> = body.param_types().into_iter().map(|t| g.parameter(t, "x")).collect();
        let results = g.inline(body, &args.iter().collect::<Vec<_>>());
        let ys: Vec<&Tensor> = self.ys.iter().map(|&k| &results[k]).collect();
        let dys: Vec<Tensor> = ys.iter().map(|y| g.parameter(y.ty().clone(), "dy")).collect();
        let xs: Vec<&Tensor> = self.xs.iter().map(|&k| &args[k]).collect();
        let mut all = crate::vjp(&ys, &dys.iter().collect::<Vec<_>>(), &xs);
        all.extend(self.kept.iter().map(|&k| results[k].clone()));
        g.finish(&all)
    }
}

/// Whether an op is too expensive to recompute: products, reductions and loops. Other ops are nearly free to recompute,
/// and their results are large to store.
fn is_work(op: &Op) -> bool {
    matches!(op.rule().lower(), LoweringClass::Contract | LoweringClass::Fold | LoweringClass::Control)
        && !matches!(op, Op::OptimizationBarrier(_))
}

/// Whether an op takes many instructions and its derivative needs only its result (exp, tanh, …).
fn is_function(op: &Op) -> bool {
    matches!(op, Op::Unary(Unary::Exponential | Unary::ExponentialMinusOne | Unary::Logistic | Unary::Tanh))
}

/// Poisoned gradients for all operands.
fn refused(x: &[Tensor], why: &Error) -> Vec<Grad> {
    let error = why.clone().at("body of while");
    x.iter().map(|x| Grad::Of(x.fail(error.clone()))).collect()
}

/// Whether a block is one entry of a stacked array.
fn is_entry(stack: &TensorType, block: &TensorType, trips: usize) -> bool {
    stack.shape.first() == Some(&trips)
        && block.shape.first() == Some(&1)
        && stack.shape[1..] == block.shape[1..]
}

/// `sum + grad`. If `grad` is a block in an array of zeros, only that block is read and written: otherwise a loop over
/// slices of one array would take quadratic time. If the block is the iteration's own entry, it is written without
/// adding.
fn add_to(sum: &Tensor, grad: &Tensor, trip: &Tensor, trips: usize) -> Tensor {
    let g = grad.builder();
    let in_zeros = !grad.is_poisoned()
        && g.with_node(grad.id().index(), |n| matches!(n.op, Op::DynamicUpdateSlice(_)))
        && g.is_zeros(g.with_node(grad.id().index(), |n| n.inputs[0]));
    if !in_zeros {
        return sum + grad;
    }
    let operands: Vec<Tensor> =
        g.with_node(grad.id().index(), |n| n.inputs.clone()).iter().map(|&v| g.value(v)).collect();
    let start: Vec<&Tensor> = operands[2..].iter().collect();
    if operands[2].same_as(trip) && is_entry(sum.ty(), operands[1].ty(), trips) {
        return sum.dynamic_update_slice(&operands[1], &start);
    }
    let block = sum.dynamic_slice(&start, operands[1].shape()) + &operands[1];
    sum.dynamic_update_slice(&block, &start)
}

impl Case {
    /// Returns the index of the branch that runs: the last if `index` is out of range.
    pub fn taken(&self, index: Scalar) -> usize {
        let last = self.branches.len() - 1;
        usize::try_from(index.as_i64()).unwrap_or(last).min(last)
    }
}

impl OpRule for Case {
    lowered!(Control);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        let Some(first) = self.branches.first() else {
            return Err(SpecConstraint::new("C1", "expected at least one branch"));
        };
        let Some((index, captures)) = args.split_last() else {
            return Err(SpecConstraint::new("-", "the index operand is missing"));
        };
        require!(
            **index == TensorType::scalar(DType::I32),
            "I1",
            "the index has type {index}, expected i32[]"
        );
        let results = first.result_types();
        for (i, branch) in self.branches.iter().enumerate() {
            let types = branch.param_types();
            require!(takes(branch, captures), "C2", "branch {i} takes {types:?}, expected {captures:?}");
            let these = branch.result_types();
            require!(these == results, "C3", "branch {i} returns {these:?}, branch 0 returns {results:?}");
        }
        Ok(results.into())
    }

    fn result_count(&self, _: usize) -> usize {
        self.branches.first().map_or(0, |b| b.results.len())
    }

    fn eval(&self, cx: &mut EvalCx, args: &[&Literal], _: &ResultTypes) -> Result<Vec<Literal>> {
        let captures = &args[..args.len() - 1];
        cx.run(&self.branches[self.taken(args[args.len() - 1].get(0))], captures)
    }

    fn vjp(&self, x: &[Tensor], y: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        let nc = x.len() - 1;
        let captures: Vec<usize> =
            (0..nc).filter(|&k| x[k].dtype().is_float() && is_first(&x[..nc], k)).collect();
        let mut grads = vec![Grad::Zero; x.len()];
        if captures.is_empty() {
            return grads;
        }
        let with_cotangent: Vec<usize> = (0..y.len()).filter(|&k| dy[k].is_some()).collect();
        let backward = |branch: &Graph, r: &GraphBuilder| {
            let args: Vec<Tensor> = x[..nc].iter().map(|t| r.capture(t)).collect();
            let ys = r.inline(branch, &args.iter().collect::<Vec<_>>());
            let ys: Vec<&Tensor> = with_cotangent.iter().map(|&k| &ys[k]).collect();
            let dys: Vec<&Tensor> = dy.iter().flatten().collect();
            crate::vjp(&ys, &dys, &captures.iter().map(|&k| &args[k]).collect::<Vec<_>>())
        };
        let branches: Vec<control_builders::BranchBody<'_>> = self
            .branches
            .iter()
            .map(|b| Box::new(move |r: &GraphBuilder| backward(b, r)) as control_builders::BranchBody<'_>)
            .collect();
        let outs = control_builders::case_in(x[nc].builder(), &x[nc], branches);
        captures.iter().zip(outs).for_each(|(&k, d)| grads[k] = Grad::Of(d));
        grads
    }

    fn regions(&self) -> SmallVec<[&Arc<Graph>; 2]> {
        self.branches.iter().collect()
    }

    fn captures(&self) -> usize {
        self.branches.first().map_or(0, |b| b.params.len())
    }

    /// Cost of the most expensive branch.
    fn cost(&self, _: &[&TensorType], _: &ResultTypes) -> OpCost {
        let costs = self.branches.iter().map(|b| crate::cost::cost(b));
        costs.fold(OpCost::default(), |a, b| OpCost {
            flops: a.flops.max(b.flops),
            bytes: a.bytes.max(b.bytes),
        })
    }
}

/// Not split here: bodies are graphs over all rows, and the partitioner handles them.
impl StructuralOp for Case {
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        Ok(Case { branches: s.regions.clone() })
    }

    fn samples() -> Vec<OpSample> {
        let case = |label: &str, index: f64, dtype: DType, size: usize| {
            let ty = TensorType::new(dtype, [size]);
            let index = ArgDomain::Uniform(index, index);
            let params = [(TensorType::scalar(DType::I32), index), (ty.clone(), WIDE), (ty, WIDE)];
            sample(format!("{label}_{dtype}"), &params, 8, dtype == DType::F64, |x| {
                control_builders::case(
                    &x[0],
                    &[&|| vec![&x[1] * &x[2], x[2].clone()], &|| vec![x[1].clone(), &x[1] + &x[1]], &|| {
                        vec![x[2].ones_like(), &x[1] * 3.0]
                    }],
                )
            })
        };
        let mut all = Vec::new();
        for (label, index) in
            [("first", 0.0), ("second", 1.0), ("last", 2.0), ("below", -1.0), ("above", 9.0)]
        {
            all.extend([case(label, index, DType::F64, 3), case(label, index, DType::I32, 3)]);
        }
        all.push(case("empty", 1.0, DType::F32, 0));
        all
    }
}

impl OpRule for OptimizationBarrier {
    lowered!(Map);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        Ok(args.iter().map(|&t| t.clone()).collect())
    }

    fn result_count(&self, args: usize) -> usize {
        args
    }

    fn eval(&self, _: &mut EvalCx, args: &[&Literal], _: &ResultTypes) -> Result<Vec<Literal>> {
        Ok(args.iter().map(|&l| l.clone()).collect())
    }

    fn vjp(&self, x: &[Tensor], _: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        if self.stop_gradient {
            return vec![Grad::Zero; x.len()];
        }
        dy.iter().map(|d| d.clone().map_or(Grad::Zero, Grad::Of)).collect()
    }

    fn attrs(&self) -> AttrList {
        if self.stop_gradient { vec![("systole.stop_gradient", Attr::Bool(true))] } else { vec![] }
    }

    fn cost(&self, _: &[&TensorType], _: &ResultTypes) -> OpCost {
        OpCost::default()
    }
}

impl StructuralOp for OptimizationBarrier {
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        Ok(OptimizationBarrier { stop_gradient: s.flag("systole.stop_gradient")? })
    }

    fn samples() -> Vec<OpSample> {
        let pass = |x: &[Tensor]| {
            let inputs: Vec<&Tensor> = x.iter().collect();
            x[0].builder().emit(OptimizationBarrier { stop_gradient: false }, &inputs)
        };
        let mut all = moved("pass", &[&[3, 5], &[7], &[0]], pass);
        let params = [(TensorType::new(DType::F32, [3, 5]), WIDE)];
        all.push(sample("stop_f32".into(), &params, 0, false, |x| vec![x[0].stop_gradient()]));
        all
    }

    /// Not fused into a segment, because no work may be moved across a barrier.
    fn row_op(&self, _: NodeView<'_>, _: RowBlocking) -> Option<RowOp> {
        None
    }

    fn factors(&self, _: NodeView<'_>) -> Vec<ShardingFactor> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;

    #[test]
    fn labels_name_what_does_not_fit() {
        let g = GraphBuilder::new("body");
        let x = g.parameter(TensorType::scalar(DType::F32), "x");
        let body = g.finish(&[x]).unwrap();
        let f32 = TensorType::scalar(DType::F32);
        let op = While {
            captures: 0,
            cond: body.clone(),
            body: body.clone(),
            trip_count: None,
            keeps: false,
            recorded: None,
        };
        assert_eq!(op.infer(&[&f32]).unwrap_err().label, "C1");
        assert_eq!(Case { branches: vec![] }.infer(&[&f32]).unwrap_err().label, "C1");
        let case = Case { branches: vec![body] };
        assert_eq!(case.infer(&[&f32, &f32]).unwrap_err().label, "I1");
        let index = TensorType::scalar(DType::I32);
        assert_eq!(case.infer(&[&index]).unwrap_err().label, "C2");
        let outs: ResultTypes = smallvec![f32.clone()];
        assert_eq!(case.infer(&[&f32, &index]), Ok(outs));
    }
}
