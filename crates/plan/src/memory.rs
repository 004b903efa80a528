//! Memory that a program needs on one device: arguments, live intermediate values, code.

use crate::device_model::DeviceModel;
use crate::kernel_list::{ArgumentRole, KernelList, KernelWork, MatrixProduct};
use crate::value_placement::ValuePlacement;

/// Device memory that a program needs in bytes, by category.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryNeed {
    /// Weights.
    pub parameters: f64,
    /// Optimizer state.
    pub optimizer: f64,
    /// The batch and other arguments.
    pub inputs: f64,
    /// Results that do not reuse an argument's memory.
    pub results: f64,
    /// Long-lived values at peak usage, kept for the backward pass.
    pub activations: f64,
    /// Values between neighboring kernels at peak usage.
    pub temporaries: f64,
    /// Program code.
    pub code: f64,
    /// Memory of the device.
    pub limit: f64,
}

impl MemoryNeed {
    /// Memory need of all categories together.
    pub fn total(&self) -> f64 {
        self.parameters
            + self.optimizer
            + self.inputs
            + self.results
            + self.activations
            + self.temporaries
            + self.code
    }

    /// Whether the memory need is within the device's limit.
    pub fn fits(&self) -> bool {
        self.total() <= self.limit
    }

    /// Returns the memory categories with their names and bytes, largest first.
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

/// Code bytes per core without kernels, and per kernel without a product. These and the code bytes of products are
/// fitted to the reports of libtpu 0.0.51 for all generations.
const PROGRAM: f64 = 1.05e6;
const KERNEL: f64 = 0.06e6;

/// Scratch bytes of programs that keep values in on-chip memory: per kernel, and at most.
const SCRATCH: [f64; 2] = [0.05e6, 0.9e6];

/// Computes the memory that a run needs.
pub(crate) fn memory(work: &KernelList, device: &DeviceModel, placement: &ValuePlacement) -> MemoryNeed {
    let of = |role: ArgumentRole| -> f64 {
        work.arguments.iter().filter(|a| a.role == role).map(|a| device.bytes(&a.ty)).sum()
    };
    let scratch = match device.tile {
        Some(t) if t.on_chip > 0.0 => (work.kernels.len() as f64 * SCRATCH[0]).min(SCRATCH[1]),
        _ => 0.0,
    };
    MemoryNeed {
        parameters: of(ArgumentRole::Trainable) + of(ArgumentRole::Frozen),
        optimizer: of(ArgumentRole::Optimizer),
        inputs: of(ArgumentRole::Input),
        results: fresh_results(work, device),
        activations: placement.activations,
        temporaries: placement.temporaries + scratch,
        code: device
            .tile
            .map_or(0.0, |t| t.cores as f64 * PROGRAM + work.kernels.iter().map(code).sum::<f64>()),
        limit: device.memory,
    }
}

/// Code bytes of a kernel: loops over blocks of a large product are unrolled, and so are the rounds of random number
/// generation.
fn code(kernel: &KernelWork) -> f64 {
    let rounds = 0.3e6 + 2.2e6 * (kernel.draws / 524_288.0).min(1.0);
    match &kernel.product {
        Some(p) => 2.0 * KERNEL + unrolled(p),
        None if kernel.draws > 0.0 => rounds,
        None => KERNEL,
    }
}

fn unrolled(p: &MatrixProduct) -> f64 {
    let by_size = 0.055e6 * (p.flops().log2() - 27.0).max(0.0);
    if p.convolution { 1.6 * by_size } else { by_size }
}

/// Bytes of results that cannot reuse an argument. Weights, optimizer state and metrics are updated in place.
fn fresh_results(work: &KernelList, device: &DeviceModel) -> f64 {
    let mut free: Vec<_> = match work.arguments.iter().any(|a| a.role == ArgumentRole::Trainable) {
        true => work.arguments.iter().map(|a| &a.ty).collect(),
        // A program that is not a training step does not donate its arguments.
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
