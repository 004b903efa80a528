//! Arrays that lie on several devices.

use crate::{Buffer, DeviceData, ReadyEvent};
use std::ops::Range;
use std::sync::Arc;
use systole_ir::{Error, ErrorKind, Literal, Mesh, Result, Shape, Sharding, TensorType};

/// The storage of an array that is split over (or repeated on) the devices of a mesh: one buffer for each device that
/// this process drives.
pub struct ShardedArray {
    /// The devices, those of other processes too.
    pub mesh: Arc<Mesh>,
    /// How the array is split.
    pub sharding: Sharding,
    /// Each device's part.
    pub parts: Vec<Buffer>,
    /// The place in the mesh of the first part's device; the others follow it. 0 where one process drives all.
    pub first: usize,
}

impl ShardedArray {
    /// Whether the whole array can be had from these parts.
    pub fn are_whole(&self) -> bool {
        self.sharding.is_replicated() || self.parts.len() == self.mesh.devices()
    }

    /// The buffer of the whole array. Errors: `sharding` does not fit `ty`.
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
            return Err(Error::new(ErrorKind::Unsupported, format!("parts of {ty} lie at other hosts"))
                .because(format!("{} of {} devices are this host's", self.parts.len(), self.mesh.devices()))
                .hint("let all hosts gather it first (Hosts::gather)"));
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

    /// One run makes all parts, or one after the other.
    fn ready_event(&self) -> Option<ReadyEvent> {
        self.parts.iter().rev().find_map(Buffer::ready_event)
    }
}

/// The parts of a host array that some devices of a mesh get. Errors: the sharding does not fit its type.
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

/// The runs of neighbouring bytes of one device's part.
struct ShardRuns {
    whole: Shape,
    first: Vec<usize>,
    part: Shape,
    element: usize,
    /// Length of a run.
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

    /// Where each run begins, in bytes: in the whole array, in the part.
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

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::DType;

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
                Err(e) => assert!(!replicated && e.to_string().contains("at other hosts"), "{e}"),
            }
            let buffer = ShardedArray { mesh: mesh.clone(), sharding, parts, first: 0 }.buffer(ty).unwrap();
            assert_eq!(buffer.to_literal().unwrap(), whole);
        }
        let scalar = Literal::scalar(DType::F32, 3.0);
        let parts = split(&scalar, &mesh, &Sharding::replicated(0), 0..6).unwrap();
        assert_eq!(parts.len(), 6);
    }
}
