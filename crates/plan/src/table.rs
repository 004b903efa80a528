//! Dated tables: chips, slices and prices of TPUs and GPUs. They are TOML inside the program, all that is known of a chip in
//! one row; a user's file is laid over them.
//!
//! Nothing here reads files or knows graphs, so that naming a slice costs a caller nothing else.

use crate::cloud_names::CloudNames;
use serde::Deserialize;
use std::collections::BTreeMap;
use systole_ir::{Error, ErrorKind, Result};

const TPU: &str = include_str!("../tables/tpu.toml");
const GPU: &str = include_str!("../tables/gpu.toml");
const HISTORY: &str = include_str!("../tables/history.toml");

const BUILT_IN: [(&str, &str); 3] =
    [(TPU, "tables/tpu.toml"), (GPU, "tables/gpu.toml"), (HISTORY, "tables/history.toml")];

/// All tables.
#[derive(Clone, Debug, PartialEq)]
pub struct ChipTables {
    /// TPU generations, oldest first.
    pub tpus: Vec<Tpu>,
    /// GPUs, oldest first.
    pub gpus: Vec<Gpu>,
    /// Chips that nothing is planned for: before the others, or beside them.
    pub history: Vec<HistoricChip>,
    /// Prices of TPU chips and GPUs.
    pub prices: Vec<Price>,
    /// Where the figures are from.
    pub sources: Vec<String>,
}

/// One generation of TPU: figures of one chip unless a field says otherwise.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tpu {
    /// `v5e`.
    pub name: String,
    /// The product's name, where it is not `TPU` and the name.
    #[serde(default)]
    pub product: Option<String>,
    /// Other beginnings of slice names: `v5litepod`.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// The name in libtpu's topologies.
    pub libtpu: String,
    /// libtpu's `chip_config_name`, where the cloud's is not its default.
    #[serde(default)]
    pub chip_config: Option<String>,
    /// What PJRT calls a device.
    pub kind: String,
    /// TensorCores.
    pub cores: usize,
    /// Devices that a program sees.
    pub devices: usize,
    /// Cycles of a core, in 10⁶ a second.
    pub clock_mhz: f64,
    /// Multiply-adds of bf16 factors in one cycle of one core.
    pub macs: f64,
    /// Rows and columns of one matrix unit.
    pub mxu: usize,
    /// Published peaks in 10¹² operations a second, by element type.
    pub peak_tflops: BTreeMap<String, f64>,
    /// Main memory in 2³⁰ bytes.
    pub hbm_gib: f64,
    /// Main memory's 10⁹ bytes a second.
    pub hbm_gb_per_s: f64,
    /// What a program may use of one device, in bytes.
    pub hbm_limit: u64,
    /// One core's vector memory in 2²⁰ bytes.
    pub vmem_mib: f64,
    /// Common memory of a chip in 2²⁰ bytes (v4 only).
    #[serde(default)]
    pub cmem_mib: f64,
    /// One direction of one link between chips, in 10⁹ bytes a second.
    pub link_gb_per_s: f64,
    /// Where that figure is from, if sources differ.
    #[serde(default)]
    pub link_note: Option<String>,
    /// Axes of the torus.
    pub axes: usize,
    /// Chips of the largest slice.
    pub max_chips: usize,
    /// Chips that one host feeds.
    pub host_chips: usize,
    /// Host to chip, in 10⁹ bytes a second.
    pub host_pcie_gb_per_s: f64,
    /// Host to host (between slices), in 10⁹ bytes a second.
    pub host_network_gb_per_s: f64,
    /// Which axes close to rings, in words.
    pub wrap: String,
    /// An axis whose length is a multiple of this is a ring; others are lines.
    pub wrap_axis: usize,
    /// Electrical power, if published.
    #[serde(default)]
    pub watts: Option<f64>,
    /// What kind of figure that is.
    #[serde(default)]
    pub watts_note: Option<String>,
    /// What the number in a slice's name counts: `cores`, `chips` or `topology`.
    pub names_count: String,
    /// Cubes of 4×4×4 that a slice may have, where slices are made of cubes.
    #[serde(default)]
    pub cubes: Option<usize>,
    /// User-facing names and their topologies.
    pub slices: BTreeMap<String, String>,
    /// Slices that are compared where nobody names any.
    #[serde(default)]
    pub usual: Vec<String>,
    /// Names of its machines in Google's clouds, where they have it.
    #[serde(default)]
    pub cloud: Option<CloudNames>,
    /// When it came into use.
    #[serde(default)]
    pub year: Option<u32>,
    /// Where this chip's figures are from.
    #[serde(default)]
    pub source: String,
    /// What the well-known tutorials print of it.
    #[serde(default)]
    pub printed: Vec<PrintedFigure>,
    /// Constants of the analytic model.
    pub fit: FittedConstants,
}

/// A figure that the well-known tutorials print, and what it is compared with here.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrintedFigure {
    /// `peak of a board of 4 chips`.
    pub what: String,
    /// As printed.
    pub value: f64,
    /// `TFLOP/s`, `$/h`.
    #[serde(default)]
    pub unit: String,
    /// What of the tables it is compared with: `peak`, `dollars`, `spot_dollars`, `chips`; none: nothing.
    #[serde(default)]
    pub of: Option<String>,
    /// Chips that the figure is for.
    #[serde(default = "one")]
    pub chips: usize,
    /// Where a price is of.
    #[serde(default)]
    pub region: Option<String>,
}

fn one() -> usize {
    1
}

/// A chip for which nothing is planned, with the same figures as the others.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoricChip {
    /// `v1`.
    pub name: String,
    /// The product.
    pub product: String,
    /// When it came into use.
    pub year: u32,
    /// Peaks in 10¹² operations a second, by element type.
    pub peak_tflops: BTreeMap<String, f64>,
    /// Memory in 10⁹ bytes.
    pub memory_gb: f64,
    /// Memory's 10⁹ bytes a second, where there is memory beside the chip.
    #[serde(default)]
    pub memory_gb_per_s: Option<f64>,
    /// Electrical power, if published.
    #[serde(default)]
    pub watts: Option<f64>,
    /// What kind of figure that is.
    #[serde(default)]
    pub watts_note: Option<String>,
    /// Why nothing is planned for it.
    pub why: String,
    /// Where its figures are from.
    pub source: String,
    /// What the well-known tutorials print of it.
    #[serde(default)]
    pub printed: Vec<PrintedFigure>,
}

/// Constants of the analytic model that no specification holds: fitted to the cycles that libtpu's compiler estimates.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FittedConstants {
    /// Cycles of a kernel with a product beside its work.
    pub product_cycles: f64,
    /// The same where all its arrays lie in memory on the chip.
    pub near_cycles: f64,
    /// Cycles of any other kernel beside its work.
    pub kernel_cycles: f64,
    /// The part of the peak that large products reach.
    pub product_share: f64,
    /// 2²⁰ bytes of first and last blocks that nothing hides.
    pub head_mib: f64,
    /// Cycles of one core to move 1024 elements of a product out of the matrix units.
    pub result_cycles: f64,
    /// Whether convolutions may put the batch on the columns of the matrix units.
    pub swaps: bool,
    /// 2²⁰ bytes of values between kernels that the compiler keeps in memory on the chip.
    pub on_chip_mib: f64,
    /// How many times as long as with bf16 factors large products take with those of f16, which no TPU multiplies.
    #[serde(default = "same")]
    pub f16: f64,
}

fn same() -> f64 {
    1.0
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// `h100`.
    pub name: String,
    /// The product.
    pub product: String,
    /// Dense peaks in 10¹² operations a second, by element type; `f32` is that of frameworks' default (`tf32` apart).
    pub peak_tflops: BTreeMap<String, f64>,
    /// Memory in 10⁹ bytes.
    pub memory_gb: f64,
    /// Memory's 10⁹ bytes a second.
    pub memory_gb_per_s: f64,
    /// All links to other GPUs of the machine, one direction, in 10⁹ bytes a second.
    pub link_gb_per_s: f64,
    /// Electrical power at most.
    pub watts: f64,
    /// When it came into use.
    #[serde(default)]
    pub year: Option<u32>,
    /// Machines that are compared where nobody names any: `h100`, `8*h100`.
    #[serde(default)]
    pub usual: Vec<String>,
    /// Where this GPU's figures are from.
    #[serde(default)]
    pub source: String,
    /// What the well-known tutorials print of it.
    #[serde(default)]
    pub printed: Vec<PrintedFigure>,
    /// What a compiler is told of it; a GPU that a user adds has none unless it is written down.
    #[serde(default)]
    pub target: Option<GpuTarget>,
}

/// What a compiler is told of a GPU, as far as GPUs differ.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuTarget {
    /// The driver's name of the device.
    pub device: String,
    /// CUDA's compute capability, major and minor.
    pub compute_capability: [u32; 2],
    /// Whether the compiler may use what only this very capability has (`sm_90a`).
    pub accelerated_features: bool,
    /// Multiprocessors.
    pub cores: u32,
    /// Units of f32 arithmetic in one of them.
    pub fpus_per_core: u32,
    /// Cycles at most, in 10⁹ a second.
    pub clock_ghz: f64,
    /// Bytes of memory that the driver reports.
    pub memory: u64,
    /// Bytes of it that a second moves at best.
    pub memory_per_s: u64,
    /// Bytes of the second cache.
    pub l2_cache: u64,
    /// Bytes of shared memory of a multiprocessor.
    pub shared_memory_per_core: u64,
    /// Bytes of that which one block may have.
    pub shared_memory_per_block_optin: u64,
}

/// What one chip or GPU costs for an hour.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// The chip's name.
    pub chip: String,
    /// The provider's region.
    pub region: String,
    /// Dollars on demand.
    pub on_demand: f64,
    /// Dollars of capacity that may be taken back.
    #[serde(default)]
    pub spot: Option<f64>,
    /// The first in slices of several hosts, where they have a price of their own.
    #[serde(default)]
    pub pod: Option<f64>,
    /// The second in slices of several hosts.
    #[serde(default)]
    pub pod_spot: Option<f64>,
    /// Dollars for the host beside it, where that is billed apart.
    #[serde(default)]
    pub host: f64,
    /// The same where both may be taken back.
    #[serde(default)]
    pub host_spot: Option<f64>,
    /// Dollars of a virtual machine that was rented beside a slice when TPUs were nodes in the network. Told, and in no sum:
    /// a TPU VM of today holds its host.
    #[serde(default)]
    pub node_vm: Option<f64>,
    /// When the source said so: `2026-09-10`.
    pub date: String,
    /// Who said so.
    pub source: String,
    /// Seconds that a bill is rounded up to.
    #[serde(default = "second")]
    pub billed_by_seconds: f64,
}

fn second() -> f64 {
    1.0
}

impl ChipTables {
    /// The tables inside the program.
    pub fn built_in() -> Result<ChipTables> {
        ChipTables::from_texts(&BUILT_IN)
    }

    /// The tables inside the program with a user's TOML over them: entries of a name that exists replace fields of it,
    /// others are added; a price replaces that of the same chip and region.
    ///
    /// ```
    /// use systole_plan::Tables;
    /// let mine = "[[chip]]\nname = 'v5e'\nhbm_gb_per_s = 800\n";
    /// let tables = Tables::with(mine, "mine.toml").unwrap();
    /// assert_eq!(tables.tpu("v5e").unwrap().hbm_gb_per_s, 800.0);
    /// ```
    pub fn with(text: &str, origin: &str) -> Result<ChipTables> {
        ChipTables::from_texts(&[&BUILT_IN[..], &[(text, origin)][..]].concat())
    }

    fn from_texts(texts: &[(&str, &str)]) -> Result<ChipTables> {
        let mut sources: Vec<String> = Vec::new();
        let (mut chips, mut gpus, mut prices, mut history) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (text, origin) in texts {
            let mut whole: toml::Table = toml::from_str(text).map_err(|e| wrong(&e, origin))?;
            if let Some(list) = whole.remove("sources") {
                sources.extend(list.try_into::<Vec<String>>().map_err(|e| wrong(&e, origin))?);
            }
            let mut priced = Vec::new();
            for (key, below) in [("chip", &mut chips), ("gpu", &mut gpus), ("past", &mut history)] {
                let mut rows = entries(&mut whole, key, origin)?;
                for row in &mut rows {
                    let chip = row.get("name").map(|name| ("chip".to_string(), name.clone()));
                    let own = entries(row, "price", origin)?;
                    priced.extend(own.into_iter().map(|p| p.into_iter().chain(chip.clone()).collect()));
                }
                lay_over(below, rows, &["name"]);
            }
            priced.extend(entries(&mut whole, "price", origin)?);
            priced.iter().for_each(|entry| replace_price(&mut prices, entry));
            lay_over(&mut prices, priced, &["chip", "region"]);
        }
        let origin = texts.last().map_or("", |t| t.1);
        Ok(ChipTables {
            tpus: typed(chips, origin)?,
            gpus: typed(gpus, origin)?,
            history: typed(history, origin)?,
            prices: typed(prices, origin)?,
            sources,
        })
    }

    /// The TPU generation of a name or alias.
    pub fn tpu(&self, name: &str) -> Option<&Tpu> {
        self.tpus.iter().find(|t| t.name == name || t.aliases.iter().any(|a| a == name))
    }

    /// The GPU of a name.
    pub fn gpu(&self, name: &str) -> Option<&Gpu> {
        self.gpus.iter().find(|g| g.name == name)
    }

    /// Small machines of every kind, for who has not decided.
    pub fn usual(&self) -> impl Iterator<Item = &str> {
        let tpus = self.tpus.iter().flat_map(|t| &t.usual);
        tpus.chain(self.gpus.iter().flat_map(|g| &g.usual)).map(String::as_str)
    }
}

fn wrong(e: &toml::de::Error, origin: &str) -> Error {
    Error::new(ErrorKind::Config, "a table of chips or prices does not read")
        .at(origin)
        .because(e.message())
        .hint("docs/guide/plan.md has the fields")
}

type TableFile = Vec<toml::Table>;

/// Takes the list of tables `key` out of a table.
fn entries(whole: &mut toml::Table, key: &str, origin: &str) -> Result<TableFile> {
    whole.remove(key).map_or(Ok(Vec::new()), toml::Value::try_into).map_err(|_| {
        Error::new(ErrorKind::Config, format!("`{key}` is not a list of tables"))
            .at(origin)
            .hint(format!("write [[{key}]]"))
    })
}

/// Fields of an entry with equal `keys` are replaced; an entry without an equal is added.
fn lay_over(below: &mut TableFile, above: TableFile, keys: &[&str]) {
    for entry in above {
        match below.iter_mut().find(|b| keys.iter().all(|k| b.get(*k) == entry.get(*k))) {
            Some(found) => found.extend(entry),
            None => below.push(entry),
        }
    }
}

/// A price on demand stands for itself: what the entry below said of hosts, pods and spot goes with that entry's price.
fn replace_price(below: &mut TableFile, entry: &toml::Table) {
    const OWN: [&str; 6] = ["spot", "pod", "pod_spot", "host", "host_spot", "node_vm"];
    let same = |b: &&mut toml::Table| ["chip", "region"].iter().all(|k| b.get(*k) == entry.get(*k));
    if let (true, Some(old)) = (entry.contains_key("on_demand"), below.iter_mut().find(same)) {
        OWN.iter().for_each(|k| drop(old.remove(*k)));
    }
}

fn typed<T: for<'a> Deserialize<'a>>(entries: TableFile, origin: &str) -> Result<Vec<T>> {
    entries.into_iter().map(|e| toml::Value::Table(e).try_into().map_err(|e| wrong(&e, origin))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_follow_from_clock_and_multiply_adds() {
        for t in &ChipTables::built_in().unwrap().tpus {
            let peak = 2.0 * t.macs * t.cores as f64 * t.clock_mhz * 1e6 / 1e12;
            assert!((peak / t.peak_tflops["bf16"] - 1.0).abs() < 0.005, "{}: {peak}", t.name);
        }
    }

    #[test]
    fn a_users_file_replaces_fields_and_adds_entries() {
        let mine =
            "[[price]]\nchip = 'v5e'\nregion = 'us'\non_demand = 9.0\ndate = '2026-11-01'\nsource = 'me'\n";
        let t = ChipTables::with(mine, "mine.toml").unwrap();
        let found: Vec<&Price> = t.prices.iter().filter(|p| p.chip == "v5e" && p.region == "us").collect();
        assert_eq!((found.len(), found[0].on_demand), (1, 9.0));
        let e = ChipTables::with("[[chip]]\nname = 'v5e'\nhbm = 3\n", "mine.toml").unwrap_err().to_string();
        assert!(e.contains("mine.toml") && e.contains("hbm"), "{e}");
    }

    /// A row with its prices in it says the same as prices in a table of their own.
    #[test]
    fn prices_may_stand_in_a_chips_row() {
        let price = "region = 'us'\non_demand = 9.0\ndate = '2026-11-01'\nsource = 'me'\n";
        let inside =
            ChipTables::with(&format!("[[chip]]\nname = 'v5e'\n[[chip.price]]\n{price}"), "mine.toml");
        let apart = ChipTables::with(&format!("[[price]]\nchip = 'v5e'\n{price}"), "mine.toml");
        assert_eq!(inside.unwrap(), apart.unwrap());
    }

    #[test]
    fn every_usual_machine_is_one() {
        let t = ChipTables::built_in().unwrap();
        for name in t.usual() {
            let machine = crate::Machine::of(name, &t).unwrap();
            let chips = t.tpus.iter().map(|c| (&c.name, &c.usual));
            let mut rows = chips.chain(t.gpus.iter().map(|g| (&g.name, &g.usual)));
            let (of, _) = rows.find(|(_, usual)| usual.iter().any(|u| u == name)).unwrap();
            assert_eq!(machine.billed().unwrap().0, of, "{name} stands in the row of another chip");
        }
        assert!(t.usual().count() >= 17);
    }

    #[test]
    fn a_price_of_ones_own_takes_nothing_from_the_one_it_replaces() {
        let mine = "[[price]]\nchip = 'v2'\nregion = 'us-central1'\non_demand = 1.0\ndate = '2026-11-01'\nsource = 'me'\n";
        let t = ChipTables::with(mine, "mine.toml").unwrap();
        let p = t.prices.iter().find(|p| p.chip == "v2" && p.region == "us-central1").unwrap();
        assert_eq!((p.on_demand, p.spot, p.pod, p.node_vm), (1.0, None, None, None));
    }

    #[test]
    fn every_figure_has_a_source_that_others_can_read() {
        let t = ChipTables::built_in().unwrap();
        let texts = [TPU, GPU, HISTORY].concat().to_lowercase();
        assert!(!texts.contains("from memory") && !texts.contains("written down"), "memory is no source");
        let chips = t.tpus.iter().map(|c| (&c.name, &c.source));
        let gpus = t.gpus.iter().map(|c| (&c.name, &c.source));
        let past = t.history.iter().map(|c| (&c.name, &c.source));
        for (name, source) in
            chips.chain(gpus).chain(past).chain(t.prices.iter().map(|p| (&p.chip, &p.source)))
        {
            assert!(source.len() > 10, "{name} has no source");
        }
        let watts = t.tpus.iter().filter(|c| c.watts.is_some());
        watts.for_each(|c| assert!(c.watts_note.is_some(), "{}: what kind of watts", c.name));
    }
}
