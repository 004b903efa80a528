//! Performance report of a program on TPU v1: cycle breakdown (Table 3 of the TPU v1 paper), roofline, what-if
//! speedups.
//!
//! Available as text and as JSON.

use crate::chip::Tpu1Chip;
use crate::instruction::BYTES;
use crate::paper::{PaperApplication, UNKNOWN};
use crate::program::ChipProgram;
use crate::sensitivity::{CALIBRATED_ON, predicted, roof, what_if};
use crate::timing::BatchTiming;
use serde_json::{Value, json};
use systole_base::Result;

/// Performance report of a program on TPU v1.
pub struct ChipReport {
    /// Hardware parameters.
    pub chip: Tpu1Chip,
    /// Program that was timed.
    pub program: ChipProgram,
    /// Timing of the program.
    pub timing: BatchTiming,
    /// The paper's measurements, if it is one of the paper's applications at the paper's batch size.
    pub paper: Option<&'static PaperApplication>,
    /// Assumptions about the model.
    pub assumed: Option<String>,
    /// Additional remarks.
    pub notes: Vec<String>,
    /// Speedup on other chips; `None` if the program does not fit.
    pub what_if: Vec<(String, Option<f64>)>,
}

impl ChipReport {
    /// Creates a performance report: times the program that `make` generates for the chip and for its what-if variants.
    ///
    /// # Errors
    /// If the program does not fit on the chip.
    pub fn new(chip: &Tpu1Chip, make: &dyn Fn(&Tpu1Chip) -> Result<ChipProgram>) -> Result<ChipReport> {
        let program = make(chip)?;
        let timing = program.timing(chip);
        let what_if = what_if(chip, make)?;
        Ok(ChipReport {
            chip: chip.clone(),
            program,
            timing,
            paper: None,
            assumed: None,
            notes: Vec::new(),
            what_if,
        })
    }

    /// Returns the achieved rate in 10¹² operations per second, counting multiply-adds with weights of the model as
    /// two.
    pub fn tops(&self) -> f64 {
        2.0 * self.program.multiplications()[0] / self.timing.seconds(&self.chip) / 1e12
    }

    /// Returns the throughput in samples per second, without work on the host.
    pub fn samples_per_second(&self) -> f64 {
        self.program.batch as f64 / self.timing.seconds(&self.chip)
    }

    /// Returns the program's arithmetic intensity: multiply-adds per weight byte read.
    pub fn intensity(&self) -> f64 {
        self.program.multiplications()[0] / (self.program.tiles() * self.chip.tile_bytes()).max(1) as f64
    }

    /// Returns the fraction of active multiplier cycles that use weights of the model.
    fn fill(&self) -> f64 {
        let [useful, possible] = self.program.multiplications();
        if possible > 0.0 { useful / possible } else { 0.0 }
    }

    /// Returns rows 1 to 8 of the TPU v1 paper's Table 3 for the program, as fractions of all cycles.
    pub fn rows(&self) -> [f64; 8] {
        let [active, stall, shift, non_matrix] = self.timing.shares();
        let part = |cycles: f64| cycles / self.timing.cycles.max(1.0);
        let useful = active * self.fill();
        let (raw, input) = (part(self.timing.raw_counter), part(self.timing.input));
        [active, useful, active - useful, stall, shift, non_matrix, raw, input]
    }

    /// Formats the performance report as text.
    pub fn text(&self) -> String {
        let parts =
            [self.head(), self.table(), self.figures(), self.roofline(), self.others(), self.unknown()];
        parts.join("\n\n")
    }

    fn head(&self) -> String {
        let p = &self.program;
        let mut lines = vec![format!(
            "{} on the first TPU, simulated: a batch of {}, {} instructions ({:.1} KiB), {} tiles of {} × {} weights",
            p.name,
            p.batch,
            p.instructions.len(),
            (p.instructions.len() * BYTES) as f64 / 1024.0,
            p.tiles(),
            self.chip.matrix,
            self.chip.matrix
        )];
        lines.extend(self.assumed.iter().map(|a| format!("  shapes reconstructed: {a}")));
        lines.extend(self.notes.iter().map(|n| format!("  {n}")));
        lines.join("\n")
    }

    fn table(&self) -> String {
        const NAMES: [&str; 8] = [
            "array active",
            "  useful multipliers",
            "  unused multipliers",
            "weight stall",
            "weight shift",
            "non-matrix",
            "  waiting for results (RAW)",
            "  waiting for input",
        ];
        let mut lines = vec![format!("{:<30}{:>9}", "share of cycles", "here")];
        if self.paper.is_some() {
            lines[0] += &format!("{:>11}", "Table 3");
        }
        for (n, (name, share)) in NAMES.iter().zip(self.rows()).enumerate() {
            let paper = self.paper.map_or(String::new(), |p| format!("{:>9.1} %", p.rows[n]));
            lines.push(format!("{name:<30}{:>7.1} %{paper}", 100.0 * share));
        }
        lines.join("\n")
    }

    fn figures(&self) -> String {
        let t = &self.timing;
        let mib = |rows: usize| (rows * self.chip.matrix) as f64 / f64::from(1 << 20);
        let paper = |of: fn(&PaperApplication) -> f64| {
            self.paper.map_or(String::new(), |p| format!(" (paper: {})", of(p)))
        };
        [
            format!("cycles            {:.0}, {:.0} per weight tile", t.cycles, t.cycles_per_tile()),
            format!(
                "time              {:.3} ms per batch at {} MHz, {:.0} samples per second, without work on the host",
                1e3 * t.seconds(&self.chip),
                self.chip.clock_mhz,
                self.samples_per_second()
            ),
            format!("TOPS              {:.1} of {:.1}{}", self.tops(), self.chip.peak_tops(), paper(|p| p.tops)),
            format!(
                "unified buffer    {:.1} MiB of {:.0}{}",
                mib(self.program.rows),
                self.chip.unified_buffer as f64 / f64::from(1 << 20),
                paper(|p| p.buffer_mib)
            ),
        ]
        .join("\n")
    }

    /// Draws the roofline on logarithmic axes: dots for the roof, a circle for the program.
    fn roofline(&self) -> String {
        const WIDTH: usize = 56;
        const HEIGHT: usize = 9;
        let (x, roof_here) = (self.intensity(), roof(&self.chip, self.intensity()));
        let mut grid = vec![vec![' '; WIDTH]; HEIGHT];
        // From 1 to 10,000 multiply-adds per byte, and from 0.1 % to 100 % of the peak.
        let intensity = |column: usize| 10f64.powf(4.0 * column as f64 / (WIDTH - 1) as f64);
        let line = |tops: f64| {
            let down = -(tops / self.chip.peak_tops()).log10() / 3.0 * (HEIGHT - 1) as f64;
            down.round().clamp(0.0, (HEIGHT - 1) as f64) as usize
        };
        for column in 0..WIDTH {
            grid[line(roof(&self.chip, intensity(column)))][column] = '·';
        }
        let column = (x.max(1.0).log10() / 4.0 * (WIDTH - 1) as f64).round().min((WIDTH - 1) as f64) as usize;
        grid[line(self.tops())][column] = '●';
        let limit = if x < self.chip.ridge() { "memory" } else { "the multipliers" };
        let mut lines = vec![format!(
            "roofline          {x:.0} multiply-adds per weight byte: {limit} would allow {roof_here:.1} TOPS, and {:.0} % \
             of that is reached\n                  (the ridge point is at {:.0})",
            100.0 * self.tops() / roof_here.max(f64::MIN_POSITIVE),
            self.chip.ridge()
        )];
        for (n, row) in grid.iter().enumerate() {
            let tops = self.chip.peak_tops() * 10f64.powf(-3.0 * n as f64 / (HEIGHT - 1) as f64);
            let row: String = row.iter().collect();
            lines.push(format!("{tops:>8.1} │{}", row.trim_end()));
        }
        lines.push(format!("    TOPS └{}", "─".repeat(WIDTH)));
        lines.push(format!(
            "          1{:>13}{:>14}{:>14}{:>14}  multiply-adds per byte",
            10, 100, "1,000", "10,000"
        ));
        lines.join("\n")
    }

    fn others(&self) -> String {
        let mut lines = vec!["what if           (speedup)".to_string()];
        for (name, gain) in &self.what_if {
            let gain = gain.map_or("does not fit".into(), |g| format!("{g:.2} ×"));
            lines.push(format!("  {name:<26}{gain}"));
        }
        lines.join("\n")
    }

    fn unknown(&self) -> String {
        let mut lines = vec![format!(
            "calibrated on {} only: cycles per synchronization ({}), time for start and end of a batch ({:.0} µs), cycles between passes ({}); \
             {} are predictions.\nNot published, chosen here:",
            CALIBRATED_ON.join(" and "),
            self.chip.sync,
            self.chip.fixed_us,
            self.chip.bubble,
            predicted().join(", "),
        )];
        lines.extend(UNKNOWN.iter().map(|u| format!("  - {u}")));
        lines.join("\n")
    }

    /// Formats the performance report as JSON; shares are fractions of all cycles.
    pub fn json(&self) -> Value {
        const NAMES: [&str; 8] = [
            "array_active",
            "useful_multipliers",
            "unused_multipliers",
            "weight_stall",
            "weight_shift",
            "non_matrix",
            "raw_stall",
            "input_stall",
        ];
        let shares: serde_json::Map<String, Value> =
            NAMES.iter().zip(self.rows()).map(|(n, s)| (n.to_string(), json!(s))).collect();
        let paper = self.paper.map(|p| {
            let rows: serde_json::Map<String, Value> =
                NAMES.iter().zip(p.rows).map(|(n, r)| (n.to_string(), json!(r / 100.0))).collect();
            json!({"application": p.name, "shares": rows, "tops": p.tops, "unified_buffer_mib": p.buffer_mib})
        });
        let what_if: serde_json::Map<String, Value> =
            self.what_if.iter().map(|(n, g)| (n.clone(), json!(g))).collect();
        let (c, p) = (&self.chip, &self.program);
        json!({
            "model": p.name, "batch": p.batch, "cycles": self.timing.cycles,
            "cycles_per_tile": self.timing.cycles_per_tile(), "tiles": p.tiles(), "shares": shares,
            "tops": self.tops(), "seconds": self.timing.seconds(c), "samples_per_second": self.samples_per_second(),
            "macs_per_weight_byte": self.intensity(), "roof_tops": roof(c, self.intensity()),
            "instructions": p.instructions.len(), "instruction_bytes": p.instructions.len() * BYTES,
            "unified_buffer_bytes": p.rows * c.matrix, "what_if": what_if, "paper": paper,
            "reconstructed": self.assumed, "notes": self.notes,
            "layers": p.parts.iter().map(|l| json!({"name": l.name, "tiles": l.tiles, "macs": l.useful})).collect::<Value>(),
            "chip": {
                "matrix": c.matrix, "accumulators": c.accumulators, "clock_mhz": c.clock_mhz,
                "memory_bandwidth_gb_per_s": c.bandwidth_gb, "unified_buffer_bytes": c.unified_buffer,
                "weight_fifo_tiles": c.fifo, "host_gib_per_s": c.host_gib, "peak_tops": c.peak_tops(),
            },
            "calibration": {
                "on": CALIBRATED_ON, "sync_cycles": c.sync, "fixed_us": c.fixed_us, "bubble_cycles": c.bubble,
                "predicted": predicted(),
            },
            "unknown": UNKNOWN,
        })
    }
}
