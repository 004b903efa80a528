//! Arrays sharded over several devices: assembling, splitting, and the byte ranges of each shard.

use crate::{Buffer, DeviceData, ReadyEvent};
use std::ops::Range;
use std::sync::Arc;
use systole_ir::{Literal, Mesh, Result, Shape, Sharding, TensorType, err};

/// Storage of an array that is sharded over (or replicated on) the devices of a mesh: one buffer per device of this
/// process.
pub struct ShardedArray {
    /// The mesh, including devices of other processes.
    pub mesh: Arc<Mesh>,
    /// How the array is split.
    pub sharding: Sharding,
    /// The shard of each device of this process.
    pub parts: Vec<Buffer>,
    /// Mesh index of the first shard's device; the others follow. 0 if one process drives all devices.
    pub first: usize,
}

impl ShardedArray {
    /// Whether these shards contain the whole array.
    pub fn are_whole(&self) -> bool {
        self.sharding.is_replicated() || self.parts.len() == self.mesh.devices()
    }

    /// Creates the buffer of the whole array. Errors if `sharding` does not match `ty`.
    pub fn buffer(self, ty: TensorType) -> Result<Buffer> {
        self.sharding.local(&self.mesh, &ty)?;
        Ok(Buffer::new(ty, Arc::new(self)))
    }
}

impl DeviceData for ShardedArray {
    fn to_literal(&self, ty: &TensorType) -> Result<Literal> {
        if self.sharding.is_replicated() {
            return self.parts[0].to_literal();
        }
        if !self.are_whole() {
            return Err(err!(Unsupported, "cannot read {ty}: other hosts hold some of its shards")
                .because(format!(
                    "this host has {} of the array's {} shards",
                    self.parts.len(),
                    self.mesh.devices()
                ))
                .hint("gather the array on all hosts first (Hosts::gather)"));
        }
        let mut whole = Literal::zeros(ty.clone());
        for (device, part) in self.parts.iter().enumerate() {
            let part = part.to_literal()?;
            let rows = ShardRuns::new(&self.mesh, &self.sharding, ty, device);
            for (at, own) in rows.starts() {
                whole.bytes_mut()[at..at + rows.bytes].copy_from_slice(&part.bytes()[own..own + rows.bytes]);
            }
        }
        Ok(whole)
    }

    /// Last event of the shards: one run computes all shards, or the runs are sequential.
    fn ready_event(&self) -> Option<ReadyEvent> {
        self.parts.iter().rev().find_map(Buffer::ready_event)
    }
}

/// Splits a host array into the shards of the given devices of a mesh. Errors if the sharding does not match its type.
pub fn split(
    value: &Literal,
    mesh: &Mesh,
    sharding: &Sharding,
    devices: Range<usize>,
) -> Result<Vec<Literal>> {
    let local = sharding.local(mesh, value.ty())?;
    if sharding.is_replicated() {
        return Ok(vec![value.clone(); devices.len()]);
    }
    let part = |device| {
        let rows = ShardRuns::new(mesh, sharding, value.ty(), device);
        let mut part = Literal::zeros(local.clone());
        for (at, own) in rows.starts() {
            part.bytes_mut()[own..own + rows.bytes].copy_from_slice(&value.bytes()[at..at + rows.bytes]);
        }
        part
    };
    Ok(devices.map(part).collect())
}

/// The contiguous byte runs of one device's shard.
struct ShardRuns {
    whole: Shape,
    first: Vec<usize>,
    part: Shape,
    element: usize,
    /// Bytes per run.
    bytes: usize,
}

impl ShardRuns {
    fn new(mesh: &Mesh, sharding: &Sharding, ty: &TensorType, device: usize) -> ShardRuns {
        let ranges = sharding.ranges(mesh, &ty.shape, device);
        let part: Shape = ranges.iter().map(|r| r.len()).collect();
        let element = ty.bytes() / ty.elements().max(1);
        ShardRuns {
            whole: ty.shape.clone(),
            first: ranges.iter().map(|r| r.start).collect(),
            bytes: part.last().map_or(1, |n| *n) * element,
            part,
            element,
        }
    }

    /// Start of each run as byte offsets: in the whole array, in the shard.
    fn starts(&self) -> impl Iterator<Item = (usize, usize)> {
        let rows = Shape::new(&self.part.dims()[..self.part.rank().saturating_sub(1)]);
        rows.indices().enumerate().map(|(n, mut index)| {
            if self.part.rank() > 0 {
                index.push(0);
            }
            let shifted: Vec<usize> = index.iter().zip(&self.first).map(|(i, f)| i + f).collect();
            (self.whole.ravel(&shifted) * self.element, n * self.bytes)
        })
    }
}

// Names of the previous version.
systole_ir::renamed! { Pieces => ShardedArray }

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::DType;
    use systole_ir::ErrorKind;

    #[test]
    fn an_array_comes_back_from_its_parts() {
        let mesh: Arc<Mesh> = Arc::new("a=2,b=3".parse().unwrap());
        let values: Vec<f32> = (0..48).map(|v| v as f32).collect();
        let whole = Literal::from_slice([6, 2, 4], &values).unwrap();
        let split_on = |dims: &[(usize, usize)]| {
            dims.iter().fold(Sharding::replicated(3), |s, &(dim, axis)| s.split(dim, axis))
        };
        for sharding in [
            split_on(&[]),
            split_on(&[(0, 1)]),
            split_on(&[(2, 0), (0, 1)]),
            split_on(&[(0, 0), (0, 1)]),
            split_on(&[(1, 0)]),
        ] {
            let parts = split(&whole, &mesh, &sharding, 0..6).unwrap();
            assert_eq!(split(&whole, &mesh, &sharding, 2..5).unwrap(), parts[2..5]);
            let parts: Vec<Buffer> = parts.into_iter().map(Buffer::from).collect();
            let held: usize = parts.iter().map(|p| p.ty().elements()).sum();
            let copies: usize = 6 / sharding.parts(&mesh).iter().product::<usize>();
            assert_eq!(held, 48 * copies);
            let ty = TensorType::new(DType::F32, [6, 2, 4]);
            let replicated = sharding.is_replicated();
            let some = ShardedArray {
                mesh: mesh.clone(),
                sharding: sharding.clone(),
                parts: parts[2..5].into(),
                first: 2,
            };
            let buffer = some.buffer(ty.clone()).unwrap();
            match buffer.to_literal() {
                Ok(value) => assert!(replicated && value == whole),
                Err(e) => {
                    assert!(!replicated, "{e}");
                    systole_testing::assert_error(&e, ErrorKind::Unsupported, &["3"]);
                }
            }
            let buffer = ShardedArray { mesh: mesh.clone(), sharding, parts, first: 0 }.buffer(ty).unwrap();
            assert_eq!(buffer.to_literal().unwrap(), whole);
        }
        let scalar = Literal::scalar(DType::F32, 3.0);
        let parts = split(&scalar, &mesh, &Sharding::replicated(0), 0..6).unwrap();
        assert_eq!(parts.len(), 6);
    }
}
