//! From graph to steps: groups element-wise nodes, embeds broadcasts and iotas into their consumers, joins a fold
//! with the element-wise work before it and a product with the bias after it.

mod inline;

use crate::schedule::*;
use crate::{blocks, handon, loops, order, parts, plan, rows, siblings, slices, templates, widen};
use smallvec::SmallVec;
use std::collections::HashMap;
use systole_ir::attention::Recognised;
use systole_ir::op::{Binary, Case, Lowering, Monoid};
use systole_ir::{DType, Graph, Literal, Node, Op, Result, Scalar, TensorType, ValueId};

/// Groups grow no further than this: a tile's registers must stay in the nearest cache.
const MAX_GROUP: usize = 64;

/// Compiles an optimised graph into a schedule with its buffer plan. Bodies of loops are optimised here.
pub fn schedule(graph: &Graph, options: &Options) -> Result<Schedule> {
    for t in graph.nodes.iter().flat_map(|n| n.outs.iter()) {
        array_bytes(t)?;
    }
    let outlined = blocks::outline(graph, options)?;
    let mut s = steps(&outlined.graph, &outlined.blocks, options.excess_precision)?;
    parts::join(&mut s, options);
    order::run(&mut s, options);
    plan::run(&mut s, options)?;
    Ok(s)
}

/// The steps of a graph in which some nodes run by blocks, before they are ordered and arrays have places.
/// `excess_precision`: see [`Options`].
pub fn steps(graph: &Graph, blocks: &HashMap<usize, Blocks>, excess_precision: bool) -> Result<Schedule> {
    let mut fusion = Fusion::new(graph);
    fusion.find_biases();
    fusion.find_sums();
    fusion.find_groups();
    fusion.find_prologues();
    fusion.find_inlined();
    let mut s = Emit::new(&fusion, blocks, excess_precision).run()?;
    templates::run(&mut s);
    siblings::join(&mut s);
    if excess_precision {
        widen::run(&mut s);
    }
    rows::join(&mut s);
    handon::join(&mut s, excess_precision);
    Ok(s)
}

/// How a node becomes part of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Param,
    Constant,
    /// Other types over the same bytes.
    Alias,
    /// Element-wise; in group `groups[node]`.
    Map,
    /// Broadcast, iota, or a slice that is read in place ([`slices`]): embedded into element-wise consumers.
    Virtual,
    /// A step of its own.
    Step,
    /// Computed by a later step (a product whose bias is added there).
    Absorbed,
}

struct Fusion<'g> {
    graph: &'g Graph,
    role: Vec<Role>,
    /// Nodes that use each node, through aliases and embedded broadcasts.
    users: Vec<Vec<usize>>,
    is_result: Vec<bool>,
    /// Representative of each element-wise node's group.
    group: Vec<usize>,
    members: HashMap<usize, Vec<usize>>,
    /// For a step: the group that it computes first.
    prologue: HashMap<usize, usize>,
    /// For an add: the product that it adds a bias to, and the bias.
    biased: HashMap<usize, (ValueId, ValueId)>,
    /// For an add onto a parameter: the product that it adds, and the parameter.
    onto: HashMap<usize, (ValueId, ValueId)>,
    /// Element-wise values that their readers compute themselves: see [`inline`].
    inlined: Vec<bool>,
    /// For a loop: the states whose values before it do not matter.
    blank: HashMap<usize, Vec<bool>>,
}

fn role_of(graph: &Graph, node: &Node) -> Role {
    let widths_agree = |n: &Node| graph.ty(n.inputs[0]).dtype.size() == n.outs[0].dtype.size();
    match &node.op {
        Op::Parameter(_) => Role::Param,
        Op::Constant(_) => Role::Constant,
        Op::Reshape(_) | Op::OptimizationBarrier(_) => Role::Alias,
        Op::BitcastConvert(_) if !widths_agree(node) => Role::Alias,
        Op::BitcastConvert(_) => Role::Alias,
        Op::BroadcastInDim(_) | Op::Iota(_) => Role::Virtual,
        op if op.rule().lower() == Lowering::Map => Role::Map,
        _ => Role::Step,
    }
}

impl<'g> Fusion<'g> {
    fn new(graph: &'g Graph) -> Fusion<'g> {
        let n = graph.nodes.len();
        let role: Vec<Role> = graph.nodes.iter().map(|node| role_of(graph, node)).collect();
        let mut f = Fusion {
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
                f.blank.insert(i, loops::blank_states(graph, node, w));
            }
        }
        for i in 0..n {
            if matches!(f.role[i], Role::Alias) {
                continue;
            }
            for (k, &v) in graph.nodes[i].inputs.iter().enumerate() {
                let p = f.base(v).index();
                if f.reads(i, k) {
                    f.users[p].push(i);
                }
            }
        }
        // Users of an embedded broadcast's operand are the broadcast's users too.
        for i in (0..n).rev().filter(|&i| f.role[i] == Role::Virtual) {
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

    /// Slices that only element-wise ops read need no array, where these can read them as rows.
    fn find_slices(&mut self) {
        let graph = self.graph;
        let is_map = |node: &Node| node.op.rule().lower() == Lowering::Map;
        let mut wanted_whole = vec![false; graph.nodes.len()];
        for node in graph.nodes.iter().filter(|node| !is_map(node)) {
            node.inputs.iter().for_each(|v| wanted_whole[v.index()] = true);
        }
        graph.results.iter().for_each(|r| wanted_whole[r.index()] = true);
        for (i, node) in graph.nodes.iter().enumerate() {
            if let (Op::Slice(s), false) = (&node.op, wanted_whole[i])
                && slices::is_read_in_place(s, graph.ty(node.inputs[0]))
            {
                self.role[i] = Role::Virtual;
            }
        }
    }

    /// Whether a node's step reads its operand `k`.
    fn reads(&self, node: usize, k: usize) -> bool {
        let (Op::While(w), Some(blank)) = (&self.graph.nodes[node].op, self.blank.get(&node)) else {
            return true;
        };
        k < w.captures || !blank[k - w.captures]
    }

    /// The value whose bytes these are.
    fn base(&self, mut v: ValueId) -> ValueId {
        while self.role[v.index()] == Role::Alias {
            let inputs = &self.graph.node(v).inputs;
            v = if inputs.len() == 1 { inputs[0] } else { inputs[v.out as usize] };
        }
        v
    }

    /// `dot(a, b) + broadcast(bias)` along the last dimension is one step. Of bf16 only convolutions, whose kernels round
    /// before and after the bias, and only where sums are widened: they would be stored so for all who read them.
    fn find_biases(&mut self) {
        for i in 0..self.graph.nodes.len() {
            let node = &self.graph.nodes[i];
            let dtype = node.outs[0].dtype;
            let widens = |&u: &usize| {
                let user = &self.graph.nodes[u];
                matches!(user.op, Op::Convert(_)) && user.outs[0].dtype == DType::F32
            };
            let stored = dtype == DType::F32 || dtype == DType::BF16 && self.users[i].iter().any(widens);
            if node.op != Op::Binary(Binary::Add) || !stored {
                continue;
            }
            let (a, b) = (node.inputs[0], node.inputs[1]);
            for (product, other) in [(a, b), (b, a)] {
                let p = product.index();
                if self.role[p] != Role::Step || self.is_result[p] || self.users[p].len() != 1 {
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
                    self.role[i] = Role::Step;
                    self.role[p] = Role::Absorbed;
                    break;
                }
            }
        }
    }

    /// `parameter + product` is one step where it is a result: a running sum, which can be added to in place.
    fn find_sums(&mut self) {
        for i in 0..self.graph.nodes.len() {
            let node = &self.graph.nodes[i];
            let is_sum = node.op == Op::Binary(Binary::Add) && node.outs[0].dtype == DType::F32;
            if !is_sum || !self.is_result[i] || !self.users[i].is_empty() || self.role[i] != Role::Map {
                continue;
            }
            let (a, b) = (node.inputs[0], node.inputs[1]);
            for (product, so_far) in [(a, b), (b, a)] {
                let p = product.index();
                let is_product = matches!(&self.graph.nodes[p].op, Op::DotGeneral(_) | Op::Convolution(_));
                let alone = !self.is_result[p] && self.users[p].len() == 1;
                let kept = self.role[so_far.index()] == Role::Param && self.users[so_far.index()].len() == 1;
                if is_product && alone && kept && self.role[p] == Role::Step {
                    self.onto.insert(i, (product, so_far));
                    self.role[i] = Role::Step;
                    self.role[p] = Role::Absorbed;
                    break;
                }
            }
        }
    }

    /// The vector that a broadcast repeats along all but the last dimension.
    fn row_of(&self, v: ValueId) -> Option<ValueId> {
        let node = self.graph.node(v);
        let Op::BroadcastInDim(b) = &node.op else { return None };
        let x = self.graph.ty(node.inputs[0]);
        let last = b.shape.rank().checked_sub(1)?;
        (b.dims[..] == [last] && x.shape[0] == b.shape[last]).then_some(node.inputs[0])
    }

    /// When a node's step runs: at the place of its group's last member.
    fn position(&self, i: usize) -> usize {
        match self.role[i] {
            Role::Map => self.members.get(&self.group[i]).and_then(|m| m.iter().max()).copied().unwrap_or(i),
            _ => i,
        }
    }

    fn find_groups(&mut self) {
        for n in 0..self.graph.nodes.len() {
            if self.role[n] != Role::Map {
                continue;
            }
            self.members.insert(n, vec![n]);
            for k in 0..self.graph.nodes[n].inputs.len() {
                let p = self.graph.nodes[n].inputs[k].index();
                if self.role[p] != Role::Map
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

    /// Whether the group `from` may run as late as node `n`: all its other users must run later still.
    fn may_join(&self, from: usize, n: usize) -> bool {
        let here = self.group[n];
        let size = self.members[&from].len() + self.members[&here].len();
        let later = |u: usize| match self.role[u] {
            Role::Map => self.group[u] == from || self.group[u] == here || self.position(u) > n,
            // Its users are in the list themselves.
            Role::Virtual if !self.is_materialised(u) => true,
            _ => u > n,
        };
        // A value of the same step can be had from a register, not from an array that is still being written.
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

    /// A fold computes the group before it as it goes, when nobody else wants the group's values.
    fn find_prologues(&mut self) {
        for i in 0..self.graph.nodes.len() {
            let node = &self.graph.nodes[i];
            let Op::Reduce(r) = &node.op else { continue };
            if node.outs.len() != 1 || Monoid::of(&r.body).is_none() {
                continue;
            }
            let x = node.inputs[0].index();
            if self.role[x] != Role::Map {
                continue;
            }
            let group = self.group[x];
            let private = self.members[&group].iter().all(|&m| {
                let inside =
                    |&u: &usize| (self.role[u] == Role::Map && self.group[u] == group) || (u == i && m == x);
                !self.is_result[m] && self.users[m].iter().all(inside)
            });
            let once = node.inputs.iter().filter(|v| v.index() == x).count() == 1;
            if private && once {
                self.prologue.insert(i, group);
            }
        }
    }

    /// Whether a value must exist as an array.
    fn is_stored(&self, i: usize) -> bool {
        let group = self.group[i];
        if self.inlined[i] {
            return false;
        }
        self.is_result[i]
            || self.users[i].iter().any(|&u| match self.role[u] {
                Role::Map => self.group[u] != group,
                // A broadcast is embedded into its users, which are in this list themselves.
                Role::Virtual => self.is_materialised(u),
                _ => self.prologue.get(&u) != Some(&group),
            })
    }

    fn reads_indirectly(&self, user: usize, i: usize) -> bool {
        self.graph.nodes[user].inputs.iter().any(|&v| {
            v.index() != i && {
                let base = self.base(v);
                base.index() == i
                    || (self.role[base.index()] == Role::Virtual
                        && self.graph.node(base).inputs.iter().any(|&w| self.base(w).index() == i))
            }
        })
    }

    /// Whether a broadcast or iota must exist as an array: something other than an element-wise op reads it.
    fn is_materialised(&self, i: usize) -> bool {
        let direct = |u: usize| self.graph.nodes[u].inputs.iter().any(|v| v.index() == i);
        self.is_result[i]
            || self.users[i].iter().any(|&u| match self.role[u] {
                Role::Map => !direct(u),
                Role::Virtual => true,
                Role::Step => !self.is_bias_operand(u, i),
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

/// Turns the decisions into steps.
struct Emit<'f, 'g> {
    f: &'f Fusion<'g>,
    g: &'g Graph,
    /// Programs of the nodes that run by blocks.
    blocks: &'f HashMap<usize, Blocks>,
    excess_precision: bool,
    out: Schedule,
    slots: HashMap<ValueId, Slot>,
}

impl<'f, 'g> Emit<'f, 'g> {
    fn new(f: &'f Fusion<'g>, blocks: &'f HashMap<usize, Blocks>, excess_precision: bool) -> Emit<'f, 'g> {
        let out =
            Schedule { name: f.graph.name.clone(), params: f.graph.param_types(), ..Schedule::default() };
        Emit { f, g: f.graph, blocks, excess_precision, out, slots: HashMap::new() }
    }

    fn run(mut self) -> Result<Schedule> {
        for (k, &p) in self.g.params.iter().enumerate() {
            let bytes = array_bytes(self.g.ty(p))?;
            let slot = self.new_slot(bytes, Place::Param(k));
            self.slots.insert(p, slot);
        }
        for i in 0..self.g.nodes.len() {
            match self.f.role[i] {
                Role::Map if self.f.position(i) == i && !self.in_prologue(i) => self.emit_map(i)?,
                Role::Virtual if self.f.is_materialised(i) => self.emit_virtual(i)?,
                Role::Step => self.emit_step(i)?,
                _ => {}
            }
        }
        self.emit_results()?;
        Ok(self.out)
    }

    fn in_prologue(&self, i: usize) -> bool {
        self.f.prologue.values().any(|&g| g == self.f.group[i])
    }

    fn new_slot(&mut self, bytes: usize, place: Place) -> Slot {
        self.out.slots.push(Storage { bytes, place, first: 0, last: 0 });
        self.out.slots.len() - 1
    }

    /// The slot of an existing array.
    fn slot(&mut self, v: ValueId) -> Result<Slot> {
        let base = self.f.base(v);
        if let Some(&s) = self.slots.get(&base) {
            return Ok(s);
        }
        if let Op::Constant(c) = &self.g.node(base).op {
            self.out.constants.push(c.value.clone());
            let place = Place::Constant(self.out.constants.len() - 1);
            let slot = self.new_slot(array_bytes(c.value.ty())?, place);
            self.slots.insert(base, slot);
            return Ok(slot);
        }
        systole_ir::bug!("%{} {} is read before it is made", base.node, self.g.node(base).op.name())
    }

    fn define(&mut self, v: ValueId) -> Result<Slot> {
        // The place is decided by the buffer plan.
        let slot = self.new_slot(array_bytes(self.g.ty(v))?, Place::Arena(0));
        self.slots.insert(v, slot);
        Ok(slot)
    }

    fn push(
        &mut self,
        kernel: Kernel,
        inputs: Vec<(Slot, TensorType)>,
        outputs: Vec<(Slot, TensorType)>,
        node: usize,
        flops: f64,
    ) {
        let (inputs, input_types) = inputs.into_iter().unzip();
        let (outputs, output_types) = outputs.into_iter().unzip();
        let scope = self.g.scope(&self.g.nodes[node]).to_string();
        self.out.steps.push(Step { kernel, inputs, input_types, outputs, output_types, scope, flops });
    }

    fn emit_map(&mut self, last: usize) -> Result<()> {
        let mut members = self.f.members[&self.f.group[last]].clone();
        members.sort_unstable();
        let shape = self.g.nodes[last].outs[0].shape.clone();
        let mut b = MapBuilder::new(shape.dims());
        let stored: Vec<usize> = members.into_iter().filter(|&m| self.f.is_stored(m)).collect();
        if stored.is_empty() {
            return Ok(());
        }
        for &m in &stored {
            self.operand(&mut b, ValueId::new(m, 0))?;
        }
        let mut outputs = Vec::new();
        for &m in &stored {
            let v = ValueId::new(m, 0);
            outputs.push((self.define(v)?, self.g.ty(v).clone()));
        }
        let flops = (b.instrs.len() * shape.elements()) as f64;
        let stores = stored.iter().map(|m| b.regs[&ValueId::new(*m, 0)]).collect();
        let (map, inputs) = b.finish(stores);
        self.push(Kernel::Map(map), inputs, outputs, last, flops);
        Ok(())
    }

    /// The instruction of node `m`, after those of its operands that are no arrays.
    fn add_instr(&mut self, b: &mut MapBuilder, m: usize) -> Result<Reg> {
        let node = &self.g.nodes[m];
        let mut args = SmallVec::new();
        for &v in &node.inputs {
            args.push(self.operand(b, v)?);
        }
        let from = match node.op {
            Op::Select(_) => self.g.ty(node.inputs[1]).dtype,
            _ => self.g.ty(node.inputs[0]).dtype,
        };
        let instr = RawInstr { op: node.op.clone(), args, from, to: node.outs[0].dtype };
        Ok(b.instr(ValueId::new(m, 0), instr))
    }

    /// The register that holds operand `v` of an element-wise op.
    fn operand(&mut self, b: &mut MapBuilder, v: ValueId) -> Result<Reg> {
        if let Some(&r) = b.regs.get(&v) {
            return Ok(r);
        }
        if self.f.role[v.index()] == Role::Map && !self.slots.contains_key(&v) {
            return self.add_instr(b, v.index());
        }
        let ty = self.g.ty(v).clone();
        let reg = match &self.g.node(v).op {
            Op::Constant(c)
                if c.value.ty().elements() > 0 && (ty.rank() == 0 || is_small_splat(&c.value)) =>
            {
                b.splat(c.value.get(0), ty.dtype)
            }
            Op::Iota(iota) => b.iota(iota.dim, ty.dtype),
            Op::Slice(s) if self.f.role[v.index()] == Role::Virtual => {
                let x = self.g.node(v).inputs[0];
                let whole = self.g.ty(x).clone();
                let strides = full_strides(&whole);
                let offset = strides.iter().zip(&s.start).map(|(stride, at)| stride * at).sum();
                let slot = self.slot(x)?;
                b.part(slot, whole, strides, offset)
            }
            Op::BroadcastInDim(op) => {
                let x = self.g.node(v).inputs[0];
                match &self.g.node(x).op {
                    Op::Constant(c) if c.value.ty().elements() == 1 => b.splat(c.value.get(0), ty.dtype),
                    _ if self.is_unmade_virtual(x) => {
                        // Only in graphs that skipped simplify: the broadcast itself was made an array.
                        let strides = full_strides(&ty);
                        let slot = self.slot(v)?;
                        b.array(slot, ty, strides)
                    }
                    _ => {
                        let xt = self.g.ty(x).clone();
                        let own = xt.shape.strides();
                        let mut strides: SmallVec<[usize; 4]> = SmallVec::from_elem(0, op.shape.rank());
                        for (k, &d) in op.dims.iter().enumerate() {
                            strides[d] = if xt.shape[k] == 1 { 0 } else { own[k] };
                        }
                        let slot = self.slot(x)?;
                        b.array(slot, xt, strides)
                    }
                }
            }
            _ => {
                // Rank-0 operands of select and clamp repeat.
                let rank = b.shape.len();
                let strides =
                    if ty.rank() == rank { full_strides(&ty) } else { SmallVec::from_elem(0, rank) };
                let slot = self.slot(v)?;
                b.array(slot, ty, strides)
            }
        };
        b.regs.insert(v, reg);
        Ok(reg)
    }

    fn is_unmade_virtual(&self, x: ValueId) -> bool {
        let base = self.f.base(x);
        self.f.role[base.index()] == Role::Virtual && !self.slots.contains_key(&base)
    }

    fn emit_virtual(&mut self, i: usize) -> Result<()> {
        let v = ValueId::new(i, 0);
        let ty = self.g.ty(v).clone();
        let mut b = MapBuilder::new(ty.shape.dims());
        let reg = self.operand(&mut b, v)?;
        let slot = self.define(v)?;
        let (map, inputs) = b.finish(vec![reg]);
        self.push(Kernel::Map(map), inputs, vec![(slot, ty)], i, 0.0);
        Ok(())
    }

    fn emit_step(&mut self, i: usize) -> Result<()> {
        let node = &self.g.nodes[i];
        if let Op::Reduce(r) = &node.op
            && node.outs.len() == 1
            && let Some(monoid) = Monoid::of(&r.body)
        {
            return self.emit_reduce(i, &r.dims, monoid);
        }
        let blocks = self.blocks.get(&i);
        let onto = self.f.onto.get(&i);
        let (op_node, last) = match self.f.biased.get(&i).or(onto) {
            Some((product, last)) => (self.g.node(*product), Some(*last)),
            None => (node, None),
        };
        // Blocks are the one branch of a `case`, without the index.
        let operands = op_node.inputs.len() - blocks.is_some() as usize;
        let mut inputs = Vec::new();
        let read = op_node.inputs[..operands].iter().enumerate().filter(|&(k, _)| self.f.reads(i, k));
        for v in read.map(|(_, &v)| v).chain(last).collect::<Vec<_>>() {
            inputs.push((self.slot(v)?, self.g.ty(v).clone()));
        }
        let mut outputs = Vec::new();
        for k in 0..node.outs.len() {
            outputs.push((self.define(ValueId::new(i, k))?, node.outs[k].clone()));
        }
        let types: Vec<&TensorType> = op_node.inputs.iter().map(|&v| self.g.ty(v)).collect();
        let flops = match blocks {
            Some(b) => b.flops(),
            None => op_node.op.rule().cost(&types, &op_node.outs).flops,
        };
        let kernel = match blocks {
            Some(b) => Kernel::Blocks(Box::new(b.clone())),
            None if onto.is_some() => Kernel::Onto { op: op_node.op.clone() },
            None => kernel_of(&op_node.op, last.is_some(), self.f.blank.get(&i), self.excess_precision)?,
        };
        self.push(kernel, inputs, outputs, i, flops);
        Ok(())
    }

    fn emit_reduce(&mut self, i: usize, dims: &[usize], monoid: Monoid) -> Result<()> {
        let node = &self.g.nodes[i];
        let (x, init) = (node.inputs[0], node.inputs[1]);
        let ty = self.g.ty(x).clone();
        let mut b = MapBuilder::new(ty.shape.dims());
        let reg = match self.f.role[x.index()] {
            Role::Map => self.operand(&mut b, x)?,
            _ => {
                let strides = full_strides(&ty);
                let slot = self.slot(x)?;
                b.array(slot, ty.clone(), strides)
            }
        };
        let flops = (ty.elements() * (1 + b.instrs.len())) as f64;
        let folded: Vec<bool> = (0..ty.rank()).map(|d| dims.contains(&d)).collect();
        let (map, mut inputs, folded) = b.finish_fold(reg, folded);
        inputs.push((self.slot(init)?, self.g.ty(init).clone()));
        let slot = self.define(ValueId::new(i, 0))?;
        let outputs = vec![(slot, node.outs[0].clone())];
        self.push(Kernel::Reduce { map, folded, monoid }, inputs, outputs, i, flops);
        Ok(())
    }

    fn emit_results(&mut self) -> Result<()> {
        let mut taken: HashMap<Slot, TensorType> = HashMap::new();
        for (k, &r) in self.g.results.iter().enumerate() {
            let ty = self.g.ty(r).clone();
            let base = self.f.base(r);
            let mut slot = self.slot(base)?;
            let kept_type = *self.g.ty(base) == ty;
            let is_made = matches!(self.out.slots[slot].place, Place::Arena(_));
            let usable = match taken.get(&slot) {
                Some(first) => *first == ty,
                None => is_made || kept_type,
            };
            if !usable {
                slot = self.copy_of(slot, &ty, base.index())?;
            }
            if matches!(self.out.slots[slot].place, Place::Arena(_)) {
                self.out.slots[slot].place = Place::Result(k);
            }
            taken.entry(slot).or_insert_with(|| ty.clone());
            self.out.results.push(ResultPlan { ty, slot, reuse: None });
        }
        Ok(())
    }

    fn copy_of(&mut self, slot: Slot, ty: &TensorType, node: usize) -> Result<Slot> {
        let mut b = MapBuilder::new(ty.shape.dims());
        let reg = b.array(slot, ty.clone(), full_strides(ty));
        let (map, inputs) = b.finish(vec![reg]);
        let copy = self.new_slot(array_bytes(ty)?, Place::Arena(0));
        self.push(Kernel::Map(map), inputs, vec![(copy, ty.clone())], node, 0.0);
        Ok(copy)
    }
}

fn is_small_splat(value: &Literal) -> bool {
    value.ty().elements() <= 4096 && value.is_splat()
}

fn full_strides(ty: &TensorType) -> SmallVec<[usize; 4]> {
    ty.shape.strides().iter().copied().collect()
}

fn kernel_of(op: &Op, bias: bool, blank: Option<&Vec<bool>>, excess_precision: bool) -> Result<Kernel> {
    let alone = Options { excess_precision, ..Options::default() };
    let compile = |g: &Graph, options: &Options| {
        schedule(&crate::optimize_with(g, options.excess_precision)?.0, options)
    };
    Ok(match op {
        Op::While(w) => {
            let states = w.captures..w.body.params.len();
            let body = compile(
                &w.body,
                &Options { donated: states.collect(), state_at: Some(w.captures), ..alone.clone() },
            )?;
            let cond = Box::new(compile(&w.cond, &alone)?);
            let mut next = w.captures;
            let starts = blank.into_iter().flatten().map(|&blank| {
                next += !blank as usize;
                (!blank).then(|| next - 1)
            });
            let starts = starts.collect();
            Kernel::While { captures: w.captures, starts, cond, body: Box::new(body) }
        }
        Op::Case(c) if let Some(found) = attention_of(c) => Kernel::Attention(found),
        Op::Case(c) => {
            let branches = c.branches.iter().map(|b| compile(b, &alone));
            Kernel::Case { branches: branches.collect::<Result<_>>()? }
        }
        op => Kernel::Op { op: op.clone(), bias },
    })
}

/// The attention that a branch which always runs consists of, in a type that has a kernel.
fn attention_of(c: &Case) -> Option<Recognised> {
    let [branch] = &c.branches[..] else { return None };
    let found = Recognised::of(branch)?;
    let types = branch.param_types();
    let fits = |&i: &usize| {
        types[i].elements() > 0 && matches!(types[i].dtype, DType::F32 | DType::BF16 | DType::F16)
    };
    [found.q, found.k, found.v].iter().all(fits).then_some(found)
}

/// A register before numbering: loads and instructions are counted apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reg {
    Load(usize),
    Instr(usize),
}

enum RawLoad {
    Array { input: usize, dtype: DType, strides: SmallVec<[usize; 4]>, offset: usize },
    Splat { value: Scalar, dtype: DType },
    Iota { dim: usize, dtype: DType },
}

struct RawInstr {
    op: Op,
    args: SmallVec<[Reg; 3]>,
    from: DType,
    to: DType,
}

/// Collects one element-wise program.
struct MapBuilder {
    shape: Vec<usize>,
    loads: Vec<RawLoad>,
    instrs: Vec<RawInstr>,
    regs: HashMap<ValueId, Reg>,
    inputs: Vec<(Slot, TensorType)>,
}

impl MapBuilder {
    fn new(shape: &[usize]) -> MapBuilder {
        MapBuilder {
            shape: shape.to_vec(),
            loads: Vec::new(),
            instrs: Vec::new(),
            regs: HashMap::new(),
            inputs: Vec::new(),
        }
    }

    fn load(&mut self, load: RawLoad) -> Reg {
        self.loads.push(load);
        Reg::Load(self.loads.len() - 1)
    }

    fn splat(&mut self, value: Scalar, dtype: DType) -> Reg {
        self.load(RawLoad::Splat { value, dtype })
    }

    fn iota(&mut self, dim: usize, dtype: DType) -> Reg {
        self.load(RawLoad::Iota { dim, dtype })
    }

    fn array(&mut self, slot: Slot, ty: TensorType, strides: SmallVec<[usize; 4]>) -> Reg {
        self.part(slot, ty, strides, 0)
    }

    /// An array from its element `offset` on.
    fn part(&mut self, slot: Slot, ty: TensorType, strides: SmallVec<[usize; 4]>, offset: usize) -> Reg {
        let dtype = ty.dtype;
        let input = match self.inputs.iter().position(|(s, t)| *s == slot && *t == ty) {
            Some(known) => known,
            None => {
                self.inputs.push((slot, ty));
                self.inputs.len() - 1
            }
        };
        let same = |l: &RawLoad| match l {
            RawLoad::Array { input: i, strides: s, offset: o, .. } => {
                (*i, s, *o) == (input, &strides, offset)
            }
            _ => false,
        };
        match self.loads.iter().position(same) {
            Some(known) => Reg::Load(known),
            None => self.load(RawLoad::Array { input, dtype, strides, offset }),
        }
    }

    fn instr(&mut self, v: ValueId, instr: RawInstr) -> Reg {
        self.instrs.push(instr);
        let reg = Reg::Instr(self.instrs.len() - 1);
        self.regs.insert(v, reg);
        reg
    }

    fn finish(self, stores: Vec<Reg>) -> (Map, Vec<(Slot, TensorType)>) {
        let (map, inputs, _) = self.build(stores, None);
        (map, inputs)
    }

    fn finish_fold(self, store: Reg, folded: Vec<bool>) -> (Map, Vec<(Slot, TensorType)>, Vec<bool>) {
        self.build(vec![store], Some(folded))
    }

    /// Joins neighbouring dimensions that every load crosses evenly (and that are folded alike), and numbers registers.
    fn build(self, stores: Vec<Reg>, folded: Option<Vec<bool>>) -> (Map, Vec<(Slot, TensorType)>, Vec<bool>) {
        let folded = folded.unwrap_or_else(|| vec![false; self.shape.len()]);
        let kept = self.joined_dims(&folded);
        let linear = |d: usize| self.shape[d + 1..].iter().product::<usize>();
        let loads = self
            .loads
            .iter()
            .map(|l| match l {
                RawLoad::Array { input, dtype, strides, offset } => Load::Array {
                    input: *input,
                    dtype: *dtype,
                    strides: kept.iter().map(|&(_, last)| strides[last]).collect(),
                    offset: *offset,
                },
                RawLoad::Splat { value, dtype } => Load::Splat { value: *value, dtype: *dtype },
                RawLoad::Iota { dim, dtype } => {
                    Load::Iota { inner: linear(*dim), size: self.shape[*dim], dtype: *dtype }
                }
            })
            .collect::<Vec<_>>();
        let number = |r: Reg| match r {
            Reg::Load(k) => k,
            Reg::Instr(k) => loads.len() + k,
        };
        let instrs = self.instrs.iter().map(|i| Instr {
            op: i.op.clone(),
            args: i.args.iter().map(|&r| number(r)).collect(),
            from: i.from,
            to: i.to,
        });
        let map = Map {
            shape: kept.iter().map(|&(size, _)| size).collect(),
            instrs: instrs.collect(),
            stores: stores.into_iter().map(number).collect(),
            loads,
        };
        let folded = kept.iter().map(|&(_, last)| folded[last]).collect();
        (map, self.inputs, folded)
    }

    /// Size and last original dimension of each joined dimension.
    fn joined_dims(&self, folded: &[bool]) -> Vec<(usize, usize)> {
        let mut kept: Vec<(usize, usize)> = Vec::new();
        for d in (0..self.shape.len()).filter(|&d| self.shape[d] != 1) {
            let evenly = |p: usize| {
                self.loads.iter().all(|l| match l {
                    RawLoad::Array { strides, .. } => strides[p] == strides[d] * self.shape[d],
                    _ => true,
                })
            };
            match kept.last_mut() {
                Some((size, last)) if folded[*last] == folded[d] && evenly(*last) => {
                    *size *= self.shape[d];
                    *last = d;
                }
                _ => kept.push((self.shape[d], d)),
            }
        }
        kept
    }
}
