//! Compares the simulator with the TPU v1 paper's Table 3, Table 8, Figure 11 and TPU′: each value, the published one and
//! the error.
//!
//! Three timing constants are fitted to half of Table 3 (MLP0, LSTM0, CNN0). All other values are predictions.

use crate::chip::Tpu1Chip;
use crate::paper::{CYCLE_ROWS, FIGURE_11, SCALES, TPU_PRIME};
use crate::preset::Preset;
use crate::report::ChipReport;
use crate::sensitivity::{CALIBRATED_ON, ScaledParameter, figure_11, predicted, speedup};
use serde_json::{Value, json};
use systole_base::Result;

/// Description of the simulator in words.
pub const DESCRIPTION: &str = "\
The simulator models instructions, not wires. Weight memory, tile FIFO, weight shift, array, activation unit and host
transfer each take a number of cycles per instruction, by the paper's sizes and rates, and wait for each other. There is
no DRAM timing, no bus arbitration, no instruction fetch. Layer shapes are reconstructed. Three constants are fitted, the
same for all applications, to rows 1, 4, 5 and 6 of Table 3 for MLP0, LSTM0 and CNN0.";

/// Rows of the comparison with Table 3: name and number of the row.
const ROWS: [(&str, usize); 9] = [
    ("array active, %", 1),
    ("  useful multipliers", 2),
    ("  unused multipliers", 3),
    ("weight stall, %", 4),
    ("weight shift, %", 5),
    ("non-matrix, %", 6),
    ("waiting for results (RAW), %", 7),
    ("waiting for input, %", 8),
    ("TOPS", 9),
];

/// A simulated value and the published one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaperValue {
    /// Simulated value.
    pub here: f64,
    /// Published value.
    pub paper: f64,
}

impl PaperValue {
    /// Returns the simulated value minus the published one.
    pub fn error(self) -> f64 {
        self.here - self.paper
    }

    fn json(self) -> Value {
        json!({"here": self.here, "paper": self.paper, "error": self.error()})
    }
}

/// Table 3 and Table 8 of the TPU v1 paper for one application.
#[derive(Clone, Debug, PartialEq)]
pub struct ApplicationComparison {
    /// Name in the paper.
    pub name: &'static str,
    /// Rows 1 to 8 of Table 3 in percent of all cycles, and row 9 in 10¹² operations per second.
    pub rows: [PaperValue; 9],
    /// MiB of unified buffer.
    pub buffer_mib: PaperValue,
}

/// A speedup that the TPU v1 paper publishes.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeedupComparison {
    /// Name of the change, such as `memory × 4`.
    pub name: String,
    /// Speedup over TPU v1.
    pub speedup: PaperValue,
}

/// All published values of the TPU v1 paper that the simulator computes, with its errors.
#[derive(Clone, Debug, PartialEq)]
pub struct PaperComparison {
    /// Tables 3 and 8, by application.
    pub applications: Vec<ApplicationComparison>,
    /// Figure 11: weighted means.
    pub figure_11: Vec<SpeedupComparison>,
    /// TPU′: geometric and weighted means.
    pub prime: Vec<SpeedupComparison>,
}

impl PaperComparison {
    /// Simulates the six applications on the chip, and on all chips of Figure 11.
    ///
    /// # Errors
    /// If an application does not fit on the chip.
    ///
    /// ```
    /// use systole_tpu1::{PaperComparison, Tpu1Chip};
    /// let all = PaperComparison::new(&Tpu1Chip::v1())?;
    /// let [fitted, predicted] = all.errors();
    /// assert!(fitted < 0.5 && predicted < 4.0, "{fitted} {predicted}");
    /// # Ok::<(), systole_base::Error>(())
    /// ```
    pub fn new(chip: &Tpu1Chip) -> Result<PaperComparison> {
        let mut curves = Vec::new();
        for (scaled, (name, paper)) in ScaledParameter::ALL.into_iter().zip(FIGURE_11) {
            for ((by, here), paper) in SCALES.into_iter().zip(figure_11(chip, scaled)?).zip(paper) {
                let speedup = PaperValue { here, paper };
                curves.push(SpeedupComparison { name: format!("{name} × {by}"), speedup });
            }
        }
        let memory = Tpu1Chip { bandwidth_gb: chip.bandwidth_gb * Tpu1Chip::PRIME_MEMORY, ..chip.clone() };
        let both = ScaledParameter::Clock.of(&memory, 1.5);
        let mut prime = Vec::new();
        for (other, (name, paper)) in [memory, both].iter().zip(TPU_PRIME) {
            let here = speedup(chip, other)?;
            for ((mean, here), paper) in ["geometric", "weighted"].iter().zip(here).zip(paper) {
                let speedup = PaperValue { here, paper };
                prime.push(SpeedupComparison { name: format!("{name}, {mean} mean"), speedup });
            }
        }
        let applications = Preset::all().iter().map(|p| application(chip, p)).collect::<Result<_>>()?;
        Ok(PaperComparison { applications, figure_11: curves, prime })
    }

    /// Returns the root mean square errors of rows 1, 4, 5 and 6 in percentage points: of the applications that the
    /// constants are fitted to, and of the others.
    pub fn errors(&self) -> [f64; 2] {
        [true, false].map(|fitted| {
            let chosen = self.of(fitted);
            let errors = chosen.iter().flat_map(|a| CYCLE_ROWS.map(|r| a.rows[r].error()));
            (errors.map(|e| e * e).sum::<f64>() / (4 * chosen.len()).max(1) as f64).sqrt()
        })
    }

    fn of(&self, fitted: bool) -> Vec<&ApplicationComparison> {
        self.applications.iter().filter(|a| CALIBRATED_ON.contains(&a.name) == fitted).collect()
    }

    /// Formats the comparison as text.
    pub fn text(&self) -> String {
        let [fitted, others] = self.errors();
        let mut lines = vec![DESCRIPTION.to_string()];
        for (is_fitted, title) in [
            (true, format!("Table 3, fitted: root mean square error of rows 1, 4, 5, 6: {fitted:.1} points")),
            (
                false,
                format!("Table 3, predicted: root mean square error of rows 1, 4, 5, 6: {others:.1} points"),
            ),
        ] {
            lines.push(format!("\n{title}"));
            lines.extend(table_3(&self.of(is_fitted)));
        }
        lines.push("\nFigure 11, predicted: speedup, weighted mean of the six applications".into());
        lines.extend(speedups(&self.figure_11));
        lines.push("\nTPU′, predicted: speedup without the host".into());
        lines.extend(speedups(&self.prime));
        lines.push(
            "\nThe unified buffer here contains the input and output of one layer, for CNN1 of as many images as fit; the paper's\n\
             also contains what it does not specify. The largest errors of the shares: LSTM1, all of whose passes run at half\n\
             speed here. The largest of Figure 11: an array of 64 × 64, whose multipliers alone limit MLP0 to 5.7 of its 12.3\n\
             TOPS."
                .into(),
        );
        lines.join("\n")
    }

    /// Formats the comparison as JSON; shares are in percent.
    pub fn json(&self) -> Value {
        let [fitted, others] = self.errors();
        let applications: serde_json::Map<String, Value> = self
            .applications
            .iter()
            .map(|a| {
                let rows: serde_json::Map<String, Value> =
                    ROWS.iter().map(|(_, n)| (format!("row_{n}"), a.rows[n - 1].json())).collect();
                let fitted = CALIBRATED_ON.contains(&a.name);
                let value = json!({"fitted": fitted, "table_3": rows, "buffer_mib": a.buffer_mib.json()});
                (a.name.to_string(), value)
            })
            .collect();
        let speedups = |all: &[SpeedupComparison]| -> Value {
            all.iter().map(|s| (s.name.clone(), s.speedup.json())).collect::<serde_json::Map<_, _>>().into()
        };
        json!({
            "source": "Jouppi et al., ISCA 2017", "simulator": DESCRIPTION, "applications": applications,
            "figure_11": speedups(&self.figure_11), "tpu_prime": speedups(&self.prime),
            "fitted": CALIBRATED_ON, "predicted": predicted(),
            "rms_points": {"fitted": fitted, "predicted": others},
        })
    }
}

fn application(chip: &Tpu1Chip, preset: &Preset) -> Result<ApplicationComparison> {
    let report = ChipReport::new(chip, &|chip| preset.program(chip, None))?;
    let (shares, paper) = (report.rows(), preset.paper);
    let rows = std::array::from_fn(|n| match n {
        8 => PaperValue { here: report.tops(), paper: paper.tops },
        _ => PaperValue { here: 100.0 * shares[n], paper: paper.rows[n] },
    });
    let mib = (report.program.rows * chip.matrix) as f64 / f64::from(1 << 20);
    let buffer_mib = PaperValue { here: mib, paper: paper.buffer_mib };
    Ok(ApplicationComparison { name: paper.name, rows, buffer_mib })
}

fn table_3(applications: &[&ApplicationComparison]) -> Vec<String> {
    let heads = applications.iter().map(|a| format!("{:>7}{:>7}{:>7}", a.name, "paper", "error"));
    let mut lines = vec![format!("{:<28}{}", "", heads.collect::<String>())];
    let mut row = |name: &str, of: &dyn Fn(&ApplicationComparison) -> PaperValue| {
        let cells = applications.iter().map(|a| {
            let v = of(a);
            format!("{:>7.1}{:>7.1}{:>+7.1}", v.here, v.paper, v.error())
        });
        lines.push(format!("{name:<28}{}", cells.collect::<String>()));
    };
    for (name, n) in ROWS {
        row(name, &|a| a.rows[n - 1]);
    }
    row("unified buffer, MiB", &|a| a.buffer_mib);
    lines
}

fn speedups(all: &[SpeedupComparison]) -> Vec<String> {
    let mut lines = vec![format!("{:<44}{:>8}{:>8}{:>8}", "", "here", "paper", "error")];
    lines.extend(all.iter().map(|s| {
        let v = s.speedup;
        format!("{:<44}{:>8.3}{:>8.3}{:>+8.3}", s.name, v.here, v.paper, v.error())
    }));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half of Table 3 is fitted; the other half has at least as many values.
    #[test]
    fn every_value_has_its_error() {
        let all = PaperComparison::new(&Tpu1Chip::v1()).unwrap();
        assert_eq!((all.of(true).len(), all.of(false).len()), (3, 3));
        assert_eq!((all.figure_11.len(), all.prime.len()), (20, 4));
        let [fitted, others] = all.errors();
        assert!(fitted < others, "{fitted} {others}");
        // The counter of stalls for results, which nothing is fitted to.
        for a in &all.applications {
            let [raw, largest] = [a.rows[6].error().abs(), if a.name == "CNN1" { 9.0 } else { 3.0 }];
            assert!(raw <= largest, "{}: {raw}", a.name);
        }
        for s in &all.prime {
            assert!((s.speedup.here / s.speedup.paper - 1.0).abs() < 0.18, "{s:?}");
        }
        assert!(all.applications.iter().all(|a| a.buffer_mib.here <= 24.0));
    }

    #[test]
    fn text_and_json_have_the_same_values() {
        let all = PaperComparison::new(&Tpu1Chip::v1()).unwrap();
        let (text, json) = (all.text(), all.json());
        let active = &json["applications"]["CNN1"]["table_3"]["row_1"];
        assert_eq!(active["paper"], 46.2);
        assert!(text.contains(&format!("{:>7.1}{:>7.1}", active["here"].as_f64().unwrap(), 46.2)), "{text}");
        assert_eq!(json["figure_11"].as_object().unwrap().len(), 20);
        assert!(text.contains("models instructions, not wires"));
    }
}
