//! Builds datasets, input pipelines and models from a checked configuration.

use super::pixel_scale::{self, scale_pixels, shown_scale};
use super::{RunConfig, augment, model_sections};
use std::sync::Arc;
use systole_base::rng::RandomStream;
use systole_data::{AUTOTUNE, BatchShare, Dataset, DatasetOptions, Sample, ShuffleOptions};
use systole_datasets::{
    self as datasets, DataDir, FolderOptions, RecordShape, TextOptions, TrainingData, numbered, unnumbered,
};
use systole_ir::{DType, Result, TensorType, err};
use systole_nn::loss::Loss;
use systole_nn::{Architecture, Compile, Model, TrainStep};

/// Height and width of the images of a folder if `image_size` is not set.
const FOLDER_SIZE: [usize; 2] = [64, 64];
/// Fraction of the user's own data that is held out for testing if `validation_split` is not set.
pub(crate) const VALIDATION_SPLIT: f64 = 0.2;

impl RunConfig {
    /// Loads, downloads or generates the dataset. `customise` may configure the data directory, such as its progress
    /// callback.
    pub fn load_data(&self, customise: impl FnOnce(DataDir) -> DataDir) -> Result<TrainingData> {
        let mut data = self.find_data(customise)?;
        let is_large = data
            .streamed
            .as_ref()
            .is_some_and(|s| !s.is_small && data.train.cardinality().finite().is_none());
        if let Some(n) = self.data.train_samples.filter(|n| is_large && *n < data.train_len as u64) {
            data.notes.push(format!("data.train_samples: the first {n} records in file order"));
        }
        if self.data.kind() == "folder" && self.data.image_size.is_none() {
            let [height, width] = FOLDER_SIZE;
            data.notes
                .push(format!("the images become {height} × {width} pixels: data.image_size is not set"));
        }
        Ok(data)
    }

    /// Returns notes about keys of `[data]` that are set but do not apply to this data.
    pub fn unused_data_keys(&self, data: &TrainingData) -> Vec<String> {
        let of = &self.data;
        let (pictures, own) = (data.is_pictures(), of.is_own());
        let texts = ["text", "sentences"].contains(&of.kind());
        let split = of.validation_split.filter(|part| *part != VALIDATION_SPLIT && *part < 1.0);
        let keys = [
            ("augment", !of.augment.is_empty() && !pictures, "images"),
            ("image_size", of.image_size.is_some() && !pictures, "images"),
            ("scale", of.scale != 1.0 && !pictures, "images"),
            ("color_mode", of.color_mode.is_some() && !(pictures && own), "your own images"),
            ("validation_split", of.validation_split.is_some() && !own, "your own labeled data"),
            ("validation_split", split.is_some() && own && data.has_test_split, "data without a test split"),
            ("tokenizer", of.tokenizer.is_some() && !texts, "texts"),
            ("sequence_length", of.sequence_length.is_some() && !texts, "texts"),
            ("random_offsets", of.random_offsets && data.language.is_none(), "texts for language models"),
            ("records", of.records.is_some() && !texts && of.dataset != "records", "record files and texts"),
        ];
        let unused = keys.into_iter().filter(|(_, is_unused, _)| *is_unused);
        unused.map(|(key, _, what)| format!("data.{key} is not used: it applies to {what}")).collect()
    }

    fn find_data(&self, customise: impl FnOnce(DataDir) -> DataDir) -> Result<TrainingData> {
        let given = self.data.dir.as_ref().filter(|d| !d.as_os_str().is_empty());
        let dir = customise(given.map_or_else(DataDir::default, DataDir::at));
        if self.data.synthetic() == "always" {
            return self.drawn_data();
        }
        let may_draw = self.data.synthetic() == "fallback";
        Ok(match self.data.dataset.as_str() {
            "fashion-mnist" => datasets::fashion_mnist(dir)?.into(),
            "mnist" => datasets::mnist(dir)?.into(),
            "cifar10" if may_draw => known_by_name(datasets::cifar10_or_glyphs(dir)?),
            "cifar10" => known_by_name(datasets::cifar10(dir).map_err(|e| {
                e.because(
                    "synthetic images of the same shape replace them only with --synthetic (data.synthetic)",
                )
            })?),
            "cifar100" => datasets::cifar100(dir)?.into(),
            "flowers" => datasets::flowers(dir, &self.folder_options())?,
            "imdb" => datasets::imdb(dir, &self.sentence_options()?)?,
            "folder" => datasets::folder(dir, &self.folder_options())?,
            "records" => {
                datasets::records(dir, &self.data.records.clone().unwrap_or_default(), &self.record_shape())?
            }
            "text" => datasets::text_with(dir, &self.text_options()?)?,
            "sentences" => datasets::sentences(dir, &self.sentence_options()?)?,
            _ => datasets::glyphs(0)?.into(),
        })
    }

    /// Generates synthetic data of the dataset's shape.
    fn drawn_data(&self) -> Result<TrainingData> {
        Ok(match self.data.dataset.as_str() {
            "fashion-mnist" | "mnist" | "glyphs" => datasets::glyphs(0)?.into(),
            "cifar10" => known_by_name(datasets::colour_glyphs(0)?),
            "text" => datasets::drawn_text(&self.text_options()?)?,
            other => {
                return Err(err!(Config, "there is no synthetic data of the shape of `{other}`")
                    .at("data.synthetic")
                    .hint_command("remove --synthetic"));
            }
        })
    }

    fn folder_options(&self) -> FolderOptions {
        let [height, width] = self.data.image_size.unwrap_or(FOLDER_SIZE);
        FolderOptions {
            picture: [height, width, self.data.channels()],
            validation_split: self.data.validation_split.unwrap_or(VALIDATION_SPLIT),
            unreadable_quota: self.data.unreadable_quota.unwrap_or(0.1),
            seed: self.seed,
            background: self.data.background.unwrap_or(0.0),
            resizing: self.data.resizing(),
        }
    }

    fn text_options(&self) -> Result<TextOptions> {
        let written = self.data.records.as_ref().map(|r| r.written()).transpose()?.unwrap_or_default();
        Ok(TextOptions {
            sequence_length: self.data.sequence_length(),
            tokens: self.data.tokens()?,
            encoding: written.encoding,
            is_for_testing: self.data.validation_split.is_some_and(|part| part >= 1.0),
        })
    }

    fn record_shape(&self) -> RecordShape {
        RecordShape {
            size: self.data.image_size,
            channels: self.data.color_mode.as_ref().map(|_| self.data.channels()),
            validation_split: self.data.validation_split.unwrap_or(VALIDATION_SPLIT),
            seed: self.seed,
            numbers: self.labels_are_numbers(),
            background: self.data.background.unwrap_or(0.0),
            resizing: self.data.resizing(),
            unreadable_quota: self.data.unreadable_quota.unwrap_or(0.1),
        }
    }

    /// Whether the labels are regression targets (`true`) or classes (`false`), as implied by the loss or the model's
    /// outputs.
    pub(super) fn labels_are_numbers(&self) -> Option<bool> {
        let is_learnt = self.data.records.as_ref().is_some_and(|r| !r.columns.is_empty());
        match model_sections::loss(&self.compile.loss).as_ref().map(Loss::base) {
            Ok(
                Loss::MeanSquaredError
                | Loss::MeanAbsoluteError
                | Loss::MeanAbsolutePercentageError
                | Loss::MeanSquaredLogarithmicError
                | Loss::Huber { .. }
                | Loss::LogCosh,
            ) => Some(true),
            Ok(Loss::SparseCategoricalCrossentropy { .. }) if is_learnt => Some(false),
            _ => None,
        }
    }

    /// Adapts the configuration to user data: the last layer's units, the vocabulary size for text, and the loss for
    /// numeric labels, if these still have the presets' values. Also stores how table columns are encoded. Returns notes
    /// for the user about what was chosen.
    ///
    /// # Errors
    /// If the labels are numbers but the loss is a classification loss.
    pub fn fit_data(&mut self, data: &TrainingData) -> Result<Vec<String>> {
        if let Some(language) = &data.language {
            return self.fit_language(language).map(|()| Vec::new());
        }
        self.fit_biggan(data);
        if !self.data.is_own() {
            return Ok(Vec::new());
        }
        if !data.columns.is_empty() {
            self.data.records.get_or_insert_default().columns = data.columns.clone();
        }
        self.fit_sentences(data)?;
        if !data.class_names.is_empty() {
            return self.fit_classes(data.class_names.len()).map(|()| Vec::new());
        }
        if self.biggan.is_some() {
            return Err(err!(Config, "the images have no class labels")
                .because("BigGAN generates images by class")
                .hint("use a folder with one subfolder of images for each class"));
        }
        let notes = self.fit_regression(data)?;
        match model_sections::loss(&self.compile.loss).as_ref().map(Loss::base) {
            Ok(Loss::SparseCategoricalCrossentropy { .. }) => {
                Err(err!(Config, "the labels are numbers, but the loss expects classes")
                    .at(format!("compile.loss for {}", data.name))
                    .hint_setting(
                        "set compile.loss=mean_squared_error, compile.metrics=[], and give the last layer 1 unit and no activation; \
                         or name the field with the classes: data.records.label",
                    ))
            }
            _ => Ok(notes),
        }
    }

    /// Sets the last layer's `units` to the number of classes if the layer is still the preset's (`folder`, `tfrecord`,
    /// `table`).
    pub fn fit_classes(&mut self, classes: usize) -> Result<()> {
        let preset = RunConfig::preset("folder")?;
        if let Some(last) = self.layers.last_mut().filter(|last| Some(&**last) == preset.layers.last()) {
            last.insert("units".into(), (classes as i64).into());
        }
        Ok(())
    }

    /// Number of training samples in an epoch: all, or `data.train_samples`.
    pub fn train_len(&self, data: &TrainingData) -> usize {
        self.data.train_samples.map_or(data.train_len, |n| data.train_len.min(n as usize))
    }

    /// Number of training batches in an epoch: `fit.steps_per_epoch`, or one pass over the samples.
    pub fn batches_per_epoch(&self, data: &TrainingData) -> usize {
        self.fit.steps_per_epoch.unwrap_or_else(|| match &self.biggan {
            Some(_) => self.train_len(data) / self.samples_per_step(),
            None => self.train_len(data).div_ceil(self.samples_per_step()),
        })
    }

    /// Number of test batches in one pass: over all samples, or `data.test_samples`.
    pub fn test_batches(&self, data: &TrainingData) -> usize {
        let samples = self.data.test_samples.map_or(data.test_len, |n| data.test_len.min(n as usize));
        samples.div_ceil(self.samples_per_step())
    }

    /// Returns the training batches: shuffled, repeated if `steps_per_epoch` is set, scaled, prefetched.
    pub fn train_pipeline(&self, data: &TrainingData) -> Dataset {
        self.train_pipeline_of(data, None)
    }

    /// Like [`RunConfig::train_pipeline`], but fills only the rows of each batch that one of several hosts needs.
    pub fn train_pipeline_of(&self, data: &TrainingData, share: Option<BatchShare>) -> Dataset {
        let (mut train, buffer) = self.train_elements(data);
        let language = data.language.as_ref().filter(|_| self.data.random_offsets);
        if language.is_some() {
            train = numbered(train);
        }
        if self.data.shuffle {
            train = train.shuffle(buffer, self.seed);
        }
        if self.fit.steps_per_epoch.is_some() {
            train = train.repeat();
        } else if let (Some(_), Some(n)) = (&self.biggan, train.cardinality().finite()) {
            // All steps have the same batch size.
            let step = self.samples_per_step() as u64;
            train = train.take(n / step * step);
        }
        if let Some(s) = &data.streamed {
            let prepare = s.prepare.clone();
            train = train.map_parallel(move |s| prepare.call(s), AUTOTUNE);
        }
        if let Some(language) = language {
            train = language.at_random_offsets(train, self.seed);
        }
        train = self.sized(train, data);
        if data.is_pictures() && !self.data.augment.is_empty() {
            train = augmented(train, data, &self.data.augment, self.seed);
        }
        let batches = self.batches(train, data, share);
        self.tuned(if data.is_pictures() { self.mixed(batches, data) } else { batches })
    }

    /// Returns the training elements before shuffling and preparation, and the shuffle buffer size.
    pub(super) fn train_elements(&self, data: &TrainingData) -> (Dataset, usize) {
        let (train, buffer) = match &data.streamed {
            // A subset is the same in each epoch only if the files are read in order.
            Some(s) if self.data.shuffle && self.data.train_samples.is_none() => (s.mixed.clone(), s.buffer),
            Some(s) => (s.in_order.clone(), s.buffer),
            None => (data.train.clone(), data.train_len),
        };
        match self.data.train_samples {
            Some(n) => (self.some(train, n, data.train_len, data), buffer),
            None => (train, buffer),
        }
    }

    /// Takes `n` of all elements, the same in each epoch. User data may be sorted by class, so it is sampled by the
    /// seed or at equal distances; published datasets are already mixed, so the first elements are taken.
    fn some(&self, all: Dataset, n: u64, len: usize, data: &TrainingData) -> Dataset {
        let len = len as u64;
        if n >= len || !self.data.is_own() {
            return all.take(n);
        }
        if all.cardinality().finite().is_some() {
            let fixed =
                ShuffleOptions { buffer_size: usize::MAX, seed: self.seed, reshuffle_each_iteration: false };
            return all.shuffle_with(fixed).take(n);
        }
        if data.streamed.as_ref().is_some_and(|s| s.is_small) { evenly(all, n, len) } else { all.take(n) }
    }

    /// Returns the test batches in order.
    pub fn test_pipeline(&self, data: &TrainingData) -> Dataset {
        self.batches(self.test_elements(data), data, None)
    }

    /// Like [`RunConfig::test_pipeline`], with test-time augmentation: version `version` of each image, augmented as in
    /// training, or by fastai's `aug_transforms` if training has no augmentation.
    pub fn augmented_test_pipeline(&self, data: &TrainingData, version: u64) -> Dataset {
        let (names, seed) =
            (augment::test_time(&self.data.augment), augment::version_seed(self.seed, version));
        self.batches(augmented(self.test_elements(data), data, &names, seed), data, None)
    }

    fn test_elements(&self, data: &TrainingData) -> Dataset {
        let test = match self.data.test_samples {
            Some(n) => self.some(data.test.clone(), n, data.test_len, data),
            None => data.test.clone(),
        };
        self.sized(test, data)
    }

    /// Returns how many batches of [`RunConfig::test_pipeline`] to evaluate, if a limit applies.
    ///
    /// # Errors
    /// See [`Limit::of`](systole_nn::Limit::of).
    pub fn tested_batches(&self, data: &TrainingData) -> Result<Option<usize>> {
        let limit = self.fit.overfit_batches.or(self.fit.limit_val_batches);
        let all = Some(self.test_batches(data));
        limit.map(|limit| limit.of("limit_val_batches", &self.test_pipeline(data), all)).transpose()
    }

    /// Returns batches as the model's input: images resized and scaled, tokens unchanged.
    fn batches(&self, elements: Dataset, data: &TrainingData, share: Option<BatchShare>) -> Dataset {
        let batches = elements.batch_share(self.samples_per_step(), share);
        if !data.is_pictures() {
            return batches.prefetch(AUTOTUNE);
        }
        // Scaling whole batches is equivalent and cheaper than scaling each sample.
        batches.map(scale_pixels(self.data.scale)).prefetch(AUTOTUNE)
    }

    /// Applies the batch mixing of `data.augment` (mixup, cutmix); labels become class probabilities.
    fn mixed(&self, batches: Dataset, data: &TrainingData) -> Dataset {
        let mixes = augment::mixes(&self.data.augment);
        if mixes.is_empty() {
            return batches;
        }
        let classes = data.class_names.len();
        let shares = move |s: Sample| s.map("label", move |y| y.one_hot(classes));
        let mix = move |s: Sample, rng: &mut RandomStream| augment::mixed(s, &mixes, rng);
        batches.map(shares).map_random_parallel(self.seed, mix, AUTOTUNE).prefetch(AUTOTUNE)
    }

    /// Applies the fixed thread counts and queue sizes of `data.tuning`, if set.
    fn tuned(&self, pipeline: Dataset) -> Dataset {
        match self.data.sizes() {
            Ok(tuning @ Some(_)) => {
                pipeline.with_options(DatasetOptions { tuning, ..DatasetOptions::default() })
            }
            _ => pipeline,
        }
    }

    /// Resizes images to `data.image_size`; other elements stay unchanged.
    pub(super) fn sized(&self, elements: Dataset, data: &TrainingData) -> Dataset {
        match self.data.image_size {
            Some([h, w]) if data.is_pictures() && data.element.shape[..2] != [h, w] => {
                let resizing = self.data.resizing();
                elements.map(move |s: Sample| s.map("image", move |x| resizing.apply(x, h, w)))
            }
            _ => elements,
        }
    }

    /// Returns the type of one sample of this data after the pipeline.
    pub fn sample_of(&self, data: &TrainingData) -> TensorType {
        if !data.is_pictures() {
            return data.element.clone();
        }
        let [height, width] = self.data.image_size.unwrap_or([data.element.shape[0], data.element.shape[1]]);
        TensorType::new(DType::F32, [height, width, data.element.shape[2]])
    }

    /// Returns the type of one sample after the pipeline for the published dataset; user files may differ in size.
    pub fn usual_sample(&self) -> TensorType {
        let pictures = |height, width, channels| {
            let [height, width] = self.data.image_size.unwrap_or([height, width]);
            TensorType::new(DType::F32, [height, width, channels])
        };
        match self.data.kind() {
            "cifar10" | "cifar100" => pictures(32, 32, 3),
            "folder" => pictures(FOLDER_SIZE[0], FOLDER_SIZE[1], self.data.channels()),
            "text" | "sentences" => TensorType::new(DType::I32, [self.data.sequence_length()]),
            _ => pictures(28, 28, 1),
        }
    }

    /// Returns the configured layers as a model without weights.
    pub fn layers_only(&self) -> Result<Model> {
        if let Some(gan) = &self.biggan {
            return Ok(Model::new(gan.architecture()?));
        }
        let mut config = self.clone();
        config.fit_usual_tokens()?;
        model_sections::architecture(config.model.as_ref(), &config.layers)
            .map(Model::new)
            .map_err(|w| w.error)
    }

    /// Returns the arguments of `Model::compile`.
    pub fn compile_config(&self, output: &[usize]) -> Result<Compile> {
        Ok(Compile {
            optimizer: match &self.biggan {
                Some(gan) => gan.optimizer(),
                None => model_sections::optimizer(&self.optimizer).map_err(|w| w.error)?,
            },
            train_step: self.biggan.clone().map(|gan| Arc::new(gan) as Arc<dyn TrainStep>),
            precision: self.precision(),
            seed: self.seed,
            strategy: self.strategy(),
            soft_labels: !augment::mixes(&self.data.augment).is_empty(),
            pruning: self.pruning.as_ref().map(|p| p.pruning()).transpose().map_err(|w| w.error)?,
            quantize: self.quantize.as_ref().map(|q| q.quantize()).transpose().map_err(|w| w.error)?,
            ..self.compile.measures(output).map_err(|w| w.error)?
        })
    }

    /// Builds and compiles a model with fresh weights for samples of type `sample` and these class names.
    ///
    /// # Errors
    /// If a layer cannot accept its input shape (names the layer), or the output does not match the classes.
    pub fn model(&self, sample: &TensorType, class_names: &[String]) -> Result<Model> {
        let mut model = self.layers_only()?;
        self.check_biggan_samples(sample, class_names.len())?;
        let inputs = self.model_inputs(sample, &model);
        let output = model.output_for(&inputs)?.shape.to_vec();
        let compile = self.compile_config(&output)?;
        if self.biggan.is_none() {
            check_output(&output, &compile.loss, class_names.len(), self.data.kind())
                .map_err(|e| self.outputs_at.0.iter().fold(e, |e, place| e.at(place.clone())))?;
        }
        model.compile(compile)?;
        model.build(&inputs)?;
        model.class_names = class_names.to_vec();
        model.notes.insert("config".into(), self.to_toml()?);
        Ok(model)
    }

    /// Returns [`RunConfig::to_toml`] with `data.scale` as a fraction, for users.
    pub fn to_shown_toml(&self) -> Result<String> {
        let (text, scale) = (self.to_toml()?, shown_scale(self.data.scale));
        let Some(section) = text.find("[data]\n").filter(|_| scale.contains('/')) else { return Ok(text) };
        let (before, data) = text.split_at(section);
        let line = format!("\nscale = {:?}\n", self.data.scale);
        Ok(format!("{before}{}", data.replacen(&line, &format!("\nscale = \"{scale}\"\n"), 1)))
    }

    /// Returns warnings about pixels that `data.scale` scales although the model's first layer, or the program that wrote
    /// the data, scales them too. `option` is the remedy: `pass --scale 1`.
    ///
    /// # Errors
    /// If the first samples cannot be read.
    pub fn pixel_scale_warnings(
        &self,
        architecture: &Architecture,
        data: &TrainingData,
        option: &str,
    ) -> Result<Vec<String>> {
        pixel_scale::warnings(architecture, data, self.data.scale, option)
    }

    /// Builds [`RunConfig::model`] for the dataset's default sample type. Reads no data.
    ///
    /// ```
    /// use systole::config::RunConfig;
    /// let model = RunConfig::preset("cifar-cnn")?.untrained()?;
    /// assert_eq!(model.output_type().unwrap().shape.dims(), [10]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`RunConfig::model`].
    pub fn untrained(&self) -> Result<Model> {
        self.model(&self.usual_sample(), &[])
    }
}

/// Applies the augmentations of `data.augment` with these names.
fn augmented(pictures: Dataset, data: &TrainingData, names: &[String], seed: u64) -> Dataset {
    match augment::changes(names, data.element.shape[2] >= 3) {
        Ok(changes) => pictures.map_random_parallel(
            seed,
            move |s, rng| s.map("image", |x| changes.iter().fold(x, |x, change| change(x, rng))),
            AUTOTUNE,
        ),
        Err(wrong) => pictures.map(move |_| -> Result<Sample> { Err(wrong.error.clone()) }),
    }
}

/// Selects `n` of `len` elements at equal distances.
fn evenly(all: Dataset, n: u64, len: u64) -> Dataset {
    let before = move |i: u64| (u128::from(i) * u128::from(n) / u128::from(len)) as u64;
    let is_taken = move |s: &Sample| {
        let i = s.get("index").map_or(0, |i| i.get(0).as_i64() as u64);
        before(i + 1) > before(i)
    };
    numbered(all).filter(is_taken).map(unnumbered)
}

/// Identifies a dataset by its name: a synthetic replacement is another dataset.
fn known_by_name(data: datasets::ImageDataset) -> TrainingData {
    let data: TrainingData = data.into();
    TrainingData { identity: Some(data.name.clone()), ..data }
}

fn check_output(output: &[usize], loss: &Loss, classes: usize, dataset: &str) -> Result<()> {
    let sequences = dataset == "text";
    let (sample, pooling) = match dataset {
        "sentences" => ("text", "GlobalAveragePooling1D"),
        "records" => ("record", "GlobalAveragePooling2D"),
        _ => ("image", "GlobalAveragePooling2D"),
    };
    let sparse = matches!(loss.base(), Loss::SparseCategoricalCrossentropy { .. });
    match output {
        [_, n] | [n] if (output.len() == 2) == sequences => match !sparse || classes == 0 || *n >= classes {
            true => Ok(()),
            false => {
                Err(err!(Config, "the last layer returns {n} values, but the data has {classes} classes")
                    .hint_setting(format!("end the model with a Dense layer of {classes} units")))
            }
        },
        other if sequences => Err(err!(
            Config,
            "the last layer returns arrays of shape {other:?} for one sequence"
        )
        .because("a language model returns one value per token and position")
        .hint_setting(
            "keep the sequence dimension: set return_sequences = true in recurrent layers, remove Flatten",
        )),
        other => Err(err!(Config, "the last layer returns arrays of shape {other:?} for one {sample}")
            .because("a classifier returns one value per class")
            .hint_setting(format!("add a Flatten or {pooling} layer before the last Dense layer"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_that_do_not_fit_are_explained() {
        let names: Vec<String> = (0..10).map(|i| i.to_string()).collect();
        let with = |key: &str, value: &str| {
            let mut draft = super::super::ConfigDraft::preset("glyphs").unwrap();
            draft.set("--set", key, value);
            draft.finish().unwrap().model(&TensorType::new(DType::F32, [28, 28, 1]), &names)
        };
        assert!(with("seed", "1").is_ok());
        let e = with("layers.4.units", "5").unwrap_err().to_string();
        assert!(e.contains("5 values") && e.contains("10 classes") && e.contains("--set"), "{e}");
        let text = RunConfig::preset_text("glyphs").unwrap().replace("units = 10", "units = 5");
        let draft = super::super::ConfigDraft::parse(&text, "own.toml").unwrap();
        let e = draft.finish().unwrap().model(&TensorType::new(DType::F32, [28, 28, 1]), &names).unwrap_err();
        let line = text.lines().position(|l| l == "units = 5").unwrap() + 1;
        assert!(e.places().contains(&format!("own.toml, line {line}")), "{e}");
        let e = with("layers.0.kernel_size", "40").unwrap_err().to_string();
        assert!(e.contains("conv2d"), "{e}");
        let e = with("layers.3.type", "ReLU").unwrap_err().to_string();
        assert!(e.contains("Flatten"), "{e}");
    }
}
