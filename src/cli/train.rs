//! `systole train`: from arguments to a trained, saved and tested model.

use super::confusion::Confusion;
use super::report::Run;
use super::resume::{self, Record, Resume, SaveArgs};
use super::screen::{Screen, grouped, note};
use super::stop::Stop;
use super::target::{Target, config_of};
use super::{DataArgs, Failure, Outcome};
use crate::config::{Config, Draft};
use crate::datasets::{
    DataDir, RecordOptions, TrainingData, holds_records, is_of_records, picture_size_for,
    picture_size_of_records,
};
use clap::Args;
use std::io::{IsTerminal, stderr};
use std::path::{Path, PathBuf};
use std::time::Instant;
use systole_data::disk::sweep;
use systole_data::format::png;
use systole_dist::Strategy;
use systole_ir::{Error, ErrorKind, Result};
use systole_nn::schedule::Schedule;
use systole_nn::{Compile, Fit, History, Model};
use systole_runtime::backend;

#[derive(Args)]
pub(crate) struct TrainArgs {
    /// A folder with one folder of pictures for each class, or of TFRecord, CSV or NumPy files; such a file; a TOML file
    /// (see `systole init`); or fashion-mnist, mnist, glyphs, mlp, cifar-cnn, resnet50, gpt2-small, lstm. Without: fashion-mnist where its files are found or can be
    /// downloaded, else glyphs
    #[arg(value_name = "FOLDER | FILE | CONFIG.toml | PRESET")]
    target: Option<String>,
    #[command(flatten)]
    data: DataArgs,
    /// Epochs to train; with --from: more epochs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    epochs: Option<u64>,
    /// Steps in an epoch; `none`: one pass over the data
    #[arg(long, value_name = "N")]
    steps_per_epoch: Option<String>,
    /// Samples in a step
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    batch_size: Option<u64>,
    /// Learning rate of the optimizer
    #[arg(long, value_name = "X")]
    learning_rate: Option<String>,
    /// float32, mixed_bfloat16 or mixed_float16
    #[arg(long, value_name = "POLICY")]
    precision: Option<String>,
    /// How steps are split over devices: one_device, data_parallel, fully_sharded or auto
    #[arg(long, value_name = "STRATEGY")]
    strategy: Option<String>,
    /// How many devices the strategy takes; logical ones on the CPU, which show numerics, not speed
    #[arg(long, value_name = "N", conflicts_with = "mesh", value_parser = clap::value_parser!(u64).range(1..))]
    devices: Option<u64>,
    /// The strategy's devices as a box with named axes; the batch is split along `data`, else along the first
    #[arg(long, value_name = "AXIS=N,…")]
    mesh: Option<String>,
    /// Seed of initial weights, dropout and the order of samples
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: Option<u64>,
    /// Folder for what is written; a run that it holds already goes on [default: runs/PRESET]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// What to do with a run that the folder holds
    #[arg(long, value_enum, default_value_t)]
    resume: Resume,
    #[command(flatten)]
    save: SaveArgs,
    /// Set any key of the TOML: data.scale=1/255, layers.0.filters=48, optimizer.type=sgd; `none` takes it out
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Continue from a saved model: its weights, optimizer state and step
    #[arg(long, value_name = "MODEL")]
    from: Option<String>,
    /// Print the configuration with all arguments applied as TOML, and train nothing
    #[arg(long)]
    print_config: bool,
}

/// What to train on, and why that.
struct Plan {
    config: Config,
    data: TrainingData,
    reason: String,
}

pub(crate) fn run(args: TrainArgs, screen: &Screen) -> Outcome {
    let began = Instant::now();
    let earlier = args.from.as_ref().map(Model::load).transpose()?;
    let draft = args.draft(earlier.as_ref())?;
    if args.print_config {
        return print_config(&args.apply(draft)?.finish()?, screen);
    }
    let Plan { config, data, reason } = args.plan(draft, screen)?;
    let initial_epoch = earlier.as_ref().map_or(0, Model::epochs);
    let identity = data.identity.clone();
    let from = args.from.clone();
    let record = Record { config, reason, from, initial_epoch, data: identity, devices: None };
    let folder = match &args.out {
        Some(out) => out.clone(),
        None => record.folder(&Path::new("runs").join(args.run_name(&data.name)))?,
    };
    let folder = Folder::make(folder, &data.name)?;
    go(Start { record, data, earlier }, folder, (args.resume, &args.save), began, screen)
}

/// Whether this process writes files: it is the only one, or drives the first of several hosts.
fn leads() -> Result<bool> {
    Ok(backend("auto")?.hosts().is_none_or(|hosts| hosts.index() == 0))
}

/// What a run starts with.
struct Start {
    record: Record,
    data: TrainingData,
    /// The saved model of [`Record::from`].
    earlier: Option<Model>,
}

#[derive(Args)]
pub(crate) struct ResumeArgs {
    /// The folder of a run: what `systole train` was given with --out, or runs/PRESET
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    #[command(flatten)]
    save: SaveArgs,
}

/// `systole resume`: goes on with the run of a folder.
pub(crate) fn resume(args: ResumeArgs, screen: &Screen) -> Outcome {
    let began = Instant::now();
    let Some(record) = Record::read(&args.folder)? else {
        let e = Error::new(ErrorKind::Io, format!("{} holds no run", args.folder.display()));
        return Err(e.hint("name the folder that `systole train` wrote to: --out, or runs/PRESET").into());
    };
    let data = load_data(&record.config, screen)?;
    announce_data(&data, &record.reason, screen);
    let earlier = record.from.as_ref().map(Model::load).transpose()?;
    let record = Record { data: data.identity.clone(), ..record };
    let folder = Folder::make(args.folder, &data.name)?;
    go(Start { record, data, earlier }, folder, (Resume::Auto, &args.save), began, screen)
}

/// Trains (or goes on), saves, tests and reports.
fn go(
    start: Start,
    folder: Folder,
    (resume, save): (Resume, &SaveArgs),
    began: Instant,
    screen: &Screen,
) -> Outcome {
    let Start { record, data, earlier } = start;
    let (config, reason) = (record.config.clone(), record.reason.clone());
    let made = match (earlier, &record.from) {
        (Some(earlier), Some(path)) => continued(earlier, path, &config, &data, screen),
        _ => config.model(&config.sample_of(&data), &data.class_names),
    };
    let mut model = made.inspect_err(|_| folder.undo())?;
    let record = Record { devices: Some(devices_of(&model)?), ..record };
    let common = record.common();
    let resumed = record.plan(&folder.folder, resume, save).inspect_err(|_| folder.undo())?;
    agree(&model, &data, common, &resumed).inspect_err(|_| folder.undo())?;
    if folder.leads {
        resumed.write_down(&folder.folder).inspect_err(|_| folder.undo())?;
    }
    announce(&model, &config, &resumed, screen)?;
    let stop = Stop::install()?;
    let place = resumed.place.clone();
    let history = train(&mut model, &config, &data, resumed, &stop, screen).inspect_err(|_| folder.undo())?;
    let tuning = history.data.as_ref().map(|report| &report.tuning);
    let frozen = if folder.leads { save.freeze(&config, tuning) } else { Ok(None) };
    // A signal that came too late to stop anything still ends the program as interrupted, where no other host counts on it.
    let interrupted = history.interrupted || (stop.exit_code() != 0 && model.host().1 == 1);
    let mut run = Run::new(&config, &data, reason, history, &model, interrupted, began);
    // Of one's own pictures; the known sets' classes are well known.
    if config.data.is_own() && !data.class_names.is_empty() && !run.was_interrupted() {
        run.confusions = Some(Confusion::count(&mut model, &config.test_pipeline(&data))?);
    }
    model.notes.insert("config".into(), portable(&config).to_toml()?);
    if !data.fields.is_empty() {
        model.notes.insert("fields".into(), serde_json::json!(data.fields).to_string());
    }
    model.notes.insert("history".into(), run.history_with(model.notes.get("history")).to_string());
    folder.save(&model, &data).inspect_err(|_| folder.undo())?;
    run.show(&model, &folder.model, &folder.example, &folder.folder, place.as_ref(), screen);
    // After the model: a configuration that cannot be written costs no training.
    if let Some(path) = frozen? {
        screen.line(format!("The threads and queues that were found are in {}", path.display()));
    }
    // A signal to another host ended this one's run too.
    Ok(if interrupted && stop.exit_code() == 0 { TERMINATED } else { stop.exit_code() })
}

/// What a program exits with that SIGTERM ended.
const TERMINATED: u8 = 143;

/// On several hosts: an error where they are not about to train the same.
fn agree(model: &Model, data: &TrainingData, configuration: String, resumed: &resume::Plan) -> Result<()> {
    let data = format!("{}: {} and {} {}", data.name, data.train_len, data.test_len, data.elements);
    let place = resumed.place.as_ref().map_or("a new run".into(), |place| {
        let finished = if place.finished { ", finished" } else { "" };
        format!("the run in the folder, in {}{finished}", resume::told(place))
    });
    model.agree(&[("the configuration", configuration), ("the data", data), ("what they go on with", place)])
}

impl TrainArgs {
    /// The name of what is trained: a preset's, a TOML file's, or the data set's.
    fn run_name(&self, dataset: &str) -> String {
        let stem = |name: &String| Path::new(name).file_stem().map(|s| s.to_string_lossy().into_owned());
        self.target.as_ref().and_then(stem).unwrap_or_else(|| dataset.into())
    }

    /// The configuration to start from.
    fn draft(&self, earlier: Option<&Model>) -> Result<Draft, Failure> {
        match (&self.target, earlier, &self.from) {
            (Some(name), _, _) => match Target::of(name).map_err(Failure::usage)? {
                Target::Preset("folder") => match &self.data.data_dir {
                    Some(dir) => folder_draft(dir),
                    None => Ok(Draft::preset("folder")?),
                },
                Target::Preset(preset) => Ok(Draft::preset(preset)?),
                Target::Toml(path) => Ok(Draft::read(path)?),
                Target::Folder(path) if holds_records(&path) => records_draft(&path, None),
                Target::Folder(path) => folder_draft(&path),
                Target::Model(path) if is_of_records(&path) => file_draft(Path::new(&path)),
                Target::Model(path) => Err(Failure::usage(not_to_train(&path))),
            },
            (None, Some(model), Some(path)) => match config_of(model, path)? {
                Some(config) => {
                    Ok(Draft::parse(&config.to_toml()?, &format!("the configuration kept in {path}"))?)
                }
                None => {
                    let e = Error::new(ErrorKind::Config, format!("{path} does not say how it was trained"));
                    Err(Failure::usage(e.hint("name a preset or a TOML file beside --from")))
                }
            },
            _ => Ok(Draft::preset("fashion-mnist")?),
        }
    }

    /// The arguments on top of a configuration, `--set` last.
    fn apply(&self, mut draft: Draft) -> Result<Draft, Failure> {
        if let Some(dir) = &self.data.data_dir {
            draft.set_text(format!("--data-dir {}", dir.display()), "data.dir", &dir.display().to_string());
        }
        let number = |n: Option<u64>| n.map(|n| n.to_string());
        let flags = [
            ("--epochs", "fit.epochs", number(self.epochs)),
            ("--steps-per-epoch", "fit.steps_per_epoch", self.steps_per_epoch.clone()),
            ("--batch-size", "fit.batch_size", number(self.batch_size)),
            ("--learning-rate", "optimizer.learning_rate", self.learning_rate.clone()),
            ("--precision", "compile.precision", self.precision.clone()),
            ("--seed", "seed", number(self.seed)),
            ("--strategy", "strategy.type", self.strategy.clone()),
            ("--devices", "strategy.devices", number(self.devices)),
        ];
        for (flag, key, value) in flags {
            if let Some(value) = value {
                draft.set(format!("{flag} {value}"), key, &value);
            }
        }
        if let Some(mesh) = &self.mesh {
            draft.set_text(format!("--mesh {mesh}"), "strategy.mesh", mesh);
        }
        for set in &self.sets {
            let Some((key, value)) = set.split_once('=') else {
                let e = Error::new(ErrorKind::Config, format!("--set {set} has no `=`"));
                return Err(Failure::usage(
                    e.hint("write it as --set key=value, for example --set data.scale=1/255"),
                ));
            };
            draft.set(format!("--set {set}"), key.trim(), value.trim());
        }
        Ok(draft)
    }

    /// Configuration and data. Only where nothing was asked for may glyphs stand in for Fashion-MNIST.
    fn plan(&self, draft: Draft, screen: &Screen) -> Result<Plan, Failure> {
        let config = self.apply(draft)?.finish()?;
        let free = self.target.is_none() && self.from.is_none() && self.data.data_dir.is_none();
        let free = free && config.data.dataset == "fashion-mnist" && config.data.dir.is_none();
        if !free {
            let data = load_data(&config, screen)?;
            let mut config = config;
            if config.data.is_own() && self.from.is_none() {
                config.fit_classes(data.class_names.len())?;
            }
            return Ok(announced(config, data, "as asked".into(), screen));
        }
        match load_data(&config, screen) {
            Ok(data) => Ok(announced(config, data, "the default".into(), screen)),
            // Files that are there but damaged are told, not passed over.
            Err(e) if e.kind() != ErrorKind::Io => Err(e.into()),
            Err(e) => {
                let config = self.apply(Draft::preset("glyphs")?)?.finish()?;
                let data = load_data(&config, screen)?;
                let plan = announced(config, data, format!("because {}", e.what()), screen);
                let rest = e.to_string();
                rest.lines().skip(1).for_each(|line| screen.detail(line));
                Ok(plan)
            }
        }
    }
}

/// The preset for pictures of one's own, fitted to a folder.
fn folder_draft(folder: &Path) -> Result<Draft, Failure> {
    if folder.join("run.json").is_file() {
        let e = Error::new(ErrorKind::Config, format!("{} is the folder of a run", folder.display()));
        return Err(Failure::usage(e.hint(format!("to go on with it: resume {}", folder.display()))));
    }
    let [height, width, channels] = picture_size_for(folder)?;
    let mut draft = Draft::preset("folder")?;
    let flag = folder.display().to_string();
    draft.set_text(&flag, "data.dir", &flag);
    draft.set(&flag, "data.image_size", &format!("[{height}, {width}]"));
    draft.set(&flag, "data.color_mode", if channels == 1 { "grayscale" } else { "rgb" });
    Ok(draft)
}

/// The preset for records of one's own, fitted to a folder of files, or to one of them.
fn records_draft(folder: &Path, file: Option<&str>) -> Result<Draft, Failure> {
    let options =
        RecordOptions { train: file.map(str::to_string).into_iter().collect(), ..Default::default() };
    let picture = picture_size_of_records(DataDir::at(folder), &options)?;
    let mut draft = Draft::preset(if picture.is_some() { "tfrecord" } else { "table" })?;
    let flag = folder.display().to_string();
    draft.set_text(&flag, "data.dir", &flag);
    if let Some(file) = file {
        draft.set(file, "data.records.train", &format!("[{file:?}]"));
    }
    if let Some([height, width, channels]) = picture {
        draft.set(&flag, "data.image_size", &format!("[{height}, {width}]"));
        draft.set(&flag, "data.color_mode", if channels == 1 { "grayscale" } else { "rgb" });
    }
    Ok(draft)
}

fn file_draft(file: &Path) -> Result<Draft, Failure> {
    let whole = systole_data::input::absolute(file)?;
    let name = whole.file_name().map_or(String::new(), |n| n.to_string_lossy().into_owned());
    records_draft(whole.parent().unwrap_or(Path::new("/")), Some(&name))
}

/// Why a file that is no configuration cannot be trained.
fn not_to_train(path: &str) -> Error {
    let is_model = Path::new(path).extension().is_some_and(|e| e == "safetensors");
    let e = Error::new(ErrorKind::Config, format!("{path} is neither a preset, a folder nor a .toml file"));
    match is_model {
        true => e.hint(format!("to go on with a saved model: train --from {path}")),
        false => e.hint(
            "to learn from pictures name the folder that holds one folder for each class (unpack archives first); \
             to go on with a saved model: train --from MODEL",
        ),
    }
}

/// Says in the first line what is learned from, and why.
fn announce_data(data: &TrainingData, reason: &str, screen: &Screen) {
    let (train, test) = (grouped(data.train_len as u64), grouped(data.test_len as u64));
    let from = if data.origin.starts_with("drawn") { "" } else { "from " };
    let (name, elements, origin) = (&data.name, data.elements, &data.origin);
    let classes = match data.identity.is_some() {
        true => format!(" of {} classes", data.class_names.len()),
        false => String::new(),
    };
    screen.line(format!("Data: {name}, {reason}; {train} + {test} {elements}{classes} {from}{origin}"));
    data.notes.iter().for_each(|note| screen.line(format!("  {note}")));
}

fn announced(config: Config, data: TrainingData, reason: String, screen: &Screen) -> Plan {
    announce_data(&data, &reason, screen);
    Plan { config, data, reason }
}

/// Loads the data set, with the progress of a download on a terminal.
pub(crate) fn load_data(config: &Config, screen: &Screen) -> Result<TrainingData> {
    let live = stderr().is_terminal() && !screen.quiet;
    config.load_data(move |dir| {
        if !live {
            return dir;
        }
        dir.progress(|what, have, all| {
            let (end, percent) = (if have == all { "\n" } else { "" }, have * 100 / all.max(1));
            // Of small things there are many: once for each percent is enough.
            if have == all || percent != have.saturating_sub(1) * 100 / all.max(1) {
                eprint_part(&format!("\r\x1b[2K{what}: {percent} %{end}"));
            }
        })
    })
}

fn eprint_part(text: &str) {
    use std::io::Write;
    let mut err = stderr().lock();
    // A closed terminal does not end a download.
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}

/// An error when a model was made for samples of another shape.
pub(crate) fn check_samples(model: &Model, config: &Config, data: &TrainingData, path: &str) -> Result<()> {
    let takes = model.architecture().inputs.first().and_then(|i| i.ty.as_ref()).map(|t| t.shape.to_vec());
    let are = config.sample_of(data).shape.to_vec();
    if takes.as_deref().is_none_or(|t| *t == are) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Data, format!("{path} does not fit the {} of {}", data.elements, data.name))
        .because(format!("it takes {:?}, they are {are:?}", takes.unwrap_or_default()))
        .hint("use the data set that the model was trained on"))
}

/// A saved model, ready to be trained further by `config`.
fn continued(
    mut model: Model,
    path: &str,
    config: &Config,
    data: &TrainingData,
    screen: &Screen,
) -> Result<Model> {
    let layers = |m: &Model| {
        m.architecture().nodes.iter().map(|p| (p.name.clone(), p.layer.to_json())).collect::<Vec<_>>()
    };
    if layers(&config.layers_only()?) != layers(&model) {
        return Err(Error::new(
            ErrorKind::Config,
            format!("the layers of the configuration are not those of {path}"),
        )
        .hint(format!("leave the preset or TOML file out: train --from {path}")));
    }
    check_samples(&model, config, data, path)?;
    let output = model.output_type().map(|t| t.shape.to_vec()).unwrap_or_default();
    let wanted = config.compile_config(&output)?;
    match model.compile_config() {
        Some(had) if same_but_rate(had, &wanted) => {
            if let (true, Schedule::Constant(rate)) = (
                had.optimizer.learning_rate != wanted.optimizer.learning_rate,
                &wanted.optimizer.learning_rate,
            ) {
                model.set_learning_rate(*rate);
            }
        }
        _ => {
            screen.line("The optimizer starts afresh: loss, metrics, precision or optimizer are not those of the saved model");
            model.compile(wanted.clone())?;
        }
    }
    if model.compile_config().is_some_and(|had| had.strategy != wanted.strategy) {
        model.set_strategy(wanted.strategy, wanted.backend)?;
    }
    Ok(model)
}

/// Whether optimizer state of `had` can go on under `wanted`.
fn same_but_rate(had: &Compile, wanted: &Compile) -> bool {
    let mut optimizer = had.optimizer.clone();
    let constant = matches!(wanted.optimizer.learning_rate, Schedule::Constant(_));
    if constant {
        optimizer.learning_rate = wanted.optimizer.learning_rate.clone();
    }
    optimizer == wanted.optimizer
        && had.loss == wanted.loss
        && had.metrics == wanted.metrics
        && had.precision == wanted.precision
}

fn announce(model: &Model, config: &Config, resumed: &resume::Plan, screen: &Screen) -> Result<()> {
    let weights: usize = model.weights().iter().map(|(_, b)| b.ty().elements()).sum();
    let backend = backend("auto")?;
    let device = backend.devices().first().map(|d| d.description.clone()).unwrap_or_default();
    let start = match model.steps() {
        0 => String::new(),
        n => format!(", after {} steps", grouped(n)),
    };
    screen.detail(format!(
        "Model: {} layers, {} weights{start}; {}, {}; on {} ({device})",
        model.architecture().nodes.len(),
        grouped(weights as u64),
        model.compile_config().map_or("", |c| c.optimizer.name()),
        config.compile.precision,
        backend.name(),
    ));
    announce_strategy(model, screen);
    match &resumed.place {
        Some(place) if place.finished => screen.line(
            "The run of this folder is finished: nothing is trained (--resume=never starts anew, --out names another folder)",
        ),
        Some(place) => screen.line(format!("Going on in {}", resume::told(place))),
        None => {}
    }
    if let Some(before) = &resumed.moved_from {
        screen.line(format!(
            "It was on {before} and goes on on {}: sums are added in another order, so its figures differ in rounding \
             from those of a run that stays where it is",
            devices_of(model)?
        ));
    }
    Ok(())
}

/// What steps run on: `cpu`, `data_parallel over 4 devices of cpu`.
fn devices_of(model: &Model) -> Result<String> {
    let backend = backend("auto")?;
    Ok(match (model.compile_config(), model.devices().len()) {
        (Some(config), n) if n > 1 && config.strategy != Strategy::one_device() => {
            format!("{} over {n} devices of {}", config.strategy.name(), backend.name())
        }
        _ => backend.name().into(),
    })
}

/// Which devices take part, where there are several.
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

/// The epochs, and the test that the last one is owed.
fn train(
    model: &mut Model,
    config: &Config,
    data: &TrainingData,
    resumed: resume::Plan,
    stop: &Stop,
    screen: &Screen,
) -> Result<History> {
    let test = config.test_pipeline(data);
    let first = resumed.initial_epoch;
    let fit = Fit {
        backup: Some(resumed.backup),
        epochs: first + config.fit.epochs,
        initial_epoch: first,
        steps_per_epoch: config.fit.steps_per_epoch,
        validation: Some(test.clone()),
        validation_freq: config.fit.validation_freq,
        verbose: usize::from(!screen.quiet),
        stop: Some(stop.asked.clone()),
        ..Fit::default()
    };
    let mut history = model.fit(&config.train_pipeline_of(data, model.share_of_batches()), fit)?;
    if let Some(why) = &history.stopped_because {
        note(why);
    }
    let tested = history.last().get("val_loss").is_some();
    if !history.interrupted && !tested {
        let values = model.evaluate(&test)?;
        if let Some(last) = history.epochs.last_mut() {
            last.extend_with_prefix("val_", &values);
        }
    }
    Ok(history)
}

/// The configuration as it goes into the model file: without this machine's folders.
fn portable(config: &Config) -> Config {
    let mut config = config.clone();
    config.data.dir = None;
    config
}

fn print_config(config: &Config, screen: &Screen) -> Outcome {
    match screen.json {
        true => screen.object(&serde_json::to_value(config).map_err(|e| {
            Error::new(ErrorKind::Bug, "a configuration does not serialise").because(e.to_string())
        })?),
        false => screen.line(config.to_toml()?.trim_end()),
    }
    Ok(0)
}

/// Where the run's files go.
struct Folder {
    folder: PathBuf,
    /// Whether this process writes there.
    leads: bool,
    made: bool,
    model: PathBuf,
    example: PathBuf,
}

impl Folder {
    /// Before training, so that a folder that cannot be made costs no hours.
    fn make(folder: PathBuf, dataset: &str) -> Result<Folder> {
        let leads = leads()?;
        let made = leads && !folder.exists();
        if leads {
            Folder::prepare(&folder)?;
        }
        let file = |end: &str| folder.join(format!("{dataset}{end}"));
        Ok(Folder { model: file(".safetensors"), example: file("-example.png"), leads, made, folder })
    }

    fn prepare(folder: &Path) -> Result<()> {
        let hint = "choose a folder that you may write to with --out";
        std::fs::create_dir_all(folder)
            .map_err(|e| Error::io("cannot make the folder", folder, e).hint(hint))?;
        let trial = folder.join(format!(".systole-{}-trial.tmp", std::process::id()));
        std::fs::write(&trial, b"").map_err(|e| Error::io("cannot write into", folder, e).hint(hint))?;
        std::fs::remove_file(&trial).map_err(|e| Error::io("cannot remove", &trial, e))
    }

    /// The model, then a test picture to try it on.
    fn save(&self, model: &Model, data: &TrainingData) -> Result<()> {
        if self.leads {
            sweep(&self.folder);
        }
        model.save(&self.model).map_err(|e| {
            e.hint(
                "make room or choose another folder with --out; a file that was there before is still whole",
            )
        })?;
        if self.leads
            && let Err(e) = self.save_example(data)
        {
            note(&format!("the test picture to try the model on is not written: {e}"));
        }
        Ok(())
    }

    fn save_example(&self, data: &TrainingData) -> Result<()> {
        match data.test.iter().next().filter(|_| data.has_example()) {
            Some(first) => png::write(&self.example, first?.get("image")?),
            None => Ok(()),
        }
    }

    /// After a failure: leaves no empty folder behind.
    fn undo(&self) {
        if self.made {
            // Refuses, rightly, where anything is in it.
            let _ = std::fs::remove_dir(&self.folder);
        }
    }
}
