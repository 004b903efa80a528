//! Large language models by config.json's `model_type`, which are not imported yet.

use serde_json::Value;
use systole_ir::{Error, ErrorKind, Result};

/// Values of `model_type`; longer ones that start with these and `_`, `-` or a digit belong to the same family.
const LANGUAGE_MODELS: [&str; 34] = [
    "arcee",
    "bitnet",
    "bloom",
    "chatglm",
    "codegen",
    "cohere",
    "deepseek",
    "ernie4",
    "exaone",
    "falcon",
    "gemma",
    "glm",
    "gpt_bigcode",
    "gpt_neo",
    "gpt_neox",
    "gpt_oss",
    "gptj",
    "granite",
    "internlm",
    "jamba",
    "llama",
    "mamba",
    "mistral",
    "mixtral",
    "mpt",
    "nemotron",
    "olmo",
    "opt",
    "persimmon",
    "phi",
    "qwen",
    "rwkv",
    "smollm",
    "stablelm",
];

/// # Errors
/// If config.json is that of a large language model.
pub(crate) fn refuse(config: &Value) -> Result<()> {
    let Some(kind) = config.get("model_type").and_then(Value::as_str) else { return Ok(()) };
    let is_of = |name: &str| {
        kind.strip_prefix(name).is_some_and(|rest| {
            rest.is_empty() || rest.starts_with(|c: char| c == '_' || c == '-' || c.is_ascii_digit())
        })
    };
    match LANGUAGE_MODELS.iter().any(|name| is_of(name)) {
        true => {
            let what = format!("the large language model `{kind}` cannot be imported yet");
            Err(Error::new(ErrorKind::Unsupported, what)
                .hint_command("import GPT-2, or a model that `systole import --list` prints"))
        }
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn language_models_are_refused_by_name() {
        let of = |kind: &str| refuse(&serde_json::json!({"model_type": kind}));
        for kind in ["llama", "llama4", "mistral", "qwen2_moe", "gemma3_text", "phi3", "deepseek_v3", "olmo2"]
        {
            systole_testing::assert_error(&of(kind).unwrap_err(), ErrorKind::Unsupported, &[kind]);
        }
        for kind in crate::names::FAMILIES.iter().flat_map(|f| f.model_types) {
            assert!(of(kind).is_ok(), "{kind}");
        }
        assert!(refuse(&Value::Null).is_ok());
    }
}
