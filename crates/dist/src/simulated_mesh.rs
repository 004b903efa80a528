//! Programs with collectives on logical devices of a backend that has but one.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use systole_ir::op::{Case, DeviceCounts, While, agreed};
use systole_ir::{
    Error, ErrorKind, Graph, GraphBuilder, Literal, Op, Result, Scalar, Tensor, TensorType, ValueId,
};
use systole_runtime::{Backend, Buffer, CompileOptions, Executable, ExecutableArg, ExecutableReport};

/// A program that is the same on each of some devices, run on logical devices of one backend.
///
/// It is cut at its collectives. The pieces between run on the backend, for one device after the other; the collectives
/// run on the host, and so do loops and branches that have some in their bodies, which are cut likewise. Time and memory
/// say nothing of real devices. Several processes may run some of the devices each: a [`DeviceOwnership`].
///
/// ```
/// use systole_dist::{Team, SimulatedMesh};
/// use systole_ir::{op::{AllReduce, Devices, Groups, Monoid}, DType::F32, GraphBuilder, TensorType};
/// use systole_runtime::{Arg, Buffer, CompileOptions, ReferenceBackend};
/// let g = GraphBuilder::new("main");
/// let x = g.parameter(TensorType::scalar(F32), "x");
/// let groups = Groups::of(vec![vec![0, 1]]);
/// let sum = g.emit(AllReduce { groups, body: Monoid::Add.body(F32) }, &[&x]).remove(0);
/// let graph = g.finish(&[sum * 2.0])?;
/// let team = Team::alone(Devices::replicas(2));
/// let run = SimulatedMesh::compile(&ReferenceBackend, &graph, &team, &CompileOptions::default())?;
/// let args = [1.0, 2.0].map(|v| vec![Arg::Donate(Buffer::scalar(F32, v))]);
/// let out = run.run(args.into())?;
/// assert_eq!(out[0][0].to_f64()?, 6.0);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub struct SimulatedMesh {
    team: DeviceOwnership,
    graph: Arc<Graph>,
    steps: Vec<MeshStep>,
    report: ExecutableReport,
}

/// Who runs a program's devices: this process all of them, or each of several processes some.
#[derive(Clone)]
pub struct DeviceOwnership {
    devices: DeviceCounts,
    /// Those of this process.
    own: Range<usize>,
    exchange: Option<Arc<dyn ProcessExchange>>,
}

/// How processes, each of which runs some of a program's devices, tell each other what these exchange.
pub trait ProcessExchange: Send + Sync {
    /// What every process says, this one too, in the order of their devices. `what` names the meeting: processes that
    /// are at different ones must fail rather than take each other's bytes.
    ///
    /// # Errors
    /// When a process is gone, is silent for too long, or is somewhere else.
    fn all(&self, what: &str, own: Vec<u8>) -> Result<Vec<Vec<u8>>>;
}

impl DeviceOwnership {
    /// One process runs all devices.
    pub fn alone(devices: DeviceCounts) -> DeviceOwnership {
        DeviceOwnership { devices, own: 0..devices.count(), exchange: None }
    }

    /// This process runs the devices `own`, and others the rest.
    pub fn of(
        devices: DeviceCounts,
        own: Range<usize>,
        exchange: Arc<dyn ProcessExchange>,
    ) -> DeviceOwnership {
        DeviceOwnership { devices, own, exchange: Some(exchange) }
    }

    /// Operands of all devices, given those of this process's.
    fn gathered(&self, op: &Op, own: Vec<Vec<Literal>>) -> Result<Vec<Vec<Literal>>> {
        let Some(exchange) = self.exchange.as_ref().filter(|_| own.iter().any(|list| !list.is_empty()))
        else {
            return Ok(own);
        };
        let types: Vec<TensorType> = own[0].iter().map(|x| x.ty().clone()).collect();
        let what = format!("{} of {}", op.name(), types.iter().map(|t| t.to_string()).collect::<String>());
        let bytes = own.iter().flatten().flat_map(|x| x.bytes()).copied().collect();
        let all = exchange.all(&what, bytes)?.concat();
        let lengths: Vec<usize> = types.iter().map(TensorType::bytes).collect();
        let each: usize = lengths.iter().sum();
        if all.len() != each * self.devices.count() {
            let what = format!("{} bytes for {} devices", all.len(), self.devices.count());
            return Err(Error::new(ErrorKind::Bug, what).at(op.name()));
        }
        let device = |d: usize| {
            let mut rest = &all[d * each..(d + 1) * each];
            let operand = |(ty, n): (&TensorType, &usize)| {
                let (own, after) = rest.split_at(*n);
                rest = after;
                Literal::from_bytes(ty.clone(), own)
            };
            types.iter().zip(&lengths).map(operand).collect()
        };
        (0..self.devices.count()).map(device).collect()
    }
}

enum MeshStep {
    /// A piece without collectives.
    Piece(LocalProgram),
    /// A node in which devices meet.
    Meeting(usize, CollectiveStep),
}

enum CollectiveStep {
    Collective,
    Loop(Box<CollectiveLoop>),
    Branches(Vec<SimulatedMesh>),
}

struct CollectiveLoop {
    captures: usize,
    cond: SimulatedMesh,
    body: SimulatedMesh,
}

struct LocalProgram {
    reads: Vec<ValueId>,
    makes: Vec<ValueId>,
    program: Arc<dyn Executable>,
}

impl SimulatedMesh {
    /// Compiles the pieces of a program.
    ///
    /// # Errors
    /// When the backend refuses a piece, or a body of another op than a loop or branch has collectives.
    pub fn compile(
        backend: &dyn Backend,
        graph: &Arc<Graph>,
        team: &DeviceOwnership,
        options: &CompileOptions,
    ) -> Result<SimulatedMesh> {
        let start = Instant::now();
        let cut = CollectiveSplit::new(graph);
        let identity = |node| MeshStep::Meeting(node, CollectiveStep::Collective);
        let mut steps: Vec<MeshStep> = cut.identities().into_iter().map(identity).collect();
        let mut report = ExecutableReport::default();
        let (mut left, last) = (cut.uses(), cut.stages());
        for stage in 0..=last {
            if let Some(LocalGraph { graph: piece, reads, makes }) = cut.piece(stage)? {
                reads.iter().for_each(|v| *left.entry(*v).or_default() -= 1);
                let given = |v: &ValueId| !graph.params.contains(v) || donates(options, graph, *v);
                let dies = |v: &ValueId| left[v] == 0 && given(v);
                let donated = (0..reads.len()).filter(|&k| dies(&reads[k])).collect();
                let label = format!("{}, piece {stage}", options.label);
                let options = CompileOptions { donated, label, ..options.clone() };
                let program = backend.compile(&piece, &options)?;
                add(&mut report, program.report(), team.devices.count());
                steps.push(MeshStep::Piece(LocalProgram { reads, makes, program }));
            }
            for node in cut.meetings(stage) {
                graph.nodes[node].inputs.iter().for_each(|v| *left.entry(*v).or_default() -= 1);
                let meeting = CollectiveStep::compile(backend, &graph.nodes[node].op, team, options)?;
                let programs = meeting.programs(&graph.nodes[node].op);
                programs.into_iter().for_each(|(own, times)| add(&mut report, &own.report, times));
                steps.push(MeshStep::Meeting(node, meeting));
            }
        }
        report.compile_ms = start.elapsed().as_secs_f64() * 1e3;
        Ok(SimulatedMesh { team: team.clone(), graph: graph.clone(), steps, report })
    }

    /// What compiling found out, of all pieces.
    pub fn report(&self) -> &ExecutableReport {
        &self.report
    }

    /// Runs once: the arguments of each of this process's devices in, their results out.
    ///
    /// # Errors
    /// When arguments are not one list for each device with the parameters' types, or a piece fails.
    pub fn run(&self, args: Vec<Vec<ExecutableArg<'_>>>) -> Result<Vec<Vec<Buffer>>> {
        let (graph, n) = (&*self.graph, self.team.own.len());
        if args.len() != n || args.iter().any(|own| own.len() != graph.params.len()) {
            let what = format!("arguments of {} devices for a program on {n}", args.len());
            return Err(Error::new(ErrorKind::Graph, what)
                .because(format!("each takes {} arguments", graph.params.len())));
        }
        let mut left = HashMap::new();
        for v in self.reads() {
            *left.entry(v).or_insert(0usize) += 1;
        }
        let mut values: Vec<HashMap<ValueId, ExecutableArg<'_>>> =
            args.into_iter().map(|own| graph.params.iter().copied().zip(own).collect()).collect();
        for step in &self.steps {
            match step {
                MeshStep::Piece(piece) => {
                    piece.reads.iter().for_each(|v| *left.entry(*v).or_insert(1) -= 1);
                    for own in &mut values {
                        piece.run(own, &left)?;
                    }
                }
                MeshStep::Meeting(node, meeting) => {
                    let inputs = &graph.nodes[*node].inputs;
                    inputs.iter().for_each(|v| *left.entry(*v).or_insert(1) -= 1);
                    let operands = values.iter_mut().map(|own| taken(own, inputs, &left)).collect();
                    let made = meeting.run(&graph.nodes[*node].op, &self.team, operands)?;
                    for (own, made) in values.iter_mut().zip(made) {
                        let named = made.into_iter().enumerate();
                        let named =
                            named.map(|(k, buffer)| (ValueId::new(*node, k), ExecutableArg::Donate(buffer)));
                        own.extend(named.filter(|(v, _)| left.contains_key(v)));
                    }
                }
            }
        }
        let result = |own: &HashMap<ValueId, ExecutableArg<'_>>| -> Vec<Buffer> {
            graph.results.iter().map(|r| own[r].buffer().clone()).collect()
        };
        Ok(values.iter().map(result).collect())
    }

    /// Every reading of a value, results included.
    fn reads(&self) -> impl Iterator<Item = ValueId> {
        let steps = self.steps.iter().flat_map(|step| match step {
            MeshStep::Piece(piece) => piece.reads.clone(),
            MeshStep::Meeting(node, _) => self.graph.nodes[*node].inputs.to_vec(),
        });
        steps.chain(self.graph.results.iter().copied())
    }
}

fn donates(options: &CompileOptions, graph: &Graph, v: ValueId) -> bool {
    graph.params.iter().position(|&p| p == v).is_some_and(|p| options.donated.contains(&p))
}

impl LocalProgram {
    /// What nothing reads any more is given away.
    fn run(
        &self,
        values: &mut HashMap<ValueId, ExecutableArg<'_>>,
        left: &HashMap<ValueId, usize>,
    ) -> Result<()> {
        let mut dying: HashMap<ValueId, ExecutableArg<'_>> =
            self.reads.iter().filter(|v| left[*v] == 0).filter_map(|v| values.remove_entry(v)).collect();
        let arg = |v| dying.remove(v).unwrap_or_else(|| ExecutableArg::Borrow(values[v].buffer()));
        let made = self.program.run(self.reads.iter().map(arg).collect())?;
        self.makes.iter().zip(made).for_each(|(&v, buffer)| {
            values.insert(v, ExecutableArg::Donate(buffer));
        });
        Ok(())
    }
}

/// The operands of a meeting; what nothing reads any more is taken out.
fn taken(
    own: &mut HashMap<ValueId, ExecutableArg<'_>>,
    inputs: &[ValueId],
    left: &HashMap<ValueId, usize>,
) -> Vec<Buffer> {
    let one = |(k, v): (usize, &ValueId)| {
        let last = left[v] == 0 && !inputs[k + 1..].contains(v);
        match if last { own.remove(v) } else { None } {
            Some(ExecutableArg::Donate(buffer)) => buffer,
            Some(ExecutableArg::Borrow(buffer)) => buffer.clone(),
            None => own[v].buffer().clone(),
        }
    };
    inputs.iter().enumerate().map(one).collect()
}

impl CollectiveStep {
    fn compile(
        backend: &dyn Backend,
        op: &Op,
        team: &DeviceOwnership,
        options: &CompileOptions,
    ) -> Result<CollectiveStep> {
        let program = |body: &Arc<Graph>, donated: Vec<usize>| {
            let label = format!("{}, a body of {}", options.label, op.name());
            SimulatedMesh::compile(backend, body, team, &CompileOptions { donated, label, ..options.clone() })
        };
        match op {
            Op::While(w) => {
                let state = (w.captures..w.body.params.len()).collect();
                let (cond, body) = (program(&w.cond, Vec::new())?, program(&w.body, state)?);
                Ok(CollectiveStep::Loop(Box::new(CollectiveLoop { captures: w.captures, cond, body })))
            }
            Op::Case(c) => {
                let branches = c.branches.iter().map(|b| program(b, Vec::new())).collect::<Result<_>>()?;
                Ok(CollectiveStep::Branches(branches))
            }
            op if op.collective().is_some() => Ok(CollectiveStep::Collective),
            op => Err(Error::new(ErrorKind::Unsupported, format!("a collective in a body of {}", op.name()))
                .because("devices meet between the steps of a program, of a loop and of a branch")
                .hint("move the exchange out of the body")),
        }
    }

    /// The programs of its bodies, and how often each runs as far as that is known.
    fn programs(&self, op: &Op) -> Vec<(&SimulatedMesh, usize)> {
        let trips = |w: &While| w.trip_count.unwrap_or(1);
        match (self, op) {
            (CollectiveStep::Loop(l), Op::While(w)) => vec![(&l.cond, trips(w)), (&l.body, trips(w))],
            (CollectiveStep::Branches(branches), _) => branches.iter().map(|b| (b, 1)).collect(),
            _ => Vec::new(),
        }
    }

    /// Each device's operands in, each device's results out.
    fn run(&self, op: &Op, team: &DeviceOwnership, operands: Vec<Vec<Buffer>>) -> Result<Vec<Vec<Buffer>>> {
        match (self, op) {
            (CollectiveStep::Loop(l), _) => l.run(operands),
            (CollectiveStep::Branches(branches), Op::Case(c)) => branch(branches, c, operands),
            _ => exchange(op, team, &operands),
        }
    }
}

impl CollectiveLoop {
    fn run(&self, mut captures: Vec<Vec<Buffer>>) -> Result<Vec<Vec<Buffer>>> {
        let mut state: Vec<Vec<Buffer>> =
            captures.iter_mut().map(|own| own.split_off(self.captures)).collect();
        loop {
            let lent = captures
                .iter()
                .zip(&state)
                .map(|(c, s)| c.iter().chain(s).map(ExecutableArg::Borrow).collect());
            let goes_on = self.cond.run(lent.collect())?;
            if !agreed(scalars(goes_on.iter().map(|own| &own[0]))?)?.as_bool() {
                return Ok(state);
            }
            let given = captures.iter().zip(state.drain(..));
            let given = given.map(|(c, s)| {
                c.iter().map(ExecutableArg::Borrow).chain(s.into_iter().map(ExecutableArg::Donate))
            });
            state = self.body.run(given.map(Iterator::collect).collect())?;
        }
    }
}

fn branch(branches: &[SimulatedMesh], c: &Case, mut captures: Vec<Vec<Buffer>>) -> Result<Vec<Vec<Buffer>>> {
    let index: Vec<Buffer> = captures.iter_mut().filter_map(Vec::pop).collect();
    let taken = c.taken(agreed(scalars(index.iter())?)?);
    branches[taken]
        .run(captures.into_iter().map(|own| own.into_iter().map(ExecutableArg::Donate).collect()).collect())
}

fn scalars<'a>(buffers: impl Iterator<Item = &'a Buffer>) -> Result<Vec<Scalar>> {
    buffers.map(|b| Ok(b.to_literal()?.get(0))).collect()
}

fn exchange(op: &Op, team: &DeviceOwnership, operands: &[Vec<Buffer>]) -> Result<Vec<Vec<Buffer>>> {
    let Some(collective) = op.collective() else { systole_ir::bug!("{} is no collective", op.name()) };
    let operands: Vec<Vec<Literal>> =
        operands.iter().map(|own| own.iter().map(Buffer::to_literal).collect()).collect::<Result<_>>()?;
    let operands = team.gathered(op, operands)?;
    let operands: Vec<Vec<&Literal>> = operands.iter().map(|own| own.iter().collect()).collect();
    let all = collective.together(team.devices, &operands)?.into_iter();
    Ok(all.skip(team.own.start).take(team.own.len()).map(|y| vec![y.into()]).collect())
}

/// Adds what one program of several was found to need, run `times`.
fn add(report: &mut ExecutableReport, own: &ExecutableReport, times: usize) {
    report.kernels += own.kernels;
    report.flops += own.flops * times as f64;
    report.arena_bytes = report.arena_bytes.max(own.arena_bytes);
    report.listing += &own.listing;
}

/// A piece before it is compiled.
struct LocalGraph {
    graph: Arc<Graph>,
    reads: Vec<ValueId>,
    makes: Vec<ValueId>,
}

/// The stage of each node: how many meetings of the devices lie before it.
struct CollectiveSplit<'g> {
    graph: &'g Graph,
    stage: Vec<usize>,
    /// Nodes in which devices meet.
    meets: Vec<bool>,
    live: Vec<bool>,
    /// Nodes that each piece makes for itself: constants and what repeats them.
    free: Vec<bool>,
    /// Values that are read outside of the piece that makes them.
    shared: HashSet<ValueId>,
}

impl<'g> CollectiveSplit<'g> {
    fn new(graph: &'g Graph) -> CollectiveSplit<'g> {
        let live = graph.live(&graph.results);
        let (mut stage, mut free) = (vec![0; graph.nodes.len()], vec![false; graph.nodes.len()]);
        let meets: Vec<bool> = graph.nodes.iter().map(|n| n.op.meets()).collect();
        for (i, node) in graph.nodes.iter().enumerate() {
            let after =
                |v: &ValueId| stage[v.index()] + (meets[v.index()] && !is_identity(graph, *v)) as usize;
            stage[i] = node.inputs.iter().map(after).max().unwrap_or(0);
            free[i] = matches!(node.op, Op::Constant(_) | Op::Iota(_))
                || (matches!(node.op, Op::BroadcastInDim(_)) && free[node.inputs[0].index()]);
        }
        let mut shared: HashSet<ValueId> = graph.results.iter().copied().collect();
        for (i, node) in graph.nodes.iter().enumerate().filter(|&(i, _)| live[i] && !free[i]) {
            let outside = |v: &&ValueId| meets[i] || (stage[v.index()] != stage[i] && !free[v.index()]);
            shared.extend(node.inputs.iter().filter(outside));
        }
        CollectiveSplit { graph, stage, meets, live, free, shared }
    }

    fn stages(&self) -> usize {
        self.stage.iter().copied().max().unwrap_or(0)
    }

    fn all_meetings(&self) -> impl Iterator<Item = usize> {
        (0..self.graph.nodes.len()).filter(|&i| self.live[i] && self.meets[i])
    }

    /// Devices' own numbers: they come first of all.
    fn identities(&self) -> Vec<usize> {
        self.all_meetings().filter(|&i| is_identity(self.graph, ValueId::new(i, 0))).collect()
    }

    /// The others behind a stage's piece.
    fn meetings(&self, stage: usize) -> Vec<usize> {
        let others = self.all_meetings().filter(|&i| !is_identity(self.graph, ValueId::new(i, 0)));
        others.filter(|&i| self.stage[i] == stage).collect()
    }

    fn members(&self, stage: usize) -> Vec<usize> {
        let computes = |i: &usize| {
            let parameter = matches!(self.graph.nodes[*i].op, Op::Parameter(_));
            self.live[*i] && !self.free[*i] && !self.meets[*i] && !parameter
        };
        (0..self.graph.nodes.len()).filter(|&i| self.stage[i] == stage).filter(computes).collect()
    }

    /// How often steps and results read each value.
    fn uses(&self) -> HashMap<ValueId, usize> {
        let mut uses = HashMap::new();
        let mut note = |v: ValueId| *uses.entry(v).or_insert(0) += 1;
        for stage in 0..=self.stages() {
            self.reads(&self.members(stage)).into_iter().for_each(&mut note);
            self.meetings(stage).iter().flat_map(|&i| &self.graph.nodes[i].inputs).for_each(|&v| note(v));
        }
        self.graph.results.iter().for_each(|&v| note(v));
        uses
    }

    /// Values from outside that a stage's nodes read.
    fn reads(&self, members: &[usize]) -> Vec<ValueId> {
        let mut seen = HashSet::new();
        let outside = |v: &ValueId| !self.free[v.index()] && members.binary_search(&v.index()).is_err();
        let all = members.iter().flat_map(|&i| &self.graph.nodes[i].inputs).copied();
        all.filter(|v| outside(v) && seen.insert(*v)).collect()
    }

    /// Values of a stage that others read. Free nodes that others than pieces read are made by the first.
    fn makes(&self, members: &[usize], stage: usize) -> Vec<ValueId> {
        let free = (0..self.graph.nodes.len()).filter(|&i| stage == 0 && self.free[i]);
        let values = |i: usize| (0..self.graph.nodes[i].outs.len()).map(move |k| ValueId::new(i, k));
        members.iter().copied().chain(free).flat_map(values).filter(|v| self.shared.contains(v)).collect()
    }

    /// The program of a stage, what it reads and what it makes.
    fn piece(&self, stage: usize) -> Result<Option<LocalGraph>> {
        let members = self.members(stage);
        let (reads, makes) = (self.reads(&members), self.makes(&members, stage));
        if makes.is_empty() {
            return Ok(None);
        }
        let graph = self.graph;
        let b = GraphBuilder::new(&graph.name);
        let mut values: HashMap<ValueId, Tensor> = HashMap::new();
        for &v in &reads {
            let place = graph.params.iter().position(|&p| p == v);
            let name = place.map_or("", |p| graph.param_names[p].as_str());
            values.insert(v, b.parameter(graph.ty(v).clone(), name));
        }
        for i in self.with_free(&members, &makes) {
            let node = &graph.nodes[i];
            let outs = b.scope(graph.scope(node), || {
                let inputs: Vec<&Tensor> = node.inputs.iter().map(|v| &values[v]).collect();
                b.emit(node.op.clone(), &inputs)
            });
            outs.into_iter().enumerate().for_each(|(k, t)| {
                values.insert(ValueId::new(i, k), t);
            });
        }
        let results: Vec<Tensor> = makes.iter().map(|v| values[v].clone()).collect();
        Ok(Some(LocalGraph { graph: b.finish(&results)?, reads, makes }))
    }

    /// A stage's nodes and the free ones that they read or that it makes, in order.
    fn with_free(&self, members: &[usize], makes: &[ValueId]) -> Vec<usize> {
        let mut needed = vec![false; self.graph.nodes.len()];
        members.iter().copied().chain(makes.iter().map(|v| v.index())).for_each(|i| needed[i] = true);
        for i in (0..needed.len()).rev() {
            if needed[i] {
                let inputs = self.graph.nodes[i].inputs.iter().map(|v| v.index());
                inputs.filter(|&k| self.free[k]).for_each(|k| needed[k] = true);
            }
        }
        (0..needed.len()).filter(|&i| needed[i]).collect()
    }
}

/// Whether a value is a device's own number, which needs no one else.
fn is_identity(graph: &Graph, v: ValueId) -> bool {
    matches!(graph.node(v).op, Op::ReplicaId(_) | Op::PartitionId(_))
}
