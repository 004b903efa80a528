//! Cost model of collectives on a TPU torus and on the data-center network between slices.
//!
//! The formulas are from the Scaling Book: a bidirectional ring takes `V / (2·link·axes)` for an all-gather of `V`
//! bytes; an axis without wraparound has one direction; an all-reduce is a reduce-scatter plus an all-gather; no
//! collective is faster than its hops at about 1 µs.

use crate::table::{ChipTables, Tpu};
use crate::tpu_slice::TpuSlice;
use crate::traffic::CollectiveTraffic;

/// Latency of one hop between neighboring TPU chips in seconds.
pub const HOP: f64 = 1e-6;

/// The axes of a TPU torus that a collective uses.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectiveMesh {
    /// Length of each axis longer than 1, and whether it wraps around to a ring.
    pub axes: Vec<(usize, bool)>,
    /// Bandwidth of one link in one direction, in bytes per second.
    pub link: f64,
}

impl CollectiveMesh {
    /// Returns the torus axes of a whole slice.
    pub fn of(slice: &TpuSlice, tpu: &Tpu) -> CollectiveMesh {
        let axes = slice.topology.iter().zip(&slice.wrap).filter(|(n, _)| **n > 1).map(|(&n, &w)| (n, w));
        CollectiveMesh { axes: axes.collect(), link: tpu.link_gb_per_s * 1e9 }
    }

    /// All-gather rate in bytes per second over all axes: rings use both directions; on a line, `n − 1` of `n` parts
    /// pass the one link at its end.
    fn rate(&self) -> f64 {
        let axis = |&(n, ring): &(usize, bool)| match ring {
            true => 2.0 * self.link,
            false => self.link * n as f64 / (n as f64 - 1.0),
        };
        self.axes.iter().map(axis).sum()
    }

    /// Number of hops to all other chips along each axis: half around a ring, or the length of a line.
    fn hops(&self) -> f64 {
        self.axes.iter().map(|&(n, ring)| if ring { n as f64 / 2.0 } else { n as f64 - 1.0 }).sum()
    }

    fn chips(&self) -> usize {
        self.axes.iter().map(|a| a.0).product()
    }

    /// Estimates the seconds for an all-gather of `bytes` in total.
    pub fn all_gather(&self, bytes: f64) -> f64 {
        if self.chips() < 2 {
            return 0.0;
        }
        (bytes / self.rate()).max(self.hops() * HOP)
    }

    /// Estimates the seconds for a reduce-scatter of `bytes` per chip.
    pub fn reduce_scatter(&self, bytes: f64) -> f64 {
        self.all_gather(bytes)
    }

    /// Estimates the seconds for an all-reduce of `bytes` per chip.
    pub fn all_reduce(&self, bytes: f64) -> f64 {
        2.0 * self.all_gather(bytes)
    }

    /// Estimates the seconds for an all-to-all; on a bidirectional ring a quarter of an all-gather.
    pub fn all_to_all(&self, bytes: f64) -> f64 {
        self.all_gather(bytes) / 4.0
    }
}

/// Estimates the seconds for an all-reduce over all slices: reduce-scatter within slices, exchange over the network,
/// all-gather.
pub fn all_reduce(slice: &TpuSlice, tables: &ChipTables, bytes: f64) -> f64 {
    let Some(tpu) = tables.tpu(&slice.generation) else { return 0.0 };
    let mesh = CollectiveMesh::of(slice, tpu);
    // Cores of one chip that are separate devices first add through the chip's memory.
    let on_chip = if tpu.devices > 1 { 2.0 * bytes / (tpu.hbm_gb_per_s * 1e9) } else { 0.0 };
    let inside = on_chip + mesh.all_reduce(bytes);
    if slice.slices == 1 {
        return inside;
    }
    let n = slice.slices as f64;
    let network = slice.hosts as f64 * tpu.host_network_gb_per_s * 1e9;
    inside + 2.0 * bytes * (n - 1.0) / n / network
}

/// Seconds for the collectives of a compiled program in sequence. Between slices all of them use the network.
pub(crate) fn of_traffic(slice: &TpuSlice, tables: &ChipTables, traffic: &[CollectiveTraffic]) -> f64 {
    let Some(tpu) = tables.tpu(&slice.generation) else { return 0.0 };
    let mesh = CollectiveMesh::of(slice, tpu);
    let one = |t: &CollectiveTraffic| {
        let bytes = t.bytes / t.count.max(1) as f64;
        t.count as f64
            * match t.op.as_str() {
                "all-reduce" => all_reduce(slice, tables, bytes),
                "reduce-scatter" | "all-gather" => all_reduce(slice, tables, bytes) / 2.0,
                "all-to-all" => mesh.all_to_all(bytes),
                // Collective permute to a neighbor.
                _ => (bytes / mesh.link).max(HOP),
            }
    };
    traffic.iter().map(one).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(ours: f64, micros: f64) {
        let ours = ours * 1e6;
        assert!((ours / micros - 1.0).abs() < 0.10, "{ours:.1} µs against {micros} µs");
    }

    fn mesh(axes: &[(usize, bool)], link: f64) -> CollectiveMesh {
        CollectiveMesh { axes: axes.to_vec(), link }
    }

    /// The numbers that the scaling-book works out.
    #[test]
    fn worked_examples_of_the_scaling_book() {
        // v5e, AllGather of bf16[2048, 8192] along the axis of 4: the book divides by both directions of one axis.
        let array = 2.0 * 2048.0 * 8192.0;
        close(mesh(&[(4, true)], 4.5e10).all_gather(array), 377.0);
        // The same without wraparound: the ends have one direction, and n − 1 of n parts pass.
        close(mesh(&[(4, false)], 4.5e10).all_gather(array), 560.0);
        // v4 4x4x4: bf16[1024, 4096] gathered along X; twice as much along X and Y; reduced along Z.
        let array = 2.0 * 1024.0 * 4096.0;
        close(mesh(&[(4, true)], 4.5e10).all_gather(array / 4.0), 23.0);
        close(mesh(&[(4, true), (4, true)], 4.5e10).all_gather(array), 46.0);
        close(mesh(&[(4, true)], 4.5e10).all_reduce(array), 190.0);
        // 128 elements: only hops.
        close(mesh(&[(4, true)], 4.5e10).all_gather(256.0), 2.0);
    }

    #[test]
    fn a_line_is_slower_than_a_ring_and_one_chip_talks_to_nobody() {
        let ring = mesh(&[(16, true)], 4.5e10).all_reduce(1e8);
        let line = mesh(&[(16, false)], 4.5e10).all_reduce(1e8);
        assert!(line > 1.8 * ring && line < 2.0 * ring, "{line} {ring}");
        assert_eq!(mesh(&[], 4.5e10).all_reduce(1e8), 0.0);
    }

    #[test]
    fn two_slices_add_the_network() {
        let t = ChipTables::built_in().unwrap();
        let of = |name: &str| all_reduce(&TpuSlice::of(name, &t).unwrap(), &t, 1e9);
        assert!(of("2*v5e-16") > of("v5e-16") + 1e9 / (2.0 * 25e9) * 0.99);
    }

    #[test]
    fn collectives_of_a_program_add_up() {
        let t = ChipTables::built_in().unwrap();
        let slice = TpuSlice::of("v5e-16", &t).unwrap();
        let traffic = |op: &str, count, bytes| CollectiveTraffic { op: op.into(), count, bytes };
        let list = [traffic("all-reduce", 1, 1e8), traffic("all-gather", 4, 4e8)];
        let one = all_reduce(&slice, &t, 1e8);
        assert!((of_traffic(&slice, &t, &list) / (one + 4.0 * one / 2.0) - 1.0).abs() < 1e-9);
        assert_eq!(of_traffic(&slice, &t, &[traffic("collective-permute", 3, 24.0)]), 3.0 * HOP);
    }
}
