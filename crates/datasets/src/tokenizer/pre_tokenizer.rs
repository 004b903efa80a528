//! Pre-tokenizers that split text into words: scanners for the patterns of GPT-2, GPT-4, Llama 3, Qwen 2.
//!
//! GPT-2: `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`. The others also accept
//! contractions in either case, group digits by at most `most`, attach line breaks to the preceding symbols, and allow
//! any one symbol (not only a space) before letters.

use super::unicode_letters::is_letter;

/// Pattern that splits a text into words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PreTokenizer {
    /// GPT-2's pattern.
    Gpt2,
    /// Pattern of GPT-4 and Llama 3 (3 digits), and of Qwen 2 (1 digit).
    Digits { most: usize },
    /// CLIP's pattern: words without white space, single digits.
    Clip,
}

const LIKE_GPT4: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LIKE_QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SPECIAL_OF_CLIP: &str = r"<\|startoftext\|>|<\|endoftext\|>|";
const LIKE_CLIP: &str = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";
const LIKE_GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

impl PreTokenizer {
    /// Returns the pattern for a known regular expression.
    pub(super) fn of(regex: &str) -> Option<PreTokenizer> {
        match regex {
            LIKE_GPT2 => Some(PreTokenizer::Gpt2),
            LIKE_GPT4 => Some(PreTokenizer::Digits { most: 3 }),
            LIKE_QWEN2 => Some(PreTokenizer::Digits { most: 1 }),
            // Special tokens are split off before.
            regex if regex.strip_prefix(SPECIAL_OF_CLIP).unwrap_or(regex) == LIKE_CLIP => {
                Some(PreTokenizer::Clip)
            }
            _ => None,
        }
    }

    /// Returns the regular expression, for tokenizer files.
    pub(super) fn regex(self) -> &'static str {
        match self {
            PreTokenizer::Gpt2 => LIKE_GPT2,
            PreTokenizer::Clip => LIKE_CLIP,
            PreTokenizer::Digits { most: 1 } => LIKE_QWEN2,
            PreTokenizer::Digits { .. } => LIKE_GPT4,
        }
    }

    /// Returns the words of a text; concatenated, they are the text, except that CLIP drops white space.
    pub(super) fn words(self, text: &str) -> impl Iterator<Item = &str> {
        let mut rest = text;
        std::iter::from_fn(move || {
            if self == PreTokenizer::Clip {
                rest = rest.trim_start();
            }
            let length = match self {
                _ if rest.is_empty() => return None,
                PreTokenizer::Gpt2 => gpt2(rest),
                PreTokenizer::Clip => clip(rest),
                PreTokenizer::Digits { most } => digits(rest, most),
            };
            let (word, after) = rest.split_at_checked(length).filter(|_| length > 0)?;
            rest = after;
            Some(word)
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CharClass {
    Letter,
    Number,
    Space,
    Other,
}

fn class(c: char) -> CharClass {
    match c {
        c if is_letter(c) => CharClass::Letter,
        c if c.is_numeric() => CharClass::Number,
        c if c.is_whitespace() => CharClass::Space,
        _ => CharClass::Other,
    }
}

/// Length in bytes of the leading characters of `text` that satisfy `is_so`.
fn run(text: &str, is_so: impl Fn(char) -> bool) -> usize {
    text.find(|c| !is_so(c)).unwrap_or(text.len())
}

/// Length in bytes of the first word by GPT-2's pattern; `text` is not empty.
fn gpt2(text: &str) -> usize {
    if let Some(length) = contraction(text, |a, b| a == b) {
        return length;
    }
    let space = usize::from(text.starts_with(' '));
    let after = &text[space..];
    match after.chars().next().map(class) {
        None | Some(CharClass::Space) => white(text),
        Some(of) => space + run(after, |c| class(c) == of),
    }
}

/// Length in bytes of the first word by CLIP's pattern; `text` starts with a character that is not white space.
fn clip(text: &str) -> usize {
    if let Some(length) = contraction(text, |a, b| a == b) {
        return length;
    }
    match text.chars().next().map(|c| (c, class(c))) {
        Some((c, CharClass::Number)) => c.len_utf8(),
        Some((_, of)) => run(text, |c| class(c) == of),
        None => 0,
    }
}

/// Length in bytes of the first word by the pattern of GPT-2's successors.
fn digits(text: &str, most: usize) -> usize {
    let folded = |a: char, b: char| a.eq_ignore_ascii_case(&b) || (a == 'ſ' && b == 's');
    if let Some(length) = contraction(text, folded) {
        return length;
    }
    let Some(first) = text.chars().next() else { return 0 };
    let is_line_end = |c: char| c == '\r' || c == '\n';
    let sign = match class(first) {
        CharClass::Letter | CharClass::Number => 0,
        _ if is_line_end(first) => 0,
        _ => first.len_utf8(),
    };
    let letters = run(&text[sign..], is_letter);
    if letters > 0 {
        return sign + letters;
    }
    if class(first) == CharClass::Number {
        return text.chars().take(most).take_while(|c| c.is_numeric()).map(char::len_utf8).sum();
    }
    let space = usize::from(first == ' ');
    let after = &text[space..];
    let others = run(after, |c| class(c) == CharClass::Other);
    if others > 0 {
        return space + others + run(&after[others..], is_line_end);
    }
    let spaces = &text[..run(text, char::is_whitespace)];
    spaces.rfind(is_line_end).map_or_else(|| white(text), |at| at + 1)
}

/// Length in bytes of the white space before the next word, whose own space stays with it; all of it at the end of the
/// text.
fn white(text: &str) -> usize {
    let all = run(text, char::is_whitespace);
    let last = text.get(..all).and_then(|t| t.chars().next_back()).map_or(0, char::len_utf8);
    if all == text.len() || all == last { all } else { all - last }
}

/// Length in bytes of a leading `'s`, `'ll` etc.
fn contraction(text: &str, same: impl Fn(char, char) -> bool) -> Option<usize> {
    let after = text.strip_prefix('\'')?;
    ["s", "t", "re", "ve", "m", "ll", "d"].into_iter().find_map(|end| {
        let mut chars = after.chars();
        let mut length = 1;
        for wanted in end.chars() {
            let c = chars.next().filter(|c| same(*c, wanted))?;
            length += c.len_utf8();
        }
        Some(length)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(pattern: PreTokenizer, text: &str) -> Vec<&str> {
        pattern.words(text).collect()
    }

    #[test]
    fn words_are_those_of_the_expressions() {
        let text = "I'll  say 'Hi',\n\n  don'T: 12345 €5!\t";
        assert_eq!(
            cut(PreTokenizer::Gpt2, text),
            [
                "I", "'ll", " ", " say", " '", "Hi", "',", "\n\n ", " don", "'", "T", ":", " 12345", " €",
                "5", "!", "\t"
            ]
        );
        assert_eq!(
            cut(PreTokenizer::Digits { most: 3 }, text),
            [
                "I", "'ll", " ", " say", " '", "Hi", "',\n\n", " ", " don", "'T", ":", " ", "123", "45",
                " €", "5", "!", "\t"
            ]
        );
        assert_eq!(cut(PreTokenizer::Digits { most: 1 }, "42\n \n x"), ["4", "2", "\n \n", " x"]);
    }

    #[test]
    fn expressions_are_known_by_their_text() {
        for pattern in
            [PreTokenizer::Gpt2, PreTokenizer::Digits { most: 3 }, PreTokenizer::Digits { most: 1 }]
        {
            assert_eq!(PreTokenizer::of(pattern.regex()), Some(pattern));
        }
        assert_eq!(PreTokenizer::of(r"\w+"), None);
    }
}
