//! Chip overview for `systole chips`: all chips supported by plans, and historic chips, with prices and published
//! figures.

use crate::price::bill;
use crate::table::{ChipTables, Gpu, HistoricChip, Price, PrintedFigure, Tpu};
use crate::tpu_slice::TpuSlice;
use std::collections::BTreeMap;

/// A TPU or GPU chip with its published figures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChipFigures {
    /// Name, such as `v5e` or `h100`.
    pub name: String,
    /// Alternative names.
    pub aliases: Vec<String>,
    /// Product name.
    pub product: String,
    /// Year of introduction.
    pub year: Option<u32>,
    /// Peak rates in 10¹² operations per second, by element type.
    pub peaks: BTreeMap<String, f64>,
    /// Memory in 2³⁰ bytes.
    pub memory_gib: f64,
    /// Memory bandwidth in 10⁹ bytes per second, if the chip has external memory.
    pub memory_gb_per_s: Option<f64>,
    /// Electrical power, if published, and the kind of figure.
    pub watts: Option<(f64, String)>,
    /// Manufacturing process in nanometers, if published.
    pub process_nm: Option<f64>,
    /// Names of slices, smallest first; for GPUs, the names that `plan` accepts.
    pub slices: Vec<String>,
    /// Prices, the default region first.
    pub prices: Vec<Price>,
    /// Why plans do not support the chip.
    pub unplanned: Option<String>,
    /// Source of the figures.
    pub source: String,
    /// Figures printed in tutorials.
    pub printed: Vec<ComparedFigure>,
}

/// A figure printed in a tutorial, and the value from these tables.
#[derive(Clone, Debug, PartialEq)]
pub struct ComparedFigure {
    /// The printed figure.
    pub printed: PrintedFigure,
    /// The value from these tables, if they have it.
    pub here: Option<f64>,
}

const GIB: f64 = (1 << 30) as f64;

impl ChipFigures {
    /// Returns every chip of the tables: TPUs by generation, then GPUs by year.
    ///
    /// ```
    /// use systole_plan::{ChipFigures, ChipTables};
    /// let chips = ChipFigures::all(&ChipTables::built_in().unwrap());
    /// let names: Vec<&str> = chips.iter().map(|c| c.name.as_str()).collect();
    /// assert_eq!(names[..3], ["v1", "v2", "v3"]);
    /// assert!(["edgetpu", "k80", "v100"].iter().all(|n| names.contains(n)));
    /// ```
    pub fn all(tables: &ChipTables) -> Vec<ChipFigures> {
        let gpu = |c: &ChipFigures| usize::from(!c.product.contains("TPU"));
        let tpus = tables.tpus.iter().map(|t| ChipFigures::of_tpu(t, tables));
        let gpus = tables.gpus.iter().map(|g| ChipFigures::of_gpu(g, tables));
        let past = tables.history.iter().map(|p| ChipFigures::of_past(p, tables));
        let mut all: Vec<ChipFigures> = tpus.chain(gpus).chain(past).collect();
        all.sort_by_key(|c| (gpu(c), c.year.unwrap_or(u32::MAX)));
        all
    }

    fn of_tpu(t: &Tpu, tables: &ChipTables) -> ChipFigures {
        let slices = TpuSlice::all(tables).into_iter().filter(|s| s.generation == t.name);
        let chip = ChipFigures {
            name: t.name.clone(),
            aliases: t.aliases.clone(),
            product: t.product.clone().unwrap_or_else(|| format!("TPU {}", t.name)),
            year: t.year,
            peaks: t.peak_tflops.clone(),
            memory_gib: t.hbm_gib,
            memory_gb_per_s: Some(t.hbm_gb_per_s),
            watts: t.watts.map(|w| (w, t.watts_note.clone().unwrap_or_default())),
            process_nm: t.process_nm,
            slices: slices.map(|s| s.name).collect(),
            source: t.source.clone(),
            ..ChipFigures::default()
        };
        chip.priced(&t.printed, tables)
    }

    fn of_gpu(g: &Gpu, tables: &ChipTables) -> ChipFigures {
        let chip = ChipFigures {
            name: g.name.clone(),
            product: g.product.clone(),
            year: g.year,
            peaks: g.peak_tflops.clone(),
            memory_gib: g.memory_gb * 1e9 / GIB,
            memory_gb_per_s: Some(g.memory_gb_per_s),
            watts: Some((g.watts, "maximum".into())),
            slices: vec![g.name.clone(), format!("8*{}", g.name)],
            source: g.source.clone(),
            ..ChipFigures::default()
        };
        chip.priced(&g.printed, tables)
    }

    fn of_past(p: &HistoricChip, tables: &ChipTables) -> ChipFigures {
        let chip = ChipFigures {
            name: p.name.clone(),
            product: p.product.clone(),
            year: Some(p.year),
            peaks: p.peak_tflops.clone(),
            memory_gib: p.memory_gb * 1e9 / GIB,
            memory_gb_per_s: p.memory_gb_per_s,
            watts: p.watts.map(|w| (w, p.watts_note.clone().unwrap_or_default())),
            process_nm: p.process_nm,
            unplanned: Some(p.why.clone()),
            source: p.source.clone(),
            ..ChipFigures::default()
        };
        chip.priced(&p.printed, tables)
    }

    /// Adds prices, and the printed figures compared with these tables.
    fn priced(self, printed: &[PrintedFigure], tables: &ChipTables) -> ChipFigures {
        let prices = tables.prices.iter().filter(|p| p.chip == self.name).cloned().collect();
        let compare = |p: &PrintedFigure| ComparedFigure { here: self.here(p, tables), printed: p.clone() };
        let printed = printed.iter().map(compare).collect();
        ChipFigures { prices, printed, ..self }
    }

    fn here(&self, p: &PrintedFigure, tables: &ChipTables) -> Option<f64> {
        let bill = || bill(tables, &self.name, p.chips, p.region.as_deref(), None, "2000-01-01");
        match p.of.as_deref()? {
            "peak" => self.peak().map(|(_, peak)| peak * p.chips as f64),
            "dollars" => bill().map(|b| b.per_hour),
            "spot_dollars" => bill().and_then(|b| b.spot_per_hour),
            "chips" => tables.tpu(&self.name).map(|t| t.max_chips as f64),
            _ => None,
        }
    }

    /// Returns the chip's main element type and its peak rate.
    pub fn peak(&self) -> Option<(&str, f64)> {
        let made_for = ["bf16", "f16", "int8", "f32", "fp8", "fp4"];
        // The V100 has tensor cores only for f16.
        let best =
            |n: &&str| self.peaks.get(*n).is_some_and(|p| self.peaks.get("f16").is_none_or(|f| p >= f));
        let name = made_for.into_iter().find(best)?;
        Some((name, self.peaks[name]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_tutorials_print_is_what_the_tables_say() {
        let chips = ChipFigures::all(&ChipTables::built_in().unwrap());
        let of = |name: &str| chips.iter().find(|c| c.name == name).unwrap();
        let mut compared = 0;
        for c in &chips {
            for p in c.printed.iter().filter(|p| p.printed.of.is_some()) {
                let here = p.here.unwrap_or_else(|| panic!("{}: {}", c.name, p.printed.what));
                compared += 1;
                // 420 TFLOP/s of a v3 board and 3,072 chips of a v4 are less than there are; the rest is equal.
                let tolerance = if ["v3", "v4"].contains(&c.name.as_str()) { 0.35 } else { 0.03 };
                let ratio = here / p.printed.value;
                assert!((ratio - 1.0).abs() < tolerance, "{}: {} is {here} here", c.name, p.printed.what);
            }
        }
        assert!(compared >= 13, "{compared}");
        assert_eq!(of("v1").peak(), Some(("int8", 92.0)));
        assert_eq!(of("v100").peak(), Some(("f16", 125.0)));
        assert_eq!(of("tpu8t").peak(), Some(("fp4", 12_600.0)));
        let processes = ["v1", "v2", "v3", "v4i", "v5e"].map(|n| of(n).process_nm);
        assert_eq!(processes, [Some(28.0), Some(16.0), Some(16.0), Some(7.0), None]);
        assert_eq!((of("v5e").watts.clone(), of("v5e").memory_gib), (None, 16.0));
        assert_eq!(of("v2").slices.last().unwrap(), "v2-512");
        assert!(of("k80").unplanned.is_some() && of("k80").prices[0].on_demand == 0.45);
        assert!(chips.iter().all(|c| c.year.is_some() && c.peak().is_some()));
    }
}
