//! Loops whose trips are counted: what need not be done in every trip is done once, after the loop.
//!
//! `s ← s + a · b`, where nothing else reads `s` before the end, is the product of all `a` with all `b`: each trip only
//! puts its `a` and `b` aside, and one large product takes the place of many small ones (the gradient of a recurrent
//! layer's kernel). Sums over dimensions likewise. What is there in an array of all trips already is not put aside:
//! entries that are captured, and a state that is zero at first and whose later values such an array holds.

use super::rewrite::{Rewriter, Values, rebuild};
use std::collections::HashMap;
use systole_ir::op::{
    Binary, BroadcastInDim, Constant, DotGeneral, DynamicUpdateSlice, Monoid, Parameter, Reduce, Reshape,
    While,
};
use systole_ir::{DType, Dims, Graph, Literal, Node, Op, TensorType, ValueId};

/// The pass.
pub fn run(graph: &Graph) -> Graph {
    rebuild(graph, |g, _, node, inputs| {
        let Op::While(w) = &node.op else { return None };
        w.trip_count.filter(|&n| n > 0)?;
        // Bodies come as they were traced; what is looked for shows once they are simplified.
        let (body, _) = super::pass::optimize(&w.body).ok()?;
        let w = While { body: body.into(), recorded: None, ..w.clone() };
        let sums = Trips::of(&w, |k| is_zero(&|v| g.node(v), inputs[w.captures + k])).sums();
        Some(match sums.is_empty() {
            true => all_results(g.push(w, inputs, node), node.outs.len()),
            false => Moving { w: &w, sums, node }.run(g, inputs),
        })
    })
}

/// For each state of a loop whether its value before the loop does not matter, because trips set all of its entries
/// before anything reads one.
pub fn blank_states(graph: &Graph, node: &Node, w: &While) -> Vec<bool> {
    let trips = Trips::of(w, |k| is_zero(&|v| graph.node(v), node.inputs[w.captures + k]));
    (0..w.body.results.len()).map(|k| trips.is_filled(k)).collect()
}

/// Whether a value is zeros by its making.
fn is_zero<'g>(node: &dyn Fn(ValueId) -> &'g Node, v: ValueId) -> bool {
    match &node(v).op {
        Op::BroadcastInDim(_) => is_zero(node, node(v).inputs[0]),
        Op::Constant(c) => c.value.is_splat() && c.value.get(0).as_f64() == 0.0,
        _ => false,
    }
}

fn all_results(first: ValueId, count: usize) -> Values {
    (0..count).map(|k| ValueId { node: first.node, out: k as u32 }).collect()
}

/// In which order trips take the entries of an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    Forward,
    Backward,
}

/// One operand of what is summed: for each trip an entry of an array.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// The capture that holds all entries.
    Capture(usize, Order),
    /// The state that holds, where a trip has set its entry, what the next trip sums.
    State(usize, Order),
    /// A value of the body, to be put aside.
    Value(ValueId),
}

/// A state that trips only add to.
struct Sum {
    state: usize,
    /// A parameter of the body that counts the trips.
    counter: ValueId,
    /// What makes the summand.
    made_by: ValueId,
    sources: Vec<Source>,
    order: Order,
    /// Whether values are put aside in the entry of the trip before. The first trip's has no place, so the next one
    /// takes it; the last entry stays zero.
    shifted: bool,
}

/// A loop and the parameters of its body that count its trips, from 0.
struct Trips<'w> {
    w: &'w While,
    body: &'w Graph,
    count: usize,
    counters: Vec<ValueId>,
    /// Which states are zero at first.
    from_zero: Vec<bool>,
    uses: Vec<usize>,
}

impl<'w> Trips<'w> {
    fn of(w: &'w While, from_zero: impl Fn(usize) -> bool) -> Trips<'w> {
        let body = &*w.body;
        let is_one = |v: ValueId| matches!(&body.node(v).op, Op::Constant(c) if c.value.get(0).as_i64() == 1);
        let from_zero: Vec<bool> = (0..body.results.len()).map(from_zero).collect();
        let counts = |k: usize| {
            let (own, next) = (body.params[w.captures + k], body.node(body.results[k]));
            *body.ty(own) == TensorType::scalar(DType::I32)
                && next.op == Op::Binary(Binary::Add)
                && next.inputs[0] == own
                && is_one(next.inputs[1])
                && from_zero[k]
        };
        let counters = (0..body.results.len()).filter(|&k| counts(k)).map(|k| body.params[w.captures + k]);
        let counters = counters.collect();
        Trips { w, body, count: w.trip_count.unwrap_or(0), counters, from_zero, uses: body.use_counts() }
    }

    /// The order in which an index runs over all trips.
    fn order(&self, index: ValueId) -> Option<Order> {
        let node = self.body.node(index);
        let last = self.count as i64 - 1;
        match &node.op {
            _ if self.counters.contains(&index) => Some(Order::Forward),
            Op::Binary(Binary::Subtract) if self.counters.contains(&node.inputs[1]) => {
                let from = &self.body.node(node.inputs[0]).op;
                matches!(from, Op::Constant(c) if c.value.get(0).as_i64() == last).then_some(Order::Backward)
            }
            _ => None,
        }
    }

    /// Whether a block is one entry of an array of as many as there are trips.
    fn is_entry(&self, stack: &TensorType, block: &TensorType) -> bool {
        stack.rank() > 0
            && stack.rank() == block.rank()
            && (stack.shape[0], block.shape[0]) == (self.count, 1)
            && stack.shape[1..] == block.shape[1..]
    }

    /// Whether state `k` is read once in the body and not by the condition.
    fn is_read_once(&self, k: usize) -> bool {
        let (own, tested) = (self.body.params[self.w.captures + k], self.w.cond.params[self.w.captures + k]);
        self.uses[own.index()] == 1 && self.w.cond.use_counts()[tested.index()] == 0
    }

    /// Whether trips set each entry of state `k` once and do no more with it.
    fn is_filled(&self, k: usize) -> bool {
        let own = self.body.params[self.w.captures + k];
        let made = self.body.node(self.body.results[k]);
        made.op == Op::DynamicUpdateSlice(DynamicUpdateSlice)
            && made.inputs[0] == own
            && self.is_entry(self.body.ty(own), self.body.ty(made.inputs[1]))
            && self.order(made.inputs[2]).is_some()
            && self.is_read_once(k)
    }

    fn sums(&self) -> Vec<Sum> {
        (0..self.body.results.len()).filter_map(|k| self.sum(k)).collect()
    }

    /// State `k` as a sum of products or a sum over dimensions.
    fn sum(&self, k: usize) -> Option<Sum> {
        let own = self.body.params[self.w.captures + k];
        let made = self.body.node(self.body.results[k]);
        let summand = match made.inputs[..] {
            [a, b] if a == own => b,
            [a, b] if b == own => a,
            _ => return None,
        };
        let fits = made.op == Op::Binary(Binary::Add)
            && self.body.ty(own).dtype.is_float()
            && self.is_read_once(k)
            && self.uses[self.body.results[k].index()] == 1
            && self.uses[summand.index()] == 1;
        let node = self.body.node(summand);
        let operands = match &node.op {
            Op::DotGeneral(_) => &node.inputs[..],
            Op::Reduce(r) if node.inputs.len() == 2 && Monoid::of(&r.body) == Some(Monoid::Add) => {
                is_zero(&|v| self.body.node(v), node.inputs[1]).then_some(&node.inputs[..1])?
            }
            _ => return None,
        };
        if !fits {
            return None;
        }
        let mut sources: Vec<Source> = operands.iter().map(|&v| self.source(v)).collect::<Option<_>>()?;
        let held = |s: &Source| match s {
            Source::Capture(_, order) | Source::State(_, order) => Some(*order),
            Source::Value(_) => None,
        };
        let mut shifted = false;
        if sources.iter().all(|s| held(s).is_none()) && sources.len() == 2 {
            // The other one must be put aside with a shift, so only one can come from a state.
            let state = sources.iter().zip(operands).find_map(|(_, &v)| Some((v, self.carried(v)?)));
            if let Some((v, state)) = state {
                let place = operands.iter().position(|&o| o == v).unwrap_or(0);
                sources[place] = state;
                shifted = true;
            }
        }
        let order = sources.iter().find_map(held).unwrap_or(Order::Forward);
        for (source, &v) in sources.iter_mut().zip(operands) {
            if held(source).is_some_and(|o| o != order) {
                *source = Source::Value(v);
            }
        }
        Some(Sum { state: k, counter: *self.counters.first()?, made_by: summand, sources, order, shifted })
    }

    /// For a state that is zero at first, the state whose entries its later values are.
    fn carried(&self, v: ValueId) -> Option<Source> {
        let states = &self.body.params[self.w.captures..];
        let own = states.iter().position(|&p| p == v).filter(|&k| self.from_zero[k] && self.count > 1)?;
        (0..states.len()).filter(|&k| self.is_filled(k)).find_map(|k| {
            let made = self.body.node(self.body.results[k]);
            let block = self.body.node(made.inputs[1]);
            let holds = matches!(block.op, Op::Reshape(_))
                && block.inputs[0] == self.body.results[own]
                && self.body.ty(v).shape[..] == self.body.ty(states[k]).shape[1..];
            Some(Source::State(k, self.order(made.inputs[2]).filter(|_| holds)?))
        })
    }

    /// Where the operand of each trip comes from; `None` where it is the same in all trips.
    fn source(&self, v: ValueId) -> Option<Source> {
        let capture = |v: ValueId| self.body.params[..self.w.captures].iter().position(|&p| p == v);
        if capture(v).is_some() {
            return None;
        }
        let mut node = self.body.node(v);
        if matches!(node.op, Op::Reshape(_)) {
            node = self.body.node(node.inputs[0]);
        }
        let stack = node.inputs.first().copied();
        if let (Op::DynamicSlice(_), Some(stack)) = (&node.op, stack)
            && let (Some(c), Some(order)) = (capture(stack), self.order(node.inputs[1]))
            && self.is_entry(self.body.ty(stack), &node.outs[0])
            && self.body.ty(v).shape[..] == self.body.ty(stack).shape[1..]
        {
            return Some(Source::Capture(c, order));
        }
        Some(Source::Value(v))
    }
}

/// A value that each trip puts aside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Aside {
    value: ValueId,
    order: Order,
    shifted: bool,
}

/// Rewrites one loop.
struct Moving<'w> {
    w: &'w While,
    sums: Vec<Sum>,
    node: &'w Node,
}

impl Moving<'_> {
    /// The values that are put aside, each once for an order.
    fn aside(&self) -> Vec<Aside> {
        let mut all = Vec::new();
        for sum in &self.sums {
            for source in &sum.sources {
                if let Source::Value(value) = *source {
                    let aside = Aside { value, order: sum.order, shifted: sum.shifted };
                    if !all.contains(&aside) {
                        all.push(aside);
                    }
                }
            }
        }
        all
    }

    fn stays(&self, state: usize) -> bool {
        self.sums.iter().all(|s| s.state != state)
    }

    fn run(&self, g: &mut Rewriter, inputs: &[ValueId]) -> Values {
        let (w, nc) = (self.w, self.w.captures);
        let count = w.trip_count.unwrap_or(0);
        let aside = self.aside();
        let stacks: Vec<TensorType> = aside.iter().map(|a| stacked(w.body.ty(a.value), count)).collect();
        let mut operands: Vec<ValueId> = inputs[..nc].to_vec();
        operands.extend(inputs[nc..].iter().enumerate().filter(|&(k, _)| self.stays(k)).map(|(_, &v)| v));
        operands.extend(stacks.iter().map(|ty| zeros(g, ty, self.node)));
        let op = While {
            cond: self.signed_anew(&w.cond, &w.cond.results, &stacks, |_, _, results| results).into(),
            body: self.body(&aside, &stacks).into(),
            ..w.clone()
        };
        let new = g.push(op, &operands, self.node);
        let kept = (0..w.body.results.len()).filter(|&k| self.stays(k)).count();
        let result = |k: usize| ValueId { node: new.node, out: k as u32 };
        let state = |k: usize| result((0..k).filter(|&i| self.stays(i)).count());
        let mut place = 0;
        (0..w.body.results.len())
            .map(|k| match self.sums.iter().find(|s| s.state == k) {
                None => {
                    place += 1;
                    result(place - 1)
                }
                Some(sum) => {
                    let of = |source: &Source| match *source {
                        Source::Capture(c, _) => inputs[c],
                        Source::State(k, _) => state(k),
                        Source::Value(value) => {
                            let own = Aside { value, order: sum.order, shifted: sum.shifted };
                            result(kept + aside.iter().position(|a| *a == own).unwrap_or(0))
                        }
                    };
                    let operands: Vec<ValueId> = sum.sources.iter().map(of).collect();
                    self.after(g, sum, &operands, inputs[nc + k])
                }
            })
            .collect()
    }

    /// The sum over all trips, from what it was before the loop on.
    fn after(&self, g: &mut Rewriter, sum: &Sum, stacks: &[ValueId], before: ValueId) -> ValueId {
        let later = |dims: &Dims| -> Dims { dims.iter().map(|d| d + 1).collect() };
        let with_trips = |dims: &Dims| -> Dims { std::iter::once(0).chain(later(dims)).collect() };
        let total = match &self.w.body.node(sum.made_by).op {
            Op::DotGeneral(d) => {
                let op = DotGeneral {
                    lhs_batch: later(&d.lhs_batch),
                    rhs_batch: later(&d.rhs_batch),
                    lhs_contract: with_trips(&d.lhs_contract),
                    rhs_contract: with_trips(&d.rhs_contract),
                    element_type: d.element_type,
                };
                g.push(op, stacks, self.node)
            }
            Op::Reduce(r) => {
                let zero = Literal::scalar(g.ty(stacks[0]).dtype, 0.0);
                let zero = g.push(Constant { value: zero }, &[], self.node);
                let op = Reduce { dims: with_trips(&r.dims), body: r.body.clone() };
                g.push(op, &[stacks[0], zero], self.node)
            }
            other => systole_ir::bug!("{} is no sum", other.name()),
        };
        if is_zero(&|v| g.node(v), before) { total } else { g.push(Binary::Add, &[before, total], self.node) }
    }

    /// The body without the sums, which puts their operands aside.
    fn body(&self, aside: &[Aside], stacks: &[TensorType]) -> Graph {
        let body = &*self.w.body;
        let counter = self.sums[0].counter;
        let count = self.w.trip_count.unwrap_or(0);
        let kept = body.results.iter().enumerate().filter(|&(k, _)| self.stays(k));
        let results: Vec<ValueId> = kept.map(|(_, &v)| v).collect();
        self.signed_anew(body, &results, stacks, |r, map, mut results| {
            let first = self.w.captures + results.len();
            let like = &body.nodes[counter.index()];
            let scalar = |r: &mut Rewriter, value: f64| {
                r.push(Constant { value: Literal::scalar(DType::I32, value) }, &[], like)
            };
            let zero = scalar(r, 0.0);
            for (k, a) in aside.iter().enumerate() {
                let ty = body.ty(a.value);
                let shape: systole_ir::Shape = std::iter::once(1).chain(ty.shape.iter().copied()).collect();
                let block = r.push(Reshape { shape }, &[map[&a.value]], like);
                // Beyond the ends, indices are clamped.
                let index = match (a.order, a.shifted) {
                    (Order::Forward, false) => map[&counter],
                    (Order::Forward, true) => {
                        let one = scalar(r, 1.0);
                        r.push(Binary::Subtract, &[map[&counter], one], like)
                    }
                    (Order::Backward, shifted) => {
                        let last = scalar(r, count as f64 - 1.0 + shifted as usize as f64);
                        r.push(Binary::Subtract, &[last, map[&counter]], like)
                    }
                };
                let stack = ValueId::new(first + k, 0);
                let mut operands = vec![stack, block, index];
                operands.extend(vec![zero; ty.rank()]);
                results.push(r.push(DynamicUpdateSlice, &operands, like));
            }
            results
        })
    }

    /// A graph of the loop with the parameters of the new one, first among its nodes; `finish` gets the new values of
    /// the old ones and of the results.
    fn signed_anew(
        &self,
        graph: &Graph,
        results: &[ValueId],
        stacks: &[TensorType],
        finish: impl FnOnce(&mut Rewriter, &HashMap<ValueId, ValueId>, Vec<ValueId>) -> Vec<ValueId>,
    ) -> Graph {
        let nc = self.w.captures;
        let mut r = Rewriter::default();
        let mut map: HashMap<ValueId, ValueId> = HashMap::new();
        let mut params = Vec::new();
        let stay = |i: usize| i < nc || self.stays(i - nc);
        let like = &graph.nodes[graph.params[0].index()];
        let kept = graph.params.iter().enumerate().filter(|&(i, _)| stay(i));
        for (p, ty) in kept
            .map(|(_, &p)| (Some(p), graph.ty(p).clone()))
            .chain(stacks.iter().map(|ty| (None, ty.clone())))
        {
            let new = r.push(Parameter { index: params.len(), ty }, &[], like);
            params.push(new);
            p.into_iter().for_each(|p| {
                map.insert(p, new);
            });
        }
        for (i, node) in graph.nodes.iter().enumerate() {
            let inputs: Option<Vec<ValueId>> = node.inputs.iter().map(|v| map.get(v).copied()).collect();
            // What reads a state that is gone is the sum itself.
            let (false, Some(inputs)) = (matches!(node.op, Op::Parameter(_)), inputs) else { continue };
            let new = r.push(node.op.clone(), &inputs, node);
            for k in 0..node.outs.len() {
                map.insert(ValueId::new(i, k), ValueId { node: new.node, out: k as u32 });
            }
        }
        let results = results.iter().map(|v| map[v]).collect();
        let results = finish(&mut r, &map, results);
        Graph {
            name: graph.name.clone(),
            param_names: vec![String::from("state"); params.len()],
            params,
            results,
            scopes: graph.scopes.clone(),
            nodes: r.into_nodes(),
        }
    }
}

/// `T[…] → T[trips, …]`
fn stacked(ty: &TensorType, trips: usize) -> TensorType {
    ty.with_shape([&[trips], ty.shape.dims()].concat())
}

fn zeros(g: &mut Rewriter, ty: &TensorType, like: &Node) -> ValueId {
    let zero = g.push(Constant { value: Literal::scalar(ty.dtype, 0.0) }, &[], like);
    g.push(BroadcastInDim { dims: Dims::new(), shape: ty.shape.clone() }, &[zero], like)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use systole_ir::{DType::F32, GraphBuilder, Tensor, flow, grad, interp};

    const STEPS: usize = 5;

    /// The gradients of `h ← tanh(h · w + x + b)` over some steps, with all states in the loss.
    fn recurrent() -> Arc<Graph> {
        let g = GraphBuilder::new("main");
        let param = |shape: &[usize]| g.parameter(TensorType::new(F32, shape), "x");
        let (h, w, b, xs) = (param(&[2, 3]), param(&[3, 3]), param(&[3]), param(&[STEPS, 2, 3]));
        let (_, ys) = flow::scan(&[&h], &[&xs], |carry, x| {
            let h = (carry[0].dot(&w) + &x[0] + &b).tanh();
            (vec![h.clone()], vec![h])
        });
        let loss = (&ys[0] * &ys[0]).sum_all();
        g.finish(&grad(&loss, &[&w, &b, &xs, &h])).unwrap()
    }

    fn loops(graph: &Graph) -> Vec<(&Node, &While)> {
        let mut all = Vec::new();
        for node in &graph.nodes {
            if let Op::While(w) = &node.op {
                all.push((node, w));
            }
        }
        all
    }

    fn products(graph: &Graph) -> usize {
        graph.nodes.iter().filter(|n| matches!(n.op, Op::DotGeneral(_))).count()
    }

    #[test]
    fn sums_of_all_trips_are_one_product_and_one_sum_after_the_loop() {
        let graph = recurrent();
        let (after, _) = crate::optimize(&graph).unwrap();
        after.verify().unwrap();
        // The forward loop's product; the backward loop's are that one again and the one that the next trip needs, while
        // nothing reads the one for the weights any more.
        let inside = |w: &While| products(&crate::graph::prune::run(&w.body));
        let inside: Vec<usize> = loops(&after).iter().map(|(_, w)| inside(w)).collect();
        assert_eq!(inside, [1, 2], "{after:?}");
        assert_eq!(products(&after), 1);
        let args: Vec<Literal> = graph
            .param_types()
            .iter()
            .enumerate()
            .map(|(i, t)| {
                let values: Vec<f32> = (0..t.elements()).map(|k| ((k * 7 + i) % 5) as f32 * 0.1).collect();
                Literal::from_slice(t.shape.dims(), &values).unwrap()
            })
            .collect();
        let args: Vec<&Literal> = args.iter().collect();
        let (want, got) = (interp::run(&graph, &args).unwrap(), interp::run(&after, &args).unwrap());
        for (want, got) in want.iter().zip(&got) {
            for (x, y) in want.to_f64s().iter().zip(got.to_f64s()) {
                assert!((x - y).abs() < 1e-6, "{x} {y}");
            }
        }
    }

    #[test]
    fn arrays_of_all_trips_need_no_value_before_the_loop() {
        let (after, _) = crate::optimize(&recurrent()).unwrap();
        for (node, w) in loops(&after) {
            let blank = blank_states(&after, node, w);
            for (k, ty) in w.body.result_types().iter().enumerate() {
                let is_stack = ty.rank() > 0 && ty.shape[0] == STEPS;
                assert_eq!(blank[k], is_stack, "state {k}, {ty}");
            }
        }
        let s = crate::schedule(&after, &crate::Options::default()).unwrap();
        let zeros = |step: &crate::Step| {
            step.inputs.is_empty() && step.output_types.iter().any(|t| t.shape.first() == Some(&STEPS))
        };
        assert!(!s.steps.iter().any(zeros), "{s}");
    }

    #[test]
    fn what_is_read_in_the_loop_stays_in_it() {
        let g = GraphBuilder::new("main");
        let xs = g.parameter(TensorType::new(F32, [STEPS, 3, 3]), "xs");
        let start = g.full(&TensorType::new(F32, [3, 3]), 0.0);
        let (sum, _) = flow::scan(&[&start], &[&xs], |carry, x| {
            let seen: Tensor = carry[0].sum_all();
            (vec![&carry[0] + &x[0].dot(&x[0])], vec![seen])
        });
        let (after, _) = crate::optimize(&g.finish(&sum).unwrap()).unwrap();
        assert_eq!(products(&loops(&after)[0].1.body), 1);
    }
}
