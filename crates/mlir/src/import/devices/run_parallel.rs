//! Imports `interpreter.run_parallel`, which StableHLO's tests use to run a function on several devices: all devices'
//! copies become one program, and collectives connect their values.

use crate::import::attribute::{self, size};
use crate::import::call::{ArrayCall, ComplexRule, OpImport, OpResults, op};
use crate::import::effects::OrderRole;
use crate::import::importer::{CallFrame, Importer, MAX_CALLS, place};
use crate::import::types::{not_there, wrong};
use crate::import::value::ImportedValue;
use crate::import::{bodies, const_eval};
use crate::syntax::{Attribute, MlirFunction, Operation, find};
use systole_base::{DType, Result, ResultExt, ensure};
use systole_ir::op::Monoid;
use systole_ir::{Graph, GraphBuilder, Tensor, control_builders};

/// Whether the op exchanges each operand separately.
pub(crate) fn is_each_alone(name: &str) -> bool {
    matches!(
        name,
        "stablehlo.all_reduce"
            | "stablehlo.all_gather"
            | "stablehlo.all_to_all"
            | "stablehlo.collective_broadcast"
    )
}

pub(crate) const OPERATIONS: &[OpImport] = &[
    op("interpreter.run_parallel").importer(|i, op, operands, _, g| i.run_parallel(op, operands, g)),
    op("stablehlo.cross-replica-sum").complex(ComplexRule::Parts).arrays(cross_replica_sum),
];

/// Imports the older op for an all_reduce by addition between replicas.
fn cross_replica_sum(c: &ArrayCall) -> OpResults {
    let [x] = c.all::<1>()?;
    let reduce = Operation { name: "stablehlo.all_reduce".into(), ..c.op.clone() };
    let sum = Monoid::Add.body(x.dtype());
    c.emit(&reduce, vec![x.clone()], c.results.to_vec(), vec![sum]).map(Some)
}

/// Whether an op communicates over a channel: between partitions.
fn has_channel(op: &Operation) -> bool {
    match find(&op.attributes, "channel_handle") {
        Some(Attribute::Struct(_, fields)) => matches!(find(fields, "handle"), Some(Attribute::Int(1..))),
        _ => false,
    }
}

/// Number of replicas and partitions.
#[derive(Clone, Copy)]
struct ProcessGrid {
    replicas: usize,
    partitions: usize,
}

/// Combines the operands of a group's members; returns one result per member.
type GroupCollective<'a> = dyn Fn(&[&Tensor]) -> Result<Vec<Tensor>> + 'a;

impl<'m> Importer<'m> {
    /// Imports run_parallel; returns the results of all devices in order.
    fn run_parallel(
        &mut self,
        op: &'m Operation,
        operands: Vec<ImportedValue>,
        g: &GraphBuilder,
    ) -> Result<Vec<ImportedValue>> {
        let (grid, name) = programs(op)?;
        let called = self.module.functions.iter().find(|f| f.name == name);
        let f = called.ok_or_else(|| wrong(format!("unknown function @{name}")))?;
        let count = grid.replicas * grid.partitions;
        let each = f.body.arguments.len();
        if operands.len() != count * each || self.calls.len() >= MAX_CALLS {
            return Err(wrong(format!("got {} operands for {count} devices", operands.len())));
        }
        let mut own = operands.into_iter();
        let arguments = (0..count).map(|_| own.by_ref().take(each).collect()).collect();
        Ok(self.together(f, arguments, grid, g).at(|| format!("@{name}"))?.concat())
    }

    /// Imports a function on all devices, op by op.
    fn together(
        &mut self,
        f: &'m MlirFunction,
        arguments: Vec<Vec<ImportedValue>>,
        grid: ProcessGrid,
        g: &GraphBuilder,
    ) -> Result<Vec<Vec<ImportedValue>>> {
        let mut frames: Vec<CallFrame<'m>> = Vec::new();
        for own in arguments {
            let mut frame = CallFrame { function: f, values: vec![None; f.values.len()] };
            f.body.arguments.iter().zip(own).for_each(|(value, given)| frame.set(*value, given));
            frames.push(frame);
        }
        for op in &f.body.operations {
            let operands =
                |frame: &CallFrame<'m>| op.operands.iter().map(|v| frame.get(*v)).collect::<Result<Vec<_>>>();
            let operands = frames.iter().map(operands).collect::<Result<Vec<_>>>().at(|| place(op))?;
            if op.name == "func.return" || op.name == "stablehlo.return" {
                return Ok(operands);
            }
            let results = match self.exchange(op, &operands, grid, &mut frames, g).at(|| place(op))? {
                Some(results) => results,
                None => {
                    let each = operands.into_iter().zip(&mut frames);
                    let each = each.map(|(own, frame)| self.operation(op, own, frame, g));
                    each.collect::<Result<Vec<_>>>().at(|| place(op))?
                }
            };
            for (frame, results) in frames.iter_mut().zip(results) {
                op.results.iter().zip(results).for_each(|(value, given)| frame.set(*value, given));
            }
        }
        Err(wrong("a region has no terminator"))
    }

    /// Imports an op that communicates or returns the device's id; `None` for other ops.
    fn exchange(
        &mut self,
        op: &'m Operation,
        operands: &[Vec<ImportedValue>],
        grid: ProcessGrid,
        frames: &mut [CallFrame<'m>],
        g: &GraphBuilder,
    ) -> Result<Option<Vec<Vec<ImportedValue>>>> {
        let numbers = |of: fn(usize, usize) -> usize| {
            let value = |i: usize| g.scalar(DType::U32, of(i, grid.partitions) as f64);
            let id = |i: usize| vec![ImportedValue::Array(value(i))];
            Ok(Some((0..grid.replicas * grid.partitions).map(id).collect()))
        };
        let name = op.name.strip_prefix("stablehlo.").unwrap_or_default();
        match name {
            "replica_id" => return numbers(|i, partitions| i / partitions),
            "partition_id" => return numbers(|i, partitions| i % partitions),
            "all_gather" | "all_reduce" | "reduce_scatter" | "all_to_all" => {}
            "collective_permute" | "collective_broadcast" | "collective_reduce" => {}
            "cross-replica-sum" => {
                return Err(not_there("cross-replica-sum is not supported in run_parallel"));
            }
            _ if op.regions.iter().flat_map(|r| &r.operations).any(|op| meets(&op.name)) => {
                return Err(not_there("collectives inside a loop or branch are not supported"));
            }
            _ => return Ok(None),
        }
        let body = match (op.regions.first(), frames.first_mut()) {
            (Some(region), Some(frame)) => {
                let traced = self.region((&op.name, OrderRole::None), region, &[], frame, g)?;
                control_builders::finish(&[traced])?.1.into_iter().next()
            }
            _ => None,
        };
        let all = operands.iter().map(|own| own.iter().cloned().map(ImportedValue::array).collect());
        let all = all.collect::<Result<Vec<Vec<Tensor>>>>()?;
        let groups = groups(op, name, grid)?;
        let mut results: Vec<Vec<ImportedValue>> = vec![Vec::new(); all.len()];
        let roots = dynamic_roots(op, &all)?;
        for i in 0..op.operands.len() - usize::from(!roots.is_empty()) {
            let own: Option<Vec<&Tensor>> = all.iter().map(|own| own.get(i)).collect();
            let own = own.ok_or_else(|| wrong("an operand is missing"))?;
            let root = match roots.get(i) {
                Some(root) => *root,
                None if roots.is_empty() => 0,
                None => return Err(wrong(format!("operand {i} has no root"))),
            };
            let exchange = |members: &[&Tensor]| match (name, members.get(root)) {
                ("collective_broadcast", Some(&source)) => Ok(vec![source.clone(); members.len()]),
                ("collective_broadcast", None) => Err(wrong(format!("the group has no member {root}"))),
                _ => one_group(op, name, members, body.as_deref(), g),
            };
            let outs = in_groups(name, &own, &groups, &exchange)?;
            results.iter_mut().zip(outs).for_each(|(all, t)| all.push(ImportedValue::Array(t)));
        }
        Ok(Some(results))
    }
}

/// Returns the index in the group that each operand comes from if the root is an operand.
fn dynamic_roots(op: &Operation, operands: &[Vec<Tensor>]) -> Result<Vec<usize>> {
    match (find(&op.attributes, "has_dynamic_root"), operands.first().and_then(|own| own.last())) {
        (Some(Attribute::Unit | Attribute::Bool(true)), Some(root)) => const_eval::sizes(root, "the root"),
        _ => Ok(Vec::new()),
    }
}

/// Whether an op is a collective.
fn meets(name: &str) -> bool {
    name.starts_with("stablehlo.all_")
        || name.starts_with("stablehlo.collective_")
        || name == "stablehlo.reduce_scatter"
}

/// Parses `programs = [[@a, @a], [@a, @a]]`: replicas of partitions, all of one function.
fn programs(op: &Operation) -> Result<(ProcessGrid, String)> {
    let Some(Attribute::List(rows)) = find(&op.attributes, "programs") else {
        return Err(wrong("missing attribute `programs`"));
    };
    let row = |row: &Attribute| match row {
        Attribute::List(items) => items.clone(),
        _ => Vec::new(),
    };
    let rows: Vec<Vec<Attribute>> = rows.iter().map(row).collect();
    let all: Vec<&Attribute> = rows.iter().flatten().collect();
    let Some(Attribute::Symbol(name)) = all.first() else {
        return Err(wrong("`programs` must name a function"));
    };
    if all.iter().any(|one| *one != all[0]) {
        return Err(not_there("different programs per device are not supported")
            .because("all devices run one program and are distinguished by partition_id and replica_id"));
    }
    let grid = ProcessGrid { replicas: rows.len(), partitions: rows[0].len() };
    match rows.iter().all(|row| row.len() == grid.partitions) && all.len() <= 64 {
        true => Ok((grid, name.clone())),
        false => Err(wrong("`programs` must be a grid of at most 64 devices")),
    }
}

/// Returns the device groups of a collective; devices are numbered with partitions fastest.
fn groups(op: &Operation, name: &str, grid: ProcessGrid) -> Result<Vec<Vec<usize>>> {
    let attribute = if name == "collective_permute" { "source_target_pairs" } else { "replica_groups" };
    let said = attribute::elements(op, attribute)?
        .into_iter()
        .next()
        .ok_or_else(|| wrong(format!("missing attribute `{attribute}`")))?;
    ensure!(said.shape().rank() == 2, wrong(format!("`{attribute}` must be a matrix")));
    let width = said.shape()[1].max(1);
    let flat = said.as_slice::<i64>()?;
    // −1 pads groups of different sizes.
    let row = |row: &[i64]| row.iter().filter(|i| **i >= 0).map(|i| *i as usize).collect::<Vec<usize>>();
    let rows = flat.chunks(width).map(row);
    let channel = has_channel(op);
    let global = find(&op.attributes, "use_global_device_ids").is_some();
    let (replicas, partitions) = (grid.replicas, grid.partitions);
    let by_reduction = matches!(name, "all_gather" | "all_reduce" | "reduce_scatter");
    let mut all: Vec<Vec<usize>> = Vec::new();
    for row in rows {
        match (channel, by_reduction) {
            (true, true) if global => all.push(row),
            (true, true) => {
                let at = |p: usize| row.iter().map(move |r| r * partitions + p);
                all.push((0..partitions).flat_map(at).collect());
            }
            (true, false) => {
                (0..replicas).for_each(|r| all.push(row.iter().map(|p| r * partitions + p).collect()))
            }
            (false, _) => {
                (0..partitions).for_each(|p| all.push(row.iter().map(|r| r * partitions + p).collect()))
            }
        }
    }
    match all.iter().flatten().all(|i| *i < replicas * partitions) {
        true => Ok(all),
        false => Err(wrong(format!("`{attribute}` names devices that do not exist"))),
    }
}

/// Applies a collective to all groups; devices in no group get zeros if the op allows it.
fn in_groups(name: &str, own: &[&Tensor], groups: &[Vec<usize>], f: &GroupCollective) -> Result<Vec<Tensor>> {
    let mut results: Vec<Option<Tensor>> = vec![None; own.len()];
    for group in groups {
        let members: Vec<&Tensor> = group.iter().map(|&i| own[i]).collect();
        if name == "collective_permute" {
            let ([source], [_, target]) = (&members[..1], &group[..]) else {
                return Err(wrong("a source-target pair must have two entries"));
            };
            results[*target] = Some((*source).clone());
            continue;
        }
        for (&i, t) in group.iter().zip(f(&members)?) {
            results[i] = Some(t);
        }
    }
    let or_zeros = |(t, x): (Option<Tensor>, &&Tensor)| match t {
        Some(t) => Ok(t),
        None if name.starts_with("collective_") => Ok(x.zeros_like()),
        None => Err(wrong("a device is in no group")),
    };
    results.into_iter().zip(own).map(or_zeros).collect()
}

/// Computes a collective for one group.
fn one_group(
    op: &Operation,
    name: &str,
    members: &[&Tensor],
    body: Option<&Graph>,
    g: &GraphBuilder,
) -> Result<Vec<Tensor>> {
    let n = members.len();
    let first = *members.first().ok_or_else(|| wrong("a group has no members"))?;
    let dim = |attribute: &str| {
        let dim = size(op, attribute)?.filter(|d| *d < first.rank());
        dim.ok_or_else(|| wrong(format!("`{attribute}` is not a dimension")))
    };
    let folded = || -> Result<Tensor> {
        let body = body.ok_or_else(|| wrong("the op has no body"))?;
        let mut sum = first.clone();
        for x in &members[1..] {
            let outs = bodies::on_arrays(g, body, &[sum, (*x).clone()], first.shape())?;
            sum = outs.into_iter().next().ok_or_else(|| wrong("the body has no result"))?;
        }
        Ok(sum)
    };
    // The `i`-th of `parts` equal parts.
    let part = |x: &Tensor, dim: usize, parts: usize, i: usize| {
        let size = x.shape()[dim] / parts.max(1);
        x.slice_dim(dim, i * size, (i + 1) * size)
    };
    Ok(match name {
        "all_gather" => vec![Tensor::concatenate(members, dim("all_gather_dim")?); n],
        "all_reduce" => vec![folded()?; n],
        "reduce_scatter" => {
            let (sum, dim) = (folded()?, dim("scatter_dimension")?);
            (0..n).map(|i| part(&sum, dim, n, i)).collect()
        }
        "all_to_all" => {
            let (split, concat) = (dim("split_dimension")?, dim("concat_dimension")?);
            let received = |i: usize| {
                let parts: Vec<Tensor> = members.iter().map(|x| part(x, split, n, i)).collect();
                Tensor::concatenate(&parts.iter().collect::<Vec<_>>(), concat)
            };
            (0..n).map(received).collect()
        }
        _ => {
            let mut all = vec![first.zeros_like(); n];
            all[0] = folded()?;
            all
        }
    })
}
