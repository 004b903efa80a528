//! The places: what each is, which options it has no use for, and what makes its files. A new place is a file and a row here.

use super::generated_file::GeneratedFile;
use super::job::CloudJob;
use super::{gke, notebook, ray, slurm, tpu_vm, vertex};
use crate::CloudOptions;
use systole_ir::{Error, ErrorKind, Result};
use systole_nn::did_you_mean::suggestion;

/// A place with TPUs or GPUs.
pub struct CloudPlatform {
    /// Name on the command line.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// Its files for a job.
    pub make: fn(&CloudJob) -> Result<Vec<GeneratedFile>>,
    /// What to do next; `{}` stands for the folder.
    pub next: &'static str,
    /// What is to be said of the cost, where the tables' prices are not what is paid.
    pub cost: Option<&'static str>,
    /// Options that it has no use for: why, and what to do.
    without: &'static [(&'static str, &'static str)],
}

/// A place whose chips say how many machines there are.
const NO_NODES: (&str, &str) =
    ("--nodes", "it is for SLURM; the slice says how many machines there are: leave --nodes out");

const NOTEBOOK: &[(&str, &str)] = &[
    NO_NODES,
    ("--spot", "a notebook's machine has no spot price: leave --spot out"),
    ("--region", "a notebook has no region: leave --region out"),
    ("--zone", "a notebook has no zone: leave --zone out"),
    ("--bucket", "the run is kept in your Drive or in the notebook's output: leave --bucket out"),
    ("--image", "the program comes as a wheel: leave --image out"),
];
const SLURM: &[(&str, &str)] = &[
    (
        "--spot",
        "a cluster of SLURM has no spot price, and what is taken back is queued again: leave --spot out",
    ),
    ("--region", "a cluster has no region: leave --region out"),
    ("--zone", "a cluster has no zone: leave --zone out"),
    ("--bucket", "the run is kept in the folder that sbatch is called in: leave --bucket out"),
    ("--image", "the program is one of the cluster's: leave --image out"),
];
const NO_IMAGE: &[(&str, &str)] =
    &[NO_NODES, ("--image", "the program itself is copied, no image: leave --image out")];

static PLACES: [CloudPlatform; 7] = [
    CloudPlatform {
        name: "tpu-vm",
        about: "Cloud TPU by gcloud",
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
        about: "a custom job of Vertex AI",
        make: vertex::files,
        next: "cd {} && ./run.sh",
        cost: None,
        without: &[NO_NODES],
    },
    CloudPlatform {
        name: "ray",
        about: "a job of Ray",
        make: ray::files,
        next: "cd {} && ray job submit --working-dir . -- python job.py",
        cost: None,
        without: NO_IMAGE,
    },
    CloudPlatform {
        name: "slurm",
        about: "a batch script of SLURM",
        make: slurm::files,
        next: "cd {} && sbatch job.sh",
        cost: Some("the cluster says what it costs"),
        without: SLURM,
    },
    CloudPlatform {
        name: "kaggle",
        about: "a notebook of Kaggle",
        make: notebook::kaggle,
        next: "cd {} && kaggle kernels push",
        cost: Some("free of charge, so many hours a week as Kaggle says"),
        without: NOTEBOOK,
    },
    CloudPlatform {
        name: "colab",
        about: "a notebook of Colab",
        make: notebook::colab,
        next: "upload {}/colab.ipynb to Colab: File → Upload notebook",
        cost: Some("free of charge or by Colab's compute units, as it says"),
        without: NOTEBOOK,
    },
];

impl CloudPlatform {
    /// By its name.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn of(name: &str) -> Result<&'static CloudPlatform> {
        PLACES.iter().find(|place| place.name == name).ok_or_else(|| {
            let names: Vec<&str> = PLACES.iter().map(|place| place.name).collect();
            Error::new(ErrorKind::Config, format!("there is no place `{name}`"))
                .hint(suggestion(name, &names))
        })
    }

    /// Refuses options that it has no use for.
    ///
    /// # Errors
    /// When there is one.
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
                let e = Error::new(ErrorKind::Config, format!("{} has no {option}", self.name)).at(*option);
                Err(e.because(why).hint(hint))
            }
        }
    }
}
