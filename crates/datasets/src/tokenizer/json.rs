//! Reads and writes tokenizer files: Hugging Face's `tokenizer.json`, GPT-2's `vocab.json`.
//!
//! `tokenizer.json` of byte-level BPE and WordPiece, `vocab.json` with `merges.txt`, `vocab.txt`, and the same layout for
//! byte and character tokenizers. Unsupported features are rejected by name.

use super::bpe::{Bpe, BpeParts, SpecialToken, byte_order};
use super::pre_tokenizer::PreTokenizer;
use super::text_ends::TextEnds;
use super::unigram_json;
use super::vocabulary::{CharVocabulary, END_OF_TEXT, Vocabulary};
use super::wordpiece::{self, BertNormalizer, CONTINUES, MASKS, SPECIAL, WordPiece};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use systole_base::{Error, Result, ensure, err};

/// Whether a JSON text only maps tokens to integers, like GPT-2's `vocab.json`.
pub(super) fn is_plain_vocabulary(text: &str) -> bool {
    let parsed = serde_json::from_str::<HashMap<String, Value>>(text);
    parsed.is_ok_and(|all| !all.is_empty() && all.values().all(Value::is_u64))
}

/// Parses GPT-2's `vocab.json` and `merges.txt`.
pub(super) fn from_vocabulary(vocabulary: &str, merges: &str) -> Result<Vocabulary> {
    let parsed: Value = parse(vocabulary)?;
    let vocabulary = object(&parsed, "the vocabulary")?;
    let lines = merges.lines().filter(|line| !line.is_empty() && !line.starts_with("#version"));
    let pairs = lines.map(pair_of_line).collect::<Result<Vec<_>>>()?;
    let id = |name: &str| vocabulary.get(name).and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
    // RoBERTa's files, unlike GPT-2's, have tokens around each text.
    if let (Some(start), Some(padding), Some(end), None) =
        (id("<s>"), id("<pad>"), id("</s>"), id(END_OF_TEXT))
    {
        let special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"].into_iter();
        let added = special.filter_map(|name| {
            let lstrip = name == "<mask>";
            id(name).map(|id| SpecialToken { text: name.into(), id, special: true, lstrip })
        });
        let ends = TextEnds { padding, before: vec![start], after: vec![end] };
        let settings = BytePairSettings { added: added.collect(), ends: Some(ends), ..Default::default() };
        return byte_pairs(vocabulary, &pairs, settings);
    }
    let end = id(END_OF_TEXT);
    let added = end
        .map(|id| SpecialToken { text: END_OF_TEXT.into(), id, special: true, lstrip: false })
        .into_iter()
        .collect();
    byte_pairs(vocabulary, &pairs, BytePairSettings { added, ..BytePairSettings::default() })
}

pub(super) fn from_json(text: &str) -> Result<Vocabulary> {
    let root: Value = parse(text)?;
    let model = root.get("model").ok_or_else(|| broken("`model` is missing"))?;
    match model.get("type").and_then(Value::as_str) {
        Some("Bytes") => Ok(Vocabulary::Bytes),
        Some("Chars") => {
            let chars: Vec<char> = model
                .get("vocab")
                .and_then(Value::as_str)
                .ok_or_else(|| broken("`vocab` is not a string"))?
                .chars()
                .collect();
            let made = CharVocabulary::new(chars);
            match made.ids.len() == made.chars.len() && !made.chars.is_empty() {
                true => Ok(Vocabulary::Chars(made)),
                false => Err(broken("`vocab` is empty or contains a character twice")),
            }
        }
        Some("WordPiece") => word_pieces(&root, model),
        Some("Unigram") => unigram_json::parse(&root, model, text),
        // Files of the first versions have no `type`.
        Some("BPE") | None if model.get("merges").is_some() => of_hugging_face(&root, model),
        other => Err(unsupported(&format!("a model `{}`", other.unwrap_or("without merges")))),
    }
}

/// Parses BERT's `vocab.txt`, with the text of `tokenizer_config.json` if there is one.
pub(super) fn from_vocabulary_lines(text: &str, config: Option<&str>) -> Result<Vocabulary> {
    // A cased model's vocabulary has capital letters; without a configuration nothing else tells.
    let is_capital =
        |token: &str| !token.starts_with('[') && token.contains(|c: char| c.is_ascii_uppercase());
    let is_cased = config.is_none() && text.lines().any(is_capital);
    let config = config.map(parse).transpose()?.unwrap_or_default();
    let flag = |key: &str, default: bool| config.get(key).and_then(Value::as_bool).unwrap_or(default);
    let lowercase = flag("do_lower_case", !is_cased);
    let normalizer = BertNormalizer {
        lowercase,
        strip_accents: flag("strip_accents", lowercase),
        handle_chinese_chars: flag("tokenize_chinese_chars", true),
        clean_text: true,
    };
    WordPiece::from_lines(text, normalizer).map(|pieces| Vocabulary::WordPiece(Box::new(pieces)))
}

/// Parses a `tokenizer.json` of WordPiece with BERT's normalizer and words.
fn word_pieces(root: &Value, model: &Value) -> Result<Vocabulary> {
    for (key, expected) in [("normalizer", "BertNormalizer"), ("pre_tokenizer", "BertPreTokenizer")] {
        let kind = root.get(key).map_or("none".into(), kind_of);
        ensure!(kind == expected, unsupported(&format!("the {key} {kind} for WordPiece")));
    }
    let prefix = model.get("continuing_subword_prefix").and_then(Value::as_str).unwrap_or(CONTINUES);
    if prefix != CONTINUES {
        return Err(unsupported(&format!("`continuing_subword_prefix` {prefix} for WordPiece")));
    }
    let vocabulary = object(model.get("vocab").unwrap_or(&Value::Null), "`vocab`")?;
    let added = root.get("added_tokens").and_then(Value::as_array).into_iter().flatten();
    let added = added.map(added_token).collect::<Result<Vec<_>>>()?;
    let all = vocabulary.iter().map(|(text, id)| (text.as_str(), id.as_u64()));
    let all = all.chain(added.iter().map(|a| (a.text.as_str(), Some(u64::from(a.id)))));
    let mut tokens: Vec<Option<String>> = vec![None; vocabulary.len() + added.len()];
    for (text, id) in all {
        let slot = id.and_then(|id| usize::try_from(id).ok()).and_then(|id| tokens.get_mut(id));
        *slot.ok_or_else(|| broken(&format!("the id of token `{text}` is out of range")))? =
            Some(text.into());
    }
    while tokens.last().is_some_and(Option::is_none) {
        tokens.pop();
    }
    let tokens: Option<Vec<String>> = tokens.into_iter().collect();
    let tokens = tokens.ok_or_else(|| broken("an id has no token"))?;
    let flag = |key: &str, default: bool| {
        root.pointer(&format!("/normalizer/{key}")).and_then(Value::as_bool).unwrap_or(default)
    };
    let lowercase = flag("lowercase", true);
    let normalizer = BertNormalizer {
        lowercase,
        strip_accents: flag("strip_accents", lowercase),
        handle_chinese_chars: flag("handle_chinese_chars", true),
        clean_text: flag("clean_text", true),
    };
    let longest = model.get("max_input_chars_per_word").and_then(Value::as_u64);
    let longest = longest.map_or(wordpiece::LONGEST_WORD, |n| n as usize);
    let names = special_names(root, model, &tokens, &added)?;
    WordPiece::with_names(tokens, normalizer, longest, names)
        .map(|pieces| Vocabulary::WordPiece(Box::new(pieces)))
}

/// Names of the padding, unknown, start and end tokens: those of the post-processor, which are BERT's without one.
fn special_names(
    root: &Value,
    model: &Value,
    tokens: &[String],
    added: &[SpecialToken],
) -> Result<[String; 4]> {
    let mut names = SPECIAL.map(String::from);
    if let Some(unknown) = model.get("unk_token").and_then(Value::as_str) {
        names[1] = unknown.into();
    }
    let Some(processor) = root.get("post_processor").filter(|p| !p.is_null()) else { return Ok(names) };
    let refused = || unsupported(&format!("the post_processor {} for WordPiece", kind_of(processor)));
    let ends = TextEnds::of(root, added).ok_or_else(refused)?;
    let ([start], [end]) = (&ends.before[..], &ends.after[..]) else { return Err(refused()) };
    let name = |id: u32| tokens.get(id as usize).cloned().ok_or_else(|| broken("an end has no token"));
    (names[2], names[3]) = (name(*start)?, name(*end)?);
    if ends.padding != *end {
        names[0] = name(ends.padding)?;
    }
    Ok(names)
}

fn word_pieces_json(pieces: &WordPiece) -> Value {
    let vocabulary: Map<String, Value> =
        pieces.tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
    let special = |name: &str| pieces.id(name).unwrap_or_default();
    let names = pieces.names.each_ref().map(String::as_str);
    let added: Vec<Value> = names
        .iter()
        .chain(&MASKS)
        .filter(|name| pieces.id(name).is_some())
        .map(|name| {
            json!({"id": special(name), "content": name, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        })
        .collect();
    let n = &pieces.normalizer;
    let (padding, start, end) = pieces.ends();
    let ends = TextEnds { padding, before: vec![start], after: vec![end] };
    let text = |id: u32| pieces.tokens.get(id as usize).cloned().unwrap_or_default();
    let (processor, padding) = ends.to_json(text);
    json!({
        "version": "1.0", "truncation": null, "padding": padding, "added_tokens": added,
        "normalizer": {"type": "BertNormalizer", "clean_text": n.clean_text, "strip_accents": n.strip_accents,
                       "handle_chinese_chars": n.handle_chinese_chars, "lowercase": n.lowercase},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": processor,
        "decoder": {"type": "WordPiece", "prefix": CONTINUES, "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": names[1], "continuing_subword_prefix": CONTINUES,
                  "max_input_chars_per_word": pieces.longest_word, "vocab": vocabulary},
    })
}

fn of_hugging_face(root: &Value, model: &Value) -> Result<Vocabulary> {
    refuse_others(root, model)?;
    let added = added_tokens(root)?;
    let marks_word_ends = model.get("end_of_word_suffix").and_then(Value::as_str) == Some("</w>");
    let pairs =
        model.get("merges").and_then(Value::as_array).ok_or_else(|| broken("`merges` is not a list"))?;
    let pairs = pairs.iter().map(pair).collect::<Result<Vec<_>>>()?;
    let vocabulary = model.get("vocab").ok_or_else(|| broken("`vocab` is missing"))?;
    let ignore = model.get("ignore_merges").and_then(Value::as_bool).unwrap_or(false);
    let settings = BytePairSettings {
        ends: TextEnds::of(root, &added),
        added,
        words: words(root.get("pre_tokenizer"))?,
        ignore_merges: ignore,
        marks_word_ends,
    };
    byte_pairs(object(vocabulary, "`vocab`")?, &pairs, settings)
}

pub(super) fn added_tokens(root: &Value) -> Result<Vec<SpecialToken>> {
    match root.get("added_tokens") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(list) => {
            let list = list.as_array().ok_or_else(|| broken("`added_tokens` is not a list"))?;
            list.iter().map(added_token).collect()
        }
    }
}

/// Returns an error for settings that would change the tokens and are not supported.
fn refuse_others(root: &Value, model: &Value) -> Result<()> {
    if let Some(kind) = root.get("normalizer").filter(|n| !n.is_null() && !is_normalizer_of_clip(n)) {
        return Err(unsupported(&format!("a normalizer {}", kind_of(kind))));
    }
    for key in ["dropout", "continuing_subword_prefix", "end_of_word_suffix"] {
        let is_set = |v: &&Value| {
            !v.is_null() && v.as_str() != Some("") && v.as_f64() != Some(0.0) && v.as_str() != Some("</w>")
        };
        ensure!(model.get(key).filter(is_set).is_none(), unsupported(&format!("`{key}`")));
    }
    match model.get("byte_fallback").and_then(Value::as_bool) {
        Some(true) => Err(unsupported("`byte_fallback`")),
        _ => Ok(()),
    }
}

/// Whether a normalizer is CLIP's: white space becomes single spaces, letters lower case.
fn is_normalizer_of_clip(normalizer: &Value) -> bool {
    let steps = normalizer.get("normalizers").and_then(Value::as_array).into_iter().flatten();
    steps.map(kind_of).eq(["NFC", "Replace", "Lowercase"])
}

/// Returns the pattern that splits words, and whether to put a space before the text.
fn words(pre: Option<&Value>) -> Result<(PreTokenizer, bool)> {
    let pre = pre.filter(|p| !p.is_null()).ok_or_else(|| unsupported("no `pre_tokenizer`"))?;
    let flag = |of: &Value, key: &str, default: bool| of.get(key).and_then(Value::as_bool).unwrap_or(default);
    match kind_of(pre).as_str() {
        "ByteLevel" if flag(pre, "use_regex", true) => {
            Ok((PreTokenizer::Gpt2, flag(pre, "add_prefix_space", true)))
        }
        "Sequence" => match pre.get("pretokenizers").and_then(Value::as_array).map(Vec::as_slice) {
            Some([split, bytes]) if kind_of(split) == "Split" && kind_of(bytes) == "ByteLevel" => {
                let plain = split.get("behavior").and_then(Value::as_str) == Some("Isolated")
                    && !flag(split, "invert", false)
                    && !flag(bytes, "use_regex", true);
                let regex = split.pointer("/pattern/Regex").and_then(Value::as_str).unwrap_or_default();
                let is_clip = split.get("behavior").and_then(Value::as_str) == Some("Removed")
                    && flag(split, "invert", false);
                let pattern = PreTokenizer::of(regex)
                    .filter(|found| if *found == PreTokenizer::Clip { is_clip } else { plain });
                let pattern = pattern.ok_or_else(|| unsupported(&format!("words split by `{regex}`")))?;
                Ok((pattern, flag(bytes, "add_prefix_space", true)))
            }
            _ => Err(unsupported("this sequence of pre-tokenizers")),
        },
        other => Err(unsupported(&format!("a pre-tokenizer {other}"))),
    }
}

pub(super) fn kind_of(value: &Value) -> String {
    value.get("type").and_then(Value::as_str).unwrap_or("without a type").to_string()
}

fn added_token(value: &Value) -> Result<SpecialToken> {
    let text = value.get("content").and_then(Value::as_str).filter(|t| !t.is_empty());
    let id = value.get("id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
    let (Some(text), Some(id)) = (text, id) else {
        return Err(broken("an added token has no `id` or `content`"));
    };
    if let Some(key) =
        ["single_word", "rstrip"].into_iter().find(|key| value.get(*key) == Some(&Value::Bool(true)))
    {
        return Err(unsupported(&format!("`{key}` of the token `{text}`")));
    }
    let special = value.get("special").and_then(Value::as_bool).unwrap_or(false);
    let lstrip = value.get("lstrip").and_then(Value::as_bool).unwrap_or(false);
    Ok(SpecialToken { text: text.into(), id, special, lstrip })
}

/// Settings of a byte-level BPE tokenizer.
struct BytePairSettings {
    added: Vec<SpecialToken>,
    /// Pattern that splits words, and whether to put a space before the text.
    words: (PreTokenizer, bool),
    ignore_merges: bool,
    ends: Option<TextEnds>,
    marks_word_ends: bool,
}

impl Default for BytePairSettings {
    fn default() -> BytePairSettings {
        BytePairSettings {
            added: Vec::new(),
            words: (PreTokenizer::Gpt2, false),
            ignore_merges: false,
            ends: None,
            marks_word_ends: false,
        }
    }
}

fn byte_pairs(
    vocabulary: &Map<String, Value>,
    pairs: &[(String, String)],
    settings: BytePairSettings,
) -> Result<Vocabulary> {
    let BytePairSettings { added, words: (pattern, add_prefix_space), ignore_merges, ends, marks_word_ends } =
        settings;
    let bytes_of = bytes_by_char();
    let most = 2 * (vocabulary.len() + added.len()) + 1024;
    let mut tokens: Vec<Option<Vec<u8>>> = Vec::new();
    let mut put = |id: u64, bytes: Vec<u8>| -> Result<()> {
        let id = usize::try_from(id).ok().filter(|id| *id < most).ok_or_else(|| {
            broken(&format!("token {id} is far above the number of tokens, {}", vocabulary.len()))
        })?;
        tokens.resize(tokens.len().max(id + 1), None);
        if let Some(token) = tokens.get_mut(id) {
            *token = Some(bytes);
        }
        Ok(())
    };
    let is_added = |text: &str| added.iter().any(|a| a.text == text);
    let mut ids: HashMap<&str, u32> = HashMap::with_capacity(vocabulary.len());
    for (text, id) in vocabulary {
        let id = id.as_u64().ok_or_else(|| broken(&format!("the id of token `{text}` is not an integer")))?;
        let bytes: Option<Vec<u8>> = text.chars().map(|c| bytes_of.get(&c).copied()).collect();
        let bytes =
            bytes.filter(|_| !is_added(text)).or_else(|| is_added(text).then(|| text.as_bytes().to_vec()));
        let not_of_bytes = || unsupported(&format!("the token `{text}`, which is not byte-level"));
        put(id, bytes.ok_or_else(not_of_bytes)?)?;
        ids.insert(text, id as u32);
    }
    for a in &added {
        put(u64::from(a.id), a.text.as_bytes().to_vec())?;
    }
    let id = |text: &str| {
        ids.get(text)
            .copied()
            .ok_or_else(|| broken(&format!("a merge contains `{text}`, which is not a token")))
    };
    let merges = pairs.iter().map(|(a, b)| Ok((id(a)?, id(b)?))).collect::<Result<Vec<_>>>()?;
    let parts =
        BpeParts { tokens, merges, pattern, add_prefix_space, ignore_merges, added, ends, marks_word_ends };
    Ok(Vocabulary::Bpe(Box::new(Bpe::new(parts)?)))
}

fn pair_of_line(line: &str) -> Result<(String, String)> {
    let parts: Vec<&str> = line.split(' ').collect();
    match parts.as_slice() {
        [a, b] => Ok((a.to_string(), b.to_string())),
        _ => Err(broken(&format!("expected a pair of tokens, got `{line}`"))),
    }
}

fn pair(value: &Value) -> Result<(String, String)> {
    let as_list = value.as_array().map(Vec::as_slice);
    match (value.as_str(), as_list) {
        (Some(line), _) => pair_of_line(line),
        (None, Some([Value::String(a), Value::String(b)])) => Ok((a.clone(), b.clone())),
        _ => Err(broken(&format!("expected a pair of tokens, got {value}"))),
    }
}

/// GPT-2's mapping from bytes to printable characters: unprintable bytes are shifted above 256.
fn char_of_bytes() -> [char; 256] {
    let mut chars = ['\0'; 256];
    let mut shifted = 256u32;
    for byte in byte_order() {
        let is_printed = matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let code = if is_printed { u32::from(byte) } else { shifted };
        shifted += u32::from(!is_printed);
        if let (Some(place), Some(c)) = (chars.get_mut(usize::from(byte)), char::from_u32(code)) {
            *place = c;
        }
    }
    chars
}

fn bytes_by_char() -> HashMap<char, u8> {
    char_of_bytes().into_iter().zip(0..=255u8).collect()
}

pub(super) fn to_json(vocabulary: &Vocabulary) -> String {
    let value = match vocabulary {
        Vocabulary::Bytes => json!({"version": "1.0", "model": {"type": "Bytes"}}),
        Vocabulary::Chars(chars) => {
            json!({"version": "1.0", "model": {"type": "Chars", "vocab": chars.chars.iter().collect::<String>()}})
        }
        Vocabulary::Bpe(bpe) => hugging_face(&bpe.parts),
        Vocabulary::WordPiece(pieces) => word_pieces_json(pieces),
        Vocabulary::Unigram(unigram) => return unigram.parts.source.clone(),
    };
    value.to_string()
}

fn hugging_face(bpe: &BpeParts) -> Value {
    let chars = char_of_bytes();
    let text = |id: u32| -> String {
        let bytes = bpe.tokens.get(id as usize).and_then(Option::as_ref).into_iter().flatten();
        bytes.filter_map(|b| chars.get(usize::from(*b))).collect()
    };
    let is_added = |id: u32| bpe.added.iter().any(|a| a.id == id);
    let ids =
        (0..bpe.tokens.len() as u32).filter(|id| bpe.tokens.get(*id as usize).is_some_and(Option::is_some));
    let vocabulary: Map<String, Value> =
        ids.filter(|id| !is_added(*id)).map(|id| (text(id), json!(id))).collect();
    let merges: Vec<Value> = bpe.merges.iter().map(|(a, b)| json!([text(*a), text(*b)])).collect();
    let mut added: Vec<&SpecialToken> = bpe.added.iter().collect();
    added.sort_by_key(|a| a.id);
    let added: Vec<Value> = added
        .into_iter()
        .map(|a| {
            json!({"id": a.id, "content": a.text, "single_word": false, "lstrip": a.lstrip, "rstrip": false,
                   "normalized": false, "special": a.special})
        })
        .collect();
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": bpe.add_prefix_space, "trim_offsets": true,
                       "use_regex": bpe.pattern == PreTokenizer::Gpt2});
    let pre = match bpe.pattern {
        PreTokenizer::Gpt2 => bytes,
        PreTokenizer::Clip => json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": bpe.pattern.regex()}, "behavior": "Removed", "invert": true},
            {"type": "ByteLevel", "add_prefix_space": bpe.add_prefix_space, "trim_offsets": true},
        ]}),
        pattern => json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern.regex()}, "behavior": "Isolated", "invert": false},
            bytes,
        ]}),
    };
    let shown = |id: u32| bpe.added.iter().find(|a| a.id == id).map_or_else(|| text(id), |a| a.text.clone());
    let ends = bpe.ends.as_ref().map(|ends| ends.to_json(shown));
    let (processor, padding) = ends.unwrap_or((Value::Null, Value::Null));
    let (normalizer, suffix) = match bpe.marks_word_ends {
        true => {
            let spaces = json!({"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "});
            let steps = json!([{"type": "NFC"}, spaces, {"type": "Lowercase"}]);
            (json!({"type": "Sequence", "normalizers": steps}), json!("</w>"))
        }
        false => (Value::Null, Value::Null),
    };
    json!({
        "version": "1.0", "truncation": null, "padding": padding, "added_tokens": added, "normalizer": normalizer,
        "pre_tokenizer": pre, "post_processor": processor,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": suffix, "fuse_unk": false, "byte_fallback": false,
                  "ignore_merges": bpe.ignore_merges, "vocab": vocabulary, "merges": merges},
    })
}

fn parse(text: &str) -> Result<Value> {
    serde_json::from_str(text).map_err(|e| broken(&e.to_string()))
}

fn object<'v>(value: &'v Value, what: &str) -> Result<&'v Map<String, Value>> {
    value.as_object().ok_or_else(|| broken(&format!("{what} is not an object")))
}

pub(super) fn broken(why: &str) -> Error {
    err!(Data, "cannot read the tokenizer")
        .because(why)
        .hint_setting("name another tokenizer file: data.tokenizer=FILE, a tokenizer.json, or a vocab.json with merges.txt next to it")
}

pub(super) fn unsupported(what: &str) -> Error {
    err!(Unsupported, "tokenizers with {what} are not supported")
        .because(
            "byte-level BPE, as in GPT-2, GPT-4, Llama 3 and Qwen 2, WordPiece and Unigram are supported",
        )
        .hint_setting("use a byte-level BPE tokenizer, or train one: data.tokenizer = \"bpe\"")
}
