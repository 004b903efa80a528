//! Result of a training run: printed summary, JSON object and history in the model file.

use crate::render::screen::{Screen, counted, program, quoted, values};
use crate::run::confusion::Confusion;
use crate::run::evaluation::TestPredictions;
use crate::run::pruning::PruningReport;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;
use systole_config::{CompileSection, RunConfig};
use systole_datasets::TrainingData;
use systole_ir::knobs;
use systole_nn::applications::biggan::SampleGrid;
use systole_nn::{BestEpoch, History, Logs, Model, RunPosition, Validation};
use systole_progress::progress::called;
use systole_runtime::backend;

/// Files that a run leaves in its folder.
pub(crate) struct RunFiles<'a> {
    pub(crate) model: &'a Path,
    pub(crate) best: &'a Path,
    pub(crate) example: &'a Path,
    pub(crate) folder: &'a Path,
}

/// A finished or interrupted run.
pub(crate) struct RunSummary<'a> {
    pub(crate) config: &'a RunConfig,
    pub(crate) data: &'a TrainingData,
    pub(crate) reason: String,
    pub(crate) history: History,
    pub(crate) steps: u64,
    epochs: usize,
    interrupted: bool,
    pub(crate) seconds: f64,
    /// Confusion matrix.
    pub(crate) confusions: Option<Confusion>,
    /// Test values of the model as it is written, with names that start with `val_`.
    pub(crate) tested: Logs,
    /// Which weights the model has, if not those after the last step.
    pub(crate) weights: Option<String>,
    /// The model that the run continued from.
    pub(crate) from: Option<String>,
    /// HTML report, if one was written.
    pub(crate) report: Option<PathBuf>,
    /// Pruning report.
    pub(crate) pruned: Option<PruningReport>,
}

impl<'a> RunSummary<'a> {
    pub(crate) fn new(
        config: &'a RunConfig,
        data: &'a TrainingData,
        reason: String,
        history: History,
        model: &Model,
        interrupted: bool,
        began: Instant,
    ) -> RunSummary<'a> {
        RunSummary {
            config,
            data,
            reason,
            steps: history.step_ms.len() as u64,
            epochs: model.epochs().saturating_sub(history.initial_epoch),
            interrupted,
            history,
            seconds: began.elapsed().as_secs_f64(),
            confusions: None,
            tested: Logs::new(),
            weights: None,
            from: None,
            report: None,
            pruned: None,
        }
    }

    pub(crate) fn was_interrupted(&self) -> bool {
        self.interrupted
    }

    /// Whether the model was tested.
    pub(crate) fn was_tested(&self) -> bool {
        self.tested.get("val_loss").is_some() || self.history.epochs.is_empty()
    }

    /// Training values of the last epoch, and test values of the written model.
    fn results(&self) -> Logs {
        let mut values = self.history.last();
        values.extend_with_prefix("", &self.tested);
        values
    }

    /// Returns the confusion matrix to print: only for user data, because those of published datasets are well known.
    pub(crate) fn of_own_classes(&self, answers: &TestPredictions) -> Option<Confusion> {
        answers.confusion.clone().filter(|_| self.config.data.is_own())
    }

    /// Returns the metrics of each epoch, including epochs of earlier starts.
    pub(crate) fn epochs_of(&self, model: &Model) -> Vec<(u64, BTreeMap<String, f64>)> {
        let history = self.history_with(model.notes.get("history"));
        let number = |v: &Value| v.as_f64().unwrap_or(f64::NAN);
        let one = |epoch: &Value| {
            let values = epoch.as_object()?.iter().filter(|(name, _)| *name != "epoch");
            Some((epoch["epoch"].as_u64()?, values.map(|(name, v)| (name.clone(), number(v))).collect()))
        };
        history.as_array().map_or(Vec::new(), |all| all.iter().filter_map(one).collect())
    }

    /// Summarizes the run in one line.
    pub(crate) fn lead(&self, model: &Model) -> String {
        let optimizer = model.compile_config().map_or("", |c| c.optimizer.name());
        let (epochs, steps) = (counted(model.epochs() as u64, "epoch"), counted(model.steps(), "step"));
        let CompileSection { precision, .. } = &self.config.compile;
        format!(
            "{} with {optimizer}, batch size {}, {precision}: {epochs}, {steps}",
            self.data.name, self.config.fit.batch_size
        )
    }

    /// Returns one JSON object per epoch, including earlier runs.
    pub(crate) fn history_with(&self, earlier: Option<&String>) -> Value {
        let before = earlier.and_then(|text| serde_json::from_str::<Vec<Value>>(text).ok());
        let mut all = before.unwrap_or_default();
        // A run may continue from a file that it has overwritten since.
        let first = self.history.initial_epoch as u64;
        all.retain(|epoch| epoch["epoch"].as_u64().is_none_or(|n| n <= first));
        for (i, logs) in self.history.epochs.iter().enumerate() {
            let mut epoch = Map::new();
            epoch.insert("epoch".into(), json!(self.history.initial_epoch + i + 1));
            epoch.extend(entries(logs));
            all.push(epoch.into());
        }
        all.into()
    }

    /// Returns one JSON object per validation within an epoch.
    fn validations(&self) -> Value {
        let object = |v: &Validation| {
            let place = [("epoch".to_string(), json!(v.epoch + 1)), ("step".to_string(), json!(v.step))];
            Value::Object(place.into_iter().chain(entries(&v.logs)).collect())
        };
        self.history.validations.iter().map(object).collect()
    }

    /// Training throughput in samples per second, without compilation.
    pub(crate) fn samples_per_second(&self) -> f64 {
        let (h, ms) = (&self.history, self.history.total_step_ms());
        let compiling = if h.step_ms.len() > 1 { self.config.fit.batch_size as u64 } else { 0 };
        if ms > 0.0 { h.samples.saturating_sub(compiling) as f64 / ms * 1e3 } else { 0.0 }
    }

    /// Builds the final JSON object of `--json`.
    fn object(&self, model: &Model, files: &RunFiles<'_>, resumed: Option<&RunPosition>) -> Value {
        let mut o = Map::new();
        let mut put = |key: &str, value: Value| drop(o.insert(key.into(), value));
        put("dataset", json!(self.data.name));
        put("dataset_reason", json!(self.reason));
        put("epochs", json!(self.epochs));
        for (name, value) in entries(&self.results()) {
            put(&name, value);
        }
        put("weights", json!(self.weights));
        put("steps", json!(self.steps));
        put("ms_per_step", json!(self.history.median_step_ms()));
        put("samples_per_second", json!(self.samples_per_second()));
        put("data_wait", json!(self.history.data_wait()));
        put("device_wait", json!(self.history.device_wait()));
        put("data_verdict", json!(crate::run::input_bottleneck::of(&self.history, self.config)));
        put("backup_ms", json!(self.history.backup_ms));
        put("peak_rss_mib", json!(peak_rss_mib()));
        put("seconds", json!(self.seconds));
        put("seed", json!(self.config.seed));
        put("precision", json!(self.config.compile.precision));
        put("batch_size", json!(self.config.fit.batch_size));
        put("learning_rate", json!(model.learning_rate()));
        let backend = backend("auto").ok();
        let device = backend.as_ref().and_then(|b| b.devices().into_iter().next());
        put("backend", json!(backend.as_ref().map(|b| b.name().to_string())));
        put("device", json!(device.map(|d| d.description)));
        put("threads", json!(threads()));
        if let (index, count @ 2..) = model.host() {
            put("host", json!({"index": index, "count": count}));
        }
        put("interrupted", json!(self.interrupted));
        put("stopped_because", json!(self.history.stopped_because));
        put("total_epochs", json!(model.epochs()));
        put("total_steps", json!(model.steps()));
        put("resumed_at", json!(resumed.map(|p| json!({"epoch": p.epoch + 1, "step": p.steps}))));
        put("model_file", json!(files.model.display().to_string()));
        put("best", self.best_object(files));
        if self.config.biggan.is_some() {
            put("samples", json!(SampleGrid::last(files.folder).display().to_string()));
        }
        put("report", json!(self.report.as_ref().map(|p| p.display().to_string())));
        if let Some(confusions) = &self.confusions {
            put("most_confused", confusions.json());
        }
        if let Some(pruned) = &self.pruned {
            put("pruning", pruned.json());
        }
        put("history", self.history_with(None));
        if !self.history.validations.is_empty() {
            put("validations", self.validations());
        }
        put("config", self.config.to_json().unwrap_or(Value::Null));
        o.into()
    }

    /// Prints the results and suggests the next commands.
    pub(crate) fn show(
        &self,
        model: &Model,
        files: &RunFiles<'_>,
        resumed: Option<&RunPosition>,
        screen: &Screen,
    ) {
        screen.line(self.result(model));
        self.confusions.iter().for_each(|c| screen.line(c.text()));
        self.pruned.iter().for_each(|pruned| screen.line(pruned.text()));
        if self.steps > 0 {
            let memory = peak_rss_mib().map_or(String::new(), |m| format!(", peak memory {m:.0} MiB"));
            screen.detail(format!(
                "  {} per step (median), {} per second{memory}{}\n  {}",
                step_time(self.history.median_step_ms()),
                counted(self.samples_per_second() as u64, "sample"),
                waited_for_device(self.history.device_wait()),
                crate::run::input_bottleneck::of(&self.history, self.config),
            ));
            if screen.verbose {
                self.history.data.iter().for_each(|report| screen.line(format!("Data: {report}").trim_end()));
            }
        }
        match model.host() {
            (0, _) => self.next(files, screen),
            (index, count) => screen.line(format!("Host {index} of {count}: host 0 writes the model")),
        }
        if screen.json {
            screen.object(&self.object(model, files, resumed));
        }
    }

    fn best_object(&self, files: &RunFiles<'_>) -> Value {
        let best = |b: &BestEpoch| json!({"epoch": b.epoch, "monitor": b.monitor, "value": b.value, "model_file": files.best.display().to_string()});
        self.history.best.as_ref().map_or(Value::Null, best)
    }

    /// Formats as `Best: val_loss 0.4321 after epoch 3: runs/mine/mine.best.safetensors`.
    fn best_line(&self, best: &BestEpoch, file: &Path) -> String {
        let BestEpoch { epoch, monitor, value } = best;
        let last = self.history.initial_epoch + self.history.epochs.len();
        let (is_last, now) = (*epoch == last, self.results().get(monitor).filter(|_| !self.interrupted));
        let weights = self.weights.as_deref().filter(|_| !self.config.restores_weights());
        let which = match (now, weights) {
            (Some(v), Some(weights)) if is_last && v == *value => format!(" ({weights})"),
            (Some(v), _) if is_last && v == *value => String::new(),
            (Some(v), _) if self.weights.is_some() => format!(" (the model: {v:.4})"),
            (Some(v), _) => format!(" (last epoch: {v:.4})"),
            (None, _) => String::new(),
        };
        format!("Best: {} {value:.4} after epoch {epoch}{which}: {}", called(monitor), file.display())
    }

    /// Prints the model's path and commands to use it.
    fn next(&self, files: &RunFiles<'_>, screen: &Screen) {
        let RunFiles { model, best, example, folder } = files;
        self.history.best.iter().for_each(|b| screen.line(self.best_line(b, best)));
        screen.line(format!("Model: {}", model.display()));
        if self.config.biggan.is_some() {
            screen.line(format!("Images: {}", quoted(SampleGrid::last(folder))));
        }
        if let Some(events) = self.config.event_folder(folder) {
            screen.line(format!("Curves: tensorboard --logdir {}", quoted(&events)));
        }
        if let Some(report) = &self.report {
            screen.line(format!("Report: {}", quoted(report)));
        }
        let (program, file_name) = (program(), quoted(model));
        let to_use = if self.history.best.is_some() { quoted(best) } else { file_name.clone() };
        let data =
            self.config.data.dir.as_ref().map_or(String::new(), |d| format!(" --data-dir {}", quoted(d)));
        let predict = match self.data.has_example() && example.is_file() {
            _ if self.config.biggan.is_some() => String::new(),
            true => format!("\n  {program} predict {to_use} {}   # classify an image", quoted(example)),
            false if self.data.language.is_some() => {
                format!("\n  {program} generate {to_use} --prompt The   # generate text")
            }
            false if self.data.tokenizer.is_some() => {
                format!("\n  {program} predict {to_use} --text \"Some words\"   # classify a text")
            }
            false => String::new(),
        };
        let go_on = match self.interrupted && self.epochs < self.config.epochs() {
            true => format!("{program} resume {}   # continue where it stopped", quoted(folder)),
            false => {
                let epochs = self.config.epochs();
                let out = quoted(folder);
                format!(
                    "{program} train --from {file_name} --epochs {epochs}{data} --out {out}   # train longer"
                )
            }
        };
        let measure = match &self.config.biggan {
            Some(_) => {
                format!(
                    "{program} train cifar-cnn{data} --out runs/features   # train an image classifier for FID\n  \
                     {program} evaluate {to_use}{data} --features runs/features   # compute FID of the generated images"
                )
            }
            None => format!("{program} evaluate {to_use}{data}   # evaluate it again"),
        };
        screen.detail(format!("\nNext:{predict}\n  {go_on}\n  {measure}"));
    }

    /// Formats as `Test: sparse_categorical_accuracy 0.8690, loss 0.3921; after 5 epochs, 300 steps, 12.3 s`.
    fn result(&self, model: &Model) -> String {
        let last = self.results();
        let tested = values(&last, |n| n.strip_prefix("val_").map(called));
        let trained = values(&last, |n| (!n.starts_with("val_")).then(|| called(n)));
        let measured = match (tested.is_empty(), trained.is_empty()) {
            (false, _) => format!("Test: {tested} on {}", counted(self.tested(), one(self.data.elements))),
            (true, false) => format!("Training: {trained}"),
            (true, true) => "No metrics were computed".into(),
        };
        let stopped = if self.interrupted { "Stopped on request. " } else { "" };
        let diverged = match last.get("loss") {
            Some(v) if !v.is_finite() => "\n  The loss is not finite: see the note above for its origin",
            _ => "",
        };
        let weights = self.weights.as_ref().map_or(String::new(), |weights| format!("; weights: {weights}"));
        format!(
            "{stopped}{measured}{weights}; after {}, {}, {:.1} s{diverged}",
            counted(model.epochs() as u64, "epoch"),
            counted(model.steps(), "step"),
            self.seconds
        )
    }

    fn tested(&self) -> u64 {
        let all = self.data.test_len as u64;
        let all = self.config.data.test_samples.map_or(all, |n| n.min(all));
        let batches = self.config.tested_batches(self.data);
        let most = batches.ok().flatten().map(|n| (n * self.config.fit.batch_size) as u64);
        most.map_or(all, |most| most.min(all))
    }
}

/// Share of the time that the host waited for the device.
fn waited_for_device(share: f64) -> String {
    match share > 0.0 {
        true => format!("\n  the host waited for the device {:.0} % of the time", 100.0 * share),
        false => String::new(),
    }
}

/// Formats a step time: `12.3 ms`, `47 µs`; never 0.
pub(crate) fn step_time(ms: f64) -> String {
    match ms {
        1.0.. => format!("{ms:.1} ms"),
        0.001.. => format!("{:.0} µs", ms * 1e3),
        _ => format!("{:.0} ns", ms * 1e6),
    }
}

/// Singular: `image` from `images`.
pub(crate) fn one(elements: &str) -> &str {
    elements.strip_suffix('s').unwrap_or(elements)
}

fn entries(logs: &Logs) -> Vec<(String, Value)> {
    logs.iter().map(|(n, v)| (n.to_string(), json!(v))).collect()
}

/// Number of worker threads of the CPU backend.
pub(crate) fn threads() -> usize {
    match knobs::THREADS.get_usize() {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    }
}

/// Peak memory (RSS) of this process, if the system reports it.
pub(crate) fn peak_rss_mib() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok().map(|kib| kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_takes_some_time() {
        assert_eq!([12.34, 0.047, 0.0004].map(step_time), ["12.3 ms", "47 µs", "400 ns"]);
        assert_eq!(one("pictures"), "picture");
    }
}
