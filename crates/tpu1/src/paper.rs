//! Published figures of TPU v1 (Jouppi et al., ISCA 2017): applications, platforms and die area.
//!
//! Source: "In-Datacenter Performance Analysis of a Tensor Processing Unit".

/// An application of Tables 1, 3 and 6 of the TPU v1 paper (Jouppi et al. 2017).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaperApplication {
    /// Name in the paper.
    pub name: &'static str,
    /// Batch size.
    pub batch: usize,
    /// Number of weights, in 10⁶.
    pub weights: f64,
    /// Table 3, in percent: rows 1 to 8 are array active, useful and unused multipliers, weight stall, weight shift,
    /// non-matrix, RAW stalls, input stalls.
    pub rows: [f64; 8],
    /// Row 9: 10¹² operations per second, measured in production rather than by the counters.
    pub tops: f64,
    /// Multiply-adds per weight byte.
    pub intensity: f64,
    /// Weight in the weighted means. The paper does not publish it; this value reproduces the published means.
    pub weight: f64,
    /// Speedup of a K80 die and of a TPU die over a Haswell die, including the host.
    pub speed: [f64; 2],
    /// MiB of unified buffer used, with the improved allocator of Table 8.
    pub buffer_mib: f64,
}

const fn application(
    name: &'static str,
    [batch, weights, intensity]: [usize; 3],
    rows: [f64; 8],
    [tops, weight, gpu, tpu, buffer_mib]: [f64; 5],
) -> PaperApplication {
    PaperApplication {
        name,
        batch,
        weights: weights as f64,
        rows,
        tops,
        intensity: intensity as f64,
        weight,
        speed: [gpu, tpu],
        buffer_mib,
    }
}

/// The six applications of the TPU v1 paper (Jouppi et al. 2017).
pub const APPLICATIONS: [PaperApplication; 6] = [
    application(
        "MLP0",
        [200, 20, 200],
        [12.7, 12.5, 0.3, 53.9, 15.9, 17.5, 3.3, 6.1],
        [12.3, 0.578, 2.5, 41.0, 11.0],
    ),
    application(
        "MLP1",
        [168, 5, 168],
        [10.6, 9.4, 1.2, 44.2, 13.4, 31.9, 8.4, 8.8],
        [9.7, 0.032, 0.3, 18.5, 2.3],
    ),
    application(
        "LSTM0",
        [64, 52, 64],
        [8.2, 8.2, 0.0, 58.1, 15.8, 17.9, 14.6, 5.1],
        [3.7, 0.145, 0.4, 3.5, 4.8],
    ),
    application(
        "LSTM1",
        [96, 34, 96],
        [10.5, 6.3, 4.2, 62.1, 17.1, 10.3, 10.6, 2.4],
        [2.8, 0.145, 1.2, 1.2, 4.5],
    ),
    application(
        "CNN0",
        [8, 8, 2888],
        [78.2, 78.2, 0.0, 0.0, 0.0, 21.8, 3.5, 3.4],
        [86.0, 0.025, 1.6, 40.3, 1.5],
    ),
    application(
        "CNN1",
        [32, 100, 1750],
        [46.2, 22.5, 23.7, 28.1, 7.0, 18.7, 22.8, 0.6],
        [14.1, 0.025, 2.7, 71.0, 13.9],
    ),
];

/// Indices of the rows of the TPU v1 paper's Table 3 that add up to all cycles: rows 1, 4, 5, 6.
pub const CYCLE_ROWS: [usize; 4] = [0, 3, 4, 5];

/// Figure 11 of the TPU v1 paper, read off the plot (± 0.015): weighted mean speedup if memory, clock or matrix are
/// scaled by 0.25, 0.5, 2 and 4. With `+` the accumulators are scaled too: as the clock, or as the matrix's area.
pub const FIGURE_11: [(&str, [f64; 4]); 5] = [
    ("memory", [0.275, 0.527, 1.815, 3.16]),
    ("clock", [0.955, 0.977, 1.014, 1.014]),
    ("matrix", [0.655, 1.017, 0.875, 0.745]),
    ("clock+", [0.955, 0.977, 1.035, 1.05]),
    ("matrix+", [0.655, 1.017, 0.885, 0.75]),
];

/// Speedup of TPU′ over TPU v1 without the host, geometric and weighted mean: with GDDR5 memory, and with a clock of
/// 1,050 MHz too.
pub const TPU_PRIME: [(&str, [f64; 2]); 2] =
    [("TPU′: memory", [2.6, 3.9]), ("TPU′: memory and clock × 1.5", [2.9, 3.9])];

/// Scale factors of Figure 11 of the TPU v1 paper.
pub const SCALES: [f64; 4] = [0.25, 0.5, 2.0, 4.0];

/// A chip of Table 2 of the TPU v1 paper, per die.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaperPlatform {
    /// Name of the chip.
    pub name: &'static str,
    /// Die area in mm²; for the TPU an upper bound.
    pub die: &'static str,
    /// Clock in MHz.
    pub mhz: u32,
    /// Watts: thermal design, idle, busy.
    pub watts: [u32; 3],
    /// Peak rate in 10¹² operations per second, and its element type.
    pub peak: (f64, &'static str),
    /// Memory bandwidth in 10⁹ bytes per second.
    pub bandwidth: u32,
    /// On-chip memory in MiB.
    pub on_chip: u32,
    /// Dies per server, and the server's thermal design power in watts.
    pub server: [u32; 2],
    /// Roofline ridge point: multiply-adds per byte above which memory is not the limit.
    pub ridge: u32,
    /// Speedup over Haswell: geometric and weighted mean (Table 6).
    pub speed: [f64; 2],
    /// Performance per watt of whole servers, relative to Haswell (Figure 9): geometric and weighted mean.
    pub total_per_watt: [f64; 2],
    /// Incremental performance per watt, without the host server.
    pub incremental_per_watt: Option<[f64; 2]>,
}

/// Chips of Table 2 of the TPU v1 paper: Haswell, K80 and TPU v1.
pub const PLATFORMS: [PaperPlatform; 3] = [
    PaperPlatform {
        name: "Haswell E5-2699 v3",
        die: "662",
        mhz: 2300,
        watts: [145, 41, 145],
        peak: (2.6, "int8"),
        bandwidth: 51,
        on_chip: 51,
        server: [2, 504],
        ridge: 13,
        speed: [1.0, 1.0],
        total_per_watt: [1.0, 1.0],
        incremental_per_watt: None,
    },
    PaperPlatform {
        name: "NVIDIA K80 (a die of two)",
        die: "561",
        mhz: 560,
        watts: [150, 25, 98],
        peak: (2.8, "f32"),
        bandwidth: 160,
        on_chip: 8,
        server: [8, 1838],
        ridge: 9,
        speed: [1.1, 1.9],
        total_per_watt: [1.2, 2.1],
        incremental_per_watt: Some([1.7, 2.9]),
    },
    PaperPlatform {
        name: "TPU (2015)",
        die: "< 331",
        mhz: 700,
        watts: [75, 28, 40],
        peak: (92.0, "int8"),
        bandwidth: 34,
        on_chip: 28,
        server: [4, 861],
        ridge: 1350,
        speed: [14.5, 29.2],
        total_per_watt: [17.0, 34.0],
        incremental_per_watt: Some([41.0, 83.0]),
    },
];

/// Share of each unit in TPU v1's die area, in percent (the paper's Figure 2).
pub const DIE: [(&str, u32); 10] = [
    ("unified buffer", 29),
    ("matrix multiply unit", 24),
    ("accumulators", 6),
    ("activation pipeline", 6),
    ("DRAM ports", 6),
    ("PCIe", 3),
    ("host interface", 2),
    ("control", 2),
    ("misc I/O", 1),
    ("the rest", 21),
];

/// Facts about TPU v1 that are not published, with the simulator's choice.
pub const UNKNOWN: [&str; 9] = [
    "instruction bits, number and order of the two synchronizations, meaning of the repeat field",
    "throughput and latency of activation, normalization and pooling (here: 256 values per cycle)",
    "where a bias is added, and how sums are rounded to int8 (here: half away from zero, as in TFLite's reference kernels)",
    "behavior of an accumulator that overflows (here: it wraps)",
    "shapes of the six applications, the bytes of their input, and which LSTM passes were 8 × 16 bits (here: all)",
    "what the counter of read-after-write stalls includes (here: idle cycles from two passes before a layer's end on)",
    "idle cycles between passes of a larger array (here: proportional to its rows)",
    "the achieved bandwidth of the weight memory: 28 to 34 GB/s fit almost equally (here: Figure 1's 30 GiB/s)",
    "whether cycles that wait for both input and weights count as stall or as non-matrix (here: non-matrix)",
];

// Names of the previous version.
systole_base::renamed! { Application => PaperApplication, Platform => PaperPlatform }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_consistent_with_themselves() {
        for a in &APPLICATIONS {
            let cycles: f64 = CYCLE_ROWS.iter().map(|&r| a.rows[r]).sum();
            assert!((cycles - 100.0).abs() < 0.11, "{}: {cycles}", a.name);
            assert!((a.rows[1] + a.rows[2] - a.rows[0]).abs() < 0.11, "{}", a.name);
        }
        // The means of Table 6 follow from its columns and the weights assumed here.
        for (die, [geometric, weighted]) in [(0, [1.1, 1.9]), (1, [14.5, 29.2])] {
            let logs: f64 = APPLICATIONS.iter().map(|a| a.speed[die].ln()).sum();
            assert!(((logs / 6.0).exp() - geometric).abs() < 0.06);
            let parts: f64 = APPLICATIONS.iter().map(|a| a.weight).sum();
            let mean: f64 = APPLICATIONS.iter().map(|a| a.weight * a.speed[die]).sum();
            assert!((mean / parts - weighted).abs() < 0.1, "{}", mean / parts);
        }
        assert_eq!(DIE.iter().map(|d| d.1).sum::<u32>(), 100);
        // Total performance per watt is Table 6's speedup times dies, divided by the server's watts.
        let [cpu, gpu, tpu] = PLATFORMS;
        for p in [gpu, tpu] {
            let watts = |p: PaperPlatform| f64::from(p.server[1]) / f64::from(p.server[0]);
            let ratio = p.speed[0] * watts(cpu) / watts(p);
            assert!((ratio / p.total_per_watt[0] - 1.0).abs() < 0.12, "{}: {ratio}", p.name);
        }
    }
}
