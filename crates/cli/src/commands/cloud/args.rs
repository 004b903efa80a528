//! The arguments of `systole cloud`.

use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct CloudArgs {
    /// Where to run: tpu-vm, gke, vertex, ray, slurm, kaggle or colab
    pub(super) place: String,
    /// What to train: a preset or a TOML file, which is copied beside the files
    pub(super) model: String,
    /// A TPU slice as `plan` names it (v5e-8, v5p-64), or GPUs of one machine for slurm, ray and notebooks (8*h100, t4), or cores of
    /// each machine for slurm (16*cpu)
    #[arg(long, value_name = "SLICE")]
    pub(super) slice: String,
    /// Folder for the files; it must be empty or not there yet
    #[arg(short, long, value_name = "DIR")]
    pub(super) out: PathBuf,
    /// Machines that may be taken back at any time, at their price; the run goes on where it was. Needs --bucket
    #[arg(long)]
    pub(super) spot: bool,
    /// The provider's region [default: the first that has the chips and a price for them]
    #[arg(long, value_name = "REGION")]
    pub(super) region: Option<String>,
    /// The zone within the region [default: one that has the chips]
    #[arg(long, value_name = "ZONE")]
    pub(super) zone: Option<String>,
    /// So many equal slices, joined by the data centre's network; each must be of several machines
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(super) num_slices: Option<u16>,
    /// Machines of a job of SLURM, a process of the run on each, which are joined by Systole's own plugin: for --slice 16*cpu
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) nodes: Option<u16>,
    /// Bucket that the run is kept in, gs://NAME; needed where machines lose their disks and where there are several
    #[arg(long, value_name = "gs://NAME")]
    pub(super) bucket: Option<String>,
    /// Container image with the program, for gke and vertex: the address that you pushed it to
    #[arg(long, value_name = "IMAGE")]
    pub(super) image: Option<String>,
    /// Hours after which training is stopped and what costs money is deleted, done or not
    #[arg(long, value_name = "HOURS", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=720))]
    pub(super) max_hours: u32,
    /// Name of the job and of what is made for it [default: systole-MODEL]
    #[arg(long, value_name = "NAME")]
    pub(super) name: Option<String>,
    /// A TOML file with chips and prices that replace or extend the built-in ones
    #[arg(long, value_name = "FILE")]
    pub(super) tables: Option<PathBuf>,
    /// More arguments of `systole train`, after `--`
    #[arg(last = true, value_name = "ARGS")]
    pub(super) args: Vec<String>,
}
