//! `sdy.manual_computation`: what each device computes by itself, as Shardy has it.
//!
//! Around it a program is that of all devices together. It becomes the program that every device runs: outside of such
//! computations all compute the same; at the begin each takes its part of the operands, and at the end the parts of all are
//! gathered. A program with none of them stays as it is, and is run once.

use super::given::Given;
use super::types::{not_there, wrong};
use super::{Frame, Importer};
use crate::syntax::{Attribute, Operation};
use crate::text::find;
use systole_base::{DType, Result};
use systole_ir::op::{AllGather, Convert, DynamicSlice, Groups, PartitionId};
use systole_ir::{GraphBuilder, Tensor};

/// More devices than this are a mistake.
const MOST_DEVICES: usize = 1 << 12;

/// One axis of a mesh.
#[derive(Clone, Copy)]
struct Axis {
    stride: usize,
    size: usize,
}

/// The devices of a mesh.
struct Devices {
    axes: Vec<(String, Axis)>,
    count: usize,
}

impl Devices {
    fn new(mesh: &[(String, u64)]) -> Result<Devices> {
        let mut axes = Vec::new();
        let mut count = 1usize;
        for (name, size) in mesh.iter().rev() {
            let size = usize::try_from(*size).map_err(|_| wrong("an axis is too large"))?;
            axes.push((name.clone(), Axis { stride: count, size }));
            count = count
                .checked_mul(size)
                .filter(|n| *n <= MOST_DEVICES && *n > 0)
                .ok_or_else(|| not_there(format!("a mesh of over {MOST_DEVICES} devices")))?;
        }
        Ok(Devices { axes, count })
    }

    /// An axis, or a part of one: `x:(2)4` is the four parts of `x` behind its first two.
    fn axis(&self, text: &str) -> Result<Axis> {
        let missing = || wrong(format!("the mesh has no axis {text}"));
        let (name, part) = text.split_once(':').map_or((text, None), |(name, part)| (name, Some(part)));
        let axis = self.axes.iter().find(|(n, _)| n == name).map(|(_, axis)| *axis).ok_or_else(missing)?;
        let Some(part) = part else { return Ok(axis) };
        let sizes = part.strip_prefix('(').and_then(|p| p.split_once(')'));
        let (before, size) = sizes.ok_or_else(missing)?;
        let (before, size): (usize, usize) =
            (before.parse().map_err(|_| missing())?, size.parse().map_err(|_| missing())?);
        match before.checked_mul(size) {
            Some(n) if n > 0 && axis.size.is_multiple_of(n) => {
                Ok(Axis { stride: axis.stride * (axis.size / n), size })
            }
            _ => Err(missing()),
        }
    }

    /// The devices that differ along `axes` alone, the last fastest.
    fn groups(&self, axes: &[Axis]) -> Vec<Vec<usize>> {
        let place = |d: usize| axes.iter().fold(0, |at, a| at * a.size + d / a.stride % a.size);
        let others = |d: usize| axes.iter().fold(d, |d, a| d - d / a.stride % a.size * a.stride);
        let mut groups: Vec<(usize, Vec<usize>)> = Vec::new();
        for d in 0..self.count {
            match groups.iter_mut().find(|(first, _)| *first == others(d)) {
                Some((_, group)) => group.push(d),
                None => groups.push((others(d), vec![d])),
            }
        }
        let sorted = |(_, mut group): (usize, Vec<usize>)| {
            group.sort_by_key(|d| place(*d));
            group
        };
        groups.into_iter().map(sorted).collect()
    }
}

/// How an operand or a result lies: for each dimension the axes that each device has its own part of.
fn manual_dims(sharding: &Attribute, devices: &Devices, manual: &[String]) -> Result<Vec<Vec<Axis>>> {
    let Attribute::Sharding(_, dims) = sharding else { return Err(wrong("a sharding of no axes")) };
    let is_manual = |text: &&String| manual.iter().any(|m| m == text.split(':').next().unwrap_or(text));
    dims.iter().map(|axes| axes.iter().filter(is_manual).map(|a| devices.axis(a)).collect()).collect()
}

/// This device's part of what all have.
fn part(x: &Tensor, dims: &[Vec<Axis>], g: &GraphBuilder) -> Result<Tensor> {
    if dims.iter().all(Vec::is_empty) {
        return Ok(x.clone());
    }
    let number = |n: usize| g.scalar(DType::U32, n as f64);
    let device = g.emit(PartitionId, &[]).remove(0);
    let (mut sizes, mut starts) = (x.ty().shape.to_vec(), Vec::new());
    for (size, axes) in sizes.iter_mut().zip(dims) {
        let parts: usize = axes.iter().map(|a| a.size).product();
        if !size.is_multiple_of(parts) {
            return Err(wrong(format!("a dimension of {size} is not split into {parts} equal parts")));
        }
        *size /= parts;
        let mut at = number(0);
        for axis in axes {
            let along = (&device / &number(axis.stride)).remainder(&number(axis.size));
            at = at * number(axis.size) + along;
        }
        let start = at * number(*size);
        starts.push(g.emit(Convert { to: DType::I32 }, &[&start]).remove(0));
    }
    let inputs: Vec<&Tensor> = std::iter::once(x).chain(&starts).collect();
    Ok(g.emit(DynamicSlice { sizes: sizes.into_iter().collect() }, &inputs).remove(0))
}

/// The parts of all devices together.
fn gathered(x: Tensor, dims: &[Vec<Axis>], devices: &Devices, g: &GraphBuilder) -> Tensor {
    dims.iter().enumerate().filter(|(_, axes)| !axes.is_empty()).fold(x, |x, (dim, axes)| {
        let groups = Groups { members: devices.groups(axes), channel: 1, global: true };
        g.emit(AllGather { groups, dim }, &[&x]).remove(0)
    })
}

impl<'m> Importer<'m> {
    /// The results of all devices together.
    pub(super) fn manual(
        &mut self,
        op: &'m Operation,
        operands: Vec<Given>,
        frame: &mut Frame<'m>,
        g: &GraphBuilder,
    ) -> Result<Vec<Given>> {
        let list = |name: &str| match find(&op.attributes, name) {
            Some(Attribute::List(all)) => Ok(all.as_slice()),
            _ => Err(wrong(format!("it has no {name}"))),
        };
        let (ins, outs) = (list("in_shardings")?, list("out_shardings")?);
        let axis = |a: &Attribute| match a {
            Attribute::String(name) => Ok(name.clone()),
            _ => Err(wrong("manual_axes are names")),
        };
        let manual = list("manual_axes")?.iter().map(axis).collect::<Result<Vec<String>>>()?;
        let named = ins.iter().chain(outs).find_map(|s| match s {
            Attribute::Sharding(mesh, _) => Some(mesh),
            _ => None,
        });
        let mesh = self.module.meshes.iter().find(|(name, _)| Some(name) == named);
        let devices = Devices::new(mesh.map_or(&[], |(_, axes)| axes.as_slice()))?;
        let [body] = op.regions.as_slice() else { return Err(wrong("it has no body")) };
        if body.arguments.len() != operands.len() || ins.len() != operands.len() {
            return Err(wrong(format!("{} operands, {} shardings", operands.len(), ins.len())));
        }
        for ((value, given), sharding) in body.arguments.iter().zip(operands).zip(ins) {
            let given = match given {
                Given::Array(x) => Given::Array(part(&x, &manual_dims(sharding, &devices, &manual)?, g)?),
                Given::Complex(re, im) => {
                    let dims = manual_dims(sharding, &devices, &manual)?;
                    Given::Complex(part(&re, &dims, g)?, part(&im, &dims, g)?)
                }
                other => other,
            };
            frame.set(*value, given);
        }
        let results = self.body(body, frame, g)?;
        if results.len() != outs.len() {
            return Err(wrong(format!("{} results, {} shardings", results.len(), outs.len())));
        }
        let whole = |(given, sharding): (Given, &Attribute)| match given {
            Given::Array(x) => {
                Ok(Given::Array(gathered(x, &manual_dims(sharding, &devices, &manual)?, &devices, g)))
            }
            Given::Complex(re, im) => {
                let dims = manual_dims(sharding, &devices, &manual)?;
                Ok(Given::Complex(gathered(re, &dims, &devices, g), gathered(im, &dims, &devices, g)))
            }
            other => Ok(other),
        };
        results.into_iter().zip(outs).map(whole).collect()
    }
}
