//! Analytic device model: peak rates, memory bandwidth, tile sizes and kernel overheads of a TPU, GPU or CPU.

use crate::kernel_list::{KernelWork, MemoryArray};
use crate::table::{Gpu, Tpu};
use systole_ir::{DType, TensorType};

/// Analytic performance model of one device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceModel {
    /// Peak operations per second (a multiply-add is two) for bf16 and for f32 factors.
    pub flops: [f64; 2],
    /// Peak operations per second for f16 factors.
    pub f16_flops: f64,
    /// Peak memory bandwidth in bytes per second.
    pub bytes_per_s: f64,
    /// Fraction of the bandwidth that kernels reach.
    pub memory_share: f64,
    /// Bandwidth of on-chip memory in bytes per second.
    pub on_chip_bytes_per_s: f64,
    /// Memory available to a program in bytes.
    pub memory: f64,
    /// Cache hierarchy including main memory, nearest first: capacity in bytes, bytes per second. Empty if programs do
    /// not see it.
    pub caches: Vec<(f64, f64)>,
    /// Samples whose intermediate values are live at the same time, if a program runs block by block.
    pub blocks: f64,
    /// Minimum seconds of a kernel with a product, and of any other kernel.
    pub start: [f64; 2],
    /// Minimum seconds of a product whose arrays are all on the chip.
    pub start_near: f64,
    /// Matrix unit shapes; `None` if padding is negligible.
    pub tile: Option<MatrixUnits>,
    /// Fraction of the peak that large products reach.
    pub product_share: f64,
    /// Bytes of a product's first and last blocks, whose transfer is not hidden.
    pub head_bytes: f64,
    /// Seconds to move 1024 result elements out of the matrix units.
    pub result_seconds: f64,
    /// Element-wise operations per second.
    pub vector_ops: f64,
}

/// Matrix units and on-chip memory of a device, for the performance model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatrixUnits {
    /// Rows and columns of a matrix unit.
    pub mxu: usize,
    /// Number of cores that run one program.
    pub cores: usize,
    /// Whether the compiler may map the batch instead of the features to the unit's columns.
    pub swaps: bool,
    /// Bytes of intermediate values that stay on the chip.
    pub on_chip: f64,
}

/// Measured peak rates of this computer's CPU.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuCeilings {
    /// f32 operations per second over all threads.
    pub flops: f64,
    /// Operations per second with 16-bit factors.
    pub bf16_flops: f64,
    /// Cache hierarchy including main memory, nearest first: capacity in bytes over all threads, bytes per second.
    pub tiers: Vec<(f64, f64)>,
    /// Number of threads.
    pub threads: usize,
    /// Memory in bytes.
    pub memory: f64,
}

const MIB: f64 = (1 << 20) as f64;

impl DeviceModel {
    /// Returns the performance model of one TPU device: a chip, or a core on generations where programs see cores.
    pub fn tpu(t: &Tpu) -> DeviceModel {
        let cores = (t.cores / t.devices) as f64;
        let hertz = t.clock_mhz * 1e6;
        let flops = 2.0 * t.macs * cores * hertz;
        DeviceModel {
            // By default XLA multiplies f32 factors as bf16.
            flops: [flops, flops],
            // Matrix units do not multiply f16: the compiler converts the factors within the kernel.
            f16_flops: flops / t.fit.f16,
            bytes_per_s: t.hbm_gb_per_s * 1e9 / t.devices as f64,
            memory_share: 0.9,
            // A core loads and stores a register of 1024 32-bit words per cycle.
            on_chip_bytes_per_s: 2.0 * 4096.0 * cores * hertz,
            memory: t.hbm_limit as f64,
            caches: Vec::new(),
            blocks: 0.0,
            start: [t.fit.product_cycles / hertz, t.fit.kernel_cycles / hertz],
            start_near: t.fit.near_cycles / hertz,
            tile: Some(MatrixUnits {
                mxu: t.mxu,
                cores: t.cores / t.devices,
                swaps: t.fit.swaps,
                on_chip: t.fit.on_chip_mib * MIB,
            }),
            product_share: t.fit.product_share,
            head_bytes: t.fit.head_mib * MIB,
            result_seconds: t.fit.result_cycles / cores / hertz,
            // The 1024 lanes of a core execute at least two operations per cycle.
            vector_ops: 2.0 * 1024.0 * cores * hertz,
        }
    }

    /// Returns the performance model of a GPU. The fractions are typical of well-optimized programs, not measured.
    pub fn gpu(g: &Gpu, mixed_is_f16: bool) -> DeviceModel {
        let peak =
            |names: &[&str]| names.iter().find_map(|n| g.peak_tflops.get(*n)).copied().unwrap_or(0.0) * 1e12;
        // A GPU without units for a 16-bit type multiplies it in f32.
        let half = if mixed_is_f16 { peak(&["f16", "f32"]) } else { peak(&["bf16", "f32"]) };
        DeviceModel {
            flops: [half, peak(&["tf32", "f32"])],
            f16_flops: peak(&["f16", "f32"]),
            bytes_per_s: g.memory_gb_per_s * 1e9,
            memory_share: 0.85,
            on_chip_bytes_per_s: f64::INFINITY,
            memory: g.memory_gb * 1e9 * 0.95,
            caches: Vec::new(),
            blocks: 0.0,
            start: [4e-6, 4e-6],
            start_near: 4e-6,
            tile: None,
            product_share: 0.7,
            head_bytes: 0.0,
            result_seconds: 0.0,
            vector_ops: peak(&["f32"]),
        }
    }

    /// Returns the performance model of a CPU from its measured peak rates.
    pub fn cpu(cpu: &CpuCeilings) -> DeviceModel {
        DeviceModel {
            flops: [cpu.bf16_flops, cpu.flops],
            // Stored in 16 bits, multiplied in 32.
            f16_flops: cpu.flops,
            bytes_per_s: cpu.tiers.last().map_or(f64::INFINITY, |t| t.1),
            memory_share: 0.9,
            on_chip_bytes_per_s: f64::INFINITY,
            memory: cpu.memory,
            caches: cpu.tiers.clone(),
            blocks: cpu.threads as f64,
            start: [5e-6, 2e-6],
            start_near: 5e-6,
            tile: None,
            product_share: 0.7,
            head_bytes: 0.0,
            result_seconds: 0.0,
            vector_ops: cpu.flops / 2.0,
        }
    }

    /// Bandwidth in bytes per second for arrays in a working set of `bytes`.
    pub(crate) fn rate(&self, bytes: f64) -> f64 {
        let nearest = self.caches.iter().find(|t| bytes <= t.0).or(self.caches.last());
        nearest.map_or(self.bytes_per_s, |t| t.1) * self.memory_share
    }

    /// Peak operations per second of the device for matrix factors of this type.
    pub fn peak(&self, dtype: DType) -> f64 {
        match dtype {
            DType::F16 => self.f16_flops,
            _ => self.flops[usize::from(dtype.size() >= 4)],
        }
    }

    /// Whether the device runs a kernel: layout changes are needed only for matrix units.
    pub(crate) fn runs(&self, kernel: &KernelWork) -> bool {
        self.tile.is_some() || !kernel.reorders
    }

    /// Bytes of an array between kernels.
    pub(crate) fn array_bytes(&self, a: &MemoryArray) -> f64 {
        // f32 factors that are multiplied as bf16 are stored as bf16 without loss.
        let narrow = a.factor && self.tile.is_some() && a.ty.dtype == DType::F32;
        if narrow { self.bytes(&TensorType::new(DType::BF16, a.ty.shape.clone())) } else { self.bytes(&a.ty) }
    }

    /// Bytes of an array in the device's memory. TPUs store tiles of 8 × 128 32-bit words, in the layout with the least
    /// padding.
    pub fn bytes(&self, ty: &TensorType) -> f64 {
        if self.tile.is_none() { ty.bytes() as f64 } else { tiled_bytes(ty) }
    }
}

/// Bytes in tiles: one of the two minor dimensions is padded to 128, the other to the next power of two up to 8, packed
/// two (or four) to a word. Vectors occupy whole rows of 128.
fn tiled_bytes(ty: &TensorType) -> f64 {
    let pack = (4 / ty.dtype.size().max(1)).max(1);
    let word = ty.dtype.size().max(1) as f64;
    let dims: Vec<usize> = ty.shape.iter().copied().filter(|&d| d != 1).collect();
    let all: f64 = dims.iter().map(|&d| d as f64).product();
    if dims.len() < 2 {
        return padded(all, 128.0) * word;
    }
    let rows = |d: usize| padded(d as f64, (8.min(d.next_power_of_two()) * pack) as f64) / d as f64;
    let lanes = |d: usize| padded(d as f64, 128.0) / d as f64;
    let mut least = f64::INFINITY;
    for (i, &lane) in dims.iter().enumerate() {
        for (j, &row) in dims.iter().enumerate() {
            if i != j {
                least = least.min(lanes(lane) * rows(row));
            }
        }
    }
    all * least * word
}

/// Rounds `x` up to a multiple of `to`.
pub(crate) fn padded(x: f64, to: f64) -> f64 {
    (x / to).ceil() * to
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::DType::{BF16, F32};

    #[test]
    fn arrays_take_whole_tiles_in_the_layout_that_wastes_least() {
        let bytes = |dtype, shape: &[usize]| tiled_bytes(&TensorType::new(dtype, shape));
        assert_eq!(bytes(F32, &[8, 128]), 4096.0);
        assert_eq!(bytes(F32, &[9, 128]), 8192.0);
        // libtpu 0.0.51 reports 4,194,304 bytes for this one: 10 columns are rows of the other order, 16 of them.
        assert_eq!(bytes(F32, &[65536, 10]), 4_194_304.0);
        assert_eq!(bytes(BF16, &[4096, 4096]), 33_554_432.0);
        assert_eq!(bytes(F32, &[1]), 512.0);
    }
}
