//! Unigram, SentencePiece's tokenizer of T5, ALBERT and XLM-R: the most probable split of each word into tokens.
//!
//! Source: Kudo 2018; splits and scores as in Hugging Face's `Unigram`.

use super::bpe::SpecialToken;
use super::charsmap::CharsMap;
use super::text_ends::TextEnds;
use super::unicode_categories::push_without_accents;
use std::collections::HashMap;

/// Stands for a space, and starts words.
const SPACE: char = '▁';
/// How much less probable than the least probable token an unknown character is.
const UNKNOWN_PENALTY: f64 = 10.0;

/// Step of the normalization before a text is split.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum NormalizerStep {
    CharsMap(CharsMap),
    Replace(String, String),
    /// Runs of at least two spaces become this text.
    ReplaceSpaces(String),
    /// Canonical decomposition without accents.
    StripAccents,
    Lowercase,
    /// Removes white space at the start or the end.
    Strip {
        left: bool,
        right: bool,
    },
}

impl NormalizerStep {
    fn apply(&self, text: String) -> String {
        match self {
            NormalizerStep::CharsMap(map) => map.normalize(&text),
            NormalizerStep::Replace(from, to) => text.replace(from.as_str(), to),
            NormalizerStep::ReplaceSpaces(to) => {
                let mut out = String::with_capacity(text.len());
                let mut rest = text.as_str();
                while let Some(at) = rest.find("  ") {
                    out.push_str(&rest[..at]);
                    out.push_str(to);
                    rest = rest[at..].trim_start_matches(' ');
                }
                out + rest
            }
            NormalizerStep::StripAccents => {
                let mut out = String::with_capacity(text.len());
                text.chars().for_each(|c| push_without_accents(c, &mut out));
                out
            }
            NormalizerStep::Lowercase => text.to_lowercase(),
            NormalizerStep::Strip { left, right } => {
                let text = if *left { text.trim_start() } else { &text };
                if *right { text.trim_end().to_string() } else { text.to_string() }
            }
        }
    }
}

/// Parts of a Unigram tokenizer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct UnigramParts {
    /// Tokens with their logarithmic probabilities, by id.
    pub(super) tokens: Vec<(String, f64)>,
    pub(super) unknown: u32,
    pub(super) normalizer: Vec<NormalizerStep>,
    /// Whether white space is dropped and separates words; otherwise each space starts a word.
    pub(super) drops_white_space: bool,
    pub(super) added: Vec<SpecialToken>,
    pub(super) ends: Option<TextEnds>,
    /// The `tokenizer.json` that it was read from.
    pub(super) source: String,
}

/// Unigram vocabulary with its index.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Unigram {
    pub(super) parts: UnigramParts,
    ids: HashMap<String, u32>,
    longest: usize,
    unknown_score: f64,
}

impl Unigram {
    pub(super) fn new(mut parts: UnigramParts) -> Unigram {
        let is_added = |id: usize| parts.added.iter().any(|a| a.id as usize == id);
        let ids: HashMap<String, u32> = parts
            .tokens
            .iter()
            .enumerate()
            .filter(|(id, (text, _))| !is_added(*id) && !text.is_empty())
            .map(|(id, (text, _))| (text.clone(), id as u32))
            .collect();
        let longest = ids.keys().map(String::len).max().unwrap_or(0);
        let least = parts.tokens.iter().map(|(_, score)| *score).fold(f64::INFINITY, f64::min);
        parts.added.sort_by_key(|a| std::cmp::Reverse(a.text.len()));
        Unigram { ids, longest, unknown_score: least - UNKNOWN_PENALTY, parts }
    }

    pub(super) fn encode(&self, text: &str) -> Vec<u32> {
        let (mut ids, mut rest) = (Vec::new(), text);
        while !rest.is_empty() {
            let found = SpecialToken::next(&self.parts.added, rest);
            let before = found.map_or(rest, |(at, _)| &rest[..at]);
            let shown = if found.is_some_and(|(_, a)| a.lstrip) { before.trim_end() } else { before };
            self.put_plain(shown, &mut ids);
            let Some((at, added)) = found else { break };
            ids.push(added.id);
            rest = &rest[at + added.text.len()..];
        }
        ids
    }

    fn put_plain(&self, text: &str, ids: &mut Vec<u32>) {
        let text = self.parts.normalizer.iter().fold(text.to_string(), |text, step| step.apply(text));
        if self.parts.drops_white_space {
            text.split_whitespace().for_each(|word| self.put_words(word, ids));
        } else if !text.is_empty() {
            self.put_words(&text, ids);
        }
    }

    /// Appends the tokens of a text in which each space starts a word.
    fn put_words(&self, text: &str, ids: &mut Vec<u32>) {
        let mut text = text.replace(' ', "▁");
        if !text.starts_with(SPACE) {
            text.insert(0, SPACE);
        }
        let starts: Vec<usize> = text.match_indices(SPACE).map(|(at, _)| at).chain([text.len()]).collect();
        for pair in starts.windows(2) {
            self.put_word(&text[pair[0]..pair[1]], ids);
        }
    }

    /// Appends the most probable tokens of a word; neighboring unknown characters are one token.
    fn put_word(&self, word: &str, ids: &mut Vec<u32>) {
        // The best path to each byte: score, start of its last token, and that token.
        let mut best: Vec<Option<(f64, usize, u32)>> = vec![None; word.len() + 1];
        for (start, first) in word.char_indices() {
            let before = if start == 0 { 0.0 } else { best[start].map_or(f64::NEG_INFINITY, |(s, ..)| s) };
            let end_of_first = start + first.len_utf8();
            let mut has_single = false;
            let ends = word[start..].char_indices().map(|(at, c)| start + at + c.len_utf8());
            for end in ends.take_while(|end| end - start <= self.longest) {
                let Some(&id) = self.ids.get(&word[start..end]) else { continue };
                let score = before + self.parts.tokens[id as usize].1;
                if best[end].is_none_or(|(s, ..)| score > s) {
                    best[end] = Some((score, start, id));
                }
                has_single |= end == end_of_first;
            }
            let score = before + self.unknown_score;
            if !has_single && best[end_of_first].is_none_or(|(s, ..)| score > s) {
                best[end_of_first] = Some((score, start, self.parts.unknown));
            }
        }
        let (mut at, mut path) = (word.len(), Vec::new());
        while let Some((_, start, id)) = best.get(at).copied().flatten().filter(|_| at > 0) {
            if !(id == self.parts.unknown && path.last() == Some(&id)) {
                path.push(id);
            }
            at = start;
        }
        ids.extend(path.into_iter().rev());
    }

    /// Text of a token, with spaces.
    pub(super) fn text(&self, id: u32) -> String {
        self.parts.tokens.get(id as usize).map_or(String::new(), |(text, _)| text.replace(SPACE, " "))
    }
}
