//! Byte-level byte-pair encoding (BPE): splits words by a pattern and merges their bytes by rank.
//!
//! Sources: Sennrich, Haddow and Birch 2016; for bytes: Radford et al. 2019.

use super::pre_tokenizer::PreTokenizer;
use super::text_ends::TextEnds;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use systole_base::{Result, err};

/// Returns the bytes in the order of GPT-2's tokens: printable ones first.
pub(super) fn byte_order() -> impl Iterator<Item = u8> {
    let is_printed = |b: &u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    (0..=255u8).filter(is_printed).chain((0..=255u8).filter(move |b| !is_printed(b)))
}

/// Added token that is matched as a whole before the text is split into words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SpecialToken {
    pub(super) text: String,
    pub(super) id: u32,
    /// Whether the token is special: decoding can skip it.
    pub(super) special: bool,
    /// Whether white space before the token belongs to it.
    pub(super) lstrip: bool,
}

impl SpecialToken {
    /// Returns the first added token in the text; at one position, the longest. `added` is sorted by length.
    pub(super) fn next<'a>(added: &'a [SpecialToken], text: &str) -> Option<(usize, &'a SpecialToken)> {
        let places = added.iter().filter_map(|a| Some((text.find(&a.text)?, a)));
        // The first of equals is kept, which is the longest.
        places.reduce(|best, next| if next.0 < best.0 { next } else { best })
    }
}

/// Ends words in CLIP's vocabulary.
pub(super) const WORD_END: &[u8] = b"</w>";

/// Parts of a BPE vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BpeParts {
    /// Tokens by id; `None` for unused ids.
    pub(super) tokens: Vec<Option<Vec<u8>>>,
    /// Merges in rank order.
    pub(super) merges: Vec<(u32, u32)>,
    pub(super) pattern: PreTokenizer,
    /// Whether to put a space before the text.
    pub(super) add_prefix_space: bool,
    /// Whether a word that is a token is used as is, without merges.
    pub(super) ignore_merges: bool,
    /// Added tokens, longest first.
    pub(super) added: Vec<SpecialToken>,
    /// Ends of a text, for encoders.
    pub(super) ends: Option<TextEnds>,
    /// Whether texts become lower case and words end in `</w>`, as in CLIP.
    pub(super) marks_word_ends: bool,
}

/// BPE vocabulary and merges.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bpe {
    pub(super) parts: BpeParts,
    by_bytes: HashMap<Vec<u8>, u32>,
    ranks: HashMap<(u32, u32), (u32, u32)>,
    single: Vec<Option<u32>>,
}

impl Bpe {
    /// Checks that all tokens used in merges exist.
    pub(super) fn new(mut parts: BpeParts) -> Result<Bpe> {
        let BpeParts { tokens, merges, added, .. } = &parts;
        let is_added = |id: usize| added.iter().any(|a| a.id as usize == id);
        let mut by_bytes = HashMap::with_capacity(tokens.len());
        for (id, token) in tokens.iter().enumerate().filter(|(id, _)| !is_added(*id)) {
            if let Some(bytes) = token {
                by_bytes.insert(bytes.clone(), id as u32);
            }
        }
        let mut ranks = HashMap::with_capacity(merges.len());
        for (rank, &(a, b)) in merges.iter().enumerate() {
            let of = |id: u32| {
                tokens
                    .get(id as usize)
                    .and_then(Option::as_deref)
                    .ok_or_else(|| err!(Data, "merge {} contains {id}, which is not a token", rank + 1))
            };
            let joined = [of(a)?, of(b)?].concat();
            let new = by_bytes.get(&joined).ok_or_else(|| {
                let text = String::from_utf8_lossy(&joined).into_owned();
                err!(Data, "the result of merge {} is not a token", rank + 1)
                    .because(format!("the tokenizer's vocabulary has no token `{text}`"))
                    .hint("use vocabulary and merges of the same tokenizer")
            })?;
            ranks.entry((a, b)).or_insert((rank as u32, *new));
        }
        let single = (0..=255u8).map(|b| by_bytes.get(&[b][..]).copied()).collect();
        parts.added.sort_by_key(|a| Reverse(a.text.len()));
        Ok(Bpe { parts, by_bytes, ranks, single })
    }

    /// Returns the tokens of a text.
    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let (mut ids, mut known) = (Vec::with_capacity(text.len() / 3), HashMap::new());
        let mut rest = text;
        while !rest.is_empty() {
            let found = SpecialToken::next(&self.parts.added, rest);
            let (before, added) = match found {
                Some((at, added)) => (&rest[..at], Some(added)),
                None => (rest, None),
            };
            let is_stripped = added.is_some_and(|a| a.lstrip);
            let plain = if is_stripped { before.trim_end() } else { before };
            if self.parts.marks_word_ends {
                self.encode_plain(&plain.to_lowercase(), &mut HashMap::new(), &mut ids)?;
            } else {
                self.encode_plain(plain, &mut known, &mut ids)?;
            }
            let Some(added) = added else { break };
            ids.push(added.id);
            rest = &rest[before.len() + added.text.len()..];
        }
        Ok(ids)
    }

    fn encode_plain<'t>(
        &self,
        text: &'t str,
        known: &mut HashMap<&'t str, Vec<u32>>,
        ids: &mut Vec<u32>,
    ) -> Result<()> {
        if self.parts.add_prefix_space && !text.is_empty() && !text.starts_with(' ') {
            let spaced = format!(" {text}");
            for word in self.parts.pattern.words(&spaced) {
                ids.extend(self.word(word)?);
            }
            return Ok(());
        }
        for word in self.parts.pattern.words(text) {
            if let Some(of_word) = known.get(word) {
                ids.extend_from_slice(of_word);
                continue;
            }
            let of_word = self.word(word)?;
            ids.extend_from_slice(&of_word);
            known.insert(word, of_word);
        }
        Ok(())
    }

    /// Returns the tokens of a word: repeatedly merges the pair of the lowest rank, the leftmost first.
    fn word(&self, word: &str) -> Result<Vec<u32>> {
        if self.parts.ignore_merges
            && let Some(id) = self.by_bytes.get(word.as_bytes())
        {
            return Ok(vec![*id]);
        }
        let of_byte = |b: u8| {
            self.single.get(usize::from(b)).copied().flatten().ok_or_else(|| {
                err!(Data, "the tokenizer has no token for byte 0x{b:02x}")
                    .at(format!("`{word}`"))
                    .hint("train a tokenizer with all bytes, or remove such text")
            })
        };
        let mut symbols = word.bytes().map(of_byte).collect::<Result<Vec<u32>>>()?;
        if let (true, Some((last, symbol))) =
            (self.parts.marks_word_ends, word.bytes().last().zip(symbols.last_mut()))
        {
            let ended = [&[last], WORD_END].concat();
            *symbol = self.by_bytes.get(&ended).copied().unwrap_or(*symbol);
        }
        let mut chain = MergeList::new(symbols.len());
        let mut queue = BinaryHeap::new();
        let rank_at = |symbols: &[u32], chain: &MergeList, i: usize| {
            let (a, b) = (symbols[i], symbols[chain.links[i].next?]);
            self.ranks.get(&(a, b)).map(|(rank, new)| Reverse((*rank, i, *new)))
        };
        queue.extend((0..symbols.len()).filter_map(|i| rank_at(&symbols, &chain, i)));
        while let Some(Reverse(entry)) = queue.pop() {
            let i = entry.1;
            // Skip entries whose symbols other merges have changed.
            if !chain.links[i].is_there || rank_at(&symbols, &chain, i) != Some(Reverse(entry)) {
                continue;
            }
            symbols[i] = entry.2;
            chain.join(i);
            queue.extend(
                [Some(i), chain.links[i].before]
                    .into_iter()
                    .flatten()
                    .filter_map(|i| rank_at(&symbols, &chain, i)),
            );
        }
        Ok(symbols.iter().enumerate().filter(|(i, _)| chain.links[*i].is_there).map(|(_, s)| *s).collect())
    }
}

/// Linked list of the symbols of a word.
struct MergeList {
    links: Vec<MergeLink>,
}

struct MergeLink {
    before: Option<usize>,
    next: Option<usize>,
    is_there: bool,
}

impl MergeList {
    fn new(length: usize) -> MergeList {
        let link = |i: usize| MergeLink {
            before: i.checked_sub(1),
            next: (i + 1 < length).then_some(i + 1),
            is_there: true,
        };
        MergeList { links: (0..length).map(link).collect() }
    }

    /// Merges symbol `i` with the next one.
    fn join(&mut self, i: usize) {
        let Some(gone) = self.links[i].next else { return };
        self.links[gone].is_there = false;
        let after = self.links[gone].next;
        self.links[i].next = after;
        if let Some(after) = after {
            self.links[after].before = Some(i);
        }
    }
}
