//! Reads Hugging Face's config.json, and rejects unknown keys by name.
//!
//! A known key is used, compared with the tensors, or ignored because it does not change the results. Values that
//! neither the file nor transformers' defaults give are guesses, which the importer reports.

use super::transformer_encoder::odd;
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;
use systole_ir::{Error, ErrorKind, Result, TensorType};
use systole_nn::{Activation, Architecture};

/// Layers derived from a file.
pub(crate) struct DerivedModel {
    pub architecture: Architecture,
    /// Type of one sample of each input.
    pub inputs: Vec<TensorType>,
    /// Properties that the file does not state.
    pub config: ConfigNotes,
}

/// Report of an importer on a config.json.
#[derive(Default)]
pub(crate) struct ConfigNotes {
    /// Properties that no file states.
    pub guesses: Vec<String>,
    /// Settings that change further training only and are not used.
    pub unused: Vec<String>,
}

/// config.json of one family.
pub(crate) struct FamilyConfig<'a> {
    family: &'static str,
    keys: Option<&'a Map<String, Value>>,
    read: RefCell<BTreeSet<String>>,
    guesses: RefCell<Vec<String>>,
    unused: RefCell<Vec<String>>,
}

/// Keys that describe the file, training, tokens or text generation, but not what the model computes.
const WITHOUT_EFFECT: [&str; 58] = [
    "architectures",
    "attn_implementation",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "decoder_start_token_id",
    "directionality",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "encoder_stride",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "initializer_factor",
    "initializer_range",
    "keys_to_ignore_at_inference",
    "language",
    "layer_norm_init",
    "length_penalty",
    "max_length",
    "min_length",
    "name",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_past",
    "out_features",
    "out_indices",
    "pad_token_id",
    "pooler_act",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_output_size",
    "pooler_size_per_head",
    "pooler_type",
    "prefix",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sbert_ce_default_activation_function",
    "sep_token_id",
    "stage_names",
    "suppress_tokens",
    "task_specific_params",
    "tokenizer_class",
    "transformers_version",
    "use_cache",
];

/// More keys without effect; those of double heads (`summary_…`) and of sampling.
const MORE_WITHOUT_EFFECT: [&str; 19] = [
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "sentence_transformers",
    "summary_activation",
    "summary_first_dropout",
    "summary_last_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "temperature",
    "tf_legacy_loss",
    "tokenizer",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "typical_p",
    "use_bfloat16",
];

impl<'a> FamilyConfig<'a> {
    /// # Errors
    /// If the file is not an object, or is of another kind of model than `model_types`.
    pub fn new(
        family: &'static str,
        model_types: &[&str],
        config: Option<&'a Value>,
    ) -> Result<FamilyConfig<'a>> {
        let keys = config
            .map(|c| c.as_object().ok_or_else(|| odd(family, "config.json is not an object")))
            .transpose()?;
        let this = FamilyConfig {
            family,
            keys,
            read: RefCell::default(),
            guesses: RefCell::default(),
            unused: RefCell::default(),
        };
        match this.text("model_type")? {
            Some(kind) if !model_types.contains(&kind) => {
                let why = format!(
                    "config.json: unsupported model_type {kind}; supported are {}",
                    model_types.join(", ")
                );
                Err(this.wrong(why))
            }
            _ => Ok(this),
        }
    }

    pub fn wrong(&self, why: impl AsRef<str>) -> Error {
        odd(self.family, why.as_ref())
    }

    /// Whether there is a config.json.
    pub fn exists(&self) -> bool {
        self.keys.is_some()
    }

    /// Returns a key's value, unless it is null, and marks the key as read.
    fn value(&self, key: &str) -> Option<&'a Value> {
        self.read.borrow_mut().insert(key.into());
        self.keys?.get(key).filter(|v| !v.is_null())
    }

    fn of_kind<T>(&self, key: &str, kind: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let wrong = || self.wrong(format!("config.json: {key} is {value}, expected {kind}"));
        read(value).map(Some).ok_or_else(wrong)
    }

    pub fn text(&self, key: &str) -> Result<Option<&'a str>> {
        self.of_kind(key, "a string", Value::as_str)
    }

    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        self.of_kind(key, "a number", Value::as_f64)
    }

    pub fn count(&self, key: &str) -> Result<Option<usize>> {
        self.of_kind(key, "an integer", |v| v.as_u64().and_then(|n| usize::try_from(n).ok()))
    }

    /// Returns a Boolean key of config.json; `default` (that of transformers) if it is absent.
    pub fn is(&self, key: &str, default: bool) -> Result<bool> {
        Ok(self.of_kind(key, "true or false", Value::as_bool)?.unwrap_or(default))
    }

    /// Rejects a Boolean key with another value than `supported`, which is also its default.
    pub fn only(&self, key: &str, supported: bool) -> Result<()> {
        match self.is(key, supported)? == supported {
            true => Ok(()),
            false => Err(self.wrong(format!("config.json: {key} = {} is not supported", !supported))),
        }
    }

    /// Marks keys as known that do not change what the model computes.
    pub fn ignore(&self, keys: &[&str]) {
        self.read.borrow_mut().extend(keys.iter().map(ToString::to_string));
    }

    /// Marks the keys of a classification head as known, for encoders without one.
    pub fn ignore_head(&self) {
        self.ignore(&["id2label", "label2id", "num_labels", "problem_type"]);
    }

    /// Rejects settings that turn an encoder into a decoder, and removed heads.
    pub fn check_encoder(&self) -> Result<()> {
        for key in ["is_decoder", "add_cross_attention", "is_encoder_decoder"] {
            self.only(key, false)?;
        }
        self.ignore(&["tie_word_embeddings", "tie_encoder_decoder", "cross_attention_hidden_size"]);
        self.ignore_head();
        self.nothing_pruned()
    }

    /// Rejects heads that were removed from single layers.
    pub fn nothing_pruned(&self) -> Result<()> {
        match self.value("pruned_heads") {
            Some(heads) if heads.as_object().is_none_or(|heads| !heads.is_empty()) => {
                Err(self.wrong(format!("config.json: pruned_heads = {heads} is not supported")))
            }
            _ => Ok(()),
        }
    }

    /// Rejects a size key that differs from the tensors' size.
    pub fn same(&self, key: &str, size: usize) -> Result<()> {
        match self.count(key)? {
            Some(n) if n != size => {
                Err(self.wrong(format!("config.json: {key} is {n}, but the tensors have {size}")))
            }
            _ => Ok(()),
        }
    }

    /// Rejects size keys that differ from the tensors' sizes.
    pub fn same_all(&self, sizes: &[(&str, usize)]) -> Result<()> {
        sizes.iter().try_for_each(|(key, size)| self.same(key, *size))
    }

    /// Rejects a list of sizes that differs from the tensors' sizes.
    pub fn same_list(&self, key: &str, sizes: &[usize]) -> Result<()> {
        let list = |v: &Value| -> Option<Vec<usize>> {
            v.as_array()?.iter().map(|n| usize::try_from(n.as_u64()?).ok()).collect()
        };
        match self.of_kind(key, "a list of integers", list)? {
            Some(stated) if stated != sizes => {
                Err(self.wrong(format!("config.json: {key} is {stated:?}, but the tensors have {sizes:?}")))
            }
            _ => Ok(()),
        }
    }

    /// Records a property that no file states, for the report.
    pub fn guess(&self, what: impl Into<String>) {
        self.guesses.borrow_mut().push(what.into());
    }

    /// Returns the dropout rate of all layers, from the key that transformers applies most, and notes other rates, which
    /// are not used.
    pub fn dropout(&self, key: &str, default: f64, others: &[&str]) -> Result<f64> {
        let rate = self.number(key)?.unwrap_or(default);
        for other in others {
            if let Some(theirs) = self.number(other)?.filter(|theirs| *theirs != rate) {
                self.unused.borrow_mut().push(format!("{other} = {theirs}: all dropout rates are {rate}"));
            }
        }
        Ok(rate)
    }

    /// Returns the number of heads: without config.json by their width of 64 in most published models.
    pub fn heads(&self, key: &str, width: usize) -> Result<usize> {
        let heads = match self.count(key)? {
            Some(n) => n,
            None if self.exists() => 12,
            None => {
                let n = (width / 64).max(1);
                self.guess(format!("{n} attention heads of width {}", width / n));
                n
            }
        };
        match heads > 0 && width.is_multiple_of(heads) {
            true => Ok(heads),
            false => Err(self.wrong(format!("its width {width} is not divisible by {heads} heads"))),
        }
    }

    /// Returns a numeric key; without config.json, `usual`, which is reported as a guess.
    pub fn number_or(&self, key: &str, default: f64, usual: f64) -> Result<f64> {
        match self.number(key)? {
            Some(n) => Ok(n),
            None if self.exists() => Ok(default),
            None => {
                self.guess(format!("{key} = {usual:e}"));
                Ok(usual)
            }
        }
    }

    /// Returns the string value of a key, or `default` if it is missing. Without config.json the default is a guess.
    pub fn text_or(&self, key: &str, default: &'static str) -> Result<&'a str> {
        match self.text(key)? {
            Some(text) => Ok(text),
            None => {
                if !self.exists() {
                    self.guess(format!("{key} = {default}"));
                }
                Ok(default)
            }
        }
    }

    /// Returns the activation of a head with this number of outputs, as transformers' losses imply it.
    ///
    /// # Errors
    /// If `problem_type` is unknown, or the labels are not as many as the outputs.
    pub fn head(&self, outputs: usize) -> Result<Activation> {
        let kind = self.text("problem_type")?;
        let labels = |key: &str| self.of_kind(key, "an object", |v| v.as_object().map(Map::len));
        let (stated, named) = (self.count("num_labels")?, labels("id2label")?);
        labels("label2id")?;
        if outputs == 0 {
            return Ok(Activation::Softmax);
        }
        for (key, n) in [("num_labels", stated), ("id2label", named)] {
            if let Some(n) = n.filter(|n| *n != outputs) {
                return Err(self.wrong(format!(
                    "config.json: {key} has {n} labels, but the head has {outputs} outputs"
                )));
            }
        }
        match kind {
            Some("regression") => Ok(Activation::Linear),
            Some("single_label_classification") => Ok(Activation::Softmax),
            Some("multi_label_classification") => Ok(Activation::Sigmoid),
            Some(other) => Err(self.wrong(format!("config.json: unsupported problem_type {other}"))),
            None if outputs == 1 => {
                self.guess("a regression, because the head has one output");
                Ok(Activation::Linear)
            }
            None => Ok(Activation::Softmax),
        }
    }

    /// Rejects keys that were not read and may change the results; returns what the importer reports.
    pub fn finish(self) -> Result<ConfigNotes> {
        let read = self.read.borrow();
        let is_known = |key: &str| {
            read.contains(key)
                || key.starts_with('_')
                || WITHOUT_EFFECT.contains(&key)
                || MORE_WITHOUT_EFFECT.contains(&key)
        };
        let left = self.keys.into_iter().flatten().find(|(key, value)| !value.is_null() && !is_known(key));
        if let Some((key, value)) = left {
            let what = format!("cannot build a {} from these weights", self.family);
            return Err(Error::new(ErrorKind::Data, what)
                .because(format!("config.json: unknown key {key} = {value}"))
                .hint(format!(
                    "remove {key} from config.json if it does not change what the model computes"
                )));
        }
        drop(read);
        Ok(ConfigNotes { guesses: self.guesses.into_inner(), unused: self.unused.into_inner() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropout_rates_that_differ_are_named() {
        let config = serde_json::json!({"resid_pdrop": 0.2, "attn_pdrop": 0.2, "embd_pdrop": 0.0});
        let config = FamilyConfig::new("GPT-2", &["gpt2"], Some(&config)).unwrap();
        assert_eq!(config.dropout("resid_pdrop", 0.1, &["attn_pdrop", "embd_pdrop"]).unwrap(), 0.2);
        assert_eq!(config.finish().unwrap().unused, ["embd_pdrop = 0: all dropout rates are 0.2"]);
    }
}
