//! Opens weight files and directories by content, infers the model architecture if possible, and fills a model.

use crate::keras::KerasFile;
use crate::names::bert::BertNames;
use crate::names::hf_config::DerivedModel;
use crate::names::{bert, distilbert, gpt2, keras as keras_names, match_by_order, resnet, vit};
use crate::weight_mapping::{self, ImportReport, is_weight};
use crate::{hdf5, huggingface, legacy_torch, safetensors, torch};
use serde_json::Value;
use std::path::Path;
use systole_data::format::ModelFormat;
use systole_ir::{Error, Literal, Result, ResultExt, TensorType, ensure, err};
use systole_nn::{Architecture, Model};

/// Note on weights that are matched by order.
const BY_ORDER: &str = "by layer order, as in files of PyTorch's state_dict: types and shapes agree";

/// External weights (PyTorch, Keras, safetensors, Hugging Face), loaded into memory.
pub struct WeightSource {
    tensors: Vec<(String, Literal)>,
    /// Hugging Face's config.json.
    config: Option<Value>,
    keras: Option<KerasFile>,
    kind: &'static str,
    /// Whether token 0 of a BERT is padding.
    masks_padding: bool,
}

impl WeightSource {
    /// Reads a weight file, or a Hugging Face directory.
    ///
    /// # Errors
    /// If the format is unknown, or the file is damaged or malicious; nothing in it is executed.
    pub fn open(path: &Path) -> Result<WeightSource> {
        if path.is_dir() {
            let config = huggingface::config(path)?.map(distilbert::config_as_bert);
            let tensors = named_as_today(huggingface::tensors(path)?);
            return Ok(WeightSource {
                tensors,
                config,
                keras: None,
                kind: "a Hugging Face directory",
                masks_padding: false,
            });
        }
        let mut source = WeightSource::from_bytes(&path.display().to_string(), huggingface::file(path)?)?;
        let named = path.file_name().is_some_and(|n| n == "model.safetensors" || n == "pytorch_model.bin");
        if let (true, Some(folder)) = (named, path.parent()) {
            source.config = huggingface::config(folder)?.map(distilbert::config_as_bert);
        }
        Ok(source)
    }

    /// Like [`WeightSource::open`], from bytes; `name` is for error messages.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<WeightSource> {
        let plain = |tensors, kind| WeightSource {
            tensors: named_as_today(tensors),
            config: None,
            keras: None,
            kind,
            masks_padding: false,
        };
        let read = || -> Result<WeightSource> {
            if bytes.starts_with(b"PK") {
                if let Some(keras) = KerasFile::from_zip(&bytes)? {
                    let tensors = keras.tensors()?;
                    return Ok(WeightSource {
                        tensors,
                        config: None,
                        keras: Some(keras),
                        kind: "a Keras model",
                        masks_padding: false,
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
                    config: None,
                    keras: Some(keras),
                    kind: "Keras weights",
                    masks_padding: false,
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

    /// Makes token 0 of a BERT padding that attention masks: its tokenizer pads texts with it.
    pub fn mask_padding(&mut self) {
        self.masks_padding = true;
    }

    /// Returns the class names of `id2label` in config.json, by index; none if there are only transformers' defaults
    /// (`LABEL_0`).
    pub fn class_names(&self) -> Vec<String> {
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
    /// names of a ResNet, GPT-2, BERT or ViT.
    ///
    /// # Errors
    /// If a layer is unsupported (names it), or the file is inconsistent.
    pub fn architecture(&self) -> Result<Option<(Architecture, Vec<TensorType>)>> {
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

    /// Derives the layers from tensor names and config.json.
    fn derived(&self) -> Result<Option<DerivedModel>> {
        let (all, config) = (&self.tensors, self.config.as_ref());
        if let Some(prefix) = gpt2::prefix(all) {
            return gpt2::architecture(all, config, prefix).map(Some);
        }
        if let Some(prefix) = bert::prefix(all) {
            return bert::architecture(all, config, prefix, self.masks_padding).map(Some);
        }
        if let Some(prefix) = vit::prefix(all) {
            return vit::architecture(all, config, prefix).map(Some);
        }
        resnet::style(all).map(|style| resnet::architecture(all, config, style)).transpose()
    }

    /// Fills the weights of a built model. Without `partial`, unmatched tensors are an error.
    ///
    /// # Errors
    /// If shapes differ (names both), or tensors are missing or unmatched.
    pub fn fill(&self, model: &mut Model, partial: bool) -> Result<ImportReport> {
        ensure!(model.is_built(), err!(Config, "the model has no weights yet").hint("build the model first"));
        let (rules, note) = self.rules(model)?;
        let is_idle = self.idle(model);
        let theirs = self.tensors.iter().filter(|(n, v)| is_weight(n, v) && !is_idle(n));
        let wrong_order =
            (note == BY_ORDER && match_by_order::is_sorted(&self.tensors)).then_some(match_by_order::SORTED);
        let theirs = theirs.cloned().collect::<Vec<_>>();
        let mut report = weight_mapping::fill(model, &rules, &theirs, partial, wrong_order)?;
        report.notes.push(note.into());
        let mut heads = self.tensors.iter().filter(|(n, _)| is_idle(n) && !gpt2::is_mask(n));
        if let Some((first, _)) = heads.next().filter(|(n, _)| n != "lm_head.weight") {
            let more = heads.count();
            report.notes.push(format!(
                "ignored: {first} and {more} more, which belong to heads that the model does not have"
            ));
        }
        Ok(report)
    }

    /// Returns a filter for a family's arrays that are not weights of the model: masks, tied tables, pretraining heads.
    fn idle(&self, model: &Model) -> impl Fn(&str) -> bool + use<> {
        let is_gpt2 = gpt2::prefix(&self.tensors).is_some();
        let tied = is_gpt2 && model.weight("token_embedding/reverse_embeddings").is_err();
        let is_bert = bert::prefix(&self.tensors).is_some() && bert::is_one(model);
        let vit = vit::prefix(&self.tensors).filter(|_| vit::is_one(model));
        move |name| {
            (is_gpt2 && gpt2::is_mask(name))
                || (tied && name == "lm_head.weight")
                || (is_bert && bert::is_head(name))
                || vit.is_some_and(|prefix| vit::is_pooler(name, prefix))
        }
    }

    fn rules(&self, model: &Model) -> Result<(Vec<weight_mapping::WeightRule>, &'static str)> {
        if let Some(keras) = &self.keras {
            return keras_names::rules(model, &keras.weights, &self.tensors);
        }
        if let Some(style) = resnet::style(&self.tensors).filter(|_| resnet::is_one(model)) {
            return Ok((resnet::rules(model, style)?, "by ResNet tensor names"));
        }
        if let Some(prefix) = bert::prefix(&self.tensors).filter(|_| bert::is_one(model)) {
            let names = BertNames::of(&self.tensors, self.config.as_ref(), prefix)?;
            return Ok((bert::rules(model, names)?, "by BERT tensor names"));
        }
        if let Some(prefix) = vit::prefix(&self.tensors).filter(|_| vit::is_one(model)) {
            return Ok((vit::rules(model, prefix)?, "by ViT tensor names"));
        }
        if let Some(prefix) = gpt2::prefix(&self.tensors).filter(|_| gpt2::is_one(model)) {
            return Ok((gpt2::rules(model, prefix)?, "by GPT-2 tensor names"));
        }
        if let Some(rules) = keras_names::ours(model, &self.tensors) {
            return Ok((rules, "by Systole weight paths"));
        }
        let rules = match_by_order::rules(model, &self.tensors)?;
        Ok((rules, BY_ORDER))
    }
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
