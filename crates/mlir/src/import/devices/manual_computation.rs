//! Imports per-device (manual) computations: Shardy's `sdy.manual_computation`, and GSPMD's SPMDFullToShardShape and
//! SPMDShardToFullShape custom calls.
//!
//! Outside such a region, a program describes the computation of all devices together. It is imported as the program
//! that every device runs: outside all compute the same; at the start of a region each device takes its shard of the
//! operands, and at the end the shards are gathered. A program without such regions is unchanged and runs once.

use crate::device_sharding::DeviceSharding;
use crate::import::attribute::{device_count, text};
use crate::import::call::{ImportRule, OpImport, call, op};
use crate::import::effects::SHAPE_CALLS;
use crate::import::importer::{CallFrame, Importer};
use crate::import::types::{not_there, wrong};
use crate::import::value::ImportedValue;
use crate::syntax::{Attribute, FunctionValue, MlirRegion, Operation, ShardyMesh, find};
use systole_base::{DType, Literal, Result, TensorType};
use systole_ir::op::{
    AllGather, AllReduce, BroadcastInDim, Convert, DynamicSlice, Monoid, PartitionId, ReplicaGroups, Reshape,
};
use systole_ir::{GraphBuilder, Tensor};

/// Meshes with more devices are rejected.
const MOST_DEVICES: u64 = 1 << 10;
/// Maximum depth of nested regions.
const MOST_DEPTH: usize = 64;

const SHAPE_CALL: ImportRule =
    ImportRule::Importer(|i, op, operands, frame, g| i.shape_call(op, operands, frame, g));

pub(crate) const OPERATIONS: &[OpImport] = &[
    op("mhlo.copy").importer(|_, _, operands, _, _| Ok(operands)),
    op("sdy.manual_computation").importer(|i, op, operands, frame, g| i.manual(op, operands, frame, g)),
    op("sdy.reshard").importer(|_, _, operands, _, _| Ok(operands)),
    op("sdy.sharding_group").importer(|_, _, _, _, _| Ok(Vec::new())),
    op("sdy.sharding_constraint").importer(|_, _, operands, _, _| Ok(operands)),
    call(SHAPE_CALLS[0], SHAPE_CALL),
    call(SHAPE_CALLS[1], SHAPE_CALL),
];

/// Returns the sharding of an operand or result along the manual axes.
fn tiles(sharding: &Attribute, mesh: &ShardyMesh, manual: &[String]) -> Result<DeviceSharding> {
    let (sharding, unreduced) = match sharding {
        Attribute::Struct(_, fields) => match (find(fields, "sharding"), find(fields, "axes")) {
            (Some(inner), Some(Attribute::List(axes))) => (inner, axes.as_slice()),
            _ => return Err(wrong("expected a sharding by mesh axes")),
        },
        plain => (plain, &[][..]),
    };
    let Attribute::Sharding(_, dims) = sharding else {
        return Err(wrong("expected a sharding by mesh axes"));
    };
    let is_manual = |text: &&String| manual.iter().any(|m| m == text.split(':').next().unwrap_or(text));
    let dims: Vec<Vec<String>> =
        dims.iter().map(|axes| axes.iter().filter(is_manual).cloned().collect()).collect();
    let name = |a: &Attribute| match a {
        Attribute::String(name) => Some(name.clone()),
        _ => None,
    };
    let unreduced: Vec<String> = unreduced.iter().filter_map(name).filter(|n| is_manual(&n)).collect();
    let count = mesh.axes.iter().try_fold(1u64, |n, (_, size)| n.checked_mul(*size));
    let count = count.filter(|n| (1..=MOST_DEVICES).contains(n));
    let count = count.ok_or_else(|| not_there(format!("a mesh has more than {MOST_DEVICES} devices")))?;
    DeviceSharding::on_mesh(&dims, &unreduced, mesh, count as usize)
}

/// Returns this device's number.
fn device(g: &GraphBuilder) -> Tensor {
    let own = g.emit(PartitionId, &[]).remove(0);
    g.emit(Convert { to: DType::I32 }, &[&own]).remove(0)
}

/// Returns this device's entry of a list with one per device.
fn entry(list: Literal, device: &Tensor, g: &GraphBuilder) -> Tensor {
    let list = g.constant(list);
    let sizes = [1].into_iter().collect();
    let one = g.emit(DynamicSlice { sizes }, &[&list, device]).remove(0);
    g.emit(Reshape { shape: Default::default() }, &[&one]).remove(0)
}

/// Returns this device's shard of a replicated array.
fn part(x: &Tensor, tiles: &DeviceSharding, g: &GraphBuilder) -> Result<Tensor> {
    if tiles.is_replicated() {
        return Ok(x.clone());
    }
    let own = device(g);
    let local = tiles.local(x.shape())?;
    let starts = tiles.starts(&local);
    let mut inputs = vec![x.clone()];
    for d in 0..local.len() {
        let column: Vec<i32> = starts.iter().map(|s| s.get(d).map_or(0, |at| *at as i32)).collect();
        inputs.push(entry(Literal::from_slice([column.len()], &column)?, &own, g));
    }
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    let mine = match local.is_empty() {
        true => x.clone(),
        false => g.emit(DynamicSlice { sizes: local.into_iter().collect() }, &inputs).remove(0),
    };
    if tiles.is_reduced() {
        return Ok(mine);
    }
    // Of the devices that share a sum, one holds all of it.
    let firsts = tiles.firsts();
    let first = entry(Literal::from_bools([firsts.len()], &firsts)?, &own, g);
    let spread = BroadcastInDim { dims: Default::default(), shape: mine.ty().shape.clone() };
    let first = g.emit(spread, &[&first]).remove(0);
    let nothing = g.constant(Literal::zeros(mine.ty().clone()));
    Ok(first.select(&mine, &nothing))
}

fn groups(members: Vec<Vec<usize>>) -> ReplicaGroups {
    ReplicaGroups { members, channel: 1, global: true }
}

/// Gathers the shards of all devices; of a sum, each device's term.
fn gathered(x: Tensor, tiles: &DeviceSharding, g: &GraphBuilder) -> Tensor {
    let split = (0..x.ty().rank()).filter(|d| !tiles.is_whole(*d));
    split.fold(x, |x, dim| g.emit(AllGather { groups: groups(tiles.rows(dim)), dim }, &[&x]).remove(0))
}

fn part_of(given: ImportedValue, tiles: &DeviceSharding, g: &GraphBuilder) -> Result<ImportedValue> {
    Ok(match given {
        ImportedValue::Array(x) => ImportedValue::Array(part(&x, tiles, g)?),
        ImportedValue::Complex(re, im) => ImportedValue::Complex(part(&re, tiles, g)?, part(&im, tiles, g)?),
        other => other,
    })
}

/// Returns the op that defines a value.
fn maker(region: &MlirRegion, value: FunctionValue, depth: usize) -> Option<&Operation> {
    let within = |op: &'_ Operation| op.results.contains(&value);
    region.operations.iter().find(|op| within(op)).or_else(|| match depth {
        MOST_DEPTH => None,
        _ => region.operations.iter().flat_map(|op| &op.regions).find_map(|r| maker(r, value, depth + 1)),
    })
}

/// Returns the sharding string of a GSPMD custom call.
fn told(op: &Operation) -> Option<&str> {
    text(op, "mhlo.sharding")
}

impl<'m> Importer<'m> {
    /// Gathers the shards of all devices and adds up the terms of sums.
    fn whole(&mut self, x: Tensor, tiles: &DeviceSharding, g: &GraphBuilder) -> Tensor {
        let term = gathered(x, tiles, g);
        if tiles.is_reduced() {
            return term;
        }
        let body = Monoid::Add.body(term.ty().dtype);
        let sum = g.emit(AllReduce { groups: groups(tiles.sums()), body }, &[&term]).remove(0);
        if self.regions == 0 {
            self.terms.push((sum.id(), term, tiles.clone()));
        }
        sum
    }

    fn whole_of(&mut self, given: ImportedValue, tiles: &DeviceSharding, g: &GraphBuilder) -> ImportedValue {
        match given {
            ImportedValue::Array(x) => ImportedValue::Array(self.whole(x, tiles, g)),
            ImportedValue::Complex(re, im) => {
                ImportedValue::Complex(self.whole(re, tiles, g), self.whole(im, tiles, g))
            }
            other => other,
        }
    }

    /// Replaces a result's sums by each device's terms if the result has the same sharding; returns whether it did.
    pub(crate) fn keep_terms(&self, parts: &mut [Tensor], tiles: Option<&DeviceSharding>) -> bool {
        let Some(tiles) = tiles.filter(|t| !t.is_reduced()) else { return false };
        let term = |sum: &Tensor| {
            let made = self.terms.iter().find(|(id, _, own)| *id == sum.id() && own == tiles);
            made.map(|(_, term, _)| term.clone())
        };
        let Some(terms) = parts.iter().map(term).collect::<Option<Vec<_>>>() else { return false };
        parts.clone_from_slice(&terms);
        !terms.is_empty()
    }

    /// Imports a manual computation; returns its results on all devices together.
    fn manual(
        &mut self,
        op: &'m Operation,
        operands: Vec<ImportedValue>,
        frame: &mut CallFrame<'m>,
        g: &GraphBuilder,
    ) -> Result<Vec<ImportedValue>> {
        let list = |name: &str| match find(&op.attributes, name) {
            Some(Attribute::List(all)) => Ok(all.as_slice()),
            _ => Err(wrong(format!("missing attribute {name}"))),
        };
        let (ins, outs) = (list("in_shardings")?, list("out_shardings")?);
        let axis = |a: &Attribute| match a {
            Attribute::String(name) => Ok(name.clone()),
            _ => Err(wrong("manual_axes must be names")),
        };
        let manual = list("manual_axes")?.iter().map(axis).collect::<Result<Vec<String>>>()?;
        let named = ins.iter().chain(outs).find_map(|s| match s {
            Attribute::Sharding(mesh, _) => Some(mesh),
            Attribute::Struct(_, fields) => match find(fields, "sharding") {
                Some(Attribute::Sharding(mesh, _)) => Some(mesh),
                _ => None,
            },
            _ => None,
        });
        let no_mesh = ShardyMesh::default();
        let mesh = named.and_then(|name| self.module.mesh(name)).unwrap_or(&no_mesh);
        let [body] = op.regions.as_slice() else { return Err(wrong("manual_computation has no body")) };
        if body.arguments.len() != operands.len() || ins.len() != operands.len() {
            return Err(wrong(format!("got {} operands and {} shardings", operands.len(), ins.len())));
        }
        for ((value, given), sharding) in body.arguments.iter().zip(operands).zip(ins) {
            frame.set(*value, part_of(given, &tiles(sharding, mesh, &manual)?, g)?);
        }
        let results = self.body(body, frame, g)?;
        if results.len() != outs.len() {
            return Err(wrong(format!("got {} results and {} shardings", results.len(), outs.len())));
        }
        let whole = |(given, sharding)| Ok(self.whole_of(given, &tiles(sharding, mesh, &manual)?, g));
        results.into_iter().zip(outs).map(whole).collect()
    }

    /// Imports GSPMD's call to one device's shape (the preceding call contains the operand's sharding), or back.
    fn shape_call(
        &mut self,
        op: &'m Operation,
        operands: Vec<ImportedValue>,
        frame: &CallFrame<'m>,
        g: &GraphBuilder,
    ) -> Result<Vec<ImportedValue>> {
        let [given] =
            <[ImportedValue; 1]>::try_from(operands).map_err(|_| wrong("the call requires one operand"))?;
        let enters = text(op, "call_target_name") == Some(SHAPE_CALLS[0]);
        let before = op.operands.first().and_then(|v| maker(&frame.function.body, *v, 0));
        let text = if enters { before.and_then(told) } else { told(op) };
        let text = text.ok_or_else(|| wrong("the call has no sharding"))?;
        let devices = device_count(self.module)?;
        let rank = |ty: &TensorType| ty.rank();
        let rank = given.parts()?.first().map_or(0, |x| rank(x.ty()));
        let tiles = DeviceSharding::of_text(text, rank, devices)?;
        Ok(vec![if enters { part_of(given, &tiles, g)? } else { self.whole_of(given, &tiles, g) }])
    }
}
