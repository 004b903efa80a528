//! [`Tpu1Chip`]: what the first TPU was made of, and the four numbers of its timing that nobody published.

use systole_base::{Error, ErrorKind, Result};

/// Bytes of a KiB, MiB and GiB.
const MIB: usize = 1 << 20;
const GIB: f64 = 1_073_741_824.0;

/// Sizes and rates of a chip. [`Tpu1Chip::v1`] is the one of 2015; other sizes answer "what if".
///
/// Sizes and published rates: Jouppi et al., "In-Datacenter Performance Analysis of a Tensor Processing Unit", ISCA 2017.
#[derive(Clone, Debug, PartialEq)]
pub struct Tpu1Chip {
    /// Rows and columns of the array of multipliers; values of one row of the unified buffer.
    pub matrix: usize,
    /// Rows of accumulators; a pass over the array writes one for each row of its input.
    pub accumulators: usize,
    /// Millions of cycles a second.
    pub clock_mhz: f64,
    /// 10⁹ bytes a second from the memory of weights.
    pub bandwidth_gb: f64,
    /// Bytes of the unified buffer, which holds activations.
    pub unified_buffer: usize,
    /// Bytes of the memory of weights, beside the chip.
    pub weight_memory: usize,
    /// Tiles of weights that wait between that memory and the array.
    pub fifo: usize,
    /// 2³⁰ bytes a second between host and unified buffer.
    pub host_gib: f64,
    /// Cycles from the last multiplication of a layer to the first of the next. Calibrated.
    pub sync: f64,
    /// Microseconds of a batch for its start, its instructions, its results and the interrupt. Calibrated.
    pub fixed_us: f64,
    /// Cycles between two passes over the array. Calibrated.
    pub bubble: f64,
}

impl Tpu1Chip {
    /// The first TPU. The bandwidth is the 30 GiB/s of the paper's Figure 1; `sync`, `fixed_us` and `bubble` are what fits
    /// Table 3's columns of MLP0 and CNN0 ([`calibrate`](crate::calibrate)).
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
            sync: 600.0,
            fixed_us: 28_000.0 / 700.0,
            bubble: 100.0,
        }
    }

    /// The paper's TPU′: the same chip with GDDR5 as its memory of weights (5.4 times the bandwidth).
    pub fn prime() -> Tpu1Chip {
        let v1 = Tpu1Chip::v1();
        Tpu1Chip { bandwidth_gb: v1.bandwidth_gb * 183.5 / 34.0, ..v1 }
    }

    /// # Errors
    /// Where a size is 0 or larger than the instructions can address, or a rate is no positive number.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String, option: &str, hint: &str| {
            Err(Error::new(ErrorKind::Config, what).at(option).hint(hint))
        };
        if !(1..=4096).contains(&self.matrix) {
            return wrong(
                format!("an array of {0} × {0} multipliers", self.matrix),
                "--matrix",
                "--matrix 256 is the first TPU's; 1 to 4096 can be simulated",
            );
        }
        if !(2..=65_535).contains(&self.accumulators) {
            let hint = "--accumulators 4096 is the first TPU's; 2 to 65535 have addresses of 16 bits";
            return wrong(format!("{} rows of accumulators", self.accumulators), "--accumulators", hint);
        }
        for (option, value, usual) in [
            ("--clock", self.clock_mhz, "700"),
            ("--memory-bandwidth", self.bandwidth_gb, "32.2"),
            ("host_gib", self.host_gib, "10"),
        ] {
            if !(value > 0.0 && value.is_finite()) {
                return wrong(
                    format!("{value} is no rate"),
                    option,
                    &format!("{option} {usual} is the first TPU's"),
                );
            }
        }
        Ok(())
    }

    /// Bytes of one tile of weights.
    pub fn tile_bytes(&self) -> usize {
        self.matrix * self.matrix
    }

    /// Cycles in which a tile comes from the memory of weights.
    pub fn fetch_cycles(&self) -> f64 {
        self.tile_bytes() as f64 / (self.bandwidth_gb * 1e9) * self.clock_mhz * 1e6
    }

    /// Cycles in which so many bytes come from the host.
    pub(crate) fn input_cycles(&self, bytes: f64) -> f64 {
        bytes / (self.host_gib * GIB) * self.clock_mhz * 1e6
    }

    /// Rows that the unified buffer holds, as far as addresses of three bytes go.
    pub fn buffer_rows(&self) -> usize {
        (self.unified_buffer / self.matrix).min(1 << 24)
    }

    /// 10¹² operations a second when every multiplier works: a multiplication and an addition each.
    pub fn peak_tops(&self) -> f64 {
        2.0 * self.tile_bytes() as f64 * self.clock_mhz * 1e6 / 1e12
    }

    /// Multiplications for each byte of weights from which on the array, not the memory, is the limit.
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
        // The paper's ridge of 1350 is at 34 GB/s.
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
