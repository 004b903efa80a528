//! `systole cloud`: files that run a training in a cloud, a cluster or a notebook.

use crate::args::clap_root;
use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandError, CommandResult, RunCommand};
use crate::commands::plan;
use crate::models::command_target::CommandTarget;
use crate::render::screen::{Screen, quoted};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;
use systole_cloud::{CloudJob, CloudOptions, CloudPlatform, JobModel, check_given, file_name};
use systole_ir::{Error, ErrorKind, Result};

#[derive(Args)]
pub(crate) struct CloudArgs {
    /// Where to run: tpu-vm, gke, vertex, ray, slurm, kaggle or colab
    place: String,
    /// What to train: a preset or a TOML file, which is copied beside the files
    model: String,
    /// A TPU slice as `plan` names it (v5e-8, v5p-64), or GPUs of one machine for slurm, ray and notebooks (8*h100, t4), or cores of
    /// each machine for slurm (16*cpu)
    #[arg(long, value_name = "SLICE")]
    slice: String,
    /// Folder for the files; it must be empty or not there yet
    #[arg(short, long, value_name = "DIR")]
    out: PathBuf,
    /// Machines that may be taken back at any time, at their price; the run goes on where it was. Needs --bucket
    #[arg(long)]
    spot: bool,
    /// The provider's region [default: the first that has the chips and a price for them]
    #[arg(long, value_name = "REGION")]
    region: Option<String>,
    /// The zone within the region [default: one that has the chips]
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
    /// So many equal slices, joined by the data centre's network; each must be of several machines
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    num_slices: Option<u16>,
    /// Machines of a job of SLURM, a process of the run on each, which are joined by Systole's own plugin: for --slice 16*cpu
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    nodes: Option<u16>,
    /// Bucket that the run is kept in, gs://NAME; needed where machines lose their disks and where there are several
    #[arg(long, value_name = "gs://NAME")]
    bucket: Option<String>,
    /// Container image with the program, for gke and vertex: the address that you pushed it to
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Hours after which training is stopped and what costs money is deleted, done or not
    #[arg(long, value_name = "HOURS", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=720))]
    max_hours: u32,
    /// Name of the job and of what is made for it [default: systole-MODEL]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// A TOML file with chips and prices that replace or extend the built-in ones
    #[arg(long, value_name = "FILE")]
    tables: Option<PathBuf>,
    /// More arguments of `systole train`, after `--`
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
        check_arguments(&self.args, &model.name).map_err(CommandError::usage)?;
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
        screen.line(format!("Nothing was started. Read them, then: {next}"));
        screen.line("docs/guide/cloud.md says what else each place needs, what of this was run, and what only checked.");
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

/// What is trained: a preset or a TOML file.
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
            let what = format!("`{name}` is neither a preset nor a TOML file");
            let hint = "write the run into a TOML file first: systole init PRESET --out run.toml, or `systole train … --print-config`";
            Err(Error::new(ErrorKind::Config, what).hint(hint))
        }
    }
}

/// What follows `--` must be arguments of `systole train`: on the rented machine a mistake would cost money.
fn check_arguments(words: &[String], model: &str) -> Result<()> {
    check_given(words)?;
    let line = ["systole", "train", model].into_iter().map(String::from).chain(words.iter().cloned());
    match clap_root::command().try_get_matches_from(line) {
        Ok(_) => Ok(()),
        Err(e) => {
            let told = e.to_string();
            let first = told.lines().next().unwrap_or_default().trim_start_matches("error: ").to_string();
            let e = Error::new(ErrorKind::Config, first).at("arguments after --");
            Err(e.hint("they are those of `systole train`: systole help train"))
        }
    }
}
