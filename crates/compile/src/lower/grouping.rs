//! Groups nodes into steps: element-wise groups, reductions with their input, contractions with their bias.
//!
//! Element-wise nodes of one shape form groups. Broadcasts, iotas and slices are loads of their consumers. A reduction
//! absorbs the element-wise group that feeds only this reduction, and a contraction absorbs the bias that is added to
//! it.

use crate::graph::layout::slices;
use crate::graph::loops::hoist_sums;
use std::collections::HashMap;
use systole_ir::op::{Binary, LoweringClass, Monoid};
use systole_ir::{DType, Graph, Node, Op, ValueId};

/// Maximum number of nodes in a group: the virtual registers of one tile must fit L1.
const MAX_GROUP: usize = 64;

/// Lowering of a graph node: its own step, or fused into another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeLowering {
    Param,
    Constant,
    /// The same bytes with another type: reshape, barrier, bitcast.
    Alias,
    /// Element-wise, part of group `FusionGroups::group[node]`.
    Map,
    /// Broadcast, iota, or a slice that is read in place ([`slices`]): a load of its element-wise consumers.
    Virtual,
    /// A separate step.
    Step,
    /// Part of a later step, such as a contraction whose bias that step adds.
    Absorbed,
}

/// Lowering decisions for the nodes of a graph: roles, groups and fused operands.
pub struct FusionGroups<'g> {
    /// The graph to lower.
    pub graph: &'g Graph,
    pub role: Vec<NodeLowering>,
    /// The nodes that use each node, directly or through aliases and virtual nodes.
    pub users: Vec<Vec<usize>>,
    pub is_result: Vec<bool>,
    /// The group of each node, identified by one of its members.
    pub group: Vec<usize>,
    /// The nodes of each group.
    pub members: HashMap<usize, Vec<usize>>,
    /// For a reduction, the group that it computes element by element before it reduces.
    pub prologue: HashMap<usize, usize>,
    /// For an addition, the contraction and the bias that is added to it.
    pub biased: HashMap<usize, (ValueId, ValueId)>,
    /// For an addition to a parameter, the contraction that is added and the parameter (GEMM with beta = 1).
    pub onto: HashMap<usize, (ValueId, ValueId)>,
    /// Element-wise values that their readers recompute (see [`super::inline`]).
    pub inlined: Vec<bool>,
    /// For a loop, which states have an initial value that is never read.
    pub blank: HashMap<usize, Vec<bool>>,
}

fn role_of(node: &Node) -> NodeLowering {
    match &node.op {
        Op::Parameter(_) => NodeLowering::Param,
        Op::Constant(_) => NodeLowering::Constant,
        Op::Reshape(_) | Op::OptimizationBarrier(_) | Op::BitcastConvert(_) => NodeLowering::Alias,
        Op::BroadcastInDim(_) | Op::Iota(_) => NodeLowering::Virtual,
        op if op.rule().lower() == LoweringClass::Map => NodeLowering::Map,
        _ => NodeLowering::Step,
    }
}

impl<'g> FusionGroups<'g> {
    /// Decides how nodes are grouped into steps, except which values are recomputed by their readers.
    pub fn of(graph: &'g Graph) -> FusionGroups<'g> {
        let mut fusion = FusionGroups::new(graph);
        fusion.find_biases();
        fusion.find_sums();
        fusion.find_groups();
        fusion.join_parts();
        fusion.find_prologues();
        fusion
    }

    /// Initial roles, users and results, before any nodes are grouped.
    fn new(graph: &'g Graph) -> FusionGroups<'g> {
        let n = graph.nodes.len();
        let role: Vec<NodeLowering> = graph.nodes.iter().map(role_of).collect();
        let mut f = FusionGroups {
            graph,
            role,
            users: vec![Vec::new(); n],
            is_result: vec![false; n],
            group: (0..n).collect(),
            members: HashMap::new(),
            prologue: HashMap::new(),
            biased: HashMap::new(),
            onto: HashMap::new(),
            inlined: vec![false; n],
            blank: HashMap::new(),
        };
        f.find_slices();
        for (i, node) in graph.nodes.iter().enumerate() {
            if let Op::While(w) = &node.op {
                f.blank.insert(i, hoist_sums::blank_states(graph, node, w));
            }
        }
        for i in 0..n {
            if matches!(f.role[i], NodeLowering::Alias) {
                continue;
            }
            for (k, &v) in graph.nodes[i].inputs.iter().enumerate() {
                let p = f.base(v).index();
                if f.reads(i, k) {
                    f.users[p].push(i);
                }
            }
        }
        // The users of a virtual node also use its operand.
        for i in (0..n).rev().filter(|&i| f.role[i] == NodeLowering::Virtual) {
            let through = f.users[i].clone();
            for &v in &graph.nodes[i].inputs {
                let p = f.base(v).index();
                f.users[p].extend(through.iter().copied());
            }
        }
        for &r in &graph.results {
            let base = f.base(r).index();
            f.is_result[base] = true;
        }
        f
    }

    /// Makes slices virtual that only element-wise ops read, if these can read them in place row by row.
    fn find_slices(&mut self) {
        let graph = self.graph;
        let is_map = |node: &Node| node.op.rule().lower() == LoweringClass::Map;
        let mut wanted_whole = vec![false; graph.nodes.len()];
        for node in graph.nodes.iter().filter(|node| !is_map(node)) {
            node.inputs.iter().for_each(|v| wanted_whole[v.index()] = true);
        }
        graph.results.iter().for_each(|r| wanted_whole[r.index()] = true);
        for (i, node) in graph.nodes.iter().enumerate() {
            if let (Op::Slice(s), false) = (&node.op, wanted_whole[i])
                && slices::is_read_in_place(s, graph.ty(node.inputs[0]))
            {
                self.role[i] = NodeLowering::Virtual;
            }
        }
    }

    /// Whether the step of `node` reads operand `k`. Loops do not read initial values that their body overwrites.
    pub fn reads(&self, node: usize, k: usize) -> bool {
        let (Op::While(w), Some(blank)) = (&self.graph.nodes[node].op, self.blank.get(&node)) else {
            return true;
        };
        k < w.captures || !blank[k - w.captures]
    }

    /// The value that owns the bytes of `v`: `v` with all aliases resolved.
    pub fn base(&self, mut v: ValueId) -> ValueId {
        while self.role[v.index()] == NodeLowering::Alias {
            let inputs = &self.graph.node(v).inputs;
            v = if inputs.len() == 1 { inputs[0] } else { inputs[v.out as usize] };
        }
        v
    }

    /// Fuses `dot(a, b) + broadcast(bias)`, with the bias along the last dimension, into one step. For bf16 and f16
    /// this applies only to convolutions, whose kernels round before and after the bias, and only if a reader converts
    /// the sum to f32: the fused step stores the rounded sum for all of its readers.
    fn find_biases(&mut self) {
        for i in 0..self.graph.nodes.len() {
            let node = &self.graph.nodes[i];
            let dtype = node.outs[0].dtype;
            let widens = |&u: &usize| {
                let user = &self.graph.nodes[u];
                matches!(user.op, Op::Convert(_)) && user.outs[0].dtype == DType::F32
            };
            let narrow = matches!(dtype, DType::BF16 | DType::F16);
            let stored = dtype == DType::F32 || narrow && self.users[i].iter().any(widens);
            if node.op != Op::Binary(Binary::Add) || !stored {
                continue;
            }
            let (a, b) = (node.inputs[0], node.inputs[1]);
            for (product, other) in [(a, b), (b, a)] {
                let p = product.index();
                if self.role[p] != NodeLowering::Step || self.is_result[p] || self.users[p].len() != 1 {
                    continue;
                }
                let fits = match &self.graph.nodes[p].op {
                    Op::DotGeneral(d) => {
                        let rank = self.graph.ty(self.graph.nodes[p].inputs[1]).rank();
                        d.rhs_free(rank).len() == 1 && dtype == DType::F32
                    }
                    Op::Convolution(c) => c.dims.output_feature + 1 == node.outs[0].rank(),
                    _ => false,
                };
                let operands = &self.graph.nodes[p].inputs;
                let plain = operands.iter().all(|&v| self.graph.ty(v).dtype == dtype);
                if let (true, true, Some(bias)) = (fits, plain, self.row_of(other)) {
                    self.biased.insert(i, (product, bias));
                    self.role[i] = NodeLowering::Step;
                    self.role[p] = NodeLowering::Absorbed;
                    break;
                }
            }
        }
    }

    /// Fuses `parameter + contraction` into one step if the sum is a result. This is the accumulation of gradients,
    /// which the kernel adds in place.
    fn find_sums(&mut self) {
        for i in 0..self.graph.nodes.len() {
            let node = &self.graph.nodes[i];
            let is_sum = node.op == Op::Binary(Binary::Add) && node.outs[0].dtype == DType::F32;
            if !is_sum || !self.is_result[i] || !self.users[i].is_empty() || self.role[i] != NodeLowering::Map
            {
                continue;
            }
            let (a, b) = (node.inputs[0], node.inputs[1]);
            for (product, so_far) in [(a, b), (b, a)] {
                let p = product.index();
                let is_product = matches!(&self.graph.nodes[p].op, Op::DotGeneral(_) | Op::Convolution(_));
                let alone = !self.is_result[p] && self.users[p].len() == 1;
                let kept =
                    self.role[so_far.index()] == NodeLowering::Param && self.users[so_far.index()].len() == 1;
                if is_product && alone && kept && self.role[p] == NodeLowering::Step {
                    self.onto.insert(i, (product, so_far));
                    self.role[i] = NodeLowering::Step;
                    self.role[p] = NodeLowering::Absorbed;
                    break;
                }
            }
        }
    }

    /// The vector that a broadcast repeats along all dimensions but the last.
    pub fn row_of(&self, v: ValueId) -> Option<ValueId> {
        let node = self.graph.node(v);
        let Op::BroadcastInDim(b) = &node.op else { return None };
        let x = self.graph.ty(node.inputs[0]);
        let last = b.shape.rank().checked_sub(1)?;
        (b.dims[..] == [last] && x.shape[0] == b.shape[last]).then_some(node.inputs[0])
    }

    /// Position in the graph at which a node's step is emitted: that of the last member of its group.
    pub fn position(&self, i: usize) -> usize {
        match self.role[i] {
            NodeLowering::Map => {
                self.members.get(&self.group[i]).and_then(|m| m.iter().max()).copied().unwrap_or(i)
            }
            _ => i,
        }
    }

    fn find_groups(&mut self) {
        for n in 0..self.graph.nodes.len() {
            if self.role[n] != NodeLowering::Map {
                continue;
            }
            self.members.insert(n, vec![n]);
            for k in 0..self.graph.nodes[n].inputs.len() {
                let p = self.graph.nodes[n].inputs[k].index();
                if self.role[p] != NodeLowering::Map
                    || self.group[p] == self.group[n]
                    || self.graph.nodes[p].outs[0].shape != self.graph.nodes[n].outs[0].shape
                {
                    continue;
                }
                if self.may_join(self.group[p], n) {
                    self.join(self.group[p], n);
                }
            }
        }
    }

    /// Merges the groups that produce the operands of one `concatenate`, so that one step can write them directly into
    /// the result ([`crate::fuse`]).
    fn join_parts(&mut self) {
        let graph = self.graph;
        for (c, node) in graph.nodes.iter().enumerate() {
            let Op::Concatenate(_) = &node.op else { continue };
            let parts: Vec<usize> = node.inputs.iter().map(|v| v.index()).collect();
            let own = |&p: &usize| {
                self.role[p] == NodeLowering::Map
                    && !self.is_result[p]
                    && self.users[p] == [c]
                    && graph.nodes[p].outs == graph.nodes[parts[0]].outs
            };
            if !parts.iter().all(own) {
                continue;
            }
            for &p in &parts[1..] {
                let [a, b] = [parts[0], p].map(|part| (self.position(part), self.group[part]));
                let (early, late) = if a.0 < b.0 { (a, b) } else { (b, a) };
                if early.1 != late.1 && self.may_join(early.1, late.0) {
                    self.join(early.1, late.0);
                }
            }
        }
    }

    /// Whether group `from` may be delayed to the position of node `n` and merged with its group: all users outside
    /// both groups must come later.
    fn may_join(&self, from: usize, n: usize) -> bool {
        let here = self.group[n];
        let size = self.members[&from].len() + self.members[&here].len();
        let later = |u: usize| match self.role[u] {
            NodeLowering::Map => self.group[u] == from || self.group[u] == here || self.position(u) > n,
            // The users of a virtual node are in the list as well.
            NodeLowering::Virtual if !self.is_materialised(u) => true,
            _ => u > n,
        };
        // Within one step a value is available in a register at the same index only. A member that reads it through a
        // broadcast, slice or reshape needs the array, which is not complete yet.
        let through_memory = |reader: usize, maker: usize| {
            self.members[&self.group[reader]]
                .iter()
                .any(|&u| self.members[&self.group[maker]].iter().any(|&m| self.reads_indirectly(u, m)))
        };
        size <= MAX_GROUP
            && self.members[&from].iter().all(|&m| self.users[m].iter().all(|&u| later(u)))
            && !through_memory(n, from)
            && !through_memory(from, n)
    }

    fn join(&mut self, from: usize, n: usize) {
        let here = self.group[n];
        let Some(moved) = self.members.remove(&from) else { return };
        moved.iter().for_each(|&m| self.group[m] = here);
        self.members.entry(here).or_default().extend(moved);
    }

    /// Lets a reduction compute the group that feeds it, if nothing else reads the group's values.
    fn find_prologues(&mut self) {
        for i in 0..self.graph.nodes.len() {
            let node = &self.graph.nodes[i];
            let Op::Reduce(r) = &node.op else { continue };
            if node.outs.len() != 1 || Monoid::of(&r.body).is_none() {
                continue;
            }
            let x = node.inputs[0].index();
            if self.role[x] != NodeLowering::Map {
                continue;
            }
            let group = self.group[x];
            let private = self.members[&group].iter().all(|&m| {
                let inside = |&u: &usize| {
                    (self.role[u] == NodeLowering::Map && self.group[u] == group) || (u == i && m == x)
                };
                !self.is_result[m] && self.users[m].iter().all(inside)
            });
            let once = node.inputs.iter().filter(|v| v.index() == x).count() == 1;
            if private && once {
                self.prologue.insert(i, group);
            }
        }
    }

    /// Whether the value is stored as an array.
    pub fn is_stored(&self, i: usize) -> bool {
        let group = self.group[i];
        if self.inlined[i] {
            return false;
        }
        self.is_result[i]
            || self.users[i].iter().any(|&u| match self.role[u] {
                NodeLowering::Map => self.group[u] != group,
                // The users of a virtual node are in the list as well.
                NodeLowering::Virtual => self.is_materialised(u),
                _ => self.prologue.get(&u) != Some(&group),
            })
    }

    /// Whether `user` reads node `i` through an alias or a virtual node.
    pub fn reads_indirectly(&self, user: usize, i: usize) -> bool {
        self.graph.nodes[user].inputs.iter().any(|&v| {
            v.index() != i && {
                let base = self.base(v);
                base.index() == i
                    || (self.role[base.index()] == NodeLowering::Virtual
                        && self.graph.node(base).inputs.iter().any(|&w| self.base(w).index() == i))
            }
        })
    }

    /// Whether a virtual node must be materialized, because something other than an element-wise op reads it.
    pub fn is_materialised(&self, i: usize) -> bool {
        let direct = |u: usize| self.graph.nodes[u].inputs.iter().any(|v| v.index() == i);
        self.is_result[i]
            || self.users[i].iter().any(|&u| match self.role[u] {
                NodeLowering::Map => !direct(u),
                NodeLowering::Virtual => true,
                NodeLowering::Step => !self.is_bias_operand(u, i),
                _ => true,
            })
    }

    fn is_bias_operand(&self, step: usize, i: usize) -> bool {
        self.biased.get(&step).is_some_and(|(product, _)| {
            let inputs = &self.graph.nodes[step].inputs;
            inputs.iter().any(|v| v.index() == i) && product.index() != i
        })
    }
}
