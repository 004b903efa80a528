//! Trains a byte-pair vocabulary (BPE): repeatedly merges the most frequent pair of tokens.
//!
//! The merges equal those of Hugging Face's `BpeTrainer` with the full byte alphabet: of equally frequent pairs, the
//! one with the lower ids is merged first; a pair whose result is already a token becomes a merge without a new token.

use super::bpe::{Bpe, BpeParts, byte_order};
use super::pre_tokenizer::PreTokenizer;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use systole_base::Result;

/// Returns a vocabulary of `size` tokens including the 256 bytes, or fewer if the text has too few pairs.
pub(super) fn train(text: &str, size: usize) -> Result<Bpe> {
    let mut counted: HashMap<&str, u64> = HashMap::new();
    PreTokenizer::Gpt2.words(text).for_each(|word| *counted.entry(word).or_default() += 1);
    let mut of_byte = [0u32; 256];
    let mut tokens: Vec<Vec<u8>> = Vec::with_capacity(size);
    for byte in byte_order() {
        if let Some(id) = of_byte.get_mut(usize::from(byte)) {
            *id = tokens.len() as u32;
        }
        tokens.push(vec![byte]);
    }
    let ids = |word: &str| word.bytes().filter_map(|b| of_byte.get(usize::from(b)).copied()).collect();
    let words = counted.iter().map(|(word, count)| (ids(word), *count)).collect();
    let merges = PairCounts::of(words).learn(&mut tokens, size);
    Bpe::new(BpeParts {
        tokens: tokens.into_iter().map(Some).collect(),
        merges,
        pattern: PreTokenizer::Gpt2,
        add_prefix_space: false,
        ignore_merges: false,
        added: Vec::new(),
        ends: None,
        marks_word_ends: false,
    })
}

/// Words as tokens, and the frequency of each adjacent pair.
struct PairCounts {
    words: Vec<(Vec<u32>, u64)>,
    counts: HashMap<(u32, u32), u64>,
    /// Indices of the words that contain a pair.
    places: HashMap<(u32, u32), BTreeSet<u32>>,
    queue: BinaryHeap<(u64, Reverse<(u32, u32)>)>,
}

impl PairCounts {
    fn of(words: Vec<(Vec<u32>, u64)>) -> PairCounts {
        let mut pairs =
            PairCounts { words, counts: HashMap::new(), places: HashMap::new(), queue: BinaryHeap::new() };
        for (i, (word, count)) in pairs.words.iter().enumerate() {
            for pair in neighbours(word) {
                *pairs.counts.entry(pair).or_default() += count;
                pairs.places.entry(pair).or_default().insert(i as u32);
            }
        }
        pairs.queue.extend(pairs.counts.iter().map(|(pair, count)| (*count, Reverse(*pair))));
        pairs
    }

    fn learn(mut self, tokens: &mut Vec<Vec<u8>>, size: usize) -> Vec<(u32, u32)> {
        let mut by_bytes: HashMap<Vec<u8>, u32> =
            tokens.iter().enumerate().map(|(id, bytes)| (bytes.clone(), id as u32)).collect();
        let mut merges = Vec::new();
        while tokens.len() < size {
            let Some((count, Reverse(pair))) = self.queue.pop() else { break };
            let now = self.counts.get(&pair).copied().unwrap_or(0);
            if now != count {
                if now > 0 {
                    self.queue.push((now, Reverse(pair)));
                }
                continue;
            }
            let of = |id: u32| tokens[id as usize].as_slice();
            let joined = [of(pair.0), of(pair.1)].concat();
            let new = *by_bytes.entry(joined).or_insert_with_key(|bytes| {
                tokens.push(bytes.clone());
                (tokens.len() - 1) as u32
            });
            merges.push(pair);
            self.merge(pair, new);
        }
        merges
    }

    /// Merges a pair in all words.
    fn merge(&mut self, pair: (u32, u32), new: u32) {
        let mut grown = BTreeSet::new();
        for place in self.places.remove(&pair).unwrap_or_default() {
            let Some((word, count)) = self.words.get_mut(place as usize) else { continue };
            let joined = join(word, pair, new);
            for old in neighbours(word) {
                if let Some(n) = self.counts.get_mut(&old) {
                    *n = n.saturating_sub(*count);
                }
            }
            for now in neighbours(&joined) {
                *self.counts.entry(now).or_default() += *count;
                if now.0 == new || now.1 == new {
                    self.places.entry(now).or_default().insert(place);
                    grown.insert(now);
                }
            }
            *word = joined;
        }
        self.counts.remove(&pair);
        let counts = &self.counts;
        self.queue.extend(grown.into_iter().filter_map(|p| Some((*counts.get(&p)?, Reverse(p)))));
    }
}

fn neighbours(word: &[u32]) -> impl Iterator<Item = (u32, u32)> {
    word.iter().copied().zip(word.iter().copied().skip(1))
}

/// Returns the word with each occurrence of a pair, from the left, replaced by `new`.
fn join(word: &[u32], pair: (u32, u32), new: u32) -> Vec<u32> {
    let mut joined = Vec::with_capacity(word.len());
    let mut rest = word;
    while let [first, after @ ..] = rest {
        let is_pair = *first == pair.0 && after.first() == Some(&pair.1);
        joined.push(if is_pair { new } else { *first });
        rest = if is_pair { &after[1..] } else { after };
    }
    joined
}
