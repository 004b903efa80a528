//! Tokenizer settings (`data.tokenizer`), and model sizes that depend on the vocabulary size.

use super::key_error::{self, KeyError};
use super::{DataSection, RunConfig};
use std::path::Path;
use std::sync::Arc;
use systole_datasets::{TEXT_TOKENS, TextTokenizer, TokenKind, Tokenizer};
use systole_ir::Result;
use toml::Value;

/// Values of `data.tokenizer` other than a file.
const TOKENIZERS: [&str; 3] = ["bytes", "chars", "bpe"];
/// Default vocabulary size of `bpe`.
const VOCABULARY: usize = 1024;
/// Valid vocabulary sizes of `bpe`.
const VOCABULARIES: std::ops::RangeInclusive<usize> = 256..=1_000_000;

impl DataSection {
    pub(super) fn check_tokens(&self) -> Result<(), KeyError> {
        if self.kind() == "sentences" {
            return self.check_words();
        }
        let tokenizer = self.tokenizer.as_deref().unwrap_or("bytes");
        if !TOKENIZERS.contains(&tokenizer)
            && !Path::new(tokenizer).exists()
            && !tokenizer.contains(['.', '/'])
        {
            let e = key_error::unknown("unknown tokenizer", tokenizer, &TOKENIZERS);
            return Err(KeyError::of("data.tokenizer", e));
        }
        let Some(size) = self.vocabulary else { return Ok(()) };
        if tokenizer != "bpe" {
            let what = format!("data.vocabulary applies only to bpe, but the tokenizer is `{tokenizer}`");
            return Err(KeyError::new("data.vocabulary", what)
                .hint_setting("set data.tokenizer = \"bpe\", or remove data.vocabulary"));
        }
        match VOCABULARIES.contains(&size) {
            true => Ok(()),
            false => Err(KeyError::new(
                "data.vocabulary",
                format!("invalid vocabulary size {size} for byte-pair encoding"),
            )
            .hint_setting("choose a size from 256 (the bytes) to 1000000; 512 to 4096 suit a book")),
        }
    }

    /// Returns the kind of token.
    pub(super) fn tokens(&self) -> Result<TokenKind> {
        if let Some(known) = &self.known_tokenizer {
            return Ok(TokenKind::Known(known.clone()));
        }
        Ok(match self.tokenizer.as_deref() {
            None | Some("bytes") => TokenKind::Bytes,
            Some("chars") => TokenKind::Chars,
            Some("bpe") => TokenKind::Bpe { vocabulary: self.vocabulary.unwrap_or(VOCABULARY) },
            Some(file) => TokenKind::Known(Arc::new(Tokenizer::read(file)?)),
        })
    }

    /// Returns the vocabulary size without reading the text; an estimate for characters.
    fn usual_vocabulary(&self) -> usize {
        match self.tokens() {
            Ok(TokenKind::Bpe { vocabulary }) => vocabulary,
            Ok(TokenKind::Known(tokenizer)) => tokenizer.vocabulary_size(),
            Ok(TokenKind::Bytes | TokenKind::Chars) | Err(_) => TEXT_TOKENS,
        }
    }
}

impl RunConfig {
    /// Adapts sizes that the configuration does not set to a text.
    pub(super) fn fit_language(&mut self, language: &TextTokenizer) -> Result<()> {
        self.fit_tokens(language.tokenizer.vocabulary_size())
    }

    /// Like [`RunConfig::fit_language`], with the vocabulary size known without the text.
    pub(super) fn fit_usual_tokens(&mut self) -> Result<()> {
        if self.data.dataset == "text" { self.fit_tokens(self.data.usual_vocabulary()) } else { Ok(()) }
    }

    /// Sets the sizes that depend on the vocabulary: unset ones of gpt2, and layers unchanged from the preset `lstm`.
    fn fit_tokens(&mut self, vocabulary: usize) -> Result<()> {
        let length = self.data.sequence_length();
        let number = |n: usize| Value::Integer(n as i64);
        if let Some(model) = &mut self.model
            && model.get("application").and_then(Value::as_str) == Some("gpt2")
        {
            model.entry("vocabulary_size").or_insert_with(|| number(vocabulary));
            model.entry("max_sequence_length").or_insert_with(|| number(length));
        }
        let preset = RunConfig::preset("lstm")?.layers;
        let is_usual = self.layers.first() == preset.first() && self.layers.last() == preset.last();
        if vocabulary != TEXT_TOKENS && is_usual && !self.layers.is_empty() {
            if let Some(first) = self.layers.first_mut() {
                first.insert("input_dim".into(), number(vocabulary));
            }
            if let Some(last) = self.layers.last_mut() {
                last.insert("units".into(), number(vocabulary));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::ErrorKind;
    use systole_testing::assert_error;

    fn with(preset: &str, settings: &[(&str, &str)]) -> Result<RunConfig> {
        let mut draft = crate::ConfigDraft::preset(preset)?;
        settings.iter().for_each(|(key, value)| draft.set("--set", key, value));
        draft.finish().map_err(|refused| refused.error)
    }

    #[test]
    fn sizes_follow_from_the_tokens_where_nothing_is_set() {
        let output = |config: RunConfig| config.untrained().unwrap().output_type().unwrap().shape.to_vec();
        assert_eq!(output(with("gpt-micro", &[]).unwrap()), [128, 256]);
        let bpe = ("data.tokenizer", "bpe");
        assert_eq!(output(with("gpt-micro", &[bpe, ("data.sequence_length", "32")]).unwrap()), [32, 1024]);
        assert_eq!(output(with("lstm", &[bpe, ("data.vocabulary", "300")]).unwrap()), [100, 300]);
        let set = ("model.vocabulary_size", "777");
        assert_eq!(output(with("gpt-micro", &[bpe, set]).unwrap()), [128, 777]);
        assert_eq!(output(with("lstm", &[("layers.3.units", "256")]).unwrap()), [100, 256]);
    }

    #[test]
    fn tokenizers_that_are_none_are_told() {
        let refused = |settings: &[(&str, &str)]| with("gpt-micro", settings).unwrap_err().to_string();
        let e = refused(&[("data.tokenizer", "char")]);
        assert!(e.contains("`chars`"), "{e}");
        assert!(refused(&[("data.vocabulary", "300")]).contains("set data.tokenizer = \"bpe\""));
        let e = refused(&[("data.tokenizer", "bpe"), ("data.vocabulary", "100")]);
        assert!(e.contains("size 100") && e.contains("from 256"), "{e}");
        let e =
            with("gpt-micro", &[("data.tokenizer", "no/tokenizer.json")]).unwrap().data.tokens().unwrap_err();
        assert_error(&e, ErrorKind::Io, &["no/tokenizer.json"]);
    }
}
