//! Tokenizers: text to numbers and back. Bytes, characters, and byte-pair encoding, learnt here or read from files of others.
//!
//! A model keeps its tokenizer as JSON: that of Hugging Face's `tokenizer.json` for byte pairs, the same shape with models of our own
//! for bytes and characters.

mod bpe;
mod bpe_training;
mod json;
mod pre_tokenizer;
mod unicode_letters;
mod vocabulary;

use std::path::Path;
use systole_base::{Error, ErrorKind, Result};
use vocabulary::{CharVocabulary, END_OF_TEXT, Vocabulary};

/// Bytes of a tokenizer's file at most: the largest in use have 20 million.
const MOST_BYTES: u64 = 100_000_000;

/// Turns text into tokens, numbers below [`Tokenizer::vocabulary_size`], and back.
///
/// ```
/// use systole_datasets::Tokenizer;
/// let tokenizer = Tokenizer::train_bpe("low lower lowest, slow slower slowest", 260)?;
/// let tokens = tokenizer.encode("lower")?;
/// assert!(tokens.len() < 5);
/// assert_eq!(tokenizer.decode(&tokens), b"lower");
/// assert_eq!(Tokenizer::from_json(&tokenizer.to_json())?, tokenizer);
/// # Ok::<(), systole_base::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Tokenizer(Vocabulary);

impl Tokenizer {
    /// A token is a byte.
    pub fn bytes() -> Tokenizer {
        Tokenizer(Vocabulary::Bytes)
    }

    /// A token is a character; those of `text`, sorted, are the vocabulary.
    pub fn chars_of(text: &str) -> Tokenizer {
        let chars: std::collections::BTreeSet<char> = text.chars().collect();
        Tokenizer(Vocabulary::Chars(CharVocabulary::new(chars.into_iter().collect())))
    }

    /// A byte-pair vocabulary of `size` tokens, learnt from `text`: the 256 bytes and what is joined of them. It has fewer where the
    /// text has no more pairs.
    ///
    /// # Errors
    /// When `size` is below 256 or above 1,000,000.
    pub fn train_bpe(text: &str, size: usize) -> Result<Tokenizer> {
        if !(256..=1_000_000).contains(&size) {
            return Err(Error::new(ErrorKind::Config, format!("there is no byte-pair vocabulary of {size}"))
                .because("the 256 bytes are tokens themselves")
                .hint("choose a size from 256 to 1000000; 512 to 4096 suit a book"));
        }
        Ok(Tokenizer(Vocabulary::Bpe(Box::new(bpe_training::train(text, size)?))))
    }

    /// Reads a `tokenizer.json` of Hugging Face's, the `vocab.json` beside a `merges.txt` of GPT-2's, or a folder that has one of
    /// them.
    ///
    /// # Errors
    /// `Io` when there is none; `Data` when it is damaged; `Unsupported` when it works otherwise than by byte pairs.
    pub fn read(path: impl AsRef<Path>) -> Result<Tokenizer> {
        let path = path.as_ref();
        let within = |name: &str| path.join(name);
        let file = match path.is_dir() {
            true => ["tokenizer.json", "vocab.json"].map(within).into_iter().find(|f| f.is_file()),
            false => path.is_file().then(|| path.to_path_buf()),
        };
        let file = file.ok_or_else(|| {
            Error::new(ErrorKind::Io, "there is no tokenizer")
                .at(path.display().to_string())
                .because("a tokenizer is a tokenizer.json, or a vocab.json with merges.txt beside it")
                .hint("check the path, or let one be learnt: data.tokenizer = \"bpe\"")
        })?;
        let text = read_text(&file)?;
        let merges = file.with_file_name("merges.txt");
        let made = match json::is_plain_vocabulary(&text) && merges.is_file() {
            true => json::from_vocabulary(&text, &read_text(&merges)?),
            false => json::from_json(&text),
        };
        made.map(Tokenizer).map_err(|e| e.at(file.display().to_string()))
    }

    /// Reads what [`Tokenizer::to_json`] wrote, or the text of a `tokenizer.json`.
    ///
    /// # Errors
    /// As [`Tokenizer::read`].
    pub fn from_json(text: &str) -> Result<Tokenizer> {
        json::from_json(text).map(Tokenizer)
    }

    /// As JSON: for byte pairs a `tokenizer.json` that Hugging Face's library reads.
    pub fn to_json(&self) -> String {
        json::to_json(&self.0)
    }

    /// What a token is: `bytes`, `chars` or `bpe`.
    pub fn name(&self) -> &'static str {
        match &self.0 {
            Vocabulary::Bytes => "bytes",
            Vocabulary::Chars(_) => "chars",
            Vocabulary::Bpe(_) => "bpe",
        }
    }

    /// Tokens are below this.
    pub fn vocabulary_size(&self) -> usize {
        match &self.0 {
            Vocabulary::Bytes => 256,
            Vocabulary::Chars(chars) => chars.chars.len(),
            Vocabulary::Bpe(bpe) => bpe.parts.tokens.len(),
        }
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// When the vocabulary lacks a character or a byte of it.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match &self.0 {
            Vocabulary::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Vocabulary::Chars(chars) => chars.encode(text),
            Vocabulary::Bpe(bpe) => bpe.encode(text),
        }
    }

    /// The text of tokens, as bytes: a token may be a part of a character. Tokens that are none give nothing.
    pub fn decode(&self, tokens: &[u32]) -> Vec<u8> {
        let mut text = Vec::with_capacity(tokens.len() * 4);
        for &id in tokens {
            match &self.0 {
                Vocabulary::Bytes => text.extend(u8::try_from(id).ok()),
                Vocabulary::Chars(chars) => {
                    let c = chars.chars.get(id as usize);
                    text.extend(c.map_or(String::new(), char::to_string).bytes());
                }
                Vocabulary::Bpe(bpe) => text
                    .extend(bpe.parts.tokens.get(id as usize).and_then(Option::as_ref).into_iter().flatten()),
            }
        }
        text
    }

    /// Whether a number is a token.
    pub fn has(&self, id: u32) -> bool {
        match &self.0 {
            Vocabulary::Bpe(bpe) => bpe.parts.tokens.get(id as usize).is_some_and(Option::is_some),
            _ => (id as usize) < self.vocabulary_size(),
        }
    }

    /// The token that ends a document, where the vocabulary has one.
    pub fn end_of_text(&self) -> Option<u32> {
        match &self.0 {
            Vocabulary::Bpe(bpe) => bpe.parts.added.iter().find(|a| a.text == END_OF_TEXT).map(|a| a.id),
            _ => None,
        }
    }
}

fn read_text(file: &Path) -> Result<String> {
    let cannot = |e| Error::io("cannot read", file, e);
    let length = std::fs::metadata(file).map_err(cannot)?.len();
    if length > MOST_BYTES {
        return Err(Error::new(ErrorKind::Data, format!("{length} bytes are no tokenizer"))
            .at(file.display().to_string())
            .hint("name a tokenizer.json, or a vocab.json with merges.txt beside it"));
    }
    let bytes = std::fs::read(file).map_err(cannot)?;
    String::from_utf8(bytes).map_err(|e| {
        Error::new(ErrorKind::Data, "the tokenizer is not UTF-8")
            .at(file.display().to_string())
            .because(e.to_string())
            .hint("name a tokenizer.json, or a vocab.json with merges.txt beside it")
    })
}

#[cfg(test)]
mod tests;
