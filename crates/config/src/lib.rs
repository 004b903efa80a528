//! A training run as data: which data set, which layers, how to train. Read from TOML, from presets, and changed key
//! by key from the command line.
//!
//! Every error names the key, where it came from (file and line, or the flag), and the nearest key that exists.
//! Nothing here loads data or trains; see [`RunConfig::load_data`], [`RunConfig::model`] and [`RunConfig::untrained`] for the step to live objects.

mod augment;
mod auto_batch_size;
mod biggan;
mod build;
mod callbacks;
mod class_weight;
mod config_draft;
mod fine_tune;
mod key_error;
mod key_suggestions;
mod launch;
mod lora;
mod lr_find;
mod model_sections;
mod pruning;
mod quantize;
mod sweep;
mod synthetic;
mod tokens;

pub use augment::{TestTimeAugmentation, augmentations};
pub use build::scale_pixels;
pub use callbacks::Logger;
pub use config_draft::{ConfigDraft, ConfigError};
pub use fine_tune::FineTuneSection;
pub use key_suggestions::home_of;
pub use launch::{LaunchConfig, LaunchTarget};
pub use lora::LoraSection;
pub use lr_find::LrFindSection;
pub use pruning::PruningSection;
pub use quantize::QuantizeSection;
pub use sweep::{METHODS, Sweep, SweepMethod, Trial};

use crate::key_error::KeyError;
use serde::{Deserialize, Deserializer, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use systole_data::PipelineTuning;
use systole_datasets::{RecordOptions, Tokenizer};
use systole_dist::Strategy;
use systole_ir::{DType, Error, ErrorKind, Result, knobs};
use systole_nn::applications::biggan::BigGan;
use systole_nn::callback::{Callback, CallbackRunInfo, class_of};
use systole_nn::{Compile, Limit, Precision, ValCheckInterval, max_time, optimizer};
use systole_runtime::backend;
use toml::{Table, Value};

/// Names of the data sets.
pub const DATASETS: [&str; 7] = ["fashion-mnist", "mnist", "glyphs", "cifar10", "folder", "records", "text"];

/// Names of the presets.
pub const PRESETS: [&str; 14] = [
    "fashion-mnist",
    "mnist",
    "glyphs",
    "mlp",
    "cifar-cnn",
    "folder",
    "tfrecord",
    "table",
    "resnet50",
    "gpt2-small",
    "gpt-micro",
    "lstm",
    "biggan",
    "biggan128",
];

/// Data sets whose pictures are grey.
const GREY: [&str; 3] = ["mnist", "fashion-mnist", "glyphs"];

/// Values of `data.color_mode`, and the channels that they mean.
const COLOR_MODES: [(&str, usize); 2] = [("rgb", 3), ("grayscale", 1)];

/// A whole training run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// Seed of initial weights, dropout and the order of samples.
    #[serde(default)]
    pub seed: u64,
    /// What is learned from.
    pub data: DataSection,
    /// A whole architecture: `application`, one of [`APPLICATIONS`](systole_nn::applications::APPLICATIONS), and its
    /// arguments. In place of `layers`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Table>,
    /// The layers in order: tables with a `type` and Keras's arguments. A layer takes the output of the one before it,
    /// or of those that its `inputs` name; `input` is that of the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<Table>,
    /// A generator and a discriminator, in place of `layers`: options of BigGAN-PyTorch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub biggan: Option<BigGan>,
    /// `type`, `learning_rate` (a number or a schedule) and the optimizer's arguments.
    pub optimizer: Table,
    /// Loss, metrics, precision.
    pub compile: CompileSection,
    /// How long and in what portions.
    pub fit: FitSection,
    /// How steps are split over devices; without: one device, or all that an accelerator has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<StrategySection>,
    /// Begins with the weights of another model, of which some layers are frozen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fine_tune: Option<FineTuneSection>,
    /// Adapters of low rank train, and the weights of a saved model stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraSection>,
    /// Weights that become zero while the model trains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pruning: Option<PruningSection>,
    /// The learning rate is looked for before the first step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lr_find: Option<LrFindSection>,
    /// The model is trained for eight bits: weights and values are rounded while it trains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantize: Option<QuantizeSection>,
    /// What else is done after each epoch: tables with a `type` and Keras's arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub callbacks: Vec<Table>,
}

/// The `strategy` table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StrategySection {
    /// `one_device`, `data_parallel`, `fully_sharded` or `auto`.
    #[serde(default = "data_parallel", rename = "type")]
    pub name: String,
    /// How many devices; logical ones where the backend has but one. Default: all of the backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<usize>,
    /// The devices as a box with named axes (`data=4`), in place of `devices`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mesh: Option<String>,
}

impl StrategySection {
    fn strategy(&self) -> Result<Strategy, KeyError> {
        let unknown = |_| key_error::unknown("there is no strategy", &self.name, &Strategy::NAMES);
        let strategy = Strategy::parse(&self.name).map_err(|e| KeyError::of("strategy.type", unknown(e)))?;
        match (&self.mesh, self.devices) {
            (Some(_), Some(_)) => Err(KeyError::new("strategy.mesh", "there are both `mesh` and `devices`")
                .hint("keep one of them: a mesh has its number of devices")),
            (Some(mesh), None) => {
                Ok(strategy.mesh(mesh.parse().map_err(|e| KeyError::of("strategy.mesh", e))?))
            }
            (None, devices) => {
                at_least_one("strategy.devices", devices.map(|n| n as u64))?;
                Ok(devices.map_or(strategy.clone(), |n| strategy.devices(n)))
            }
        }
    }
}

fn data_parallel() -> String {
    "data_parallel".into()
}

/// The `data` table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSection {
    /// One of [`DATASETS`].
    pub dataset: String,
    /// The data set's folder or its parent; otherwise it is looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
    /// Pixels, 0 to 255, are multiplied by this: a number, or a fraction as text (`"1/255"`).
    #[serde(default = "one", deserialize_with = "number_or_fraction")]
    pub scale: f64,
    /// Whether every epoch has an order of its own.
    #[serde(default = "yes")]
    pub shuffle: bool,
    /// Height and width that pictures are brought to; otherwise they stay as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_size: Option<[usize; 2]>,
    /// `rgb` or `grayscale`: what the pictures of a folder are brought to. Default: `rgb`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub color_mode: Option<String>,
    /// The part of each class of a folder that is kept for testing. Default: 0.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_split: Option<f64>,
    /// The part of a folder's pictures that may be unreadable. Default: 0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable_quota: Option<f64>,
    /// What transparent parts of pictures are laid on, from 0 (black) to 1 (white). Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background: Option<f64>,
    /// Changes of training pictures by name, drawn anew for every picture and epoch; some have a value: `"rotate=10"`.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "augment::list_or_table")]
    pub augment: Vec<String>,
    /// Test-time augmentation: about how many changed versions of each picture `evaluate` and `predict` ask, beside the picture itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tta: Option<u64>,
    /// Which files of records are read, and how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub records: Option<RecordOptions>,
    /// Tokens in a sample of text. Default: 128.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence_length: Option<usize>,
    /// What a token of text is: `bytes`, `chars` (characters of the text), `bpe` (byte pairs, learnt from the text), or a tokenizer's
    /// file: a `tokenizer.json`, or a `vocab.json` with `merges.txt` beside it. Default: `bytes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<String>,
    /// Tokens that `bpe` learns, the 256 bytes among them. Default: 1024.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<usize>,
    /// Whether the sequences of a text that is trained on begin anywhere, elsewhere in each epoch, rather than where the one before
    /// ended. Default: false.
    #[serde(default, skip_serializing_if = "is_unset")]
    pub random_offsets: bool,
    /// The tokenizer of a saved model, in the place of what `tokenizer` says.
    #[serde(skip)]
    pub known_tokenizer: Option<Arc<Tokenizer>>,
    /// Only so many training samples: of one's own data some of all classes, of published sets the first ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_samples: Option<u64>,
    /// Only so many test samples, as `train_samples`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test_samples: Option<u64>,
    /// Threads and queues of the pipeline's stages as `--freeze` of `data bench` or `train` found them; otherwise they are
    /// tuned while training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuning: Option<Table>,
}

/// The `compile` table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompileSection {
    /// A name, or a table with `type` and arguments.
    pub loss: Value,
    /// Names or tables.
    #[serde(default)]
    pub metrics: Vec<Value>,
    /// Metrics in which class and sample weights count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weighted_metrics: Vec<Value>,
    /// One of [`Precision::NAMES`].
    #[serde(default = "float32")]
    pub precision: String,
}

impl CompileSection {
    /// Loss and metrics; `output` is the shape of the model's output.
    fn measures(&self, output: &[usize]) -> Result<Compile, KeyError> {
        let loss = model_sections::loss(&self.loss)?;
        let all = |list: &str, values: &[Value]| -> Result<Vec<_>, KeyError> {
            let each = values.iter().enumerate();
            each.map(|(i, value)| {
                model_sections::metric(&format!("compile.{list}.{i}"), value, &loss, output)
            })
            .collect()
        };
        let (metrics, weighted_metrics) =
            (all("metrics", &self.metrics)?, all("weighted_metrics", &self.weighted_metrics)?);
        Ok(Compile { loss, metrics, weighted_metrics, ..Compile::default() })
    }
}

/// The `fit` table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FitSection {
    /// Epochs of this run.
    pub epochs: usize,
    /// Samples in a step; `"auto"`: as many as fit into memory by the compiler's plan.
    #[serde(
        deserialize_with = "auto_batch_size::auto_or_number",
        serialize_with = "auto_batch_size::written"
    )]
    pub batch_size: usize,
    /// Why the batch is as large as it is, where that was chosen.
    #[serde(skip)]
    pub batch_reason: Option<String>,
    /// Steps in an epoch; none: one pass over the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps_per_epoch: Option<usize>,
    /// Test after every so many epochs; the last one is always tested. Lightning's word for it, `check_val_every_n_epoch`, may be
    /// written, too.
    #[serde(default = "once", alias = "check_val_every_n_epoch")]
    pub validation_freq: usize,
    /// Test in the middle of epochs: after a share of their batches (`0.25`), so many of them (`100`), or some time (`"00:10:00"`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub val_check_interval: Option<ValCheckInterval>,
    /// Train on this part of each epoch's batches, its first ones: `10` of them, or `0.1` for a tenth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_train_batches: Option<Limit>,
    /// Test on this part of the test data's batches; `0`: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_val_batches: Option<Limit>,
    /// Train on the same few batches in every epoch, and test on as many: what can learn reaches a loss of next to nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overfit_batches: Option<Limit>,
    /// One epoch of so many batches and a test of as many, which leave nothing behind: does it run at all?
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fast_dev_run: Option<usize>,
    /// Training ends when this time is over, `DD:HH:MM:SS`, all starts of a run together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_time: Option<String>,
    /// Looks at each step before it is taken, and ends with an error that names the op and the layer where numbers would arise that are
    /// not finite; the batch is written to `anomaly.npz` in the run's folder. A step costs twice as much.
    #[serde(default, skip_serializing_if = "is_unset")]
    pub detect_anomaly: bool,
    /// The loop alone, to measure it: callbacks, backups, progress and what is written are left out.
    #[serde(default, skip_serializing_if = "is_unset")]
    pub barebones: bool,
    /// Test on so many batches before the first step, so that a test that cannot run does not wait for an epoch's end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_sanity_val_steps: Option<usize>,
    /// How much the samples of each class count in the loss: `"balanced"`, as much as those of any other class, or a table of
    /// classes and weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_weight: Option<Value>,
    /// What the best model is known by: `loss` or the name of a metric, measured on the test data. Default: the first
    /// metric, else the loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monitor: Option<String>,
    /// Whether a dashboard is shown while training, where there is a terminal for it.
    #[serde(default, skip_serializing_if = "is_unset")]
    pub tui: bool,
    /// Whether `report.html` is written into the run's folder at its end.
    #[serde(default = "yes", skip_serializing_if = "is_set")]
    pub report: bool,
    /// What the run is written for as it goes on: `"tensorboard"`, the default, or `"none"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logger: Option<Logger>,
}

/// A value's name without Keras's `val_`.
fn measured(monitor: &str) -> &str {
    monitor.strip_prefix("val_").unwrap_or(monitor)
}

/// A table as TOML writes it within a line: `{ threads = 1, ahead = 2 }`.
fn inline(value: &Value) -> String {
    match value.as_table() {
        Some(t) => {
            let entries: Vec<String> = t.iter().map(|(k, v)| format!("{k} = {v}")).collect();
            format!("{{ {} }}", entries.join(", "))
        }
        None => value.to_string(),
    }
}

fn one() -> f64 {
    1.0
}

fn yes() -> bool {
    true
}

fn is_unset(yes: &bool) -> bool {
    !*yes
}

fn is_set(yes: &bool) -> bool {
    *yes
}

fn once() -> usize {
    1
}

fn float32() -> String {
    Precision::Float32.name().into()
}

fn number_or_fraction<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a number or a fraction such as \"1/255\"")]
    enum PixelScale {
        Number(f64),
        Fraction(String),
    }
    match PixelScale::deserialize(deserializer)? {
        PixelScale::Number(x) => Ok(x),
        PixelScale::Fraction(text) => fraction(&text).map_err(|e| serde::de::Error::custom(e.what())),
    }
}

/// The value of `0.5` or `1/255`.
pub fn fraction(text: &str) -> Result<f64> {
    let number = |s: &str| s.trim().parse::<f64>().ok();
    let value = match text.split_once('/') {
        Some((above, below)) => number(above).zip(number(below)).map(|(a, b)| a / b),
        None => number(text),
    };
    value.filter(|v| v.is_finite()).ok_or_else(|| {
        Error::new(ErrorKind::Config, format!("`{text}` is neither a number nor a fraction such as 1/255"))
    })
}

impl RunConfig {
    /// The commented TOML of a preset.
    pub fn preset_text(name: &str) -> Option<String> {
        let text = match name {
            "fashion-mnist" => include_str!("presets/fashion-mnist.toml"),
            "mnist" => include_str!("presets/mnist.toml"),
            "glyphs" => include_str!("presets/glyphs.toml"),
            "mlp" => include_str!("presets/mlp.toml"),
            "cifar-cnn" => include_str!("presets/cifar-cnn.toml"),
            "folder" => include_str!("presets/folder.toml"),
            "tfrecord" => include_str!("presets/tfrecord.toml"),
            "table" => include_str!("presets/table.toml"),
            "resnet50" => include_str!("presets/resnet50.toml"),
            "gpt2-small" => include_str!("presets/gpt2-small.toml"),
            "gpt-micro" => include_str!("presets/gpt-micro.toml"),
            "lstm" => include_str!("presets/lstm.toml"),
            "biggan" => include_str!("presets/biggan.toml"),
            "biggan128" => include_str!("presets/biggan128.toml"),
            _ => return None,
        };
        // Comments that list what there is are filled in from the tables.
        Some(text.replace("{optimizers}", &optimizer::NAMES.join(", ")))
    }

    /// Reads TOML; `origin` is the file's name in messages.
    pub fn parse(text: &str, origin: &str) -> Result<RunConfig> {
        ConfigDraft::parse(text, origin)?.finish().map_err(|r| r.error)
    }

    /// The preset of a name.
    pub fn preset(name: &str) -> Result<RunConfig> {
        ConfigDraft::preset(name)?.finish().map_err(|r| r.error)
    }

    /// TOML that reads back as this, without comments.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string(self).map_err(|e| {
            Error::new(ErrorKind::Bug, "a configuration does not serialise").because(e.to_string())
        })
    }

    /// [`RunConfig::to_toml`] with threads and queues that were found while running.
    pub fn frozen(&self, tuning: &PipelineTuning) -> Result<String> {
        let mut config = self.clone();
        config.data.tuning = tuning.to_string().parse().ok();
        config.to_toml()
    }

    /// The first key whose value makes no sense.
    fn check(&self) -> Result<(), KeyError> {
        self.data.check()?;
        self.check_biggan()?;
        if self.biggan.is_none() {
            model_sections::architecture(self.model.as_ref(), &self.layers)?;
        }
        model_sections::optimizer(&self.optimizer)?;
        let compile = self.compile.measures(&[10])?;
        if let Some(monitor) = self.fit.monitor.as_deref() {
            self.check_monitor("fit.monitor", monitor, &compile)?;
        }
        self.check_callbacks(&compile)?;
        self.check_fine_tune()?;
        self.check_lora()?;
        self.check_pruning()?;
        self.check_lr_find()?;
        self.check_quantize()?;
        let precision = self.compile.precision.parse::<Precision>();
        precision.map_err(|e| KeyError::of("compile.precision", e))?;
        self.strategy.as_ref().map(StrategySection::strategy).transpose()?;
        self.fit.check()
    }

    fn check_callbacks(&self, compile: &Compile) -> Result<(), KeyError> {
        let mut files: Vec<PathBuf> = Vec::new();
        for (i, table) in self.callbacks.iter().enumerate() {
            let section = callbacks::section(i, table)?;
            if let Some(monitor) = section.callback.monitor() {
                self.check_monitor(&format!("{}.monitor", section.path), monitor, compile)?;
            }
            for (argument, file) in section.callback.files() {
                let path = PathBuf::from(file);
                if section.class != "ModelCheckpoint" && files.contains(&path) {
                    let what = format!("two callbacks write to `{file}`");
                    return Err(KeyError::new(&format!("{}.{argument}", section.path), what)
                        .hint("give each a name of its own"));
                }
                files.push(path);
            }
        }
        Ok(())
    }

    /// An error where a callback would write over one of the run's own files, which are all in one folder.
    pub fn check_files_of_callbacks(&self, taken: &[&Path]) -> Result<()> {
        for section in self.callback_sections() {
            for (argument, file) in section.callback.files() {
                if let Some(own) = taken.iter().find(|own| own.file_name() == Some(file.as_ref())) {
                    let what = format!("`{file}` is a file of the run itself");
                    return Err(Error::new(ErrorKind::Config, what)
                        .at(format!("{}.{argument}", section.path))
                        .because(format!("{} is written by the run", own.display()))
                        .hint("choose another name"));
                }
            }
        }
        Ok(())
    }

    /// The callbacks of a run in `folder` of a model that is compiled so.
    pub fn callbacks(&self, folder: &Path, compile: &Compile) -> Vec<Box<dyn Callback>> {
        let logged = |monitor: &str| {
            let prefix = if monitor.starts_with("val_") { "val_" } else { "" };
            format!("{prefix}{}", self.metric_of(measured(monitor), compile))
        };
        let whole = self.without_folders();
        let mut hparams = Vec::new();
        // Those of layers and callbacks would be too many columns.
        let sections = whole.iter().filter(|(key, _)| !["layers", "callbacks"].contains(&key.as_str()));
        sections.for_each(|(key, value)| callbacks::hparams(key, value, &mut hparams));
        let text = toml::to_string(&whole).unwrap_or_default();
        let peak_flops = || self.peak_flops();
        let names = self.names(compile);
        let place =
            CallbackRunInfo { folder, logged: &logged, names, text, hparams, peak_flops: &peak_flops };
        let placed = self.running_callbacks().map(|mut section| -> Box<dyn Callback> {
            section.callback.take_place(&place);
            section.callback
        });
        placed.chain(self.sample_grid(folder)).collect()
    }

    /// Operations a second that this computer's processor can do at most, in products of the run's precision; of other devices that is
    /// not known.
    fn peak_flops(&self) -> Option<f64> {
        backend("auto").ok().filter(|backend| backend.name() == "cpu")?;
        let threads = match knobs::THREADS.get_usize() {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        };
        let peak = systole_cpu::peak(systole_cpu::Level::from_knob().ok()?, threads);
        let factors = if self.compile.precision.contains("bfloat16") { DType::BF16 } else { DType::F32 };
        Some(peak.products(factors) * 1e9)
    }

    /// Metrics that were asked for by another name than they are logged by: `accuracy` is one of several.
    pub fn names(&self, compile: &Compile) -> Vec<(String, String)> {
        let logged = compile.metric_names();
        let written = self.compile.metrics.iter().chain(&self.compile.weighted_metrics);
        let all = compile.metrics.iter().chain(&compile.weighted_metrics);
        let each = written.zip(all).zip(logged).filter_map(|((asked, metric), name)| {
            // What stands before a name and behind it tells it from others.
            let told = name.replace(metric.name(), asked.as_str()?);
            Some((name, told))
        });
        each.filter(|(name, asked)| name != asked).collect()
    }

    /// The configuration as a table, without this machine's folders.
    fn without_folders(&self) -> Table {
        let mut whole = Table::try_from(self).unwrap_or_default();
        if let Some(data) = whole.get_mut("data").and_then(Value::as_table_mut) {
            data.remove("dir");
        }
        whole
    }

    /// Where TensorBoard finds the events of a run in `folder`, if they are written.
    pub fn event_folder(&self, folder: &Path) -> Option<PathBuf> {
        let board = self.running_callbacks().find(|c| c.class == callbacks::LOGGER)?;
        board.callback.files().first().map(|(_, log_dir)| folder.join(log_dir))
    }

    /// Whether events were asked for, and are not there by default alone.
    pub fn asks_for_events(&self) -> bool {
        let is_named = || self.callback_sections().any(|c| c.class == callbacks::LOGGER);
        self.fit.logger.map_or_else(is_named, |logger| logger == Logger::TensorBoard)
    }

    /// Does as `--logger` asks: names the logger among the callbacks, or takes it out.
    pub fn set_logger(&mut self, logger: Logger) {
        let is_named = self.callback_sections().any(|c| c.class == callbacks::LOGGER);
        match logger {
            Logger::TensorBoard if !is_named => self.callbacks.push(callbacks::logger_table()),
            Logger::TensorBoard => {}
            Logger::None => *self = self.without_loggers(),
        }
        self.fit.logger = Some(logger).filter(|logger| *logger == Logger::None);
    }

    /// The configuration without what only writes down how a run goes on: with other loggers it is the same run.
    pub fn without_loggers(&self) -> RunConfig {
        let mut config = self.clone();
        config.fit.logger = None;
        let is_logger =
            |c: &Table| c.get("type").and_then(Value::as_str).and_then(class_of) == Some(callbacks::LOGGER);
        config.callbacks.retain(|callback| !is_logger(callback));
        config
    }

    /// Whether a callback puts the weights of the best epoch back at the end.
    pub fn restores_weights(&self) -> bool {
        let stops = self.callback_sections().map(|c| c.class == "EarlyStopping");
        let restores =
            self.callbacks.iter().map(|c| c.get("restore_best_weights") == Some(&Value::Boolean(true)));
        stops.zip(restores).any(|(stops, restores)| stops && restores)
    }

    /// Those of the configuration, and the logger that a run has by default.
    fn running_callbacks(&self) -> impl Iterator<Item = callbacks::CallbackSection> {
        let is_logger = |c: &callbacks::CallbackSection| c.class == callbacks::LOGGER;
        let is_wanted = self.fit.logger != Some(Logger::None);
        let is_missing = is_wanted && !self.callback_sections().any(|c| is_logger(&c));
        let default =
            is_missing.then(|| callbacks::section(self.callbacks.len(), &callbacks::logger_table()).ok());
        self.callback_sections().filter(move |c| is_wanted || !is_logger(c)).chain(default.flatten())
    }

    /// They were checked when the configuration was read.
    fn callback_sections(&self) -> impl Iterator<Item = callbacks::CallbackSection> {
        self.callbacks.iter().enumerate().filter_map(|(i, table)| callbacks::section(i, table).ok())
    }

    /// The name by which a value is logged: `accuracy` is one of several metrics, by the model's output.
    fn metric_of(&self, asked: &str, compile: &Compile) -> String {
        let known = self.names(compile).into_iter().find(|(_, told)| told == asked);
        known.map_or(asked.into(), |(name, _)| name)
    }

    /// What is watched must be measured.
    fn check_monitor(&self, path: &str, monitor: &str, compile: &Compile) -> Result<(), KeyError> {
        let (logged, told) = (compile.metric_names(), self.names(compile));
        let told = told.iter().map(|(_, told)| told.as_str());
        let mut known: Vec<&str> = ["loss"].into_iter().chain(told).collect();
        known.extend(logged.iter().map(String::as_str));
        match known.contains(&measured(monitor)) {
            true => Ok(()),
            false => Err(KeyError::of(
                path,
                key_error::unknown("nothing is measured by the name", monitor, &known),
            )),
        }
    }

    /// The value of the validation that the best model is known by, where a model is compiled so.
    pub fn monitor(&self, compile: &Compile) -> String {
        let asked = self.fit.monitor.as_deref().map(measured);
        let name = match asked {
            None => compile.metric_names().into_iter().next().unwrap_or_else(|| "loss".into()),
            Some(asked) => self.metric_of(asked, compile),
        };
        format!("val_{name}")
    }

    /// How steps are split over devices.
    pub fn strategy(&self) -> Strategy {
        // Checked when the configuration was read.
        self.strategy.as_ref().and_then(|s| s.strategy().ok()).unwrap_or_else(Strategy::auto)
    }

    fn precision(&self) -> Precision {
        // Checked when the configuration was read.
        self.compile.precision.parse().unwrap_or_default()
    }
}

impl DataSection {
    fn check(&self) -> Result<(), KeyError> {
        if self.dataset.contains(['.', '/']) {
            let what = format!("`{}` is no kind of data", self.dataset);
            return Err(KeyError::new("data.dataset", what).hint(
                "name files of your own with data.dir, and here what they are: records (tables too), folder (pictures) or text",
            ));
        }
        if !DATASETS.contains(&self.dataset.as_str()) {
            return Err(KeyError::of(
                "data.dataset",
                key_error::unknown("there is no data set", &self.dataset, &DATASETS),
            ));
        }
        // Pixels are bytes: a larger factor is a divisor by mistake.
        if !(self.scale > 0.0 && self.scale <= 1.0) {
            let what = format!("pixels cannot be multiplied by {}", self.scale);
            return Err(KeyError::new("data.scale", what).hint(
                "choose a factor above 0 and up to 1: \"1/255\" brings pixels to 0..1, 1 leaves them as they are",
            ));
        }
        let sides = self.image_size.map(|[h, w]| h.min(w) as u64);
        at_least_one("data.image_size", sides)?;
        at_least_one("data.sequence_length", self.sequence_length.map(|n| n as u64))?;
        self.check_tokens()?;
        at_least_one("data.train_samples", self.train_samples)?;
        at_least_one("data.test_samples", self.test_samples)?;
        at_least_one("data.tta", self.tta)?;
        self.check_records()?;
        self.check_folder()
    }

    fn check_records(&self) -> Result<(), KeyError> {
        let Some(records) = &self.records else { return Ok(()) };
        records.parse_features().map_err(|e| KeyError::of("data.records.features", e))?;
        let told = if records.encoding.is_some() { "data.records.encoding" } else { "data.records.decimal" };
        records.written().map_err(|e| KeyError::of(told, e))?;
        at_least_one("data.records.cycle_length", Some(records.cycle_length as u64))?;
        at_least_one("data.records.block_length", Some(records.block_length as u64))?;
        at_least_one("data.records.shuffle_buffer", records.shuffle_buffer.map(|n| n as u64))
    }

    fn check_folder(&self) -> Result<(), KeyError> {
        if let Some(mode) = self.color_mode.as_ref().filter(|m| COLOR_MODES.iter().all(|(n, _)| n != m)) {
            let known = COLOR_MODES.map(|(n, _)| n);
            return Err(KeyError::of(
                "data.color_mode",
                key_error::unknown("there is no colour mode", mode, &known),
            ));
        }
        for (key, share, most) in [
            ("data.validation_split", self.validation_split, 0.9),
            ("data.unreadable_quota", self.unreadable_quota, 1.0),
            ("data.background", self.background, 1.0),
        ] {
            if let Some(share) = share.filter(|s| !(0.0..=most).contains(s)) {
                let what = format!("{share} is no share, which is from 0 to {most}");
                return Err(KeyError::new(key, what).hint(format!("choose a number from 0 to {most}")));
            }
        }
        let is_grey = self.channels() != 3 || GREY.contains(&self.dataset.as_str());
        augment::changes(&self.augment, !is_grey)?;
        self.sizes().map(drop).map_err(|e| KeyError::of("data.tuning", e))
    }

    /// Threads and queues, where they are frozen.
    fn sizes(&self) -> Result<Option<PipelineTuning>> {
        let line = |(stage, size): (&String, &Value)| format!("{stage:?} = {}", inline(size));
        let lines = self.tuning.as_ref().map(|t| t.iter().map(line).collect::<Vec<_>>().join("\n"));
        lines.map(|text| text.parse()).transpose()
    }
}

impl DataSection {
    /// Channels that the pictures of a folder are brought to.
    fn channels(&self) -> usize {
        let mode = self.color_mode.as_deref().unwrap_or("rgb");
        COLOR_MODES.iter().find(|(n, _)| *n == mode).map_or(3, |(_, channels)| *channels)
    }

    /// Whether these are the user's own data, whose number of classes and whose files no preset can know.
    pub fn is_own(&self) -> bool {
        ["folder", "records"].contains(&self.dataset.as_str())
    }

    /// Tokens in a sample of text.
    pub fn sequence_length(&self) -> usize {
        self.sequence_length.unwrap_or(128)
    }
}

impl FitSection {
    fn check(&self) -> Result<(), KeyError> {
        at_least_one("fit.epochs", Some(self.epochs as u64))?;
        at_least_one("fit.batch_size", Some(self.batch_size as u64))?;
        at_least_one("fit.steps_per_epoch", self.steps_per_epoch.map(|n| n as u64))?;
        class_weight::check(self.class_weight.as_ref())?;
        at_least_one("fit.fast_dev_run", self.fast_dev_run.map(|n| n as u64))?;
        let time = self.max_time.as_deref().map_or(Ok(()), |text| max_time(text).map(drop));
        time.map_err(|e| KeyError::of("fit.max_time", e))?;
        at_least_one("fit.validation_freq", Some(self.validation_freq as u64))
    }
}

fn at_least_one(path: &str, value: Option<u64>) -> Result<(), KeyError> {
    let name = path.rsplit('.').next().unwrap_or(path);
    match value {
        Some(0) => {
            Err(KeyError::new(path, format!("{name} is 0")).hint(format!("{name} must be at least 1")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_whole_and_survive_a_round_trip() {
        for name in PRESETS {
            let config = RunConfig::preset(name).unwrap();
            assert!(!DATASETS.contains(&name) || config.data.dataset == name);
            assert_eq!(RunConfig::parse(&config.to_toml().unwrap(), "again").unwrap(), config);
        }
    }

    #[test]
    fn fashion_mnist_is_the_tutorials_recipe() {
        let c = RunConfig::preset("fashion-mnist").unwrap();
        assert_eq!((c.data.scale, c.fit.epochs, c.fit.batch_size), (1.0, 5, 1000));
        assert_eq!((c.fit.steps_per_epoch, c.fit.validation_freq), (Some(60), 5));
        let types: Vec<&str> = c.layers.iter().filter_map(|l| l["type"].as_str()).collect();
        assert_eq!(types, ["Conv2D", "MaxPooling2D", "Activation", "Flatten", "Dense", "Activation"]);
        assert_eq!(model_sections::optimizer(&c.optimizer).unwrap(), optimizer::adam(1e-3));
    }

    #[test]
    fn mistakes_in_a_file_are_told_with_line_and_nearest_key() {
        let preset = RunConfig::preset_text("fashion-mnist").unwrap();
        let line = |needle: &str| preset.lines().position(|l| l.starts_with(needle)).unwrap() + 1;
        let cases = [
            ("epochs = 5", "epoch = 5", line("epochs"), "did you mean `epochs`"),
            ("epochs = 5", "epochs = 0", line("epochs"), "epochs is 0"),
            ("epochs = 5", "epochs = \"five\"", line("epochs"), "invalid type"),
            ("[compile]", "[compiel]", line("[compile]"), "did you mean `compile`"),
            ("filters = 64", "filtres = 64", line("filters"), "did you mean `filters`"),
            ("type = \"Flatten\"", "type = \"Flaten\"", line("type = \"Flatten\""), "did you mean `Flatten`"),
            ("padding = \"valid\"", "padding = \"vald\"", line("padding"), "did you mean `valid`"),
            ("type = \"adam\"", "type = \"adm\"", line("type = \"adam\""), "did you mean `adam`"),
            ("learning_rate = 0.001", "learning_rate = -1.0", line("learning_rate"), "not above 0"),
            ("learning_rate", "lerning_rate", line("learning_rate"), "did you mean `learning_rate`"),
            ("\"float32\"", "\"float23\"", line("precision"), "float32"),
            ("scale = 1 ", "scale = 255 ", line("scale"), "1/255"),
            (
                "dataset = \"fashion-mnist\"",
                "dataset = \"fashion-mnst\"",
                line("dataset"),
                "did you mean `fashion-mnist`",
            ),
            ("seed = 0", "seed = = 0", line("seed"), "TOML"),
        ];
        for (from, to, line, part) in cases {
            let e = RunConfig::parse(&preset.replacen(from, to, 1), "my.toml").unwrap_err();
            let text = e.to_string();
            assert!(text.contains(&format!("my.toml, line {line}")) && text.contains(part), "{to}: {text}");
        }
    }

    /// A preset with everything from `[model]` or the first layer up to the optimizer replaced.
    fn with_structure(structure: &str) -> Result<RunConfig> {
        let preset = RunConfig::preset_text("glyphs").unwrap();
        let (before, rest) = preset.split_once("[[layers]]").unwrap();
        let (_, after) = rest.split_once("[optimizer]").unwrap();
        RunConfig::parse(&format!("{before}{structure}\n[optimizer]{after}"), "my.toml")
    }

    const RESIDUAL: &str = r#"
        [[layers]]
        type = "Conv2D"
        filters = 1
        kernel_size = 3
        padding = "same"
        name = "c1"
        [[layers]]
        type = "Add"
        inputs = ["input", "c1"]
        [[layers]]
        type = "Flatten"
        [[layers]]
        type = "Dense"
        units = 10
        activation = "softmax"
    "#;

    #[test]
    fn layers_may_name_what_feeds_them() {
        let model = with_structure(RESIDUAL).unwrap().untrained().unwrap();
        let fed: Vec<usize> = model.architecture().nodes.iter().map(|p| p.inputs.len()).collect();
        assert_eq!(fed, [1, 2, 1, 1]);
        let wrong =
            |from: &str, to: &str| with_structure(&RESIDUAL.replacen(from, to, 1)).unwrap_err().to_string();
        let e = wrong("\"input\", \"c1\"", "\"input\", \"c2\"");
        assert!(e.contains("my.toml, line") && e.contains("did you mean `c1`"), "{e}");
        let e = wrong("inputs = [\"input\", \"c1\"]", "inputs = [\"input\", \"input\"]");
        assert!(e.contains("goes nowhere"), "{e}");
        assert!(wrong("inputs = [\"input\", \"c1\"]", "inputs = []").contains("names no layer"));
    }

    #[test]
    fn a_model_may_be_a_layer() {
        let nested = r#"
            [[layers]]
            type = "Flatten"
            [[layers]]
            type = "Sequential"
            name = "body"
            trainable = false
            layers = [{ type = "Dense", units = 8, name = "a" }, { type = "Dense", units = 4 }]
            [[layers]]
            type = "Dense"
            units = 10
            activation = "softmax"
        "#;
        let config = with_structure(nested).unwrap();
        assert_eq!(RunConfig::parse(&config.to_toml().unwrap(), "again").unwrap(), config);
        let model = config.untrained().unwrap();
        assert!(model.weights().iter().any(|(path, _)| *path == "body/a/kernel"));
        assert!(model.summary().contains("body (Sequential)"), "{}", model.summary());
        let wrong =
            |from: &str, to: &str| with_structure(&nested.replacen(from, to, 1)).unwrap_err().to_string();
        let e = wrong("units = 8", "unts = 8");
        assert!(e.contains("my.toml, line") && e.contains("did you mean `units`"), "{e}");
        assert!(wrong("trainable = false", "frozen = true").contains("no argument `frozen`"));
        assert!(wrong("layers = [", "layers = 3 # [").contains("needs a list of layers"));
    }

    #[test]
    fn an_application_takes_its_arguments() {
        let small = "[model]\napplication = \"resnet50\"\nclasses = 10\ndepths = [1, 1]\nwidth = 4";
        let config = with_structure(small).unwrap();
        assert_eq!(RunConfig::parse(&config.to_toml().unwrap(), "again").unwrap(), config);
        assert_eq!(config.untrained().unwrap().output_type().unwrap().shape.dims(), [10]);
        // Arguments that fit only together, whatever their order.
        let patches = "[model]\napplication = \"vitb16\"\nimage_size = 28\npatch_size = 7";
        assert!(with_structure(patches).is_ok());
        let e = with_structure(&patches.replace('7', "5")).unwrap_err().to_string();
        assert!(e.contains("patch_size of 5 does not divide its image_size of 28"), "{e}");
        let e = with_structure(&small.replace("width", "wdth")).unwrap_err().to_string();
        assert!(e.contains("my.toml, line") && e.contains("did you mean `width`"), "{e}");
        let e = with_structure(&small.replace("resnet50", "resnet51")).unwrap_err().to_string();
        assert!(e.contains("did you mean `resnet50`"), "{e}");
        let e = with_structure(&format!("{small}\n{RESIDUAL}")).unwrap_err().to_string();
        assert!(e.contains("both a [model] and [[layers]]"), "{e}");
    }

    #[test]
    fn metrics_take_their_arguments() {
        let with = |metrics: &str| {
            let preset = RunConfig::preset_text("glyphs").unwrap();
            RunConfig::parse(
                &preset.replacen(
                    "metrics = [\"sparse_categorical_accuracy\"]",
                    &format!("metrics = [{metrics}]"),
                    1,
                ),
                "my.toml",
            )
        };
        let all = r#"{ type = "auc", curve = "PR", num_thresholds = 50 }, { type = "precision", top_k = 2 }, "mean_squared_error",
            { type = "sparse_categorical_crossentropy", from_logits = true }, { type = "mean_iou", num_classes = 3 },
            { type = "r2_score", class_aggregation = "none" }, "ExpectedCalibrationError""#.replace('\n', " ");
        let made = with(&all).unwrap().compile_config(&[10]).unwrap().metrics;
        assert!(
            matches!(&made[1], systole_nn::metric::Metric::Precision { thresholds, top_k: Some(2), .. } if thresholds.is_empty())
        );
        assert_eq!(made[3].name(), "sparse_categorical_crossentropy");
        assert_eq!((made[0].name(), made[4].name()), ("auc", "mean_iou"));
        for (wrong, part) in [
            (r#"{ type = "auc", num_thresholds = 1 }"#, "num_thresholds is 1"),
            (r#"{ type = "auc", curve = "RCO" }"#, "ROC"),
            (r#"{ type = "auc", cruve = "PR" }"#, "did you mean `curve`"),
            (r#""mean_iou""#, "set num_classes"),
            (r#""f1_scor""#, "did you mean `f1_score`"),
            (r#"{ type = "mean_squared_error", delta = 1 }"#, "delta"),
        ] {
            let e = with(wrong).unwrap_err().to_string();
            assert!(e.contains("my.toml, line") && e.contains(part), "{wrong}: {e}");
        }
    }

    #[test]
    fn presets_of_the_benchmarks_have_their_shapes() {
        let shapes = |name: &str| {
            let c = RunConfig::preset(name).unwrap();
            let output = c.layers_only().unwrap().output_for(&[c.usual_sample()]).unwrap();
            (c.usual_sample().to_string(), output.shape.to_vec(), c.fit.batch_size)
        };
        assert_eq!(shapes("mlp"), ("f32[28, 28, 1]".into(), vec![10], 128));
        assert_eq!(shapes("cifar-cnn"), ("f32[32, 32, 3]".into(), vec![10], 128));
        assert_eq!(shapes("resnet50"), ("f32[224, 224, 3]".into(), vec![1000], 16));
        assert_eq!(shapes("gpt2-small"), ("i32[256]".into(), vec![256, 50257], 4));
        assert_eq!(shapes("lstm"), ("i32[100]".into(), vec![100, 256], 64));
    }

    #[test]
    fn fractions_are_numbers() {
        assert_eq!(fraction("1/255").unwrap(), 1.0 / 255.0);
        assert_eq!(fraction(" 0.5 ").unwrap(), 0.5);
        assert!(fraction("1/0").is_err() && fraction("x").is_err() && fraction("1/2/3").is_err());
    }
}
