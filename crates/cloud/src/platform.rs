//! Table of platforms (TPU VM, GKE, Vertex AI, Ray, SLURM, Kaggle, Colab): description, generator and unsupported
//! options.
//!
//! A new platform is a file and a row here.

use super::generated_file::GeneratedFile;
use super::job::CloudJob;
use super::{gke, notebook, ray, slurm, tpu_vm, vertex};
use crate::CloudOptions;
use systole_ir::{Result, err};
use systole_nn::did_you_mean::suggestion;

/// A cloud, cluster or notebook service with TPUs or GPUs, such as GKE or Colab.
pub struct CloudPlatform {
    /// Name on the command line.
    pub name: &'static str,
    /// Short description.
    pub about: &'static str,
    /// Generates its files for a job.
    pub make: fn(&CloudJob) -> Result<Vec<GeneratedFile>>,
    /// Command to run next; `{}` is replaced by the folder.
    pub next: &'static str,
    /// Statement about the cost, if the price tables do not apply.
    pub cost: Option<&'static str>,
    /// Unsupported options, each with the reason and what to do: `reason: hint`.
    without: &'static [(&'static str, &'static str)],
}

/// Rule for platforms whose chips determine the number of machines.
const NO_NODES: (&str, &str) =
    ("--nodes", "it is for SLURM, and the slice determines the number of machines: remove --nodes");

const NOTEBOOK: &[(&str, &str)] = &[
    NO_NODES,
    ("--spot", "a notebook's machine has no spot price: remove --spot"),
    ("--region", "a notebook has no region: remove --region"),
    ("--zone", "a notebook has no zone: remove --zone"),
    ("--bucket", "the run is stored in your Drive or in the notebook's output: remove --bucket"),
    ("--image", "the program is installed from a wheel: remove --image"),
];
const SLURM: &[(&str, &str)] = &[
    ("--spot", "SLURM clusters have no spot price, and a preempted job is requeued: remove --spot"),
    ("--region", "a cluster has no region: remove --region"),
    ("--zone", "a cluster has no zone: remove --zone"),
    ("--bucket", "the run is stored in the folder that sbatch is called in: remove --bucket"),
    ("--image", "the program is installed on the cluster: remove --image"),
];
const NO_IMAGE: &[(&str, &str)] =
    &[NO_NODES, ("--image", "the program itself is copied, not an image: remove --image")];

static PLACES: [CloudPlatform; 7] = [
    CloudPlatform {
        name: "tpu-vm",
        about: "a Cloud TPU with gcloud",
        make: tpu_vm::files,
        next: "cd {} && ./run.sh",
        cost: None,
        without: NO_IMAGE,
    },
    CloudPlatform {
        name: "gke",
        about: "Kubernetes with JobSet",
        make: gke::files,
        next: "cd {} && CLUSTER=NAME ./run.sh",
        cost: None,
        without: &[NO_NODES],
    },
    CloudPlatform {
        name: "vertex",
        about: "a Vertex AI custom job",
        make: vertex::files,
        next: "cd {} && ./run.sh",
        cost: None,
        without: &[NO_NODES],
    },
    CloudPlatform {
        name: "ray",
        about: "a Ray job",
        make: ray::files,
        next: "cd {} && ray job submit --working-dir . -- python job.py",
        cost: None,
        without: NO_IMAGE,
    },
    CloudPlatform {
        name: "slurm",
        about: "a SLURM batch script",
        make: slurm::files,
        next: "cd {} && sbatch job.sh",
        cost: Some("the cost depends on the cluster"),
        without: SLURM,
    },
    CloudPlatform {
        name: "kaggle",
        about: "a Kaggle notebook",
        make: notebook::kaggle,
        next: "cd {} && kaggle kernels push",
        cost: Some("free within Kaggle's weekly quota"),
        without: NOTEBOOK,
    },
    CloudPlatform {
        name: "colab",
        about: "a Colab notebook",
        make: notebook::colab,
        next: "upload {}/colab.ipynb to Colab: File → Upload notebook",
        cost: Some("free, or billed in Colab compute units"),
        without: NOTEBOOK,
    },
];

impl CloudPlatform {
    /// Returns the cloud platform with this name.
    ///
    /// # Errors
    /// If the name is unknown.
    pub fn of(name: &str) -> Result<&'static CloudPlatform> {
        PLACES.iter().find(|place| place.name == name).ok_or_else(|| {
            let names: Vec<&str> = PLACES.iter().map(|place| place.name).collect();
            err!(Config, "unknown platform `{name}`").hint_command(suggestion(name, &names))
        })
    }

    /// Rejects options that the platform does not support.
    ///
    /// # Errors
    /// If such an option is given.
    pub fn check(&self, args: &CloudOptions) -> Result<()> {
        let given = |option: &str| match option {
            "--spot" => args.spot,
            "--region" => args.region.is_some(),
            "--zone" => args.zone.is_some(),
            "--bucket" => args.bucket.is_some(),
            "--nodes" => args.nodes.is_some(),
            _ => args.image.is_some(),
        };
        match self.without.iter().find(|(option, _)| given(option)) {
            None => Ok(()),
            Some((option, why)) => {
                let (why, hint) = why.rsplit_once(": ").unwrap_or(("", why));
                let e = err!(Config, "the platform {} does not support {option}", self.name).at(*option);
                Err(e.because(why).hint_command(hint))
            }
        }
    }
}
