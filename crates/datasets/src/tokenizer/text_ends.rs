//! Tokens before and after a text, and padding: `post_processor` of Hugging Face's `tokenizer.json`.

use super::bpe::SpecialToken;
use serde_json::{Map, Value, json};

/// Names of padding tokens.
const PADDING: [&str; 2] = ["[PAD]", "<pad>"];

/// Tokens that surround each text of an encoder, and the token that fills shorter texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TextEnds {
    pub(super) padding: u32,
    pub(super) before: Vec<u32>,
    pub(super) after: Vec<u32>,
}

impl TextEnds {
    /// Reads the ends of a `tokenizer.json`: `None` if no token follows the texts, as for language models.
    pub(super) fn of(root: &Value, added: &[SpecialToken]) -> Option<TextEnds> {
        let (before, after) = around(root.get("post_processor")?)?;
        let last = *after.last()?;
        let stated = root.pointer("/padding/pad_id").and_then(Value::as_u64).map(|id| id as u32);
        let named = || PADDING.iter().find_map(|name| added.iter().find(|a| a.text == *name)).map(|a| a.id);
        // CLIP pads with the end of the text.
        Some(TextEnds { padding: stated.or_else(named).unwrap_or(last), before, after })
    }

    /// Puts the ends around the tokens of a text, which are cut to `length` in all.
    pub(super) fn around(&self, tokens: Vec<u32>, length: usize) -> Vec<u32> {
        let room = length.saturating_sub(self.before.len() + self.after.len());
        let inside = tokens.into_iter().take(room);
        self.before.iter().copied().chain(inside).chain(self.after.iter().copied()).collect()
    }

    /// Returns `post_processor` and `padding` of a `tokenizer.json`; `text` is the text of a token.
    pub(super) fn to_json(&self, text: impl Fn(u32) -> String) -> (Value, Value) {
        let mark = |id: &u32| json!({"SpecialToken": {"id": text(*id), "type_id": 0}});
        let mut single: Vec<Value> = self.before.iter().map(mark).collect();
        single.push(json!({"Sequence": {"id": "A", "type_id": 0}}));
        single.extend(self.after.iter().map(mark));
        let mut pair = single.clone();
        pair.push(json!({"Sequence": {"id": "B", "type_id": 0}}));
        pair.extend(self.after.iter().map(mark));
        let special: Map<String, Value> = self
            .before
            .iter()
            .chain(&self.after)
            .map(|id| (text(*id), json!({"id": text(*id), "ids": [id], "tokens": [text(*id)]})))
            .collect();
        let processor =
            json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special});
        let padding = json!({"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": self.padding, "pad_type_id": 0, "pad_token": text(self.padding)});
        (processor, padding)
    }
}

/// Returns the tokens before and after a text.
fn around(processor: &Value) -> Option<(Vec<u32>, Vec<u32>)> {
    let id = |value: Option<&Value>| value.and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
    match processor.get("type").and_then(Value::as_str)? {
        "BertProcessing" | "RobertaProcessing" => {
            Some((vec![id(processor.pointer("/cls/1"))?], vec![id(processor.pointer("/sep/1"))?]))
        }
        "TemplateProcessing" => {
            let (mut before, mut after, mut is_after) = (Vec::new(), Vec::new(), false);
            for piece in processor.get("single")?.as_array()? {
                match piece.pointer("/SpecialToken/id").and_then(Value::as_str) {
                    Some(name) => {
                        let ids = processor.get("special_tokens")?.get(name)?.get("ids")?.as_array()?;
                        let ids = ids.iter().map(|value| id(Some(value))).collect::<Option<Vec<u32>>>()?;
                        if is_after { &mut after } else { &mut before }.extend(ids);
                    }
                    None => is_after = true,
                }
            }
            Some((before, after))
        }
        "Sequence" => processor.get("processors")?.as_array()?.iter().find_map(around),
        _ => None,
    }
}
