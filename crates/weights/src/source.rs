//! Opens weight files and directories by content, infers the model architecture if possible, and fills a model.

use crate::folder_settings::{self, ImageProcessor};
use crate::keras::KerasFile;
use crate::names::encoder_layers::prepend_normalization;
use crate::names::family::{ModelFamily, TextPooling, Tower, WeightFiles};
use crate::names::hf_config::DerivedModel;
use crate::names::{
    FAMILIES, bert, dinov2, distilbert, gpt2, keras as keras_names, language_models, match_by_order,
    torch_defaults,
};
use crate::weight_mapping::{self, ImportReport, is_weight};
use crate::{hdf5, huggingface, legacy_torch, safetensors, torch};
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::path::Path;
use systole_data::format::ModelFormat;
use systole_ir::{DType, Error, Literal, Result, ResultExt, TensorType, ensure, err};
use systole_nn::{Architecture, Model, applications};

/// Note on weights that are matched by order.
const BY_ORDER: &str = "by layer order, as in files of PyTorch's state_dict: types and shapes agree";
/// Note of models whose layers have the names of the file's modules.
const BY_NAME: &str = "by layer names";

/// External weights (PyTorch, Keras, safetensors, Hugging Face), loaded into memory.
#[derive(Default)]
pub struct WeightSource {
    tensors: Vec<(String, Literal)>,
    /// Hugging Face's config.json.
    config: Option<Value>,
    keras: Option<KerasFile>,
    kind: &'static str,
    /// Token that pads texts, which attention masks.
    padding: Option<u32>,
    /// Pooling of sentence-transformers.
    pooling: Option<TextPooling>,
    image_processor: Option<ImageProcessor>,
    /// Application with the layers, and names of the classes, of pretrained models.
    application: Option<&'static str>,
    classes: Vec<String>,
    tower: Tower,
}

impl WeightSource {
    /// Reads a weight file, or a Hugging Face directory.
    ///
    /// # Errors
    /// If the format is unknown, or the file is damaged or malicious; nothing in it is executed.
    pub fn open(path: &Path) -> Result<WeightSource> {
        if path.is_dir() {
            let config = config_of(path)?;
            let image_processor = folder_settings::image_processor(path)?;
            let mut tensors = named_as_today(huggingface::tensors(path)?);
            let kind = config.as_ref().and_then(|c| c.get("model_type")).and_then(Value::as_str);
            let size = image_processor.as_ref().and_then(ImageProcessor::size);
            if let (true, Some(size)) = (kind == Some("dinov2"), size) {
                dinov2::resize_positions(&mut tensors, size)?;
            }
            return Ok(WeightSource {
                config,
                image_processor,
                pooling: folder_settings::pooling(path)?,
                tensors,
                kind: "a Hugging Face directory",
                ..WeightSource::default()
            });
        }
        let mut source = WeightSource::from_bytes(&path.display().to_string(), huggingface::file(path)?)?;
        let named = path.file_name().is_some_and(|n| n == "model.safetensors" || n == "pytorch_model.bin");
        if let (true, Some(folder)) = (named, path.parent()) {
            source.config = config_of(folder)?;
        }
        Ok(source)
    }

    /// Like [`WeightSource::open`], from bytes; `name` is for error messages.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<WeightSource> {
        let plain = |tensors, kind| WeightSource {
            tensors: named_as_today(tensors),
            kind,
            ..WeightSource::default()
        };
        let read = || -> Result<WeightSource> {
            if bytes.starts_with(b"PK") {
                if let Some(keras) = KerasFile::from_zip(&bytes)? {
                    let tensors = keras.tensors()?;
                    return Ok(WeightSource {
                        tensors,
                        keras: Some(keras),
                        kind: "a Keras model",
                        ..WeightSource::default()
                    });
                }
                return Ok(plain(torch::read(&bytes)?, "a PyTorch file"));
            }
            if legacy_torch::is_one(&bytes) {
                return Ok(plain(torch::read(&bytes)?, "a PyTorch file"));
            }
            if hdf5::is_one(&bytes) {
                let keras = KerasFile::from_hdf5(&bytes)?;
                let tensors = keras.tensors()?;
                return Ok(WeightSource {
                    tensors,
                    keras: Some(keras),
                    kind: "Keras weights",
                    ..WeightSource::default()
                });
            }
            if safetensors::is_one(&bytes) {
                return Ok(plain(safetensors::read(&bytes)?, "a safetensors file"));
            }
            Err(unknown(&bytes))
        };
        read().at(|| name.to_string())
    }

    /// Sets the config.json to read Hugging Face weights with.
    ///
    /// # Errors
    /// If it is not valid JSON.
    pub fn set_config(&mut self, json: &[u8]) -> Result<()> {
        self.config = Some(distilbert::config_as_bert(huggingface::parsed("config.json", json)?));
        Ok(())
    }

    /// Makes a token padding that attention masks: the tokenizer pads texts with it.
    pub fn mask_padding(&mut self, token: u32) {
        self.padding = Some(token);
    }

    /// Selects the encoder of a model of images and texts, such as CLIP.
    pub fn select_tower(&mut self, tower: Tower) {
        self.tower = tower;
    }

    /// Whether the file has an encoder of images and one of texts.
    pub fn has_towers(&self) -> bool {
        let starts = |with: &str| self.tensors.iter().any(|(name, _)| name.starts_with(with));
        starts("vision_model.") && starts("text_model.")
    }

    /// Returns how images are prepared for the model, if its folder states it.
    pub fn image_processor(&self) -> Option<&ImageProcessor> {
        self.image_processor.as_ref()
    }

    /// Returns the `model_type` of config.json, if there is one.
    pub fn model_type(&self) -> Option<&str> {
        self.config.as_ref()?.get("model_type")?.as_str()
    }

    /// Adds what a pretrained model's file does not state: the application with its layers, the preparation of images, and
    /// the names of the classes.
    ///
    /// # Errors
    /// If there is no such application.
    pub(crate) fn set_pretrained(
        &mut self,
        application: Option<&'static str>,
        processor: ImageProcessor,
        classes: Vec<String>,
    ) -> Result<()> {
        (self.application, self.image_processor, self.classes) = (application, Some(processor), classes);
        if let (Some(keras), Some(name)) = (&mut self.keras, application) {
            let layers = applications::by_name(name, &Map::new())?;
            let names: Vec<&str> = layers.nodes.iter().map(|node| node.name.as_str()).collect();
            keras.split_nested(&names);
        }
        Ok(())
    }

    /// Reverses the channels that the first convolution reads: a model of blue, green, red reads red, green, blue.
    ///
    /// # Errors
    /// If no convolution reads three channels.
    pub(crate) fn reverse_image_channels(&mut self) -> Result<()> {
        let is_first = |value: &Literal| matches!(*value.shape().dims(), [_, _, 3, _]);
        let kernel = self.tensors.iter_mut().map(|(_, value)| value).find(|value| is_first(value));
        let Some(kernel) = kernel else {
            return Err(
                err!(Data, "no convolution of the file reads three channels").hint("download the file again")
            );
        };
        let filters = kernel.shape().dims()[3];
        let values = kernel.to_f32s();
        let reversed: Vec<f32> = values
            .chunks(3 * filters)
            .flat_map(|pixel| pixel.chunks(filters).rev().flatten())
            .copied()
            .collect();
        *kernel = Literal::from_slice(kernel.shape().dims(), &reversed)?;
        Ok(())
    }

    /// Returns the class names of `id2label` in config.json, by index; none if there are only transformers' defaults
    /// (`LABEL_0`).
    pub fn class_names(&self) -> Vec<String> {
        if !self.classes.is_empty() {
            return self.classes.clone();
        }
        let labels = self.config.as_ref().and_then(|c| c.get("id2label")).and_then(Value::as_object);
        let names = (0..labels.map_or(0, |l| l.len()))
            .map(|i| labels?.get(&i.to_string())?.as_str().map(String::from))
            .collect::<Option<Vec<String>>>()
            .unwrap_or_default();
        let is_default = |(i, name): (usize, &String)| *name == format!("LABEL_{i}");
        if names.iter().enumerate().all(is_default) { Vec::new() } else { names }
    }

    /// Returns the weight file's format for messages: "a PyTorch file".
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Returns names and values of the tensors, in file order.
    pub fn tensors(&self) -> &[(String, Literal)] {
        &self.tensors
    }

    /// Infers the layers and the type of one sample of each input, if possible: from a Keras model, or from the tensor
    /// names of one of [`families`](crate::families).
    ///
    /// # Errors
    /// If a layer is unsupported (names it), or the file is inconsistent.
    pub fn architecture(&self) -> Result<Option<(Architecture, Vec<TensorType>)>> {
        if let Some(name) = self.application {
            let mut layers = applications::by_name(name, &Map::new())?;
            let processor = self.image_processor.as_ref();
            // A mean of 0 and a deviation of 1: the model's own layers scale pixels.
            if let Some(p) = processor.filter(|p| p.mean != [0.0; 3] || p.deviation != [1.0; 3]) {
                prepend_normalization(&mut layers, &p.mean, &p.deviation);
            }
            let [height, width] = processor.and_then(ImageProcessor::size).unwrap_or([224; 2]);
            return Ok(Some((layers, vec![TensorType::new(DType::F32, [height, width, 3])])));
        }
        if let Some(keras) = &self.keras {
            return keras.architecture();
        }
        Ok(self.derived()?.map(|derived| (derived.architecture, derived.inputs)))
    }

    /// Returns the properties of [`WeightSource::architecture`] that the file does not state and that are guessed.
    ///
    /// # Errors
    /// See [`WeightSource::architecture`].
    pub fn guesses(&self) -> Result<Vec<String>> {
        match &self.keras {
            Some(_) => Ok(Vec::new()),
            None => Ok(self.derived()?.map_or_else(Vec::new, |derived| derived.config.guesses)),
        }
    }

    /// Returns settings of the file that change further training only and that [`WeightSource::architecture`] does not
    /// use: regularizers, constraints, other dropout rates.
    ///
    /// # Errors
    /// See [`WeightSource::architecture`].
    pub fn unused_settings(&self) -> Result<Vec<String>> {
        match &self.keras {
            Some(keras) => Ok(keras.unused_settings()),
            None => Ok(self.derived()?.map_or_else(Vec::new, |derived| derived.config.unused)),
        }
    }

    fn files(&self) -> WeightFiles<'_> {
        WeightFiles {
            tensors: &self.tensors,
            config: self.config.as_ref(),
            padding: self.padding,
            pooling: self.pooling,
            image_size: self.image_processor.as_ref().and_then(ImageProcessor::size),
            tower: self.tower,
        }
    }

    /// Returns the family of the tensors, and their common name prefix.
    fn family(&self, files: &WeightFiles<'_>) -> Option<(&'static ModelFamily, &'static str)> {
        FAMILIES.iter().find_map(|family| (family.prefix)(files).map(|prefix| (family, prefix)))
    }

    /// Derives the layers from tensor names and config.json.
    fn derived(&self) -> Result<Option<DerivedModel>> {
        let files = self.files();
        let Some((family, prefix)) = self.family(&files) else { return Ok(None) };
        let mut derived = (family.architecture)(&files, prefix)?;
        let is_image = derived.inputs.first().is_some_and(|ty| ty.dtype.is_float() && ty.rank() == 3);
        if let Some(processor) = self.image_processor.as_ref().filter(|_| is_image) {
            prepend_normalization(&mut derived.architecture, &processor.mean, &processor.deviation);
        }
        Ok(Some(derived))
    }

    /// Fills the weights of a built model. Without `partial`, unmatched tensors are an error.
    ///
    /// # Errors
    /// If shapes differ (names both), or tensors are missing or unmatched.
    pub fn fill(&self, model: &mut Model, partial: bool) -> Result<ImportReport> {
        ensure!(model.is_built(), err!(Config, "the model has no weights yet").hint("build the model first"));
        let (rules, note) = self.rules(model)?;
        let files = self.files();
        let family = self.family(&files).map(|(family, _)| family);
        // Only the family's layers make a tensor superfluous; GPT-2's masks are never weights.
        let family = family.filter(|family| (family.is_one)(model) || family.name == gpt2::FAMILY.name);
        let is_idle = |name: &str| family.is_some_and(|family| (family.is_unused)(model, &files, name));
        let idle: HashSet<&str> =
            self.tensors.iter().map(|(n, _)| n.as_str()).filter(|n| is_idle(n)).collect();
        let theirs = self.tensors.iter().filter(|(n, v)| is_weight(n, v) && !idle.contains(n.as_str()));
        let wrong_order =
            (note == BY_ORDER && match_by_order::is_sorted(&self.tensors)).then_some(match_by_order::SORTED);
        let theirs = theirs.cloned().collect::<Vec<_>>();
        let mut report = weight_mapping::fill(model, &rules, &theirs, partial, wrong_order)?;
        if [BY_NAME, BY_ORDER].contains(&note.as_str()) {
            report.warnings = torch_defaults::warnings(model);
        }
        report.notes.push(note);
        let mut heads = self.tensors.iter().filter(|(n, _)| idle.contains(n.as_str()) && !gpt2::is_mask(n));
        if let Some((first, _)) = heads.next().filter(|(n, _)| n != "lm_head.weight") {
            let more = heads.count();
            report.notes.push(format!(
                "ignored: {first} and {more} more, which belong to parts that the model does not have"
            ));
        }
        Ok(report)
    }

    fn rules(&self, model: &Model) -> Result<(Vec<weight_mapping::WeightRule>, String)> {
        if let Some(keras) = &self.keras {
            let (rules, note) = keras_names::rules(model, &keras.weights, &self.tensors)?;
            return Ok((rules, note.into()));
        }
        let files = self.files();
        if let Some((family, prefix)) = self.family(&files).filter(|(family, _)| (family.is_one)(model)) {
            return Ok(((family.rules)(model, &files, prefix)?, format!("by {} tensor names", family.name)));
        }
        if let Some(rules) = keras_names::ours(model, &self.tensors) {
            return Ok((rules, "by Systole weight paths".into()));
        }
        if let Some(rules) = match_by_order::by_name(model, &self.tensors) {
            return Ok((rules, BY_NAME.into()));
        }
        let rules = match_by_order::rules(model, &self.tensors)?;
        Ok((rules, BY_ORDER.into()))
    }
}

/// Reads config.json of a folder.
///
/// # Errors
/// If it is that of a large language model.
fn config_of(folder: &Path) -> Result<Option<Value>> {
    let config = huggingface::config(folder)?.map(distilbert::config_as_bert);
    config.as_ref().map_or(Ok(()), language_models::refuse).at(|| folder.display().to_string())?;
    Ok(config)
}

/// Renames a BERT's tensors to their current names, and a DistilBERT's to a BERT's.
fn named_as_today(mut tensors: Vec<(String, Literal)>) -> Vec<(String, Literal)> {
    distilbert::as_bert(&mut tensors);
    if bert::prefix(&tensors).is_some() {
        tensors.iter_mut().for_each(|(name, _)| *name = bert::today(name));
    }
    tensors
}

fn unknown(bytes: &[u8]) -> Error {
    let e = err!(Data, "unknown weight file format");
    if let Some(format) = ModelFormat::of(bytes).filter(|f| *f != ModelFormat::Pickle) {
        return err!(Unsupported, "cannot import weights from {}", format.name()).hint_command(format.hint());
    }
    if bytes.starts_with(b"\x80") {
        return e
            .because("it is a pickle without PyTorch's magic number: from another program")
            .hint("load it in PyTorch and save it again: torch.save(model.state_dict(), \"weights.pt\")");
    }
    let begin: Vec<String> = bytes.iter().take(8).map(|b| format!("{b:02x}")).collect();
    e.because(format!(
        "the file starts with {}",
        if begin.is_empty() { "nothing".into() } else { begin.join(" ") }
    ))
    .hint_command("pass a .pt, .safetensors, .keras or .h5 file, or a Hugging Face directory")
}
