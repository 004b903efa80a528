//! `systole cloud`: writes the files for a training run in a cloud, on a cluster or in a notebook.

use crate::args::clap_root;
use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandError, CommandResult, RunCommand};
use crate::commands::plan;
use crate::commands::train::TrainArgs;
use crate::models::command_target::CommandTarget;
use crate::render::screen::{Screen, quoted};
use clap::{Args, FromArgMatches};
use serde_json::json;
use std::path::PathBuf;
use systole_cloud::{CloudJob, CloudOptions, CloudPlatform, JobModel, check_given, file_name};
use systole_config::{ConfigDraft, DataSection, RunConfig};
use systole_ir::{Error, ErrorKind, Result, err};

#[derive(Args)]
pub(crate) struct CloudArgs {
    /// Platform: tpu-vm, gke, vertex, ray, slurm, kaggle or colab
    place: String,
    /// Preset or TOML file to train; a TOML file is copied to the output folder
    model: String,
    /// Select a TPU slice (v5e-8), GPUs of one machine (8*h100) or CPU cores (16*cpu)
    ///
    /// TPU slices are named as in `systole plan`, such as v5p-64. GPUs are supported by slurm, ray and the notebooks.
    /// `16*cpu` means cores per machine, for slurm.
    #[arg(long, value_name = "SLICE")]
    slice: String,
    /// Write the files to this folder, which must be empty or not exist
    #[arg(short, long, value_name = "DIR")]
    out: PathBuf,
    /// Use spot (preemptible) machines; needs --bucket
    ///
    /// The run resumes after a preemption.
    #[arg(long)]
    spot: bool,
    /// Use this cloud region [default: the first with the chips and a known price]
    #[arg(long, value_name = "REGION")]
    region: Option<String>,
    /// Use this zone of the region [default: a zone that has the chips]
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
    /// Join N equal slices over the data-center network
    ///
    /// Each slice must have several machines.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    num_slices: Option<u16>,
    /// Use N SLURM machines, with --slice 16*cpu
    ///
    /// Each machine runs one process; Systole's own plugin connects them.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    nodes: Option<u16>,
    /// Store the run in this cloud storage bucket
    ///
    /// Required if machines lose their disks or if there are several machines.
    #[arg(long, value_name = "gs://NAME")]
    bucket: Option<String>,
    /// Run this container image, which contains the program (gke and vertex)
    ///
    /// The registry address that you pushed the image to.
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Stop training and delete paid resources after this many hours
    #[arg(long, value_name = "HOURS", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=720))]
    max_hours: u32,
    /// Train on synthetic data on the rented machines
    ///
    /// Needed for the dataset glyphs, and for CIFAR-10 and texts without a folder on these machines (-- --data-dir PATH).
    #[arg(long)]
    synthetic: bool,
    /// Name the job and its resources [default: systole-MODEL]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Read chips and prices that replace or extend the built-in tables
    #[arg(long, value_name = "FILE")]
    tables: Option<PathBuf>,
    /// Additional arguments of `systole train`, after `--`
    #[arg(last = true, value_name = "ARGS")]
    args: Vec<String>,
}

impl RunCommand for CloudArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        let place = CloudPlatform::of(&self.place).map_err(CommandError::usage)?;
        let options = self.options();
        place.check(&options).map_err(CommandError::usage)?;
        let tables = plan::tables(self.tables.as_deref())?;
        let model = model(&self.model).map_err(|e| CommandError::usage(e.at("MODEL")))?;
        let config = train_config(&self.args, &self.model)?;
        check_data(&config.data, &self.model, self.synthetic).map_err(CommandError::usage)?;
        let job = CloudJob::new(&options, model, &tables).map_err(CommandError::usage)?;
        let mut files = (place.make)(&job).map_err(CommandError::usage)?;
        files.extend(job.model_file());
        systole_cloud::write(&self.out, &files)?;
        let paths: Vec<PathBuf> = files.iter().map(|file| self.out.join(&file.name)).collect();
        let cost = place.cost.map_or_else(|| job.cost(), String::from);
        let (region, zone) = job.region();
        let dollars = job.dollars_per_hour().filter(|_| place.cost.is_none());
        if screen.json {
            screen.object(&json!({
                "place": place.name,
                "chips": job.title(),
                "machines": job.machines(),
                "region": Some(region).filter(|region| !region.is_empty()),
                "zone": Some(zone).filter(|zone| !zone.is_empty()),
                "dollars_per_hour": dollars,
                "max_hours": self.max_hours,
                "files": paths,
            }));
            return Ok(0);
        }
        let parts = job.parts().map_or_else(String::new, |parts| format!(" ({parts})"));
        screen.line(format!("{}{parts}, {}: {cost}", job.title(), place.about));
        let width = paths.iter().map(|path| quoted(path).chars().count()).max().unwrap_or(0);
        for (file, path) in files.iter().zip(&paths) {
            screen.line(format!("  {:<width$}  {}", quoted(path), file.what));
        }
        let next = place.next.replace("{}", &quoted(&self.out));
        screen.line(format!("Nothing was started. Review the files, then run: {next}"));
        screen
            .line("See docs/guide/cloud.md for the requirements of each platform, and for what was tested.");
        Ok(0)
    }
}

impl CloudArgs {
    fn options(&self) -> CloudOptions {
        CloudOptions {
            slice: self.slice.clone(),
            spot: self.spot,
            region: self.region.clone(),
            zone: self.zone.clone(),
            num_slices: self.num_slices,
            nodes: self.nodes,
            bucket: self.bucket.clone(),
            image: self.image.clone(),
            max_hours: self.max_hours,
            name: self.name.clone(),
            args: self.args.clone(),
        }
    }
}

/// Resolves the model to train: a preset or a TOML file.
fn model(name: &str) -> Result<JobModel> {
    let target = CommandTarget::of(name)?;
    let batch = target.config()?.map(|config| config.fit.batch_size);
    match target {
        CommandTarget::Preset(preset) => Ok(JobModel { name: preset.into(), toml: None, batch }),
        CommandTarget::Toml(path) => {
            let text = std::fs::read_to_string(&path).map_err(|e| Error::io("cannot read", &path, e))?;
            Ok(JobModel { name: file_name(&path), toml: Some(text), batch })
        }
        CommandTarget::Model(_) | CommandTarget::Folder(_) => {
            let what = format!("`{name}` is not a preset or TOML file");
            let hint = "write a TOML file first with `systole init PRESET --out run.toml` or `systole train … --print-config`";
            Err(Error::new(ErrorKind::Config, what).hint_command(hint))
        }
    }
}

/// Returns the configuration that the words after `--` result in. Rejects words that are not arguments of `systole train`,
/// because a mistake on a rented machine costs money.
fn train_config(words: &[String], model: &str) -> CommandResult<RunConfig> {
    check_given(words).map_err(CommandError::usage)?;
    let line = ["systole", "train", model].into_iter().map(String::from).chain(words.iter().cloned());
    let refused = |e: clap::Error| {
        let told = e.to_string();
        let first = told.lines().next().unwrap_or_default().trim_start_matches("error: ").to_string();
        let e = Error::new(ErrorKind::Config, first).at("arguments after --");
        CommandError::usage(e.hint_command("see the arguments of `systole train` with: systole help train"))
    };
    let matches = clap_root::command().try_get_matches_from(line).map_err(refused)?;
    let none = || err!(Bug, "the arguments of train were not parsed");
    let train = TrainArgs::from_arg_matches(matches.subcommand_matches("train").ok_or_else(none)?);
    let draft = match CommandTarget::of(model).map_err(CommandError::usage)? {
        CommandTarget::Toml(path) => ConfigDraft::read(path)?,
        _ => ConfigDraft::preset(model)?,
    };
    train.map_err(refused)?.config(draft).map_err(|e| CommandError::usage(e.error.at("arguments after --")))
}

/// Rejects data that will not be on the rented machines, and synthetic data without `--synthetic`.
fn check_data(data: &DataSection, model: &str, is_synthetic: bool) -> Result<()> {
    let copy = "copy the data to the machines and pass its path there: -- --data-dir PATH";
    let what = match (data.dataset.as_str(), &data.dir) {
        ("glyphs", _) => "the dataset glyphs is synthetic",
        _ if data.synthetic() == "always" => "the configuration sets data.synthetic",
        ("text", None) => "no text is named, and the machines have none",
        ("cifar10", None) if data.synthetic() == "fallback" => {
            "`cifar10` becomes synthetic images if its download fails, and its folder is not named"
        }
        ("folder" | "records" | "sentences", None) => {
            return Err(err!(Config, "the location of the data of `{model}` is not set")
                .hint_setting(format!("{copy}; or set data.dir in the TOML file")));
        }
        _ if is_synthetic => {
            return Err(err!(Config, "`{model}` trains on `{}`, which is not synthetic", data.dataset)
                .at("--synthetic")
                .hint_command("remove --synthetic"));
        }
        _ => return Ok(()),
    };
    if is_synthetic {
        return Ok(());
    }
    let hint = match data.dataset.as_str() {
        "glyphs" => "pass --synthetic to rent machines for it, or choose a model with another dataset".into(),
        _ => format!("{copy}; or pass --synthetic to rent machines for synthetic data"),
    };
    Err(err!(Config, "`{model}` would train on synthetic data").because(what).hint_command(hint))
}
