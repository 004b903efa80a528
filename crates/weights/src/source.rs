//! A file or folder of weights, opened by its content; what model it is of, where it says so; and a model filled from it.

use crate::keras::KerasFile;
use crate::names::{bert, gpt2, keras as keras_names, match_by_order, resnet, vit};
use crate::weight_mapping::{self, ImportReport, is_weight};
use crate::{hdf5, huggingface, safetensors, torch};
use serde_json::Value;
use std::path::Path;
use systole_ir::{Error, ErrorKind, Literal, Result, ResultExt, TensorType};
use systole_nn::{Architecture, Model};

/// Weights of another system, in memory.
pub struct WeightSource {
    tensors: Vec<(String, Literal)>,
    /// config.json of Hugging Face.
    config: Option<Value>,
    keras: Option<KerasFile>,
    kind: &'static str,
}

impl WeightSource {
    /// Reads a file, or a folder as Hugging Face has it.
    ///
    /// # Errors
    /// When it is of no known kind, damaged, or made to fill memory; nothing of it is executed.
    pub fn open(path: &Path) -> Result<WeightSource> {
        if path.is_dir() {
            let config = huggingface::config(path)?;
            let tensors = named_as_today(huggingface::tensors(path)?);
            return Ok(WeightSource { tensors, config, keras: None, kind: "a folder of Hugging Face" });
        }
        let mut source = WeightSource::from_bytes(&path.display().to_string(), huggingface::file(path)?)?;
        let named = path.file_name().is_some_and(|n| n == "model.safetensors" || n == "pytorch_model.bin");
        if let (true, Some(folder)) = (named, path.parent()) {
            source.config = huggingface::config(folder)?;
        }
        Ok(source)
    }

    /// As [`WeightSource::open`], of a file's content; `name` is for errors.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<WeightSource> {
        let plain = |tensors, kind| WeightSource {
            tensors: named_as_today(tensors),
            config: None,
            keras: None,
            kind,
        };
        let read = || -> Result<WeightSource> {
            if bytes.starts_with(b"PK") {
                if let Some(keras) = KerasFile::from_zip(&bytes)? {
                    let tensors = keras.tensors()?;
                    return Ok(WeightSource {
                        tensors,
                        config: None,
                        keras: Some(keras),
                        kind: "a model of Keras",
                    });
                }
                return Ok(plain(torch::read(&bytes)?, "a file of PyTorch"));
            }
            if hdf5::is_one(&bytes) {
                let keras = KerasFile::from_hdf5(&bytes)?;
                let tensors = keras.tensors()?;
                return Ok(WeightSource {
                    tensors,
                    config: None,
                    keras: Some(keras),
                    kind: "weights of Keras",
                });
            }
            if safetensors::is_one(&bytes) {
                return Ok(plain(safetensors::read(&bytes)?, "a safetensors file"));
            }
            Err(unknown(&bytes))
        };
        read().at(|| name.to_string())
    }

    /// What the config.json of Hugging Face beside the file says, in place of what was beside it.
    ///
    /// # Errors
    /// When it is no JSON.
    pub fn set_config(&mut self, json: &[u8]) -> Result<()> {
        self.config = Some(huggingface::parsed("config.json", json)?);
        Ok(())
    }

    /// What kind of file it is: "a file of PyTorch".
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Names and values, in the file's order.
    pub fn tensors(&self) -> &[(String, Literal)] {
        &self.tensors
    }

    /// The layers that the weights are of and the types of one sample of what they take, where the file says so: a model
    /// of Keras, or names of a ResNet, GPT-2, BERT or ViT.
    ///
    /// # Errors
    /// When the file names a layer that is not there (names it), or what it says does not fit together.
    pub fn architecture(&self) -> Result<Option<(Architecture, Vec<TensorType>)>> {
        if let Some(keras) = &self.keras {
            return keras.architecture();
        }
        if let Some(prefix) = gpt2::prefix(&self.tensors) {
            let (layers, input) = gpt2::architecture(&self.tensors, self.config.as_ref(), prefix)?;
            return Ok(Some((layers, vec![input])));
        }
        if let Some(prefix) = bert::prefix(&self.tensors) {
            return bert::architecture(&self.tensors, self.config.as_ref(), prefix).map(Some);
        }
        if let Some(prefix) = vit::prefix(&self.tensors) {
            let (layers, input) = vit::architecture(&self.tensors, self.config.as_ref(), prefix)?;
            return Ok(Some((layers, vec![input])));
        }
        if let Some(style) = resnet::style(&self.tensors) {
            let (layers, input) = resnet::architecture(&self.tensors, style)?;
            return Ok(Some((layers, vec![input])));
        }
        Ok(None)
    }

    /// Puts the weights into a built model. Without `partial` a tensor that has no place there is an error.
    ///
    /// # Errors
    /// When shapes differ (names both), or tensors are missing or left over.
    pub fn fill(&self, model: &mut Model, partial: bool) -> Result<ImportReport> {
        if !model.is_built() {
            return Err(Error::new(ErrorKind::Config, "the model has no weights yet").hint("build it first"));
        }
        let (rules, note) = self.rules(model)?;
        let is_idle = self.idle(model);
        let theirs = self.tensors.iter().filter(|(n, v)| is_weight(n, v) && !is_idle(n));
        let mut report = weight_mapping::fill(model, &rules, &theirs.cloned().collect::<Vec<_>>(), partial)?;
        report.notes.push(note.into());
        let mut heads = self.tensors.iter().filter(|(n, _)| is_idle(n) && !gpt2::is_mask(n));
        if let Some((first, _)) = heads.next().filter(|(n, _)| n != "lm_head.weight") {
            let more = heads.count();
            report
                .notes
                .push(format!("left out: {first} and {more} more, of heads that the model does not have"));
        }
        Ok(report)
    }

    /// Tells arrays that belong to a family and are no weights of the model: masks, a table that is tied, heads for training.
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
            return Ok((keras_names::rules(model, &keras.weights, &self.tensors)?, "by the layers' names"));
        }
        if let Some(style) = resnet::style(&self.tensors).filter(|_| resnet::is_one(model)) {
            return Ok((resnet::rules(model, style)?, "by the names of a ResNet"));
        }
        if let Some(prefix) = bert::prefix(&self.tensors).filter(|_| bert::is_one(model)) {
            return Ok((bert::rules(model, prefix)?, "by the names of BERT"));
        }
        if let Some(prefix) = vit::prefix(&self.tensors).filter(|_| vit::is_one(model)) {
            return Ok((vit::rules(model, prefix)?, "by the names of ViT"));
        }
        if let Some(prefix) = gpt2::prefix(&self.tensors).filter(|_| gpt2::is_one(model)) {
            return Ok((gpt2::rules(model, prefix)?, "by the names of GPT-2"));
        }
        if let Some(rules) = keras_names::ours(model, &self.tensors) {
            return Ok((rules, "by our own names"));
        }
        let rules = match_by_order::rules(model, &self.tensors)?;
        Ok((
            rules,
            "by the order of the layers, each checked by kind and shape: names say nothing of this model",
        ))
    }
}

/// Of a BERT with the names that it has today.
fn named_as_today(mut tensors: Vec<(String, Literal)>) -> Vec<(String, Literal)> {
    if bert::prefix(&tensors).is_some() {
        tensors.iter_mut().for_each(|(name, _)| *name = bert::today(name));
    }
    tensors
}

fn unknown(bytes: &[u8]) -> Error {
    let e = Error::new(ErrorKind::Data, "this is no file of weights that is known here");
    if bytes.starts_with(b"\x80") {
        return e
            .because("it begins as a bare pickle: PyTorch before 1.6, or another program's")
            .hint("load it in PyTorch and save it again: torch.save(model.state_dict(), \"weights.pt\")");
    }
    let begin: Vec<String> = bytes.iter().take(8).map(|b| format!("{b:02x}")).collect();
    e.because(format!("it begins with {}", if begin.is_empty() { "nothing".into() } else { begin.join(" ") }))
        .hint("name a .pt, .safetensors, .keras or .h5 file, or a folder of Hugging Face")
}
