//! Byte-pair encoding of bytes: words are cut where a pattern says, and their bytes are joined by the merges, of which the first in
//! the list comes first. Source: Sennrich, Haddow and Birch 2016; of bytes: Radford et al. 2019.

use super::pre_tokenizer::PreTokenizer;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use systole_base::{Error, ErrorKind, Result};

/// Bytes in the order of GPT-2's tokens: those that can be printed first.
pub(super) fn byte_order() -> impl Iterator<Item = u8> {
    let is_printed = |b: &u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    (0..=255u8).filter(is_printed).chain((0..=255u8).filter(move |b| !is_printed(b)))
}

/// A token that is found in a text as a whole, before words are cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SpecialToken {
    pub(super) text: String,
    pub(super) id: u32,
    /// Whether it stands for no text: decoding leaves it out where asked.
    pub(super) special: bool,
}

/// What a vocabulary is made of.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BpeParts {
    /// By id; a gap has none.
    pub(super) tokens: Vec<Option<Vec<u8>>>,
    /// In the order of their ranks.
    pub(super) merges: Vec<(u32, u32)>,
    pub(super) pattern: PreTokenizer,
    /// Whether a space is put before the text.
    pub(super) add_prefix_space: bool,
    /// Whether a whole word that is a token is taken as it is.
    pub(super) ignore_merges: bool,
    /// Longest first.
    pub(super) added: Vec<SpecialToken>,
}

/// A vocabulary with its merges.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bpe {
    pub(super) parts: BpeParts,
    by_bytes: HashMap<Vec<u8>, u32>,
    ranks: HashMap<(u32, u32), (u32, u32)>,
    single: Vec<Option<u32>>,
}

impl Bpe {
    /// Checks that all that merges name is there.
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
                tokens.get(id as usize).and_then(Option::as_deref).ok_or_else(|| {
                    Error::new(ErrorKind::Data, format!("merge {} names {id}, which is no token", rank + 1))
                })
            };
            let joined = [of(a)?, of(b)?].concat();
            let new = by_bytes.get(&joined).ok_or_else(|| {
                let text = String::from_utf8_lossy(&joined).into_owned();
                Error::new(ErrorKind::Data, format!("merge {} of the tokenizer makes no token", rank + 1))
                    .because(format!("the vocabulary has no `{text}`"))
                    .hint("vocabulary and merges are not of one tokenizer: take both from the same place")
            })?;
            ranks.entry((a, b)).or_insert((rank as u32, *new));
        }
        let single = (0..=255u8).map(|b| by_bytes.get(&[b][..]).copied()).collect();
        parts.added.sort_by_key(|a| Reverse(a.text.len()));
        Ok(Bpe { parts, by_bytes, ranks, single })
    }

    /// The tokens of a text.
    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let (mut ids, mut known) = (Vec::with_capacity(text.len() / 3), HashMap::new());
        let mut rest = text;
        while !rest.is_empty() {
            let found = self.next_added(rest);
            let (before, added) = match found {
                Some((at, added)) => (&rest[..at], Some(added)),
                None => (rest, None),
            };
            self.encode_plain(before, &mut known, &mut ids)?;
            let Some(added) = added else { break };
            ids.push(added.id);
            rest = &rest[before.len() + added.text.len()..];
        }
        Ok(ids)
    }

    /// The first place of an added token; of those that begin there the longest.
    fn next_added(&self, text: &str) -> Option<(usize, &SpecialToken)> {
        let places = self.parts.added.iter().filter_map(|a| Some((text.find(&a.text)?, a)));
        // The first of equals stays, and that is the longest.
        places.reduce(|best, next| if next.0 < best.0 { next } else { best })
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

    /// The tokens of a word: again and again the pair of the lowest rank is joined, of equals the leftmost.
    fn word(&self, word: &str) -> Result<Vec<u32>> {
        if self.parts.ignore_merges
            && let Some(id) = self.by_bytes.get(word.as_bytes())
        {
            return Ok(vec![*id]);
        }
        let of_byte = |b: u8| {
            self.single.get(usize::from(b)).copied().flatten().ok_or_else(|| {
                Error::new(ErrorKind::Data, format!("the tokenizer has no token for byte 0x{b:02x}"))
                    .at(format!("`{word}`"))
                    .hint("its vocabulary lacks bytes: train one with all of them, or take such text out")
            })
        };
        let mut symbols = word.bytes().map(of_byte).collect::<Result<Vec<u32>>>()?;
        let mut chain = MergeList::new(symbols.len());
        let mut queue = BinaryHeap::new();
        let rank_at = |symbols: &[u32], chain: &MergeList, i: usize| {
            let (a, b) = (symbols[i], symbols[chain.links[i].next?]);
            self.ranks.get(&(a, b)).map(|(rank, new)| Reverse((*rank, i, *new)))
        };
        queue.extend((0..symbols.len()).filter_map(|i| rank_at(&symbols, &chain, i)));
        while let Some(Reverse(entry)) = queue.pop() {
            let i = entry.1;
            // An entry that other merges have overtaken is not what stands there now.
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

/// Places that are joined with the next one.
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

    /// Takes the place after `i` out.
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
