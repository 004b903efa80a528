//! Vocabulary of a tokenizer: bytes, characters, byte pairs, WordPiece or Unigram.

use super::bpe::Bpe;
use super::unigram::Unigram;
use super::wordpiece::WordPiece;
use std::collections::HashMap;
use systole_base::{Result, err};

/// GPT-2's end-of-text token.
pub(super) const END_OF_TEXT: &str = "<|endoftext|>";

/// Kind of token.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Vocabulary {
    Bytes,
    Chars(CharVocabulary),
    Bpe(Box<Bpe>),
    WordPiece(Box<WordPiece>),
    Unigram(Box<Unigram>),
}

/// Characters by token id.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CharVocabulary {
    pub(super) chars: Vec<char>,
    pub(super) ids: HashMap<char, u32>,
}

impl CharVocabulary {
    pub(super) fn new(chars: Vec<char>) -> CharVocabulary {
        let ids = chars.iter().enumerate().map(|(id, c)| (*c, id as u32)).collect();
        CharVocabulary { chars, ids }
    }

    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let of = |c: char| {
            self.ids.get(&c).copied().ok_or_else(|| {
                let known: String = self.chars.iter().take(100).collect();
                err!(Data, "the model has no token for the character `{c}`")
                    .because(format!(
                        "the training text has {} other characters: {known:?}",
                        self.chars.len()
                    ))
                    .hint_setting(
                        "remove the character from the text, or train with data.tokenizer = \"bytes\" or \
                    \"bpe\", which support any text",
                    )
            })
        };
        text.chars().map(of).collect()
    }
}
