//! Generates the files for a training run on a cloud, cluster or notebook service: scripts, manifests, notebooks.
//!
//! Starts nothing and contacts no server.

mod chips;
mod generated_file;
mod gke;
mod image;
mod job;
mod notebook;
mod platform;
mod ray;
mod region;
mod shell;
mod slurm;
mod time_limit;
mod tpu_vm;
mod train_args;
mod vertex;
mod yaml;

pub use generated_file::GeneratedFile;
pub use job::{CloudJob, JobModel};
pub use platform::CloudPlatform;
pub use train_args::{check_given, file_name};

use std::path::Path;
use systole_data::file_system::{OsFileSystem, write_atomically};
use systole_ir::{Error, Result, err};

/// Options of a cloud training job.
#[derive(Clone, Debug, Default)]
pub struct CloudOptions {
    /// A TPU slice (`v5e-8`), GPUs of one machine (`8*h100`) or cores of each machine (`16*cpu`).
    pub slice: String,
    /// Whether machines may be preempted.
    pub spot: bool,
    /// Cloud region; by default the first with the chips and a known price.
    pub region: Option<String>,
    /// The zone within the region.
    pub zone: Option<String>,
    /// Number of equal slices.
    pub num_slices: Option<u16>,
    /// Number of machines of a SLURM job.
    pub nodes: Option<u16>,
    /// Bucket of the run, `gs://NAME`.
    pub bucket: Option<String>,
    /// Address of a container image with the program.
    pub image: Option<String>,
    /// Hours until training is stopped and paid resources are deleted.
    pub max_hours: u32,
    /// Name of the job; by default derived from the model's.
    pub name: Option<String>,
    /// Additional arguments of `systole train`.
    pub args: Vec<String>,
}

/// Writes the files of a job into an empty or new folder. Files of another platform next to them could be started by
/// mistake.
///
/// # Errors
/// If the folder is not empty, or a file cannot be written.
pub fn write(folder: &Path, files: &[GeneratedFile]) -> Result<()> {
    let failed = |e: std::io::Error| {
        Error::io("cannot create the folder", folder, e)
            .at("--out")
            .hint_command("choose another folder with --out")
    };
    if folder.exists() {
        let mut entries = std::fs::read_dir(folder).map_err(failed)?;
        if let Some(entry) = entries.next().transpose().map_err(failed)? {
            let e =
                err!(Io, "`{}` is not empty: it contains {}", folder.display(), entry.file_name().display())
                    .at("--out");
            return Err(
                e.hint_command("choose another folder with --out, or delete the files in this folder")
            );
        }
    }
    std::fs::create_dir_all(folder).map_err(failed)?;
    files.iter().try_for_each(|file| {
        let path = folder.join(&file.name);
        write_atomically(&OsFileSystem, &path, &[file.text.as_bytes()])?;
        if file.is_script() { make_executable(&path) } else { Ok(()) }
    })
}

fn make_executable(path: &Path) -> Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).map_err(|e| {
            Error::io("cannot make executable:", path, e).hint("make the script executable with chmod +x")
        })?;
    }
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}

// Names of the previous version.
systole_base::renamed! { File => GeneratedFile, Job => CloudJob, Model => JobModel, Options => CloudOptions, Place => CloudPlatform }
