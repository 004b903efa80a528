//! Tokenizers: bytes, characters, byte-pair encoding (BPE), WordPiece and Unigram, trained here or read from Hugging Face
//! files.
//!
//! A model stores its tokenizer as JSON: Hugging Face's `tokenizer.json` for byte pairs and WordPiece, and the same
//! layout with custom model types for bytes and characters.

mod bpe;
mod bpe_training;
mod charsmap;
mod json;
mod pre_tokenizer;
mod text_ends;
mod unicode_categories;
mod unicode_letters;
mod unigram;
mod unigram_json;
mod vocabulary;
mod wordpiece;

use std::path::Path;
use systole_base::{Error, Result, err};
use text_ends::TextEnds;
use vocabulary::{CharVocabulary, END_OF_TEXT, Vocabulary};
use wordpiece::WordPiece;

/// Tokenizer files of a folder, in order of preference.
const FILES: [&str; 3] = ["tokenizer.json", "vocab.json", "vocab.txt"];
/// Maximum size of a tokenizer file in bytes; the largest in use have 20 million.
const MOST_BYTES: u64 = 100_000_000;

/// Converts text to token ids, which are below [`Tokenizer::vocabulary_size`], and back.
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
    /// Creates a byte tokenizer.
    pub fn bytes() -> Tokenizer {
        Tokenizer(Vocabulary::Bytes)
    }

    /// Creates a character tokenizer; its vocabulary is the sorted characters of `text`.
    pub fn chars_of(text: &str) -> Tokenizer {
        let chars: std::collections::BTreeSet<char> = text.chars().collect();
        Tokenizer(Vocabulary::Chars(CharVocabulary::new(chars.into_iter().collect())))
    }

    /// Trains a byte-pair tokenizer on `text` with a vocabulary of `size`, including the 256 bytes. The vocabulary is
    /// smaller if the text has too few pairs.
    ///
    /// # Errors
    /// If `size` is below 256 or above 1,000,000.
    pub fn train_bpe(text: &str, size: usize) -> Result<Tokenizer> {
        if !(256..=1_000_000).contains(&size) {
            return Err(err!(Config, "invalid vocabulary size {size} for byte-pair encoding")
                .because("the vocabulary includes the 256 bytes")
                .hint_setting("choose a size from 256 to 1000000; 512 to 4096 suit a book"));
        }
        Ok(Tokenizer(Vocabulary::Bpe(Box::new(bpe_training::train(text, size)?))))
    }

    /// Builds a WordPiece tokenizer for these texts: lower-case words, the most frequent ones first, and all characters,
    /// which spell the other words. The vocabulary has at most `size` tokens.
    ///
    /// # Errors
    /// None in practice: the tokens are distinct.
    pub fn words_of<'t>(texts: impl IntoIterator<Item = &'t str>, size: usize) -> Result<Tokenizer> {
        WordPiece::words_of(texts.into_iter(), size)
            .map(|words| Tokenizer(Vocabulary::WordPiece(Box::new(words))))
    }

    /// Reads Hugging Face's `tokenizer.json`, GPT-2's `vocab.json` next to `merges.txt`, BERT's `vocab.txt` (with
    /// `tokenizer_config.json` next to it), or a folder that contains one of them.
    ///
    /// # Errors
    /// `Io` if there is none; `Data` if it is damaged; `Unsupported` if it is not byte-level BPE, WordPiece or Unigram.
    pub fn read(path: impl AsRef<Path>) -> Result<Tokenizer> {
        let path = path.as_ref();
        let within = |name: &str| path.join(name);
        let file = match path.is_dir() {
            true => FILES.map(within).into_iter().find(|f| f.is_file()),
            false => path.is_file().then(|| path.to_path_buf()),
        };
        let file = file.ok_or_else(|| {
            err!(Io, "the tokenizer file was not found")
                .at(path.display().to_string())
                .because("expected a tokenizer.json, a vocab.json with merges.txt next to it, or a vocab.txt")
                .hint_setting("check the path, or train a tokenizer: data.tokenizer = \"bpe\"")
        })?;
        let text = read_text(&file)?;
        if file.extension().is_some_and(|e| e.eq_ignore_ascii_case("txt")) {
            let config = file.with_file_name("tokenizer_config.json");
            let config = if config.is_file() { Some(read_text(&config)?) } else { None };
            let made = json::from_vocabulary_lines(&text, config.as_deref());
            return made.map(Tokenizer).map_err(|e| e.at(file.display().to_string()));
        }
        let merges = file.with_file_name("merges.txt");
        let made = match json::is_plain_vocabulary(&text) && merges.is_file() {
            true => json::from_vocabulary(&text, &read_text(&merges)?),
            false => json::from_json(&text),
        };
        made.map(Tokenizer).map_err(|e| e.at(file.display().to_string()))
    }

    /// Parses the output of [`Tokenizer::to_json`], or a `tokenizer.json`.
    ///
    /// # Errors
    /// Like [`Tokenizer::read`].
    pub fn from_json(text: &str) -> Result<Tokenizer> {
        json::from_json(text).map(Tokenizer)
    }

    /// Whether a folder contains a tokenizer file.
    pub fn is_in(folder: impl AsRef<Path>) -> bool {
        FILES.iter().any(|name| folder.as_ref().join(name).is_file())
    }

    /// Serializes to JSON: for byte pairs and WordPiece, a `tokenizer.json` that Hugging Face's library reads.
    pub fn to_json(&self) -> String {
        json::to_json(&self.0)
    }

    /// Returns the kind of token: `bytes`, `chars`, `bpe`, `wordpiece` or `unigram`.
    pub fn name(&self) -> &'static str {
        match &self.0 {
            Vocabulary::Bytes => "bytes",
            Vocabulary::Chars(_) => "chars",
            Vocabulary::Bpe(_) => "bpe",
            Vocabulary::WordPiece(_) => "wordpiece",
            Vocabulary::Unigram(_) => "unigram",
        }
    }

    /// Size of the vocabulary; token ids are below it.
    pub fn vocabulary_size(&self) -> usize {
        match &self.0 {
            Vocabulary::Bytes => 256,
            Vocabulary::Chars(chars) => chars.chars.len(),
            Vocabulary::Bpe(bpe) => bpe.parts.tokens.len(),
            Vocabulary::WordPiece(pieces) => pieces.tokens.len(),
            Vocabulary::Unigram(unigram) => unigram.parts.tokens.len(),
        }
    }

    /// Converts a text to token ids.
    ///
    /// # Errors
    /// If the vocabulary lacks a character or byte of the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match &self.0 {
            Vocabulary::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Vocabulary::Chars(chars) => chars.encode(text),
            Vocabulary::Bpe(bpe) => bpe.encode(text),
            Vocabulary::WordPiece(pieces) => Ok(pieces.encode(text)),
            Vocabulary::Unigram(unigram) => Ok(unigram.encode(text)),
        }
    }

    /// Tokens around each text of an encoder, if the tokenizer has them.
    fn ends(&self) -> Option<TextEnds> {
        match &self.0 {
            Vocabulary::WordPiece(pieces) => {
                let (padding, start, end) = pieces.ends();
                Some(TextEnds { padding, before: vec![start], after: vec![end] })
            }
            Vocabulary::Bpe(bpe) => bpe.parts.ends.clone(),
            Vocabulary::Unigram(unigram) => unigram.parts.ends.clone(),
            Vocabulary::Bytes | Vocabulary::Chars(_) => None,
        }
    }

    /// Whether the tokenizer marks the ends of a text and has a padding token, for classifiers of whole texts.
    pub fn pads(&self) -> bool {
        self.ends().is_some()
    }

    /// Returns the padding token's id, if the tokenizer has one.
    pub fn padding(&self) -> Option<u32> {
        self.ends().map(|ends| ends.padding)
    }

    /// Whether padding is told from the tokens of texts: CLIP pads with the end of the text.
    pub fn has_own_padding(&self) -> bool {
        self.ends()
            .is_some_and(|ends| !ends.before.contains(&ends.padding) && !ends.after.contains(&ends.padding))
    }

    /// Converts a text to token ids between its start and end tokens: at most `length`, cut before the end.
    ///
    /// # Errors
    /// If the tokenizer has no start and end tokens, or lacks a byte of the text.
    pub fn encode_with_ends(&self, text: &str, length: usize) -> Result<Vec<u32>> {
        let Some(ends) = self.ends() else {
            return Err(err!(Unsupported, "a {} tokenizer has no start and end tokens", self.name())
                .hint_setting("name an encoder's tokenizer: data.tokenizer=FILE, such as BERT's vocab.txt"));
        };
        Ok(ends.around(self.encode(text)?, length))
    }

    /// Converts token ids to bytes: a token may be a part of a character. Invalid ids are skipped.
    pub fn decode(&self, tokens: &[u32]) -> Vec<u8> {
        let mut text = Vec::with_capacity(tokens.len() * 4);
        for (i, &id) in tokens.iter().enumerate() {
            match &self.0 {
                Vocabulary::WordPiece(pieces) => text.extend(pieces.text(id, i == 0).bytes()),
                Vocabulary::Unigram(unigram) => text.extend(unigram.text(id).bytes()),
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

    /// Whether an id is a token of the vocabulary.
    pub fn has(&self, id: u32) -> bool {
        match &self.0 {
            Vocabulary::Bpe(bpe) => bpe.parts.tokens.get(id as usize).is_some_and(Option::is_some),
            _ => (id as usize) < self.vocabulary_size(),
        }
    }

    /// Returns the end-of-text token, if the vocabulary has one.
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
        return Err(err!(Data, "{length} bytes are too many for a tokenizer file")
            .at(file.display().to_string())
            .hint_setting("name another tokenizer file: data.tokenizer=FILE, a tokenizer.json, or a vocab.json with merges.txt next to it"));
    }
    let bytes = std::fs::read(file).map_err(cannot)?;
    String::from_utf8(bytes).map_err(|e| {
        err!(Data, "the tokenizer file is not UTF-8")
            .at(file.display().to_string())
            .because(e.to_string())
            .hint_setting("name another tokenizer file: data.tokenizer=FILE, a tokenizer.json, or a vocab.json with merges.txt next to it")
    })
}

#[cfg(test)]
mod tests;
