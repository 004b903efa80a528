//! Hoists sums out of counted loops: replaces a sum over all iterations by one large contraction after the loop.
//!
//! A state `s ← s + a · b` that nothing else reads is a sum of contractions over the iterations. Each iteration then
//! only stores its `a` and `b` in stacked arrays, and one large contraction after the loop replaces the many small
//! ones. This is the gradient of a recurrent layer's weights. Sums over dimensions are handled in the same way.
//!
//! An operand is not stored again if a stacked array of its values already exists: as a capture that the loop reads
//! entry by entry, or as a stacked state that records the values of a state that starts as zero.

use super::counted_loop::{CountedLoop, IterationOrder};
use crate::graph::rewrite::{NodeLookup, NodeResults, Rewriter, rebuild};
use std::collections::HashMap;
use systole_ir::op::{Binary, DotGeneral, DynamicUpdateSlice, Monoid, Parameter, Reduce, Reshape, While};
use systole_ir::{DType, Dims, Graph, Node, Op, TensorType, ValueId};

/// Hoists sums over all iterations out of counted loops. `optimize` runs all exact passes.
pub fn run(graph: &Graph, optimize: fn(&Graph) -> Option<Graph>) -> Graph {
    rebuild(graph, |g, _, node, inputs| {
        let Op::While(w) = &node.op else { return None };
        if w.trip_count.is_none() {
            w.limit(|_| None)?;
        }
        // The body is not simplified yet, and the patterns below match simplified graphs.
        let body = optimize(&w.body)?;
        let w = While { body: body.into(), recorded: None, ..w.clone() };
        let from_zero = |k: usize| g.is_zero(inputs[w.captures + k]);
        let trip_count = w.trip_count.or_else(|| counted(&w, from_zero)).filter(|&n| n > 0)?;
        let (is_ours, w) = (w.trip_count.is_some(), While { trip_count: Some(trip_count), ..w });
        let moving = SumHoisting { w: &w, sums: CountedLoop::of(&w, from_zero).sums(), node };
        // Loops of imported programs may have any number of iterations: the arrays stored for a sum must not exceed the
        // loop's operands.
        let held: usize = inputs.iter().map(|&v| g.ty(v).bytes()).sum();
        Some(match moving.sums.is_empty() || (!is_ours && moving.stored() > held) {
            true => all_results(g.push(w, inputs, node), node.outs.len()),
            false => moving.run(g, inputs),
        })
    })
}

/// Number of iterations of a loop whose condition determines it: a counter from zero in steps of one, below a limit.
fn counted(w: &While, from_zero: impl Fn(usize) -> bool) -> Option<usize> {
    let (number, k) = w.limit(|_| None)?;
    CountedLoop::of(w, from_zero).counters.contains(&w.body.params[w.captures + k]).then_some(number)
}

/// For each state of a loop, whether its initial value is never read, because the iterations overwrite every entry
/// before anything reads one.
pub fn blank_states(graph: &Graph, node: &Node, w: &While) -> Vec<bool> {
    let trips = CountedLoop::of_node(graph, node, w);
    (0..w.body.results.len()).map(|k| trips.is_filled(k)).collect()
}

fn all_results(first: ValueId, count: usize) -> NodeResults {
    (0..count).map(|k| ValueId { node: first.node, out: k as u32 }).collect()
}

/// Where the values of one operand of the summand are after the loop, as a stacked array.
#[derive(Clone, Copy, Debug)]
enum OperandSource {
    /// Entries of the capture with this index.
    Capture(usize, IterationOrder),
    /// Entries of the stacked state with this index: entry `t` holds the operand of iteration `t + 1`.
    State(usize, IterationOrder),
    /// A value of the body that each iteration has to store.
    Value(ValueId),
}

/// A state that iterations only add to.
struct LoopSum {
    state: usize,
    /// The parameter of the body that counts the iterations.
    counter: ValueId,
    /// The summand, a contraction or a reduction.
    made_by: ValueId,
    sources: Vec<OperandSource>,
    order: IterationOrder,
    /// Whether iteration `t` stores its values at the entry of iteration `t − 1`, to match [`OperandSource::State`].
    /// The first iteration has no such entry: its write is clamped and then overwritten by the second. The last entry
    /// stays zero.
    shifted: bool,
}

impl CountedLoop<'_> {
    fn sums(&self) -> Vec<LoopSum> {
        (0..self.body.results.len()).filter_map(|k| self.sum(k)).collect()
    }

    /// State `k` as a sum of contractions or of reductions.
    fn sum(&self, k: usize) -> Option<LoopSum> {
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
                self.body.is_zero(node.inputs[1]).then_some(&node.inputs[..1])?
            }
            _ => return None,
        };
        if !fits {
            return None;
        }
        let mut sources: Vec<OperandSource> =
            operands.iter().map(|&v| self.source(v)).collect::<Option<_>>()?;
        let held = |s: &OperandSource| match s {
            OperandSource::Capture(_, order) | OperandSource::State(_, order) => Some(*order),
            OperandSource::Value(_) => None,
        };
        let mut shifted = false;
        if sources.iter().all(|s| held(s).is_none()) && sources.len() == 2 {
            // The other operand must be stored with a shift, so only one of the two can come from a state.
            let state = sources.iter().zip(operands).find_map(|(_, &v)| Some((v, self.carried(v)?)));
            if let Some((v, state)) = state {
                let place = operands.iter().position(|&o| o == v).unwrap_or(0);
                sources[place] = state;
                shifted = true;
            }
        }
        let order = sources.iter().find_map(held).unwrap_or(IterationOrder::Forward);
        for (source, &v) in sources.iter_mut().zip(operands) {
            if held(source).is_some_and(|o| o != order) {
                *source = OperandSource::Value(v);
            }
        }
        Some(LoopSum {
            state: k,
            counter: *self.counters.first()?,
            made_by: summand,
            sources,
            order,
            shifted,
        })
    }

    /// If `v` is a state that starts as zero, the stacked state that records its later values.
    fn carried(&self, v: ValueId) -> Option<OperandSource> {
        let states = &self.body.params[self.w.captures..];
        let own = states.iter().position(|&p| p == v).filter(|&k| self.from_zero[k] && self.count > 1)?;
        (0..states.len()).filter(|&k| self.is_filled(k)).find_map(|k| {
            let made = self.body.node(self.body.results[k]);
            let block = self.body.node(made.inputs[1]);
            let holds = matches!(block.op, Op::Reshape(_))
                && block.inputs[0] == self.body.results[own]
                && self.body.ty(v).shape[..] == self.body.ty(states[k]).shape[1..];
            Some(OperandSource::State(k, self.order(made.inputs[2]).filter(|_| holds)?))
        })
    }

    /// Where the values of an operand come from; `None` for a capture, which is the same in all iterations.
    fn source(&self, v: ValueId) -> Option<OperandSource> {
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
            return Some(OperandSource::Capture(c, order));
        }
        Some(OperandSource::Value(v))
    }
}

/// A value that each iteration stores in a stacked array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct StackedValue {
    value: ValueId,
    order: IterationOrder,
    shifted: bool,
}

/// Rewrite of one loop.
struct SumHoisting<'w> {
    w: &'w While,
    sums: Vec<LoopSum>,
    node: &'w Node,
}

impl SumHoisting<'_> {
    /// The values to store, without duplicates.
    fn aside(&self) -> Vec<StackedValue> {
        let mut all = Vec::new();
        for sum in &self.sums {
            for source in &sum.sources {
                if let OperandSource::Value(value) = *source {
                    let aside = StackedValue { value, order: sum.order, shifted: sum.shifted };
                    if !all.contains(&aside) {
                        all.push(aside);
                    }
                }
            }
        }
        all
    }

    /// Bytes of the arrays in which values are stored.
    fn stored(&self) -> usize {
        let count = self.w.trip_count.unwrap_or(0);
        let each = |a: &StackedValue| self.w.body.ty(a.value).bytes().saturating_mul(count);
        self.aside().iter().map(each).fold(0, usize::saturating_add)
    }

    /// Whether a state remains a state of the new loop.
    fn stays(&self, state: usize) -> bool {
        self.sums.iter().all(|s| s.state != state)
    }

    /// Emits the new loop, and after it the sums. Returns the values that replace the results of the old loop.
    fn run(&self, g: &mut Rewriter, inputs: &[ValueId]) -> NodeResults {
        let (w, nc) = (self.w, self.w.captures);
        let count = w.trip_count.unwrap_or(0);
        let aside = self.aside();
        let stacks: Vec<TensorType> = aside.iter().map(|a| stacked(w.body.ty(a.value), count)).collect();
        let mut operands: Vec<ValueId> = inputs[..nc].to_vec();
        operands.extend(inputs[nc..].iter().enumerate().filter(|&(k, _)| self.stays(k)).map(|(_, &v)| v));
        operands.extend(stacks.iter().map(|ty| g.full(ty, 0.0, self.node)));
        let op = While {
            cond: self.with_new_params(&w.cond, &w.cond.results, &stacks, |_, _, results| results).into(),
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
                    let of = |source: &OperandSource| match *source {
                        OperandSource::Capture(c, _) => inputs[c],
                        OperandSource::State(k, _) => state(k),
                        OperandSource::Value(value) => {
                            let own = StackedValue { value, order: sum.order, shifted: sum.shifted };
                            result(kept + aside.iter().position(|a| *a == own).unwrap_or(0))
                        }
                    };
                    let operands: Vec<ValueId> = sum.sources.iter().map(of).collect();
                    self.after(g, sum, &operands, inputs[nc + k])
                }
            })
            .collect()
    }

    /// The sum over all iterations, added to the state's initial value.
    fn after(&self, g: &mut Rewriter, sum: &LoopSum, stacks: &[ValueId], before: ValueId) -> ValueId {
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
                let zero = g.scalar(g.ty(stacks[0]).dtype, 0.0, self.node);
                let op = Reduce { dims: with_trips(&r.dims), body: r.body.clone() };
                g.push(op, &[stacks[0], zero], self.node)
            }
            other => systole_ir::bug!("{} is not a sum", other.name()),
        };
        if g.is_zero(before) { total } else { g.push(Binary::Add, &[before, total], self.node) }
    }

    /// The body without the sums; it stores their operands instead.
    fn body(&self, aside: &[StackedValue], stacks: &[TensorType]) -> Graph {
        let body = &*self.w.body;
        let counter = self.sums[0].counter;
        let count = self.w.trip_count.unwrap_or(0);
        let kept = body.results.iter().enumerate().filter(|&(k, _)| self.stays(k));
        let results: Vec<ValueId> = kept.map(|(_, &v)| v).collect();
        self.with_new_params(body, &results, stacks, |r, map, mut results| {
            let first = self.w.captures + results.len();
            let like = &body.nodes[counter.index()];
            let scalar = |r: &mut Rewriter, value: f64| r.scalar(DType::I32, value, like);
            let zero = scalar(r, 0.0);
            for (k, a) in aside.iter().enumerate() {
                let ty = body.ty(a.value);
                let shape: systole_ir::Shape = std::iter::once(1).chain(ty.shape.iter().copied()).collect();
                let block = r.push(Reshape { shape }, &[map[&a.value]], like);
                // Indices outside the array are clamped.
                let index = match (a.order, a.shifted) {
                    (IterationOrder::Forward, false) => map[&counter],
                    (IterationOrder::Forward, true) => {
                        let one = scalar(r, 1.0);
                        r.push(Binary::Subtract, &[map[&counter], one], like)
                    }
                    (IterationOrder::Backward, shifted) => {
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

    /// A copy of `graph` (body or condition) with the parameters of the new loop, which come first among its nodes.
    /// `finish` gets the builder, the new value of each old one, and the new results, and returns the results to use.
    fn with_new_params(
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
            // Only the sum itself reads a state that was removed.
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

/// Type of a stacked array: `T[…] → T[trips, …]`.
fn stacked(ty: &TensorType, trips: usize) -> TensorType {
    ty.with_shape([&[trips], ty.shape.dims()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use systole_ir::{DType::F32, GraphBuilder, Literal, Tensor, control_builders, grad, interp};

    const STEPS: usize = 5;

    /// The gradients of `h ← tanh(h · w + x + b)` over some steps, with all states in the loss.
    fn recurrent() -> Arc<Graph> {
        let g = GraphBuilder::new("main");
        let param = |shape: &[usize]| g.parameter(TensorType::new(F32, shape), "x");
        let (h, w, b, xs) = (param(&[2, 3]), param(&[3, 3]), param(&[3]), param(&[STEPS, 2, 3]));
        let (_, ys) = control_builders::scan(&[&h], &[&xs], |carry, x| {
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
        // The forward loop has its one dot. The backward loop recomputes that and has the one for the state's gradient;
        // the one for the weight gradient has no reader in the loop any more.
        let inside = |w: &While| products(&crate::graph::canonicalize::dead_code::run(&w.body));
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
        let s = crate::schedule(&after, &crate::PipelineOptions::default()).unwrap();
        let zeros = |step: &crate::Step| {
            step.inputs.is_empty() && step.output_types.iter().any(|t| t.shape.first() == Some(&STEPS))
        };
        assert!(!s.steps.iter().any(zeros), "{s}");
    }

    /// The graph without trip counts, as imported from another framework: only the condition determines the iterations.
    fn uncounted(graph: &Graph) -> Graph {
        let mut graph = graph.clone();
        for node in &mut graph.nodes {
            if let Op::While(w) = &mut node.op {
                (w.trip_count, w.recorded) = (None, None);
            }
        }
        graph
    }

    #[test]
    fn loops_that_count_by_themselves_are_seen_through() {
        let [ours, theirs] =
            [recurrent().as_ref().clone(), uncounted(&recurrent())].map(|g| crate::optimize(&g).unwrap().0);
        assert_eq!(products(&theirs), 1);
        let trips = |g: &Graph| loops(g).iter().map(|(_, w)| w.trip_count).collect::<Vec<_>>();
        assert_eq!(trips(&theirs), [Some(STEPS), Some(STEPS)]);
        assert_eq!(ours.nodes.len(), theirs.nodes.len());
    }

    #[test]
    fn no_more_is_stored_for_a_sum_than_a_loop_of_others_has() {
        // Each of 100 iterations sums 1,000 products: of numbers that differ between iterations, or of the same
        // numbers.
        let moved = |numbers: &[usize]| {
            let g = GraphBuilder::new("main");
            let x = g.parameter(TensorType::new(F32, [1000]), "x");
            let start = g.full(&TensorType::scalar(F32), 0.0);
            let each = g.parameter(TensorType::new(F32, numbers), "each");
            let (sum, _) = control_builders::scan(&[&start], &[&each], |carry, t| {
                let t = if t[0].rank() == 0 { t[0].broadcast_in_dim(x.shape(), &[]) } else { t[0].clone() };
                (vec![&carry[0] + (&x * t).sum_all()], vec![])
            });
            let (after, _) = crate::optimize(&uncounted(&g.finish(&sum).unwrap())).unwrap();
            let body = crate::graph::canonicalize::dead_code::run(&loops(&after)[0].1.body);
            !body.nodes.iter().any(|n| matches!(n.op, Op::Reduce(_)))
        };
        assert!(moved(&[100, 1000]));
        assert!(!moved(&[100]));
    }

    #[test]
    fn what_is_read_in_the_loop_stays_in_it() {
        let g = GraphBuilder::new("main");
        let xs = g.parameter(TensorType::new(F32, [STEPS, 3, 3]), "xs");
        let start = g.full(&TensorType::new(F32, [3, 3]), 0.0);
        let (sum, _) = control_builders::scan(&[&start], &[&xs], |carry, x| {
            let seen: Tensor = carry[0].sum_all();
            (vec![&carry[0] + &x[0].dot(&x[0])], vec![seen])
        });
        let (after, _) = crate::optimize(&g.finish(&sum).unwrap()).unwrap();
        assert_eq!(products(&loops(&after)[0].1.body), 1);
    }
}
