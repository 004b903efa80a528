//! Labeled texts (`data.dataset = "sentences"`): loading options, and model sizes that depend on the texts.

use super::key_error::KeyError;
use super::{DataSection, RunConfig};
use std::path::Path;
use std::sync::Arc;
use systole_datasets::{SentenceOptions, Tokenizer, TrainingData};
use systole_ir::Result;
use toml::Value;

/// Value of `data.tokenizer` for a vocabulary of the training texts' words.
const WORDS: &str = "words";
/// Default vocabulary size of `words`.
const VOCABULARY: usize = 10_000;
/// Valid vocabulary sizes of `words`.
const VOCABULARIES: std::ops::RangeInclusive<usize> = 100..=1_000_000;

impl DataSection {
    pub(super) fn check_words(&self) -> Result<(), KeyError> {
        let tokenizer = self.tokenizer.as_deref().unwrap_or(WORDS);
        if tokenizer != WORDS && !Path::new(tokenizer).exists() && !tokenizer.contains(['.', '/']) {
            let what = format!("unknown tokenizer `{tokenizer}` for texts to classify");
            return Err(KeyError::new("data.tokenizer", what)
                .hint_setting("use data.tokenizer=words, or name BERT's vocab.txt or a tokenizer.json"));
        }
        match self.vocabulary {
            Some(_) if tokenizer != WORDS => {
                let what =
                    format!("data.vocabulary applies only to words, but the tokenizer is `{tokenizer}`");
                Err(KeyError::new("data.vocabulary", what).hint_setting("remove data.vocabulary"))
            }
            Some(size) if !VOCABULARIES.contains(&size) => {
                let what = format!("invalid vocabulary size {size} for words");
                Err(KeyError::new("data.vocabulary", what).hint_setting("choose a size from 100 to 1000000"))
            }
            _ => Ok(()),
        }
    }
}

impl RunConfig {
    pub(super) fn sentence_options(&self) -> Result<SentenceOptions> {
        let tokenizer = match (&self.data.known_tokenizer, self.data.tokenizer.as_deref()) {
            (Some(known), _) => Some(known.clone()),
            (None, None | Some(WORDS)) => None,
            (None, Some(file)) => Some(Arc::new(Tokenizer::read(file)?)),
        };
        let longest = self.model_size("max_sequence_length");
        let has_segments = self.layers_only().is_ok_and(|m| m.architecture().inputs.len() > 1);
        Ok(SentenceOptions {
            sequence_length: self.data.sequence_length,
            most: longest.unwrap_or(usize::MAX).min(self.data.sequence_length()),
            tokenizer,
            vocabulary: self.data.vocabulary.unwrap_or(VOCABULARY),
            has_segments,
            validation_split: self.data.validation_split.unwrap_or(crate::build::VALIDATION_SPLIT),
            seed: self.seed,
            records: self.data.records.clone().unwrap_or_default(),
        })
    }

    /// Returns an argument of the application that is a size.
    fn model_size(&self, argument: &str) -> Option<usize> {
        self.model.as_ref()?.get(argument)?.as_integer().and_then(|n| usize::try_from(n).ok())
    }

    /// Sets the sizes that depend on the texts: the sequence length, and the vocabulary size of the preset's embedding or
    /// of an application that does not set it.
    pub(super) fn fit_sentences(&mut self, data: &TrainingData) -> Result<()> {
        let Some(tokenizer) = &data.tokenizer else { return Ok(()) };
        self.fit_sequence_length(data);
        let size = Value::Integer(tokenizer.vocabulary_size() as i64);
        if let Some(model) = &mut self.model {
            model.entry("vocabulary_size").or_insert(size);
            model.entry("classes").or_insert(Value::Integer(data.class_names.len() as i64));
            return Ok(());
        }
        let preset = RunConfig::preset("sentences")?.layers;
        if let Some(first) = self.layers.first_mut().filter(|first| Some(&**first) == preset.first()) {
            first.insert("input_dim".into(), size);
        }
        Ok(())
    }

    /// Records the sequence length of labeled texts, which was inferred from them.
    pub(super) fn fit_sequence_length(&mut self, data: &TrainingData) {
        if data.tokenizer.is_some() {
            self.data.sequence_length = data.element.shape.first().copied();
        }
    }
}
