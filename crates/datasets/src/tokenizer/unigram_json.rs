//! Reads Unigram tokenizers of `tokenizer.json`: vocabulary, normalizers, splitting at spaces.

use super::charsmap::CharsMap;
use super::json::{added_tokens, broken, kind_of, unsupported};
use super::text_ends::TextEnds;
use super::unigram::{NormalizerStep, Unigram, UnigramParts};
use super::vocabulary::Vocabulary;
use serde_json::Value;
use systole_base::Result;

/// Parses a `tokenizer.json` of the model type Unigram.
pub(super) fn parse(root: &Value, model: &Value, source: &str) -> Result<Vocabulary> {
    if model.get("byte_fallback").and_then(Value::as_bool) == Some(true) {
        return Err(unsupported("`byte_fallback`"));
    }
    let list = model.get("vocab").and_then(Value::as_array).ok_or_else(|| broken("`vocab` is not a list"))?;
    let token = |entry: &Value| Some((entry.get(0)?.as_str()?.to_string(), entry.get(1)?.as_f64()?));
    let tokens: Option<Vec<(String, f64)>> = list.iter().map(token).collect();
    let mut tokens = tokens.ok_or_else(|| broken("`vocab` is not a list of tokens with scores"))?;
    let unknown = model.get("unk_id").and_then(Value::as_u64).filter(|id| *id < tokens.len() as u64);
    let unknown = unknown.ok_or_else(|| unsupported("no `unk_id`"))? as u32;
    let added = added_tokens(root)?;
    // Added tokens may follow those of the vocabulary.
    for a in &added {
        let slot = a.id as usize;
        if slot > tokens.len() + added.len() {
            return Err(broken(&format!("the id of token `{}` is out of range", a.text)));
        }
        if slot >= tokens.len() {
            tokens.resize(slot + 1, (String::new(), 0.0));
        }
        tokens[slot].0 = a.text.clone();
    }
    let parts = UnigramParts {
        tokens,
        unknown,
        normalizer: match root.get("normalizer").filter(|n| !n.is_null()) {
            Some(normalizer) => steps(normalizer)?,
            None => Vec::new(),
        },
        drops_white_space: drops_white_space(root.get("pre_tokenizer").unwrap_or(&Value::Null))?,
        ends: TextEnds::of(root, &added),
        added,
        source: source.into(),
    };
    Ok(Vocabulary::Unigram(Box::new(Unigram::new(parts))))
}

fn steps(normalizer: &Value) -> Result<Vec<NormalizerStep>> {
    let text = |key: &str| normalizer.get(key).and_then(Value::as_str);
    let flag = |key: &str| normalizer.get(key).and_then(Value::as_bool).unwrap_or(false);
    let step = match kind_of(normalizer).as_str() {
        "Sequence" => {
            let all = normalizer.get("normalizers").and_then(Value::as_array).into_iter().flatten();
            return Ok(all.map(steps).collect::<Result<Vec<_>>>()?.concat());
        }
        "Precompiled" => {
            let Some(map) = text("precompiled_charsmap").filter(|map| !map.is_empty()) else {
                return Ok(Vec::new());
            };
            NormalizerStep::CharsMap(
                CharsMap::of(map).ok_or_else(|| broken("`precompiled_charsmap` is damaged"))?,
            )
        }
        "Replace" => {
            let content = text("content").unwrap_or_default().to_string();
            let pattern =
                |kind: &str| normalizer.pointer(&format!("/pattern/{kind}")).and_then(Value::as_str);
            match (pattern("String"), pattern("Regex")) {
                (Some(from), _) => NormalizerStep::Replace(from.into(), content),
                (_, Some(" {2,}")) => NormalizerStep::ReplaceSpaces(content),
                (_, other) => return Err(unsupported(&format!("the replaced pattern {other:?}"))),
            }
        }
        // Compatibility forms follow from the map of characters.
        "NFKD" | "NFD" => return Ok(Vec::new()),
        "StripAccents" => NormalizerStep::StripAccents,
        "Lowercase" => NormalizerStep::Lowercase,
        "Strip" => NormalizerStep::Strip { left: flag("strip_left"), right: flag("strip_right") },
        other => return Err(unsupported(&format!("a normalizer {other} for Unigram"))),
    };
    Ok(vec![step])
}

/// Whether words are split at white space, which is dropped.
fn drops_white_space(pre: &Value) -> Result<bool> {
    let is_usual = |p: &Value| {
        let always = p.get("prepend_scheme").and_then(Value::as_str).map(|scheme| scheme == "always");
        let always = always.or_else(|| p.get("add_prefix_space").and_then(Value::as_bool)).unwrap_or(true);
        let replaced = p.get("replacement").and_then(Value::as_str).unwrap_or("▁");
        kind_of(p) == "Metaspace" && always && replaced == "▁"
    };
    match pre.get("pretokenizers").and_then(Value::as_array).map(Vec::as_slice) {
        None if is_usual(pre) => Ok(false),
        Some([one]) if is_usual(one) => Ok(false),
        Some([split, meta]) if kind_of(split) == "WhitespaceSplit" && is_usual(meta) => Ok(true),
        _ => Err(unsupported(&format!("a pre-tokenizer {} for Unigram", kind_of(pre)))),
    }
}
