//! Text as tokens: what a configuration says they are, and layers whose sizes follow from how many there are.

use super::key_error::{self, KeyError};
use super::{DataSection, RunConfig};
use std::path::Path;
use std::sync::Arc;
use systole_datasets::{TEXT_TOKENS, TextTokenizer, TokenKind, Tokenizer};
use systole_ir::Result;
use toml::Value;

/// What `data.tokenizer` may say beside a file.
const TOKENIZERS: [&str; 3] = ["bytes", "chars", "bpe"];
/// Tokens that `bpe` learns where nothing is said.
const VOCABULARY: usize = 1024;
/// Sizes of byte-pair vocabularies.
const VOCABULARIES: std::ops::RangeInclusive<usize> = 256..=1_000_000;

impl DataSection {
    pub(super) fn check_tokens(&self) -> Result<(), KeyError> {
        let tokenizer = self.tokenizer.as_deref().unwrap_or("bytes");
        if !TOKENIZERS.contains(&tokenizer)
            && !Path::new(tokenizer).exists()
            && !tokenizer.contains(['.', '/'])
        {
            let e = key_error::unknown("there is no tokenizer", tokenizer, &TOKENIZERS);
            return Err(KeyError::of("data.tokenizer", e));
        }
        let Some(size) = self.vocabulary else { return Ok(()) };
        if tokenizer != "bpe" {
            let what = format!("`vocabulary` is the size that bpe learns, the tokenizer is `{tokenizer}`");
            return Err(KeyError::new("data.vocabulary", what)
                .hint("set data.tokenizer = \"bpe\", or take data.vocabulary out"));
        }
        match VOCABULARIES.contains(&size) {
            true => Ok(()),
            false => {
                Err(KeyError::new("data.vocabulary", format!("there is no byte-pair vocabulary of {size}"))
                    .hint("choose a size from 256, the bytes, to 1000000; 512 to 4096 suit a book"))
            }
        }
    }

    /// What text is cut into.
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

    /// How many tokens there will be, without the text: of its characters a guess.
    fn usual_vocabulary(&self) -> usize {
        match self.tokens() {
            Ok(TokenKind::Bpe { vocabulary }) => vocabulary,
            Ok(TokenKind::Known(tokenizer)) => tokenizer.vocabulary_size(),
            Ok(TokenKind::Bytes | TokenKind::Chars) | Err(_) => TEXT_TOKENS,
        }
    }
}

impl RunConfig {
    /// Fits the configuration to a text, as far as it says nothing itself.
    pub(super) fn fit_language(&mut self, language: &TextTokenizer) -> Result<()> {
        self.fit_tokens(language.tokenizer.vocabulary_size())
    }

    /// As for a text whose tokens are as many as can be known without it.
    pub(super) fn fit_usual_tokens(&mut self) -> Result<()> {
        match self.data.dataset == "text" {
            true => self.fit_tokens(self.data.usual_vocabulary()),
            false => Ok(()),
        }
    }

    /// Sizes that follow from the tokens: of gpt2 those that are not set, of layers those that are as the preset `lstm` has them.
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
        assert!(e.contains("did you mean `chars`"), "{e}");
        assert!(refused(&[("data.vocabulary", "300")]).contains("set data.tokenizer = \"bpe\""));
        let e = refused(&[("data.tokenizer", "bpe"), ("data.vocabulary", "100")]);
        assert!(e.contains("vocabulary of 100") && e.contains("from 256"), "{e}");
        let e =
            with("gpt-micro", &[("data.tokenizer", "no/tokenizer.json")]).unwrap().data.tokens().unwrap_err();
        assert!(e.to_string().contains("there is no tokenizer"), "{e}");
    }
}
