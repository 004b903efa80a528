//! Training configuration: dataset, model, optimizer and training loop, from TOML, presets and command-line overrides.
//!
//! Every error names the key, its origin (file and line, or the flag), and the nearest valid key. Nothing here loads
//! data or trains; [`RunConfig::load_data`], [`RunConfig::model`] and [`RunConfig::untrained`] create the live objects.

mod augment;
mod auto_batch_size;
mod biggan;
mod build;
mod callbacks;
mod class_weight;
mod config_draft;
mod fine_tune;
mod fit_table;
mod imported;
mod key_error;
mod key_suggestions;
mod launch;
mod lora;
mod lr_find;
mod model_sections;
mod pixel_scale;
mod pruning;
mod quantize;
mod sentences;
mod sweep;
mod synthetic;
mod tokens;

pub use augment::{TestTimeAugmentation, augmentations};
pub use callbacks::Logger;
pub use config_draft::{ConfigDraft, ConfigError};
pub use fine_tune::FineTuneSection;
pub use imported::{application_of, layer_tables, same_layers, size_conflicts};
pub use key_suggestions::home_of;
pub use launch::{LaunchConfig, LaunchTarget};
pub use lora::LoraSection;
pub use lr_find::LrFindSection;
pub use pixel_scale::{
    first_rescaling, is_scaled, rescaled_twice, scale_pixels, scaled_again, shown_factor, shown_scale,
};
pub use pruning::PruningSection;
pub use quantize::QuantizeSection;
pub use sweep::{METHODS, Sweep, SweepMethod, Trial};

use crate::key_error::KeyError;
use serde::{Deserialize, Deserializer, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use systole_data::PipelineTuning;
use systole_data::with_defaults;
use systole_datasets::{ImageResizing, RecordOptions, Tokenizer};
use systole_dist::Strategy;
use systole_ir::{DType, Result, err, knobs};
use systole_nn::applications::biggan::BigGan;
use systole_nn::callback::{Callback, CallbackRunInfo, class_of};
use systole_nn::{Compile, Limit, Precision, ValCheckInterval, max_time, optimizer};
use systole_runtime::backend;
use toml::{Table, Value};

/// Names of the built-in datasets.
pub const DATASETS: [&str; 11] = [
    "fashion-mnist",
    "mnist",
    "glyphs",
    "cifar10",
    "cifar100",
    "imdb",
    "flowers",
    "folder",
    "records",
    "text",
    "sentences",
];

/// Values of `data.synthetic`.
const SYNTHETIC: [&str; 3] = ["never", "fallback", "always"];

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        /// Names of the configuration presets.
        pub const PRESETS: [&str; 15] = [$($name),*];

        /// Text of each preset, with `{optimizers}` in comments.
        const PRESET_TEXTS: [&str; 15] = [$(include_str!(concat!("presets/", $name, ".toml"))),*];
    };
}

presets!(
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
    "sentences",
    "biggan",
    "biggan128",
);

/// Datasets with grayscale images.
const GREY: [&str; 3] = ["mnist", "fashion-mnist", "glyphs"];

/// Values of `data.color_mode`, and their channel counts.
const COLOR_MODES: [(&str, usize); 2] = [("rgb", 3), ("grayscale", 1)];

/// Complete configuration of a training run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// Random seed of initial weights, dropout and sample order.
    #[serde(default)]
    pub seed: u64,
    /// Training data.
    pub data: DataSection,
    /// Predefined architecture: `application`, one of [`APPLICATIONS`](systole_nn::applications::APPLICATIONS), and its
    /// arguments. Replaces `layers`.
    pub model: Option<Table>,
    /// The layers in order: tables with a `type` and Keras's arguments. A layer's input is the output of the layer
    /// before it, or of the layers listed in its `inputs`; `input` is the model's input.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<Table>,
    /// BigGAN generator and discriminator, instead of `layers`: BigGAN-PyTorch's options.
    pub biggan: Option<BigGan>,
    /// Optimizer: `type`, `learning_rate` (a number or a schedule) and the optimizer's arguments.
    pub optimizer: Table,
    /// Loss, metrics and precision.
    pub compile: CompileSection,
    /// Training length and batch size.
    pub fit: FitSection,
    /// Distribution over devices; default: one device, or all devices of an accelerator.
    pub strategy: Option<StrategySection>,
    /// Fine-tuning: starts from the weights of another model, with some layers frozen.
    pub fine_tune: Option<FineTuneSection>,
    /// LoRA: trains low-rank adapters and freezes the weights of a saved model.
    pub lora: Option<LoraSection>,
    /// Pruning: zeroes weights during training.
    pub pruning: Option<PruningSection>,
    /// Learning-rate range test before the first step.
    pub lr_find: Option<LrFindSection>,
    /// Quantization-aware training for int8.
    pub quantize: Option<QuantizeSection>,
    /// Callbacks: tables with a `type` and Keras's arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub callbacks: Vec<Table>,
    /// Place of the key that sets the number of outputs.
    #[serde(skip)]
    outputs_at: SourcePlace,
}

/// Place in a configuration's file, for messages; does not affect comparisons.
#[derive(Clone, Debug, Default)]
struct SourcePlace(Option<String>);

impl PartialEq for SourcePlace {
    fn eq(&self, _: &SourcePlace) -> bool {
        true
    }
}

with_defaults! {
    /// The `[strategy]` table: distribution over devices.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct StrategySection {
        /// Strategy: `one_device`, `data_parallel`, `fully_sharded` or `auto`.
        #[serde(rename = "type")]
        pub name: String = "data_parallel".into(),
        /// Number of devices; logical ones if the backend has only one. Default: all devices of the backend.
        pub devices: Option<usize> = None,
        /// Device mesh with named axes (`data=4`), instead of `devices`.
        pub mesh: Option<String> = None,
    }
}

impl StrategySection {
    fn strategy(&self) -> Result<Strategy, KeyError> {
        let unknown = |_| key_error::unknown("unknown strategy", &self.name, &Strategy::NAMES);
        let strategy = Strategy::parse(&self.name).map_err(|e| KeyError::of("strategy.type", unknown(e)))?;
        match (&self.mesh, self.devices) {
            (Some(_), Some(_)) => {
                Err(KeyError::new("strategy.mesh", "`mesh` cannot be combined with `devices`")
                    .hint_setting("remove strategy.devices: a mesh already defines the number of devices"))
            }
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

/// The `[data]` table: dataset and preprocessing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSection {
    /// Dataset: one of [`DATASETS`].
    pub dataset: String,
    /// Directory of the dataset, or its parent; default: the standard locations.
    pub dir: Option<PathBuf>,
    /// Whether synthetic data of the same shape replaces a published dataset: `never`, `fallback` (if the files are
    /// neither found nor downloaded) or `always` (as `train --synthetic`). Default: `never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synthetic: Option<String>,
    /// Factor for pixel values 0 to 255: a number, or a fraction as text (`"1/255"`).
    #[serde(default = "one", deserialize_with = "number_or_fraction")]
    pub scale: f64,
    /// Whether to shuffle the samples anew in every epoch.
    #[serde(default = "yes")]
    pub shuffle: bool,
    /// Height and width to resize images to. Default: `[64, 64]` for a folder of images, no resizing of other data.
    pub image_size: Option<[usize; 2]>,
    /// How images are resized: `fit` (area along shrinking axes, bilinear along growing ones), `bilinear`, `bicubic`,
    /// `area` or `nearest`, or a table with `method`, `antialias`, `crop_to_aspect_ratio`, `pad_to_aspect_ratio`.
    /// Default: `fit`, stretched to the aspect ratio.
    pub resize: Option<ImageResizing>,
    /// Color mode to convert a folder's images to: `rgb` or `grayscale`. Default: `rgb`.
    pub color_mode: Option<String>,
    /// Fraction of each class of a folder that is held out for testing. Default: 0.2.
    pub validation_split: Option<f64>,
    /// Maximum fraction of unreadable images in a folder. Default: 0.1.
    pub unreadable_quota: Option<f64>,
    /// Background for transparent images, from 0 (black) to 1 (white). Default: 0.
    pub background: Option<f64>,
    /// Random augmentations of training images by name; some take a value: `"rotate=10"`.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "augment::list_or_table")]
    pub augment: Vec<String>,
    /// Test-time augmentation: about how many augmented versions of each image `evaluate` and `predict` use, in
    /// addition to the image itself.
    pub tta: Option<u64>,
    /// Which record files to read, and how.
    pub records: Option<RecordOptions>,
    /// Sequence length of text samples in tokens. Default: 128; for sentences that of the longest text, at most
    /// 128.
    pub sequence_length: Option<usize>,
    /// Tokenizer of text: `bytes`, `chars` (characters of the text), `bpe` (byte-pair encoding learned from the text),
    /// or a tokenizer file: `tokenizer.json`, `vocab.json` with `merges.txt` next to it, or BERT's `vocab.txt`. Default:
    /// `bytes`. Of sentences: `words` (the default) or a WordPiece file.
    pub tokenizer: Option<String>,
    /// Vocabulary size that `bpe` learns, including the 256 bytes; default: 1024. That of `words`; default: 10000.
    pub vocabulary: Option<usize>,
    /// Whether training sequences start at random offsets of the text, different in each epoch, rather than one after
    /// the other. Default: false.
    #[serde(default, skip_serializing_if = "is_unset")]
    pub random_offsets: bool,
    /// Tokenizer of a saved model, which replaces the setting `tokenizer`.
    #[serde(skip)]
    pub known_tokenizer: Option<Arc<Tokenizer>>,
    /// Maximum number of training samples: a sample across all classes for user data, the first ones of published
    /// datasets.
    pub train_samples: Option<u64>,
    /// Maximum number of test samples, chosen like `train_samples`.
    pub test_samples: Option<u64>,
    /// Thread counts and queue sizes of the pipeline's stages, as written by `--freeze` of `data bench` or `train`.
    /// Default: tuned while training.
    pub tuning: Option<Table>,
}

/// The `[compile]` table: loss, metrics and precision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompileSection {
    /// Loss: a name, or a table with `type` and arguments.
    pub loss: Value,
    /// Metrics: names or tables.
    #[serde(default)]
    pub metrics: Vec<Value>,
    /// Metrics weighted by class and sample weights.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weighted_metrics: Vec<Value>,
    /// Numeric precision: one of [`Precision::NAMES`].
    #[serde(default = "float32")]
    pub precision: String,
}

impl CompileSection {
    /// Parses loss and metrics; `output` is the shape of the model's output.
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

/// The `[fit]` table: training length, batch size, validation and logging.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FitSection {
    /// Number of epochs.
    pub epochs: usize,
    /// Samples per step; `"auto"`: the largest batch that fits into memory by the compiler's plan.
    #[serde(
        deserialize_with = "auto_batch_size::auto_or_number",
        serialize_with = "auto_batch_size::written"
    )]
    pub batch_size: usize,
    /// Explanation of an automatically chosen batch size.
    #[serde(skip)]
    pub batch_reason: Option<String>,
    /// Steps per epoch; default: one pass over the data.
    pub steps_per_epoch: Option<usize>,
    /// Number of epochs between validations; the last epoch is always validated. Lightning's name
    /// `check_val_every_n_epoch` is also accepted.
    #[serde(default = "once", alias = "check_val_every_n_epoch")]
    pub validation_freq: usize,
    /// Validate within epochs: after a fraction of the batches (`0.25`), a number of batches (`100`), or a time
    /// (`"00:10:00"`).
    pub val_check_interval: Option<ValCheckInterval>,
    /// Train on only the first batches of each epoch: a number (`10`) or a fraction (`0.1`).
    pub limit_train_batches: Option<Limit>,
    /// Validate on only the first batches of the test data: a number or a fraction; `0` disables validation.
    pub limit_val_batches: Option<Limit>,
    /// Train on the same few batches in every epoch and validate on as many: a model that can learn reaches a loss near
    /// zero.
    pub overfit_batches: Option<Limit>,
    /// Smoke test: one epoch of this many batches and a validation of as many; writes no files.
    pub fast_dev_run: Option<usize>,
    /// Maximum training time, `DD:HH:MM:SS`, summed over all restarts of a run.
    pub max_time: Option<String>,
    /// Check every step before it is applied. On a non-finite value, stop with an error that names the op and the
    /// layer, and write the batch to `anomaly.npz` in the run directory. Doubles the cost of a step.
    #[serde(default, skip_serializing_if = "is_unset")]
    pub detect_anomaly: bool,
    /// Disable callbacks, backups, progress and output files, to benchmark the bare training loop.
    #[serde(default, skip_serializing_if = "is_unset")]
    pub barebones: bool,
    /// Number of batches to validate on before the first step, so that a failing validation is found early.
    pub num_sanity_val_steps: Option<usize>,
    /// Loss weights of the classes: `"balanced"` (weights inversely proportional to the class frequencies), or a table
    /// of classes and weights.
    pub class_weight: Option<Value>,
    /// Value that selects the best model: `loss` or the name of a metric, measured on the test data. Default: the first
    /// metric, otherwise the loss.
    pub monitor: Option<String>,
    /// Whether to show a dashboard while training, if there is a terminal.
    #[serde(default, skip_serializing_if = "is_unset")]
    pub tui: bool,
    /// Whether to write `report.html` into the run directory at the end.
    #[serde(default = "yes", skip_serializing_if = "is_set")]
    pub report: bool,
    /// Logger: `"tensorboard"` (default) or `"none"`.
    pub logger: Option<Logger>,
}

fn remove_nulls(json: &mut serde_json::Value) {
    match json {
        serde_json::Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(remove_nulls);
        }
        serde_json::Value::Array(list) => list.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

/// Returns a value's name without Keras's prefix `val_`.
fn measured(monitor: &str) -> &str {
    monitor.strip_prefix("val_").unwrap_or(monitor)
}

/// Formats a table as inline TOML: `{ threads = 1, ahead = 2 }`.
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

/// Parses a number or fraction: `0.5` or `1/255`.
pub fn fraction(text: &str) -> Result<f64> {
    let number = |s: &str| s.trim().parse::<f64>().ok();
    let value = match text.split_once('/') {
        Some((above, below)) => number(above).zip(number(below)).map(|(a, b)| a / b),
        None => number(text),
    };
    value
        .filter(|v| v.is_finite())
        .ok_or_else(|| err!(Config, "expected a number or a fraction such as 1/255, got `{text}`"))
}

impl RunConfig {
    /// Returns the commented TOML of a preset.
    pub fn preset_text(name: &str) -> Option<String> {
        let text = PRESET_TEXTS[PRESETS.iter().position(|preset| *preset == name)?];
        // Fill in the comments that list available names.
        Some(text.replace("{optimizers}", &optimizer::NAMES.join(", ")))
    }

    /// Parses TOML; `origin` is the file name in messages.
    pub fn parse(text: &str, origin: &str) -> Result<RunConfig> {
        ConfigDraft::parse(text, origin)?.finish().map_err(|r| r.error)
    }

    /// Returns the preset with this name.
    pub fn preset(name: &str) -> Result<RunConfig> {
        ConfigDraft::preset(name)?.finish().map_err(|r| r.error)
    }

    /// Returns the configuration as TOML that parses back, without comments.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string(self)
            .map_err(|e| err!(Bug, "cannot serialize the configuration").because(e.to_string()))
    }

    /// Returns the configuration as JSON, like [`RunConfig::to_toml`] without keys that are not set.
    pub fn to_json(&self) -> serde_json::Result<serde_json::Value> {
        let mut json = serde_json::to_value(self)?;
        remove_nulls(&mut json);
        Ok(json)
    }

    /// Returns [`RunConfig::to_toml`] with the thread counts and queue sizes found at run time.
    pub fn frozen(&self, tuning: &PipelineTuning) -> Result<String> {
        let mut config = self.clone();
        config.data.tuning = tuning.to_string().parse().ok();
        config.to_toml()
    }

    /// Returns an error for the first invalid value.
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
                    let key = format!("{}.{argument}", section.path);
                    let hint = format!("name another file: {key}={:?}", callbacks::inside(file));
                    return Err(KeyError::new(&key, what).hint_setting(hint));
                }
                files.push(path);
            }
        }
        Ok(())
    }

    /// Returns an error if a callback would overwrite one of the run's own files.
    pub fn check_files_of_callbacks(&self, taken: &[&Path]) -> Result<()> {
        for section in self.callback_sections() {
            for (argument, file) in section.callback.files() {
                if let Some(own) = taken.iter().find(|own| own.file_name() == Some(file.as_ref())) {
                    return Err(err!(Config, "`{file}` is a file of the run itself")
                        .at(format!("{}.{argument}", section.path))
                        .because(format!("the run itself writes the file {}", own.display()))
                        .hint_setting(format!(
                            "name another file: {}.{argument}={:?}",
                            section.path,
                            callbacks::inside(file)
                        )));
                }
            }
        }
        Ok(())
    }

    /// Creates the callbacks of a run in `folder`, for a model compiled with `compile`.
    pub fn callbacks(&self, folder: &Path, compile: &Compile) -> Vec<Box<dyn Callback>> {
        let logged = |monitor: &str| {
            let prefix = if monitor.starts_with("val_") { "val_" } else { "" };
            format!("{prefix}{}", self.metric_of(measured(monitor), compile))
        };
        let whole = self.without_folders();
        let mut hparams = Vec::new();
        // Hyperparameters of layers and callbacks would be too many columns.
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

    /// Peak FLOP/s of this computer's CPU for matrix products at the run's precision; unknown for other devices.
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

    /// Returns pairs of requested and logged metric names that differ: `accuracy` maps to one of several metrics.
    pub fn names(&self, compile: &Compile) -> Vec<(String, String)> {
        let logged = compile.metric_names();
        let written = self.compile.metrics.iter().chain(&self.compile.weighted_metrics);
        let all = compile.metrics.iter().chain(&compile.weighted_metrics);
        let each = written.zip(all).zip(logged).filter_map(|((asked, metric), name)| {
            let asked = asked.as_str()?;
            // A model that was compiled elsewhere may have other metrics.
            if asked.parse::<systole_nn::metric::Metric>().is_ok_and(|asked| asked != *metric) {
                return None;
            }
            // The prefix and suffix of a name distinguish it from others.
            let told = name.replace(metric.name(), asked);
            Some((name, told))
        });
        each.filter(|(name, asked)| name != asked).collect()
    }

    /// Returns the configuration as a table, without this machine's paths.
    fn without_folders(&self) -> Table {
        let mut whole = Table::try_from(self).unwrap_or_default();
        if let Some(data) = whole.get_mut("data").and_then(Value::as_table_mut) {
            data.remove("dir");
        }
        whole
    }

    /// Returns the directory of a run's TensorBoard events, if they are written.
    pub fn event_folder(&self, folder: &Path) -> Option<PathBuf> {
        let board = self.running_callbacks().find(|c| c.class == callbacks::LOGGER)?;
        board.callback.files().first().map(|(_, log_dir)| folder.join(log_dir))
    }

    /// Whether TensorBoard events were requested explicitly, rather than by default.
    pub fn asks_for_events(&self) -> bool {
        let is_named = || self.callback_sections().any(|c| c.class == callbacks::LOGGER);
        self.fit.logger.map_or_else(is_named, |logger| logger == Logger::TensorBoard)
    }

    /// Applies `--logger`: adds the logger to the callbacks or removes it.
    pub fn set_logger(&mut self, logger: Logger) {
        let is_named = self.callback_sections().any(|c| c.class == callbacks::LOGGER);
        match logger {
            Logger::TensorBoard if !is_named => self.callbacks.push(callbacks::logger_table()),
            Logger::TensorBoard => {}
            Logger::None => *self = self.without_loggers(),
        }
        self.fit.logger = Some(logger).filter(|logger| *logger == Logger::None);
    }

    /// Returns the configuration without loggers, to compare runs: the logger does not change the result.
    pub fn without_loggers(&self) -> RunConfig {
        let mut config = self.clone();
        config.fit.logger = None;
        let is_logger =
            |c: &Table| c.get("type").and_then(Value::as_str).and_then(class_of) == Some(callbacks::LOGGER);
        config.callbacks.retain(|callback| !is_logger(callback));
        config
    }

    /// Whether a callback restores the weights of the best epoch at the end.
    pub fn restores_weights(&self) -> bool {
        let stops = self.callback_sections().map(|c| c.class == "EarlyStopping");
        let restores =
            self.callbacks.iter().map(|c| c.get("restore_best_weights") == Some(&Value::Boolean(true)));
        stops.zip(restores).any(|(stops, restores)| stops && restores)
    }

    /// Returns the configured callbacks and the default logger.
    fn running_callbacks(&self) -> impl Iterator<Item = callbacks::CallbackSection> {
        let is_logger = |c: &callbacks::CallbackSection| c.class == callbacks::LOGGER;
        let is_wanted = self.fit.logger != Some(Logger::None);
        let is_missing = is_wanted && !self.callback_sections().any(|c| is_logger(&c));
        let default =
            is_missing.then(|| callbacks::section(self.callbacks.len(), &callbacks::logger_table()).ok());
        self.callback_sections().filter(move |c| is_wanted || !is_logger(c)).chain(default.flatten())
    }

    /// Parses the callback tables, which were checked when the configuration was read.
    fn callback_sections(&self) -> impl Iterator<Item = callbacks::CallbackSection> {
        self.callbacks.iter().enumerate().filter_map(|(i, table)| callbacks::section(i, table).ok())
    }

    /// Returns the logged name of a metric: `accuracy` maps to one of several metrics, depending on the model's output.
    fn metric_of(&self, asked: &str, compile: &Compile) -> String {
        let known = self.names(compile).into_iter().find(|(_, told)| told == asked);
        known.map_or(asked.into(), |(name, _)| name)
    }

    /// Returns an error if the monitored value is not measured.
    fn check_monitor(&self, path: &str, monitor: &str, compile: &Compile) -> Result<(), KeyError> {
        let (logged, told) = (compile.metric_names(), self.names(compile));
        let told = told.iter().map(|(_, told)| told.as_str());
        let mut known: Vec<&str> = ["loss"].into_iter().chain(told).collect();
        known.extend(logged.iter().map(String::as_str));
        if known.contains(&measured(monitor)) {
            return Ok(());
        }
        // Suggest names in the form that was used.
        let prefix = if monitor.starts_with("val_") { "val_" } else { "" };
        let known: Vec<String> = known.iter().map(|name| format!("{prefix}{name}")).collect();
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        Err(KeyError::of(path, key_error::unknown("unknown metric", monitor, &known)))
    }

    /// Returns the validation value that selects the best model.
    pub fn monitor(&self, compile: &Compile) -> String {
        let asked = self.fit.monitor.as_deref().map(measured);
        let name = match asked {
            None => compile.metric_names().into_iter().next().unwrap_or_else(|| "loss".into()),
            Some(asked) => self.metric_of(asked, compile),
        };
        format!("val_{name}")
    }

    /// Returns the distribution strategy.
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
            let what = format!("unknown dataset `{}`", self.dataset);
            return Err(KeyError::new("data.dataset", what).hint_setting(
                "name the folder of your own files with data.dir, and their type here: records (tables too), \
                folder (images), text (language models) or sentences (texts to classify)",
            ));
        }
        if !DATASETS.contains(&self.dataset.as_str()) {
            return Err(KeyError::of(
                "data.dataset",
                key_error::unknown("unknown dataset", &self.dataset, &DATASETS),
            ));
        }
        if let Some(mode) = self.synthetic.as_deref().filter(|mode| !SYNTHETIC.contains(mode)) {
            let e = key_error::unknown("unknown value", mode, &SYNTHETIC);
            return Err(KeyError::of("data.synthetic", e));
        }
        // Pixels are bytes: a factor above 1 is a divisor by mistake.
        if !(self.scale > 0.0 && self.scale <= 1.0) {
            let what = format!("invalid pixel scale {}", self.scale);
            return Err(KeyError::new("data.scale", what).hint_setting(
                "choose a factor above 0 and up to 1: \"1/255\" scales pixels to 0..1, 1 leaves them unchanged",
            ));
        }
        let sides = self.image_size.map(|[h, w]| h.min(w) as u64);
        at_least_one("data.image_size", sides)?;
        self.resizing().check().map_err(|e| KeyError::of("data.resize", e))?;
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
                key_error::unknown("unknown color mode", mode, &known),
            ));
        }
        for (key, share, most) in [
            ("data.validation_split", self.validation_split, 0.9),
            ("data.unreadable_quota", self.unreadable_quota, 1.0),
            ("data.background", self.background, 1.0),
        ] {
            if let Some(share) = share.filter(|s| !(0.0..=most).contains(s)) {
                let what = format!("expected a fraction from 0 to {most}, got {share}");
                return Err(
                    KeyError::new(key, what).hint_setting(format!("choose a number from 0 to {most}"))
                );
            }
        }
        let is_grey = self.channels() != 3 || GREY.contains(&self.dataset.as_str());
        augment::changes(&self.augment, !is_grey)?;
        self.sizes().map(drop).map_err(|e| KeyError::of("data.tuning", e))
    }

    /// Returns the fixed thread counts and queue sizes, if set.
    fn sizes(&self) -> Result<Option<PipelineTuning>> {
        let line = |(stage, size): (&String, &Value)| format!("{stage:?} = {}", inline(size));
        let lines = self.tuning.as_ref().map(|t| t.iter().map(line).collect::<Vec<_>>().join("\n"));
        lines.map(|text| text.parse()).transpose()
    }
}

impl DataSection {
    /// Number of channels of a folder's images.
    fn channels(&self) -> usize {
        let mode = self.color_mode.as_deref().unwrap_or("rgb");
        COLOR_MODES.iter().find(|(n, _)| *n == mode).map_or(3, |(_, channels)| *channels)
    }

    /// How images are resized to the model's input.
    pub fn resizing(&self) -> ImageResizing {
        self.resize.unwrap_or_default()
    }

    /// Whether the dataset is the user's own, so that presets cannot know its classes and files.
    pub fn is_own(&self) -> bool {
        ["folder", "records", "sentences"].contains(&self.kind())
    }

    /// Returns the dataset by which the files are read: `folder` for `flowers`, `sentences` for `imdb`, otherwise its own
    /// name.
    pub fn kind(&self) -> &str {
        match self.dataset.as_str() {
            "flowers" => "folder",
            "imdb" => "sentences",
            other => other,
        }
    }

    /// Whether the dataset is one of a catalog whose files are the user's own otherwise: `flowers`, `imdb`.
    pub fn is_published_folder(&self) -> bool {
        self.kind() != self.dataset
    }

    /// Returns `data.synthetic` or its default.
    pub fn synthetic(&self) -> &str {
        self.synthetic.as_deref().unwrap_or(SYNTHETIC[0])
    }

    /// Returns the sequence length of text samples in tokens.
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
        Some(0) => Err(KeyError::new(path, format!("`{name}` is 0"))
            .hint_setting(format!("choose a {name} of at least 1"))),
        _ => Ok(()),
    }
}

// Names of the previous version.
systole_base::renamed! { Config => RunConfig, Data => DataSection, Draft => ConfigDraft, LaunchPlace => LaunchTarget, Method => SweepMethod, Refused => ConfigError, TestTime => TestTimeAugmentation }

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::ErrorKind;
    use systole_testing::assert_error;

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
    fn missing_sections_are_named_together() {
        let e = ConfigDraft::parse("layers = []\n[data]\ndataset = \"glyphs\"\n[compile]\n", "my.toml")
            .unwrap_err();
        systole_testing::assert_error(&e, ErrorKind::Config, &["`optimizer`", "`fit`", "my.toml"]);
    }

    #[test]
    fn mistakes_in_a_file_are_told_with_line_and_nearest_key() {
        let preset = RunConfig::preset_text("fashion-mnist").unwrap();
        let line = |needle: &str| preset.lines().position(|l| l.starts_with(needle)).unwrap() + 1;
        let cases = [
            ("epochs = 5", "epoch = 5", line("epochs"), "`epochs`"),
            ("epochs = 5", "epochs = 0", line("epochs"), "`epochs` is 0"),
            ("epochs = 5", "epochs = \"five\"", line("epochs"), "invalid type"),
            ("[compile]", "[compiel]", line("[compile]"), "`compile`"),
            ("filters = 64", "filtres = 64", line("filters"), "`filters`"),
            ("type = \"Flatten\"", "type = \"Flaten\"", line("type = \"Flatten\""), "`Flatten`"),
            ("padding = \"valid\"", "padding = \"vald\"", line("padding"), "`valid`"),
            ("type = \"adam\"", "type = \"adm\"", line("type = \"adam\""), "`adam`"),
            ("learning_rate = 0.001", "learning_rate = -1.0", line("learning_rate"), "must be above 0"),
            ("learning_rate", "lerning_rate", line("learning_rate"), "`learning_rate`"),
            ("\"float32\"", "\"float23\"", line("precision"), "float32"),
            ("scale = 1 ", "scale = 255 ", line("scale"), "1/255"),
            ("dataset = \"fashion-mnist\"", "dataset = \"fashion-mnst\"", line("dataset"), "`fashion-mnist`"),
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
        let wrong = |from: &str, to: &str| with_structure(&RESIDUAL.replacen(from, to, 1)).unwrap_err();
        let e = wrong("\"input\", \"c1\"", "\"input\", \"c2\"");
        assert_error(&e, ErrorKind::Config, &["my.toml, line", "`c1`"]);
        let e = wrong("inputs = [\"input\", \"c1\"]", "inputs = [\"input\", \"input\"]");
        assert_error(&e, ErrorKind::Config, &["my.toml, line 19", "`inputs`"]);
        let e = wrong("inputs = [\"input\", \"c1\"]", "inputs = []");
        assert_error(&e, ErrorKind::Config, &["my.toml, line"]);
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
        assert!(e.contains("my.toml, line") && e.contains("`units`"), "{e}");
        assert!(wrong("trainable = false", "frozen = true").contains("`frozen`"));
        assert!(wrong("layers = [", "layers = 3 # [").contains("requires a list of layers"));
    }

    #[test]
    fn an_application_takes_its_arguments() {
        let small = "[model]\napplication = \"resnet50\"\nclasses = 10\ndepths = [1, 1]\nwidth = 4";
        let config = with_structure(small).unwrap();
        assert_eq!(RunConfig::parse(&config.to_toml().unwrap(), "again").unwrap(), config);
        assert_eq!(config.untrained().unwrap().output_type().unwrap().shape.dims(), [10]);
        // Arguments that are valid only together, in any order.
        let patches = "[model]\napplication = \"vitb16\"\nimage_size = 28\npatch_size = 7";
        assert!(with_structure(patches).is_ok());
        let e = with_structure(&patches.replace('7', "5")).unwrap_err().to_string();
        assert!(e.contains("patch_size") && e.contains("image_size") && e.contains("28"), "{e}");
        let e = with_structure(&small.replace("width", "wdth")).unwrap_err().to_string();
        assert!(e.contains("my.toml, line") && e.contains("`width`"), "{e}");
        let e = with_structure(&small.replace("resnet50", "resnet51")).unwrap_err().to_string();
        assert!(e.contains("`resnet50`"), "{e}");
        let e = with_structure(&format!("{small}\n{RESIDUAL}")).unwrap_err().to_string();
        assert!(e.contains("[model]") && e.contains("[[layers]]"), "{e}");
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
            (r#"{ type = "auc", cruve = "PR" }"#, "`curve`"),
            (r#""mean_iou""#, "set num_classes"),
            (r#""f1_scor""#, "`f1_score`"),
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
