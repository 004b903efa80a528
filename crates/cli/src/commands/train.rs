//! `systole train`: configures a run from arguments, loads data, trains, saves and tests a model.

use crate::args::common::{CommonArgs, DataArgs, LabelArgs};
use crate::args::exit_status::{CommandError, CommandResult, RunCommand};
use crate::models::command_target::{CommandTarget, config_of, set_all};
use crate::models::imported;
use crate::models::model_data::tokenizer_of;
use crate::models::run_directory::{ResumeMode, RunRecord, SaveArgs, found_rate, model_file};
use crate::render::screen::{Screen, counted, note};
use crate::run::initial_model::{InitialModel, nothing_to_fine_tune, prepared};
use crate::run::run_data::RunData;
use crate::run::training::{
    RunDirectory, RunStart, announce_data, barebones, fast_dev_run, load_data, train,
};
use crate::run::user_data::{UserData, beside_imported, beside_model, texts_draft};
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};
use std::time::Instant;
use systole_config::{ConfigDraft, Logger, LrFindSection, RunConfig, application_of};
use systole_data::ImageFolder;
use systole_data::input_file::absolute;
use systole_data::tools::files_of;
use systole_datasets::{
    DataDir, RecordOptions, TrainingData, holds_records, is_of_records, is_plain_text, picture_size_for,
    picture_size_of_records,
};
use systole_ir::{Error, ErrorKind, Result, err};
use systole_nn::{LrFindResult, Model};

/// Learning rate for fine-tuning an imported encoder of texts; half of it is the rate of its last layer.
const ENCODER_BASE_LR: f64 = 5e-4;

#[derive(Args)]
pub(crate) struct TrainArgs {
    /// Image folder, TFRecord/CSV/NumPy data, texts, TOML file or preset
    ///
    /// A folder of images or of .txt files has one subfolder per class. TFRecord, CSV and NumPy data is a file or a folder
    /// of files; a CSV or .jsonl file may have a text and a class in each row. A .txt file trains a language model. TOML
    /// files are written by `systole init`. Presets: fashion-mnist, mnist, glyphs, mlp, cifar-cnn, resnet50, gpt2-small,
    /// gpt-micro, lstm, sentences, biggan, biggan128.
    ///
    /// [default: fashion-mnist if its files are found or can be downloaded, otherwise glyphs]
    #[arg(value_name = "FOLDER | FILE | CONFIG.toml | PRESET")]
    target: Option<String>,
    #[command(flatten)]
    data: DataArgs,
    /// Train on synthetic data of the dataset's shape instead of its files
    #[arg(long, conflicts_with = "data_dir")]
    synthetic: bool,
    #[command(flatten)]
    label: LabelArgs,
    /// Train for N epochs; with --from: N more epochs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    epochs: Option<u64>,
    /// Run N steps per epoch; `none` makes one pass over the data
    #[arg(long, value_name = "N")]
    steps_per_epoch: Option<String>,
    /// Set the batch size; `auto` selects the largest that fits into memory
    ///
    /// `auto` follows the compiler's memory plan; --max-memory lowers the limit.
    #[arg(long, value_name = "N|auto", value_parser = batch_size)]
    batch_size: Option<String>,
    /// Set the optimizer's learning rate
    #[arg(long, value_name = "X")]
    pub(crate) learning_rate: Option<String>,
    /// Use the 1cycle policy: the learning rate rises to X, then falls to almost 0
    #[arg(long, value_name = "X", conflicts_with = "learning_rate")]
    one_cycle: Option<String>,
    /// Set momentum at start, middle and end of --one-cycle, such as 0.95,0.85,0.95
    #[arg(long, value_name = "A,B,C", requires = "one_cycle")]
    moms: Option<String>,
    /// Set the precision: float32, mixed_bfloat16 or mixed_float16
    #[arg(long, value_name = "POLICY")]
    precision: Option<String>,
    /// Set the strategy: one_device, data_parallel, fully_sharded or auto
    #[arg(long, value_name = "STRATEGY")]
    strategy: Option<String>,
    /// Use N devices for the strategy; on the CPU, N logical devices
    ///
    /// Logical CPU devices show numerics, not speed.
    #[arg(long, value_name = "N", conflicts_with = "mesh", value_parser = clap::value_parser!(u64).range(1..))]
    devices: Option<u64>,
    /// Arrange the devices in a mesh with named axes, such as data=4,model=2
    ///
    /// The batch is split along the axis `data`, or along the first axis if there is none.
    #[arg(long, value_name = "AXIS=N,…")]
    mesh: Option<String>,
    /// Train and test on N batches (1 without N) as a trial, and save nothing
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "1", value_parser = clap::value_parser!(u64).range(1..))]
    fast_dev_run: Option<u64>,
    /// Overfit a few batches: 4 for 4 batches, 0.01 for 1 % of the data
    ///
    /// The same batches are used in each epoch; the test uses as many.
    #[arg(long, value_name = "N")]
    overfit_batches: Option<String>,
    /// Limit the training batches per epoch: 10 for 10 batches, 0.1 for 10 %
    #[arg(long, value_name = "N")]
    limit_train_batches: Option<String>,
    /// Limit the test batches: 10 for 10 batches, 0.1 for 10 %, 0 for no test
    #[arg(long, value_name = "N")]
    limit_val_batches: Option<String>,
    /// Also test within epochs: every 0.25 epochs, 100 batches or 00:10:00
    #[arg(long, value_name = "SHARE | N | HH:MM:SS")]
    val_check_interval: Option<String>,
    /// Test after every N epochs, and after the last epoch
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    check_val_every_n_epoch: Option<u64>,
    /// Stop after this total time of all starts; 00:01:30:00 is 1.5 hours
    #[arg(long, value_name = "DD:HH:MM:SS")]
    max_time: Option<String>,
    /// Stop at the first non-finite value and report its op and layer
    ///
    /// Checks forward and backward; a step takes twice as long.
    #[arg(long)]
    detect_anomaly: bool,
    /// Run only the training loop, to time it, and save nothing
    ///
    /// Skips callbacks, backups and progress.
    #[arg(long)]
    barebones: bool,
    /// Test on N batches before the first step, to find errors early
    #[arg(long, value_name = "N")]
    num_sanity_val_steps: Option<u64>,
    /// Weight the classes in the loss: balanced, or cat=2,dog=0.5
    #[arg(long, value_name = "balanced | CLASS=X,…")]
    class_weights: Option<String>,
    /// Show a terminal dashboard with curves, time and memory; q stops the run
    #[arg(long)]
    tui: bool,
    /// Do not write the report page report.html to the run folder
    #[arg(long)]
    no_report: bool,
    /// Augment training images randomly, such as flip,rotate=10,mixup=0.4
    ///
    /// Names: flip, rotate=10, zoom=1.1, lighting=0.2, warp, crop=4, erase, mixup=0.4, cutmix, or aug_transforms for
    /// fastai's defaults. `none` also disables the augmentation of the TOML file.
    #[arg(long, value_name = "NAME[=X],…")]
    augment: Option<String>,
    /// Set the random seed of initial weights, dropout and sample order
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: Option<u64>,
    /// Save the run in this folder, or resume the run in it [default: runs/PRESET]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Select whether to resume an existing run in the folder
    #[arg(long, value_enum, default_value_t)]
    resume: ResumeMode,
    #[command(flatten)]
    save: SaveArgs,
    /// Select the logger: event files in the run's folder `tensorboard`, or none
    ///
    /// Event files are written by default; `none` disables them even if the TOML enables them.
    #[arg(long, value_enum, value_name = "LOGGER")]
    logger: Option<LoggerArg>,
    /// Set any TOML key, such as optimizer.type=sgd; `none` removes the key
    ///
    /// Other examples: data.scale=1/255, layers.0.filters=48.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Continue from a saved model: its weights, optimizer state and step
    ///
    /// If MODEL is a run folder, its best model is used. --fine-tune and --freeze-until use only its weights, with a new
    /// head if the classes differ.
    #[arg(long, value_name = "MODEL")]
    from: Option<String>,
    /// Fine-tune the model of --from: first the head, then all layers
    ///
    /// Trains only the head for --freeze-epochs, then all layers for --epochs. Learning rates rise from 1/100 at the
    /// input to half of --learning-rate (0.002) at the head.
    #[arg(long, conflicts_with = "one_cycle")]
    fine_tune: bool,
    /// Freeze the layers of the --from model before LAYER
    ///
    /// With --fine-tune they are frozen only for --freeze-epochs.
    #[arg(long, value_name = "LAYER")]
    freeze_until: Option<String>,
    /// Train only the head for N epochs, before those of --epochs [default: 1]
    #[arg(long, value_name = "N")]
    freeze_epochs: Option<u64>,
    /// Train LoRA adapters of this rank on the frozen model of --from
    ///
    /// RANK:ALPHA scales them by ALPHA/RANK. Select layers with --set 'lora.layers=["*query*"]'.
    #[arg(long, value_name = "RANK[:ALPHA]")]
    lora: Option<String>,
    /// Train with simulated int8 quantization (quantization-aware training)
    ///
    /// Weights and activations are rounded to int8 levels during training. Options: --set quantize.type=Learned, --set
    /// quantize.freeze_bn_delay=1000.
    #[arg(long)]
    quantize: bool,
    /// Print the configuration of the run as TOML, without training
    ///
    /// Your own data is read, because layers, loss and epochs depend on it.
    #[arg(long)]
    print_config: bool,
}

/// Log files written next to the model.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum LoggerArg {
    /// Event files for TensorBoard
    Tensorboard,
    /// No log files
    None,
}

/// Configuration and data of a run, and why this dataset was chosen.
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
    let earlier = args.from.as_ref().map(imported::load).transpose()?;
    let draft = args.draft(earlier.as_ref())?;
    if args.print_config {
        return print_config(&args.adapted_config(draft, earlier.as_ref(), screen)?, screen);
    }
    let TrainingSetup { mut config, data, reason } = args.plan(draft, earlier.as_ref(), screen)?;
    // Absolute, so that the run is resumed and evaluated on the same data from any directory.
    config.data.dir = config.data.dir.map(|dir| absolute(&dir)).transpose()?;
    let earlier = args.origin(earlier, &config)?;
    // A model that only starts from another model's weights has no epochs yet.
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
    let (devices, name) = (None, None);
    let record = RunRecord { config, reason, from, initial_epoch, start, data: identity, devices, name };
    let folder = match &args.out {
        Some(out) => out.clone(),
        None => {
            let (folder, told) = record.folder(&Path::new("runs").join(args.run_name(&data.name)))?;
            told.iter().for_each(|told| screen.line(told));
            folder
        }
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
    /// Returns the model that a run would start with, its configuration and its data.
    pub(crate) fn begin(&mut self, screen: &Screen) -> CommandResult<(Model, RunConfig, TrainingData)> {
        self.from = self.from.as_deref().map(model_file).transpose()?;
        let earlier = self.from.as_ref().map(imported::load).transpose()?;
        let draft = self.draft(earlier.as_ref())?;
        let TrainingSetup { config, data, .. } = self.plan(draft, earlier.as_ref(), screen)?;
        let earlier = self.origin(earlier, &config)?;
        let InitialModel { model, data, .. } =
            prepared(earlier, self.from.as_deref(), &config, data, screen)?;
        Ok((model, config, data))
    }

    /// Whether the batch size is chosen for the available devices.
    ///
    /// # Errors
    /// If the configuration is invalid.
    #[cfg(feature = "launch")]
    pub(crate) fn chooses_batch(mut self) -> CommandResult<bool> {
        self.from = self.from.as_deref().map(model_file).transpose()?;
        let earlier = self.from.as_ref().map(imported::load).transpose()?;
        let draft = self.draft(earlier.as_ref())?;
        Ok(self.apply(draft)?.chooses_batch())
    }

    /// Returns the configuration with the learning rate of `[lr_find]`: from the existing run in the folder, or from a
    /// new range test.
    fn with_found_rate(
        &self,
        mut config: RunConfig,
        data: &TrainingData,
        screen: &Screen,
    ) -> CommandResult<RunConfig> {
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
    ) -> CommandResult<f64> {
        let earlier = self.from.as_ref().map(imported::load).transpose()?;
        let InitialModel { mut model, data, .. } =
            prepared(earlier, self.from.as_deref(), config, data.clone(), &screen.silent())?;
        let found = model.lr_find(&config.train_pipeline(&data), section.options())?;
        let rate = rate_of(&found, &section.suggest).map_err(|e| {
            e.hint_setting("use more steps: lr_find.num_it=200; or a lower first rate: lr_find.start_lr=1e-9")
        })?;
        let updates = counted(found.rates.len() as u64, "update");
        screen.line(format!(
            "Learning rate: {rate:e}, suggestion `{}` after {updates} ([lr_find])",
            section.suggest
        ));
        Ok(rate)
    }

    /// Loads the saved model to fine-tune, if the configuration names it.
    fn origin(&mut self, earlier: Option<Model>, config: &RunConfig) -> CommandResult<Option<Model>> {
        let Some(section) = config.fine_tune.as_ref().filter(|_| earlier.is_none()) else {
            return Ok(earlier);
        };
        let Some(from) = &section.from else { return Err(CommandError::usage(nothing_to_fine_tune())) };
        let path = model_file(from)?;
        let model = imported::load(&path)?;
        self.from = Some(path);
        Ok(Some(model))
    }

    /// Name of the run: the preset, the TOML file or the dataset.
    fn run_name(&self, dataset: &str) -> String {
        let stem = |name: &String| Path::new(name).file_stem().map(|s| s.to_string_lossy().into_owned());
        self.target.as_ref().and_then(stem).unwrap_or_else(|| dataset.into())
    }

    /// Returns the configuration `draft` with the arguments applied. Data is not opened: it may be on another machine.
    #[cfg(feature = "cloud")]
    pub(crate) fn config(&self, draft: ConfigDraft) -> CommandResult<RunConfig> {
        self.configured(draft)
    }

    /// Returns the initial configuration.
    fn draft(&self, earlier: Option<&Model>) -> CommandResult<ConfigDraft> {
        if let Some(draft) = self.imported_draft(earlier)? {
            return Ok(draft);
        }
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
                target => self.data_draft(name, &target),
            },
            (None, Some(model), Some(path)) => match RunData::of(model, path)?.draft(model)? {
                Some(draft) => Ok(draft),
                None => {
                    let e = err!(Config, "{path} has no training configuration");
                    Err(CommandError::usage(match application_of(model.architecture()) {
                        Some(_) => {
                            e.hint_command(format!("name your data: systole train DATA --from {path}"))
                        }
                        None => e.hint_command(format!(
                            "name your data: systole train DATA --from {path} --fine-tune"
                        )),
                    }))
                }
            },
            _ => Ok(ConfigDraft::preset("fashion-mnist")?),
        }
    }

    /// Returns the configuration for a folder or file of the user's data.
    fn data_draft(&self, name: &str, target: &CommandTarget) -> CommandResult<ConfigDraft> {
        let records = self.asked_of_records();
        let picture = |folder: &Path, file: Option<&str>| {
            let train = file.map_or(records.train.clone(), |file| vec![file.to_string()]);
            picture_size_of_records(DataDir::at(folder), &RecordOptions { train, ..records.clone() })
        };
        let has_pictures = match target {
            CommandTarget::Folder(path) if holds_records(path) => matches!(picture(path, None), Ok(Some(_))),
            CommandTarget::Model(path) if is_of_records(path) => {
                let (folder, file) = parent_and_name(Path::new(path))?;
                matches!(picture(&folder, Some(&file)), Ok(Some(_)))
            }
            _ => false,
        };
        let asks = self.set_value("data.dataset") == Some("sentences");
        if !has_pictures && let Some(draft) = texts_draft(name, &records, asks)? {
            return Ok(draft);
        }
        match target {
            CommandTarget::Folder(path) if self.asks_for_records() || holds_records(path) => {
                records_draft(path, None, records)
            }
            CommandTarget::Folder(path) => folder_draft(path),
            CommandTarget::Model(path) if is_of_records(path) => file_draft(Path::new(path), records),
            CommandTarget::Model(path) if is_plain_text(path) => text_draft(Path::new(path)),
            CommandTarget::Model(path) => Err(CommandError::usage(not_to_train(path))),
            CommandTarget::Preset(_) | CommandTarget::Toml(_) => {
                Err(err!(Bug, "the target names no data").into())
            }
        }
    }

    /// Value of a key in `--set`.
    fn set_value(&self, key: &str) -> Option<&str> {
        let pairs = self.sets.iter().rev().filter_map(|set| set.split_once('='));
        pairs.filter(|(k, _)| k.trim() == key).map(|(_, value)| value.trim()).next()
    }

    /// Returns the configuration for the user's data with the sizes of a --from model that contains no configuration.
    fn imported_draft(&self, earlier: Option<&Model>) -> CommandResult<Option<ConfigDraft>> {
        let (Some(model), Some(path)) = (earlier, &self.from) else { return Ok(None) };
        if config_of(model, path)?.is_some() {
            return Ok(None);
        }
        let dir = self.data.data_dir.as_ref().map(|dir| dir.display().to_string());
        let Some(name) = self.target.clone().or(dir) else { return Ok(None) };
        let has_tokenizer = self.set_value("data.tokenizer").is_some();
        let Some(mut draft) = beside_imported(&name, model, path, has_tokenizer)? else { return Ok(None) };
        let own = UserData::of(&name)?.map(|own| own.dataset);
        let is_language = own == Some("text");
        if !is_language && !self.adapts() {
            let e = err!(Config, "{path} was not trained on the classes of {name}");
            return Err(CommandError::usage(
                e.hint_command("add --fine-tune to train a new head and then all layers, or --lora=8"),
            ));
        }
        if !is_language && own != Some("folder") && self.fine_tune {
            draft.set_value(path, "fine_tune.base_lr", ENCODER_BASE_LR.into());
            if self.set_value("fine_tune.base_lr").is_none() {
                note(&format!("fine_tune.base_lr is {ENCODER_BASE_LR:e} for an encoder of texts, not 2e-3"));
            }
        }
        Ok(Some(draft))
    }

    /// Rejects a tokenizer setting that differs from the tokenizer of the --from model.
    fn check_tokenizer(&self, earlier: Option<&Model>) -> CommandResult<()> {
        let (Some(model), Some(path)) = (earlier, &self.from) else { return Ok(()) };
        let Some(tokenizer) = tokenizer_of(model)? else { return Ok(()) };
        let stored = config_of(model, path)?.map(|config| config.data);
        for key in ["data.tokenizer", "data.vocabulary"] {
            let Some(value) = self.set_value(key) else { continue };
            let had = stored.as_ref().and_then(|data| match key {
                "data.tokenizer" => data.tokenizer.clone(),
                _ => data.vocabulary.map(|n| n.to_string()),
            });
            if had.as_deref() != Some(value) {
                let e = err!(
                    Config,
                    "{key} is {value}, but {path} has a {} tokenizer of {} tokens",
                    tokenizer.name(),
                    tokenizer.vocabulary_size()
                )
                .at(format!("--set {key}={value}"));
                return Err(CommandError::usage(
                    e.hint_command(format!("remove {key}: a saved model keeps its tokenizer")),
                ));
            }
        }
        Ok(())
    }

    /// Whether to fine-tune the model given by --from on a new task.
    fn adapts(&self) -> bool {
        self.fine_tune || self.freeze_until.is_some() || self.lora.is_some()
    }

    /// Whether the number of epochs is a preset's: neither in a TOML file nor in an argument.
    fn has_preset_epochs(&self) -> bool {
        let is_toml =
            self.target.as_deref().is_some_and(|t| Path::new(t).extension().is_some_and(|e| e == "toml"));
        self.epochs.is_none() && !is_toml && self.set_value("fit.epochs").is_none()
    }

    /// Whether no argument sets the batch size.
    fn has_preset_batch_size(&self) -> bool {
        self.batch_size.is_none() && self.set_value("fit.batch_size").is_none()
    }

    /// Whether an argument concerns record files.
    fn asks_for_records(&self) -> bool {
        self.label.label.is_some() || self.sets.iter().any(|set| set.trim().starts_with("data.records."))
    }

    /// Returns the record options of `--set` and `--label`, which are needed to inspect files before there is a configuration.
    fn asked_of_records(&self) -> RecordOptions {
        let Ok(mut draft) = ConfigDraft::preset("table") else { return RecordOptions::default() };
        if let Some((flag, label)) = self.label.setting() {
            draft.set_text(flag, LabelArgs::KEY, label);
        }
        let pairs = self.sets.iter().filter_map(|set| set.split_once('='));
        for (key, value) in pairs.filter(|(key, _)| key.trim().starts_with("data.records.")) {
            draft.set("--set", key.trim(), value.trim());
        }
        draft.finish().ok().and_then(|config| config.data.records).unwrap_or_default()
    }

    /// Applies the arguments to a configuration, `--set` last.
    fn apply(&self, mut draft: ConfigDraft) -> CommandResult<ConfigDraft> {
        if let Some(dir) = &self.data.data_dir {
            draft.set_text(format!("--data-dir {}", dir.display()), "data.dir", &dir.display().to_string());
        }
        if self.synthetic {
            draft.set_text("--synthetic", "data.synthetic", "always");
        }
        if let Some((flag, label)) = self.label.setting() {
            draft.set_text(flag, LabelArgs::KEY, label);
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
        // LoRA starts from a model's weights, with a new head if the classes differ.
        if !self.fine_tune && self.freeze_until.is_none() {
            draft.set(format!("--lora {lora}"), "fine_tune.unfreeze", "false");
        }
    }

    /// Applies arguments whose format differs from that of their keys.
    fn apply_written(&self, draft: &mut ConfigDraft) -> CommandResult<()> {
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
            // With tests within epochs, test in each epoch regardless of the preset.
            if self.check_val_every_n_epoch.is_none() {
                draft.set(flag, "fit.validation_freq", "1");
            }
        }
        Ok(())
    }

    /// Returns the configuration with the arguments applied.
    fn configured(&self, draft: ConfigDraft) -> CommandResult<RunConfig> {
        let draft = self.apply(draft)?;
        self.check_rates(&draft)?;
        let mut config = draft.finish()?;
        self.label.check(&config)?;
        match self.logger {
            Some(LoggerArg::Tensorboard) => config.set_logger(Logger::TensorBoard),
            Some(LoggerArg::None) => config.set_logger(Logger::None),
            None => {}
        }
        // An explicit rate replaces the search.
        if self.learning_rate.is_some() || self.one_cycle.is_some() {
            config.lr_find = None;
        }
        Ok(config)
    }

    /// Rejects a rate of the optimizer for fine-tuning, which has schedules of its own.
    fn check_rates(&self, draft: &ConfigDraft) -> Result<(), CommandError> {
        let is_set = self.set_value("optimizer.learning_rate").is_some();
        let given = [("--set", is_set), ("--one-cycle", self.one_cycle.is_some())];
        let Some((flag, _)) =
            given.into_iter().find(|(_, is_given)| *is_given).filter(|_| draft.fine_tunes())
        else {
            return Ok(());
        };
        let e =
            Error::new(ErrorKind::Config, "`optimizer.learning_rate` does not apply to fine-tuning").at(flag);
        let e = e.because("both phases have one-cycle schedules up to `fine_tune.base_lr`");
        Err(CommandError::usage(e.hint_command("set the highest rate with --learning-rate 0.002")))
    }

    /// Loads the data of a configuration, and returns why this data was chosen.
    fn load(
        &self,
        config: &mut RunConfig,
        earlier: Option<&Model>,
        screen: &Screen,
    ) -> CommandResult<(TrainingData, String)> {
        if let (None, Some(model), Some(path)) = (&self.target, earlier, &self.from) {
            let run_data = RunData::of(model, path)?;
            let reason = match run_data.is_read_by(config) {
                true => format!("the data of {path}"),
                false => "as requested".into(),
            };
            return Ok((run_data.load_unmatched(model, config, screen)?, reason));
        }
        self.check_tokenizer(earlier)?;
        config.data.known_tokenizer = earlier.map_or(Ok(None), tokenizer_of)?;
        Ok((load_data(config, screen)?, "as requested".into()))
    }

    /// Loads the data and adapts the configuration to it.
    fn adapted(
        &self,
        mut config: RunConfig,
        earlier: Option<&Model>,
        screen: &Screen,
    ) -> CommandResult<TrainingSetup> {
        let (mut data, reason) = self.load(&mut config, earlier, screen)?;
        match &config.fine_tune {
            Some(_) if config.data.is_own() => {
                config.fit_head(&data);
                if self.has_preset_batch_size() {
                    data.notes.extend(config.fit_batch_size(&data));
                }
            }
            None if self.from.is_none() => {
                let notes = config.fit_data(&data)?;
                data.notes.extend(notes);
                if self.has_preset_epochs() {
                    if self.has_preset_batch_size() {
                        data.notes.extend(config.fit_batch_size(&data));
                    }
                    data.notes.extend(config.fit_epochs(&data));
                }
            }
            _ => {}
        }
        Ok(TrainingSetup { config, data, reason })
    }

    /// Returns the configuration that would be trained: adapted to the user's data, if that is found.
    fn adapted_config(
        &self,
        draft: ConfigDraft,
        earlier: Option<&Model>,
        screen: &Screen,
    ) -> CommandResult<RunConfig> {
        let config = self.configured(draft)?;
        // Published datasets change nothing.
        if config.data.dir.is_none() || !(config.data.is_own() || config.data.dataset == "text") {
            return Ok(config);
        }
        match self.adapted(config.clone(), earlier, &screen.silent()) {
            Ok(TrainingSetup { mut config, .. }) => {
                config.data.dir = config.data.dir.map(|dir| absolute(&dir)).transpose()?;
                Ok(config)
            }
            // The data may be on another machine.
            Err(e) if e.error.kind() == ErrorKind::Io => {
                note(&format!("the configuration is not adapted to the data: {}", e.error));
                Ok(config)
            }
            Err(e) => Err(e),
        }
    }

    /// Returns configuration and data; text is tokenized with the saved model's tokenizer. Without a target, a saved
    /// model continues on the data of its run.
    ///
    /// Glyphs replaces Fashion-MNIST only if no data was named.
    fn plan(
        &self,
        draft: ConfigDraft,
        earlier: Option<&Model>,
        screen: &Screen,
    ) -> CommandResult<TrainingSetup> {
        let config = self.configured(draft)?;
        let free = self.target.is_none() && self.from.is_none() && self.data.data_dir.is_none();
        let free = free && config.data.dataset == "fashion-mnist" && config.data.dir.is_none();
        if !free {
            let TrainingSetup { config, data, reason } = self.adapted(config, earlier, screen)?;
            return Ok(announced(config, data, reason, screen));
        }
        match load_data(&config, screen) {
            Ok(data) => Ok(announced(config, data, "the default".into(), screen)),
            // Existing but damaged files are an error, not a reason to fall back.
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

/// Returns the suggested learning rate, rounded to two digits.
///
/// # Errors
/// If the curve has no suggestion; the caller adds the hint.
pub(crate) fn rate_of(found: &LrFindResult, suggestion: &str) -> Result<f64, Error> {
    let rounded = found.suggestion(suggestion).and_then(|rate| format!("{rate:.1e}").parse().ok());
    rounded.ok_or_else(|| {
        let e = err!(Config, "the range test found no learning rate");
        let why = found.stopped_because.clone().unwrap_or_else(|| "the curve is too short".into());
        e.because(why)
    })
}

/// Parses a positive integer or `auto`.
fn batch_size(text: &str) -> Result<String, String> {
    match text.parse::<u64>() {
        Ok(0) => Err("0 is not in 1..".into()),
        Ok(n) => Ok(n.to_string()),
        Err(_) if text == "auto" => Ok(text.into()),
        Err(e) => Err(format!("{e}: a number, or auto")),
    }
}

/// Sets class weights given as `balanced` or `cat=2,dog=0.5`.
fn set_class_weights(draft: &mut ConfigDraft, weights: &str) -> CommandResult<()> {
    let flag = format!("--class-weights {weights}");
    if !weights.contains('=') {
        draft.set_text(flag, "fit.class_weight", weights);
        return Ok(());
    }
    let mut table = Vec::new();
    for pair in weights.split(',') {
        let Some((class, weight)) = pair.split_once('=') else {
            let e = err!(Config, "expected CLASS=WEIGHT, got `{pair}`").at(flag);
            return Err(CommandError::usage(e.hint_command("write class weights as cat=2,dog=0.5")));
        };
        table.push(format!("{} = {}", toml::Value::from(class.trim()), weight.trim()));
    }
    draft.set(flag, "fit.class_weight", &format!("{{ {} }}", table.join(", ")));
    Ok(())
}

/// Configuration for an image folder: the preset `folder`, with the image size found.
fn folder_draft(folder: &Path) -> CommandResult<ConfigDraft> {
    if folder.join("run.json").is_file() {
        let e = err!(Config, "{} is the folder of a run", folder.display());
        return Err(CommandError::usage(
            e.hint_command(format!("resume that run: systole resume {}", folder.display())),
        ));
    }
    if let Some(e) = texts_without_classes(folder) {
        return Err(e.into());
    }
    let [height, width, channels] = picture_size_for(folder)?;
    let mut draft = ConfigDraft::preset("folder")?;
    let flag = folder.display().to_string();
    draft.set_text(&flag, "data.dir", &flag);
    draft.set(&flag, "data.image_size", &format!("[{height}, {width}]"));
    draft.set(&flag, "data.color_mode", if channels == 1 { "grayscale" } else { "rgb" });
    Ok(draft)
}

/// Error for a folder of text files that are not in class folders.
fn texts_without_classes(folder: &Path) -> Option<Error> {
    let files = files_of(folder).ok()?;
    let texts: Vec<&PathBuf> = files.iter().filter(|f| is_plain_text(f)).collect();
    let first = texts.first().filter(|_| texts.len() == files.len() && ImageFolder::open(folder).is_err())?;
    Some(err!(Data, "{} has {}, but no class folders",
        folder.display(),
        counted(texts.len() as u64, "text file")).because("the class of a text is the name of its folder").hint_command(format!(
        "create a folder for each class and move the texts there; to train a language model on one text: systole train {}",
        first.display()
    )))
}

/// Configuration for a folder of record files, or for one of them.
fn records_draft(folder: &Path, file: Option<&str>, asked: RecordOptions) -> CommandResult<ConfigDraft> {
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

fn file_draft(file: &Path, asked: RecordOptions) -> CommandResult<ConfigDraft> {
    let (folder, name) = parent_and_name(file)?;
    records_draft(&folder, Some(&name), asked)
}

/// Absolute folder and name of a file.
fn parent_and_name(file: &Path) -> Result<(PathBuf, String), Error> {
    let whole = absolute(file)?;
    let name = whole.file_name().map_or(String::new(), |n| n.to_string_lossy().into_owned());
    Ok((whole.parent().unwrap_or(Path::new("/")).to_path_buf(), name))
}

/// Configuration for training on a text file.
fn text_draft(file: &Path) -> CommandResult<ConfigDraft> {
    let whole = systole_data::input_file::absolute(file)?;
    let mut draft = ConfigDraft::preset("gpt-micro")?;
    draft.set_text(file.display().to_string(), "data.dir", &whole.display().to_string());
    Ok(draft)
}

/// Error for a file that is neither data nor a configuration.
fn not_to_train(path: &str) -> Error {
    let is_model = Path::new(path).extension().is_some_and(|e| e == "safetensors");
    let e = err!(Config, "{path} is not a preset, a folder or a .toml file");
    match is_model {
        true => e.hint_command(format!("to continue from a saved model run: systole train --from {path}")),
        false => e.hint_command(
            "for images or texts name the folder with one subfolder per class (unpack archives first), for a language \
             model a .txt file; to continue from a saved model run: systole train --from MODEL",
        ),
    }
}

fn announced(config: RunConfig, mut data: TrainingData, reason: String, screen: &Screen) -> TrainingSetup {
    data.notes.extend(config.unused_data_keys(&data));
    data.notes.extend(config.unused_pruning_keys());
    announce_data(&config, &data, &reason, screen);
    config.fit.batch_reason.iter().for_each(|reason| screen.line(reason));
    TrainingSetup { config, data, reason }
}

fn print_config(config: &RunConfig, screen: &Screen) -> CommandResult {
    match screen.json {
        true => screen.object(
            &config
                .to_json()
                .map_err(|e| err!(Bug, "cannot serialize the configuration").because(e.to_string()))?,
        ),
        false => screen.line(config.to_shown_toml()?.trim_end()),
    }
    Ok(0)
}
