//! Simulates several devices on one: runs an SPMD program with collectives on logical devices of a backend.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use systole_ir::op::{Case, DeviceCounts, While, agreed};
use systole_ir::{Graph, GraphBuilder, Literal, Op, Result, Scalar, Tensor, TensorType, ValueId, err};
use systole_runtime::{Backend, Buffer, CompileOptions, Executable, ExecutableArg, ExecutableReport};

/// An SPMD program with collectives, run on logical devices of one backend.
///
/// The program is cut at its collectives. The collective-free programs between them run on the backend, one device
/// after the other. Collectives run on the host, and so do loops and branches with collectives in their bodies, which
/// are cut in the same way. Time and memory are not those of real devices. Several processes can each run some of the
/// devices: see [`DeviceOwnership`].
///
/// ```
/// use systole_dist::{DeviceOwnership, SimulatedMesh};
/// use systole_ir::{op::{AllReduce, DeviceCounts, ReplicaGroups, Monoid}, DType::F32, GraphBuilder, TensorType};
/// use systole_runtime::{ExecutableArg, Buffer, CompileOptions, ReferenceBackend};
/// let g = GraphBuilder::new("main");
/// let x = g.parameter(TensorType::scalar(F32), "x");
/// let groups = ReplicaGroups::of(vec![vec![0, 1]]);
/// let sum = g.emit(AllReduce { groups, body: Monoid::Add.body(F32) }, &[&x]).remove(0);
/// let graph = g.finish(&[sum * 2.0])?;
/// let team = DeviceOwnership::alone(DeviceCounts::replicas(2));
/// let run = SimulatedMesh::compile(&ReferenceBackend, &graph, &team, &CompileOptions::default())?;
/// let args = [1.0, 2.0].map(|v| vec![ExecutableArg::Donate(Buffer::scalar(F32, v))]);
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

/// Which of a program's devices this process runs: all of them, or some, with other processes running the rest.
#[derive(Clone)]
pub struct DeviceOwnership {
    devices: DeviceCounts,
    /// The devices of this process.
    own: Range<usize>,
    exchange: Option<Arc<dyn ProcessExchange>>,
}

/// Communication between processes that each run some of a program's devices.
pub trait ProcessExchange: Send + Sync {
    /// All-gathers bytes: returns the data of every process, this one included, in device order. `what` identifies the
    /// collective: processes at different collectives must fail instead of mixing their data.
    ///
    /// # Errors
    /// If a process has exited, does not answer in time, or is at another collective.
    fn all(&self, what: &str, own: Vec<u8>) -> Result<Vec<Vec<u8>>>;
}

impl DeviceOwnership {
    /// Creates the ownership of a single process, which runs all devices.
    pub fn alone(devices: DeviceCounts) -> DeviceOwnership {
        DeviceOwnership { devices, own: 0..devices.count(), exchange: None }
    }

    /// Creates the ownership of a process that runs the devices `own`, while other processes run the rest.
    pub fn of(
        devices: DeviceCounts,
        own: Range<usize>,
        exchange: Arc<dyn ProcessExchange>,
    ) -> DeviceOwnership {
        DeviceOwnership { devices, own, exchange: Some(exchange) }
    }

    /// Gathers the operands of all devices, given those of this process.
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
            return Err(
                err!(Bug, "got {} bytes for {} devices", all.len(), self.devices.count()).at(op.name())
            );
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
    /// A program without collectives.
    Piece(LocalProgram),
    /// A node with collectives.
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
    /// Compiles an SPMD program: the parts between its collectives.
    ///
    /// # Errors
    /// If the backend rejects one of them, or an op other than a loop or branch has collectives in its body.
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
                let label = format!("{}, part {stage}", options.label);
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

    /// Returns compile statistics, summed over all parts of the program.
    pub fn report(&self) -> &ExecutableReport {
        &self.report
    }

    /// Runs the SPMD program once: takes the arguments and returns the results of each of this process's devices.
    ///
    /// # Errors
    /// If `args` does not have one list per device with the parameters' types, or a part of the program fails.
    pub fn run(&self, args: Vec<Vec<ExecutableArg<'_>>>) -> Result<Vec<Vec<Buffer>>> {
        let (graph, n) = (&*self.graph, self.team.own.len());
        if args.len() != n || args.iter().any(|own| own.len() != graph.params.len()) {
            return Err(err!(Graph, "got arguments for {} devices, expected {n}", args.len())
                .because(format!("the program expects {} arguments per device", graph.params.len())));
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

    /// Iterates over all reads of values, including the results.
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
    /// Runs the program; donates arguments that are not read again.
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

/// Collects the operands of a collective; takes ownership of values that are not read again.
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
            let label = format!("{}, body of {}", options.label, op.name());
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
            op => Err(err!(Unsupported, "unsupported collective in a body of {}", op.name())
                .because("collectives are supported at the top level and in bodies of loops and branches")
                .hint("move the collective out of the body")),
        }
    }

    /// Programs of its bodies, with their number of runs where it is known.
    fn programs(&self, op: &Op) -> Vec<(&SimulatedMesh, usize)> {
        let trips = |w: &While| w.trip_count.unwrap_or(1);
        match (self, op) {
            (CollectiveStep::Loop(l), Op::While(w)) => vec![(&l.cond, trips(w)), (&l.body, trips(w))],
            (CollectiveStep::Branches(branches), _) => branches.iter().map(|b| (b, 1)).collect(),
            _ => Vec::new(),
        }
    }

    /// Runs on the operands of each device; returns the results of each device.
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
    let Some(collective) = op.collective() else { systole_ir::bug!("{} is not a collective", op.name()) };
    let operands: Vec<Vec<Literal>> =
        operands.iter().map(|own| own.iter().map(Buffer::to_literal).collect()).collect::<Result<_>>()?;
    let operands = team.gathered(op, operands)?;
    let operands: Vec<Vec<&Literal>> = operands.iter().map(|own| own.iter().collect()).collect();
    let all = collective.together(team.devices, &operands)?.into_iter();
    Ok(all.skip(team.own.start).take(team.own.len()).map(|y| vec![y.into()]).collect())
}

/// Adds the statistics of one part that runs `times` times.
fn add(report: &mut ExecutableReport, own: &ExecutableReport, times: usize) {
    report.kernels += own.kernels;
    report.flops += own.flops * times as f64;
    report.arena_bytes = report.arena_bytes.max(own.arena_bytes);
}

/// Graph of a collective-free part, before compilation.
struct LocalGraph {
    graph: Arc<Graph>,
    reads: Vec<ValueId>,
    makes: Vec<ValueId>,
}

/// Cuts a graph at its collectives. The stage of a node is the number of collectives before it.
struct CollectiveSplit<'g> {
    graph: &'g Graph,
    stage: Vec<usize>,
    /// Whether each node is a collective or contains one.
    meets: Vec<bool>,
    live: Vec<bool>,
    /// Nodes that each part recomputes: constants and broadcasts of them.
    free: Vec<bool>,
    /// Values that other parts read.
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

    /// Replica and partition ids, which are computed first.
    fn identities(&self) -> Vec<usize> {
        self.all_meetings().filter(|&i| is_identity(self.graph, ValueId::new(i, 0))).collect()
    }

    /// The other collectives of a stage, which run after its program.
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

    /// Number of reads of each value by programs, collectives and results.
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

    /// Values of a stage that are read outside. Stage 0 also produces recomputable nodes that are read by collectives
    /// or results.
    fn makes(&self, members: &[usize], stage: usize) -> Vec<ValueId> {
        let free = (0..self.graph.nodes.len()).filter(|&i| stage == 0 && self.free[i]);
        let values = |i: usize| (0..self.graph.nodes[i].outs.len()).map(move |k| ValueId::new(i, k));
        members.iter().copied().chain(free).flat_map(values).filter(|v| self.shared.contains(v)).collect()
    }

    /// Builds the graph of a stage, with its inputs and outputs; `None` if nothing outside reads it.
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

    /// A stage's nodes and the recomputable nodes that it reads or produces, in graph order.
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

/// Whether a value is a replica or partition id, which needs no communication.
fn is_identity(graph: &Graph, v: ValueId) -> bool {
    matches!(graph.node(v).op, Op::ReplicaId(_) | Op::PartitionId(_))
}
