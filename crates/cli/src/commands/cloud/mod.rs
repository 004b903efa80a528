//! `systole cloud`: the files that a place with TPUs or GPUs needs to run a training there. Nothing is started and nobody is asked.

mod args;
mod chips;
mod facts;
mod file;
mod gke;
mod guard;
mod image;
mod job;
mod notebook;
mod place;
mod ray;
mod region;
mod shell;
mod slurm;
mod tpu_vm;
mod vertex;
mod words;
mod yaml;

pub(crate) use args::CloudArgs;

use crate::args::common::Common;
use crate::args::outcome::{Failure, Outcome, Run};
use crate::commands::plan;
use crate::render::screen::{Screen, quoted};
use file::File;
use job::Job;
use place::Place;
use serde_json::json;
use std::path::{Path, PathBuf};
use systole_data::disk::{Disk, write_atomically};
use systole_ir::{Error, ErrorKind, Result};

impl Run for CloudArgs {
    fn run(self, _: &Common, screen: &Screen) -> Outcome {
        let place = Place::of(&self.place).map_err(Failure::usage)?;
        place.check(&self).map_err(Failure::usage)?;
        let tables = plan::tables(self.tables.as_deref())?;
        let job = Job::of(&self, &tables)?;
        let mut files = (place.make)(&job).map_err(Failure::usage)?;
        files.extend(job.model_file());
        write(&self.out, &files)?;
        let paths: Vec<PathBuf> = files.iter().map(|file| self.out.join(&file.name)).collect();
        let cost = place.cost.map_or_else(|| job.cost(), String::from);
        let dollars = job.dollars_per_hour().filter(|_| place.cost.is_none());
        if screen.json {
            screen.object(&json!({
                "place": place.name,
                "chips": job.chips.title(),
                "machines": job.chips.machines(),
                "region": Some(&job.region.region).filter(|region| !region.is_empty()),
                "zone": Some(&job.region.zone).filter(|zone| !zone.is_empty()),
                "dollars_per_hour": dollars,
                "max_hours": self.max_hours,
                "files": paths,
            }));
            return Ok(0);
        }
        let parts = job.chips.parts().map_or_else(String::new, |parts| format!(" ({parts})"));
        screen.line(format!("{}{parts}, {}: {cost}", job.chips.title(), place.about));
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

/// A folder with something in it stays as it is: files of another place beside these would be started by mistake.
fn write(folder: &Path, files: &[File]) -> Result<()> {
    let failed = |e: std::io::Error| {
        Error::io("cannot make the folder", folder, e).at("--out").hint("choose another folder with --out")
    };
    if folder.exists() {
        let mut entries = std::fs::read_dir(folder).map_err(failed)?;
        if let Some(entry) = entries.next().transpose().map_err(failed)? {
            let what = format!("{} is not empty: it has {}", folder.display(), entry.file_name().display());
            let e = Error::new(ErrorKind::Io, what).at("--out");
            return Err(e.hint("choose another folder with --out, or delete what is in this one"));
        }
    }
    std::fs::create_dir_all(folder).map_err(failed)?;
    files.iter().try_for_each(|file| {
        let path = folder.join(&file.name);
        write_atomically(&Disk, &path, &[file.text.as_bytes()])?;
        if file.is_script() { make_executable(&path) } else { Ok(()) }
    })
}

fn make_executable(path: &Path) -> Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
            .map_err(|e| Error::io("cannot make it executable:", path, e).hint("chmod +x it"))?;
    }
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}
