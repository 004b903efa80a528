//! Partitions graph nodes that compute each row independently into segments, each of which can run block by block.
//!
//! A node's phase counts the full passes over the rows that must be complete before it runs. It is that of its
//! operands, or one more if an operand is computed by rows but read as a whole, or is a sum over the rows. Nodes of one
//! phase that read rows of each other, or the same arrays, form a segment. A segment is convex: a path that leaves it
//! and returns would have to raise the phase.

use super::row_rules::{Use, is_free, row_op};
use super::segment::base;
use std::collections::HashMap;
use systole_ir::op::LoweringClass;
use systole_ir::{Graph, ValueId};

/// How a node participates in row blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowRole {
    /// The results have rows and are computed by row blocks.
    Rows,
    /// The result is a sum over the rows.
    Sum,
    /// The node cannot run by row blocks.
    Other,
}

/// An operand of a row-wise node: the value behind free nodes, and whether a block reads only its own rows.
#[derive(Clone, Copy, Debug)]
pub struct OperandRead {
    pub value: ValueId,
    pub by_rows: bool,
}

/// Roles and phases of the nodes of a graph for a row count.
pub struct SegmentPartition<'g> {
    graph: &'g Graph,
    rows: usize,
    pub roles: Vec<RowRole>,
    reads: Vec<Vec<OperandRead>>,
    phase: Vec<usize>,
}

impl<'g> SegmentPartition<'g> {
    /// Assigns roles and phases; nodes for which `barred` holds must not work by rows.
    pub fn new(graph: &'g Graph, rows: usize, barred: &dyn Fn(usize) -> bool) -> SegmentPartition<'g> {
        let n = graph.nodes.len();
        let mut p = SegmentPartition {
            graph,
            rows,
            roles: vec![RowRole::Other; n],
            reads: vec![Vec::new(); n],
            phase: vec![0; n],
        };
        for i in 0..n {
            p.add(i, barred(i));
        }
        p.put_off();
        p
    }

    /// Moves element-wise nodes whose readers are all in a later phase to that phase, if their operands are read there
    /// anyway or are small. Otherwise the earlier segment would write an array for the later one to read.
    fn put_off(&mut self) {
        let n = self.graph.nodes.len();
        // For each value: the last phase that reads it, and the latest phase in which it may be computed.
        let (mut last, mut until) = (vec![0; n], vec![usize::MAX; n]);
        for i in 0..n {
            self.reads[i]
                .iter()
                .for_each(|r| last[r.value.index()] = last[r.value.index()].max(self.phase[i]));
        }
        self.graph.results.iter().filter_map(|&r| base(self.graph, r)).for_each(|v| until[v.index()] = 0);
        for i in (0..n).rev() {
            let node = &self.graph.nodes[i];
            let can_wait = self.roles[i] == RowRole::Rows && node.op.rule().lower() == LoweringClass::Map;
            let is_there = |read: &OperandRead| {
                let small = self.graph.ty(read.value).bytes() * 16 <= node.outs[0].bytes();
                small || last[read.value.index()] >= until[i]
            };
            if can_wait
                && (self.phase[i] + 1..usize::MAX).contains(&until[i])
                && self.reads[i].iter().all(is_there)
            {
                self.phase[i] = until[i];
            }
            for read in &self.reads[i] {
                let from = read.value.index();
                let later = self.roles[from] != RowRole::Other && !read.by_rows;
                until[from] = until[from].min(self.phase[i].saturating_sub(later as usize));
            }
        }
    }

    fn add(&mut self, i: usize, barred: bool) {
        let node = &self.graph.nodes[i];
        if is_free(&node.op) {
            return;
        }
        let row = if barred { None } else { row_op(self.graph, node, self.rows, self.rows) };
        self.roles[i] = match &row {
            Some(r) if r.sums => RowRole::Sum,
            Some(_) => RowRole::Rows,
            None => RowRole::Other,
        };
        let mut phase = 0;
        for (k, &v) in node.inputs.iter().enumerate() {
            let how = row.as_ref().map_or(Use::Whole, |r| r.uses[k]);
            let Some(read) = self.read(v, how) else { continue };
            self.reads[i].push(read);
            let from = read.value.index();
            let later = self.roles[from] != RowRole::Other && !read.by_rows;
            phase = phase.max(self.phase[from] + later as usize);
        }
        self.phase[i] = phase;
    }

    fn read(&self, v: ValueId, how: Use) -> Option<OperandRead> {
        let value = base(self.graph, v)?;
        let mut by_rows = how == Use::Rows && self.roles[value.index()] == RowRole::Rows;
        let mut at = v;
        while by_rows && at != value {
            let node = self.graph.node(at);
            by_rows =
                row_op(self.graph, node, self.rows, self.rows).is_some_and(|r| r.uses[..] == [Use::Rows]);
            at = node.inputs[0];
        }
        Some(OperandRead { value, by_rows })
    }

    /// Returns the members of each row-block segment; segments are in order of their first members.
    pub fn segments(&self) -> Vec<Vec<usize>> {
        let n = self.graph.nodes.len();
        let mut joined = DisjointSets((0..n).collect());
        let mut shared: HashMap<(ValueId, usize), usize> = HashMap::new();
        for i in (0..n).filter(|&i| self.roles[i] != RowRole::Other) {
            for read in &self.reads[i] {
                let from = read.value.index();
                if read.by_rows && self.phase[from] == self.phase[i] {
                    joined.join(from, i);
                } else if self.graph.ty(read.value).rank() > 0 {
                    let first = *shared.entry((read.value, self.phase[i])).or_insert(i);
                    joined.join(first, i);
                }
            }
        }
        let mut at: HashMap<usize, usize> = HashMap::new();
        let mut segments: Vec<Vec<usize>> = Vec::new();
        for i in (0..n).filter(|&i| self.roles[i] != RowRole::Other) {
            let root = joined.root(i);
            let k = *at.entry(root).or_insert_with(|| {
                segments.push(Vec::new());
                segments.len() - 1
            });
            segments[k].push(i);
        }
        segments
    }

    /// Returns for each node its results that are read outside the row block that computes them.
    pub fn needed(&self) -> Vec<Vec<ValueId>> {
        let mut needed: Vec<Vec<ValueId>> = vec![Vec::new(); self.graph.nodes.len()];
        let mut note = |v: ValueId| {
            let list = &mut needed[v.index()];
            if !list.contains(&v) {
                list.push(v);
            }
        };
        for i in 0..self.graph.nodes.len() {
            for read in &self.reads[i] {
                if !(read.by_rows && self.phase[read.value.index()] == self.phase[i]) {
                    note(read.value);
                }
            }
        }
        self.graph.results.iter().filter_map(|&r| base(self.graph, r)).for_each(note);
        needed
    }
}

/// Union-find over nodes.
struct DisjointSets(Vec<usize>);

impl DisjointSets {
    fn root(&mut self, mut i: usize) -> usize {
        while self.0[i] != i {
            self.0[i] = self.0[self.0[i]];
            i = self.0[i];
        }
        i
    }

    /// Merges two sets; the smaller root remains.
    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.0[a.max(b)] = a.min(b);
    }
}
