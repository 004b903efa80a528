//! A cloud training job: model, chips, region, command line and cost.

use super::chips::RequestedChips;
use super::generated_file::GeneratedFile;
use super::region::CloudRegion;
use super::train_args;
use crate::CloudOptions;
use systole_ir::{Result, err};
use systole_plan::{Bill, ChipTables, CloudNames, TpuSlice, bill, dollars};

/// A training job on cloud or cluster hardware.
pub struct CloudJob {
    pub(crate) name: String,
    pub(crate) chips: RequestedChips,
    pub(crate) region: CloudRegion,
    pub(crate) spot: bool,
    pub(crate) bucket: Option<String>,
    pub(crate) image: Option<String>,
    pub(crate) max_hours: u32,
    bill: Option<Bill>,
    /// A preset, or the name of the TOML file next to the generated files.
    model: String,
    toml: Option<String>,
    args: Vec<String>,
}

impl CloudJob {
    /// Creates a cloud job from its options, the model and the chip tables.
    ///
    /// # Errors
    /// If an option is invalid, or the batch size does not divide over the devices.
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

    /// Full name of the chips as in `systole plan`: `2*v5litepod-16`, `8*h100`.
    pub fn title(&self) -> String {
        self.chips.title()
    }

    /// Number of machines of the job.
    pub fn machines(&self) -> usize {
        self.chips.machines()
    }

    /// Formats the job's hardware as `4 machines of 4 chips` if there are several machines.
    pub fn parts(&self) -> Option<String> {
        self.chips.parts()
    }

    /// Region and zone of the job; empty if the platform has none.
    pub fn region(&self) -> (&str, &str) {
        (&self.region.region, &self.region.zone)
    }

    /// Returns the TPU slice, for platforms that support only TPUs.
    ///
    /// # Errors
    /// If other chips are requested.
    pub(crate) fn tpu(&self, place: &str) -> Result<(&TpuSlice, &CloudNames)> {
        match &self.chips {
            RequestedChips::Tpu(slice, cloud) => Ok((slice, cloud)),
            RequestedChips::Gpu { .. } | RequestedChips::Cpu { .. } => {
                let e = err!(Config, "{place} supports only TPU slices, not {}", self.chips.title())
                    .at("--slice");
                Err(e.hint_command("name a slice such as v5e-8; for GPUs use slurm, ray, colab or kaggle"))
            }
        }
    }

    /// Returns the bucket, for runs that must be stored in one.
    ///
    /// # Errors
    /// If no bucket is named.
    pub(crate) fn needs_bucket(&self, why: &str) -> Result<&str> {
        let missing = || {
            let e = err!(Config, "the run needs a bucket").because(why).at("--bucket");
            e.hint_command("create a bucket with `gcloud storage buckets create gs://NAME`, then pass --bucket gs://NAME")
        };
        self.bucket.as_deref().ok_or_else(missing)
    }

    /// Returns the container image, for platforms that need one.
    ///
    /// # Errors
    /// If no image is named.
    pub(crate) fn needs_image(&self) -> Result<&str> {
        let missing = || {
            let e = err!(Config, "the job needs a container image with the program");
            e.at("--image").hint_command("build and push an image as in docs/guide/cloud.md, then pass its address with --image ADDRESS")
        };
        self.image.as_deref().ok_or_else(missing)
    }

    /// Price of the job in dollars per hour, if it is known.
    pub fn dollars_per_hour(&self) -> Option<f64> {
        let bill = self.bill.as_ref()?;
        if self.spot { bill.spot_per_hour } else { Some(bill.per_hour) }
    }

    /// Describes the cost of the job in one sentence.
    pub fn cost(&self) -> String {
        let kind = if self.spot { "at spot prices" } else { "on demand" };
        match (self.dollars_per_hour(), &self.bill) {
            (Some(hour), Some(bill)) => format!(
                "{} per hour {kind} in {} (price of {}), at most {} in {} h",
                dollars(hour),
                bill.price.region,
                bill.price.date,
                dollars(hour * f64::from(self.max_hours)),
                self.max_hours
            ),
            _ => format!(
                "no price for {} is known {kind}; list the known prices with `systole chips`",
                self.chips.kind()
            ),
        }
    }

    /// Model argument of the command: a preset or the TOML file's name.
    pub(crate) fn model(&self) -> &str {
        &self.model
    }

    /// Arguments of the program on each machine.
    pub(crate) fn command(&self, model: &str, out: &str) -> Vec<String> {
        let device = match &self.chips {
            RequestedChips::Tpu(..) => Some("tpu"),
            RequestedChips::Gpu { .. } => Some("cuda"),
            RequestedChips::Cpu { machines: 1, .. } => Some("cpu"),
            // `systole launch` selects Systole's own plugin for each process.
            RequestedChips::Cpu { .. } => None,
        };
        let device = device.into_iter().flat_map(|device| ["--device", device]);
        let words = ["train", model].into_iter().chain(device).chain(["--out", out]);
        words.map(String::from).chain(self.arguments()).collect()
    }

    /// User arguments, and the default strategy for several devices.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let is_split = self.chips.devices() > 1 && !train_args::names(&self.args, &["--strategy", "--mesh"]);
        let strategy = is_split.then(|| "--strategy=data_parallel".into());
        strategy.into_iter().chain(self.args.iter().cloned()).collect()
    }

    /// Comment header of scripts and manifests. `cost`: the statement about the cost.
    pub(crate) fn heading(&self, what: &str, cost: &str) -> String {
        let toml = self.toml.as_ref().map_or_else(String::new, |_| format!(", with {}", self.model));
        let parts = self.chips.parts().map_or_else(String::new, |parts| format!(" ({parts})"));
        let zone = match self.region.zone.as_str() {
            "" => String::new(),
            zone => format!(" in {zone}"),
        };
        format!(
            "# {what}\n#\n# {}{parts}{zone}: {cost}.\n# Written by `systole cloud`{toml}. See docs/guide/cloud.md for what was tested.\n",
            self.chips.title()
        )
    }

    /// Returns the TOML file to train, as a generated file.
    pub fn model_file(&self) -> Option<GeneratedFile> {
        self.toml
            .as_ref()
            .map(|text| GeneratedFile::new(&self.model, "the training configuration", text.clone()))
    }

    /// Content of the TOML file.
    pub(crate) fn toml(&self) -> Option<&str> {
        self.toml.as_deref()
    }
}

/// Model that a cloud job trains.
pub struct JobModel {
    /// A preset, or the name of the TOML file.
    pub name: String,
    /// Content of the TOML file.
    pub toml: Option<String>,
    /// Batch size, if the configuration sets it.
    pub batch: Option<usize>,
}
