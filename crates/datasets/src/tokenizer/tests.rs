//! Parity tests of the tokenizers against Hugging Face's library, and rejected files.

use super::*;
use serde_json::Value;
use systole_base::ErrorKind;
use systole_base::rng::{RandomStream, hash_name};
use systole_testing::assert_error;

/// Created by `fixtures/tokenizer/generate.py`: trained vocabularies, and the tokens of texts.
const FIXTURE: &str = include_str!("../../../../fixtures/tokenizer/parity.json");

fn fixture() -> Value {
    serde_json::from_str(FIXTURE).unwrap()
}

fn numbers(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as u32).collect()
}

#[test]
fn texts_have_the_tokens_of_hugging_faces_library() {
    let all = fixture();
    for (name, case) in all["tokenizers"].as_object().unwrap() {
        let tokenizer = Tokenizer::from_json(&case["json"].to_string()).unwrap();
        for (text, tokens) in all["texts"].as_array().unwrap().iter().zip(case["tokens"].as_array().unwrap())
        {
            let text = text.as_str().unwrap();
            let found = tokenizer.encode(text).unwrap();
            assert_eq!(found, numbers(tokens), "{name}: {text:?}");
            let spaced = if name == "prefix" && !text.starts_with(' ') { " " } else { "" };
            let decoded = String::from_utf8(tokenizer.decode(&found)).unwrap();
            assert_eq!(decoded.strip_prefix(spaced).unwrap_or(&decoded), text, "{name}");
        }
        assert_eq!(Tokenizer::from_json(&tokenizer.to_json()).unwrap(), tokenizer, "{name}");
    }
}

#[test]
fn wordpieces_are_those_of_hugging_faces_library() {
    let all: Value =
        serde_json::from_str(include_str!("../../../../fixtures/tokenizer/wordpiece.json")).unwrap();
    for (name, case) in all["tokenizers"].as_object().unwrap() {
        let tokenizer = Tokenizer::from_json(&case["json"].to_string()).unwrap();
        for (text, tokens) in all["texts"].as_array().unwrap().iter().zip(case["tokens"].as_array().unwrap())
        {
            let text = text.as_str().unwrap();
            assert_eq!(tokenizer.encode_with_ends(text, 1000).unwrap(), numbers(tokens), "{name}: {text:?}");
        }
        assert_eq!(Tokenizer::from_json(&tokenizer.to_json()).unwrap(), tokenizer, "{name}");
        let lines: Vec<&str> = {
            let vocabulary = case["json"]["model"]["vocab"].as_object().unwrap();
            let mut lines: Vec<(u64, &str)> =
                vocabulary.iter().map(|(t, id)| (id.as_u64().unwrap(), t.as_str())).collect();
            lines.sort_unstable();
            lines.into_iter().map(|(_, text)| text).collect()
        };
        let dir = std::env::temp_dir().join(format!("systole-wordpiece-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("vocab.txt"), lines.join("\n") + "\n").unwrap();
        let config = format!("{{\"do_lower_case\": {}}}", name == "uncased");
        std::fs::write(dir.join("tokenizer_config.json"), config).unwrap();
        assert!(Tokenizer::is_in(&dir));
        assert_eq!(Tokenizer::read(&dir).unwrap(), tokenizer, "{name}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn a_vocabulary_that_is_learnt_is_that_of_hugging_faces_trainer() {
    let all = fixture();
    let theirs = Tokenizer::from_json(&all["trained"]["json"].to_string()).unwrap();
    let text = all["trained"]["text"].as_str().unwrap();
    let ours = Tokenizer::train_bpe(text, theirs.vocabulary_size()).unwrap();
    assert_eq!(ours, theirs);
}

#[test]
fn gpt2s_two_files_are_read() {
    let all = fixture();
    let whole = Tokenizer::from_json(&all["tokenizers"]["gpt2"]["json"].to_string()).unwrap();
    let model = &all["tokenizers"]["gpt2"]["json"]["model"];
    let dir = std::env::temp_dir().join(format!("systole-tokenizer-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let mut vocabulary = model["vocab"].clone();
    vocabulary[END_OF_TEXT] = whole.end_of_text().unwrap().into();
    std::fs::write(dir.join("vocab.json"), vocabulary.to_string()).unwrap();
    let line = |pair: &Value| format!("{} {}\n", pair[0].as_str().unwrap(), pair[1].as_str().unwrap());
    let merges: String = model["merges"].as_array().unwrap().iter().map(line).collect();
    std::fs::write(dir.join("merges.txt"), format!("#version: 0.2\n{merges}")).unwrap();
    assert_eq!(Tokenizer::read(&dir).unwrap(), whole);
    assert_eq!(Tokenizer::read(dir.join("vocab.json")).unwrap(), whole);
    std::fs::write(dir.join("tokenizer.json"), whole.to_json()).unwrap();
    assert_eq!(Tokenizer::read(&dir).unwrap(), whole);
    std::fs::remove_dir_all(&dir).unwrap();
    let e = Tokenizer::read(&dir).unwrap_err();
    assert_error(&e, ErrorKind::Io, &[&dir.display().to_string(), "data.tokenizer"]);
}

#[test]
fn any_text_comes_back() {
    let text = "The quick brown fox. Zwölf Boxkämpfer! 一二三 🙂";
    let mut draws = RandomStream::new(0, hash_name("tokenizer test"), 0);
    let bpe = Tokenizer::train_bpe(text, 300).unwrap();
    for _ in 0..200 {
        let drawn: String =
            (0..draws.below(40)).filter_map(|_| char::from_u32(draws.below(0x3000) as u32)).collect();
        for tokenizer in [&bpe, &Tokenizer::bytes(), &Tokenizer::chars_of(&drawn)] {
            let tokens = tokenizer.encode(&drawn).unwrap();
            assert!(tokens.iter().all(|t| tokenizer.has(*t)));
            assert_eq!(tokenizer.decode(&tokens), drawn.as_bytes(), "{drawn:?}");
        }
    }
    // The time for one word of many equal parts must not grow quadratically.
    let long = "a".repeat(200_000);
    assert_eq!(bpe.decode(&bpe.encode(&long).unwrap()), long.as_bytes());
    assert_eq!(Tokenizer::chars_of("hello").vocabulary_size(), 4);
    let e = Tokenizer::chars_of("hello").encode("help").unwrap_err().to_string();
    assert!(e.contains("`p`") && e.contains("ehlo") && e.contains("bytes"), "{e}");
    assert!(Tokenizer::train_bpe("abc", 255).unwrap_err().to_string().contains("256"));
    assert_eq!(Tokenizer::train_bpe("abab", 1000).unwrap().vocabulary_size(), 258, "ab and abab");
}

#[test]
fn files_that_are_no_tokenizer_are_refused_by_name() {
    let good = fixture()["tokenizers"]["gpt2"]["json"].clone();
    let with = |pointer: &str, value: Value| {
        let mut changed = good.clone();
        *changed.pointer_mut(pointer).unwrap() = value;
        Tokenizer::from_json(&changed.to_string()).unwrap_err().to_string()
    };
    let e = with("/model/type", "WordLevel".into());
    assert!(e.contains("a model `WordLevel`") && e.contains("try: "), "{e}");
    assert!(with("/model/type", "Unigram".into()).contains("`vocab`"));
    assert!(with("/normalizer", serde_json::json!({"type": "NFC"})).contains("a normalizer NFC"));
    assert!(with("/pre_tokenizer", serde_json::json!({"type": "Metaspace"})).contains("Metaspace"));
    assert!(with("/model/byte_fallback", true.into()).contains("byte_fallback"));
    assert!(with("/model/vocab/a", (1u64 << 40).into()).contains("far above"));
    assert!(with("/model/vocab/a", "x".into()).contains("is not an integer"));
    assert!(with("/model/merges/0", "one".into()).contains("expected a pair"));
    assert!(with("/model/merges/0", serde_json::json!(["a", "nowhere"])).contains("`nowhere`"));
    assert!(with("/model/merges/0", serde_json::json!(["!", "~"])).contains("is not a token"));
    assert!(with("/added_tokens/0/rstrip", true.into()).contains("`rstrip`"));
    for text in ["", "{}", "[1]", "{\"model\": 3}", "{\"model\": {\"type\": \"Chars\", \"vocab\": \"aa\"}}"] {
        assert!(Tokenizer::from_json(text).is_err(), "{text}");
    }
    // A truncated file is an error, never a panic.
    let whole = good.to_string();
    for end in (0..whole.len()).step_by(97).filter(|end| whole.is_char_boundary(*end)) {
        assert!(Tokenizer::from_json(&whole[..end]).is_err());
    }
}

/// Tokenizers of encoders (`fixtures/tokenizer/encoders.py`): RoBERTa, CLIP, MPNet, T5, ALBERT, XLM-R.
#[test]
fn texts_of_encoders_have_the_tokens_of_hugging_faces_library() {
    let text = include_str!("../../../../fixtures/tokenizer/encoders.json");
    let all: Value = serde_json::from_str(text).unwrap();
    for (name, case) in all["tokenizers"].as_object().unwrap() {
        let tokenizer =
            Tokenizer::from_json(&case["json"].to_string()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let padding = if name == "clip" {
            tokenizer.ends().unwrap().after[0]
        } else {
            u32::from(name.contains("roberta") || name == "mpnet")
        };
        assert_eq!(tokenizer.padding(), Some(padding), "{name}");
        assert_eq!(tokenizer.has_own_padding(), name != "clip", "{name}");
        let again = Tokenizer::from_json(&tokenizer.to_json()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(again, tokenizer, "{name}");
        let texts = all["texts"].as_array().unwrap().iter().zip(case["tokens"].as_array().unwrap());
        for (text, tokens) in texts.filter(|(_, tokens)| !tokens.is_null()) {
            let text = text.as_str().unwrap();
            assert_eq!(tokenizer.encode_with_ends(text, 1000).unwrap(), numbers(tokens), "{name}: {text:?}");
            let short = tokenizer.encode_with_ends(text, 4).unwrap();
            assert!(short.len() <= 4 && short.last() == numbers(tokens).last(), "{name}: {text:?}");
        }
    }
}

/// RoBERTa's `vocab.json` and `merges.txt` without a `tokenizer.json`.
#[test]
fn robertas_two_files_have_start_and_end() {
    let all: Value =
        serde_json::from_str(include_str!("../../../../fixtures/tokenizer/encoders.json")).unwrap();
    let json = &all["tokenizers"]["roberta"]["json"];
    let whole = Tokenizer::from_json(&json.to_string()).unwrap();
    let line = |pair: &Value| format!("{} {}\n", pair[0].as_str().unwrap(), pair[1].as_str().unwrap());
    let merges: String = json["model"]["merges"].as_array().unwrap().iter().map(line).collect();
    let two = super::json::from_vocabulary(&json["model"]["vocab"].to_string(), &merges).unwrap();
    assert_eq!(Tokenizer(two), whole);
}
