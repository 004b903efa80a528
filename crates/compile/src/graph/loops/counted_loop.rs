//! Analysis of counted loops: which states are iteration counters, and which are stacked arrays with one entry per
//! iteration.

use crate::graph::rewrite::NodeLookup;
use systole_ir::op::{Binary, DynamicUpdateSlice, While};
use systole_ir::{DType, Graph, Node, Op, TensorType, ValueId};

/// Order in which iterations visit the entries of a stacked array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum IterationOrder {
    Forward,
    Backward,
}

/// A counted loop, with the body parameters that count iterations from 0.
pub(super) struct CountedLoop<'w> {
    pub(super) w: &'w While,
    pub(super) body: &'w Graph,
    pub(super) count: usize,
    pub(super) counters: Vec<ValueId>,
    /// Which states start as zero.
    pub(super) from_zero: Vec<bool>,
    pub(super) uses: Vec<usize>,
}

impl<'w> CountedLoop<'w> {
    /// Analyzes a loop node of a graph.
    pub(super) fn of_node(graph: &Graph, node: &Node, w: &'w While) -> CountedLoop<'w> {
        CountedLoop::of(w, |k| graph.is_zero(node.inputs[w.captures + k]))
    }

    /// For a stacked state in which each iteration only writes its own entry: the entry's value, without the dimension
    /// of iterations, and its index.
    pub(super) fn entry(&self, k: usize) -> Option<(ValueId, ValueId)> {
        let made = self.body.node(self.body.results[k]);
        if !self.is_filled(k) {
            return None;
        }
        let (block, stack) = (self.body.node(made.inputs[1]), &made.outs[0]);
        let value = *block.inputs.first().filter(|_| matches!(block.op, Op::Reshape(_)))?;
        (self.body.ty(value).shape[..] == stack.shape[1..]).then_some((value, made.inputs[2]))
    }

    /// Analyzes a loop; `from_zero` tells which states start as zero.
    pub(super) fn of(w: &'w While, from_zero: impl Fn(usize) -> bool) -> CountedLoop<'w> {
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
        CountedLoop {
            w,
            body,
            count: w.trip_count.unwrap_or(0),
            counters,
            from_zero,
            uses: body.use_counts(),
        }
    }

    /// Order in which `index` visits the entries, if it visits each entry once.
    pub(super) fn order(&self, index: ValueId) -> Option<IterationOrder> {
        let node = self.body.node(index);
        let last = self.count as i64 - 1;
        match &node.op {
            _ if self.counters.contains(&index) => Some(IterationOrder::Forward),
            Op::Binary(Binary::Subtract) if self.counters.contains(&node.inputs[1]) => {
                let from = &self.body.node(node.inputs[0]).op;
                matches!(from, Op::Constant(c) if c.value.get(0).as_i64() == last)
                    .then_some(IterationOrder::Backward)
            }
            _ => None,
        }
    }

    /// Whether `block` is the type of one entry of `stack`, which has one entry per iteration.
    pub(super) fn is_entry(&self, stack: &TensorType, block: &TensorType) -> bool {
        stack.rank() > 0
            && stack.rank() == block.rank()
            && (stack.shape[0], block.shape[0]) == (self.count, 1)
            && stack.shape[1..] == block.shape[1..]
    }

    /// Whether state `k` is read once in the body and never by the condition.
    pub(super) fn is_read_once(&self, k: usize) -> bool {
        let (own, tested) = (self.body.params[self.w.captures + k], self.w.cond.params[self.w.captures + k]);
        self.uses[own.index()] == 1 && self.w.cond.use_counts()[tested.index()] == 0
    }

    /// Whether state `k` is a stacked array in which each iteration only writes its own entry.
    pub(super) fn is_filled(&self, k: usize) -> bool {
        let own = self.body.params[self.w.captures + k];
        let made = self.body.node(self.body.results[k]);
        made.op == Op::DynamicUpdateSlice(DynamicUpdateSlice)
            && made.inputs[0] == own
            && self.is_entry(self.body.ty(own), self.body.ty(made.inputs[1]))
            && self.order(made.inputs[2]).is_some()
            && self.is_read_once(k)
    }
}
