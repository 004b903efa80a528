//! Keras's `StringLookup` and `IntegerLookup`: vocabularies, given or learned, that map terms to indices and back.

use super::hashing::bin;
use super::{LookupOutputMode, wrong};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::sync::OnceLock;
use systole_base::{DType, Literal, Result, err};
use systole_data::{Sample, field_setters};

/// How out-of-vocabulary integers are distributed over several indices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OovMethod {
    /// By the remainder of the integer.
    #[default]
    Floormod,
    /// By the hash of the integer formatted as a string.
    Farmhash,
}

/// Type of a vocabulary's terms: `String` or `i64`.
pub trait VocabularyTerm: Clone + Ord + Hash + Debug + Display + Serialize + DeserializeOwned {
    /// Name of the Keras layer.
    const LAYER: &'static str;

    /// Default out-of-vocabulary token for the inverse lookup.
    fn oov() -> Self;

    /// Returns the bin of an out-of-vocabulary term.
    fn oov_bin(&self, bins: u64, method: OovMethod, salt: Option<[u64; 2]>) -> u64;

    /// Returns the terms of a sample's field, and whether the field is a scalar.
    ///
    /// # Errors
    /// If the field is missing or has another type.
    fn of_field(sample: &Sample, field: &str) -> Result<(Vec<Self>, bool)>;
}

impl VocabularyTerm for String {
    const LAYER: &'static str = "StringLookup";

    fn oov() -> String {
        "[UNK]".into()
    }

    fn oov_bin(&self, bins: u64, _: OovMethod, salt: Option<[u64; 2]>) -> u64 {
        bin(self, bins, salt)
    }

    fn of_field(sample: &Sample, field: &str) -> Result<(Vec<String>, bool)> {
        Ok((vec![sample.text(field)?.to_string()], true))
    }
}

impl VocabularyTerm for i64 {
    const LAYER: &'static str = "IntegerLookup";

    fn oov() -> i64 {
        -1
    }

    fn oov_bin(&self, bins: u64, method: OovMethod, salt: Option<[u64; 2]>) -> u64 {
        match method {
            OovMethod::Floormod => self.rem_euclid(bins as i64) as u64,
            OovMethod::Farmhash => bin(&self.to_string(), bins, salt),
        }
    }

    fn of_field(sample: &Sample, field: &str) -> Result<(Vec<i64>, bool)> {
        let x = sample.get(field)?;
        if !x.dtype().is_int() {
            return Err(err!(Data, "IntegerLookup requires integers, but field `{field}` is {}", x.ty())
                .hint("cast the indices to i32 or i64"));
        }
        Ok(((0..x.shape().elements()).map(|i| x.get(i).as_i64()).collect(), x.shape().rank() == 0))
    }
}

/// Maps strings to indices: Keras's `StringLookup`. See [`IndexLookup`].
pub type StringLookup = IndexLookup<String>;

/// Maps integers to indices: Keras's `IntegerLookup`. See [`IndexLookup`].
pub type IntegerLookup = IndexLookup<i64>;

/// Vocabulary of strings ([`StringLookup`]) or integers ([`IntegerLookup`]), and the output encoding of indices.
///
/// Index 0 is the mask token, if there is one; then the out-of-vocabulary indices, then the vocabulary. A learned
/// vocabulary is sorted by decreasing frequency.
///
/// ```
/// use systole_datasets::preprocessing::StringLookup;
/// let mut lookup = StringLookup::default();
/// lookup.adapt(["a b b".split(' ').map(String::from).collect::<Vec<_>>()])?;
/// assert_eq!(lookup.get_vocabulary(), ["[UNK]", "b", "a"]);
/// assert_eq!(lookup.call(&["b".into(), "z".into()])?.to_f64s(), [1.0, 0.0]);
/// assert_eq!(StringLookup::from_json(&lookup.to_json()?)?.get_vocabulary(), lookup.get_vocabulary());
/// # Ok::<(), systole_base::Error>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "K: VocabularyTerm", default, deny_unknown_fields)]
pub struct IndexLookup<K: VocabularyTerm> {
    max_tokens: Option<usize>,
    num_oov_indices: usize,
    mask_token: Option<K>,
    oov_token: K,
    output_mode: LookupOutputMode,
    pad_to_max_tokens: bool,
    oov_method: OovMethod,
    salt: Option<[u64; 2]>,
    /// Terms without the mask and out-of-vocabulary tokens.
    vocabulary: Vec<K>,
    /// One weight per index, for `tf_idf`.
    idf_weights: Vec<f32>,
    #[serde(skip)]
    places: OnceLock<HashMap<K, usize>>,
}

impl<K: VocabularyTerm> Default for IndexLookup<K> {
    fn default() -> IndexLookup<K> {
        IndexLookup {
            max_tokens: None,
            num_oov_indices: 1,
            mask_token: None,
            oov_token: K::oov(),
            output_mode: LookupOutputMode::Int,
            pad_to_max_tokens: false,
            oov_method: OovMethod::Floormod,
            salt: None,
            vocabulary: Vec::new(),
            idf_weights: Vec::new(),
            places: OnceLock::new(),
        }
    }
}

field_setters! {
    impl <K: VocabularyTerm> IndexLookup<K> {
        /// Sets the maximum number of indices, including special tokens.
        max_tokens(most: usize) => Some(most);
        /// Sets the number of out-of-vocabulary indices; with 0, unknown terms are an error.
        num_oov_indices(n: usize);
        /// Sets the mask token, which has index 0 and is ignored in one-hot and count outputs.
        mask_token(token: impl Into<K>) => Some(token.into());
        /// Sets the out-of-vocabulary token of the inverse lookup.
        oov_token(token: impl Into<K>) => token.into();
        /// Sets the output encoding: indices, one-hot, multi-hot, count or TF-IDF.
        output_mode(mode: LookupOutputMode);
        /// Sets whether output rows have `max_tokens` entries even if the vocabulary is smaller.
        pad_to_max_tokens(yes: bool);
        /// Sets how out-of-vocabulary integers are distributed over several indices.
        oov_method(method: OovMethod);
        /// Sets SipHash keys for distributing out-of-vocabulary terms.
        salt(keys: [u64; 2]) => Some(keys);
    }
}

impl<K: VocabularyTerm> IndexLookup<K> {
    fn check(&self) -> Result<()> {
        let layer = K::LAYER;
        match self.max_tokens {
            Some(n) if n <= 1 => Err(wrong(
                format!("{layer}: max_tokens is {n}"),
                "set max_tokens to at least 2, or leave it out",
            )),
            Some(n) if self.vocabulary_size() > n => Err(wrong(
                format!(
                    "{layer}: the vocabulary has {} entries, but max_tokens is {n}",
                    self.vocabulary_size()
                ),
                "raise max_tokens",
            )),
            None if self.pad_to_max_tokens => {
                Err(wrong(format!("{layer}: pad_to_max_tokens requires max_tokens"), "set max_tokens"))
            }
            _ => Ok(()),
        }
    }

    /// Number of indices before the out-of-vocabulary ones.
    fn oov_start(&self) -> usize {
        usize::from(self.mask_token.is_some() && self.output_mode == LookupOutputMode::Int)
    }

    fn token_start(&self) -> usize {
        self.oov_start() + self.num_oov_indices
    }

    /// Number of vocabulary indices, including special tokens.
    pub fn vocabulary_size(&self) -> usize {
        self.token_start() + self.vocabulary.len()
    }

    /// Length of the lookup's output rows (one-hot, multi-hot, count).
    pub fn depth(&self) -> usize {
        let padded = self.max_tokens.filter(|_| self.pad_to_max_tokens);
        padded.unwrap_or_else(|| self.vocabulary_size())
    }

    /// Returns all terms of the vocabulary in index order.
    pub fn get_vocabulary(&self) -> Vec<K> {
        let mask = self.mask_token.iter().filter(|_| self.oov_start() == 1).cloned();
        let oov = std::iter::repeat_n(self.oov_token.clone(), self.num_oov_indices);
        mask.chain(oov).chain(self.vocabulary.iter().cloned()).collect()
    }

    /// Sets the vocabulary, with or without leading mask and out-of-vocabulary tokens; `tf_idf` also requires the
    /// terms' weights.
    ///
    /// # Errors
    /// If it is empty, contains a term twice or the mask token among its terms, is larger than `max_tokens`, or the
    /// number of weights differs.
    pub fn set_vocabulary(&mut self, terms: &[K], idf_weights: Option<&[f32]>) -> Result<()> {
        let layer = K::LAYER;
        let special = IndexLookup { vocabulary: Vec::new(), ..self.clone() }.get_vocabulary();
        let has_special = !special.is_empty() && terms.starts_with(&special);
        let own = if has_special { &terms[special.len()..] } else { terms };
        if terms.is_empty() {
            return Err(wrong(format!("{layer}: the vocabulary is empty"), "pass at least one term"));
        }
        let mut sorted: Vec<&K> = own.iter().collect();
        sorted.sort();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(wrong(
                format!("{layer}: the vocabulary contains `{:?}` twice", pair[0]),
                "pass each term once",
            ));
        }
        if let Some(mask) = self.mask_token.as_ref().filter(|mask| own.contains(mask)) {
            return Err(wrong(
                format!("{layer}: the mask token `{mask:?}` is in the middle of the vocabulary"),
                "remove the mask and out-of-vocabulary tokens, or put them first",
            ));
        }
        let idf_weights = match (self.output_mode, idf_weights) {
            (LookupOutputMode::TfIdf, Some(weights)) if weights.len() == terms.len() => {
                let front = if has_special { 0 } else { special.len() };
                let mean = weights.iter().sum::<f32>() / weights.len() as f32;
                std::iter::repeat_n(mean, front).chain(weights.iter().copied()).collect()
            }
            (LookupOutputMode::TfIdf, _) => {
                return Err(wrong(
                    format!("{layer}: tf_idf requires one weight per term"),
                    "pass idf_weights",
                ));
            }
            (_, Some(_)) => {
                return Err(wrong(
                    format!("{layer}: idf_weights require output_mode = tf_idf"),
                    "set output_mode to tf_idf",
                ));
            }
            (_, None) => Vec::new(),
        };
        let new =
            IndexLookup { vocabulary: own.to_vec(), idf_weights, places: OnceLock::new(), ..self.clone() };
        new.check()?;
        *self = new;
        Ok(())
    }

    /// Learns the vocabulary from documents (lists of terms), sorted by decreasing frequency, ties in descending order.
    ///
    /// # Errors
    /// If the settings are inconsistent.
    pub fn adapt(&mut self, documents: impl IntoIterator<Item = Vec<K>>) -> Result<()> {
        (self.vocabulary, self.idf_weights, self.places) = (Vec::new(), Vec::new(), OnceLock::new());
        self.check()?;
        // Per term: occurrences, number of documents, and the last document that contains it.
        let mut counts: HashMap<K, (u64, u64, u64)> = HashMap::new();
        let mut seen = 0u64;
        for document in documents {
            seen += 1;
            for term in document {
                let (count, of_documents, last) = counts.entry(term).or_default();
                *count += 1;
                if *last != seen {
                    (*of_documents, *last) = (*of_documents + 1, seen);
                }
            }
        }
        counts.retain(|term, _| Some(term) != self.mask_token.as_ref() && *term != self.oov_token);
        let mut all: Vec<(K, (u64, u64, u64))> = counts.into_iter().collect();
        all.sort_by(|(a, (n, ..)), (b, (m, ..))| (m, b).cmp(&(n, a)));
        if let Some(most) = self.max_tokens {
            all.truncate(most.saturating_sub(self.token_start()));
        }
        if self.output_mode == LookupOutputMode::TfIdf {
            let idf = |of_documents: u64| (1.0 + seen as f64 / (1.0 + of_documents as f64)).ln() as f32;
            let own: Vec<f32> = all.iter().map(|(_, (_, of_documents, _))| idf(*of_documents)).collect();
            let mean = own.iter().sum::<f32>() / own.len().max(1) as f32;
            self.idf_weights = std::iter::repeat_n(mean, self.token_start()).chain(own).collect();
        }
        self.vocabulary = all.into_iter().map(|(term, _)| term).collect();
        Ok(())
    }

    /// Returns the index of a term; `None` for the mask token in one-hot and count modes.
    ///
    /// # Errors
    /// If it is not in the vocabulary and there is no out-of-vocabulary index.
    pub fn index(&self, term: &K) -> Result<Option<usize>> {
        if self.mask_token.as_ref() == Some(term) {
            return Ok((self.output_mode == LookupOutputMode::Int).then_some(0));
        }
        let number = || self.vocabulary.iter().cloned().enumerate().map(|(i, term)| (term, i)).collect();
        if let Some(at) = self.places.get_or_init(number).get(term) {
            return Ok(Some(self.token_start() + at));
        }
        match self.num_oov_indices {
            0 => Err(err!(Data, "{}: `{term:?}` is not in the vocabulary", K::LAYER)
                .hint("set num_oov_indices of the lookup to 1")),
            1 => Ok(Some(self.oov_start())),
            n => Ok(Some(self.oov_start() + term.oov_bin(n as u64, self.oov_method, self.salt) as usize)),
        }
    }

    /// Encodes `terms of one sample → i64[n], f32[n, depth] or f32[depth]`.
    ///
    /// # Errors
    /// See [`IndexLookup::index`]; also if the settings are inconsistent.
    pub fn call(&self, terms: &[K]) -> Result<Literal> {
        self.check()?;
        let indices = terms.iter().map(|term| Ok(self.index(term)?.map_or(-1, |i| i as i64)));
        self.output_mode.encode(&indices.collect::<Result<Vec<_>>>()?, self.depth(), &self.idf_weights)
    }

    /// Returns the terms of indices: Keras's `invert=True`. Indices beyond the vocabulary yield the out-of-vocabulary
    /// token.
    pub fn invert(&self, indices: &[i64]) -> Vec<K> {
        let all = self.get_vocabulary();
        let term =
            |i: &i64| usize::try_from(*i).ok().and_then(|i| all.get(i)).unwrap_or(&self.oov_token).clone();
        indices.iter().map(term).collect()
    }

    /// Returns a function for [`Dataset::map`](systole_data::Dataset::map) that applies [`IndexLookup::call`] to a
    /// field of each sample; with [`LookupOutputMode::Int`] the field keeps its shape.
    pub fn on(&self, field: &str) -> impl Fn(Sample) -> Result<Sample> + Send + Sync + Clone + 'static
    where
        K: Send + Sync + 'static,
    {
        let (lookup, field) = (self.clone(), field.to_string());
        move |sample: Sample| {
            let (terms, is_one) = K::of_field(&sample, &field)?;
            let found = lookup.call(&terms)?;
            let found = match lookup.output_mode {
                LookupOutputMode::Int if is_one => {
                    Literal::from_bytes(systole_base::TensorType::scalar(DType::I64), found.bytes())?
                }
                LookupOutputMode::Int => {
                    let shape = sample.get(&field)?.shape().clone();
                    Literal::from_bytes(systole_base::TensorType::new(DType::I64, shape), found.bytes())?
                }
                _ => found,
            };
            Ok(sample.with(&field, found))
        }
    }

    /// Serializes settings and vocabulary to JSON, for a model's metadata.
    ///
    /// # Errors
    /// If serialization fails.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string(self)
            .map_err(|e| err!(Bug, "cannot serialize {}", K::LAYER).because(e.to_string()))
    }

    /// Parses the output of [`IndexLookup::to_json`].
    ///
    /// # Errors
    /// If the text is not such JSON.
    pub fn from_json(text: &str) -> Result<Self> {
        let read: Self = serde_json::from_str(text)
            .map_err(|e| err!(Data, "cannot parse {}", K::LAYER).because(e.to_string()))?;
        read.check()?;
        Ok(read)
    }
}
