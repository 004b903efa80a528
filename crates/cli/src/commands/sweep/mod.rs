//! `systole sweep`: hyperparameter search (grid, random, successive halving); trains each trial in its own folder.
//!
//! The trial folders are the only state. An interrupted sweep resumes when the same command is started again, and its
//! trials resume like any run. With more trials, a sweep keeps those that it has.

mod html_page;

use crate::args::common::{CommonArgs, DataArgs, LabelArgs};
use crate::args::exit_status::{CommandResult, RunCommand};
use crate::models::command_target::set_each;
use crate::models::run_directory::{LAST, ResumeMode, RunRecord, SaveArgs, place, record_file};
use crate::render::screen::{Screen, counted, note, program, quoted, table};
use crate::run::signals::StopSignal;
use crate::run::training::{RunDirectory, RunStart, announce_data, load_data, train};
use clap::Args;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;
use systole_config::{DataSection, Sweep, SweepMethod, Trial};
use systole_data::file_system::{OsFileSystem, write_atomically};
use systole_datasets::TrainingData;
use systole_ir::{Error, Result, err};
use systole_nn::Model;
use systole_nn::callback::grows;

/// File that identifies the sweep of a folder.
const DEFINITION: &str = "sweep.json";
/// HTML page of the sweep.
const PAGE: &str = "sweep.html";

#[derive(Args)]
pub(crate) struct SweepArgs {
    /// TOML file with a [sweep] table
    #[arg(value_name = "FILE.toml")]
    file: PathBuf,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    label: LabelArgs,
    /// Save the trials in this folder, or resume its sweep [default: runs/FILE]
    ///
    /// If the sweep has more trials than before, only the new ones run.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    save: SaveArgs,
    /// Set any shared TOML key, such as fit.epochs=3; `none` removes the key
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Do not write HTML pages for the sweep and its trials
    #[arg(long)]
    no_report: bool,
    /// List the trials without training
    #[arg(long)]
    dry_run: bool,
}

impl RunCommand for SweepArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        let began = Instant::now();
        let mut sweep = Sweep::read(&self.file)?;
        if let Some(dir) = &self.data.data_dir {
            sweep.set(
                format!("--data-dir {}", dir.display()),
                "data.dir",
                &toml::Value::from(dir.display().to_string()).to_string(),
            );
        }
        if let Some((flag, label)) = self.label.setting() {
            sweep.set(flag, LabelArgs::KEY, &toml::Value::from(label).to_string());
        }
        if self.no_report {
            sweep.set("--no-report", "fit.report", "false");
        }
        set_each(&self.sets, |flag, key, value| sweep.set(flag, key, value))?;
        let trials = sweep.trials()?;
        trials.iter().try_for_each(|trial| self.label.check(&trial.config))?;
        if self.dry_run {
            return list(&trials, screen);
        }
        let out = self.out.clone().unwrap_or_else(|| {
            Path::new("runs").join(self.file.file_stem().unwrap_or(self.file.as_os_str()))
        });
        let trials = match earlier_definition(&out)? {
            Some(earlier) => sweep.grow(trials, &earlier).map_err(|why| another_sweep(&out, &why))?,
            None => trials,
        };
        let mut all = SweepState {
            sweep: &sweep,
            metric: String::new(),
            grows: true,
            trials: Vec::new(),
            save: &self.save,
            data: None,
            stop: StopSignal::install()?,
        };
        all.open(&trials, &out, screen)?;
        claim(&out, &sweep.definition(&trials))?;
        let code = all.train(screen)?;
        let page = out.join(PAGE);
        let written = !self.no_report && html_page::write(&all, &self.file, &page);
        all.show(&out, written.then_some(page.as_path()), code, began, screen);
        let failed = all.trials.iter().any(|t| t.failed.is_some());
        Ok(if code == 0 { u8::from(failed) } else { code })
    }
}

/// Lists the trials of a dry run.
fn list(trials: &[Trial], screen: &Screen) -> CommandResult {
    let settings =
        |t: &Trial| -> Map<String, Value> { t.settings.iter().map(|(k, v)| (k.clone(), json!(v))).collect() };
    if screen.json {
        screen.object(&trials.iter().map(|t| json!({"trial": t.name, "settings": settings(t)})).collect());
        return Ok(0);
    }
    let keys = trials.iter().take(1).flat_map(|t| t.settings.iter().map(|(key, _)| key.clone()));
    let head: Vec<String> = ["trial".to_string()].into_iter().chain(keys).collect();
    let row = |t: &Trial| {
        [t.name.clone()].into_iter().chain(t.settings.iter().map(|(_, v)| v.to_string())).collect()
    };
    screen.line(table(&[head].into_iter().chain(trials.iter().map(row)).collect::<Vec<_>>()));
    Ok(0)
}

/// Returns the definition of the sweep in the folder; `None` if there is none.
///
/// # Errors
/// If the folder belongs to a run.
fn earlier_definition(out: &Path) -> Result<Option<Value>> {
    match std::fs::read_to_string(out.join(DEFINITION)) {
        Ok(text) => Ok(Some(serde_json::from_str(&text).unwrap_or_default())),
        Err(_) if record_file(out).is_file() => {
            let e = err!(Config, "{} is the folder of a run", out.display());
            Err(e.hint_command("name another output folder with --out"))
        }
        Err(_) => Ok(None),
    }
}

fn another_sweep(out: &Path, why: &str) -> Error {
    err!(Config, "`{}` contains another sweep", out.display())
        .because(why)
        .hint_command("name another output folder with --out; a sweep can only be given more trials")
}

/// Claims the folder for this sweep.
fn claim(out: &Path, definition: &Value) -> Result<()> {
    std::fs::create_dir_all(out).map_err(|e| {
        Error::io("cannot create the folder", out, e).hint_command("name another output folder with --out")
    })?;
    let text = definition.to_string();
    write_atomically(&OsFileSystem, &out.join(DEFINITION), &[text.as_bytes(), b"\n"])
}

/// A trial and its progress.
pub(crate) struct TrialState {
    pub(crate) trial: Trial,
    pub(crate) folder: PathBuf,
    /// The metric after each epoch, by epoch number from 1.
    pub(crate) curve: Vec<(u64, f64)>,
    /// Number of trained epochs.
    pub(crate) epochs: u64,
    pub(crate) failed: Option<String>,
    /// Whether successive halving dropped the trial.
    pub(crate) is_out: bool,
}

/// The trials of a sweep.
pub(crate) struct SweepState<'a> {
    pub(crate) sweep: &'a Sweep,
    pub(crate) metric: String,
    /// Whether a higher metric is better.
    pub(crate) grows: bool,
    pub(crate) trials: Vec<TrialState>,
    save: &'a SaveArgs,
    /// The dataset loaded last, with its configuration.
    data: Option<(DataSection, TrainingData)>,
    stop: StopSignal,
}

impl SweepState<'_> {
    /// Creates the trial states, prints their data, and checks that each model can be built, before training starts.
    fn open(&mut self, trials: &[Trial], out: &Path, screen: &Screen) -> CommandResult<()> {
        let mut announced = BTreeSet::new();
        for trial in trials {
            let folder = out.join(&trial.name);
            let mut tried = TrialState {
                trial: trial.clone(),
                folder,
                curve: Vec::new(),
                epochs: 0,
                failed: None,
                is_out: false,
            };
            let mut data = self.load(&trial.config, screen)?;
            data.notes.extend(tried.trial.config.fit_data(&data)?);
            // The trials usually share their data.
            if announced.insert((data.name.clone(), data.origin.clone(), data.notes.clone())) {
                announce_data(&tried.trial.config, &data, "as requested", screen);
            }
            let config = &tried.trial.config;
            let checked = config.layers_only()?.output_for(&[config.sample_of(&data)]);
            let output = checked.map_err(|e| e.at(tried.told()))?.shape.to_vec();
            let compile = config.compile_config(&output)?;
            self.metric = config.monitor(&compile);
            self.trials.push(tried);
        }
        self.grows = self.sweep.maximizes.unwrap_or_else(|| grows(&self.metric));
        Ok(())
    }

    fn load(&mut self, config: &systole_config::RunConfig, screen: &Screen) -> Result<TrainingData> {
        if let Some((_, data)) = self.data.as_ref().filter(|(of, _)| *of == config.data) {
            return Ok(data.clone());
        }
        let data = load_data(config, screen)?;
        self.data = Some((config.data.clone(), data.clone()));
        Ok(data)
    }

    /// Trains the remaining epochs of all trials; returns 0 or the exit code of a signal.
    fn train(&mut self, screen: &Screen) -> CommandResult {
        let epochs = self.trials.iter().map(|t| t.trial.config.epochs()).max().unwrap_or(1);
        let rounds = match self.sweep.method {
            SweepMethod::Halving => self.sweep.rounds(epochs, self.trials.len()),
            SweepMethod::Grid | SweepMethod::Random => vec![(epochs, self.trials.len())],
        };
        let mut last = 0;
        for (k, (until, n)) in rounds.iter().enumerate() {
            self.keep(*n, last);
            last = *until as u64;
            if rounds.len() > 1 {
                screen.detail(format!(
                    "Round {} of {}: {} to epoch {until}",
                    k + 1,
                    rounds.len(),
                    counted(*n as u64, "trial")
                ));
            }
            for i in 0..self.trials.len() {
                if self.trials[i].is_out {
                    continue;
                }
                let code = self.train_one(i, *until, screen)?;
                if code != 0 {
                    return Ok(code);
                }
            }
        }
        Ok(0)
    }

    /// Drops all but the best `n` trials after epoch `until`. Trials of an earlier sweep may have trained further.
    fn keep(&mut self, n: usize, until: u64) {
        let ranked = self.ranked_until(until);
        let out: Vec<usize> = ranked.into_iter().filter(|i| !self.trials[*i].is_out).skip(n).collect();
        out.into_iter().for_each(|i| self.trials[i].is_out = true);
    }

    /// Trains a trial to the end of epoch `until`, unless it has reached that already.
    fn train_one(&mut self, i: usize, until: usize, screen: &Screen) -> CommandResult {
        let tried = &mut self.trials[i];
        let (folder, config) = (tried.folder.clone(), tried.trial.config.clone());
        let until = until.min(config.epochs());
        tried.read(&self.metric)?;
        let began = Instant::now();
        if !tried.has_reached(until)? {
            let (name, all) = (tried.told(), self.trials.len());
            screen.detail(format!("Trial {} of {all}, {name}", i + 1));
            let data = self.load(&config, screen)?;
            let record = RunRecord {
                reason: "a sweep".into(),
                from: None,
                initial_epoch: 0,
                start: None,
                data: data.identity.clone(),
                devices: None,
                name: None,
                config,
            };
            let start = RunStart { record, data, earlier: None, pause_after: Some(until) };
            let silent = screen.silent();
            let place = RunDirectory::make(folder, &start.data.name)?;
            match train(start, place, (ResumeMode::Auto, self.save), began, &silent) {
                Ok(0) => self.trials[i].read(&self.metric)?,
                Ok(code) => return Ok(code),
                Err(failure) => {
                    note(&format!("{name} failed, and the sweep continues: {}", failure.error));
                    self.trials[i].failed = Some(failure.error.what().to_string());
                }
            }
        }
        // A signal after the trial's last step still ends the sweep.
        if self.stop.exit_code() != 0 {
            return Ok(self.stop.exit_code());
        }
        let tried = &self.trials[i];
        if tried.failed.is_none() {
            let value = self
                .best(tried)
                .map_or("not measured".into(), |(epoch, value)| format!("{value:.4} in epoch {epoch}"));
            screen.line(format!("{}: {} {value}", tried.trial.name, self.metric));
        }
        Ok(0)
    }

    /// Returns the best epoch of a trial with its metric.
    pub(crate) fn best(&self, tried: &TrialState) -> Option<(u64, f64)> {
        self.best_until(tried, u64::MAX)
    }

    fn best_until(&self, tried: &TrialState, until: u64) -> Option<(u64, f64)> {
        let curve = tried.curve.iter().copied().filter(|(epoch, _)| *epoch <= until);
        let finite = curve.filter(|(_, value)| value.is_finite());
        finite.reduce(|best, at| if at.1 != best.1 && (at.1 > best.1) == self.grows { at } else { best })
    }

    /// Ranks the trials: those trained further first, then by metric; ties keep their order.
    pub(crate) fn ranked(&self) -> Vec<usize> {
        self.ranked_until(u64::MAX)
    }

    fn ranked_until(&self, until: u64) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.trials.len()).collect();
        let best = |i: usize| self.best_until(&self.trials[i], until);
        let value = |i: usize| best(i).map(|(_, v)| if self.grows { -v } else { v });
        order.sort_by(|a, b| {
            let key = |i: usize| (self.trials[i].failed.is_some(), self.trials[i].is_out);
            let by_value = value(*a).unwrap_or(f64::INFINITY).total_cmp(&value(*b).unwrap_or(f64::INFINITY));
            key(*a).cmp(&key(*b)).then(by_value)
        });
        order
    }

    fn show(&self, out: &Path, page: Option<&Path>, code: u8, began: Instant, screen: &Screen) {
        if screen.json {
            return screen.object(&self.object(out, page, code, began));
        }
        screen.line(format!("\n{}", table(&self.rows())));
        let best = self.ranked().into_iter().map(|i| &self.trials[i]).find(|t| self.best(t).is_some());
        if code != 0 {
            screen.line("Stopped on request: run the same command to continue");
        } else if let Some((best, (epoch, value))) = best.and_then(|t| Some((t, self.best(t)?))) {
            screen.line(format!("Best: {} {value:.4} in epoch {epoch}: {}", self.metric, best.told()));
        }
        page.iter().for_each(|page| screen.line(format!("Report: {}", quoted(page))));
        let folders: Vec<String> =
            self.ranked().iter().take(3).map(|i| quoted(&self.trials[*i].folder)).collect();
        screen.detail(format!(
            "\nNext:\n  {} compare {}   # compare the best trials",
            program(),
            folders.join(" ")
        ));
        best.iter().for_each(|best| {
            screen.detail(format!(
                "  {} evaluate {}   # evaluate the best trial again",
                program(),
                quoted(&best.folder)
            ))
        });
    }

    /// Returns the rows of the result table.
    pub(crate) fn rows(&self) -> Vec<Vec<String>> {
        let keys =
            self.trials.iter().take(1).flat_map(|t| t.trial.settings.iter().map(|(key, _)| key.clone()));
        let end = [self.metric.clone(), "at epoch".into(), "epochs".into()];
        let head = ["trial".to_string()].into_iter().chain(keys).chain(end).collect();
        let row = |i: usize| {
            let tried = &self.trials[i];
            let settings = tried.trial.settings.iter().map(|(_, value)| value.to_string());
            let best = self.best(tried);
            let end = match &tried.failed {
                Some(_) => ["failed".to_string(), "-".into(), tried.epochs.to_string()],
                None => [
                    best.map_or("-".into(), |b| format!("{:.4}", b.1)),
                    best.map_or("-".into(), |b| b.0.to_string()),
                    tried.epochs.to_string(),
                ],
            };
            [tried.trial.name.clone()].into_iter().chain(settings).chain(end).collect()
        };
        [head].into_iter().chain(self.ranked().into_iter().map(row)).collect()
    }

    fn object(&self, out: &Path, page: Option<&Path>, code: u8, began: Instant) -> Value {
        let one = |i: usize| {
            let tried = &self.trials[i];
            let settings: Map<String, Value> =
                tried.trial.settings.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
            let best = self.best(tried).map(|(epoch, value)| json!({"epoch": epoch, "value": value}));
            json!({
                "trial": tried.trial.name, "folder": tried.folder.display().to_string(), "settings": settings, "best": best,
                "epochs": tried.epochs, "curve": tried.curve, "left_out": tried.is_out, "error": tried.failed,
            })
        };
        let trials: Vec<Value> = self.ranked().into_iter().map(one).collect();
        json!({
            "sweep": out.display().to_string(), "method": format!("{:?}", self.sweep.method).to_lowercase(), "metric": self.metric,
            "direction": if self.grows { "max" } else { "min" }, "interrupted": code != 0,
            "best": trials.first().filter(|t| !t["best"].is_null()), "trials": trials,
            "report": page.map(|p| p.display().to_string()), "seconds": began.elapsed().as_secs_f64(),
        })
    }
}

impl TrialState {
    /// Formats as `trial-001 (optimizer.learning_rate = 0.01)`.
    pub(crate) fn told(&self) -> String {
        let settings: Vec<String> =
            self.trial.settings.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        format!("{} ({})", self.trial.name, settings.join(", "))
    }

    /// Reads the metrics from the model in the trial's folder, if there is one.
    fn read(&mut self, metric: &str) -> Result<()> {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return Ok(()) };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let Some(file) =
            names.into_iter().find(|n| n.ends_with(LAST) && !n.ends_with(crate::models::run_directory::BEST))
        else {
            return Ok(());
        };
        let model = Model::load_to_predict(self.folder.join(file))?;
        let history: Vec<Value> =
            model.notes.get("history").and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let value =
            |epoch: &Value| Some((epoch["epoch"].as_u64()?, epoch.get(metric)?.as_f64().unwrap_or(f64::NAN)));
        self.curve = history.iter().filter_map(value).collect();
        self.epochs = model.epochs() as u64;
        Ok(())
    }

    /// Whether the trial's run has completed epoch `until` and saved its model.
    fn has_reached(&self, until: usize) -> Result<bool> {
        let place = place(&self.folder)?;
        let is_there = place.is_some_and(|place| {
            place.finished || (place.epoch >= until && until < self.trial.config.epochs())
        });
        Ok(is_there && self.epochs >= until as u64)
    }
}
