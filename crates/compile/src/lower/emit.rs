//! Emits the steps of a program from the grouping decisions of [`FusionGroups`].

use super::grouping::{FusionGroups, NodeLowering};
use super::map_builder::{MapBuilder, RawInstr, VirtualRegister};
use super::nested_ops::kernel_of;
use crate::nested_compiler::NestedCompiler;
use crate::options::RoundingOptions;
use crate::program::{
    Kernel, LayerScope, Location, ProgramSchedule, ResultPlan, RowBlockLoop, SlotId, SlotStorage, Step,
    array_bytes,
};
use smallvec::SmallVec;
use std::collections::HashMap;
use systole_ir::op::Monoid;
use systole_ir::{Graph, Literal, Op, Result, TensorType, ValueId};

/// Emits the program steps of one graph.
pub struct StepEmitter<'f, 'g> {
    f: &'f FusionGroups<'g>,
    g: &'g Graph,
    /// Row-block programs, by node index.
    blocks: &'f HashMap<usize, RowBlockLoop>,
    rounding: RoundingOptions,
    compiler: &'f NestedCompiler,
    out: ProgramSchedule,
    slots: HashMap<ValueId, SlotId>,
}

impl<'f, 'g> StepEmitter<'f, 'g> {
    /// Creates an emitter. `blocks`: programs of the nodes that run as row blocks. `compiler`: compiles the bodies of
    /// loops and branches.
    pub fn new(
        f: &'f FusionGroups<'g>,
        blocks: &'f HashMap<usize, RowBlockLoop>,
        rounding: RoundingOptions,
        compiler: &'f NestedCompiler,
    ) -> StepEmitter<'f, 'g> {
        let out = ProgramSchedule {
            name: f.graph.name.clone(),
            params: f.graph.param_types(),
            ..ProgramSchedule::default()
        };
        StepEmitter { f, g: f.graph, blocks, rounding, compiler, out, slots: HashMap::new() }
    }

    /// Emits the lowered program, with its steps in graph order.
    pub fn run(mut self) -> Result<ProgramSchedule> {
        for (k, &p) in self.g.params.iter().enumerate() {
            let bytes = array_bytes(self.g.ty(p))?;
            let slot = self.new_slot(bytes, Location::Param(k));
            self.slots.insert(p, slot);
        }
        for i in 0..self.g.nodes.len() {
            match self.f.role[i] {
                NodeLowering::Map if self.f.position(i) == i && !self.in_prologue(i) => self.emit_map(i)?,
                NodeLowering::Virtual if self.f.is_materialised(i) => self.emit_virtual(i)?,
                NodeLowering::Step => self.emit_step(i)?,
                _ => {}
            }
        }
        self.emit_results()?;
        Ok(self.out)
    }

    fn in_prologue(&self, i: usize) -> bool {
        self.f.prologue.values().any(|&g| g == self.f.group[i])
    }

    fn new_slot(&mut self, bytes: usize, place: Location) -> SlotId {
        self.out.slots.push(SlotStorage { bytes, place, first: 0, last: 0 });
        self.out.slots.len() - 1
    }

    /// Slot of an array that is already defined, or of a constant.
    fn slot(&mut self, v: ValueId) -> Result<SlotId> {
        let base = self.f.base(v);
        if let Some(&s) = self.slots.get(&base) {
            return Ok(s);
        }
        if let Op::Constant(c) = &self.g.node(base).op {
            self.out.constants.push(c.value.clone());
            let place = Location::Constant(self.out.constants.len() - 1);
            let slot = self.new_slot(array_bytes(c.value.ty())?, place);
            self.slots.insert(base, slot);
            return Ok(slot);
        }
        systole_ir::bug!("%{} {} is read before it is defined", base.node, self.g.node(base).op.name())
    }

    fn define(&mut self, v: ValueId) -> Result<SlotId> {
        // The offset is assigned by the stage `buffers`.
        let slot = self.new_slot(array_bytes(self.g.ty(v))?, Location::Arena(0));
        self.slots.insert(v, slot);
        Ok(slot)
    }

    fn push(
        &mut self,
        kernel: Kernel,
        inputs: Vec<(SlotId, TensorType)>,
        outputs: Vec<(SlotId, TensorType)>,
        nodes: &[usize],
        flops: f64,
    ) {
        let (inputs, input_types) = inputs.into_iter().unzip();
        let (outputs, output_types) = outputs.into_iter().unzip();
        let scope = self.scope_of(nodes);
        self.out.steps.push(Step { kernel, inputs, input_types, outputs, output_types, scope, flops });
    }

    /// Layer of the first of these nodes that belongs to a layer, otherwise that of the first node.
    fn scope_of(&self, nodes: &[usize]) -> LayerScope {
        let nodes = || nodes.iter().map(|&i| &self.g.nodes[i]);
        let named = nodes().find(|node| !self.g.scope(node).is_empty());
        named.or(nodes().next()).map_or(LayerScope::default(), |node| LayerScope {
            layer: self.g.scope(node).to_string(),
            is_derivative: self.g.is_derivative(node),
        })
    }

    fn emit_map(&mut self, last: usize) -> Result<()> {
        let mut members = self.f.members[&self.f.group[last]].clone();
        members.sort_unstable();
        let shape = self.g.nodes[last].outs[0].shape.clone();
        let mut b = MapBuilder::new(shape.dims());
        let stored: Vec<usize> = members.iter().copied().filter(|&m| self.f.is_stored(m)).collect();
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
        self.push(Kernel::Map(map), inputs, outputs, &[&[last], &members[..]].concat(), flops);
        Ok(())
    }

    /// Appends the instruction of node `m`, preceded by those of its operands that are not stored as arrays.
    fn add_instr(&mut self, b: &mut MapBuilder, m: usize) -> Result<VirtualRegister> {
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
    fn operand(&mut self, b: &mut MapBuilder, v: ValueId) -> Result<VirtualRegister> {
        if let Some(&r) = b.regs.get(&v) {
            return Ok(r);
        }
        if self.f.role[v.index()] == NodeLowering::Map && !self.slots.contains_key(&v) {
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
            Op::Slice(s) if self.f.role[v.index()] == NodeLowering::Virtual => {
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
                        // A broadcast of a broadcast or iota that has no array, which `simplify` would have merged. The
                        // outer broadcast itself was materialised.
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
                // Rank-0 operands of select and clamp are broadcast with stride 0.
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
        self.f.role[base.index()] == NodeLowering::Virtual && !self.slots.contains_key(&base)
    }

    fn emit_virtual(&mut self, i: usize) -> Result<()> {
        let v = ValueId::new(i, 0);
        let ty = self.g.ty(v).clone();
        let mut b = MapBuilder::new(ty.shape.dims());
        let reg = self.operand(&mut b, v)?;
        let slot = self.define(v)?;
        let (map, inputs) = b.finish(vec![reg]);
        self.push(Kernel::Map(map), inputs, vec![(slot, ty)], &[i], 0.0);
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
        // A row-block node is a `case` with one branch. Its last operand, the branch index, is not passed on.
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
            None if onto.is_some() => Kernel::Accumulate { op: op_node.op.clone() },
            None => {
                kernel_of(&op_node.op, last.is_some(), self.f.blank.get(&i), self.rounding, self.compiler)?
            }
        };
        self.push(kernel, inputs, outputs, &[i], flops);
        Ok(())
    }

    fn emit_reduce(&mut self, i: usize, dims: &[usize], monoid: Monoid) -> Result<()> {
        let node = &self.g.nodes[i];
        let (x, init) = (node.inputs[0], node.inputs[1]);
        let ty = self.g.ty(x).clone();
        let mut b = MapBuilder::new(ty.shape.dims());
        let reg = match self.f.role[x.index()] {
            NodeLowering::Map => self.operand(&mut b, x)?,
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
        self.push(Kernel::Reduce { map, folded, monoid }, inputs, outputs, &[i, x.index()], flops);
        Ok(())
    }

    fn emit_results(&mut self) -> Result<()> {
        let mut taken: HashMap<SlotId, TensorType> = HashMap::new();
        for (k, &r) in self.g.results.iter().enumerate() {
            let ty = self.g.ty(r).clone();
            let base = self.f.base(r);
            let mut slot = self.slot(base)?;
            let kept_type = *self.g.ty(base) == ty;
            let is_made = matches!(self.out.slots[slot].place, Location::Arena(_));
            let usable = match taken.get(&slot) {
                Some(first) => *first == ty,
                None => is_made || kept_type,
            };
            if !usable {
                slot = self.copy_of(slot, &ty, base.index())?;
            }
            if matches!(self.out.slots[slot].place, Location::Arena(_)) {
                self.out.slots[slot].place = Location::Result(k);
            }
            taken.entry(slot).or_insert_with(|| ty.clone());
            self.out.results.push(ResultPlan { ty, slot, reuse: None });
        }
        Ok(())
    }

    fn copy_of(&mut self, slot: SlotId, ty: &TensorType, node: usize) -> Result<SlotId> {
        let mut b = MapBuilder::new(ty.shape.dims());
        let reg = b.array(slot, ty.clone(), full_strides(ty));
        let (map, inputs) = b.finish(vec![reg]);
        let copy = self.new_slot(array_bytes(ty)?, Location::Arena(0));
        self.push(Kernel::Map(map), inputs, vec![(copy, ty.clone())], &[node], 0.0);
        Ok(copy)
    }
}

fn is_small_splat(value: &Literal) -> bool {
    value.ty().elements() <= 4096 && value.is_splat()
}

fn full_strides(ty: &TensorType) -> SmallVec<[usize; 4]> {
    ty.shape.strides().iter().copied().collect()
}
