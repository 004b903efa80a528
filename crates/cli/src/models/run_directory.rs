//! A run's folder: `run.json` (how the run was started), `backups/`, model files; decides whether a run resumes.

use crate::args::missing_path::missing;
use crate::models::imported::{is_model_folder, shortened};
use crate::models::pretrained::is_pretrained;
use clap::{Args, ValueEnum};
use serde::ser::Error as _;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::ErrorKind as Io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use systole_config::{RunConfig, shown_scale};
use systole_data::PipelineTuning;
use systole_data::input_file::is_remote;
use systole_ir::{Error, Result, ensure, err};
use systole_nn::{BackupAndRestore, Model, OsFileSystem, RunPosition, counted, write_atomically};

/// Action if the folder already has a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum ResumeMode {
    /// Resume it; fail if the configuration differs
    #[default]
    Auto,
    /// Resume it with the new configuration
    Force,
    /// Discard it and start a new run
    Never,
}

/// Backup schedule of a run. It does not affect the results.
#[derive(Args, Clone, Debug)]
pub(crate) struct SaveArgs {
    /// Back up the run every S seconds, in addition to every epoch
    #[arg(long, value_name = "S", default_value_t = 60)]
    save_seconds: u64,
    /// Back up the run every N steps, in addition to every epoch
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    save_steps: Option<u64>,
    /// Keep the newest N backups
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    keep: u16,
    /// Write the configuration with the tuned thread counts and queue sizes
    ///
    /// Training with that file uses these sizes without tuning.
    #[arg(long, value_name = "FILE.toml")]
    freeze: Option<PathBuf>,
}

impl SaveArgs {
    /// Writes the configuration if `--freeze` is set. Returns the path.
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

/// How a run was started; stored as `run.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunRecord {
    #[serde(serialize_with = "keys_that_are_set")]
    pub(crate) config: RunConfig,
    /// Why this dataset was chosen.
    pub(crate) reason: String,
    /// The saved model that the run continues from.
    pub(crate) from: Option<String>,
    /// Epochs that this model was trained for.
    pub(crate) initial_epoch: usize,
    /// Fingerprint of this model, because a run may overwrite the file that it continues from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) start: Option<String>,
    /// Fingerprint of the data, because an image folder may change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<String>,
    /// Devices of the training step. Other devices sum in another order, so the results are not bit-identical.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) devices: Option<String>,
    /// Name of the data in the names of the model files: the folder may have models of a discarded run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
}

fn keys_that_are_set<S: Serializer>(config: &RunConfig, to: S) -> std::result::Result<S::Ok, S::Error> {
    config.to_json().map_err(S::Error::custom)?.serialize(to)
}

/// Decision to start or resume a run.
pub(crate) struct ResumePlan {
    pub(crate) backup: BackupAndRestore,
    /// Position of the run in the folder; `None`: a new run.
    pub(crate) place: Option<RunPosition>,
    pub(crate) initial_epoch: usize,
    /// Devices that the run used before, if they differ now.
    pub(crate) moved_from: Option<String>,
    /// Whether a new run must beat the folder's best model: it continues from there on the same data.
    pub(crate) best_goes_on: bool,
    /// Record that has not been written to the folder yet.
    unwritten: Option<RunRecord>,
}

impl ResumePlan {
    /// Writes `run.json` if it is new.
    pub(crate) fn write_down(&self, folder: &Path) -> Result<()> {
        self.unwritten.as_ref().map_or(Ok(()), |record| record.write(folder))
    }
}

/// File suffixes of the best epoch's model and of the last model.
pub(crate) const BEST: &str = ".best.safetensors";
pub(crate) const LAST: &str = ".safetensors";
/// File with LoRA adapters that are stored apart from the merged model; not a model itself.
pub(crate) const ADAPTERS: &str = "adapters.safetensors";

/// Returns the name of the data in the name of a run's model file.
pub(crate) fn stem(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_str()?;
    name.strip_suffix(BEST).or(name.strip_suffix(LAST)).map(String::from)
}

/// Resolves a name to a model file: for a run's folder the best model, otherwise the last.
///
/// # Errors
/// If there is no such file or folder, or the folder has no model, or models of several datasets.
pub(crate) fn model_file(name: &str) -> Result<String> {
    if is_pretrained(name) {
        return Ok(name.into());
    }
    let folder = Path::new(name);
    if folder.is_file() && folder.extension().is_some_and(|e| e.eq_ignore_ascii_case("toml")) {
        let e = err!(Config, "{name} is a configuration, not a model");
        return Err(e.hint_command(format!("train it: systole train {name}; then name the run's folder")));
    }
    ensure!(folder.exists() || is_remote(folder), missing(folder));
    if !folder.is_dir() || is_model_folder(name) {
        return Ok(name.into());
    }
    let entries = std::fs::read_dir(folder).map_err(|e| Error::io("cannot list", folder, e))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let models: Vec<String> = names.filter(|n| n.ends_with(LAST) && n != ADAPTERS).collect();
    let stem = |n: &String| n.strip_suffix(BEST).or(n.strip_suffix(LAST)).unwrap_or_default().to_string();
    let stems: BTreeSet<String> = models.iter().map(stem).collect();
    let path = |file: &String| folder.join(file).display().to_string();
    let of_run = || RunRecord::read(folder).ok().flatten()?.name.filter(|name| stems.contains(name));
    let stem = if stems.len() == 1 { stems.first().cloned() } else { of_run() };
    match (stems.len(), stem) {
        (_, Some(stem)) => {
            let best = format!("{stem}{BEST}");
            Ok(path(&if models.contains(&best) { best } else { format!("{stem}{LAST}") }))
        }
        (2.., _) => {
            let e = err!(Config, "`{name}` contains several models");
            Err(e.hint_command(format!(
                "name one of these models: {}",
                models.iter().map(path).collect::<Vec<_>>().join(", ")
            )))
        }
        _ => {
            let e = err!(Io, "`{name}` contains no model");
            Err(match record_file(folder).is_file() {
                true => e
                    .because("the run was stopped before it saved a model")
                    .hint_command(format!("resume the run: systole resume {name}")),
                false => e.hint_command("name a model file or a run's folder, such as runs/PRESET"),
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

/// Returns the position of the run in a folder.
pub(crate) fn place(folder: &Path) -> Result<Option<RunPosition>> {
    backups(folder).place()
}

/// Returns the learning rate that the run in a folder has found, if the configuration is otherwise the same.
pub(crate) fn found_rate(folder: &Path, config: &RunConfig) -> Result<Option<f64>> {
    let Some(earlier) = RunRecord::read(folder)?.map(|record| record.config) else { return Ok(None) };
    let Some(found) = earlier.lr_find.as_ref().and_then(|section| section.found) else { return Ok(None) };
    let mut now = config.clone();
    now.set_found_rate(found);
    Ok((keys_of(&now) == keys_of(&earlier)).then_some(found))
}

/// Loads the last backed-up model of the run in a folder; `None` if there is no backup.
pub(crate) fn saved(folder: &Path) -> Result<Option<Model>> {
    backups(folder).model()
}

impl RunRecord {
    /// Reads `run.json` from a folder; `None` if there is no run.
    pub(crate) fn read(folder: &Path) -> Result<Option<RunRecord>> {
        let path = record_file(folder);
        let text = match std::fs::read_to_string(&path) {
            Err(e) if matches!(e.kind(), Io::NotFound | Io::NotADirectory) => return Ok(None),
            text => text.map_err(|e| Error::io("cannot read", &path, e))?,
        };
        serde_json::from_str(&text).map(Some).map_err(|e| {
            err!(Data, "cannot parse the run record")
                .at(path.display().to_string())
                .because(e.to_string())
                .hint_command("start a new run with --resume=never, or choose another folder with --out")
        })
    }

    fn write(&self, folder: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|e| err!(Bug, "cannot serialize a run record").because(e.to_string()))?;
        write_atomically(&OsFileSystem, &record_file(folder), &[text.as_bytes(), b"\n"])
    }

    /// Default folder of this run: `base`, or the first of `base-2`, `base-3`, … if a finished run with another
    /// configuration has the name. Also returns a note on how the first of these differs.
    pub(crate) fn folder(&self, base: &Path) -> Result<(PathBuf, Option<String>)> {
        let name = base.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut first: Option<Vec<String>> = None;
        for k in 1.. {
            let folder = if k == 1 { base.to_path_buf() } else { base.with_file_name(format!("{name}-{k}")) };
            let earlier = RunRecord::read(&folder)?.filter(|earlier| !self.is_after(earlier, &folder));
            let differs = earlier.map_or_else(Vec::new, |earlier| self.differences(&earlier));
            if differs.is_empty() || !backups(&folder).place()?.is_some_and(|p| p.finished) {
                let note = first.map(|differs| {
                    format!(
                        "{} has a finished run with another configuration ({}): this one is in {}",
                        base.display(),
                        shortened(&differs),
                        folder.display()
                    )
                });
                return Ok((folder, note));
            }
            first.get_or_insert(differs);
        }
        Ok((base.into(), None))
    }

    /// Decides whether this run starts or resumes the run in the folder.
    ///
    /// # Errors
    /// If the run in the folder has another configuration; names each key that differs.
    pub(crate) fn plan(mut self, folder: &Path, resume: ResumeMode, save: &SaveArgs) -> Result<ResumePlan> {
        let earlier = match resume {
            // A new run replaces a record that cannot be parsed.
            ResumeMode::Never => RunRecord::read(folder).unwrap_or_default(),
            _ => RunRecord::read(folder)?,
        };
        let place = match resume {
            ResumeMode::Never => None,
            _ => backups(folder).place()?,
        };
        let after = earlier.as_ref().is_some_and(|earlier| self.is_after(earlier, folder));
        let best_goes_on = after && earlier.as_ref().is_some_and(|earlier| self.measures_as(earlier));
        // A finished run that is named as the run to continue has nothing left to lose.
        let place = place.filter(|place| !(place.finished && after));
        // A run that was killed before it could remove the backups of the previous run.
        let began = earlier.as_ref().filter(|e| e.from.is_some()).map(|e| e.initial_epoch);
        let place =
            place.filter(|place| !(place.finished && began.is_some_and(|first| place.epoch <= first)));
        if let (Some(place), Some(earlier)) = (&place, &earlier) {
            (self.initial_epoch, self.start) = (earlier.initial_epoch, earlier.start.clone());
            let differs = self.differences(earlier);
            ensure!(resume != ResumeMode::Auto || differs.is_empty(), refused(folder, place, &differs));
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

    /// Whether this run continues a finished run of the folder: from a model in the folder, or by the same command
    /// after the named file changed. The same command with the same model is the same run.
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

    /// Whether both runs start from the same model.
    fn starts_as(&self, earlier: &RunRecord) -> bool {
        match (&self.start, &earlier.start) {
            (Some(now), Some(before)) => now == before,
            // An earlier version did not record the fingerprint.
            _ => self.initial_epoch == earlier.initial_epoch,
        }
    }

    /// Whether both runs are evaluated on the same data.
    fn measures_as(&self, earlier: &RunRecord) -> bool {
        let of_data =
            |differs: &String| ["data.", "the data", "seed "].iter().any(|start| differs.starts_with(start));
        !self.differences(earlier).iter().any(of_data)
    }

    /// Returns the settings that must be equal on all hosts, one key per line.
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

    /// Lists keys whose values differ from `earlier`: `fit.epochs is 10, was 5`.
    fn differences(&self, earlier: &RunRecord) -> Vec<String> {
        let (now, before) = (self.keys(), earlier.keys());
        let value = |keys: &[(String, String)], key: &str| {
            keys.iter().find(|(k, _)| k == key).map_or("not set".to_string(), |(_, v)| v.clone())
        };
        // Earlier versions stored no fingerprint of a text and of CIFAR-10.
        let is_older = match (&self.data, &earlier.data) {
            (Some(now), Some(before)) => now.starts_with(&format!("{before}; text ")),
            (Some(_), None) => true,
            _ => false,
        };
        let mut all: Vec<&String> = now.iter().chain(&before).map(|(k, _)| k).collect();
        all.sort_unstable();
        all.dedup();
        let differs = all
            .into_iter()
            .filter(|key| value(&now, key) != value(&before, key) && !(is_older && *key == "the data"));
        differs.map(|key| format!("{key} is {}, was {}", value(&now, key), value(&before, key))).collect()
    }
}

/// Keys that affect what a run computes, with their values.
fn keys_of(config: &RunConfig) -> Vec<(String, String)> {
    let mut keys = Vec::new();
    flatten("", &config.without_loggers().to_json().unwrap_or_default(), &mut keys);
    // The location of the data, its read speed and the final report do not affect the results.
    let told = ["data.dir", "data.tta", "fit.report", "fit.tui"];
    keys.retain(|(key, _)| !told.contains(&key.as_str()) && !key.starts_with("data.tuning"));
    keys.iter_mut()
        .filter(|(key, _)| key == "data.scale")
        .for_each(|(_, value)| *value = shown_scale(config.data.scale));
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
    let state = if place.finished { "a finished run" } else { "an unfinished run" };
    let shown = folder.display();
    if differs.iter().all(|key| key.starts_with("the data is ")) {
        return err!(Config, "`{shown}` already has {state} with other data")
            .because(differs.join("; "))
            .hint_command(
                "restore the run's data, or continue on the changed data with `systole train` and --resume=force; start \
                 a new run with --resume=never, or in another folder with --out",
            );
    }
    err!(Config, "`{shown}` already has {state} with another configuration")
        .because(differs.join("; "))
        .hint_command(format!(
            "resume it unchanged with `systole resume {shown}`, with the new configuration by --resume=force; \
             start a new run with --resume=never, or in another folder with --out"
        ))
}

/// Formats a position as `epoch 3, after 17 steps of it`, counted from 1.
pub(crate) fn told(place: &RunPosition) -> String {
    format!("epoch {}, after {} of it", place.epoch + 1, counted(place.steps as u64, "step"))
}
