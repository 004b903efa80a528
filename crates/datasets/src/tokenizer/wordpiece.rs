//! WordPiece, BERT's tokenizer: splits a text into words, and words into the longest pieces of a vocabulary.
//!
//! Sources: Schuster and Nakajima 2012; Devlin et al. 2018. Normalization as in Hugging Face's `BertNormalizer`.

use super::unicode_categories::{is_control, is_ideograph, is_punctuation, push_without_accents};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use systole_base::{Error, Result, err};
use systole_data::with_defaults;

/// Marks pieces that continue a word.
pub(super) const CONTINUES: &str = "##";
/// BERT's special tokens: padding, unknown word, start, end.
pub(super) const SPECIAL: [&str; 4] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"];
/// Names of the token that stands for a hidden word.
pub(super) const MASKS: [&str; 2] = ["[MASK]", "<mask>"];
/// Maximum length in characters of a word that is split into pieces.
pub(super) const LONGEST_WORD: usize = 100;

with_defaults! {
    /// Normalization of the text before it is split into words.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub(super) struct BertNormalizer {
        pub(super) lowercase: bool = true,
        pub(super) strip_accents: bool = true,
        pub(super) handle_chinese_chars: bool = true,
        pub(super) clean_text: bool = true,
    }
}

/// WordPiece vocabulary and normalization.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct WordPiece {
    /// Tokens by id.
    pub(super) tokens: Vec<String>,
    pub(super) normalizer: BertNormalizer,
    pub(super) longest_word: usize,
    ids: HashMap<String, u32>,
    /// Names of the padding, unknown, start and end tokens: [`SPECIAL`] in BERT.
    pub(super) names: [String; 4],
    /// Ids of [`WordPiece::names`].
    special: [u32; 4],
    /// Tokens in brackets, such as `[MASK]`: matched as a whole before the text is normalized.
    whole: Vec<String>,
}

impl WordPiece {
    /// Indexes the tokens.
    ///
    /// # Errors
    /// If a token occurs twice, or a special token is missing.
    pub(super) fn new(
        tokens: Vec<String>,
        normalizer: BertNormalizer,
        longest_word: usize,
    ) -> Result<WordPiece> {
        WordPiece::with_names(tokens, normalizer, longest_word, SPECIAL.map(String::from))
    }

    /// Like [`WordPiece::new`], with other names of the special tokens.
    pub(super) fn with_names(
        tokens: Vec<String>,
        normalizer: BertNormalizer,
        longest_word: usize,
        names: [String; 4],
    ) -> Result<WordPiece> {
        let mut ids = HashMap::with_capacity(tokens.len());
        for (id, token) in tokens.iter().enumerate() {
            if ids.insert(token.clone(), id as u32).is_some() {
                return Err(broken(&format!("the token `{token}` occurs twice")));
            }
        }
        let mut special = [0; 4];
        for (id, name) in special.iter_mut().zip(&names) {
            *id = *ids.get(name).ok_or_else(|| broken(&format!("the token {name} is missing")))?;
        }
        let is_whole = |t: &&String| names.contains(t) || MASKS.contains(&t.as_str());
        let whole = tokens.iter().filter(is_whole).cloned().collect();
        Ok(WordPiece { tokens, normalizer, longest_word, names, ids, special, whole })
    }

    /// Parses a `vocab.txt`: a token per line.
    pub(super) fn from_lines(text: &str, normalizer: BertNormalizer) -> Result<WordPiece> {
        let tokens = text.lines().map(|line| line.trim_end_matches('\r').to_string());
        WordPiece::new(tokens.collect(), normalizer, LONGEST_WORD)
    }

    /// Builds a vocabulary of at most `size` tokens: the special tokens, the characters of the texts, and their most
    /// frequent words.
    pub(super) fn words_of<'t>(texts: impl Iterator<Item = &'t str>, size: usize) -> Result<WordPiece> {
        let normalizer = BertNormalizer::default();
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for text in texts {
            words(&normalizer.normalize(text)).for_each(|word| *counts.entry(word.into()).or_insert(0) += 1);
        }
        let chars: BTreeSet<char> = counts.keys().flat_map(|word| word.chars()).collect();
        let mut tokens: Vec<String> = SPECIAL.map(String::from).to_vec();
        tokens.extend(chars.iter().map(char::to_string));
        tokens.extend(chars.iter().map(|c| format!("{CONTINUES}{c}")));
        tokens.truncate(size.max(SPECIAL.len()));
        let mut ordered: Vec<(&String, &u64)> =
            counts.iter().filter(|(word, _)| word.chars().nth(1).is_some()).collect();
        // A stable sort keeps equally frequent words in alphabetical order.
        ordered.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let room = size.saturating_sub(tokens.len());
        tokens.extend(ordered.into_iter().take(room).map(|(word, _)| word.clone()));
        WordPiece::new(tokens, normalizer, LONGEST_WORD)
    }

    pub(super) fn id(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }

    /// Ids of the padding, start and end tokens.
    pub(super) fn ends(&self) -> (u32, u32, u32) {
        let [padding, _, start, end] = self.special;
        (padding, start, end)
    }

    /// Token ids of a text, without start and end tokens.
    pub(super) fn encode(&self, text: &str) -> Vec<u32> {
        let (mut ids, mut rest) = (Vec::new(), text);
        loop {
            let next = self.whole.iter().filter_map(|t| rest.find(t.as_str()).map(|at| (at, t))).min();
            let Some((at, token)) = next else { break };
            self.put_plain(&rest[..at], &mut ids);
            ids.extend(self.id(token));
            rest = &rest[at + token.len()..];
        }
        self.put_plain(rest, &mut ids);
        ids
    }

    fn put_plain(&self, text: &str, ids: &mut Vec<u32>) {
        words(&self.normalizer.normalize(text)).for_each(|word| self.put_word(word, ids));
    }

    /// Appends the pieces of a word: greedily the longest ones; the unknown token if the word cannot be split.
    fn put_word(&self, word: &str, ids: &mut Vec<u32>) {
        let before = ids.len();
        let mut start = 0;
        if word.chars().count() > self.longest_word {
            ids.push(self.special[1]);
            return;
        }
        while start < word.len() {
            let prefix = if start > 0 { CONTINUES } else { "" };
            let ends = word[start..].char_indices().rev().map(|(at, c)| start + at + c.len_utf8());
            let found = ends
                .into_iter()
                .find_map(|end| self.id(&format!("{prefix}{}", &word[start..end])).map(|id| (id, end)));
            let Some((id, end)) = found else {
                ids.truncate(before);
                ids.push(self.special[1]);
                return;
            };
            ids.push(id);
            start = end;
        }
    }

    /// Text of a token; a space precedes those that begin a word.
    pub(super) fn text(&self, id: u32, is_first: bool) -> String {
        let token = self.tokens.get(id as usize).map_or("", String::as_str);
        match token.strip_prefix(CONTINUES) {
            Some(piece) => piece.into(),
            None if is_first => token.into(),
            None => format!(" {token}"),
        }
    }
}

impl BertNormalizer {
    fn normalize(&self, text: &str) -> String {
        let mut clean = String::with_capacity(text.len());
        for c in text.chars() {
            match c {
                _ if !self.clean_text => clean.push(c),
                '\t' | '\n' | '\r' => clean.push(' '),
                '\0' | '\u{fffd}' => {}
                c if is_control(c) => {}
                c if c.is_whitespace() => clean.push(' '),
                c => clean.push(c),
            }
        }
        if self.handle_chinese_chars {
            clean = clean
                .chars()
                .flat_map(|c| if is_ideograph(c) { vec![' ', c, ' '] } else { vec![c] })
                .collect();
        }
        if self.strip_accents {
            let mut plain = String::with_capacity(clean.len());
            clean.chars().for_each(|c| push_without_accents(c, &mut plain));
            clean = plain;
        }
        if self.lowercase { clean.chars().flat_map(char::to_lowercase).collect() } else { clean }
    }
}

/// Words of a normalized text; each punctuation character is a word.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace().flat_map(|chunk| {
        let mut rest = chunk;
        std::iter::from_fn(move || {
            let first = rest.chars().next()?;
            let length = match is_punctuation(first) {
                true => first.len_utf8(),
                false => rest.find(is_punctuation).unwrap_or(rest.len()),
            };
            let (word, after) = rest.split_at_checked(length)?;
            rest = after;
            Some(word)
        })
    })
}

pub(super) fn broken(why: &str) -> Error {
    err!(Data, "cannot read the WordPiece vocabulary").because(why).hint_setting(
        "name another tokenizer file: data.tokenizer=FILE, BERT's vocab.txt or a tokenizer.json",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary(more: &[&str]) -> WordPiece {
        let tokens = SPECIAL.iter().chain(&["[MASK]"]).chain(more).map(|t| t.to_string()).collect();
        WordPiece::new(tokens, BertNormalizer::default(), LONGEST_WORD).unwrap()
    }

    #[test]
    fn words_become_the_longest_pieces() {
        let v = vocabulary(&["un", "##aff", "##able", "##a", "the", ",", "cafe", "海", "!"]);
        let of = |text: &str| -> Vec<String> {
            v.encode(text).iter().map(|id| v.tokens[*id as usize].clone()).collect()
        };
        assert_eq!(of("The UNAFFABLE,the"), ["the", "un", "##aff", "##able", ",", "the"]);
        assert_eq!(of("Café! the\u{200b}"), ["cafe", "!", "the"]);
        assert_eq!(of("the海the"), ["the", "海", "the"]);
        assert_eq!(of("unable [MASK] the"), ["un", "##able", "[MASK]", "the"]);
        assert_eq!(of("unx the"), ["[UNK]", "the"]);
        assert_eq!(of(&"a".repeat(101)), ["[UNK]"]);
    }

    #[test]
    fn accents_are_stripped_in_every_script() {
        let plain = |text: &str| BertNormalizer::default().normalize(text);
        assert_eq!(plain("ÀÉÎõü Ÿ ờ ё ή"), "aeiou y o е η");
        assert_eq!(plain("한"), "\u{1112}\u{1161}\u{11ab}");
        assert_eq!(plain("a\u{0301}\tb\u{0}"), "a b");
        let cased = BertNormalizer { lowercase: false, strip_accents: false, ..BertNormalizer::default() };
        assert_eq!(cased.normalize("Éa"), "Éa");
    }

    #[test]
    fn a_vocabulary_of_words_covers_every_character() {
        let v = WordPiece::words_of(["good film, good", "a bad one"].into_iter(), 1000).unwrap();
        assert_eq!(v.ends(), (0, 2, 3));
        assert_eq!(v.encode("Good, bad").len(), 3);
        assert!(v.encode("doog").iter().all(|id| *id != 1), "spelled from characters");
        assert_eq!(WordPiece::words_of(["good film"].into_iter(), 6).unwrap().tokens.len(), 6);
        assert!(WordPiece::new(vec!["a".into()], BertNormalizer::default(), 9).is_err());
    }
}
