//! Saves and loads models; validates model files when reading.

use crate::applications::biggan::{self, BigGan};
use crate::checkpoint::backup::METRICS;
use crate::json::{Deserialize, Serialize};
use crate::layer::Precision;
use crate::layer::adapter::is_adapter;
use crate::layer::quantized_weight::NUMBERS;
use crate::layers::CustomObjects;
use crate::loss::Loss;
use crate::metric::Metric;
use crate::model::architecture::Architecture;
use crate::model::compile::Compile;
use crate::model::model_file::ModelFile;
use crate::model::quantize_options::Quantize;
use crate::model::sparsity::MASK;
use crate::model::train_step::TrainStep;
use crate::model::{Model, infer_specs};
use crate::optimizer::Optimizer;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use systole_ir::{Error, Literal, Result, ResultExt, ensure, err};
use systole_runtime::Buffer;

const WEIGHTS: &str = "weights/";
const OPTIMIZER: &str = "optimizer/";

/// Training metadata of a model file, next to the architecture.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TrainingMetadata {
    step: u64,
    epoch: usize,
    seed: u64,
    compile: Option<CompileConfig>,
    #[serde(default)]
    class_names: Vec<String>,
    #[serde(default)]
    notes: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, skip_serializing_none)]
struct CompileConfig {
    optimizer: Optimizer,
    loss: Loss,
    metrics: Vec<Metric>,
    weighted_metrics: Vec<Metric>,
    precision: Precision,
    seed: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    losses: BTreeMap<String, Loss>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    loss_weights: BTreeMap<String, f64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    output_metrics: BTreeMap<String, Vec<Metric>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    output_weighted_metrics: BTreeMap<String, Vec<Metric>>,
    /// Name of a custom training step.
    train_step: Option<String>,
    /// Configuration of a built-in training step.
    train_step_config: Option<serde_json::Value>,
    /// Quantization-aware training options of the layers.
    quantize: Option<Quantize>,
}

/// Creates a built-in training step from a model file.
fn built_in_step(name: &str, config: Option<&serde_json::Value>) -> Result<Option<Arc<dyn TrainStep>>> {
    let Some(config) = config.filter(|_| name == biggan::NAME) else { return Ok(None) };
    let read: BigGan = serde_json::from_value(config.clone())
        .map_err(|e| err!(Data, "cannot read the model's training step `{name}`").because(e.to_string()))?;
    read.check()?;
    Ok(Some(Arc::new(read)))
}

impl CompileConfig {
    fn of(c: &Compile) -> CompileConfig {
        CompileConfig {
            optimizer: c.optimizer.clone(),
            loss: c.loss.clone(),
            metrics: c.metrics.clone(),
            weighted_metrics: c.weighted_metrics.clone(),
            precision: c.precision,
            seed: c.seed,
            losses: c.losses.clone(),
            loss_weights: c.loss_weights.clone(),
            output_metrics: c.output_metrics.clone(),
            output_weighted_metrics: c.output_weighted_metrics.clone(),
            train_step: c.train_step.as_ref().map(|step| step.name().to_string()),
            train_step_config: c.train_step.as_ref().and_then(|step| step.config()),
            quantize: c.quantize.clone(),
        }
    }

    /// Resolves custom losses and metrics with those of the program that reads the file.
    fn known_to(self, custom: &CustomObjects) -> Result<CompileConfig> {
        let all = |metrics: Vec<Metric>| metrics.into_iter().map(|m| custom.known_metric(m)).collect();
        let by_name = |outputs: BTreeMap<String, Vec<Metric>>| -> Result<BTreeMap<String, Vec<Metric>>> {
            outputs.into_iter().map(|(name, metrics)| Ok((name, all(metrics)?))).collect()
        };
        let (metrics, weighted_metrics): (Result<_>, Result<_>) =
            (all(self.metrics), all(self.weighted_metrics));
        let output_metrics = by_name(self.output_metrics)?;
        let output_weighted_metrics = by_name(self.output_weighted_metrics)?;
        let loss = custom.known_loss(self.loss)?;
        let losses = self.losses.into_iter().map(|(name, loss)| Ok((name, custom.known_loss(loss)?)));
        let losses = losses.collect::<Result<_>>()?;
        let built_in = self.train_step.as_ref();
        let built_in =
            built_in.map(|name| built_in_step(name, self.train_step_config.as_ref())).transpose()?;
        if let (Some(name), Some(None)) = (&self.train_step, &built_in) {
            return Err(err!(Config, "unknown custom training step `{name}`")
                .because("a model file stores the name of a custom training step, not its code")
                .hint(
                    "load the model with CustomObjects::new().uncompiled() and compile it with the step; a run \
                    resumes from its backups",
                ));
        }
        Ok(CompileConfig {
            loss,
            losses,
            metrics: metrics?,
            weighted_metrics: weighted_metrics?,
            output_metrics,
            output_weighted_metrics,
            ..self
        })
    }

    fn into_compile(self) -> Compile {
        Compile {
            optimizer: self.optimizer,
            loss: self.loss,
            metrics: self.metrics,
            weighted_metrics: self.weighted_metrics,
            precision: self.precision,
            seed: self.seed,
            losses: self.losses,
            loss_weights: self.loss_weights,
            output_metrics: self.output_metrics,
            output_weighted_metrics: self.output_weighted_metrics,
            // Checked when the file was read.
            train_step: self
                .train_step
                .and_then(|name| built_in_step(&name, self.train_step_config.as_ref()).ok().flatten()),
            quantize: self.quantize,
            ..Compile::default()
        }
    }
}

/// Returns the key that earlier versions used for a weighted metric with the same name as a plain one.
fn earlier_name(name: &str) -> Option<String> {
    let (metric, slot) = name.strip_prefix("weighted_")?.split_once('/')?;
    Some(format!("{metric}_1/{slot}"))
}

impl Model {
    /// Writes architecture, weights, optimizer state and step to one `.safetensors` file, atomically: an existing file
    /// is replaced only once the new one is complete. With several hosts every host calls it, and host 0 writes.
    ///
    /// # Errors
    /// If the model has no weights yet, or the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let file = self.to_file()?;
        if self.leads() { file.save(path.as_ref()) } else { Ok(()) }
    }

    /// Returns the content that [`Model::save`] writes: adapters are merged into their kernels
    /// ([`Model::enable_lora`]). A collective operation if the state is sharded over several hosts.
    pub fn to_file(&self) -> Result<ModelFile> {
        if !self.has_adapters() {
            let plain = |name: &str| !name.starts_with(MASK);
            return self.file_of(&self.architecture, &BTreeMap::new(), plain);
        }
        // The optimizer's state belongs to adapters, which are not in the file.
        let merged = self.merged_kernels()?;
        let mut file = self.file_of(&self.plain_architecture(), &BTreeMap::new(), |_| false)?;
        for (name, value) in std::mem::take(&mut file.tensors) {
            let path = name.strip_prefix(WEIGHTS).unwrap_or(&name);
            if is_adapter(path) || self.is_of_packed(path) && !path.ends_with(NUMBERS) {
                continue;
            }
            let plain = if self.is_of_packed(path) { path.trim_end_matches(NUMBERS) } else { path };
            let value = merged.get(plain).map_or(Ok(value), Buffer::to_literal)?;
            file.tensors.push((format!("{WEIGHTS}{plain}"), value));
        }
        Ok(file)
    }

    /// Returns the model as it trains, with adapters and pruning masks.
    pub(crate) fn to_backup(&self) -> Result<ModelFile> {
        self.file_of(&self.architecture, &BTreeMap::new(), |_| true)
    }

    /// Builds a file with the given weights in place of the model's own, and the given slots.
    fn file_of(
        &self,
        architecture: &Architecture,
        others: &BTreeMap<String, Literal>,
        keeps: impl Fn(&str) -> bool,
    ) -> Result<ModelFile> {
        if !self.is_built() {
            return Err(err!(Config, "the model has no weights to save")
                .hint("fit, evaluate or build the model first"));
        }
        let mut tensors = Vec::new();
        for (path, value) in self.weights() {
            let value = others.get(path).cloned().map_or_else(|| self.whole(value), Ok)?;
            tensors.push((format!("{WEIGHTS}{path}"), value));
        }
        for (name, value) in self.state.optimizer.iter().filter(|(name, _)| keeps(name)) {
            tensors.push((format!("{OPTIMIZER}{name}"), self.whole(value)?));
        }
        let training = TrainingMetadata {
            step: self.step,
            epoch: self.epoch,
            seed: self.seed,
            compile: self.compile_config().map(CompileConfig::of),
            class_names: self.class_names.clone(),
            notes: self.notes.clone(),
        };
        let json = |v: std::result::Result<String, serde_json::Error>| {
            v.map_err(|e| err!(Bug, "cannot serialize the model's metadata").because(e.to_string()))
        };
        let metadata = BTreeMap::from([
            ("architecture".to_string(), json(serde_json::to_string(&architecture.to_json()))?),
            ("training".to_string(), json(serde_json::to_string(&training))?),
        ]);
        Ok(ModelFile { tensors, metadata })
    }

    /// Returns what must be equal on every host that trains this model.
    pub(crate) fn common(&self) -> Result<Vec<(&'static str, String)>> {
        let compiled = self.compiled()?;
        let training = serde_json::to_string(&CompileConfig::of(&compiled.config))
            .map_err(|e| err!(Bug, "cannot serialize the model's metadata").because(e.to_string()))?;
        Ok(vec![
            ("the layers", self.architecture.to_json().to_string()),
            ("optimizer, loss, metrics, precision or seed", training),
            ("the strategy", compiled.config.strategy.to_string()),
            ("the initial weights", self.digest_of_weights()),
        ])
    }

    /// Loads a model of built-in layers, compiled as it was saved. Never executes code from the file.
    ///
    /// # Errors
    /// Names the problem: a length, a checksum, a missing weight, an unknown layer.
    pub fn load(path: impl AsRef<Path>) -> Result<Model> {
        Model::load_with(path, &CustomObjects::default())
    }

    /// Loads a model with custom layers, a custom loss or custom metrics from `custom`.
    pub fn load_with(path: impl AsRef<Path>, custom: &CustomObjects) -> Result<Model> {
        let path = path.as_ref();
        Model::from_file(ModelFile::load(path)?, custom).at(|| path.display().to_string())
    }

    /// Loads a model of built-in layers for prediction: like [`Model::load`], but uncompiled if the file names a custom
    /// loss or metric.
    pub fn load_to_predict(path: impl AsRef<Path>) -> Result<Model> {
        let path = path.as_ref();
        Model::load(path)
            .or_else(|e| Model::load_with(path, &CustomObjects::new().uncompiled()).map_err(|_| e))
    }

    /// Creates a model from the content of a model file.
    pub fn from_file(file: ModelFile, custom: &CustomObjects) -> Result<Model> {
        let (file, packed) = file.split_packed()?;
        let architecture: Value = parse(&file, "architecture")?;
        let training: TrainingMetadata = parse(&file, "training")?;
        let architecture = Architecture::from_json(&architecture, custom)?;
        let precision = training.compile.as_ref().map_or(Precision::Float32, |c| c.precision);
        let mut weights: BTreeMap<String, Buffer> =
            packed.into_iter().map(|(path, held)| (path, held.buffer())).collect();
        let mut slots = Vec::new();
        for (name, value) in file.tensors {
            if let Some(path) = name.strip_prefix(WEIGHTS) {
                weights.insert(path.to_string(), value.into());
            } else if let Some(slot) = name.strip_prefix(OPTIMIZER).filter(|slot| !slot.starts_with(MASK)) {
                // Masks belong to a pruning run; the weights contain the zeros.
                slots.push((slot.to_string(), value));
            }
        }
        let mut model = Model::new(architecture);
        match training.compile {
            Some(config) if !custom.leaves_uncompiled() => {
                model.compile(config.known_to(custom)?.into_compile())?
            }
            // The remaining slots are the optimizer's.
            _ => slots.clear(),
        }
        model.seed = training.seed;
        model.adopt_file_weights(weights, precision)?;
        model.adopt_slots(slots)?;
        model.step = training.step;
        model.epoch = training.epoch;
        model.class_names = training.class_names;
        model.notes = training.notes;
        Ok(model)
    }

    fn adopt_file_weights(
        &mut self,
        mut weights: BTreeMap<String, Buffer>,
        precision: Precision,
    ) -> Result<()> {
        self.architecture.check()?;
        self.build_shapes(precision)?;
        let specs = infer_specs(&self.architecture, precision)?;
        self.adopt(specs, |spec, _| {
            let value = weights.remove(&spec.path).ok_or_else(|| {
                err!(Data, "weight `{}` is missing from the file", spec.path)
                    .because("the architecture in the file requires the weight")
            })?;
            if value.ty().shape.dims() != spec.shape || value.ty().dtype != spec.dtype {
                return Err(err!(
                    Data,
                    "weight {} is {}, but the architecture requires {}{:?}",
                    spec.path,
                    value.ty(),
                    spec.dtype,
                    spec.shape
                ));
            }
            Ok(value)
        })?;
        match weights.keys().next() {
            Some(extra) => Err(err!(Data, "the file has an unused weight {extra}")),
            None => Ok(()),
        }
    }

    /// Restores a backup of the same model: weights, optimizer state, learning rate, metrics in progress and step.
    /// With `is_longer`, a finished run goes on: schedules over the whole run take the length that `fit` has set; returns
    /// a note if it differs from the backup's.
    ///
    /// # Errors
    /// If the backup is of another model, or of one that was compiled differently; names the difference.
    pub(crate) fn restore(&mut self, file: ModelFile, is_longer: bool) -> Result<Option<String>> {
        let architecture: Value = parse(&file, "architecture")?;
        let training: TrainingMetadata = parse(&file, "training")?;
        ensure!(architecture == self.architecture.to_json(), of_another("layers"));
        let (had, has) = (&training.class_names, &self.class_names);
        if had != has && !had.is_empty() && !has.is_empty() {
            return Err(of_another("class names").because(format!(
                "the class names are {} in the backup, {} in this run",
                had.join(", "),
                has.join(", ")
            )));
        }
        let longer_from = is_longer.then_some(training.step);
        let (precision, note) = self.same_training(training.compile, training.seed, longer_from)?;
        let (mut weights, mut slots, mut metrics) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        for (name, value) in file.tensors {
            if let Some(path) = name.strip_prefix(WEIGHTS) {
                weights.insert(path.to_string(), Buffer::from(value));
            } else if let Some(slot) = name.strip_prefix(OPTIMIZER) {
                slots.push((slot.to_string(), value));
            } else if let Some(metric) = name.strip_prefix(METRICS) {
                metrics.insert(metric.to_string(), value);
            }
        }
        self.adopt_file_weights(weights, precision)?;
        self.adopt_slots(slots)?;
        let mut state = self.compiled()?.train.metrics.zeros(&self.output_shapes());
        for (name, zero) in state.clone().iter() {
            let value = metrics.remove(name).or_else(|| metrics.remove(&earlier_name(name)?));
            let value = value.filter(|v| v.ty() == zero.ty());
            state.insert(name, value.ok_or_else(|| of_another("metrics"))?.into());
        }
        self.state.metrics = state;
        (self.step, self.epoch) = (training.step, training.epoch);
        Ok(note)
    }

    /// Checks that a run was compiled as this model is, and restores its learning rate, which callbacks may have
    /// changed. `longer_from`: next step of a finished run that is made longer; returns a note if that changes its
    /// schedules.
    fn same_training(
        &mut self,
        was: Option<CompileConfig>,
        seed: u64,
        longer_from: Option<u64>,
    ) -> Result<(Precision, Option<String>)> {
        let was = was.ok_or_else(|| of_another("training"))?;
        let (own_step, own_config) = (was.train_step.clone(), was.train_step_config.clone());
        let was = was.into_compile();
        let initial_seed = self.seed;
        let compiled = self.compiled.as_mut().ok_or_else(|| of_another("training"))?;
        let now = &mut compiled.config;
        let mut optimizer = now.optimizer.clone();
        optimizer.take_schedules(&was.optimizer);
        let differs = [
            ("optimizer", optimizer != was.optimizer),
            ("step", now.train_step.as_ref().map(|step| step.name()) != own_step.as_deref()),
            ("options", now.train_step.as_ref().and_then(|step| step.config()) != own_config),
            (
                "loss",
                (&now.loss, &now.losses, &now.loss_weights) != (&was.loss, &was.losses, &was.loss_weights),
            ),
            ("metrics", !have_same_metrics(now, &was)),
            ("precision", now.precision != was.precision),
            ("seed", now.seed != was.seed || initial_seed != seed),
        ];
        if let Some((what, _)) = differs.into_iter().find(|(_, differs)| *differs) {
            return Err(of_another(what));
        }
        let note = longer_from.and_then(|step| optimizer.take_lengths(&now.optimizer, step));
        now.optimizer = optimizer;
        Ok((was.precision, note))
    }

    /// Restores optimizer slots, which must match the optimizer's exactly.
    fn adopt_slots(&mut self, slots: Vec<(String, Literal)>) -> Result<()> {
        if slots.is_empty() {
            return Ok(());
        }
        let expected = self.compiled()?.train.optimizer_state(&self.state.trainable)?;
        let mut found: BTreeMap<String, Literal> = slots.into_iter().collect();
        let mut state = systole_runtime::Params::new();
        for (name, zero) in expected.iter() {
            let value = found.remove(name).filter(|v| v.ty() == zero.ty()).ok_or_else(|| {
                err!(Data, "optimizer state {name} is missing or does not have type {}", zero.ty())
            })?;
            state.insert(name, value.into());
        }
        if let Some(extra) = found.keys().next() {
            return Err(err!(Data, "the file has unused optimizer state {extra}"));
        }
        self.state.optimizer = state;
        Ok(())
    }
}

/// Whether two configurations have the same metrics, of all outputs and of each.
fn have_same_metrics(a: &Compile, b: &Compile) -> bool {
    let of_all = (&a.metrics, &a.weighted_metrics) == (&b.metrics, &b.weighted_metrics);
    let of_outputs = a.output_metrics == b.output_metrics;
    of_all && of_outputs && a.output_weighted_metrics == b.output_weighted_metrics
}

fn of_another(what: &str) -> Error {
    err!(Config, "the backup is of another run")
        .because(format!("the backup's {what} differ from those of this model"))
        .hint("train the model that the folder was used for, or choose another folder")
}

fn parse<T: for<'a> Deserialize<'a>>(file: &ModelFile, key: &str) -> Result<T> {
    let text = file.metadata.get(key).ok_or_else(|| {
        err!(Data, "the file has no `{key}` entry in its metadata")
            .because("the file was not written by Systole, or by a version that is too old")
            .hint("train and save the model with this Systole version")
    })?;
    serde_json::from_str(text)
        .map_err(|e| err!(Data, "cannot read the `{key}` entry of the metadata").because(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::dense;
    use crate::loss::mean_squared_error;
    use crate::metric::{mean, r2_score};
    use crate::optimizer::sgd;
    use systole_ir::ErrorKind;
    use systole_ir::{DType, TensorType};

    /// A configuration in which every stored field differs from its default.
    fn every_field() -> Compile {
        Compile {
            optimizer: sgd(0.25),
            loss: mean_squared_error(),
            metrics: vec![mean("prediction")],
            weighted_metrics: vec![r2_score()],
            precision: Precision::MixedBfloat16,
            seed: 9,
            losses: [("size".to_string(), mean_squared_error())].into(),
            loss_weights: [("size".to_string(), 0.5)].into(),
            output_metrics: [("size".to_string(), vec![r2_score()])].into(),
            output_weighted_metrics: [("size".to_string(), vec![mean("size")])].into(),
            train_step: Some(Arc::new(BigGan { dim_z: 12, ..BigGan::default() })),
            quantize: Some(Quantize { freeze_bn_delay: Some(3), ..Quantize::default() }),
            ..Compile::default()
        }
    }

    #[test]
    fn a_stored_configuration_compiles_to_itself() {
        let text = |c: &Compile| serde_json::to_value(CompileConfig::of(c)).unwrap();
        let (stored, plain) = (text(&every_field()), text(&Compile::default()));
        for (key, value) in stored.as_object().unwrap() {
            assert_ne!(Some(value), plain.get(key), "`{key}` must differ from the default");
        }
        let read: CompileConfig = serde_json::from_value(stored.clone()).unwrap();
        assert_eq!(text(&read.into_compile()), stored);
        let read: CompileConfig = serde_json::from_value(stored.clone()).unwrap();
        let known = read.known_to(&CustomObjects::default()).unwrap();
        assert_eq!(serde_json::to_value(known).unwrap(), stored);
    }

    #[test]
    fn metrics_are_the_same_only_if_all_four_lists_are() {
        let all = every_field();
        assert!(have_same_metrics(&all, &all.clone()));
        let others: [fn(&mut Compile); 4] = [
            |c| c.metrics.clear(),
            |c| c.weighted_metrics.clear(),
            |c| c.output_metrics.clear(),
            |c| c.output_weighted_metrics.clear(),
        ];
        for (k, change) in others.into_iter().enumerate() {
            let mut other = all.clone();
            change(&mut other);
            assert!(!have_same_metrics(&all, &other) && !have_same_metrics(&other, &all), "list {k}");
        }
    }

    #[test]
    fn weighted_metrics_of_earlier_versions_had_a_number() {
        assert_eq!(earlier_name("weighted_accuracy/total").as_deref(), Some("accuracy_1/total"));
        assert_eq!(earlier_name("accuracy/total"), None);
        assert_eq!(earlier_name("weighted_accuracy"), None);
    }

    fn built(config: Compile) -> Model {
        let mut model = Model::sequential([dense(2)]);
        model.compile(config).unwrap();
        model.build(&[TensorType::new(DType::F32, [3])]).unwrap();
        model
    }

    #[test]
    fn hosts_compare_layers_configuration_strategy_and_weights() {
        let config = || Compile { optimizer: sgd(0.1), loss: mean_squared_error(), ..Compile::default() };
        let own = built(config()).common().unwrap();
        assert_eq!(own, built(config()).common().unwrap());
        let differing = |other: Vec<(&'static str, String)>| -> Vec<usize> {
            assert_eq!(other.len(), own.len());
            (0..own.len()).filter(|&k| own[k] != other[k]).collect()
        };
        assert_eq!(own.len(), 4);
        assert_eq!(own[0].1, built(config()).architecture.to_json().to_string());
        assert_eq!(differing(built(Compile { optimizer: sgd(0.2), ..config() }).common().unwrap()), [1]);
        // The seed is part of the configuration and of the initial weights.
        assert_eq!(differing(built(Compile { seed: 1, ..config() }).common().unwrap()), [1, 3]);
    }

    #[test]
    fn a_weight_of_another_shape_or_type_is_refused_by_name() {
        let config = Compile { loss: mean_squared_error(), ..Compile::default() };
        let file = built(config).to_file().unwrap();
        assert!(Model::from_file(file.clone(), &CustomObjects::default()).is_ok());
        let kernel = file.tensors.iter().position(|(name, _)| name == "weights/dense/kernel").unwrap();
        let values = file.tensors[kernel].1.clone();
        let turned = Literal::from_slice([2, 3], &values.to_f32s()).unwrap();
        for wrong in [turned, values.convert(DType::F16)] {
            let mut file = file.clone();
            file.tensors[kernel].1 = wrong;
            let e = Model::from_file(file, &CustomObjects::default()).err().unwrap();
            assert_eq!(e.kind(), ErrorKind::Data);
            assert!(e.to_string().contains("dense/kernel"), "{e}");
        }
    }
}
