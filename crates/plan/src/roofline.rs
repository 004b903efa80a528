//! Roofline model: time of one kernel on one device from its matrix operations and bytes.
//!
//! `T = start + max(products, results, bytes, element-wise work) + exposed first and last blocks`.

use crate::device_model::{DeviceModel, padded};
use crate::kernel_list::{KernelWork, MatrixProduct};
use crate::value_placement::MemoryTraffic;

/// Time components of one kernel execution, in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KernelTimeParts {
    /// Matrix unit time, including padding.
    pub products: f64,
    /// Time to move results out of the matrix units.
    pub results: f64,
    /// Memory time.
    pub memory: f64,
    /// Element-wise time.
    pub vector: f64,
    /// Start overhead.
    pub start: f64,
    /// Total time; less than the sum, because components overlap.
    pub total: f64,
    /// Lower bound: peak rates, no padding, no start overhead.
    pub floor: f64,
}

impl KernelTimeParts {
    /// Returns the resource that limits the kernel: `MXU`, `HBM`, `VPU` or `start`.
    pub fn limit(&self) -> &'static str {
        let parts = [
            (self.products.max(self.results), "MXU"),
            (self.memory, "HBM"),
            (self.vector, "VPU"),
            (self.start, "start"),
        ];
        parts.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).map_or("start", |p| p.1)
    }
}

/// A dimension of a matrix product that the matrix units pad.
#[derive(Clone, Debug, PartialEq)]
pub struct DimPadding {
    /// Name of the dimension: `output features`, `contracted dimension`.
    pub dimension: &'static str,
    /// Size in the program.
    pub from: f64,
    /// Padded size.
    pub to: f64,
}

/// Computes the time of one execution with the given memory traffic.
pub(crate) fn time(kernel: &KernelWork, moved: &MemoryTraffic, device: &DeviceModel) -> KernelTimeParts {
    let arrays = kernel.reads.iter().chain(&kernel.writes);
    let unpadded = arrays.map(|a| a.ty.bytes() as f64 * a.part).sum::<f64>().min(moved.bytes);
    let memory = moved.far;
    let vector = (kernel.ops / device.vector_ops).max(moved.near);
    let Some(p) = &kernel.product else {
        let start = device.start[1];
        let floor = (unpadded / device.bytes_per_s).min(memory);
        return KernelTimeParts {
            memory,
            vector,
            start,
            total: start + memory.max(vector),
            floor,
            ..KernelTimeParts::default()
        };
    };
    let rate = device.peak(p.dtype);
    let products = p.flops() * waste(p, device) / (rate * device.product_share);
    let results = p.batch * p.rows * p.columns / 1024.0 * device.result_seconds;
    let start = if moved.all_near { device.start_near } else { device.start[0] };
    let long = products.max(results).max(memory).max(vector);
    let uncovered = memory.min(products.max(results)).min(device.head_bytes / device.bytes_per_s);
    let floor = (p.flops() / rate).max((unpadded / device.bytes_per_s).min(memory)).min(long);
    KernelTimeParts { products, results, memory, vector, start, total: start + long + uncovered, floor }
}

/// Ratio of performed to required multiply-adds of a matrix product, due to padding.
pub fn waste(p: &MatrixProduct, device: &DeviceModel) -> f64 {
    paddings(p, device).iter().map(|d| d.to / d.from).product()
}

/// Returns the dimensions of a matrix product that the device pads.
pub fn paddings(p: &MatrixProduct, device: &DeviceModel) -> Vec<DimPadding> {
    let Some(tile) = device.tile else { return Vec::new() };
    let side = tile.mxu as f64;
    // The window and the input features together form the contracted dimension.
    let inner = p.taps * p.inner;
    let inner = match p.convolution && p.inner < side {
        true => DimPadding { dimension: "window × input features", from: inner, to: padded(inner, side) },
        false => DimPadding { dimension: "contracted dimension", from: p.inner, to: padded(p.inner, side) },
    };
    let features = if p.convolution { "output features" } else { "columns" };
    let columns = |d, from: f64| DimPadding { dimension: d, from, to: padded(from, side) };
    let by_columns = columns(features, p.columns);
    let by_lanes = columns(if p.convolution { "batch" } else { "rows" }, p.lanes);
    let ratio = |d: &DimPadding| d.to / d.from;
    let swap = (tile.swaps || !p.convolution) && ratio(&by_lanes) < ratio(&by_columns);
    let across = if swap { by_lanes } else { by_columns };
    let down = if swap { p.columns } else { p.rows };
    let rows = DimPadding { dimension: "rows", from: down, to: padded(down, 8.0) };
    [inner, across, rows].into_iter().filter(|d| d.to > d.from).collect()
}
