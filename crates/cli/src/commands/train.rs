//! `systole train`: from arguments to a trained, saved and tested model.

use crate::args::common::{CommonArgs, DataArgs};
use crate::args::exit_status::{CommandError, CommandResult, RunCommand};
use crate::models::command_target::{CommandTarget, config_of, set_all};
use crate::models::model_data::{set_columns, tokenizer_of};
use crate::models::run_directory::{ResumeMode, RunRecord, SaveArgs, found_rate, model_file};
use crate::render::screen::{Screen, counted};
use crate::run::initial_model::{InitialModel, prepared};
use crate::run::training::{
    RunDirectory, RunStart, announce_data, barebones, fast_dev_run, load_data, train,
};
use crate::run::user_data::beside_model;
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use systole_config::{ConfigDraft, Logger, LrFindSection, RunConfig};
use systole_datasets::{
    DataDir, RecordOptions, Tokenizer, TrainingData, holds_records, is_of_records, picture_size_for,
    picture_size_of_records,
};
use systole_ir::{Error, ErrorKind};
use systole_nn::{LrFindResult, Model};

#[derive(Args)]
pub(crate) struct TrainArgs {
    /// A folder with one folder of pictures for each class, or of TFRecord, CSV or NumPy files; such a file; a text (.txt); a TOML file
    /// (see `systole init`); or fashion-mnist, mnist, glyphs, mlp, cifar-cnn, resnet50, gpt2-small, gpt-micro, lstm, biggan, biggan128. Without: fashion-mnist where its files are found or can be
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
    /// Samples in a step; auto: as many as fit into memory (of which --max-memory may give less), by the compiler's plan
    #[arg(long, value_name = "N|auto", value_parser = batch_size)]
    batch_size: Option<String>,
    /// Learning rate of the optimizer
    #[arg(long, value_name = "X")]
    pub(crate) learning_rate: Option<String>,
    /// One cycle over the whole run: the learning rate rises to X and falls to next to nothing
    #[arg(long, value_name = "X", conflicts_with = "learning_rate")]
    one_cycle: Option<String>,
    /// Momentum of the cycle at its begin, in its middle and at its end, against the rate: 0.95,0.85,0.95 in fastai
    #[arg(long, value_name = "A,B,C", requires = "one_cycle")]
    moms: Option<String>,
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
    /// Try it out: one epoch of N batches and a test of as many, which leave nothing behind
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "1", value_parser = clap::value_parser!(u64).range(1..))]
    fast_dev_run: Option<u64>,
    /// Train on the same few batches in every epoch and test on as many: 4 batches, or 0.01 for a hundredth
    #[arg(long, value_name = "N")]
    overfit_batches: Option<String>,
    /// Train on this part of each epoch's batches: the first 10, or 0.1 for a tenth
    #[arg(long, value_name = "N")]
    limit_train_batches: Option<String>,
    /// Test on this part of the test data's batches; 0: not at all
    #[arg(long, value_name = "N")]
    limit_val_batches: Option<String>,
    /// Test in the middle of epochs, too: after 0.25 of their batches, after 100 batches, or once 00:10:00 has gone by
    #[arg(long, value_name = "SHARE | N | HH:MM:SS")]
    val_check_interval: Option<String>,
    /// Test after every N epochs; the last one is always tested
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    check_val_every_n_epoch: Option<u64>,
    /// End training when this time is over, all starts of a run together: 00:01:30:00 is an hour and a half
    #[arg(long, value_name = "DD:HH:MM:SS")]
    max_time: Option<String>,
    /// End with the op and the layer where numbers arise that are not finite, forward or backward; a step costs twice as much
    #[arg(long)]
    detect_anomaly: bool,
    /// The loop alone, to measure it: no callbacks, backups or progress, and nothing is kept
    #[arg(long)]
    barebones: bool,
    /// Test on N batches before the first step, so that a test that cannot run does not wait for an epoch's end
    #[arg(long, value_name = "N")]
    num_sanity_val_steps: Option<u64>,
    /// How much the samples of each class count in the loss: balanced, or cat=2,dog=0.5
    #[arg(long, value_name = "balanced | CLASS=X,…")]
    class_weights: Option<String>,
    /// Show a dashboard while training: curves, time, memory and what is told; q ends it as Ctrl-C does
    #[arg(long)]
    tui: bool,
    /// Leave out report.html, the page about the run that its folder gets at the end
    #[arg(long)]
    no_report: bool,
    /// Changes of training pictures, drawn anew for every picture and epoch: flip,rotate=10,zoom=1.1,lighting=0.2,warp,crop=4,
    /// erase,mixup=0.4,cutmix, or aug_transforms for fastai's; none: not even those of the TOML
    #[arg(long, value_name = "NAME[=X],…")]
    augment: Option<String>,
    /// Seed of initial weights, dropout and the order of samples
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: Option<u64>,
    /// Folder for what is written; a run that it holds already goes on [default: runs/PRESET]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// What to do with a run that the folder holds
    #[arg(long, value_enum, default_value_t)]
    resume: ResumeMode,
    #[command(flatten)]
    save: SaveArgs,
    /// Write the run for TensorBoard into the folder `tensorboard` of the run's, as is done by default; `none`: not even where the
    /// TOML says so
    #[arg(long, value_enum, value_name = "LOGGER")]
    logger: Option<LoggerArg>,
    /// Set any key of the TOML: data.scale=1/255, layers.0.filters=48, optimizer.type=sgd; `none` takes it out
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Continue from a saved model: its weights, optimizer state and step; of a run's folder from its best model. With --fine-tune or
    /// --freeze-until: begin with its weights, and a new head where the classes are others
    #[arg(long, value_name = "MODEL")]
    from: Option<String>,
    /// Fine-tune the model of --from: first the head alone for --freeze-epochs, then all layers for --epochs, at rates from a
    /// hundredth at the input to half of --learning-rate (0.002) at the head
    #[arg(long, conflicts_with = "one_cycle")]
    fine_tune: bool,
    /// The first layer that trains of the model of --from: those before it stay as they are; with --fine-tune for --freeze-epochs only
    #[arg(long, value_name = "LAYER")]
    freeze_until: Option<String>,
    /// Epochs in which only the head trains, before those of --epochs [default: 1]
    #[arg(long, value_name = "N")]
    freeze_epochs: Option<u64>,
    /// Train adapters of this rank beside the kernels of the model of --from, which stay (LoRA); RANK:ALPHA multiplies them by ALPHA over
    /// RANK. Which layers: --set 'lora.layers=["*query*"]'
    #[arg(long, value_name = "RANK[:ALPHA]")]
    lora: Option<String>,
    /// Train for eight bits: weights and values are rounded to levels of int8 while the model trains (quantisation-aware training).
    /// How: --set quantize.type=Learned, --set quantize.freeze_bn_delay=1000
    #[arg(long)]
    quantize: bool,
    /// Print the configuration with all arguments applied as TOML, and train nothing
    #[arg(long)]
    print_config: bool,
}

/// What is written beside the model.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum LoggerArg {
    /// Event files for TensorBoard
    Tensorboard,
    /// None of them
    None,
}

/// What to train on, and why that.
struct TrainingSetup {
    config: RunConfig,
    data: TrainingData,
    reason: String,
}

impl RunCommand for TrainArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        run(self, screen)
    }
}

fn run(mut args: TrainArgs, screen: &Screen) -> CommandResult {
    let began = Instant::now();
    args.from = args.from.as_deref().map(model_file).transpose()?;
    let earlier = args.from.as_ref().map(Model::load).transpose()?;
    let draft = args.draft(earlier.as_ref())?;
    if args.print_config {
        return print_config(&args.configured(draft)?, screen);
    }
    let known = earlier.as_ref().map_or(Ok(None), tokenizer_of)?;
    let TrainingSetup { config, data, reason } = args.plan(draft, known, screen)?;
    let earlier = args.origin(earlier, &config)?;
    // What only begins with the weights of another model has no epochs yet.
    let initial_epoch = earlier.as_ref().filter(|_| config.fine_tune.is_none()).map_or(0, Model::epochs);
    if config.fit.fast_dev_run.is_some() {
        return fast_dev_run(earlier, args.from.as_deref(), &config, data, screen);
    }
    if config.fit.barebones {
        return barebones(earlier, args.from.as_deref(), &config, data, screen);
    }
    let config = args.with_found_rate(config, &data, screen)?;
    let identity = data.identity.clone();
    let from = args.from.clone();
    let start = earlier.as_ref().map(|m| format!("{} steps, mark {}", m.steps(), m.digest_of_weights()));
    let record = RunRecord { config, reason, from, initial_epoch, start, data: identity, devices: None };
    let folder = match &args.out {
        Some(out) => out.clone(),
        None => record.folder(&Path::new("runs").join(args.run_name(&data.name)))?,
    };
    let folder = RunDirectory::make(folder, &data.name)?;
    train(
        RunStart { record, data, earlier, pause_after: None },
        folder,
        (args.resume, &args.save),
        began,
        screen,
    )
}

impl TrainArgs {
    /// The model that a run would begin with, its configuration and its data.
    pub(crate) fn begin(
        &mut self,
        screen: &Screen,
    ) -> Result<(Model, RunConfig, TrainingData), CommandError> {
        self.from = self.from.as_deref().map(model_file).transpose()?;
        let earlier = self.from.as_ref().map(Model::load).transpose()?;
        let draft = self.draft(earlier.as_ref())?;
        let known = earlier.as_ref().map_or(Ok(None), tokenizer_of)?;
        let TrainingSetup { config, data, .. } = self.plan(draft, known, screen)?;
        let earlier = self.origin(earlier, &config)?;
        let InitialModel { model, data, .. } =
            prepared(earlier, self.from.as_deref(), &config, data, screen)?;
        Ok((model, config, data))
    }

    /// Whether the batch is to be chosen for the devices that are there.
    ///
    /// # Errors
    /// When the configuration is wrong.
    #[cfg(feature = "launch")]
    pub(crate) fn chooses_batch(mut self) -> Result<bool, CommandError> {
        self.from = self.from.as_deref().map(model_file).transpose()?;
        let earlier = self.from.as_ref().map(Model::load).transpose()?;
        let draft = self.draft(earlier.as_ref())?;
        Ok(self.apply(draft)?.chooses_batch())
    }

    /// The configuration with the rate that `[lr_find]` asks for: the one that the run in the folder has, or one that is looked for.
    fn with_found_rate(
        &self,
        mut config: RunConfig,
        data: &TrainingData,
        screen: &Screen,
    ) -> Result<RunConfig, CommandError> {
        let Some(section) = config.lr_find.clone() else { return Ok(config) };
        let usual = || Path::new("runs").join(self.run_name(&data.name));
        let folder = self.out.clone().unwrap_or_else(usual);
        let before = match self.resume {
            ResumeMode::Never => None,
            _ => found_rate(&folder, &config)?,
        };
        let known = section.found.or(before);
        let rate = known.map_or_else(|| self.looked_for(&section, &config, data, screen), Ok)?;
        config.set_found_rate(rate);
        Ok(config)
    }

    fn looked_for(
        &self,
        section: &LrFindSection,
        config: &RunConfig,
        data: &TrainingData,
        screen: &Screen,
    ) -> Result<f64, CommandError> {
        let earlier = self.from.as_ref().map(Model::load).transpose()?;
        let InitialModel { mut model, data, .. } =
            prepared(earlier, self.from.as_deref(), config, data.clone(), &screen.silent())?;
        let found = model.lr_find(&config.train_pipeline(&data), section.options())?;
        let rate = rate_of(&found, &section.suggest)?;
        let updates = counted(found.rates.len() as u64, "update");
        screen.line(format!("Learning rate: {rate:e}, the {} of {updates} ([lr_find])", section.suggest));
        Ok(rate)
    }

    /// The saved model to begin with, where the configuration names it.
    fn origin(&mut self, earlier: Option<Model>, config: &RunConfig) -> Result<Option<Model>, CommandError> {
        let Some(section) = config.fine_tune.as_ref().filter(|_| earlier.is_none()) else {
            return Ok(earlier);
        };
        let Some(from) = &section.from else {
            let e = Error::new(ErrorKind::Config, "there is no model to fine-tune");
            return Err(CommandError::usage(
                e.hint("name a saved one: --from MODEL, or `from` in [fine_tune]"),
            ));
        };
        let path = model_file(from)?;
        let model = Model::load(&path)?;
        self.from = Some(path);
        Ok(Some(model))
    }

    /// The name of what is trained: a preset's, a TOML file's, or the data set's.
    fn run_name(&self, dataset: &str) -> String {
        let stem = |name: &String| Path::new(name).file_stem().map(|s| s.to_string_lossy().into_owned());
        self.target.as_ref().and_then(stem).unwrap_or_else(|| dataset.into())
    }

    /// The configuration to start from.
    fn draft(&self, earlier: Option<&Model>) -> Result<ConfigDraft, CommandError> {
        if let (Some(name), Some(model), Some(path)) = (&self.target, earlier, &self.from)
            && let Some(draft) = beside_model(name, model, path, config_of(model, path)?, self.adapts())?
        {
            return Ok(draft);
        }
        match (&self.target, earlier, &self.from) {
            (Some(name), _, _) => match CommandTarget::of(name).map_err(CommandError::usage)? {
                CommandTarget::Preset("folder") => match &self.data.data_dir {
                    Some(dir) => folder_draft(dir),
                    None => Ok(ConfigDraft::preset("folder")?),
                },
                CommandTarget::Preset(preset) => Ok(ConfigDraft::preset(preset)?),
                CommandTarget::Toml(path) => Ok(ConfigDraft::read(path)?),
                CommandTarget::Folder(path) if holds_records(&path) => {
                    records_draft(&path, None, self.asked_of_records())
                }
                CommandTarget::Folder(path) => folder_draft(&path),
                CommandTarget::Model(path) if is_of_records(&path) => {
                    file_draft(Path::new(&path), self.asked_of_records())
                }
                CommandTarget::Model(path) if path.to_lowercase().ends_with(".txt") => {
                    text_draft(Path::new(&path))
                }
                CommandTarget::Model(path) => Err(CommandError::usage(not_to_train(&path))),
            },
            (None, Some(model), Some(path)) => match config_of(model, path)? {
                Some(config) => {
                    let mut draft =
                        ConfigDraft::parse(&config.to_toml()?, &format!("the configuration kept in {path}"))?;
                    set_columns(&mut draft, &config, model, path);
                    Ok(draft)
                }
                None => {
                    let e = Error::new(ErrorKind::Config, format!("{path} does not say how it was trained"));
                    Err(CommandError::usage(e.hint("name a preset or a TOML file beside --from")))
                }
            },
            _ => Ok(ConfigDraft::preset("fashion-mnist")?),
        }
    }

    /// Whether the model of --from is to learn something else.
    fn adapts(&self) -> bool {
        self.fine_tune || self.freeze_until.is_some() || self.lora.is_some()
    }

    /// What `--set` says of records, which decides what they look like before there is a configuration.
    fn asked_of_records(&self) -> RecordOptions {
        let Ok(mut draft) = ConfigDraft::preset("table") else { return RecordOptions::default() };
        let pairs = self.sets.iter().filter_map(|set| set.split_once('='));
        for (key, value) in pairs.filter(|(key, _)| key.trim().starts_with("data.records.")) {
            draft.set("--set", key.trim(), value.trim());
        }
        draft.finish().ok().and_then(|config| config.data.records).unwrap_or_default()
    }

    /// The arguments on top of a configuration, `--set` last.
    fn apply(&self, mut draft: ConfigDraft) -> Result<ConfigDraft, CommandError> {
        if let Some(dir) = &self.data.data_dir {
            draft.set_text(format!("--data-dir {}", dir.display()), "data.dir", &dir.display().to_string());
        }
        self.apply_fine_tune(&mut draft);
        self.apply_lora(&mut draft);
        if self.quantize {
            draft.set("--quantize", "quantize.per_channel", "true");
        }
        let rate = if draft.fine_tunes() { "fine_tune.base_lr" } else { "optimizer.learning_rate" };
        let number = |n: Option<u64>| n.map(|n| n.to_string());
        let flags = [
            ("--epochs", "fit.epochs", number(self.epochs)),
            ("--steps-per-epoch", "fit.steps_per_epoch", self.steps_per_epoch.clone()),
            ("--batch-size", "fit.batch_size", self.batch_size.clone()),
            ("--learning-rate", rate, self.learning_rate.clone()),
            ("--precision", "compile.precision", self.precision.clone()),
            ("--seed", "seed", number(self.seed)),
            ("--fast-dev-run", "fit.fast_dev_run", number(self.fast_dev_run)),
            ("--overfit-batches", "fit.overfit_batches", self.overfit_batches.clone()),
            ("--limit-train-batches", "fit.limit_train_batches", self.limit_train_batches.clone()),
            ("--limit-val-batches", "fit.limit_val_batches", self.limit_val_batches.clone()),
            ("--num-sanity-val-steps", "fit.num_sanity_val_steps", number(self.num_sanity_val_steps)),
            ("--check-val-every-n-epoch", "fit.validation_freq", number(self.check_val_every_n_epoch)),
            ("--strategy", "strategy.type", self.strategy.clone()),
            ("--devices", "strategy.devices", number(self.devices)),
        ];
        for (flag, key, value) in flags {
            if let Some(value) = value {
                draft.set(format!("{flag} {value}"), key, &value);
            }
        }
        for (flag, key, value, is_set) in [
            ("--tui", "fit.tui", "true", self.tui),
            ("--no-report", "fit.report", "false", self.no_report),
            ("--detect-anomaly", "fit.detect_anomaly", "true", self.detect_anomaly),
            ("--barebones", "fit.barebones", "true", self.barebones),
        ] {
            if is_set {
                draft.set(flag, key, value);
            }
        }
        self.apply_written(&mut draft)?;
        if let Some(mesh) = &self.mesh {
            draft.set_text(format!("--mesh {mesh}"), "strategy.mesh", mesh);
        }
        set_all(&mut draft, &self.sets)?;
        Ok(draft)
    }

    fn apply_fine_tune(&self, draft: &mut ConfigDraft) {
        if self.fine_tune {
            draft.set("--fine-tune", "fine_tune.unfreeze", "true");
        }
        if let Some(layer) = &self.freeze_until {
            let flag = format!("--freeze-until {layer}");
            draft.set_text(&flag, "fine_tune.freeze_until", layer);
            draft.set(&flag, "fine_tune.unfreeze", if self.fine_tune { "true" } else { "false" });
        }
        if let Some(epochs) = self.freeze_epochs {
            draft.set(format!("--freeze-epochs {epochs}"), "fine_tune.freeze_epochs", &epochs.to_string());
        }
    }

    fn apply_lora(&self, draft: &mut ConfigDraft) {
        let Some(lora) = &self.lora else { return };
        let (rank, alpha) = lora.split_once(':').map_or((lora.as_str(), None), |(r, a)| (r, Some(a)));
        draft.set(format!("--lora {lora}"), "lora.rank", rank);
        if let Some(alpha) = alpha {
            draft.set(format!("--lora {lora}"), "lora.alpha", alpha);
        }
        // Adapters begin with the weights of a model, and a head where its classes are others.
        if !self.fine_tune && self.freeze_until.is_none() {
            draft.set(format!("--lora {lora}"), "fine_tune.unfreeze", "false");
        }
    }

    /// Arguments that are not written as their keys are.
    fn apply_written(&self, draft: &mut ConfigDraft) -> Result<(), CommandError> {
        if let Some(top) = &self.one_cycle {
            let cycle = format!("{{ type = \"OneCycle\", max_learning_rate = {top} }}");
            draft.set(format!("--one-cycle {top}"), "optimizer.learning_rate", &cycle);
        }
        if let Some(moms) = &self.moms {
            let cycle = format!("{{ type = \"OneCycleMomentum\", moms = [{moms}] }}");
            draft.set(format!("--moms {moms}"), "optimizer.momentum_schedule", &cycle);
        }
        if let Some(weights) = &self.class_weights {
            set_class_weights(draft, weights)?;
        }
        if let Some(names) = &self.augment {
            let names = names.split(',').map(str::trim).filter(|name| !name.is_empty() && *name != "none");
            let list: Vec<toml::Value> = names.map(toml::Value::from).collect();
            draft.set(
                format!("--augment {}", self.augment.as_deref().unwrap_or("")),
                "data.augment",
                &toml::Value::Array(list).to_string(),
            );
        }
        if let Some(time) = &self.max_time {
            draft.set_text(format!("--max-time {time}"), "fit.max_time", time);
        }
        if let Some(interval) = &self.val_check_interval {
            let flag = format!("--val-check-interval {interval}");
            match interval.contains(':') {
                true => draft.set_text(flag.clone(), "fit.val_check_interval", interval),
                false => draft.set(flag.clone(), "fit.val_check_interval", interval),
            };
            // Who asks for tests within epochs wants them in each, whatever a preset says.
            if self.check_val_every_n_epoch.is_none() {
                draft.set(flag, "fit.validation_freq", "1");
            }
        }
        Ok(())
    }

    /// The configuration with the arguments applied, which stand last.
    fn configured(&self, draft: ConfigDraft) -> Result<RunConfig, CommandError> {
        let mut config = self.apply(draft)?.finish()?;
        match self.logger {
            Some(LoggerArg::Tensorboard) => config.set_logger(Logger::TensorBoard),
            Some(LoggerArg::None) => config.set_logger(Logger::None),
            None => {}
        }
        // Who names a rate has none looked for.
        if self.learning_rate.is_some() || self.one_cycle.is_some() {
            config.lr_find = None;
        }
        Ok(config)
    }

    /// Configuration and data, of which text is cut as a saved model knows it. Only where nothing was asked for may glyphs stand in for Fashion-MNIST.
    fn plan(
        &self,
        draft: ConfigDraft,
        known: Option<Arc<Tokenizer>>,
        screen: &Screen,
    ) -> Result<TrainingSetup, CommandError> {
        let config = self.configured(draft)?;
        let free = self.target.is_none() && self.from.is_none() && self.data.data_dir.is_none();
        let free = free && config.data.dataset == "fashion-mnist" && config.data.dir.is_none();
        if !free {
            let mut config = config;
            config.data.known_tokenizer = known;
            let data = load_data(&config, screen)?;
            match &config.fine_tune {
                Some(_) if config.data.is_own() => config.fit_head(&data),
                None if self.from.is_none() => config.fit_data(&data)?,
                _ => {}
            }
            return Ok(announced(config, data, "as asked".into(), screen));
        }
        match load_data(&config, screen) {
            Ok(data) => Ok(announced(config, data, "the default".into(), screen)),
            // Files that are there but damaged are told, not passed over.
            Err(e) if e.kind() != ErrorKind::Io => Err(e.into()),
            Err(e) => {
                let config = self.configured(ConfigDraft::preset("glyphs")?)?;
                let data = load_data(&config, screen)?;
                let plan = announced(config, data, format!("because {}", e.what()), screen);
                if screen.verbose {
                    e.to_string().lines().skip(1).for_each(|line| screen.detail(line));
                }
                Ok(plan)
            }
        }
    }
}

/// What a finder suggests, to two digits, which is more than it knows.
///
/// # Errors
/// When the curve suggests nothing.
pub(crate) fn rate_of(found: &LrFindResult, suggestion: &str) -> Result<f64, Error> {
    let rounded = found.suggestion(suggestion).and_then(|rate| format!("{rate:.1e}").parse().ok());
    rounded.ok_or_else(|| {
        let e = Error::new(ErrorKind::Config, "no learning rate was found to train with");
        let why = found.stopped_because.clone().unwrap_or_else(|| "the curve is too short".into());
        e.because(why).hint("take more updates (--num-it 200), or begin lower (--start-lr 1e-9)")
    })
}

/// A number from 1 on, or `auto`.
fn batch_size(text: &str) -> Result<String, String> {
    match text.parse::<u64>() {
        Ok(0) => Err("0 is not in 1..".into()),
        Ok(n) => Ok(n.to_string()),
        Err(_) if text == "auto" => Ok(text.into()),
        Err(e) => Err(format!("{e}: a number, or auto")),
    }
}

/// `balanced`, or `cat=2,dog=0.5`.
fn set_class_weights(draft: &mut ConfigDraft, weights: &str) -> Result<(), CommandError> {
    let flag = format!("--class-weights {weights}");
    if !weights.contains('=') {
        draft.set_text(flag, "fit.class_weight", weights);
        return Ok(());
    }
    let mut table = Vec::new();
    for pair in weights.split(',') {
        let Some((class, weight)) = pair.split_once('=') else {
            let e = Error::new(ErrorKind::Config, format!("`{pair}` has no weight")).at(flag);
            return Err(CommandError::usage(e.hint("write it as cat=2,dog=0.5")));
        };
        table.push(format!("{} = {}", toml::Value::from(class.trim()), weight.trim()));
    }
    draft.set(flag, "fit.class_weight", &format!("{{ {} }}", table.join(", ")));
    Ok(())
}

/// The preset for pictures of one's own, fitted to a folder.
fn folder_draft(folder: &Path) -> Result<ConfigDraft, CommandError> {
    if folder.join("run.json").is_file() {
        let e = Error::new(ErrorKind::Config, format!("{} is the folder of a run", folder.display()));
        return Err(CommandError::usage(e.hint(format!("to go on with it: resume {}", folder.display()))));
    }
    let [height, width, channels] = picture_size_for(folder)?;
    let mut draft = ConfigDraft::preset("folder")?;
    let flag = folder.display().to_string();
    draft.set_text(&flag, "data.dir", &flag);
    draft.set(&flag, "data.image_size", &format!("[{height}, {width}]"));
    draft.set(&flag, "data.color_mode", if channels == 1 { "grayscale" } else { "rgb" });
    Ok(draft)
}

/// The preset for records of one's own, fitted to a folder of files, or to one of them.
fn records_draft(
    folder: &Path,
    file: Option<&str>,
    asked: RecordOptions,
) -> Result<ConfigDraft, CommandError> {
    let train = file.map_or(asked.train, |file| vec![file.to_string()]);
    let options = RecordOptions { train, ..asked };
    let picture = picture_size_of_records(DataDir::at(folder), &options)?;
    let mut draft = ConfigDraft::preset(if picture.is_some() { "tfrecord" } else { "table" })?;
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

fn file_draft(file: &Path, asked: RecordOptions) -> Result<ConfigDraft, CommandError> {
    let whole = systole_data::input_file::absolute(file)?;
    let name = whole.file_name().map_or(String::new(), |n| n.to_string_lossy().into_owned());
    records_draft(whole.parent().unwrap_or(Path::new("/")), Some(&name), asked)
}

/// The preset for text, which learns from this one.
fn text_draft(file: &Path) -> Result<ConfigDraft, CommandError> {
    let whole = systole_data::input_file::absolute(file)?;
    let mut draft = ConfigDraft::preset("gpt-micro")?;
    draft.set_text(file.display().to_string(), "data.dir", &whole.display().to_string());
    Ok(draft)
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

fn announced(config: RunConfig, data: TrainingData, reason: String, screen: &Screen) -> TrainingSetup {
    announce_data(&data, &reason, screen);
    config.fit.batch_reason.iter().for_each(|reason| screen.line(reason));
    TrainingSetup { config, data, reason }
}

fn print_config(config: &RunConfig, screen: &Screen) -> CommandResult {
    match screen.json {
        true => screen.object(&serde_json::to_value(config).map_err(|e| {
            Error::new(ErrorKind::Bug, "a configuration does not serialise").because(e.to_string())
        })?),
        false => screen.line(config.to_toml()?.trim_end()),
    }
    Ok(0)
}
