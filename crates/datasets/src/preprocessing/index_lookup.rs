//! Vocabularies: words or numbers to indices and back, given or counted from data.

use super::hashing::bin;
use super::{LookupOutputMode, wrong};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::sync::OnceLock;
use systole_base::{DType, Error, ErrorKind, Literal, Result};
use systole_data::Sample;

/// How what is not in an integer vocabulary is spread over several indices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OovMethod {
    /// By the remainder of the number.
    #[default]
    Floormod,
    /// By the hash of the number as a text.
    Farmhash,
}

/// What a vocabulary is of: `String` or `i64`.
pub trait VocabularyTerm: Clone + Ord + Hash + Debug + Display + Serialize + DeserializeOwned {
    /// Keras's name of the layer.
    const LAYER: &'static str;

    /// What stands for all that is not in the vocabulary, on the way back.
    fn oov() -> Self;

    /// Its bin among several for what is not in the vocabulary.
    fn oov_bin(&self, bins: u64, method: OovMethod, salt: Option<[u64; 2]>) -> u64;

    /// The terms of a field of a sample, and whether that was a single one.
    ///
    /// # Errors
    /// When the field is missing or is of something else.
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
            let what = format!("IntegerLookup takes integers, field {field} is {}", x.ty());
            return Err(Error::new(ErrorKind::Data, what).hint("cast it to i32 or i64"));
        }
        Ok(((0..x.shape().elements()).map(|i| x.get(i).as_i64()).collect(), x.shape().rank() == 0))
    }
}

/// Words to indices: Keras's `StringLookup`. See [`IndexLookup`].
pub type StringLookup = IndexLookup<String>;

/// Integers to indices: Keras's `IntegerLookup`. See [`IndexLookup`].
pub type IntegerLookup = IndexLookup<i64>;

/// A vocabulary of words ([`StringLookup`]) or integers ([`IntegerLookup`]) and what their indices become.
///
/// Index 0 is the mask token's, where there is one; then come those of what is not in the vocabulary, then the vocabulary, the
/// most frequent first when it was counted.
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
    /// Without mask and what is not in it.
    vocabulary: Vec<K>,
    /// As long as all indices, for `tf_idf`.
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

/// Settings, to be chained.
impl<K: VocabularyTerm> IndexLookup<K> {
    /// Most indices that there are, all included.
    pub fn max_tokens(self, most: usize) -> Self {
        IndexLookup { max_tokens: Some(most), ..self }
    }

    /// How many indices there are for what is not in the vocabulary; with 0 that is an error.
    pub fn num_oov_indices(self, n: usize) -> Self {
        IndexLookup { num_oov_indices: n, ..self }
    }

    /// What has index 0 to itself, and counts for nothing in rows.
    pub fn mask_token(self, token: impl Into<K>) -> Self {
        IndexLookup { mask_token: Some(token.into()), ..self }
    }

    /// What stands for all that is not in the vocabulary, on the way back.
    pub fn oov_token(self, token: impl Into<K>) -> Self {
        IndexLookup { oov_token: token.into(), ..self }
    }

    /// What indices become.
    pub fn output_mode(self, mode: LookupOutputMode) -> Self {
        IndexLookup { output_mode: mode, ..self }
    }

    /// Whether rows are as long as `max_tokens` although the vocabulary is smaller.
    pub fn pad_to_max_tokens(self, yes: bool) -> Self {
        IndexLookup { pad_to_max_tokens: yes, ..self }
    }

    /// How integers that are not in the vocabulary are spread over several indices.
    pub fn oov_method(self, method: OovMethod) -> Self {
        IndexLookup { oov_method: method, ..self }
    }

    /// Keys of SipHash, which then spreads what is not in the vocabulary.
    pub fn salt(self, keys: [u64; 2]) -> Self {
        IndexLookup { salt: Some(keys), ..self }
    }
}

impl<K: VocabularyTerm> IndexLookup<K> {
    fn check(&self) -> Result<()> {
        let layer = K::LAYER;
        match self.max_tokens {
            Some(n) if n <= 1 => {
                Err(wrong(format!("{layer}: max_tokens is {n}"), "give at least 2, or leave it out"))
            }
            Some(n) if self.vocabulary_size() > n => Err(wrong(
                format!("{layer}: the vocabulary has {} entries, max_tokens is {n}", self.vocabulary_size()),
                "raise max_tokens",
            )),
            None if self.pad_to_max_tokens => {
                Err(wrong(format!("{layer}: pad_to_max_tokens without max_tokens"), "set max_tokens"))
            }
            _ => Ok(()),
        }
    }

    /// Indices before those of what is not in the vocabulary.
    fn oov_start(&self) -> usize {
        usize::from(self.mask_token.is_some() && self.output_mode == LookupOutputMode::Int)
    }

    fn token_start(&self) -> usize {
        self.oov_start() + self.num_oov_indices
    }

    /// How many indices there are.
    pub fn vocabulary_size(&self) -> usize {
        self.token_start() + self.vocabulary.len()
    }

    /// Length of rows.
    pub fn depth(&self) -> usize {
        let padded = self.max_tokens.filter(|_| self.pad_to_max_tokens);
        padded.unwrap_or_else(|| self.vocabulary_size())
    }

    /// All terms in the order of their indices.
    pub fn get_vocabulary(&self) -> Vec<K> {
        let mask = self.mask_token.iter().filter(|_| self.oov_start() == 1).cloned();
        let oov = std::iter::repeat_n(self.oov_token.clone(), self.num_oov_indices);
        mask.chain(oov).chain(self.vocabulary.iter().cloned()).collect()
    }

    /// Takes a vocabulary, with or without mask and out-of-vocabulary tokens in front; for `tf_idf` with the weights of its terms.
    ///
    /// # Errors
    /// When it is empty, has a term twice or the mask token among its terms, is larger than `max_tokens`, or the weights are not as many.
    pub fn set_vocabulary(&mut self, terms: &[K], idf_weights: Option<&[f32]>) -> Result<()> {
        let layer = K::LAYER;
        let special = IndexLookup { vocabulary: Vec::new(), ..self.clone() }.get_vocabulary();
        let has_special = !special.is_empty() && terms.starts_with(&special);
        let own = if has_special { &terms[special.len()..] } else { terms };
        if terms.is_empty() {
            return Err(wrong(format!("{layer}: the vocabulary is empty"), "give at least one term"));
        }
        let mut sorted: Vec<&K> = own.iter().collect();
        sorted.sort();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(wrong(
                format!("{layer}: the vocabulary has {:?} twice", pair[0]),
                "give each term once",
            ));
        }
        if let Some(mask) = self.mask_token.as_ref().filter(|mask| own.contains(mask)) {
            return Err(wrong(
                format!("{layer}: the mask token {mask:?} is in the middle of the vocabulary"),
                "leave mask and out-of-vocabulary tokens out, or give them first",
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
                    format!("{layer}: tf_idf needs a weight for each term"),
                    "give idf_weights",
                ));
            }
            (_, Some(_)) => {
                return Err(wrong(
                    format!("{layer}: idf_weights are given for another output mode"),
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

    /// Learns the vocabulary from documents, each a list of terms: the most frequent first, equals from high to low.
    ///
    /// # Errors
    /// When settings do not fit each other.
    pub fn adapt(&mut self, documents: impl IntoIterator<Item = Vec<K>>) -> Result<()> {
        (self.vocabulary, self.idf_weights, self.places) = (Vec::new(), Vec::new(), OnceLock::new());
        self.check()?;
        // How often a term was seen, in how many documents, and in which one last.
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

    /// The index of a term; in rows the mask token has none.
    ///
    /// # Errors
    /// When it is not in the vocabulary and there is no index for that.
    pub fn index(&self, term: &K) -> Result<Option<usize>> {
        if self.mask_token.as_ref() == Some(term) {
            return Ok((self.output_mode == LookupOutputMode::Int).then_some(0));
        }
        let number = || self.vocabulary.iter().cloned().enumerate().map(|(i, term)| (term, i)).collect();
        if let Some(at) = self.places.get_or_init(number).get(term) {
            return Ok(Some(self.token_start() + at));
        }
        match self.num_oov_indices {
            0 => {
                let what = format!("{}: {term:?} is not in the vocabulary", K::LAYER);
                Err(Error::new(ErrorKind::Data, what).hint("set num_oov_indices to 1"))
            }
            1 => Ok(Some(self.oov_start())),
            n => Ok(Some(self.oov_start() + term.oov_bin(n as u64, self.oov_method, self.salt) as usize)),
        }
    }

    /// `terms of one sample → i64[n], f32[n, depth] or f32[depth]`.
    ///
    /// # Errors
    /// As [`IndexLookup::index`], or when settings do not fit each other.
    pub fn call(&self, terms: &[K]) -> Result<Literal> {
        self.check()?;
        let indices = terms.iter().map(|term| Ok(self.index(term)?.map_or(-1, |i| i as i64)));
        self.output_mode.encode(&indices.collect::<Result<Vec<_>>>()?, self.depth(), &self.idf_weights)
    }

    /// The terms of indices: Keras's `invert=True`. Indices beyond the vocabulary give the out-of-vocabulary token.
    pub fn invert(&self, indices: &[i64]) -> Vec<K> {
        let all = self.get_vocabulary();
        let term =
            |i: &i64| usize::try_from(*i).ok().and_then(|i| all.get(i)).unwrap_or(&self.oov_token).clone();
        indices.iter().map(term).collect()
    }

    /// A function for [`Dataset::map`](systole_data::Dataset::map): the field of each sample becomes what [`IndexLookup::call`] makes
    /// of it; with [`OutputMode::Int`] in the field's own shape.
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

    /// Settings and vocabulary as JSON, to be kept in a model's notes.
    ///
    /// # Errors
    /// When it does not serialise.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|e| {
            Error::new(ErrorKind::Bug, format!("a {} does not serialise", K::LAYER)).because(e.to_string())
        })
    }

    /// What [`IndexLookup::to_json`] has written.
    ///
    /// # Errors
    /// When it is something else.
    pub fn from_json(text: &str) -> Result<Self> {
        let read: Self = serde_json::from_str(text).map_err(|e| {
            Error::new(ErrorKind::Data, format!("this is no {}", K::LAYER)).because(e.to_string())
        })?;
        read.check()?;
        Ok(read)
    }
}
