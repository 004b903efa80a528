//! Programs with collectives on logical devices of a backend that has but one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use systole_ir::op::Devices;
use systole_ir::{Error, ErrorKind, Graph, GraphBuilder, Literal, Op, Result, Tensor, ValueId};
use systole_runtime::{Arg, Backend, Buffer, CompileOptions, Executable, Report};

/// A program that is the same on each of some devices, run on logical devices of one backend.
///
/// It is cut at its collectives. The pieces between run on the backend, for one device after the other; the collectives
/// run on the host. Time and memory say nothing of real devices.
///
/// ```
/// use systole_dist::Together;
/// use systole_ir::{op::{AllReduce, Devices, Groups, Monoid}, DType::F32, GraphBuilder, TensorType};
/// use systole_runtime::{Arg, Buffer, CompileOptions, ReferenceBackend};
/// let g = GraphBuilder::new("main");
/// let x = g.parameter(TensorType::scalar(F32), "x");
/// let groups = Groups::of(vec![vec![0, 1]]);
/// let sum = g.emit(AllReduce { groups, body: Monoid::Add.body(F32) }, &[&x]).remove(0);
/// let graph = g.finish(&[sum * 2.0])?;
/// let run = Together::compile(&ReferenceBackend, &graph, Devices::replicas(2), &CompileOptions::default())?;
/// let args = [1.0, 2.0].map(|v| vec![Arg::Donate(Buffer::scalar(F32, v))]);
/// let out = run.run(args.into())?;
/// assert_eq!(out[0][0].to_f64()?, 6.0);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub struct Together {
    devices: Devices,
    graph: Arc<Graph>,
    steps: Vec<Step>,
    report: Report,
}

enum Step {
    /// A piece without collectives.
    Piece(Piece),
    /// A collective: its node.
    Exchange(usize),
}

struct Piece {
    reads: Vec<ValueId>,
    makes: Vec<ValueId>,
    program: Arc<dyn Executable>,
}

impl Together {
    /// Compiles the pieces of a program.
    ///
    /// # Errors
    /// When the backend refuses a piece, or a body of a loop or branch has collectives.
    pub fn compile(
        backend: &dyn Backend,
        graph: &Arc<Graph>,
        devices: Devices,
        options: &CompileOptions,
    ) -> Result<Together> {
        let start = Instant::now();
        check_bodies(graph)?;
        let cut = Cut::new(graph);
        let mut steps: Vec<Step> = cut.identities().into_iter().map(Step::Exchange).collect();
        let mut report = Report::default();
        let (mut left, last) = (cut.uses(), cut.stages());
        for stage in 0..=last {
            if let Some((piece, reads, makes)) = cut.piece(stage)? {
                reads.iter().for_each(|v| *left.entry(*v).or_default() -= 1);
                let given = |v: &ValueId| !graph.params.contains(v) || donates(options, graph, *v);
                let dies = |v: &ValueId| left[v] == 0 && given(v);
                let donated = (0..reads.len()).filter(|&k| dies(&reads[k])).collect();
                let label = format!("{}, piece {stage}", options.label);
                let options = CompileOptions { donated, label, ..options.clone() };
                let program = backend.compile(&piece, &options)?;
                let own = program.report();
                report.kernels += own.kernels;
                report.flops += own.flops * devices.count() as f64;
                report.arena_bytes = report.arena_bytes.max(own.arena_bytes);
                report.listing += &own.listing;
                steps.push(Step::Piece(Piece { reads, makes, program }));
            }
            for node in cut.exchanges(stage) {
                graph.nodes[node].inputs.iter().for_each(|v| *left.entry(*v).or_default() -= 1);
                steps.push(Step::Exchange(node));
            }
        }
        report.compile_ms = start.elapsed().as_secs_f64() * 1e3;
        Ok(Together { devices, graph: graph.clone(), steps, report })
    }

    /// What compiling found out, of all pieces.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Runs once: each device's arguments in, each device's results out.
    ///
    /// # Errors
    /// When arguments are not one list for each device with the parameters' types, or a piece fails.
    pub fn run(&self, args: Vec<Vec<Arg<'_>>>) -> Result<Vec<Vec<Buffer>>> {
        let (graph, n) = (&*self.graph, self.devices.count());
        if args.len() != n || args.iter().any(|own| own.len() != graph.params.len()) {
            let what = format!("arguments of {} devices for a program on {n}", args.len());
            return Err(Error::new(ErrorKind::Graph, what)
                .because(format!("each takes {} arguments", graph.params.len())));
        }
        let mut left = HashMap::new();
        for v in self.reads() {
            *left.entry(v).or_insert(0usize) += 1;
        }
        let mut values: Vec<HashMap<ValueId, Arg<'_>>> =
            args.into_iter().map(|own| graph.params.iter().copied().zip(own).collect()).collect();
        for step in &self.steps {
            match step {
                Step::Piece(piece) => {
                    piece.reads.iter().for_each(|v| *left.entry(*v).or_insert(1) -= 1);
                    for own in &mut values {
                        piece.run(own, &left)?;
                    }
                }
                Step::Exchange(node) => {
                    exchange(graph, *node, self.devices, &mut values)?;
                    let inputs = &graph.nodes[*node].inputs;
                    inputs.iter().for_each(|v| *left.entry(*v).or_insert(1) -= 1);
                    let dead = |v: &ValueId, _: &mut Arg<'_>| left.get(v) != Some(&0);
                    values.iter_mut().for_each(|own| own.retain(dead));
                }
            }
        }
        let result = |own: &HashMap<ValueId, Arg<'_>>| -> Vec<Buffer> {
            graph.results.iter().map(|r| own[r].buffer().clone()).collect()
        };
        Ok(values.iter().map(result).collect())
    }

    /// Every reading of a value, results included.
    fn reads(&self) -> impl Iterator<Item = ValueId> {
        let steps = self.steps.iter().flat_map(|step| match step {
            Step::Piece(piece) => piece.reads.clone(),
            Step::Exchange(node) => self.graph.nodes[*node].inputs.to_vec(),
        });
        steps.chain(self.graph.results.iter().copied())
    }
}

fn donates(options: &CompileOptions, graph: &Graph, v: ValueId) -> bool {
    graph.params.iter().position(|&p| p == v).is_some_and(|p| options.donated.contains(&p))
}

impl Piece {
    /// What nothing reads any more is given away.
    fn run(&self, values: &mut HashMap<ValueId, Arg<'_>>, left: &HashMap<ValueId, usize>) -> Result<()> {
        let mut dying: HashMap<ValueId, Arg<'_>> =
            self.reads.iter().filter(|v| left[*v] == 0).filter_map(|v| values.remove_entry(v)).collect();
        let arg = |v| dying.remove(v).unwrap_or_else(|| Arg::Borrow(values[v].buffer()));
        let made = self.program.run(self.reads.iter().map(arg).collect())?;
        self.makes.iter().zip(made).for_each(|(&v, buffer)| {
            values.insert(v, Arg::Donate(buffer));
        });
        Ok(())
    }
}

fn exchange(
    graph: &Graph,
    node: usize,
    devices: Devices,
    values: &mut [HashMap<ValueId, Arg<'_>>],
) -> Result<()> {
    let Some(op) = graph.nodes[node].op.collective() else {
        systole_ir::bug!("node {node} is no collective")
    };
    let inputs = &graph.nodes[node].inputs;
    let operands: Vec<Vec<Literal>> = values
        .iter()
        .map(|own| inputs.iter().map(|v| own[v].buffer().to_literal()).collect())
        .collect::<Result<_>>()?;
    let operands: Vec<Vec<&Literal>> = operands.iter().map(|own| own.iter().collect()).collect();
    let out = op.together(devices, &operands)?;
    values.iter_mut().zip(out).for_each(|(own, y)| {
        own.insert(ValueId::new(node, 0), Arg::Donate(y.into()));
    });
    Ok(())
}

fn check_bodies(graph: &Graph) -> Result<()> {
    let bodies = graph.nodes.iter().flat_map(|n| n.op.rule().regions().into_iter().map(move |b| (n, b)));
    for (node, body) in bodies {
        if let Some(inner) = body.nodes.iter().find(|n| n.op.collective().is_some()) {
            let what = format!("{} in a body of {}", inner.op.name(), node.op.name());
            return Err(Error::new(ErrorKind::Unsupported, what)
                .because(
                    "logical devices meet between the steps of a program, not inside of loops and branches",
                )
                .hint("move the exchange out of the body"));
        }
        check_bodies(body)?;
    }
    Ok(())
}

/// The stage of each node: how many exchanges lie before it.
struct Cut<'g> {
    graph: &'g Graph,
    stage: Vec<usize>,
    live: Vec<bool>,
    /// Nodes that each piece makes for itself: constants and what repeats them.
    free: Vec<bool>,
}

impl<'g> Cut<'g> {
    fn new(graph: &'g Graph) -> Cut<'g> {
        let live = graph.live(&graph.results);
        let (mut stage, mut free) = (vec![0; graph.nodes.len()], vec![false; graph.nodes.len()]);
        let exchanges = |i: usize| graph.nodes[i].op.collective().is_some();
        for (i, node) in graph.nodes.iter().enumerate() {
            let after =
                |v: &ValueId| stage[v.index()] + (exchanges(v.index()) && !is_identity(graph, *v)) as usize;
            stage[i] = node.inputs.iter().map(after).max().unwrap_or(0);
            free[i] = matches!(node.op, Op::Constant(_) | Op::Iota(_))
                || (matches!(node.op, Op::BroadcastInDim(_)) && free[node.inputs[0].index()]);
        }
        Cut { graph, stage, live, free }
    }

    fn stages(&self) -> usize {
        self.stage.iter().copied().max().unwrap_or(0)
    }

    fn collectives(&self) -> impl Iterator<Item = usize> {
        (0..self.graph.nodes.len()).filter(|&i| self.live[i] && self.graph.nodes[i].op.collective().is_some())
    }

    /// Devices' own numbers: they come first of all.
    fn identities(&self) -> Vec<usize> {
        self.collectives().filter(|&i| is_identity(self.graph, ValueId::new(i, 0))).collect()
    }

    /// The other collectives behind a stage's piece.
    fn exchanges(&self, stage: usize) -> Vec<usize> {
        let others = self.collectives().filter(|&i| !is_identity(self.graph, ValueId::new(i, 0)));
        others.filter(|&i| self.stage[i] == stage).collect()
    }

    fn members(&self, stage: usize) -> Vec<usize> {
        let computes = |i: &usize| {
            let op = &self.graph.nodes[*i].op;
            self.live[*i] && !self.free[*i] && op.collective().is_none() && !matches!(op, Op::Parameter(_))
        };
        (0..self.graph.nodes.len()).filter(|&i| self.stage[i] == stage).filter(computes).collect()
    }

    /// How often steps and results read each value.
    fn uses(&self) -> HashMap<ValueId, usize> {
        let mut uses = HashMap::new();
        let mut note = |v: ValueId| *uses.entry(v).or_insert(0) += 1;
        for stage in 0..=self.stages() {
            self.reads(&self.members(stage), stage).into_iter().for_each(&mut note);
            self.exchanges(stage).iter().flat_map(|&i| &self.graph.nodes[i].inputs).for_each(|&v| note(v));
        }
        self.graph.results.iter().for_each(|&v| note(v));
        uses
    }

    fn is_result(&self, v: ValueId) -> bool {
        self.graph.results.contains(&v)
    }

    /// Values from outside that a stage's nodes read.
    fn reads(&self, members: &[usize], stage: usize) -> Vec<ValueId> {
        let mut reads: Vec<ValueId> = Vec::new();
        for &v in members.iter().flat_map(|&i| &self.graph.nodes[i].inputs) {
            let own = self.stage[v.index()] == stage && members.binary_search(&v.index()).is_ok();
            if !own && !self.free[v.index()] && !reads.contains(&v) {
                reads.push(v);
            }
        }
        reads
    }

    /// Values of a stage that others read. Free nodes that others than pieces read are made by the first.
    fn makes(&self, members: &[usize], stage: usize) -> Vec<ValueId> {
        let graph = self.graph;
        let mut outside: Vec<ValueId> = graph.results.clone();
        for (i, node) in graph.nodes.iter().enumerate().filter(|&(i, _)| self.live[i] && !self.free[i]) {
            if self.stage[i] != stage || node.op.collective().is_some() {
                outside.extend(&node.inputs);
            }
        }
        let mut makes: Vec<ValueId> = Vec::new();
        for v in outside {
            let member = members.binary_search(&v.index()).is_ok();
            let free = stage == 0 && self.free[v.index()] && (self.is_result(v) || self.is_exchanged(v));
            if (member || free) && !makes.contains(&v) {
                makes.push(v);
            }
        }
        makes
    }

    fn is_exchanged(&self, v: ValueId) -> bool {
        let nodes = self.graph.nodes.iter().filter(|n| n.op.collective().is_some());
        nodes.flat_map(|n| &n.inputs).any(|&u| u == v)
    }

    /// The program of a stage, what it reads and what it makes.
    #[allow(clippy::type_complexity)]
    fn piece(&self, stage: usize) -> Result<Option<(Arc<Graph>, Vec<ValueId>, Vec<ValueId>)>> {
        let members = self.members(stage);
        let (reads, makes) = (self.reads(&members, stage), self.makes(&members, stage));
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
        Ok(Some((b.finish(&results)?, reads, makes)))
    }

    /// A stage's nodes and the free ones that they read or that it makes, in order.
    fn with_free(&self, members: &[usize], makes: &[ValueId]) -> Vec<usize> {
        let mut needed = vec![false; self.graph.nodes.len()];
        members
            .iter()
            .chain(makes.iter().map(|v| v.node as usize).collect::<Vec<_>>().iter())
            .for_each(|&i| needed[i] = true);
        for i in (0..needed.len()).rev().filter(|&i| needed[i]).collect::<Vec<_>>() {
            self.need(i, &mut needed);
        }
        (0..needed.len()).filter(|&i| needed[i]).collect()
    }

    fn need(&self, i: usize, needed: &mut [bool]) {
        needed[i] = true;
        let free = self.graph.nodes[i].inputs.iter().map(|v| v.index()).filter(|&k| self.free[k]);
        free.for_each(|k| self.need(k, needed));
    }
}

/// Whether a value is a device's own number, which needs no one else.
fn is_identity(graph: &Graph, v: ValueId) -> bool {
    matches!(graph.node(v).op, Op::ReplicaId(_) | Op::PartitionId(_))
}
