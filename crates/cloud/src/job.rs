//! What is to be run: the model, on which chips, where, and what it costs.

use super::chips::RequestedChips;
use super::generated_file::GeneratedFile;
use super::region::CloudRegion;
use super::train_args;
use crate::CloudOptions;
use systole_ir::{Error, ErrorKind, Result};
use systole_plan::{Bill, ChipTables, CloudNames, TpuSlice, bill, dollars};

/// A training on chips somewhere.
pub struct CloudJob {
    pub(crate) name: String,
    pub(crate) chips: RequestedChips,
    pub(crate) region: CloudRegion,
    pub(crate) spot: bool,
    pub(crate) bucket: Option<String>,
    pub(crate) image: Option<String>,
    pub(crate) max_hours: u32,
    bill: Option<Bill>,
    /// A preset, or the name of the TOML file beside the others.
    model: String,
    toml: Option<String>,
    args: Vec<String>,
}

impl CloudJob {
    /// # Errors
    /// If an option makes no sense, or the model's batch does not divide over the devices.
    pub fn new(options: &CloudOptions, model: JobModel, tables: &ChipTables) -> Result<CloudJob> {
        let chips = RequestedChips::of(options, tables)?;
        let region = CloudRegion::of(options, &chips, tables)?;
        train_args::check_batch(&options.args, model.batch, &chips)?;
        let place = Some(region.region.as_str()).filter(|region| !region.is_empty());
        Ok(CloudJob {
            name: train_args::name(options.name.as_deref(), &model.name)?,
            spot: options.spot,
            bucket: options.bucket.as_deref().map(train_args::bucket).transpose()?,
            image: options.image.clone(),
            max_hours: options.max_hours,
            bill: place.and_then(|region| bill(tables, chips.kind(), chips.count(), Some(region), None, "")),
            chips,
            region,
            model: model.name,
            toml: model.toml,
            args: options.args.clone(),
        })
    }

    /// The chips as `plan` names them, in full: `2*v5litepod-16`, `8*h100`.
    pub fn title(&self) -> String {
        self.chips.title()
    }

    /// Number of machines.
    pub fn machines(&self) -> usize {
        self.chips.machines()
    }

    /// `4 machines of 4 chips`, if there are several.
    pub fn parts(&self) -> Option<String> {
        self.chips.parts()
    }

    /// Region and zone; empty where the place has none.
    pub fn region(&self) -> (&str, &str) {
        (&self.region.region, &self.region.zone)
    }

    /// The slice, for places that have no other chips.
    ///
    /// # Errors
    /// When GPUs are asked for.
    pub(crate) fn tpu(&self, place: &str) -> Result<(&TpuSlice, &CloudNames)> {
        match &self.chips {
            RequestedChips::Tpu(slice, cloud) => Ok((slice, cloud)),
            RequestedChips::Gpu { .. } | RequestedChips::Cpu { .. } => {
                let what = format!("{place} is for TPU slices here, not for {}", self.chips.title());
                let e = Error::new(ErrorKind::Config, what).at("--slice");
                Err(e.hint("name a slice such as v5e-8; GPUs go with slurm, ray, colab and kaggle"))
            }
        }
    }

    /// The bucket, where the run must be kept in one.
    ///
    /// # Errors
    /// When none is named.
    pub(crate) fn needs_bucket(&self, why: &str) -> Result<&str> {
        let missing = || {
            let e = Error::new(ErrorKind::Config, "the run needs a bucket").because(why).at("--bucket");
            e.hint("make one with `gcloud storage buckets create gs://NAME`, then --bucket gs://NAME")
        };
        self.bucket.as_deref().ok_or_else(missing)
    }

    /// The image, where the program comes in one.
    ///
    /// # Errors
    /// When none is named.
    pub(crate) fn needs_image(&self) -> Result<&str> {
        let missing = || {
            let e = Error::new(ErrorKind::Config, "the job needs a container image with the program");
            e.at("--image").hint("docs/guide/cloud.md has the Dockerfile; name the address that you push it to: --image ADDRESS")
        };
        self.image.as_deref().ok_or_else(missing)
    }

    /// Dollars an hour of what was asked for, where a price is known.
    pub fn dollars_per_hour(&self) -> Option<f64> {
        let bill = self.bill.as_ref()?;
        if self.spot { bill.spot_per_hour } else { Some(bill.per_hour) }
    }

    /// What it costs, in a sentence.
    pub fn cost(&self) -> String {
        let kind = if self.spot { "at spot prices" } else { "on demand" };
        match (self.dollars_per_hour(), &self.bill) {
            (Some(hour), Some(bill)) => format!(
                "{} an hour {kind} in {} (price of {}), at most {} in {} h",
                dollars(hour),
                bill.price.region,
                bill.price.date,
                dollars(hour * f64::from(self.max_hours)),
                self.max_hours
            ),
            _ => format!(
                "no price of {} is known {kind}; `systole chips` lists those that are",
                self.chips.kind()
            ),
        }
    }

    /// What is trained, as a word of the command: a preset, or the TOML file's name.
    pub(crate) fn model(&self) -> &str {
        &self.model
    }

    /// The arguments of the program on each machine.
    pub(crate) fn command(&self, model: &str, out: &str) -> Vec<String> {
        let device = match &self.chips {
            RequestedChips::Tpu(..) => Some("tpu"),
            RequestedChips::Gpu { .. } => Some("cuda"),
            RequestedChips::Cpu { machines: 1, .. } => Some("cpu"),
            // The launch gives each process Systole's own plugin.
            RequestedChips::Cpu { .. } => None,
        };
        let device = device.into_iter().flat_map(|device| ["--device", device]);
        let words = ["train", model].into_iter().chain(device).chain(["--out", out]);
        words.map(String::from).chain(self.arguments()).collect()
    }

    /// Those that neither the place nor the model gives.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let is_split = self.chips.devices() > 1 && !train_args::names(&self.args, &["--strategy", "--mesh"]);
        let strategy = is_split.then(|| "--strategy=data_parallel".into());
        strategy.into_iter().chain(self.args.iter().cloned()).collect()
    }

    /// What scripts and manifests begin with, as comments. `cost`: what is to be said of it.
    pub(crate) fn heading(&self, what: &str, cost: &str) -> String {
        let toml = self.toml.as_ref().map_or_else(String::new, |_| format!(", with {}", self.model));
        let parts = self.chips.parts().map_or_else(String::new, |parts| format!(" ({parts})"));
        let zone = match self.region.zone.as_str() {
            "" => String::new(),
            zone => format!(" in {zone}"),
        };
        format!(
            "# {what}\n#\n# {}{parts}{zone}: {cost}.\n# Written by `systole cloud`{toml}. docs/guide/cloud.md says what of it was run, and what only checked.\n",
            self.chips.title()
        )
    }

    /// The TOML file that is trained, as a file beside the others.
    pub fn model_file(&self) -> Option<GeneratedFile> {
        self.toml.as_ref().map(|text| GeneratedFile::new(&self.model, "what is trained", text.clone()))
    }

    /// The text of the TOML file.
    pub(crate) fn toml(&self) -> Option<&str> {
        self.toml.as_deref()
    }
}

/// What is trained.
pub struct JobModel {
    /// A preset, or the name of the TOML file next to the others.
    pub name: String,
    /// The text of that file.
    pub toml: Option<String>,
    /// Samples in a step, where the configuration sets it.
    pub batch: Option<usize>,
}
