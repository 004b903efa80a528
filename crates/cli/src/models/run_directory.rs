//! A run's folder: what is kept there for the run to go on after a kill, and whether it may.
//!
//! `run.json` says how the run was started; `backups/` holds what it had reached.

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::ErrorKind as Io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use systole_config::RunConfig;
use systole_data::PipelineTuning;
use systole_ir::{Error, ErrorKind, Result};
use systole_nn::{BackupAndRestore, Model, OsFileSystem, RunPosition, counted, write_atomically};

/// What happens where the folder holds a run already.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum ResumeMode {
    /// Go on with it; refuse when the configuration is another one
    #[default]
    Auto,
    /// Go on with it, by the configuration of now
    Force,
    /// Give it up and start anew
    Never,
}

/// How often a run is saved. Its results do not depend on it.
#[derive(Args, Clone, Debug)]
pub(crate) struct SaveArgs {
    /// Save the run every so many seconds, beside after every epoch
    #[arg(long, value_name = "S", default_value_t = 60)]
    save_seconds: u64,
    /// Save the run every so many steps, too
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    save_steps: Option<u64>,
    /// How many of the last saved states to keep
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    keep: u16,
    /// Write the configuration with the threads and queues that were found while training; trained with, it uses them as
    /// they are
    #[arg(long, value_name = "FILE.toml")]
    freeze: Option<PathBuf>,
}

impl SaveArgs {
    /// Writes the configuration as `--freeze` asks; says where.
    pub(crate) fn freeze(
        &self,
        config: &RunConfig,
        tuning: Option<&PipelineTuning>,
    ) -> Result<Option<&Path>> {
        let (Some(path), Some(tuning)) = (&self.freeze, tuning) else { return Ok(None) };
        write_atomically(&OsFileSystem, path, &[config.frozen(tuning)?.as_bytes()])?;
        Ok(Some(path))
    }

    fn apply(&self, backup: BackupAndRestore) -> BackupAndRestore {
        let backup = backup.every(Duration::from_secs(self.save_seconds)).keep(self.keep.into());
        match self.save_steps {
            Some(steps) => backup.every_steps(steps),
            None => backup,
        }
    }
}

/// How a run was started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunRecord {
    pub(crate) config: RunConfig,
    /// Why this data set.
    pub(crate) reason: String,
    /// The saved model that it goes on from.
    pub(crate) from: Option<String>,
    /// Epochs that this model had.
    pub(crate) initial_epoch: usize,
    /// What tells this model from others of its path: a run may write over the file that it went on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) start: Option<String>,
    /// What tells the data from others of the same name: a folder of pictures may change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<String>,
    /// What steps run on. Others add sums in another order, so they give other bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) devices: Option<String>,
}

/// What training is to do.
pub(crate) struct ResumePlan {
    pub(crate) backup: BackupAndRestore,
    /// Where the run in the folder stands; `None`: a new run.
    pub(crate) place: Option<RunPosition>,
    pub(crate) initial_epoch: usize,
    /// The devices that it was on before, where they are others now.
    pub(crate) moved_from: Option<String>,
    /// Whether a new run must beat the best model that the folder holds: it goes on from there, on the same data.
    pub(crate) best_goes_on: bool,
    /// How the run was started, where the folder does not say so yet.
    unwritten: Option<RunRecord>,
}

impl ResumePlan {
    /// Writes down in the folder how the run was started.
    pub(crate) fn write_down(&self, folder: &Path) -> Result<()> {
        self.unwritten.as_ref().map_or(Ok(()), |record| record.write(folder))
    }
}

/// How the file with the model of the best epoch ends, and that with the last one's.
pub(crate) const BEST: &str = ".best.safetensors";
pub(crate) const LAST: &str = ".safetensors";
/// Where adapters are kept apart from the model that they are merged into: no model of its own.
pub(crate) const ADAPTERS: &str = "adapters.safetensors";

/// The model file that a name on the command line means: of a run's folder the best model, or else the last.
///
/// # Errors
/// When the folder holds no model, or models of several data sets.
pub(crate) fn model_file(name: &str) -> Result<String> {
    let folder = Path::new(name);
    if !folder.is_dir() {
        return Ok(name.into());
    }
    let entries = std::fs::read_dir(folder).map_err(|e| Error::io("cannot look into", folder, e))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let models: Vec<String> = names.filter(|n| n.ends_with(LAST) && n != ADAPTERS).collect();
    let stem = |n: &String| n.strip_suffix(BEST).or(n.strip_suffix(LAST)).unwrap_or_default().to_string();
    let stems: BTreeSet<String> = models.iter().map(stem).collect();
    let path = |file: &String| folder.join(file).display().to_string();
    match (stems.len(), stems.first()) {
        (1, Some(stem)) => {
            let best = format!("{stem}{BEST}");
            Ok(path(&if models.contains(&best) { best } else { format!("{stem}{LAST}") }))
        }
        (2.., _) => {
            let e = Error::new(ErrorKind::Config, format!("{name} holds several models"));
            Err(e.hint(format!(
                "name one of them: {}",
                models.iter().map(path).collect::<Vec<_>>().join(", ")
            )))
        }
        _ => {
            let e = Error::new(ErrorKind::Io, format!("{name} holds no model"));
            Err(match record_file(folder).is_file() {
                true => e
                    .because("its run was stopped before it saved one")
                    .hint(format!("go on with it: resume {name}")),
                false => e.hint("name a model file, or the folder of a run, such as runs/PRESET"),
            })
        }
    }
}

pub(crate) fn record_file(folder: &Path) -> PathBuf {
    folder.join("run.json")
}

fn backups(folder: &Path) -> BackupAndRestore {
    BackupAndRestore::new(folder.join("backups"))
}

/// Where the run in a folder stands.
pub(crate) fn place(folder: &Path) -> Result<Option<RunPosition>> {
    backups(folder).place()
}

/// The rate that the run in a folder has found, where it is otherwise of this configuration.
pub(crate) fn found_rate(folder: &Path, config: &RunConfig) -> Result<Option<f64>> {
    let Some(earlier) = RunRecord::read(folder)?.map(|record| record.config) else { return Ok(None) };
    let Some(found) = earlier.lr_find.as_ref().and_then(|section| section.found) else { return Ok(None) };
    let mut now = config.clone();
    now.set_found_rate(found);
    Ok((keys_of(&now) == keys_of(&earlier)).then_some(found))
}

/// The model as the run in a folder had it last; `None` where it has saved nothing yet.
pub(crate) fn saved(folder: &Path) -> Result<Option<Model>> {
    backups(folder).model()
}

impl RunRecord {
    /// The run in a folder; `None` where there is none.
    pub(crate) fn read(folder: &Path) -> Result<Option<RunRecord>> {
        let path = record_file(folder);
        let text = match std::fs::read_to_string(&path) {
            Err(e) if matches!(e.kind(), Io::NotFound | Io::NotADirectory) => return Ok(None),
            text => text.map_err(|e| Error::io("cannot read", &path, e))?,
        };
        serde_json::from_str(&text).map(Some).map_err(|e| {
            Error::new(ErrorKind::Data, "the account of how the run was started is not readable")
                .at(path.display().to_string())
                .because(e.to_string())
                .hint("train with --resume=never, or choose another folder with --out")
        })
    }

    fn write(&self, folder: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|e| Error::new(ErrorKind::Bug, "a run does not serialise").because(e.to_string()))?;
        write_atomically(&OsFileSystem, &record_file(folder), &[text.as_bytes(), b"\n"])
    }

    /// Where this run writes if nobody says so: `base`, or the first of `base-2`, `base-3`, … where a finished run of
    /// another configuration has the name.
    pub(crate) fn folder(&self, base: &Path) -> Result<PathBuf> {
        let name = base.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for k in 1.. {
            let folder = if k == 1 { base.to_path_buf() } else { base.with_file_name(format!("{name}-{k}")) };
            let taken = match RunRecord::read(&folder)? {
                Some(earlier)
                    if !self.is_after(&earlier, &folder) && !self.differences(&earlier).is_empty() =>
                {
                    backups(&folder).place()?.is_some_and(|p| p.finished)
                }
                _ => false,
            };
            if !taken {
                return Ok(folder);
            }
        }
        Ok(base.into())
    }

    /// Decides whether this run starts, or goes on with the one in the folder.
    ///
    /// # Errors
    /// When the run in the folder was started otherwise: names each key that differs.
    pub(crate) fn plan(mut self, folder: &Path, resume: ResumeMode, save: &SaveArgs) -> Result<ResumePlan> {
        let earlier = RunRecord::read(folder)?;
        let place = match resume {
            ResumeMode::Never => None,
            _ => backups(folder).place()?,
        };
        let after = earlier.as_ref().is_some_and(|earlier| self.is_after(earlier, folder));
        let best_goes_on = after && earlier.as_ref().is_some_and(|earlier| self.measures_as(earlier));
        // A finished run that is named as what to go on from has nothing left to lose.
        let place = place.filter(|place| !(place.finished && after));
        // A run that was killed before it could take the backups of the one before away.
        let began = earlier.as_ref().filter(|e| e.from.is_some()).map(|e| e.initial_epoch);
        let place =
            place.filter(|place| !(place.finished && began.is_some_and(|first| place.epoch <= first)));
        if let (Some(place), Some(earlier)) = (&place, &earlier) {
            (self.initial_epoch, self.start) = (earlier.initial_epoch, earlier.start.clone());
            let differs = self.differences(earlier);
            if resume == ResumeMode::Auto && !differs.is_empty() {
                return Err(refused(folder, place, &differs));
            }
        }
        let backup = save.apply(backups(folder)).restart(place.is_none());
        let is_new = earlier.as_ref() != Some(&self);
        let before = earlier.and_then(|e| e.devices).filter(|_| place.as_ref().is_some_and(|p| !p.finished));
        let moved_from = before.filter(|before| self.devices.as_ref() != Some(before));
        let initial_epoch = self.initial_epoch;
        Ok(ResumePlan {
            backup,
            place,
            initial_epoch,
            moved_from,
            best_goes_on,
            unwritten: is_new.then_some(self),
        })
    }

    /// Whether this run goes on from where a finished one of the folder came to: from a model that lies there, or by the same
    /// command once the file that it names holds another model. The same command and the same model are the same run.
    fn is_after(&self, earlier: &RunRecord, folder: &Path) -> bool {
        let Some(from) = self.from.as_deref().map(Path::new) else { return false };
        let same = |a: &Path, b: &Path| {
            a == b || a.canonicalize().ok().zip(b.canonicalize().ok()).is_some_and(|(a, b)| a == b)
        };
        match earlier.from.as_deref().is_some_and(|before| same(Path::new(before), from)) {
            true => !self.starts_as(earlier),
            false => {
                same(from.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")), folder)
            }
        }
    }

    /// Whether both begin with the same model.
    fn starts_as(&self, earlier: &RunRecord) -> bool {
        match (&self.start, &earlier.start) {
            (Some(now), Some(before)) => now == before,
            // An earlier version did not write it down.
            _ => self.initial_epoch == earlier.initial_epoch,
        }
    }

    /// Whether both are measured on the same data.
    fn measures_as(&self, earlier: &RunRecord) -> bool {
        let of_data =
            |differs: &String| ["data.", "the data", "seed "].iter().any(|start| differs.starts_with(start));
        !self.differences(earlier).iter().any(of_data)
    }

    /// What must be the same on all hosts of a run, one key a line.
    pub(crate) fn common(&self) -> String {
        let lines: Vec<String> =
            self.keys().into_iter().map(|(key, value)| format!("{key} = {value}")).collect();
        lines.join("\n")
    }

    fn keys(&self) -> Vec<(String, String)> {
        let mut keys = keys_of(&self.config);
        keys.push(("--from".into(), self.from.clone().unwrap_or_else(|| "none".into())));
        keys.extend(self.data.iter().map(|data| ("the data".into(), data.clone())));
        keys
    }

    /// Keys whose values are others than in `earlier`: `fit.epochs is 10, was 5`.
    fn differences(&self, earlier: &RunRecord) -> Vec<String> {
        let (now, before) = (self.keys(), earlier.keys());
        let value = |keys: &[(String, String)], key: &str| {
            keys.iter().find(|(k, _)| k == key).map_or("not set".to_string(), |(_, v)| v.clone())
        };
        let mut all: Vec<&String> = now.iter().chain(&before).map(|(k, _)| k).collect();
        all.sort_unstable();
        all.dedup();
        let differs = all.into_iter().filter(|key| value(&now, key) != value(&before, key));
        differs.map(|key| format!("{key} is {}, was {}", value(&now, key), value(&before, key))).collect()
    }
}

/// The keys that say what a run computes, and their values.
fn keys_of(config: &RunConfig) -> Vec<(String, String)> {
    let mut keys = Vec::new();
    flatten("", &serde_json::to_value(config.without_loggers()).unwrap_or_default(), &mut keys);
    // Where the data lie is not what they are; how fast they are read, and what is told at the end, changes nothing.
    let told = ["data.dir", "data.tta", "fit.report", "fit.tui"];
    keys.retain(|(key, _)| !told.contains(&key.as_str()) && !key.starts_with("data.tuning"));
    keys
}

fn flatten(path: &str, value: &Value, keys: &mut Vec<(String, String)>) {
    let under = |key: &str| if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
    match value {
        Value::Object(map) => map.iter().for_each(|(key, v)| flatten(&under(key), v, keys)),
        Value::Array(list) if list.iter().any(Value::is_object) => {
            list.iter().enumerate().for_each(|(i, v)| flatten(&under(&i.to_string()), v, keys));
        }
        leaf => keys.push((path.to_string(), leaf.to_string())),
    }
}

fn refused(folder: &Path, place: &RunPosition, differs: &[String]) -> Error {
    let state = if place.finished { "a finished run" } else { "a run that is not finished" };
    let shown = folder.display();
    Error::new(ErrorKind::Config, format!("{shown} holds {state} with another configuration"))
        .because(differs.join("; "))
        .hint(format!(
            "`systole resume {shown}` goes on with it as it was; --resume=force by the new configuration; \
             --resume=never starts anew; --out names another folder"
        ))
}

/// `epoch 3, step 17 of it`, as people count.
pub(crate) fn told(place: &RunPosition) -> String {
    format!("epoch {}, after {} of it", place.epoch + 1, counted(place.steps as u64, "step"))
}
