//! Hardware parameters of TPU v1: sizes, clock, bandwidths, and three timing constants that are not published.

use systole_base::{Error, ErrorKind, Result};

/// Bytes per MiB and GiB.
const MIB: usize = 1 << 20;
const GIB: f64 = 1_073_741_824.0;

/// Hardware parameters of a chip. [`Tpu1Chip::v1`] is the TPU of 2015; change fields for what-if studies.
///
/// Sizes and published rates: Jouppi et al., "In-Datacenter Performance Analysis of a Tensor Processing Unit", ISCA
/// 2017.
#[derive(Clone, Debug, PartialEq)]
pub struct Tpu1Chip {
    /// Rows and columns of the systolic array; also the values per row of the unified buffer.
    pub matrix: usize,
    /// Rows of accumulators; a pass over the array writes one per input row.
    pub accumulators: usize,
    /// Clock in MHz.
    pub clock_mhz: f64,
    /// Bandwidth of the weight memory, in 10⁹ bytes per second.
    pub bandwidth_gb: f64,
    /// Bytes of the unified buffer, which holds activations.
    pub unified_buffer: usize,
    /// Bytes of the off-chip weight memory.
    pub weight_memory: usize,
    /// Capacity in tiles of the FIFO between weight memory and array.
    pub fifo: usize,
    /// Bandwidth between host and unified buffer, in GiB per second.
    pub host_gib: f64,
    /// Cycles from the last sum of a layer that leaves the array to the next layer's first multiplication. Calibrated.
    pub sync: f64,
    /// Fixed microseconds per batch: start, instructions, results and interrupt. Calibrated.
    pub fixed_us: f64,
    /// Idle cycles between two passes over an array of 256 × 256; proportional to its rows. Calibrated.
    pub bubble: f64,
}

impl Tpu1Chip {
    /// Weight memory bandwidth of the paper's TPU′ over TPU v1: GDDR5, whose ridge point is 250.
    pub const PRIME_MEMORY: f64 = 183.5 / 34.0;

    /// Returns TPU v1. The bandwidth is the 30 GiB/s of the TPU v1 paper's Figure 1. `sync`, `fixed_us` and `bubble`
    /// are fitted to Table 3's columns for MLP0, LSTM0 and CNN0 ([`calibrate`](crate::calibrate)).
    pub fn v1() -> Tpu1Chip {
        Tpu1Chip {
            matrix: 256,
            accumulators: 4096,
            clock_mhz: 700.0,
            bandwidth_gb: 32.2,
            unified_buffer: 24 * MIB,
            weight_memory: 8 << 30,
            fifo: 4,
            host_gib: 10.0,
            sync: 700.0,
            fixed_us: 20_000.0 / 700.0,
            bubble: 100.0,
        }
    }

    /// Returns the TPU v1 paper's TPU′: v1 with GDDR5 as weight memory (5.4 times the bandwidth).
    pub fn prime() -> Tpu1Chip {
        let v1 = Tpu1Chip::v1();
        Tpu1Chip { bandwidth_gb: v1.bandwidth_gb * Tpu1Chip::PRIME_MEMORY, ..v1 }
    }

    /// Checks that a chip with these parameters can be simulated.
    ///
    /// # Errors
    /// If a size is 0 or larger than the instructions can address, or if a rate is not a positive number.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String, option: &str, hint: &str| {
            Err(Error::new(ErrorKind::Config, what).at(option).hint(hint))
        };
        if !(1..=4096).contains(&self.matrix) {
            return wrong(
                format!("cannot simulate an array of {0} × {0} multipliers", self.matrix),
                "--matrix",
                "pass a size from 1 to 4096; TPU v1 has --matrix 256",
            );
        }
        if !(2..=65_535).contains(&self.accumulators) {
            let hint = "pass a number from 2 to 65535 (16-bit addresses); TPU v1 has --accumulators 4096";
            return wrong(
                format!("cannot simulate {} rows of accumulators", self.accumulators),
                "--accumulators",
                hint,
            );
        }
        for (option, value, usual) in [
            ("--clock", self.clock_mhz, "700"),
            ("--memory-bandwidth", self.bandwidth_gb, "32.2"),
            ("host_gib", self.host_gib, "10"),
        ] {
            if !(value > 0.0 && value.is_finite()) {
                return wrong(
                    format!("expected a positive rate, got {value}"),
                    option,
                    &format!("TPU v1 has {option} {usual}"),
                );
            }
        }
        Ok(())
    }

    /// Returns the size of a weight tile in bytes.
    pub fn tile_bytes(&self) -> usize {
        self.matrix * self.matrix
    }

    /// Returns the cycles to fetch a weight tile from weight memory.
    pub fn fetch_cycles(&self) -> f64 {
        self.tile_bytes() as f64 / (self.bandwidth_gb * 1e9) * self.clock_mhz * 1e6
    }

    /// Returns the cycles from a layer's last input row to the next layer's first multiplication. The sums of a row
    /// leave the array after twice its number of rows.
    pub fn sync_cycles(&self) -> f64 {
        2.0 * self.matrix as f64 + self.sync
    }

    /// Returns the idle cycles between two passes over the array.
    pub fn bubble_cycles(&self) -> f64 {
        self.bubble * self.matrix as f64 / 256.0
    }

    /// Returns the cycles to receive `bytes` bytes from the host.
    pub(crate) fn input_cycles(&self, bytes: f64) -> f64 {
        bytes / (self.host_gib * GIB) * self.clock_mhz * 1e6
    }

    /// Returns the number of rows of the unified buffer, limited by its 24-bit addresses.
    pub fn buffer_rows(&self) -> usize {
        (self.unified_buffer / self.matrix).min(1 << 24)
    }

    /// Returns the chip's peak rate in 10¹² operations per second (a multiply-add counts as two).
    pub fn peak_tops(&self) -> f64 {
        2.0 * self.tile_bytes() as f64 * self.clock_mhz * 1e6 / 1e12
    }

    /// Returns the roofline's ridge point: multiply-adds per weight byte above which compute is the limit.
    pub fn ridge(&self) -> f64 {
        self.peak_tops() * 1e3 / (2.0 * self.bandwidth_gb)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_the_papers() {
        let v1 = Tpu1Chip::v1();
        assert!((v1.peak_tops() - 91.75).abs() < 0.01 && (v1.fetch_cycles() - 1424.7).abs() < 0.1);
        assert_eq!(v1.buffer_rows(), 96 * 1024);
        // The paper's ridge point of 1350 is at 34 GB/s.
        assert!((Tpu1Chip { bandwidth_gb: 34.0, ..v1 }.ridge() - 1349.0).abs() < 1.0);
        assert!((Tpu1Chip { bandwidth_gb: 183.5, ..Tpu1Chip::v1() }.ridge() - 250.0).abs() < 0.1);
    }

    #[test]
    fn impossible_chips_are_refused() {
        let told = |chip: Tpu1Chip| chip.check().unwrap_err().to_string();
        assert!(told(Tpu1Chip { matrix: 0, ..Tpu1Chip::v1() }).contains("--matrix 256"));
        assert!(told(Tpu1Chip { accumulators: 1, ..Tpu1Chip::v1() }).contains("--accumulators 4096"));
        assert!(told(Tpu1Chip { clock_mhz: f64::NAN, ..Tpu1Chip::v1() }).contains("--clock 700"));
        assert!(told(Tpu1Chip { bandwidth_gb: -1.0, ..Tpu1Chip::v1() }).contains("--memory-bandwidth 32.2"));
        assert!(Tpu1Chip::v1().check().is_ok() && Tpu1Chip::prime().check().is_ok());
    }
}
