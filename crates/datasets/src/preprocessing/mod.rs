//! Preprocesses categorical data and text like Keras's StringLookup, Hashing and TextVectorization: functions for
//! `Dataset::map`, not layers.
//!
//! [`StringLookup`], [`IntegerLookup`], [`TextVectorization`], [`Hashing`], [`HashedCrossing`].
//!
//! Strings cannot be part of a compiled graph, so these are not model layers. They are functions for
//! [`Dataset::map`](systole_data::Dataset::map), and a model stores them as JSON in its metadata. Names, arguments,
//! vocabularies and results are Keras's.

mod hashing;
mod index_lookup;
mod text_vectorization;

pub use hashing::{CrossedFeature, HashedCrossing, Hashing};
pub use index_lookup::{IndexLookup, IntegerLookup, OovMethod, StringLookup, VocabularyTerm};
pub use text_vectorization::{Ngrams, Standardize, TextVectorization, TokenSplit};

use serde::{Deserialize, Serialize};
use systole_base::{Error, ErrorKind, Literal, Result};

/// Output encoding of vocabulary indices: the indices, one-hot, multi-hot, count or TF-IDF.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LookupOutputMode {
    /// The indices: `i64`.
    #[default]
    Int,
    /// A one-hot row for each index: `f32[n, depth]`.
    OneHot,
    /// One row with ones for all indices: `f32[depth]`.
    MultiHot,
    /// One row of counts: `f32[depth]`.
    Count,
    /// One row of counts multiplied by inverse document frequencies: `f32[depth]`.
    TfIdf,
}

impl LookupOutputMode {
    /// Encodes `numbers → i64[n], f32[n, depth] or f32[depth]`; −1 is ignored in rows.
    fn encode(self, numbers: &[i64], depth: usize, idf_weights: &[f32]) -> Result<Literal> {
        let at = |n: &i64| usize::try_from(*n).ok().filter(|n| *n < depth);
        match self {
            LookupOutputMode::Int => Literal::from_slice([numbers.len()], numbers),
            LookupOutputMode::OneHot => {
                let mut rows = vec![0f32; numbers.len() * depth];
                for (row, n) in numbers.iter().enumerate() {
                    if let Some(slot) = at(n).and_then(|n| rows.get_mut(row * depth + n)) {
                        *slot = 1.0;
                    }
                }
                Literal::from_slice([numbers.len(), depth], &rows)
            }
            LookupOutputMode::MultiHot | LookupOutputMode::Count | LookupOutputMode::TfIdf => {
                let mut row = vec![0f32; depth];
                for slot in numbers.iter().filter_map(at) {
                    row[slot] += 1.0;
                }
                if self == LookupOutputMode::MultiHot {
                    row.iter_mut().for_each(|count| *count = count.min(1.0));
                }
                if self == LookupOutputMode::TfIdf {
                    let weights = idf_weights.iter().copied().chain(std::iter::repeat(0.0));
                    row.iter_mut().zip(weights).for_each(|(count, weight)| *count *= weight);
                }
                Literal::from_slice([depth], &row)
            }
        }
    }
}

/// Returns an error such as `StringLookup: max_tokens is 1`.
fn wrong(what: impl std::fmt::Display, hint: &str) -> Error {
    Error::new(ErrorKind::Config, what.to_string()).hint(hint)
}

// Names of the previous version.
systole_base::renamed! { Feature => CrossedFeature, OutputMode => LookupOutputMode, Split => TokenSplit }
#[doc(hidden)]
pub use self::VocabularyTerm as Term;

#[cfg(test)]
mod tests;
