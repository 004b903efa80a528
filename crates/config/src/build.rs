//! From a checked configuration to live objects: the data set, its two pipelines, the model.

use super::{RunConfig, augment, model_sections};
use std::sync::Arc;
use systole_base::rng::RandomStream;
use systole_data::{AUTOTUNE, BatchShare, Dataset, DatasetOptions, Sample, ShuffleOptions};
use systole_datasets::{
    self as datasets, DataDir, FolderOptions, RecordShape, TextOptions, TrainingData, numbered, unnumbered,
};
use systole_ir::{DType, Error, ErrorKind, Result, TensorType};
use systole_nn::loss::Loss;
use systole_nn::{Compile, Model, TrainStep};

/// Height and width of a folder's pictures where no `image_size` is set.
const FOLDER_SIZE: [usize; 2] = [64, 64];

impl RunConfig {
    /// Finds (or fetches, or draws) the data set. `customise` may set where downloads report to.
    pub fn load_data(&self, customise: impl FnOnce(DataDir) -> DataDir) -> Result<TrainingData> {
        let mut data = self.find_data(customise)?;
        let is_large = data
            .streamed
            .as_ref()
            .is_some_and(|s| !s.is_small && data.train.cardinality().finite().is_none());
        if let Some(n) = self.data.train_samples.filter(|n| is_large && *n < data.train_len as u64) {
            data.notes.push(format!("data.train_samples: the first {n} records in the order of the files"));
        }
        Ok(data)
    }

    fn find_data(&self, customise: impl FnOnce(DataDir) -> DataDir) -> Result<TrainingData> {
        let given = self.data.dir.as_ref().filter(|d| !d.as_os_str().is_empty());
        let dir = customise(given.map_or_else(DataDir::default, DataDir::at));
        Ok(match self.data.dataset.as_str() {
            "fashion-mnist" => datasets::fashion_mnist(dir)?.into(),
            "mnist" => datasets::mnist(dir)?.into(),
            "cifar10" => datasets::cifar10(dir)?.into(),
            "folder" => datasets::folder(dir, &self.folder_options())?,
            "records" => {
                datasets::records(dir, &self.data.records.clone().unwrap_or_default(), &self.record_shape())?
            }
            "text" => datasets::text_with(dir, &self.text_options()?)?,
            _ => datasets::glyphs(0)?.into(),
        })
    }

    fn folder_options(&self) -> FolderOptions {
        let [height, width] = self.data.image_size.unwrap_or(FOLDER_SIZE);
        FolderOptions {
            picture: [height, width, self.data.channels()],
            validation_split: self.data.validation_split.unwrap_or(0.2),
            unreadable_quota: self.data.unreadable_quota.unwrap_or(0.1),
            seed: self.seed,
            background: self.data.background.unwrap_or(0.0),
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
            validation_split: self.data.validation_split.unwrap_or(0.2),
            seed: self.seed,
            numbers: self.labels_are_numbers(),
            background: self.data.background.unwrap_or(0.0),
            unreadable_quota: self.data.unreadable_quota.unwrap_or(0.1),
        }
    }

    /// Whether the labels are numbers to predict or classes, where the loss says so, or a model that learnt from such data.
    fn labels_are_numbers(&self) -> Option<bool> {
        let is_learnt = self.data.records.as_ref().is_some_and(|r| !r.columns.is_empty());
        match model_sections::loss(&self.compile.loss).as_ref().map(Loss::base) {
            Ok(Loss::MeanSquaredError | Loss::MeanAbsoluteError | Loss::Huber { .. }) => Some(true),
            Ok(Loss::SparseCategoricalCrossentropy { .. }) if is_learnt => Some(false),
            _ => None,
        }
    }

    /// Fits the configuration to data of one's own: the last layer, or of text how many tokens there are, and for labels that are numbers the loss, where these
    /// are still as the presets have them; and keeps how columns of tables became numbers.
    ///
    /// # Errors
    /// When the labels are numbers and the loss is one for classes.
    pub fn fit_data(&mut self, data: &TrainingData) -> Result<()> {
        if let Some(language) = &data.language {
            return self.fit_language(language);
        }
        self.fit_biggan(data);
        if !self.data.is_own() {
            return Ok(());
        }
        if !data.columns.is_empty() {
            self.data.records.get_or_insert_default().columns = data.columns.clone();
        }
        if !data.class_names.is_empty() {
            return self.fit_classes(data.class_names.len());
        }
        if self.biggan.is_some() {
            return Err(Error::new(ErrorKind::Config, "the pictures have no classes")
                .because("BigGAN makes pictures of classes")
                .hint("name a folder with one folder of pictures for each class"));
        }
        let preset = RunConfig::preset("folder")?;
        if self.compile.loss == preset.compile.loss {
            if let Some(last) = self.layers.last_mut().filter(|last| Some(&**last) == preset.layers.last()) {
                last.insert("units".into(), 1i64.into());
                last.remove("activation");
                self.compile.loss = "mean_squared_error".into();
            }
            if self.compile.metrics == preset.compile.metrics {
                self.compile.metrics.clear();
            }
        }
        match model_sections::loss(&self.compile.loss).as_ref().map(Loss::base) {
            Ok(Loss::SparseCategoricalCrossentropy { .. }) => {
                Err(Error::new(ErrorKind::Config, "the labels are numbers, and the loss is one for classes")
                    .at(format!("compile.loss of {}", data.name))
                    .hint(
                        "set compile.loss=mean_squared_error, compile.metrics=[], and let the last layer have 1 unit and no activation; \
                         or name the field with the classes: data.records.label",
                    ))
            }
            _ => Ok(()),
        }
    }

    /// Gives the last layer a unit for each class, where it still is as the presets `folder`, `tfrecord` and `table` have
    /// it.
    pub fn fit_classes(&mut self, classes: usize) -> Result<()> {
        let preset = RunConfig::preset("folder")?;
        if let Some(last) = self.layers.last_mut().filter(|last| Some(&**last) == preset.layers.last()) {
            last.insert("units".into(), (classes as i64).into());
        }
        Ok(())
    }

    /// Batches for training: shuffled, repeated where `steps_per_epoch` is set, scaled, made ahead on a thread.
    pub fn train_pipeline(&self, data: &TrainingData) -> Dataset {
        self.train_pipeline_of(data, None)
    }

    /// As [`Config::train_pipeline`], of which one of several hosts needs some rows of each batch.
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
            // Its steps are of one size.
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

    /// What is trained on, before it is shuffled and prepared, and how many of them a shuffle draws from.
    pub(super) fn train_elements(&self, data: &TrainingData) -> (Dataset, usize) {
        let (train, buffer) = match &data.streamed {
            // A few of them are the same in each epoch only where the files are read in order.
            Some(s) if self.data.shuffle && self.data.train_samples.is_none() => (s.mixed.clone(), s.buffer),
            Some(s) => (s.in_order.clone(), s.buffer),
            None => (data.train.clone(), data.train_len),
        };
        match self.data.train_samples {
            Some(n) => (self.some(train, n, data.train_len, data), buffer),
            None => (train, buffer),
        }
    }

    /// So many of all elements, the same in each epoch. One's own may be sorted by class: those are drawn by the seed, or
    /// taken at equal distances; the published sets' are mixed, and the first ones are taken.
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
        match data.streamed.as_ref().is_some_and(|s| s.is_small) {
            true => evenly(all, n, len),
            false => all.take(n),
        }
    }

    /// Batches for testing, in order.
    pub fn test_pipeline(&self, data: &TrainingData) -> Dataset {
        self.batches(self.test_elements(data), data, None)
    }

    /// As [`Config::test_pipeline`], with version `version` of pictures that are changed as in training, or as by fastai's
    /// `aug_transforms` where training changes none: test-time augmentation.
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

    /// How many of the batches of `test` are tested on, where a limit leaves some out.
    ///
    /// # Errors
    /// See [`Limit::of`](systole_nn::Limit::of).
    pub fn tested_batches(&self, test: &Dataset) -> Result<Option<usize>> {
        let limit = self.fit.overfit_batches.or(self.fit.limit_val_batches);
        limit.map(|limit| limit.of("limit_val_batches", test, None)).transpose()
    }

    /// Batches of what a model takes: pictures in their size and scaled, tokens as they are.
    fn batches(&self, elements: Dataset, data: &TrainingData, share: Option<BatchShare>) -> Dataset {
        let batches = elements.batch_share(self.samples_per_step(), share);
        if !data.is_pictures() {
            return batches.prefetch(AUTOTUNE);
        }
        // Scaling whole batches is the same and costs less than scaling each sample.
        batches.map(scale_pixels(self.data.scale)).prefetch(AUTOTUNE)
    }

    /// Pictures of a batch mixed with one another, as `data.augment` says; labels become shares of classes.
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

    /// A pipeline that runs by `data.tuning`, where that is set.
    fn tuned(&self, pipeline: Dataset) -> Dataset {
        match self.data.sizes() {
            Ok(tuning @ Some(_)) => {
                pipeline.with_options(DatasetOptions { tuning, ..DatasetOptions::default() })
            }
            _ => pipeline,
        }
    }

    /// Pictures in `data.image_size`; others as they are.
    pub(super) fn sized(&self, elements: Dataset, data: &TrainingData) -> Dataset {
        match self.data.image_size {
            Some([h, w]) if data.is_pictures() && data.element.shape[..2] != [h, w] => {
                elements.map(move |s: Sample| s.map("image", move |x| x.resize(h, w)))
            }
            _ => elements,
        }
    }

    /// Type of one sample of this data as the pipelines give it.
    pub fn sample_of(&self, data: &TrainingData) -> TensorType {
        if !data.is_pictures() {
            return data.element.clone();
        }
        let [height, width] = self.data.image_size.unwrap_or([data.element.shape[0], data.element.shape[1]]);
        TensorType::new(DType::F32, [height, width, data.element.shape[2]])
    }

    /// Type of one sample as the pipelines give it, for data sets as published; files of another size are possible.
    pub fn usual_sample(&self) -> TensorType {
        let pictures = |height, width, channels| {
            let [height, width] = self.data.image_size.unwrap_or([height, width]);
            TensorType::new(DType::F32, [height, width, channels])
        };
        match self.data.dataset.as_str() {
            "cifar10" => pictures(32, 32, 3),
            "folder" => pictures(FOLDER_SIZE[0], FOLDER_SIZE[1], self.data.channels()),
            "text" => TensorType::new(DType::I32, [self.data.sequence_length()]),
            _ => pictures(28, 28, 1),
        }
    }

    /// The layers as a model without weights.
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

    /// What `Model::compile` is given.
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

    /// A compiled model with fresh weights for samples of type `sample` in classes of these names.
    ///
    /// # Errors
    /// When a layer cannot take the shape it gets (names the layer), or the output does not fit the classes.
    pub fn model(&self, sample: &TensorType, class_names: &[String]) -> Result<Model> {
        let mut model = self.layers_only()?;
        self.check_biggan_samples(sample, class_names.len())?;
        let inputs = self.model_inputs(sample);
        let output = model.output_for(&inputs)?.shape.to_vec();
        let compile = self.compile_config(&output)?;
        if self.biggan.is_none() {
            check_output(&output, &compile.loss, class_names.len(), self.data.dataset == "text")?;
        }
        model.compile(compile)?;
        model.build(&inputs)?;
        model.class_names = class_names.to_vec();
        model.notes.insert("config".into(), self.to_toml()?);
        Ok(model)
    }

    /// [`Config::model`] for the data set's usual samples. Reads no data.
    ///
    /// ```
    /// use systole::config::Config;
    /// let model = Config::preset("cifar-cnn")?.untrained()?;
    /// assert_eq!(model.output_type().unwrap().shape.dims(), [10]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Config::model`].
    pub fn untrained(&self) -> Result<Model> {
        self.model(&self.usual_sample(), &[])
    }
}

/// Pictures changed by these names of `data.augment`.
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

/// `n` of `len` elements at equal distances.
fn evenly(all: Dataset, n: u64, len: u64) -> Dataset {
    let before = move |i: u64| (u128::from(i) * u128::from(n) / u128::from(len)) as u64;
    let is_taken = move |s: &Sample| {
        let i = s.get("index").map_or(0, |i| i.get(0).as_i64() as u64);
        before(i + 1) > before(i)
    };
    numbered(all).filter(is_taken).map(unnumbered)
}

fn check_output(output: &[usize], loss: &Loss, classes: usize, sequences: bool) -> Result<()> {
    let sparse = matches!(loss.base(), Loss::SparseCategoricalCrossentropy { .. });
    match output {
        [_, n] | [n] if (output.len() == 2) == sequences => match !sparse || classes == 0 || *n >= classes {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::Config,
                format!("the last layer gives {n} values, the data has {classes} classes"),
            )
            .hint(format!("end the model with a Dense layer of {classes} units"))),
        },
        other if sequences => Err(Error::new(
            ErrorKind::Config,
            format!("the last layer gives arrays of shape {other:?} for one sequence"),
        )
        .because("a language model gives one value for each token at each place")
        .hint("keep the sequence: return_sequences = true in recurrent layers, no Flatten")),
        other => Err(Error::new(
            ErrorKind::Config,
            format!("the last layer gives arrays of shape {other:?} for one picture"),
        )
        .because("a classifier gives one value for each class")
        .hint("put a Flatten or GlobalAveragePooling2D layer before the last Dense layer")),
    }
}

/// A pipeline stage: `image: u8[…] → f32[…]`, times `scale`.
pub fn scale_pixels(scale: f64) -> impl Fn(Sample) -> Sample + Send + Sync + 'static {
    // A factor of 1/n divides by n: `x / 255` and `x * (1/255)` round differently, and tutorials divide.
    let divisor = (1.0 / scale).round();
    let divides = (1.0 / scale - divisor).abs() < 1e-9 * divisor;
    move |s| {
        s.map("image", move |x| {
            let x = x.cast(DType::F32);
            match (scale == 1.0, divides) {
                (true, _) => x,
                (false, true) => x / divisor,
                (false, false) => x * scale,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::Literal;

    #[test]
    fn a_fraction_divides_exactly() {
        let pixels = Literal::from_slice([4], &[0u8, 1, 77, 255]).unwrap();
        let of = |scale: f64| {
            let s = scale_pixels(scale)(Sample::new([("image", pixels.clone())]));
            s.get("image").unwrap().to_f32s()
        };
        assert_eq!(of(1.0), [0.0, 1.0, 77.0, 255.0]);
        assert_eq!(of(1.0 / 255.0), [0.0, 1.0 / 255.0, 77.0 / 255.0, 1.0]);
        assert_eq!(of(0.3)[1], 0.3);
    }

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
        assert!(e.contains("5 values") && e.contains("10 classes"), "{e}");
        let e = with("layers.0.kernel_size", "40").unwrap_err().to_string();
        assert!(e.contains("conv2d"), "{e}");
        let e = with("layers.3.type", "ReLU").unwrap_err().to_string();
        assert!(e.contains("Flatten"), "{e}");
    }
}
