//! SPMD partitioner: rewrites a graph with global shapes into the program of each device, inserting collectives.

use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use systole_ir::op::{
    AllGather, AllReduce, AllToAll, Case, DynamicSlice, FactorResult, LoweringClass, Monoid, NodeView,
    ReduceScatter, ReplicaGroups, ReplicaId, ShardingFactor, While, is_zeros,
};
use systole_ir::{
    DType, Error, ErrorKind, Graph, GraphBuilder, Literal, Mesh, Node, Op, Result, Sharding, Shardings,
    Tensor, TensorType, ValueId, err,
};

/// Partitions a program with global shapes into the program that each device runs.
///
/// The result has the shapes of one device's shards, as `spread` says. It computes the same values, with collectives
/// between replicas ([`ReplicaId`] is the device's index in the mesh). `state` lists parameters that are sharded only
/// to save memory (weights, optimizer slots): they are gathered where they are used. Other sharded parameters (the
/// batch) stay split as long as possible.
///
/// Every graph can be partitioned: operands that an op cannot handle in shards are gathered, and each device runs the
/// whole op. Random bits are generated whole and then sliced, so they match those of one device.
///
/// # Errors
/// If the shardings do not match the graph, use more than one axis of the mesh (which requires a compiler that
/// partitions itself), or the graph already contains collectives.
///
/// ```
/// use systole_dist::partition;
/// use systole_ir::{DType::F32, GraphBuilder, Mesh, Sharding, Shardings, TensorType};
/// let g = GraphBuilder::new("main");
/// let x = g.parameter(TensorType::new(F32, [8, 3]), "x");
/// let graph = g.finish(&[x.sum_all()])?;
/// let spread = Shardings {
///     mesh: "data=4".parse()?,
///     params: vec![Sharding::replicated(2).split(0, 0)],
///     results: vec![Sharding::replicated(0)],
/// };
/// let own = partition(&graph, &spread, &[])?;
/// assert_eq!(own.param_types(), [TensorType::new(F32, [2, 3])]);
/// assert!(own.nodes.iter().any(|n| n.op.name() == "all_reduce"));
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn partition(graph: &Graph, spread: &Shardings, state: &[usize]) -> Result<Arc<Graph>> {
    let places = check(graph, spread)?;
    let axis = places.axis;
    let b = GraphBuilder::new(&graph.name);
    let groups = ReplicaGroups::of(groups(&spread.mesh, axis));
    let exchange = AxisGroups::new(groups, &spread.mesh, axis);
    let mut walk = Partitioner::new(graph, b, spread.mesh.axes()[axis].1, Some(exchange), None);
    walk.wanted = wanted(graph, &places.results);
    let given: Vec<ParamPlacement> = places
        .params
        .iter()
        .enumerate()
        .map(|(i, &place)| ParamPlacement { place, kept: state.contains(&i) })
        .collect();
    let results = walk.all(&given).and_then(|()| {
        let results = graph.results.iter().zip(&places.results);
        results.map(|(&r, &place)| walk.at(r, place)).collect::<PartitionAttempt<Vec<Tensor>>>()
    });
    match results {
        Ok(results) => walk.b.finish(&results),
        Err(stop) => systole_ir::bug!("partitioning failed with {stop:?} outside of a body"),
    }
}

/// Placement of a value along the partitioned mesh axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AxisPlacement {
    /// Replicated: each device has the whole value.
    Whole,
    /// Split into equal shards along a dimension, in device order.
    Split(usize),
    /// Unreduced: each device has an array of the full shape; reducing them gives the value.
    Partial(Monoid),
}

/// Requested placements of parameters and results, all along one mesh axis.
struct AxisPlacements {
    axis: usize,
    params: Vec<AxisPlacement>,
    results: Vec<AxisPlacement>,
}

fn check(graph: &Graph, spread: &Shardings) -> Result<AxisPlacements> {
    let own: Vec<TensorType> = graph.param_types();
    let made = graph.result_types();
    if own.len() != spread.params.len() || made.len() != spread.results.len() {
        let what = format!(
            "got shardings for {} parameters and {} results",
            spread.params.len(),
            spread.results.len()
        );
        let why = format!("`{}` has {} parameters and {} results", graph.name, own.len(), made.len());
        return Err(Error::new(ErrorKind::Config, what).because(why));
    }
    if let Some(node) = graph.nodes.iter().find(|n| n.op.meets()) {
        return Err(err!(
            Unsupported,
            "cannot partition `{}` over devices: it contains the collective {}",
            graph.name,
            node.op.name()
        )
        .because("a program with collectives is already the program of one device"));
    }
    let all = || spread.params.iter().zip(&own).chain(spread.results.iter().zip(&made));
    for (sharding, ty) in all() {
        sharding.local(&spread.mesh, ty)?;
    }
    let size = |a: &usize| spread.mesh.axes()[*a].1;
    let used = |s: &Sharding| (0..s.rank()).flat_map(|d| s.axes(d).to_vec()).collect::<Vec<usize>>();
    let mut axes: Vec<usize> = all().flat_map(|(s, _)| used(s)).filter(|a| size(a) > 1).collect();
    axes.sort_unstable();
    axes.dedup();
    if axes.len() > 1 {
        let names: Vec<&str> = axes.iter().map(|&a| spread.mesh.axes()[a].0.as_str()).collect();
        return Err(err!(Unsupported, "arrays are sharded along more than one axis: {} of the mesh {}",
            names.join(" and "),
            spread.mesh)
            .because("the CPU and reference backends partition programs along one axis only (the batch or the parameters)")
            .hint("use data_parallel or fully_sharded here; other shardings need a TPU or GPU, where XLA partitions programs"));
    }
    let largest = (0..spread.mesh.axes().len()).max_by_key(size).unwrap_or(0);
    let axis = axes.first().copied().unwrap_or(largest);
    let place = |s: &Sharding| {
        let split = (0..s.rank()).find(|&d| s.axes(d).contains(&axis) && size(&axis) > 1);
        split.map_or(AxisPlacement::Whole, AxisPlacement::Split)
    };
    Ok(AxisPlacements {
        axis,
        params: spread.params.iter().map(place).collect(),
        results: spread.results.iter().map(place).collect(),
    })
}

/// Groups of devices that differ only in their coordinate along an axis.
fn groups(mesh: &Mesh, axis: usize) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let others = |d: usize| {
        let mut at = mesh.coordinates(d);
        at[axis] = 0;
        at
    };
    for device in 0..mesh.devices() {
        match groups.iter_mut().find(|g| others(g[0]) == others(device)) {
            Some(group) => group.push(device),
            None => groups.push(vec![device]),
        }
    }
    groups
}

/// For each value that reaches a split result through element-wise ops only: the dimension along which to split it.
/// Sums over devices that end there (gradients of sharded weights) become reduce-scatters instead of all-reduces.
fn wanted(graph: &Graph, results: &[AxisPlacement]) -> HashMap<ValueId, usize> {
    let mut wanted = HashMap::new();
    for (&r, place) in graph.results.iter().zip(results) {
        if let AxisPlacement::Split(d) = place {
            wanted.insert(r, *d);
        }
    }
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        let Some(&d) = wanted.get(&ValueId::new(i, 0)) else { continue };
        if node.op.rule().lower() == LoweringClass::Map && node.outs.len() == 1 {
            for &v in node.inputs.iter().filter(|&&v| graph.ty(v).shape == node.outs[0].shape) {
                wanted.entry(v).or_insert(d);
            }
        }
    }
    wanted
}

/// Reason why a body cannot be partitioned with the attempted placements.
#[derive(Debug)]
enum PartitionFailure {
    /// The body needs a collective, which is not allowed.
    Exchange,
    /// The body needs this parameter in another placement.
    Param(usize, AxisPlacement),
}

type PartitionAttempt<T> = std::result::Result<T, PartitionFailure>;

/// Placement of a parameter.
#[derive(Clone, Copy)]
struct ParamPlacement {
    place: AxisPlacement,
    kept: bool,
}

/// Collectives allowed in a partitioned loop body or branch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BodyPlan {
    /// Local work only, no collectives.
    Alone,
    /// Collectives inside; running sums are reduced after the loop.
    SumsLater,
    /// Collectives inside; sums are reduced immediately.
    SumsNow,
}

/// In order of cost, cheapest first.
const MEANS: [BodyPlan; 3] = [BodyPlan::Alone, BodyPlan::SumsLater, BodyPlan::SumsNow];

/// Context in which a body is partitioned.
struct BodyContext<'a> {
    n: usize,
    means: BodyPlan,
    exchange: Option<&'a AxisGroups>,
    /// Whether a parameter can be moved to another placement.
    movable: &'a dyn Fn(usize, AxisPlacement) -> bool,
}

/// Device groups of the collectives along the mesh axis, and this device's index in its group.
struct AxisGroups {
    groups: ReplicaGroups,
    /// Distance in device numbers between neighbors along the axis.
    step: usize,
    size: usize,
    index: Option<Tensor>,
}

impl AxisGroups {
    fn new(groups: ReplicaGroups, mesh: &Mesh, axis: usize) -> AxisGroups {
        let step = mesh.axes()[axis + 1..].iter().map(|(_, n)| n).product();
        AxisGroups { groups, step, size: mesh.axes()[axis].1, index: None }
    }

    /// Copy for a body, which computes its own device index.
    fn inner(&self) -> AxisGroups {
        AxisGroups { groups: self.groups.clone(), index: None, ..*self }
    }

    /// This device's index along the axis.
    fn index(&mut self, b: &GraphBuilder) -> Tensor {
        let (step, size) = (self.step, self.size);
        let make = || {
            let id = b.emit(ReplicaId, &[]).remove(0).convert(DType::I32);
            (id / step as f64).remainder(&b.scalar(DType::I32, size as f64))
        };
        self.index.get_or_insert_with(make).clone()
    }
}

/// A global value as one device holds it.
struct ShardedValue {
    local: Tensor,
    place: AxisPlacement,
    /// Whether it is split only to save memory (weights, optimizer slots), not to divide work.
    kept: bool,
    whole: Option<Tensor>,
    splits: Vec<(usize, Tensor)>,
}

/// Partitions a graph or body: visits its nodes in order and appends the ops of one device.
struct Partitioner<'g> {
    graph: &'g Graph,
    b: GraphBuilder,
    n: usize,
    /// `None` in bodies without collectives.
    exchange: Option<AxisGroups>,
    /// For bodies: whether a parameter can be moved to another placement.
    movable: Option<&'g dyn Fn(usize, AxisPlacement) -> bool>,
    wanted: HashMap<ValueId, usize>,
    values: HashMap<ValueId, ShardedValue>,
}

impl<'g> Partitioner<'g> {
    fn new(
        graph: &'g Graph,
        b: GraphBuilder,
        n: usize,
        exchange: Option<AxisGroups>,
        movable: Option<&'g dyn Fn(usize, AxisPlacement) -> bool>,
    ) -> Partitioner<'g> {
        Partitioner { graph, b, n, exchange, movable, wanted: HashMap::new(), values: HashMap::new() }
    }

    /// Appends all live nodes.
    fn all(&mut self, params: &[ParamPlacement]) -> PartitionAttempt<()> {
        let graph = self.graph;
        for ((&p, name), given) in graph.params.iter().zip(&graph.param_names).zip(params) {
            let local = self.b.parameter(self.local_type(graph.ty(p), given.place), name);
            self.set(p, local, given.place, given.kept);
        }
        let live = graph.live(&graph.results);
        for (i, node) in graph.nodes.iter().enumerate() {
            if live[i] && !matches!(node.op, Op::Parameter(_)) {
                let b = self.b.clone();
                b.scope(graph.scope(node), || self.node(i, node))?;
            }
        }
        Ok(())
    }

    fn local_type(&self, ty: &TensorType, place: AxisPlacement) -> TensorType {
        let AxisPlacement::Split(d) = place else { return ty.clone() };
        let mut dims = ty.shape.to_vec();
        dims[d] /= self.n;
        ty.with_shape(dims)
    }

    fn set(&mut self, v: ValueId, local: Tensor, place: AxisPlacement, kept: bool) {
        self.values.insert(v, ShardedValue { local, place, kept, whole: None, splits: Vec::new() });
    }

    fn value(&self, v: ValueId) -> &ShardedValue {
        &self.values[&v]
    }

    fn place(&self, v: ValueId) -> AxisPlacement {
        self.value(v).place
    }

    fn divides(&self, ty: &TensorType, d: usize) -> bool {
        ty.shape[d].is_multiple_of(self.n)
    }

    fn node(&mut self, i: usize, node: &Node) -> PartitionAttempt<()> {
        match &node.op {
            Op::While(w) => return self.while_loop(i, node, w),
            Op::Case(c) => return self.case(i, node, c),
            Op::OptimizationBarrier(_) => {
                let inputs: Vec<Tensor> = node.inputs.iter().map(|&v| self.value(v).local.clone()).collect();
                let outs = self.b.emit(node.op.clone(), &inputs.iter().collect::<Vec<_>>());
                for (k, (&v, local)) in node.inputs.iter().zip(outs).enumerate() {
                    let (place, kept) = (self.place(v), self.value(v).kept);
                    self.set(ValueId::new(i, k), local, place, kept);
                }
                return Ok(());
            }
            _ => {}
        }
        if let Some(local) = self.linear(node)? {
            return self.partial(ValueId::new(i, 0), local, Monoid::Add);
        }
        match self.best(node) {
            Some(factor) => self.by_parts(i, node, &factor),
            None => self.replicated(i, node),
        }
    }

    /// Applies linear ops (sums, reshapes, blocks) to unreduced values without reducing them first. In a body, this may
    /// request an unreduced parameter as the start of a running sum.
    fn linear(&self, node: &Node) -> PartitionAttempt<Option<Tensor>> {
        use systole_ir::op::Binary::{Add, Subtract};
        let pending = |v: ValueId| {
            let value = self.value(v);
            value.place == AxisPlacement::Partial(Monoid::Add)
                && value.local.dtype() == self.graph.ty(v).dtype
        };
        let nothing = |v: ValueId| is_zeros(self.graph, v) && self.place(v) == AxisPlacement::Whole;
        let whole = |all: &[ValueId]| all.iter().all(|&v| self.place(v) == AxisPlacement::Whole);
        let fits = match (&node.op, &node.inputs[..]) {
            (Op::Reshape(_) | Op::Transpose(_), &[x]) => pending(x),
            (Op::DynamicSlice(_), [x, at @ ..]) => pending(*x) && whole(at),
            (Op::DynamicUpdateSlice(_), &[x, block, ref at @ ..]) if pending(block) && whole(at) => {
                pending(x) || nothing(x) || self.running_sum(x)?
            }
            (Op::Binary(Add | Subtract), &[a, b]) if pending(a) && (pending(b) || nothing(b)) => true,
            (Op::Binary(Add), &[a, b]) if pending(b) && nothing(a) => true,
            (Op::Binary(Add), &[a, b]) if pending(a) => self.running_sum(b)?,
            (Op::Binary(Add), &[a, b]) if pending(b) => self.running_sum(a)?,
            _ => false,
        };
        let inputs: Vec<&Tensor> = node.inputs.iter().map(|v| &self.value(*v).local).collect();
        Ok(fits.then(|| self.b.emit(node.op.clone(), &inputs).remove(0)))
    }

    /// Requests an unreduced parameter if the value is a block of one that can be a running sum. Otherwise returns
    /// `false`.
    fn running_sum(&self, mut v: ValueId) -> PartitionAttempt<bool> {
        while let Op::Reshape(_) | Op::Transpose(_) | Op::DynamicSlice(_) = self.graph.node(v).op {
            v = self.graph.node(v).inputs[0];
        }
        let sum = AxisPlacement::Partial(Monoid::Add);
        match (self.graph.params.iter().position(|&p| p == v), self.movable) {
            (Some(p), Some(movable)) if movable(p, sum) => Err(PartitionFailure::Param(p, sum)),
            _ => Ok(false),
        }
    }

    /// Records an unreduced value; scatters it immediately if its users want shards.
    fn partial(&mut self, v: ValueId, local: Tensor, monoid: Monoid) -> PartitionAttempt<()> {
        self.set(v, local, AxisPlacement::Partial(monoid), false);
        if let Some(&d) = self.wanted.get(&v)
            && self.divides(self.graph.ty(v), d)
        {
            let part = self.split(v, d)?;
            self.set(v, part, AxisPlacement::Split(d), true);
        }
        Ok(())
    }

    fn factors(&self, node: &Node) -> Vec<ShardingFactor> {
        NodeView { graph: self.graph, node }.factors()
    }

    /// Chooses the cheapest sharding factor to divide; `None` if each device computes the whole op.
    fn best(&self, node: &Node) -> Option<ShardingFactor> {
        let mut best: (f64, Option<ShardingFactor>) = (self.price(node, &|_| None), None);
        for factor in self.factors(node) {
            if !self.can_divide(node, &factor) {
                continue;
            }
            let out = match factor.along {
                FactorResult::Fold(_) => 2.0 * node.outs[0].bytes() as f64,
                FactorResult::Dim(_) => 0.0,
            };
            let price = out + self.price(node, &|k| factor.operands[k]);
            if price < best.0 || (best.1.is_none() && price <= best.0) {
                best = (price, Some(factor));
            }
        }
        best.1
    }

    /// Whether a factor divides evenly and some operand is already split along it.
    fn can_divide(&self, node: &Node, factor: &ShardingFactor) -> bool {
        let dims = node.inputs.iter().zip(&factor.operands).filter_map(|(&v, d)| Some((v, (*d)?)));
        let mut there = false;
        for (v, d) in dims {
            if !self.divides(self.graph.ty(v), d) {
                return false;
            }
            there |= self.place(v) == AxisPlacement::Split(d);
        }
        let out = match factor.along {
            FactorResult::Dim(d) => node.outs.iter().all(|t| self.divides(t, d)),
            FactorResult::Fold(_) => true,
        };
        there && out
    }

    /// Communication cost in bytes of bringing the operands to the required placements. Gathering a batch is penalized
    /// heavily, because the work on it is then no longer divided.
    fn price(&self, node: &Node, need: &dyn Fn(usize) -> Option<usize>) -> f64 {
        const DEAR: f64 = 1e6;
        let one = |(k, &v): (usize, &ValueId)| {
            let value = self.value(v);
            let bytes = self.graph.ty(v).bytes() as f64;
            match (value.place, need(k)) {
                (AxisPlacement::Whole, _) => 0.0,
                (AxisPlacement::Split(a), Some(b)) if a == b => 0.0,
                (_, None) if value.whole.is_some() => 0.0,
                (AxisPlacement::Split(_), _) if value.kept => bytes,
                (AxisPlacement::Split(_), _) => DEAR * bytes.max(1.0),
                (AxisPlacement::Partial(_), Some(_)) => bytes,
                (AxisPlacement::Partial(_), None) => 2.0 * bytes,
            }
        };
        node.inputs.iter().enumerate().map(one).sum()
    }

    fn by_parts(&mut self, i: usize, node: &Node, factor: &ShardingFactor) -> PartitionAttempt<()> {
        let mut inputs = Vec::with_capacity(node.inputs.len());
        let mut kept = true;
        for (&v, d) in node.inputs.iter().zip(&factor.operands) {
            kept &= d.is_none() || self.value(v).kept || self.place(v) == AxisPlacement::Whole;
            inputs.push(match d {
                Some(d) => self.split(v, *d)?,
                None => self.whole(v)?,
            });
        }
        // Bodies keep their accumulator types.
        let op = match (factor.along, self.movable) {
            (FactorResult::Fold(_), Some(_)) => node.op.clone(),
            _ => node.op.shard(factor.along, self.n),
        };
        let outs = self.b.emit(op, &inputs.iter().collect::<Vec<_>>());
        match factor.along {
            FactorResult::Fold(monoid) => {
                let [out]: [Tensor; 1] =
                    outs.try_into().unwrap_or_else(|_| systole_ir::bug!("a reduction has one result"));
                self.partial(ValueId::new(i, 0), out, monoid)
            }
            FactorResult::Dim(d) => {
                for (k, out) in outs.into_iter().enumerate() {
                    self.set(ValueId::new(i, k), out, AxisPlacement::Split(d), kept);
                }
                Ok(())
            }
        }
    }

    fn replicated(&mut self, i: usize, node: &Node) -> PartitionAttempt<()> {
        let inputs: Vec<Tensor> =
            node.inputs.iter().map(|&v| self.whole(v)).collect::<PartitionAttempt<_>>()?;
        let outs = self.b.emit(node.op.clone(), &inputs.iter().collect::<Vec<_>>());
        for (k, out) in outs.into_iter().enumerate() {
            self.set(ValueId::new(i, k), out, AxisPlacement::Whole, false);
        }
        Ok(())
    }

    fn at(&mut self, v: ValueId, place: AxisPlacement) -> PartitionAttempt<Tensor> {
        match place {
            AxisPlacement::Whole => self.whole(v),
            AxisPlacement::Split(d) => self.split(v, d),
            AxisPlacement::Partial(_) if self.place(v) == place || is_zeros(self.graph, v) => {
                Ok(self.value(v).local.clone())
            }
            AxisPlacement::Partial(_) => Err(PartitionFailure::Exchange),
        }
    }

    fn groups(&self) -> PartitionAttempt<ReplicaGroups> {
        self.exchange.as_ref().map(|e| e.groups.clone()).ok_or(PartitionFailure::Exchange)
    }

    fn emit(&self, op: impl Into<Op>, x: &Tensor) -> Tensor {
        self.b.emit(op, &[x]).remove(0)
    }

    /// Converts a value back to the graph's element type if its sum was accumulated in a wider one.
    fn narrow(&self, v: ValueId, x: Tensor) -> Tensor {
        let dtype = self.graph.ty(v).dtype;
        if x.dtype() == dtype { x } else { x.convert(dtype) }
    }

    /// Returns the replicated value: gathers or reduces it if needed.
    fn whole(&mut self, v: ValueId) -> PartitionAttempt<Tensor> {
        let value = self.value(v);
        if let Some(whole) = &value.whole {
            return Ok(whole.clone());
        }
        let (local, place) = (value.local.clone(), value.place);
        let whole = match place {
            AxisPlacement::Whole => return Ok(local),
            AxisPlacement::Split(dim) => self.emit(AllGather { groups: self.groups()?, dim }, &local),
            AxisPlacement::Partial(monoid) => {
                let body = monoid.body(local.dtype());
                let sum = self.emit(AllReduce { groups: self.groups()?, body }, &local);
                self.narrow(v, sum)
            }
        };
        self.values.entry(v).and_modify(|value| value.whole = Some(whole.clone()));
        Ok(whole)
    }

    /// Returns this device's shard of a value along dimension `d`.
    fn split(&mut self, v: ValueId, d: usize) -> PartitionAttempt<Tensor> {
        let value = self.value(v);
        if let Some((_, part)) = value.splits.iter().find(|(own, _)| *own == d) {
            return Ok(part.clone());
        }
        let (local, place, whole) = (value.local.clone(), value.place, value.whole.clone());
        let part = match (place, whole) {
            (AxisPlacement::Split(own), _) if own == d => return Ok(local),
            (AxisPlacement::Whole, _) => self.part_of_whole(v, &local, d)?,
            (_, Some(whole)) => self.sliced(v, &whole, d)?,
            (AxisPlacement::Split(own), _) => {
                self.emit(AllToAll { groups: self.groups()?, split_dim: d, concat_dim: own }, &local)
            }
            (AxisPlacement::Partial(monoid), _) => {
                let body = monoid.body(local.dtype());
                let sum = self.emit(ReduceScatter { groups: self.groups()?, dim: d, body }, &local);
                self.narrow(v, sum)
            }
        };
        self.values.entry(v).and_modify(|value| value.splits.push((d, part.clone())));
        Ok(part)
    }

    /// Computes a shard of a replicated value: constants, broadcasts and iota are created as shards, other values are
    /// sliced.
    fn part_of_whole(&mut self, v: ValueId, local: &Tensor, d: usize) -> PartitionAttempt<Tensor> {
        let node = self.graph.node(v);
        let part = self.local_type(self.graph.ty(v), AxisPlacement::Split(d));
        if let Op::Constant(c) = &node.op
            && c.value.is_splat()
            && !part.shape.contains(&0)
        {
            return Ok(self.b.constant(Literal::splat(part, c.value.get(0))));
        }
        if matches!(node.op, Op::BroadcastInDim(_) | Op::Iota(_)) {
            let free = |f: &ShardingFactor| {
                f.along == FactorResult::Dim(d) && f.operands.iter().all(|k| k.is_none())
            };
            if self.factors(node).iter().any(free) {
                let inputs: Vec<Tensor> =
                    node.inputs.iter().map(|&v| self.whole(v)).collect::<PartitionAttempt<_>>()?;
                let op = node.op.shard(FactorResult::Dim(d), self.n);
                return Ok(self.b.emit(op, &inputs.iter().collect::<Vec<_>>()).remove(0));
            }
        }
        self.sliced(v, local, d)
    }

    /// Slices this device's shard out of a replicated value.
    fn sliced(&mut self, v: ValueId, whole: &Tensor, d: usize) -> PartitionAttempt<Tensor> {
        let part = self.local_type(self.graph.ty(v), AxisPlacement::Split(d));
        let b = self.b.clone();
        let Some(exchange) = &mut self.exchange else {
            let from = self.origin(v, d, &mut HashSet::new());
            return Err(from.map_or(PartitionFailure::Exchange, |(p, d)| {
                PartitionFailure::Param(p, AxisPlacement::Split(d))
            }));
        };
        let index = exchange.index(&b);
        let (zero, start) = (b.scalar(DType::I32, 0.0), index * part.shape[d] as f64);
        let starts = (0..part.rank()).map(|k| if k == d { &start } else { &zero });
        let inputs: Vec<&Tensor> = std::iter::once(whole).chain(starts).collect();
        let op = DynamicSlice { sizes: part.shape.dims().into() };
        Ok(self.b.emit(op, &inputs).remove(0))
    }

    /// Traces dimension `d` of a value back to a parameter and its dimension: splitting that splits the value.
    fn origin(&self, v: ValueId, d: usize, seen: &mut HashSet<(ValueId, usize)>) -> Option<(usize, usize)> {
        if !seen.insert((v, d)) {
            return None;
        }
        if let Some(p) = self.graph.params.iter().position(|&p| p == v) {
            return Some((p, d));
        }
        let node = self.graph.node(v);
        let made = self.factors(node).into_iter().filter(|f| f.along == FactorResult::Dim(d));
        let reads: Vec<_> =
            made.flat_map(|f| node.inputs.iter().copied().zip(f.operands).collect::<Vec<_>>()).collect();
        reads.into_iter().find_map(|(v, k)| self.origin(v, k?, seen))
    }

    /// Initial placements of a body's operands: values split to save memory and unreduced values are replicated.
    fn given(&self, inputs: &[ValueId]) -> Vec<AxisPlacement> {
        let place = |&v: &ValueId| match self.value(v) {
            ShardedValue { place: AxisPlacement::Split(d), kept: false, .. } => AxisPlacement::Split(*d),
            _ => AxisPlacement::Whole,
        };
        inputs.iter().map(place).collect()
    }

    /// Whether an operand of a body can have this placement.
    fn can_be(&self, v: ValueId, place: AxisPlacement) -> bool {
        match place {
            AxisPlacement::Whole => true,
            AxisPlacement::Split(d) => self.divides(self.graph.ty(v), d),
            AxisPlacement::Partial(monoid) => monoid == Monoid::Add && is_zeros(self.graph, v),
        }
    }

    /// Partitions a body in the cheapest possible way; returns the placements of its parameters with the result.
    fn settle<T>(
        &self,
        inputs: &[ValueId],
        attempt: impl Fn(&BodyContext<'_>, &[AxisPlacement]) -> PartitionAttempt<T>,
    ) -> Option<(Vec<AxisPlacement>, T)> {
        let allowed = if self.exchange.is_some() { &MEANS[..] } else { &MEANS[..1] };
        allowed.iter().find_map(|&means| self.settle_by(means, inputs, &attempt))
    }

    /// Retries a body, moving the parameters that it requests, until it succeeds or cannot be partitioned.
    fn settle_by<T>(
        &self,
        means: BodyPlan,
        inputs: &[ValueId],
        attempt: impl Fn(&BodyContext<'_>, &[AxisPlacement]) -> PartitionAttempt<T>,
    ) -> Option<(Vec<AxisPlacement>, T)> {
        let mut places = self.given(inputs);
        for _ in 0..=2 * places.len() {
            // Parameters only move away from the replicated placement.
            let movable = |k: usize, place: AxisPlacement| {
                let now = means == BodyPlan::SumsNow && matches!(place, AxisPlacement::Partial(_));
                places[k] == AxisPlacement::Whole && !now && self.can_be(inputs[k], place)
            };
            let exchange = self.exchange.as_ref().filter(|_| means != BodyPlan::Alone);
            match attempt(&BodyContext { n: self.n, means, exchange, movable: &movable }, &places) {
                Ok(done) => return Some((places, done)),
                Err(PartitionFailure::Param(k, place)) if movable(k, place) => places[k] = place,
                Err(_) => return None,
            }
        }
        None
    }

    fn while_loop(&mut self, i: usize, node: &Node, w: &While) -> PartitionAttempt<()> {
        let attempt = |frame: &BodyContext<'_>, places: &[AxisPlacement]| {
            let cond = body(&w.cond, frame, places, |_, _| Ok(AxisPlacement::Whole))?;
            let next = body(&w.body, frame, places, |k, own| match places[w.captures + k] {
                AxisPlacement::Whole
                    if own != AxisPlacement::Whole && (frame.movable)(w.captures + k, own) =>
                {
                    Err(PartitionFailure::Param(w.captures + k, own))
                }
                old => Ok(old),
            })?;
            Ok((cond.0, next.0))
        };
        let Some((places, (cond, step))) = self.settle(&node.inputs, attempt) else {
            return self.replicated(i, node);
        };
        let inputs: Vec<Tensor> =
            node.inputs.iter().zip(&places).map(|(&v, &p)| self.at(v, p)).collect::<PartitionAttempt<_>>()?;
        let mut op = While { cond, body: step, ..w.clone() };
        let types: SmallVec<[&TensorType; 4]> = inputs.iter().map(Tensor::ty).collect();
        if op.recorded.is_some() && systole_ir::op::OpRule::infer(&op, &types).is_err() {
            op.recorded = None;
        }
        let outs = self.b.emit(op, &inputs.iter().collect::<Vec<_>>());
        for (k, out) in outs.into_iter().enumerate() {
            self.made(ValueId::new(i, k), out, places[w.captures + k])?;
        }
        Ok(())
    }

    fn case(&mut self, i: usize, node: &Node, c: &Case) -> PartitionAttempt<()> {
        let Some((index, captures)) = node.inputs.split_last() else { return self.replicated(i, node) };
        let attempt = |frame: &BodyContext<'_>, places: &[AxisPlacement]| {
            let mut branches = Vec::new();
            let mut results: Option<Vec<AxisPlacement>> = None;
            for branch in &c.branches {
                let first = results.clone();
                let (graph, own) = body(branch, frame, places, |k, own| match (&first, own) {
                    (Some(first), _) => Ok(first[k]),
                    (None, AxisPlacement::Partial(_)) if frame.means == BodyPlan::SumsNow => {
                        Ok(AxisPlacement::Whole)
                    }
                    (None, own) => Ok(own),
                })?;
                branches.push(graph);
                results.get_or_insert(own);
            }
            Ok((branches, results.unwrap_or_default()))
        };
        let Some((places, (branches, results))) = self.settle(captures, attempt) else {
            return self.replicated(i, node);
        };
        let mut inputs: Vec<Tensor> =
            captures.iter().zip(&places).map(|(&v, &p)| self.at(v, p)).collect::<PartitionAttempt<_>>()?;
        inputs.push(self.whole(*index)?);
        let outs = self.b.emit(Case { branches }, &inputs.iter().collect::<Vec<_>>());
        for (k, (out, place)) in outs.into_iter().zip(results).enumerate() {
            self.made(ValueId::new(i, k), out, place)?;
        }
        Ok(())
    }

    /// Records a result of a body.
    fn made(&mut self, v: ValueId, local: Tensor, place: AxisPlacement) -> PartitionAttempt<()> {
        match place {
            AxisPlacement::Partial(monoid) => self.partial(v, local, monoid),
            place => {
                self.set(v, local, place, false);
                Ok(())
            }
        }
    }
}

/// Partitions a body. `result` chooses the placement of each result, given the placement in which it was computed.
fn body(
    graph: &Graph,
    frame: &BodyContext<'_>,
    places: &[AxisPlacement],
    result: impl Fn(usize, AxisPlacement) -> PartitionAttempt<AxisPlacement>,
) -> PartitionAttempt<(Arc<Graph>, Vec<AxisPlacement>)> {
    let exchange = frame.exchange.map(AxisGroups::inner);
    let mut walk =
        Partitioner::new(graph, GraphBuilder::new(&graph.name), frame.n, exchange, Some(frame.movable));
    let given: Vec<ParamPlacement> =
        places.iter().map(|&place| ParamPlacement { place, kept: false }).collect();
    walk.all(&given)?;
    let (mut results, mut at) = (Vec::new(), Vec::new());
    for (k, &r) in graph.results.iter().enumerate() {
        let place = result(k, walk.place(r))?;
        results.push(walk.at(r, place)?);
        at.push(place);
    }
    let graph = walk.b.finish(&results).map_err(|_| PartitionFailure::Exchange)?;
    Ok((graph, at))
}
