//! How much of a device's memory a program needs: arguments, and the values that live between its kernels.

use crate::device::Device;
use crate::work::{Kernel, Role, Work};
use std::collections::{HashMap, HashSet};

/// Bytes by what they are for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// Weights.
    pub parameters: f64,
    /// The optimizer's arrays.
    pub optimizer: f64,
    /// The batch and other arguments.
    pub inputs: f64,
    /// Results that replace no argument.
    pub results: f64,
    /// Values that live longer than to the next kernel when most is in use: kept for the backward pass.
    pub activations: f64,
    /// Values between neighbouring kernels at that time.
    pub temporaries: f64,
    /// The program.
    pub code: f64,
    /// What the device gives.
    pub limit: f64,
}

impl Memory {
    /// All of it.
    pub fn total(&self) -> f64 {
        self.parameters
            + self.optimizer
            + self.inputs
            + self.results
            + self.activations
            + self.temporaries
            + self.code
    }

    /// Whether it is within the limit.
    pub fn fits(&self) -> bool {
        self.total() <= self.limit
    }

    /// The parts with their names, largest first.
    pub fn parts(&self) -> Vec<(&'static str, f64)> {
        let mut parts = vec![
            ("parameters", self.parameters),
            ("optimizer", self.optimizer),
            ("inputs", self.inputs),
            ("results", self.results),
            ("activations", self.activations),
            ("temporaries", self.temporaries),
            ("code", self.code),
        ];
        parts.sort_by(|a, b| b.1.total_cmp(&a.1));
        parts
    }
}

/// Bytes of code for each core: of any program, of a kernel with a product, of any other. Fitted to what libtpu 0.0.51
/// reports.
const CODE: [f64; 3] = [1.05e6, 0.3e6, 0.08e6];

/// A value that is used up so many kernels later counts as a temporary.
const NEAR: usize = 4;

/// What a run needs.
pub fn memory(work: &Work, device: &Device) -> Memory {
    let of = |role: Role| -> f64 {
        work.arguments.iter().filter(|a| a.role == role).map(|a| device.bytes(&a.ty)).sum()
    };
    let (activations, temporaries) = fullest(work, device);
    Memory {
        parameters: of(Role::Trainable) + of(Role::Frozen),
        optimizer: of(Role::Optimizer),
        inputs: of(Role::Input),
        results: fresh_results(work, device),
        activations,
        temporaries,
        code: device.tile.map_or(0.0, |t| t.cores as f64 * code(work)),
        limit: device.memory,
    }
}

fn code(work: &Work) -> f64 {
    let kernel = |k: &Kernel| CODE[if k.product.is_some() { 1 } else { 2 }];
    CODE[0] + work.kernels.iter().map(kernel).sum::<f64>()
}

/// Weights, optimizer state and metrics are given back in place; a result finds an argument of its type.
fn fresh_results(work: &Work, device: &Device) -> f64 {
    let mut free: Vec<_> = match work.arguments.iter().any(|a| a.role == Role::Trainable) {
        true => work.arguments.iter().map(|a| &a.ty).collect(),
        // A program that is no training step gives its arguments away to nobody.
        false => Vec::new(),
    };
    let mut bytes = 0.0;
    for ty in &work.results {
        match free.iter().position(|t| *t == ty) {
            Some(at) => drop(free.remove(at)),
            None => bytes += device.bytes(ty),
        }
    }
    bytes
}

/// The kernels as compilers order them to save memory: what only makes results (updates of weights) runs as soon as it
/// can, so that gradients die early.
fn ordered(work: &Work) -> Vec<&Kernel> {
    let mut made: HashMap<(usize, usize), usize> = HashMap::new();
    let mut read: HashSet<(usize, usize)> = HashSet::new();
    for (i, k) in work.kernels.iter().enumerate() {
        made.extend(k.writes.iter().map(|a| ((k.graph, a.id), i)));
        read.extend(k.reads.iter().map(|a| (k.graph, a.id)));
    }
    let place = |(i, k): (usize, &Kernel)| {
        let last = k.writes.iter().all(|a| !read.contains(&(k.graph, a.id)));
        let ready = k.reads.iter().filter_map(|a| made.get(&(k.graph, a.id))).max();
        if last { ready.map_or(i, |&r| r) } else { i }
    };
    let mut order: Vec<usize> = (0..work.kernels.len()).collect();
    order.sort_by_key(|&i| (place((i, &work.kernels[i])), i));
    order.into_iter().map(|i| &work.kernels[i]).collect()
}

/// The long-lived and the short-lived bytes at the kernel where most values are alive.
fn fullest(work: &Work, device: &Device) -> (f64, f64) {
    let kernels = ordered(work);
    let n = kernels.len();
    // Value → (made at, last read at, bytes). Arguments are never made; results are counted elsewhere.
    let mut lives: HashMap<(usize, usize), (usize, usize, f64)> = HashMap::new();
    for (i, k) in kernels.iter().enumerate() {
        for a in &k.writes {
            lives.insert((k.graph, a.id), (i, i, device.bytes(&a.ty)));
        }
        for a in &k.reads {
            if let Some(life) = lives.get_mut(&(k.graph, a.id)) {
                life.1 = i;
            }
        }
    }
    let mut change = vec![(0.0, 0.0); n + 1];
    for &(made, last, bytes) in lives.values().filter(|l| l.1 > l.0) {
        let (long, short) = if last - made > NEAR { (bytes, 0.0) } else { (0.0, bytes) };
        change[made].0 += long;
        change[made].1 += short;
        change[last + 1].0 -= long;
        change[last + 1].1 -= short;
    }
    let mut now = (0.0, 0.0);
    let mut most = (0.0, 0.0);
    for c in change {
        now = (now.0 + c.0, now.1 + c.1);
        if now.0 + now.1 > most.0 + most.1 {
            most = now;
        }
    }
    most
}
