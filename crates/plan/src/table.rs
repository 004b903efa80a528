//! Tables of TPU and GPU chips, slices and prices, with dates and sources; built in as TOML and extendable by a user's
//! file.
//!
//! This module reads no files and uses no graphs, so resolving a slice name stays cheap.

use crate::cloud_names::CloudNames;
use serde::Deserialize;
use std::collections::BTreeMap;
use systole_ir::{Error, Result, err};

const TPU: &str = include_str!("../tables/tpu.toml");
const GPU: &str = include_str!("../tables/gpu.toml");
const HISTORY: &str = include_str!("../tables/history.toml");

const BUILT_IN: [(&str, &str); 3] =
    [(TPU, "tables/tpu.toml"), (GPU, "tables/gpu.toml"), (HISTORY, "tables/history.toml")];

/// All tables of chips, slices and prices.
#[derive(Clone, Debug, PartialEq)]
pub struct ChipTables {
    /// TPU generations, oldest first.
    pub tpus: Vec<Tpu>,
    /// GPUs, oldest first.
    pub gpus: Vec<Gpu>,
    /// Historic and announced chips that plans do not support.
    pub history: Vec<HistoricChip>,
    /// Prices of TPU chips and GPUs.
    pub prices: Vec<Price>,
    /// Sources of the figures.
    pub sources: Vec<String>,
}

/// A TPU generation. Figures are per chip unless a field says otherwise.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tpu {
    /// Name, such as `v5e`.
    pub name: String,
    /// Product name, if it is not `TPU` plus the name.
    pub product: Option<String>,
    /// Other prefixes of slice names, such as `v5litepod`.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Name in libtpu topologies.
    pub libtpu: String,
    /// libtpu's `chip_config_name`, if the cloud's differs from the default.
    pub chip_config: Option<String>,
    /// PJRT device kind.
    pub kind: String,
    /// Number of TensorCores.
    pub cores: usize,
    /// Number of devices that a program sees.
    pub devices: usize,
    /// Core clock in MHz.
    pub clock_mhz: f64,
    /// bf16 multiply-adds per cycle and core.
    pub macs: f64,
    /// Rows and columns of a matrix unit.
    pub mxu: usize,
    /// Published peak rates in 10¹² operations per second, by element type.
    pub peak_tflops: BTreeMap<String, f64>,
    /// Main memory (HBM) in GiB.
    pub hbm_gib: f64,
    /// Main memory bandwidth in 10⁹ bytes per second.
    pub hbm_gb_per_s: f64,
    /// Memory of one device available to a program, in bytes.
    pub hbm_limit: u64,
    /// Vector memory (VMEM) of one core in MiB.
    pub vmem_mib: f64,
    /// Common memory (CMEM) of a chip in MiB (v4 only).
    #[serde(default)]
    pub cmem_mib: f64,
    /// Bandwidth of one inter-chip link in one direction, in 10⁹ bytes per second.
    pub link_gb_per_s: f64,
    /// Source of that figure, if sources differ.
    pub link_note: Option<String>,
    /// Number of torus axes.
    pub axes: usize,
    /// Chips of the largest slice.
    pub max_chips: usize,
    /// Chips per host.
    pub host_chips: usize,
    /// Host-to-chip bandwidth in 10⁹ bytes per second.
    pub host_pcie_gb_per_s: f64,
    /// Host network bandwidth (between slices) in 10⁹ bytes per second.
    pub host_network_gb_per_s: f64,
    /// Description of the axes that wrap around to rings.
    pub wrap: String,
    /// An axis is a ring if its length is a multiple of this number; otherwise it is a line.
    pub wrap_axis: usize,
    /// Electrical power, if published.
    pub watts: Option<f64>,
    /// Kind of the power figure.
    pub watts_note: Option<String>,
    /// Meaning of the number in slice names: `cores`, `chips` or `topology`.
    pub names_count: String,
    /// Maximum number of 4×4×4 cubes per slice, if slices consist of cubes.
    pub cubes: Option<usize>,
    /// Slice names and their topologies.
    pub slices: BTreeMap<String, String>,
    /// Slices compared by default.
    #[serde(default)]
    pub usual: Vec<String>,
    /// Machine names in Google Cloud, if it offers the generation.
    pub cloud: Option<CloudNames>,
    /// Year of introduction.
    pub year: Option<u32>,
    /// Manufacturing process in nanometers, if published.
    pub process_nm: Option<f64>,
    /// Source of the figures.
    #[serde(default)]
    pub source: String,
    /// Figures printed in well-known tutorials.
    #[serde(default)]
    pub printed: Vec<PrintedFigure>,
    /// Fitted constants of the analytic model.
    pub fit: FittedConstants,
}

/// A figure printed in a well-known tutorial, and the table value to compare it with.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrintedFigure {
    /// Description, such as `peak of a board of 4 chips`.
    pub what: String,
    /// Printed value.
    pub value: f64,
    /// Unit, such as `TFLOP/s` or `$/h`.
    #[serde(default)]
    pub unit: String,
    /// Table value for the comparison: `peak`, `dollars`, `spot_dollars`, `chips`; `None` for no comparison.
    pub of: Option<String>,
    /// Number of chips that the figure covers.
    #[serde(default = "one")]
    pub chips: usize,
    /// Region of a price.
    pub region: Option<String>,
}

fn one() -> usize {
    1
}

/// A historic or announced chip that plans do not support.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoricChip {
    /// Name, such as `v1`.
    pub name: String,
    /// Product name.
    pub product: String,
    /// Year of introduction.
    pub year: u32,
    /// Peak rates in 10¹² operations per second, by element type.
    pub peak_tflops: BTreeMap<String, f64>,
    /// Memory in 10⁹ bytes.
    pub memory_gb: f64,
    /// Memory bandwidth in 10⁹ bytes per second, if the chip has external memory.
    pub memory_gb_per_s: Option<f64>,
    /// Electrical power, if published.
    pub watts: Option<f64>,
    /// Kind of the power figure.
    pub watts_note: Option<String>,
    /// Manufacturing process in nanometers, if published.
    pub process_nm: Option<f64>,
    /// Why plans do not support the chip.
    pub why: String,
    /// Source of the figures.
    pub source: String,
    /// Figures printed in well-known tutorials.
    #[serde(default)]
    pub printed: Vec<PrintedFigure>,
}

/// Constants of the analytic model, fitted to the cycle estimates of libtpu's compiler.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FittedConstants {
    /// Overhead cycles of a kernel with a product.
    pub product_cycles: f64,
    /// Overhead cycles of a product whose arrays are all on the chip.
    pub near_cycles: f64,
    /// Overhead cycles of any other kernel.
    pub kernel_cycles: f64,
    /// Fraction of the peak that large products reach.
    pub product_share: f64,
    /// MiB of first and last blocks whose transfer is not hidden.
    pub head_mib: f64,
    /// Cycles of one core to move 1024 result elements out of the matrix units.
    pub result_cycles: f64,
    /// Whether convolutions may map the batch to the columns of the matrix units.
    pub swaps: bool,
    /// MiB of intermediate values that the compiler keeps on the chip.
    pub on_chip_mib: f64,
    /// Slowdown of large products with f16 factors compared with bf16; no TPU multiplies f16.
    #[serde(default = "same")]
    pub f16: f64,
}

fn same() -> f64 {
    1.0
}

/// A GPU with its published figures.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Name, such as `h100`.
    pub name: String,
    /// Product name.
    pub product: String,
    /// Dense peak rates in 10¹² operations per second, by element type; `f32` without TF32, which is listed as `tf32`.
    pub peak_tflops: BTreeMap<String, f64>,
    /// Memory in 10⁹ bytes.
    pub memory_gb: f64,
    /// Memory bandwidth in 10⁹ bytes per second.
    pub memory_gb_per_s: f64,
    /// Bandwidth of all links to other GPUs of the machine in one direction, in 10⁹ bytes per second.
    pub link_gb_per_s: f64,
    /// Maximum electrical power.
    pub watts: f64,
    /// Year of introduction.
    pub year: Option<u32>,
    /// Machines compared by default: `h100`, `8*h100`.
    #[serde(default)]
    pub usual: Vec<String>,
    /// Source of the figures.
    #[serde(default)]
    pub source: String,
    /// Figures printed in well-known tutorials.
    #[serde(default)]
    pub printed: Vec<PrintedFigure>,
    /// Compiler target data. A GPU added by a user has none unless it is given.
    pub target: Option<GpuTarget>,
}

/// Compiler target data of a GPU (XLA's GpuTargetConfig), as far as GPUs differ.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuTarget {
    /// Device name in the driver.
    pub device: String,
    /// CUDA compute capability, major and minor.
    pub compute_capability: [u32; 2],
    /// Whether the compiler may use features of exactly this capability (`sm_90a`).
    pub accelerated_features: bool,
    /// Number of multiprocessors.
    pub cores: u32,
    /// f32 units per multiprocessor.
    pub fpus_per_core: u32,
    /// Maximum clock in GHz.
    pub clock_ghz: f64,
    /// Memory in bytes, as reported by the driver.
    pub memory: u64,
    /// Peak memory bandwidth in bytes per second.
    pub memory_per_s: u64,
    /// L2 cache in bytes.
    pub l2_cache: u64,
    /// Shared memory per multiprocessor in bytes.
    pub shared_memory_per_core: u64,
    /// Maximum shared memory per block in bytes.
    pub shared_memory_per_block_optin: u64,
}

/// Hourly price of one chip or GPU.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Name of the chip.
    pub chip: String,
    /// Cloud region.
    pub region: String,
    /// On-demand price in dollars.
    pub on_demand: f64,
    /// Spot price in dollars.
    pub spot: Option<f64>,
    /// On-demand price in slices of several hosts, if it differs.
    pub pod: Option<f64>,
    /// Spot price in slices of several hosts.
    pub pod_spot: Option<f64>,
    /// Price of the host in dollars, if billed separately.
    #[serde(default)]
    pub host: f64,
    /// Spot price of the host.
    pub host_spot: Option<f64>,
    /// Price of the VM that was rented in addition to a slice for legacy TPU nodes. Shown, but not included in any sum:
    /// a current TPU VM includes its host.
    pub node_vm: Option<f64>,
    /// Date of the source: `2026-09-10`.
    pub date: String,
    /// Source of the price.
    pub source: String,
    /// Billing granularity in seconds.
    #[serde(default = "second")]
    pub billed_by_seconds: f64,
}

fn second() -> f64 {
    1.0
}

impl ChipTables {
    /// Returns the built-in tables of chips and prices.
    pub fn built_in() -> Result<ChipTables> {
        ChipTables::from_texts(&BUILT_IN)
    }

    /// Returns the built-in chip tables overlaid with a user's TOML. Entries with an existing name replace its fields,
    /// other entries are added. A price replaces the price of the same chip and region.
    ///
    /// ```
    /// use systole_plan::ChipTables;
    /// let mine = "[[chip]]\nname = 'v5e'\nhbm_gb_per_s = 800\n";
    /// let tables = ChipTables::with(mine, "mine.toml").unwrap();
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

    /// Returns the TPU generation with this name or alias.
    pub fn tpu(&self, name: &str) -> Option<&Tpu> {
        self.tpus.iter().find(|t| t.name == name || t.aliases.iter().any(|a| a == name))
    }

    /// Returns the GPU with this name.
    pub fn gpu(&self, name: &str) -> Option<&Gpu> {
        self.gpus.iter().find(|g| g.name == name)
    }

    /// Names of the machines that `systole plan` compares by default: small ones of every kind.
    pub fn usual(&self) -> impl Iterator<Item = &str> {
        let tpus = self.tpus.iter().flat_map(|t| &t.usual);
        tpus.chain(self.gpus.iter().flat_map(|g| &g.usual)).map(String::as_str)
    }
}

fn wrong(e: &toml::de::Error, origin: &str) -> Error {
    err!(Config, "cannot parse a table of chips or prices")
        .at(origin)
        .because(e.message())
        .hint("see docs/guide/plan.md for the fields")
}

type TableFile = Vec<toml::Table>;

/// Removes the list of tables `key` from a table and returns it.
fn entries(whole: &mut toml::Table, key: &str, origin: &str) -> Result<TableFile> {
    whole.remove(key).map_or(Ok(Vec::new()), toml::Value::try_into).map_err(|_| {
        err!(Config, "key `{key}` of the tables: expected an array of tables")
            .at(origin)
            .hint(format!("write the entries as [[{key}]]"))
    })
}

/// Merges `above` into `below`: entries with equal `keys` replace fields, others are added.
fn lay_over(below: &mut TableFile, above: TableFile, keys: &[&str]) {
    for entry in above {
        match below.iter_mut().find(|b| keys.iter().all(|k| b.get(*k) == entry.get(*k))) {
            Some(found) => found.extend(entry),
            None => below.push(entry),
        }
    }
}

/// A new on-demand price also removes the related prices of the replaced entry (hosts, pods, spot).
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

    /// Prices nested in a chip's row are equivalent to a separate price table.
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
