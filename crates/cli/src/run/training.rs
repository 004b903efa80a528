//! Trains a model for `train` and `resume`: load data, fit, save, test, report.

use crate::args::exit_status::CommandResult;
use crate::models::model_data::keep_tokenizer;
use crate::models::run_directory::{self, ResumeMode, RunRecord, SaveArgs};
use crate::render::download_progress;
use crate::render::screen::{Screen, counted, grouped, note, values};
use crate::run::evaluation::TestPredictions;
use crate::run::final_weights;
use crate::run::html_report::{self, ReportPage};
use crate::run::initial_model::{InitialModel, prepared};
use crate::run::pruning::PruningReport;
use crate::run::run_data::keep_data;
use crate::run::run_summary::{RunFiles, RunSummary};
use crate::run::signals::{StopSignal, TERMINATED};
use crate::run::tensorboard_images;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;
use systole_config::RunConfig;
use systole_data::Dataset;
use systole_data::file_system::sweep;
use systole_data::format::png;
use systole_datasets::{DataDir, TrainingData};
use systole_dist::Strategy;
use systole_ir::{Error, Result};
use systole_nn::callback::Callback;
use systole_nn::{Fit, History, KeepBest, Logs, Model, RemovedChannels, RunPosition, max_time};
use systole_progress::progress;
use systole_runtime::backend;

/// Whether this process writes files: it is the only host or host 0.
fn leads() -> Result<bool> {
    Ok(backend("auto")?.hosts().is_none_or(|hosts| hosts.index() == 0))
}

/// Input of a run.
pub(crate) struct RunStart {
    pub(crate) record: RunRecord,
    pub(crate) data: TrainingData,
    /// The saved model of [`RunRecord::from`].
    pub(crate) earlier: Option<Model>,
    /// Number of epochs after which it pauses, to be resumed later.
    pub(crate) pause_after: Option<usize>,
}

/// Trains or resumes, then saves, tests and reports.
pub(crate) fn train(
    start: RunStart,
    folder: RunDirectory,
    (resume, save): (ResumeMode, &SaveArgs),
    began: Instant,
    screen: &Screen,
) -> CommandResult {
    let RunStart { record, data, earlier, pause_after } = start;
    let (config, reason, from) = (record.config.clone(), record.reason.clone(), record.from.clone());
    let made = prepared(earlier, record.from.as_deref(), &config, data, screen);
    let InitialModel { mut model, data, phases } = made.inspect_err(|_| folder.undo())?;
    let (devices, name) = (Some(devices_of(&model)?), Some(data.name.clone()));
    let record = RunRecord { devices, name, ..record };
    let class_weight = config.class_weight(&data).inspect_err(|_| folder.undo())?;
    let common = record.common();
    let own = [&*folder.model, &folder.best, &folder.example];
    config.check_files_of_callbacks(&own).inspect_err(|_| folder.undo())?;
    let resumed = record.plan(&folder.folder, resume, save).inspect_err(|_| folder.undo())?;
    agree(&model, &data, common, &resumed).inspect_err(|_| folder.undo())?;
    if folder.leads {
        resumed.write_down(&folder.folder).inspect_err(|_| folder.undo())?;
    }
    announce(&model, (&config, &data), &resumed, screen)?;
    call_as_asked(&model, &config);
    let stop = StopSignal::install()?;
    let place = resumed.place.clone();
    note_origin(&mut model, &config, &data)?;
    let best = folder.best(&model, &config).goes_on(resumed.best_goes_on);
    let dashboard = dashboard(&config, &stop, screen);
    let run = (resumed, best.clone(), &folder, pause_after, phases);
    let mut history =
        fit(&mut model, &config, &data, run, class_weight, &stop, screen).inspect_err(|_| folder.undo())?;
    let (written, tested) = folder.finish(&mut model, (&config, &data), &best, &mut history)?;
    drop(dashboard);
    let tuning = history.data.as_ref().map(|report| &report.tuning);
    let frozen = if folder.leads { save.freeze(&config, tuning) } else { Ok(None) };
    // A signal after the last step still exits as interrupted, unless other hosts take part.
    let interrupted = history.interrupted || (stop.exit_code() != 0 && model.host().1 == 1);
    let mut run = RunSummary::new(&config, &data, reason, history, &model, interrupted, began);
    (run.from, run.tested, run.weights) = (from, tested, written.weights);
    let mut answers = ask(&mut model, &run, folder.leads)?;
    run.confusions = answers.as_mut().ok().and_then(|answers| run.of_own_classes(answers.as_ref()?));
    model.notes.insert("history".into(), run.history_with(model.notes.get("history")).to_string());
    folder.save(&model, &data).inspect_err(|_| folder.undo())?;
    run.pruned = folder.pruned(&model, &config, written.removed)?;
    tensorboard_images::write_of_run(&answers, &model, &config, &folder.folder);
    let wants_report = folder.leads && config.fit.report;
    let written = wants_report.then(|| ReportPage::new(&run, &model, answers, &folder.folder)).flatten();
    run.report = written.as_ref().map(|w| w.path().into());
    run.show(&model, &folder.files(), place.as_ref(), screen);
    drop(model);
    written.into_iter().for_each(ReportPage::with_profile);
    // After the model is saved, so that an unwritable configuration file loses no training.
    if let Some(path) = frozen? {
        screen.line(format!("Tuned threads and queue sizes were written to {}", path.display()));
    }
    // A signal to another host also ended the run on this host.
    let ended_elsewhere = interrupted && stop.exit_code() == 0 && pause_after.is_none();
    Ok(if ended_elsewhere { TERMINATED } else { stop.exit_code() })
}

/// Stores the configuration, field names and tokenizer with the model.
fn note_origin(model: &mut Model, config: &RunConfig, data: &TrainingData) -> Result<()> {
    model.notes.insert("config".into(), portable(config).to_toml()?);
    keep_data(model, config, data);
    if !data.fields.is_empty() {
        model.notes.insert("fields".into(), json!(data.fields).to_string());
    }
    if let Some(language) = &data.language {
        keep_tokenizer(model, &language.tokenizer);
    }
    if let Some(tokenizer) = &data.tokenizer {
        keep_tokenizer(model, tokenizer);
    }
    Ok(())
}

/// Evaluates the model on test data for the report: all of the user's data, or a time-limited part of a published
/// dataset.
///
/// An error fails the run only for user data.
fn ask(model: &mut Model, run: &RunSummary<'_>, leads: bool) -> Result<Result<Option<TestPredictions>>> {
    let (config, data) = (run.config, run.data);
    let is_own = config.data.is_own() && !data.class_names.is_empty();
    if run.was_interrupted() {
        return Ok(Ok(None));
    }
    if is_own {
        return TestPredictions::gather(model, config, data, None).map(Ok);
    }
    // Prediction is a collective operation of all hosts.
    let is_told = config.fit.report || config.asks_for_events();
    let is_wanted = is_told && leads && model.host().1 == 1 && run.was_tested();
    if !is_wanted {
        return Ok(Ok(None));
    }
    Ok(TestPredictions::gather(model, config, data, Some(html_report::time_to_ask(run.seconds))))
}

/// Starts the terminal dashboard if it is enabled and there is a terminal.
#[cfg(feature = "tui")]
fn dashboard(
    config: &RunConfig,
    stop: &StopSignal,
    screen: &Screen,
) -> Option<systole_progress::tui::Dashboard> {
    let quit = || drop(signal_hook::low_level::raise(signal_hook::consts::SIGINT));
    let is_wanted = config.fit.tui && !screen.json && !screen.quiet;
    is_wanted.then(|| systole_progress::tui::Dashboard::start_with(stop.asked.clone(), quit)).flatten()
}

/// Stub for builds without the dashboard.
#[cfg(not(feature = "tui"))]
fn dashboard(config: &RunConfig, _: &StopSignal, _: &Screen) {
    if config.fit.tui {
        note(
            "this program was built without the feature `tui`: printing plain lines instead of the dashboard",
        );
    }
}

/// Rejects a multi-host run whose hosts differ in configuration, data or resume position.
fn agree(
    model: &Model,
    data: &TrainingData,
    configuration: String,
    resumed: &run_directory::ResumePlan,
) -> Result<()> {
    let data = format!("{}: {} and {} {}", data.name, data.train_len, data.test_len, data.elements);
    let place = resumed.place.as_ref().map_or("a new run".into(), |place| {
        let finished = if place.finished { ", finished" } else { "" };
        format!("the run in the folder at {}{finished}", run_directory::told(place))
    });
    model.agree(&[("the configuration", configuration), ("the data", data), ("the run to resume", place)])
}

/// Prints the dataset and why it was chosen.
pub(crate) fn announce_data(config: &RunConfig, data: &TrainingData, reason: &str, screen: &Screen) {
    let of = |used: Option<u64>, all: usize| match used.filter(|n| *n < all as u64) {
        Some(used) => format!("{} of {}", grouped(used), grouped(all as u64)),
        None => grouped(all as u64),
    };
    let (train, test) =
        (of(config.data.train_samples, data.train_len), of(config.data.test_samples, data.test_len));
    let from = if data.origin.starts_with("generated") { "" } else { "from " };
    let (name, elements, origin) = (&data.name, data.elements, &data.origin);
    let is_published = ["cifar10", "colour-glyphs"].contains(&name.as_str());
    let classes = match data.identity.is_some() && !data.class_names.is_empty() && !is_published {
        true if data.class_names.len() == 1 => " of one class".into(),
        true => format!(" of {} classes", data.class_names.len()),
        false => String::new(),
    };
    screen.line(format!("Data: {name}, {reason}; {train} + {test} {elements}{classes} {from}{origin}"));
    data.notes.iter().for_each(|note| screen.line(format!("  {note}")));
}

/// Loads the dataset and shows download progress on a terminal.
pub(crate) fn load_data(config: &RunConfig, screen: &Screen) -> Result<TrainingData> {
    config.load_data(|dir| with_progress(dir, screen))
}

/// Shows the progress of downloads and of reading on a terminal, unless progress is hidden.
pub(crate) fn with_progress(dir: DataDir, screen: &Screen) -> DataDir {
    if screen.quiet { dir } else { download_progress::with_progress(dir) }
}

fn announce(
    model: &Model,
    (config, data): (&RunConfig, &TrainingData),
    resumed: &run_directory::ResumePlan,
    screen: &Screen,
) -> Result<()> {
    let weights: usize = model.weights().iter().map(|(_, b)| b.ty().elements()).sum();
    let backend = backend("auto")?;
    let device = backend.devices().first().map(|d| d.description.clone()).unwrap_or_default();
    let start = match model.steps() {
        0 => String::new(),
        n => format!(", after {}", counted(n, "step")),
    };
    screen.detail(format!(
        "Model: {}, {}{start}; {}, {}, batch size {}; on {} ({device})",
        counted(model.architecture().nodes.len() as u64, "layer"),
        counted(weights as u64, "weight"),
        model.compile_config().map_or("", |c| c.optimizer.name()),
        config.compile.precision,
        config.fit.batch_size,
        backend.name(),
    ));
    if !config.data.augment.is_empty() {
        screen.detail(format!(
            "Augmentation: {} (--augment none turns it off)",
            config.data.augment.join(", ")
        ));
    }
    announce_strategy(model, screen);
    let warnings = config.pixel_scale_warnings(model.architecture(), data, "set data.scale=1")?;
    warnings.iter().for_each(|text| note(text));
    match &resumed.place {
        Some(place) if place.finished => screen.line(match more_epochs(resumed, place, config) {
            0 => "The run in this folder is finished: nothing to train (--resume=never starts a new run, --out names another folder)".into(),
            n => format!("The run in this folder is finished: resuming it for {} more", counted(n as u64, "epoch")),
        }),
        Some(place) => screen.line(format!("Resuming at {}", run_directory::told(place))),
        None => {}
    }
    if let Some(before) = &resumed.moved_from {
        screen.line(format!(
            "The run was on {before} and continues on {}: another summation order causes rounding differences \
             from a run that stays on one device",
            devices_of(model)?
        ));
    }
    Ok(())
}

/// Number of epochs that a finished run is made longer by; 0 if a callback ended it.
fn more_epochs(resumed: &run_directory::ResumePlan, place: &RunPosition, config: &RunConfig) -> usize {
    match place.stopped_because {
        Some(_) => 0,
        None => (resumed.initial_epoch + config.epochs()).saturating_sub(place.epoch),
    }
}

/// Describes the devices of the training step: `cpu`, `data_parallel over 4 devices of cpu`.
fn devices_of(model: &Model) -> Result<String> {
    let backend = backend("auto")?;
    Ok(match (model.compile_config(), model.devices().len()) {
        (Some(config), n) if n > 1 && config.strategy != Strategy::one_device() => {
            format!("{} over {n} devices of {}", config.strategy.name(), backend.name())
        }
        _ => backend.name().into(),
    })
}

/// Prints `accuracy` in progress lines if the configuration names the metric so.
pub(crate) fn call_as_asked(model: &Model, config: &RunConfig) {
    let names = model.compile_config().map_or(Vec::new(), |compile| config.names(compile));
    for (name, asked) in names.iter().filter(|(name, _)| name.contains("accuracy")) {
        progress::call(name, &if asked == "acc" { "accuracy".into() } else { asked.clone() });
    }
}

/// Prints the strategy and devices if there are several.
fn announce_strategy(model: &Model, screen: &Screen) {
    let devices = model.devices();
    let (Some(config), Some(first)) = (model.compile_config(), devices.first().filter(|_| devices.len() > 1))
    else {
        return;
    };
    let (strategy, n) = (&config.strategy, devices.len());
    let hosts = match model.host() {
        (_, 1) => String::new(),
        (index, count) => format!(" on {count} hosts (this is host {index})"),
    };
    screen.line(format!("Strategy: {strategy}; {n} devices{hosts}, each like {}", first.description));
}

/// Resume decision, best-model callback, folder, pause epoch and fine-tuning phases.
type RunParts<'a> =
    (run_directory::ResumePlan, KeepBest, &'a RunDirectory, Option<usize>, Option<Box<dyn Callback>>);

/// Trains all epochs.
fn fit(
    model: &mut Model,
    config: &RunConfig,
    data: &TrainingData,
    (resumed, best, folder, pause_after, phases): RunParts<'_>,
    class_weight: BTreeMap<i64, f64>,
    stop: &StopSignal,
    screen: &Screen,
) -> Result<History> {
    let test = config.test_pipeline(data);
    let first = resumed.initial_epoch;
    let compile = model.compile_config().cloned().unwrap_or_default();
    // The weights before averaging are not the final ones.
    let optimizer = &compile.optimizer;
    let averaged = optimizer.use_ema || optimizer.swa.is_some();
    let fit = Fit {
        callbacks: config.callbacks(&folder.folder, &compile).into_iter().chain(phases).collect(),
        validate_last: !averaged,
        detect_anomaly: config.fit.detect_anomaly.then(|| folder.folder.join("anomaly.npz")),
        backup: Some(resumed.backup),
        best: Some(best),
        epochs: first + config.epochs(),
        pause_after: pause_after.map(|epochs| first + epochs).filter(|end| *end < first + config.epochs()),
        initial_epoch: first,
        stop: Some(stop.asked.clone()),
        class_weight,
        ..asked(config, data, &test, screen)?
    };
    let history =
        model.fit(&config.train_pipeline_of(data, model.share_of_batches()), fit).map_err(with_key)?;
    // Remove the note of an earlier run that this one continues.
    model.notes.remove("stopped_because");
    if let Some(why) = &history.stopped_because {
        note(why);
        model.notes.insert("stopped_because".into(), why.clone());
    }
    Ok(history)
}

/// Builds the `fit` options from the configuration.
fn asked(config: &RunConfig, data: &TrainingData, test: &Dataset, screen: &Screen) -> Result<Fit> {
    let of = &config.fit;
    Ok(Fit {
        epochs: of.epochs,
        steps_per_epoch: of.steps_per_epoch,
        // Batches of records do not report their number.
        num_training_batches: Some(config.batches_per_epoch(data)),
        num_val_batches: Some(config.test_batches(data)),
        validation: Some(test.clone()),
        validation_freq: of.validation_freq,
        val_check_interval: of.val_check_interval,
        limit_train_batches: of.limit_train_batches,
        limit_val_batches: of.limit_val_batches,
        overfit_batches: of.overfit_batches,
        fast_dev_run: of.fast_dev_run,
        max_time: of.max_time.as_deref().map(max_time).transpose()?,
        num_sanity_val_steps: of.num_sanity_val_steps.unwrap_or(0),
        detect_anomaly: of.detect_anomaly.then(|| std::env::temp_dir().join("anomaly.npz")),
        barebones: of.barebones,
        verbose: usize::from(!screen.quiet),
        ..Fit::default()
    })
}

/// Runs a few batches end to end and writes nothing.
pub(crate) fn fast_dev_run(
    earlier: Option<Model>,
    from: Option<&str>,
    config: &RunConfig,
    data: TrainingData,
    screen: &Screen,
) -> CommandResult {
    let InitialModel { mut model, data, .. } = prepared(earlier, from, config, data, screen)?;
    let class_weight = config.class_weight(&data)?;
    let n = config.fit.fast_dev_run.unwrap_or(1);
    let batches = if n == 1 { "one batch".into() } else { format!("{n} batches") };
    screen.line(format!("Trial run of {batches}: nothing is saved, callbacks and backups are skipped"));
    call_as_asked(&model, config);
    let stop = StopSignal::install()?;
    let train = config.train_pipeline_of(&data, model.share_of_batches());
    let fit = Fit {
        stop: Some(stop.asked.clone()),
        class_weight,
        ..asked(config, &data, &config.test_pipeline(&data), screen)?
    };
    let history = model.fit(&train, fit).map_err(with_key)?;
    let last = history.last();
    let shown = values(&last, |name| Some(progress::called(name)));
    screen.line(match &history.stopped_because {
        Some(why) => format!("The trial ended early: {why}"),
        None => format!("The trial succeeded: {shown}"),
    });
    if screen.json {
        let counts = [("fast_dev_run", json!(n)), ("steps", json!(history.step_ms.len()))];
        let values = last.iter().map(|(name, value)| (name, json!(value)));
        let all = counts.into_iter().chain(values).map(|(name, value)| (name.to_string(), value));
        screen.object(&Value::Object(all.collect()));
    }
    Ok(stop.exit_code().max(u8::from(history.stopped_because.is_some())))
}

/// Times only the training loop and writes nothing.
pub(crate) fn barebones(
    earlier: Option<Model>,
    from: Option<&str>,
    config: &RunConfig,
    data: TrainingData,
    screen: &Screen,
) -> CommandResult {
    let InitialModel { mut model, data, .. } = prepared(earlier, from, config, data, screen)?;
    let class_weight = config.class_weight(&data)?;
    screen.line("Training loop only: callbacks, backups and progress are skipped, and nothing is saved");
    let stop = StopSignal::install()?;
    let train = config.train_pipeline_of(&data, model.share_of_batches());
    let asked = asked(config, &data, &config.test_pipeline(&data), screen)?;
    let fit = Fit { stop: Some(stop.asked.clone()), class_weight, ..asked };
    let history = model.fit(&train, fit).map_err(with_key)?;
    let (steps, ms) = (history.step_ms.len(), history.median_step_ms());
    screen.line(format!("{} in {ms:.3} ms each (median)", counted(steps as u64, "step")));
    if screen.json {
        screen.object(&json!({
            "barebones": true,
            "steps": steps,
            "ms_per_step": ms,
            "samples": history.samples,
            "loss": history.last().get("loss"),
            "stopped_because": history.stopped_because,
        }));
    }
    Ok(stop.exit_code())
}

/// Configuration for the model file: without local folders and final-report settings.
fn portable(config: &RunConfig) -> RunConfig {
    let mut config = config.clone();
    config.data.dir = None;
    let named = config.data.tokenizer.as_ref().and_then(|t| Path::new(t).file_name());
    config.data.tokenizer = named.map(|name| name.to_string_lossy().into_owned());
    config.fit.report = true;
    config.fit.tui = false;
    config.fit.logger = None;
    config.lr_find = None;
    // Training that continues from the model does not repeat the fine-tuning phases.
    config.fine_tune = None;
    config
}

/// Removes all-zero channels from a model and updates its configuration.
fn smaller(model: &mut Model, config: &RunConfig) -> Result<Vec<RemovedChannels>> {
    let removed = model.remove_channels()?;
    let mut config = portable(config).with_removed(&removed, model);
    // The pruned channels are removed.
    config.pruning = None;
    model.notes.insert("config".into(), config.to_toml()?);
    Ok(removed)
}

/// Changes of the trained weights before they are written: removed channels, averages, the best epoch.
struct FinalModel {
    removed: Vec<RemovedChannels>,
    /// Whether the weights differ from those that trained.
    is_changed: bool,
    /// Which weights they are, if not those after the last step.
    weights: Option<String>,
}

/// Output files of a run.
pub(crate) struct RunDirectory {
    folder: PathBuf,
    /// Whether this process writes files.
    leads: bool,
    made: bool,
    model: PathBuf,
    /// Model file of the best epoch.
    best: PathBuf,
    example: PathBuf,
}

impl RunDirectory {
    /// Creates the folder before training, so that an unwritable path fails early.
    pub(crate) fn make(folder: PathBuf, dataset: &str) -> Result<RunDirectory> {
        let leads = leads()?;
        let made = leads && !folder.exists();
        if leads {
            RunDirectory::prepare(&folder)?;
        }
        let file = |end: &str| folder.join(format!("{dataset}{end}"));
        let (model, best, example) = (file(".safetensors"), file(run_directory::BEST), file("-example.png"));
        Ok(RunDirectory { model, best, example, leads, made, folder })
    }

    fn files(&self) -> RunFiles<'_> {
        RunFiles { model: &self.model, best: &self.best, example: &self.example, folder: &self.folder }
    }

    fn best(&self, model: &Model, config: &RunConfig) -> KeepBest {
        let compile = model.compile_config().cloned().unwrap_or_default();
        KeepBest::new(&self.best, &config.monitor(&compile))
    }

    fn prepare(folder: &Path) -> Result<()> {
        let hint = "choose a writable folder with --out";
        std::fs::create_dir_all(folder)
            .map_err(|e| Error::io("cannot create the folder", folder, e).hint_command(hint))?;
        let trial = folder.join(format!(".systole-{}-trial.tmp", std::process::id()));
        std::fs::write(&trial, b"")
            .map_err(|e| Error::io("cannot write into", folder, e).hint_command(hint))?;
        std::fs::remove_file(&trial).map_err(|e| Error::io("cannot remove", &trial, e))
    }

    /// Builds the pruning report of the saved model.
    fn pruned(
        &self,
        model: &Model,
        config: &RunConfig,
        removed: Vec<RemovedChannels>,
    ) -> Result<Option<PruningReport>> {
        let is_pruned = self.leads && config.pruning.is_some();
        is_pruned.then(|| PruningReport::of(model, &self.model, removed)).transpose()
    }

    /// Removes zeroed channels from the model and from the best saved model.
    fn shrink(&self, model: &mut Model, config: &RunConfig) -> Result<Vec<RemovedChannels>> {
        if config.pruning.as_ref().is_none_or(|pruning| !pruning.channels) {
            return Ok(Vec::new());
        }
        if self.leads && self.best.is_file() {
            let mut best = Model::load(&self.best)?;
            smaller(&mut best, config)?;
            best.save(&self.best)?;
        }
        smaller(model, config)
    }

    /// Turns a trained model into the one that is written, and returns its test values.
    fn finish(
        &self,
        model: &mut Model,
        (config, data): (&RunConfig, &TrainingData),
        best: &KeepBest,
        history: &mut History,
    ) -> Result<(FinalModel, Logs)> {
        let written = self.final_model(model, config, history)?;
        let tested = final_weights::test(model, (config, data), best, history, written.is_changed)?;
        Ok((written, tested))
    }

    /// Turns a trained model into the one that is written: merges adapters and removes zeroed channels. An interrupted
    /// run keeps both.
    fn final_model(&self, model: &mut Model, config: &RunConfig, history: &History) -> Result<FinalModel> {
        let mut weights: Vec<String> = model.notes.get("weights").cloned().into_iter().collect();
        if history.interrupted {
            return Ok(FinalModel { removed: Vec::new(), is_changed: false, weights: None });
        }
        let has_adapters = model.has_adapters();
        if has_adapters {
            model.save_adapters(self.folder.join(run_directory::ADAPTERS))?;
            model.merge_lora()?;
            weights.push("LoRA adapters merged".into());
        }
        let removed = self.shrink(model, config)?;
        let loses_channels = config.pruning.as_ref().is_some_and(|pruning| pruning.channels);
        let is_changed = has_adapters || loses_channels;
        Ok(FinalModel { removed, is_changed, weights: Some(weights.join(", ")).filter(|w| !w.is_empty()) })
    }

    /// Saves the model and an example test image.
    fn save(&self, model: &Model, data: &TrainingData) -> Result<()> {
        if self.leads {
            sweep(&self.folder);
        }
        model.save(&self.model).map_err(|e| {
            e.hint("free disk space or choose another folder with --out; an existing model file is intact")
        })?;
        if model.has_adapters() {
            model.save_adapters(self.folder.join(run_directory::ADAPTERS))?;
        }
        if self.leads
            && let Err(e) = self.save_example(data)
        {
            note(&format!("cannot write the example test image: {e}"));
        }
        Ok(())
    }

    fn save_example(&self, data: &TrainingData) -> Result<()> {
        match data.test.iter().next().filter(|_| data.has_example()) {
            Some(first) => png::write(&self.example, first?.get("image")?),
            None => Ok(()),
        }
    }

    /// Removes the folder after a failure if it is empty.
    fn undo(&self) {
        if self.made {
            // Fails, as intended, if the folder has files.
            let _ = std::fs::remove_dir(&self.folder);
        }
    }
}

/// Adds the configuration key of the loss to an error about the loss.
fn with_key(e: Error) -> Error {
    if e.places().iter().any(|place| place.starts_with("loss ")) { e.at("compile.loss") } else { e }
}
