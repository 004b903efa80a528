// The target for tokenizers of others, as targets.rs has the others.

use systole_datasets::Tokenizer;

/// What is cut by a tokenizer that could be read.
const TEXT: &str = "ab  ba's\n\nabba 12 é <|endoftext|>";

pub fn tokenizer(bytes: &[u8]) {
    let Ok(json) = std::str::from_utf8(bytes) else { return };
    let Ok(tokenizer) = Tokenizer::from_json(json) else { return };
    for text in [TEXT, "ab", "abba ba"] {
        if let Ok(tokens) = tokenizer.encode(text) {
            let made = tokenizer.decode(&tokens);
            // Some put a space before the text, and before what follows an added token.
            assert!(made.len() >= text.len(), "{made:?} of {text:?}");
        }
    }
    assert!(Tokenizer::from_json(&tokenizer.to_json()).is_ok());
}

pub fn tokenizer_seeds() -> Vec<Vec<u8>> {
    let pairs = r#"{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"Ġ":3,"Ġab":4},"merges":["a b",["Ġ","ab"]],"ignore_merges":true},
        "added_tokens":[{"id":5,"content":"<|endoftext|>","special":true}],
        "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true}}"#;
    let split = r#"{"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]},"pre_tokenizer":{"type":"Sequence","pretokenizers":[
        {"type":"Split","behavior":"Isolated","pattern":{"Regex":"x"}},{"type":"ByteLevel","use_regex":false}]}}"#;
    let mut seeds = vec![pairs.as_bytes().to_vec(), split.as_bytes().to_vec()];
    seeds.extend([Tokenizer::bytes(), Tokenizer::chars_of(TEXT)].map(|t| t.to_json().into_bytes()));
    seeds
}
