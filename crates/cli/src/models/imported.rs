//! Builds models from the weights of other programs: layers, loss and tokenizer that a file or folder describes.

use crate::models::image_preparation::ImagePreparation;
use crate::models::model_data::{keep_tokenizer, tokenizer_of};
use crate::models::pretrained::{fetched_model, is_pretrained};
use crate::render::screen::note;
use std::path::Path;
use std::sync::Arc;
use systole_config::RunConfig;
use systole_datasets::Tokenizer;
use systole_ir::{Error, Result, ResultExt, TensorType, err};
use systole_nn::loss::Loss;
use systole_nn::metric::{Metric, root_mean_squared_error};
use systole_nn::{Activation, Architecture, Compile, Model};
use systole_weights::{Tower, WeightSource};

/// Tensor, and note in a model file: logarithm of the factor of similarities between images and texts.
pub(crate) const LOGIT_SCALE: &str = "logit_scale";

/// Tokenizer of a folder with weights, and a note about it.
#[derive(Default)]
pub(crate) struct FolderTokenizer {
    pub(crate) tokenizer: Option<Arc<Tokenizer>>,
    pub(crate) note: Option<String>,
}

impl FolderTokenizer {
    /// Reads the tokenizer of a Hugging Face folder. An unsupported tokenizer is only reported.
    pub(crate) fn of(folder: &Path) -> FolderTokenizer {
        if !Tokenizer::is_in(folder) {
            return FolderTokenizer::default();
        }
        match Tokenizer::read(folder) {
            Ok(tokenizer) => FolderTokenizer {
                note: Some(format!(
                    "with the folder's tokenizer, stored in the model file ({} tokens)",
                    tokenizer.vocabulary_size()
                )),
                tokenizer: Some(Arc::new(tokenizer)),
            },
            Err(e) => FolderTokenizer {
                tokenizer: None,
                note: Some(format!("without the folder's tokenizer: {e}")),
            },
        }
    }

    /// Lets attention mask the padding token, unless the tokenizer pads with the end of texts.
    pub(crate) fn mask_padding(&self, source: &mut WeightSource) {
        if let Some(token) = self.tokenizer.as_ref().filter(|t| t.has_own_padding()).and_then(|t| t.padding())
        {
            source.mask_padding(token);
        }
    }

    /// Stores the tokenizer in the model, unless it has more tokens than the model.
    pub(crate) fn keep_in(&mut self, model: &mut Model) {
        let Some(tokenizer) = &self.tokenizer else { return };
        // The encoder of a model of images and texts that reads the images has no tokens.
        let first = model.architecture().inputs.first().and_then(|i| i.ty.as_ref());
        if !first.is_some_and(|ty| ty.dtype.is_int()) {
            self.note = None;
            return;
        }
        let table = model.weights().into_iter().find(|(path, _)| *path == "token_embedding/embeddings");
        let rows = table.map(|(_, value)| value.ty().shape[0]);
        let size = tokenizer.vocabulary_size();
        match rows.filter(|rows| size > *rows) {
            Some(rows) => {
                self.note = Some(format!(
                    "without the folder's tokenizer: it has {size} tokens, but token_embedding has {rows} rows"
                ));
            }
            None => keep_tokenizer(model, tokenizer),
        }
    }
}

/// Whether a name is that of a Hugging Face folder rather than of a run.
pub(crate) fn is_model_folder(name: &str) -> bool {
    let folder = Path::new(name);
    folder.join("config.json").is_file() && !folder.join("run.json").is_file()
}

/// Whether a name is that of a Hugging Face folder or of a pretrained model.
fn is_of_others(name: &str) -> bool {
    is_pretrained(name) || is_model_folder(name)
}

/// Loads a model file, a Hugging Face folder, or a pretrained model by name.
///
/// # Errors
/// If the file is damaged or not a model, or see [`open_weights`].
pub(crate) fn load(path: impl AsRef<str>) -> Result<Model> {
    let path = path.as_ref();
    if is_of_others(path) { open_weights(path, Tower::Images) } else { Model::load(path) }
}

/// Like [`load`], without compiling the training step.
pub(crate) fn load_to_predict(path: &str) -> Result<Model> {
    load_tower(path, Tower::Images)
}

/// Like [`load_to_predict`], with this encoder of a folder of images and texts.
pub(crate) fn load_tower(path: &str, tower: Tower) -> Result<Model> {
    if is_of_others(path) { open_weights(path, tower) } else { Model::load_to_predict(path) }
}

/// Builds the model of a Hugging Face folder or of a pretrained model, with its weights, class names, tokenizer and image
/// processor. Of a model of images and texts, `tower` is read.
///
/// # Errors
/// If config.json has an unsupported setting, the weights do not match it, or they cannot be downloaded.
fn open_weights(name: &str, tower: Tower) -> Result<Model> {
    let place = || name.to_string();
    let (mut source, folder) = match fetched_model(name)? {
        Some(fetched) => (fetched.open()?, fetched.folder),
        None => (WeightSource::open(Path::new(name))?, name.into()),
    };
    source.select_tower(tower);
    let mut tokenizer = FolderTokenizer::of(&folder);
    tokenizer.mask_padding(&mut source);
    let (layers, inputs) = source.architecture().at(place)?.ok_or_else(|| unknown_model(name, &source))?;
    let mut model = built(layers, &inputs, None)?;
    source.fill(&mut model, false).at(place)?;
    tokenizer.keep_in(&mut model);
    name_classes(&mut model, &source);
    keep_settings(&mut model, &source);
    for guess in source.guesses().at(place)? {
        note(&format!("{name}: guessed, because no file states it: {guess}"));
    }
    let unused = source.unused_settings().at(place)?;
    if !unused.is_empty() {
        note(&format!("{name}: not used, which changes further training only: {}", shortened(&unused)));
    }
    if let Some(why) = tokenizer.note.filter(|_| tokenizer_of(&model).is_ok_and(|t| t.is_none())) {
        note(&format!("{name} is read {why}"));
    }
    Ok(model)
}

/// Stores the image processor and the scale of similarities in the model.
pub(crate) fn keep_settings(model: &mut Model, source: &WeightSource) {
    if let Some(processor) = source.image_processor() {
        ImagePreparation::of(processor).keep_in(model);
    }
    let scale = source.tensors().iter().find(|(name, _)| name == LOGIT_SCALE);
    if let Some(scale) = scale.and_then(|(_, value)| value.to_f32s().first().copied()) {
        model.notes.insert(LOGIT_SCALE.into(), scale.to_string());
    }
}

/// Lists the first settings, and counts the others.
pub(crate) fn shortened(settings: &[String]) -> String {
    const SHOWN: usize = 3;
    let first = settings.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("; ");
    match settings.len().saturating_sub(SHOWN) {
        0 => first,
        more => format!("{first}; and {more} more"),
    }
}

/// Error for weights whose model is unknown.
pub(crate) fn unknown_model(name: &str, source: &WeightSource) -> Error {
    err!(Config, "cannot determine the model of {name}")
        .because(format!(
            "the file is {}{} and its tensor names match no family that `systole import --list` prints",
            source.kind(),
            source.model_type().map_or(String::new(), |kind| format!(" of the model_type `{kind}`")),
        ))
        .hint_command("name the model with --model: a preset, a TOML file with the layers, or a model file")
}

/// Names the classes of a classifier as its file does.
pub(crate) fn name_classes(model: &mut Model, source: &WeightSource) {
    let names = source.class_names();
    let classes = model.output_type().filter(|t| t.rank() == 1).map(|t| t.shape[0]);
    if classes == Some(names.len()) {
        model.class_names = names;
    }
}

/// Builds and compiles a model with fresh weights.
pub(crate) fn built(
    layers: Architecture,
    inputs: &[TensorType],
    config: Option<&RunConfig>,
) -> Result<Model> {
    let mut model = Model::new(layers);
    let usual = config.map(RunConfig::usual_sample);
    // Use the configuration's sample size if the layers accept it.
    let usual = usual.map(|sample| vec![sample]).filter(|sample| model.output_for(sample).is_ok());
    let inputs = usual.as_deref().unwrap_or(inputs);
    let output = model.output_for(inputs)?;
    let compile = match config {
        Some(config) => config.compile_config(output.shape.dims())?,
        None => usual_compile(&model, output.elements() == 1),
    };
    model.compile(compile)?;
    model.build(inputs)?;
    if let Some(config) = config {
        model.notes.insert("config".into(), config.to_toml()?);
    }
    Ok(model)
}

/// Compiles a model that was saved without a loss, as a model of a weight file.
pub(crate) fn compile_unless_compiled(model: &mut Model) -> Result<()> {
    if model.compile_config().is_some() {
        return Ok(());
    }
    let is_single = model.output_type().is_some_and(|output| output.elements() == 1);
    model.compile(usual_compile(model, is_single))
}

/// Default losses and metrics for evaluating a classifier or a regression, because a weight file contains no loss.
/// `is_single`: the first output is one value.
fn usual_compile(model: &Model, is_single: bool) -> Compile {
    let architecture = model.architecture();
    let activation = |output: usize| architecture.output_activation(output).map(|(_, activation)| activation);
    let names = architecture.output_names();
    if names.len() > 1 {
        let usual = names.iter().enumerate().map(|(i, name)| (name.to_string(), usual_loss(activation(i))));
        let (losses, output_metrics) =
            usual.map(|(name, (loss, metric))| ((name.clone(), loss), (name, vec![metric]))).unzip();
        return Compile { losses, output_metrics, ..Compile::default() };
    }
    let is_head = architecture.nodes.last().is_some_and(|n| n.name == "predictions");
    let is_regression_or_binary = matches!(activation(0), Some(Activation::Linear | Activation::Sigmoid));
    let (loss, metric) = match (is_head || is_single) && is_regression_or_binary {
        true => usual_loss(activation(0)),
        // The last layer of a classifier without softmax returns logits.
        false => classifier_loss(activation(0) != Some(Activation::Softmax)),
    };
    Compile { loss, metrics: vec![metric], ..Compile::default() }
}

/// Default loss and metric of an output with this activation.
fn usual_loss(activation: Option<Activation>) -> (Loss, Metric) {
    match activation {
        Some(Activation::Softmax) => classifier_loss(false),
        Some(Activation::Sigmoid) => (
            Loss::BinaryCrossentropy { from_logits: false, label_smoothing: 0.0 },
            Metric::BinaryAccuracy { threshold: 0.5 },
        ),
        _ => (Loss::MeanSquaredError, root_mean_squared_error()),
    }
}

fn classifier_loss(from_logits: bool) -> (Loss, Metric) {
    let loss = Loss::SparseCategoricalCrossentropy { from_logits, ignore_class: None };
    (loss, Metric::SparseCategoricalAccuracy)
}
