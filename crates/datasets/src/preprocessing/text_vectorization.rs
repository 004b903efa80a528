//! Keras's `TextVectorization`: converts text to word indices, or to one multi-hot, count or TF-IDF row.

use super::index_lookup::StringLookup;
use super::{LookupOutputMode, wrong};
use serde::{Deserialize, Serialize};
use systole_base::{Literal, Result, err};
use systole_data::{Sample, field_setters, with_defaults};

/// Standardization of a text before it is split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standardize {
    /// Lowercases A to Z and removes ASCII punctuation.
    #[default]
    LowerAndStripPunctuation,
    /// Lowercases A to Z.
    Lower,
    /// Removes ASCII punctuation.
    StripPunctuation,
    /// No standardization.
    None,
}

/// How a text is split into tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenSplit {
    /// At whitespace, into words.
    #[default]
    Whitespace,
    /// Into characters.
    Character,
    /// Not at all: the text is one token.
    None,
}

/// Lengths of n-grams that become tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Ngrams {
    /// All n-grams of one to this many words.
    UpTo(usize),
    /// N-grams of these lengths.
    Of(Vec<usize>),
}

with_defaults! {
    /// Converts text to integers: Keras's `TextVectorization`. Index 0 is padding, 1 is out of vocabulary.
    ///
    /// ```
    /// use systole_data::{Dataset, Sample};
    /// use systole_base::Literal;
    /// use systole_datasets::preprocessing::TextVectorization;
    /// let mut vectorize = TextVectorization::default().max_tokens(100).output_sequence_length(4);
    /// vectorize.adapt(["The cat sat.", "The dog ran!"])?;
    /// assert_eq!(vectorize.get_vocabulary()[..3], ["", "[UNK]", "the"]);
    /// assert_eq!(vectorize.call("the fish sat")?.to_f64s(), [2.0, 1.0, 3.0, 0.0]);
    /// // In a pipeline: the field `text`, `ui8[n]`, becomes `i64[4]`.
    /// let text = Literal::from_slice([7], b"the dog")?;
    /// let data = Dataset::from_tensor_slices([("n", Literal::from_slice([1], &[0i32])?)])?;
    /// let data = data.map(move |s: Sample| s.with("text", text.clone())).map(vectorize.on("text"));
    /// assert_eq!(data.iter().next().unwrap()?.get("text")?.shape().dims(), [4]);
    /// # Ok::<(), systole_base::Error>(())
    /// ```
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct TextVectorization {
        standardize: Standardize = Standardize::default(),
        split: TokenSplit = TokenSplit::default(),
        ngrams: Option<Ngrams> = None,
        output_sequence_length: Option<usize> = None,
        output_mode: LookupOutputMode = LookupOutputMode::Int,
        lookup: StringLookup = StringLookup::default().mask_token(""),
    }
}

field_setters! {
    impl TextVectorization {
        /// Sets how a text is standardized (lower case, punctuation) before it is split.
        standardize(how: Standardize);
        /// Sets how a text is split into tokens.
        split(how: TokenSplit);
        /// Sets the n-grams that become tokens.
        ngrams(which: Ngrams) => Some(which);
        /// Sets the number of indices per text: longer texts are truncated, shorter ones padded with 0.
        output_sequence_length(length: usize) => Some(length);
    }
}

/// Builder methods.
impl TextVectorization {
    /// Sets the maximum vocabulary size, including padding and the out-of-vocabulary token.
    pub fn max_tokens(self, most: usize) -> Self {
        TextVectorization { lookup: self.lookup.max_tokens(most), ..self }
    }

    /// Sets the output encoding: indices, one-hot, multi-hot, count or TF-IDF.
    pub fn output_mode(self, mode: LookupOutputMode) -> Self {
        TextVectorization { output_mode: mode, lookup: self.lookup.output_mode(mode), ..self }
    }

    /// Sets whether output rows have `max_tokens` entries even if the vocabulary is smaller.
    pub fn pad_to_max_tokens(self, yes: bool) -> Self {
        TextVectorization { lookup: self.lookup.pad_to_max_tokens(yes), ..self }
    }
}

impl TextVectorization {
    fn check(&self) -> Result<()> {
        let widths = match &self.ngrams {
            None => return self.check_length(),
            Some(Ngrams::UpTo(n)) => vec![*n],
            Some(Ngrams::Of(all)) => all.clone(),
        };
        if widths.is_empty() || widths.contains(&0) {
            return Err(wrong("TextVectorization: ngrams contains 0", "use lengths of at least 1"));
        }
        if self.split == TokenSplit::None {
            return Err(wrong("TextVectorization: ngrams require split texts", "set split"));
        }
        self.check_length()
    }

    fn check_length(&self) -> Result<()> {
        match (self.output_mode, self.output_sequence_length) {
            (LookupOutputMode::Int, _) | (_, None) => Ok(()),
            _ => Err(wrong(
                "TextVectorization: output_sequence_length requires output_mode = int",
                "leave it out, or set output_mode to int",
            )),
        }
    }

    /// Returns the tokens of a text before the vocabulary lookup.
    pub fn tokens(&self, text: &str) -> Vec<String> {
        let mut text = text.to_string();
        if matches!(self.standardize, Standardize::Lower | Standardize::LowerAndStripPunctuation) {
            text.make_ascii_lowercase();
        }
        if matches!(self.standardize, Standardize::StripPunctuation | Standardize::LowerAndStripPunctuation) {
            text.retain(|c| !c.is_ascii_punctuation());
        }
        let words: Vec<String> = match self.split {
            TokenSplit::Whitespace => {
                let is_space = |c: char| matches!(c, ' ' | '\t' | '\n' | '\x0b' | '\x0c' | '\r');
                text.split(is_space).filter(|word| !word.is_empty()).map(str::to_string).collect()
            }
            TokenSplit::Character => text.chars().map(String::from).collect(),
            TokenSplit::None => vec![text],
        };
        let runs = |width: usize| words.windows(width.max(1)).map(|run| run.join(" ")).collect::<Vec<_>>();
        match &self.ngrams {
            None => words,
            Some(Ngrams::UpTo(most)) => (1..=*most).flat_map(runs).collect(),
            Some(Ngrams::Of(widths)) => widths.iter().flat_map(|width| runs(*width)).collect(),
        }
    }

    /// Learns the vocabulary from texts, sorted by decreasing frequency, ties in descending order.
    ///
    /// # Errors
    /// If the settings are inconsistent.
    pub fn adapt<T: AsRef<str>>(&mut self, texts: impl IntoIterator<Item = T>) -> Result<()> {
        self.check()?;
        let documents: Vec<Vec<String>> = texts.into_iter().map(|text| self.tokens(text.as_ref())).collect();
        self.lookup.adapt(documents)
    }

    /// Sets the vocabulary of tokens: [`IndexLookup::set_vocabulary`](super::IndexLookup::set_vocabulary).
    ///
    /// # Errors
    /// See there.
    pub fn set_vocabulary(&mut self, terms: &[String], idf_weights: Option<&[f32]>) -> Result<()> {
        self.lookup.set_vocabulary(terms, idf_weights)
    }

    /// Returns all tokens of the vocabulary in index order.
    pub fn get_vocabulary(&self) -> Vec<String> {
        self.lookup.get_vocabulary()
    }

    /// Number of vocabulary indices: an Embedding's `input_dim`.
    pub fn vocabulary_size(&self) -> usize {
        self.lookup.vocabulary_size()
    }

    /// Vectorizes `text → i64[n]`, or `f32[depth]` in row modes (`f32[n, depth]` in `one_hot`).
    ///
    /// # Errors
    /// If the settings are inconsistent.
    pub fn call(&self, text: &str) -> Result<Literal> {
        self.check()?;
        let found = self.lookup.call(&self.tokens(text))?;
        match (self.output_mode, self.output_sequence_length) {
            (LookupOutputMode::Int, Some(length)) => fitted(&found, length),
            _ => Ok(found),
        }
    }

    /// Vectorizes `texts → i64[B, n]`, where `n` is `output_sequence_length` or the longest length, or `f32[B, depth]`.
    ///
    /// # Errors
    /// If the settings are inconsistent; in `one_hot`, if texts differ in length.
    pub fn call_batch<T: AsRef<str>>(&self, texts: &[T]) -> Result<Literal> {
        let mut rows = texts.iter().map(|text| self.call(text.as_ref())).collect::<Result<Vec<_>>>()?;
        if self.output_mode == LookupOutputMode::Int {
            let longest = rows.iter().map(|row| row.shape().elements()).max().unwrap_or(0);
            rows = rows.iter().map(|row| fitted(row, longest)).collect::<Result<_>>()?;
        }
        let first = rows.first().ok_or_else(|| err!(Data, "TextVectorization: the batch is empty"))?;
        if rows.iter().any(|row| row.shape() != first.shape()) {
            return Err(err!(Data, "TextVectorization: texts differ in length")
                .hint("vectorize one_hot texts one by one"));
        }
        let dims: Vec<usize> = std::iter::once(rows.len()).chain(first.shape().iter().copied()).collect();
        let bytes: Vec<u8> = rows.iter().flat_map(|row| row.bytes().iter().copied()).collect();
        Literal::from_bytes(systole_base::TensorType::new(first.dtype(), dims), &bytes)
    }

    /// Returns a function for [`Dataset::map`](systole_data::Dataset::map) that applies [`TextVectorization::call`] to
    /// the text in a field, `ui8[n]`, of each sample.
    pub fn on(&self, field: &str) -> impl Fn(Sample) -> Result<Sample> + Send + Sync + Clone + 'static {
        let (vectorize, field) = (self.clone(), field.to_string());
        move |sample: Sample| {
            let found = vectorize.call(sample.text(&field)?)?;
            Ok(sample.with(&field, found))
        }
    }

    /// Serializes settings and vocabulary to JSON, for a model's metadata.
    ///
    /// # Errors
    /// If serialization fails.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string(self)
            .map_err(|e| err!(Bug, "cannot serialize TextVectorization").because(e.to_string()))
    }

    /// Parses the output of [`TextVectorization::to_json`].
    ///
    /// # Errors
    /// If the text is not such JSON.
    pub fn from_json(text: &str) -> Result<TextVectorization> {
        let read: TextVectorization = serde_json::from_str(text)
            .map_err(|e| err!(Data, "cannot parse TextVectorization").because(e.to_string()))?;
        read.check()?;
        Ok(read)
    }
}

/// Truncates or pads with 0: `i64[n] → i64[length]`.
fn fitted(row: &Literal, length: usize) -> Result<Literal> {
    let all = row.as_slice::<i64>()?;
    let fitted: Vec<i64> = all.iter().copied().chain(std::iter::repeat(0)).take(length).collect();
    Literal::from_slice([length], &fitted)
}
