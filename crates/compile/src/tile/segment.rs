//! Builds the graphs of a segment (a set of nodes that runs block by block): one for a row block, one for all rows.
//!
//! Free nodes (see [`is_free`]) are not members. They are copied into the segment, so that its inputs are the values
//! behind them.

use super::row_rules::{ADD, Use, block_type, is_free, row_op, sum_type, transposed};
use crate::graph::rewrite::Rewriter;
use std::collections::HashMap;
use systole_ir::op::{Constant, Convert, Parameter, Reduce};
use systole_ir::{Graph, Literal, Node, Op, TensorType, ValueId, bug};

/// A segment for row blocks: nodes that work by rows, with the values that enter and leave it.
pub struct BlockSegment<'g> {
    pub graph: &'g Graph,
    pub rows: usize,
    /// Member nodes in graph order.
    pub members: Vec<usize>,
    /// Values that enter, with the part that a block reads.
    pub inputs: Vec<(ValueId, Use)>,
    /// Values that leave and are sums over the rows.
    pub sums: Vec<ValueId>,
    /// Values that leave and have rows.
    pub outs: Vec<ValueId>,
}

/// Skips a chain of free nodes and returns the value behind it; `None` if the chain starts with a constant or iota.
pub fn base(graph: &Graph, mut v: ValueId) -> Option<ValueId> {
    loop {
        let node = graph.node(v);
        if !is_free(&node.op) {
            return Some(v);
        }
        v = *node.inputs.first()?;
    }
}

impl<'g> BlockSegment<'g> {
    /// Creates a segment for row blocks; `needed` are the values of its members that are read outside.
    pub fn new(graph: &'g Graph, rows: usize, members: Vec<usize>, needed: Vec<ValueId>) -> Self {
        let mut region =
            BlockSegment { graph, rows, members, inputs: Vec::new(), sums: Vec::new(), outs: Vec::new() };
        let sums = |v: &ValueId| row_op(graph, graph.node(*v), rows, rows).is_some_and(|r| r.sums);
        (region.sums, region.outs) = needed.into_iter().partition(sums);
        for m in region.members.clone() {
            let node = &graph.nodes[m];
            let Some(row) = row_op(graph, node, rows, rows) else {
                bug!("a member of the segment does not work by rows")
            };
            for (&v, &how) in node.inputs.iter().zip(&row.uses) {
                region.gather(v, how);
            }
        }
        region
    }

    fn has(&self, v: ValueId) -> bool {
        self.members.binary_search(&v.index()).is_ok()
    }

    /// Op and operand of a free node that is copied into the segment; `None` if its value is an input instead.
    fn inner(&self, v: ValueId, how: Use, block: Option<usize>) -> Option<(Op, Option<(ValueId, Use)>)> {
        let node = self.graph.node(v);
        if !is_free(&node.op) {
            return None;
        }
        match how {
            Use::Transposed => None,
            Use::Whole => base(self.graph, v)
                .is_none()
                .then(|| (node.op.clone(), node.inputs.first().map(|&x| (x, Use::Whole)))),
            Use::Rows => {
                let row = row_op(self.graph, node, self.rows, block.unwrap_or(self.rows))?;
                let op = if block.is_some() { row.op } else { node.op.clone() };
                Some((op, node.inputs.first().map(|&x| (x, row.uses[0]))))
            }
        }
    }

    fn gather(&mut self, v: ValueId, how: Use) {
        if how == Use::Rows && self.has(v) {
            return;
        }
        match self.inner(v, how, None) {
            Some((_, Some((x, how)))) => self.gather(x, how),
            Some((_, None)) => {}
            None if self.inputs.contains(&(v, how)) => {}
            None => self.inputs.push((v, how)),
        }
    }

    /// Returns the type of a segment's input for a block of `block` rows.
    pub fn input_type(&self, (v, how): (ValueId, Use), block: usize) -> TensorType {
        let ty = self.graph.ty(v);
        match how {
            Use::Whole => ty.clone(),
            Use::Transposed => ty.with_shape([ty.shape[1], ty.shape[0]]),
            Use::Rows => match block_type(ty, self.rows, block) {
                Some(ty) => ty,
                None => bug!("{ty} does not have {} rows", self.rows),
            },
        }
    }

    /// Returns the type of the accumulator of a sum over row blocks.
    pub fn sum_type(&self, v: ValueId) -> TensorType {
        let ty = self.graph.ty(v);
        ty.with_dtype(sum_type(ty.dtype))
    }

    /// Builds the graph of one row block: `(sums so far…, inputs…) → (sums…, outs…)` for `block` rows.
    pub fn body(&self, block: usize) -> Graph {
        self.build(Some(block))
    }

    /// Builds the graph of a segment for all rows: `(inputs…) → (sums…, outs…)`, with the graph's own types.
    pub fn whole(&self) -> Graph {
        self.build(None)
    }

    fn build(&self, block: Option<usize>) -> Graph {
        let mut b = SegmentGraphBuilder {
            region: self,
            block,
            new: Rewriter::default(),
            map: HashMap::new(),
            params: Vec::new(),
        };
        let like = &self.graph.nodes[self.members[0]];
        let so_far: Vec<ValueId> = match block {
            Some(_) => self.sums.iter().map(|&v| b.parameter(self.sum_type(v), like)).collect(),
            None => Vec::new(),
        };
        for &(v, how) in &self.inputs {
            let ty = match (block, how) {
                (None, Use::Rows) => self.graph.ty(v).clone(),
                _ => self.input_type((v, how), block.unwrap_or(self.rows)),
            };
            let param = b.parameter(ty, self.graph.node(v));
            b.map.insert((v, how), param);
        }
        for &m in &self.members {
            b.member(m);
        }
        let mut results = Vec::new();
        for (k, &v) in self.sums.iter().enumerate() {
            let mut sum = b.map[&(v, Use::Rows)];
            let ty = self.sum_type(v);
            if *b.new.ty(sum) != ty {
                sum = b.new.push(Convert { to: ty.dtype }, &[sum], self.graph.node(v));
            }
            let add = |so_far: &ValueId| b.new.push(ADD, &[*so_far, sum], self.graph.node(v));
            results.push(so_far.get(k).map_or(sum, add));
        }
        results.extend(self.outs.iter().map(|&v| b.map[&(v, Use::Rows)]));
        Graph {
            name: format!("{} by rows", self.graph.name),
            param_names: (0..b.params.len()).map(|k| format!("x{k}")).collect(),
            params: b.params,
            results,
            scopes: self.graph.scopes.clone(),
            nodes: b.new.into_nodes(),
        }
    }
}

struct SegmentGraphBuilder<'r, 'g> {
    region: &'r BlockSegment<'g>,
    /// Rows of a block; `None` for all rows, with the graph's own ops.
    block: Option<usize>,
    new: Rewriter,
    map: HashMap<(ValueId, Use), ValueId>,
    params: Vec<ValueId>,
}

impl SegmentGraphBuilder<'_, '_> {
    fn parameter(&mut self, ty: TensorType, like: &Node) -> ValueId {
        let v = self.new.push(Parameter { index: self.params.len(), ty }, &[], like);
        self.params.push(v);
        v
    }

    fn value(&mut self, v: ValueId, how: Use) -> ValueId {
        if let Some(&new) = self.map.get(&(v, how)) {
            return new;
        }
        let Some((op, operand)) = self.region.inner(v, how, self.block) else {
            bug!("%{} is read by rows before it is defined", v.node)
        };
        let operands: Vec<ValueId> = operand.map(|(x, how)| self.value(x, how)).into_iter().collect();
        let new = self.new.push(op, &operands, self.region.graph.node(v));
        self.map.insert((v, how), new);
        new
    }

    fn member(&mut self, m: usize) {
        let graph = self.region.graph;
        let node = &graph.nodes[m];
        let rows = self.region.rows;
        let Some(row) = row_op(graph, node, rows, self.block.unwrap_or(rows)) else {
            bug!("{} does not work by rows", node.op.name())
        };
        let mut operands: Vec<ValueId> =
            node.inputs.iter().zip(&row.uses).map(|(&v, &how)| self.value(v, how)).collect();
        let op = match &node.op {
            _ if self.block.is_some() => row.op,
            Op::DotGeneral(d) if row.uses.contains(&Use::Transposed) => transposed(d).into(),
            op => op.clone(),
        };
        if self.block.is_some() && row.sums && matches!(op, Op::Reduce(Reduce { .. })) {
            self.widen(&mut operands, node);
        }
        let first = self.new.push(op, &operands, node);
        for k in 0..node.outs.len() {
            let new = ValueId { node: first.node, out: k as u32 };
            self.map.insert((ValueId::new(m, k), Use::Rows), new);
        }
    }

    /// Converts the operand and initial value of a reduction to the accumulator's type.
    fn widen(&mut self, operands: &mut [ValueId], like: &Node) {
        let dtype = self.new.ty(operands[0]).dtype;
        let wide = sum_type(dtype);
        if wide != dtype {
            operands[0] = self.new.push(Convert { to: wide }, &operands[..1], like);
            operands[1] =
                self.new.push(Constant { value: Literal::zeros(TensorType::scalar(wide)) }, &[], like);
        }
    }
}
