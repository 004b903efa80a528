//! Renames tensors and configuration keys of DistilBERT to those of BERT, which has the same layers.

use serde_json::{Map, Value};
use systole_ir::Literal;

/// Parts of a tensor name, and BERT's.
const PARTS: [(&str, &str); 9] = [
    (".attention.q_lin.", ".attention.self.query."),
    (".attention.k_lin.", ".attention.self.key."),
    (".attention.v_lin.", ".attention.self.value."),
    (".attention.out_lin.", ".attention.output.dense."),
    (".sa_layer_norm.", ".attention.output.LayerNorm."),
    (".ffn.lin1.", ".intermediate.dense."),
    (".ffn.lin2.", ".output.dense."),
    (".output_layer_norm.", ".output.LayerNorm."),
    ("transformer.layer.", "encoder.layer."),
];

/// Keys of config.json, and BERT's.
const KEYS: [(&str, &str); 8] = [
    ("dim", "hidden_size"),
    ("n_layers", "num_hidden_layers"),
    ("n_heads", "num_attention_heads"),
    ("hidden_dim", "intermediate_size"),
    ("activation", "hidden_act"),
    ("dropout", "hidden_dropout_prob"),
    ("attention_dropout", "attention_probs_dropout_prob"),
    ("seq_classif_dropout", "classifier_dropout"),
];

/// Keys without effect: how the table of positions was made, and the dropout of a head that the models here lack.
const WITHOUT_EFFECT: [&str; 2] = ["sinusoidal_pos_embds", "qa_dropout"];

/// Renames a DistilBERT's tensors; others stay.
pub(crate) fn as_bert(tensors: &mut [(String, Literal)]) {
    if !tensors.iter().any(|(name, _)| name.ends_with("transformer.layer.0.attention.q_lin.weight")) {
        return;
    }
    for (name, _) in tensors {
        *name = renamed(name);
    }
}

fn renamed(name: &str) -> String {
    // A classifier is a dense layer and the head, as a RoBERTa's.
    if let Some(rest) = name.strip_prefix("pre_classifier.") {
        return format!("classifier.dense.{rest}");
    }
    if let Some(rest) = name.strip_prefix("classifier.") {
        return format!("classifier.out_proj.{rest}");
    }
    let name = name.strip_prefix("distilbert.").map_or(name.to_string(), |rest| format!("bert.{rest}"));
    PARTS.iter().fold(name, |name, (theirs, berts)| name.replace(theirs, berts))
}

/// Renames the keys of a DistilBERT's config.json; another one stays.
pub(crate) fn config_as_bert(config: Value) -> Value {
    match config {
        Value::Object(keys) if keys.get("model_type").is_some_and(|kind| kind == "distilbert") => {
            let known = |key: &String| KEYS.iter().find(|(theirs, _)| theirs == key).map(|(_, berts)| *berts);
            let kept = keys.into_iter().filter(|(key, _)| !WITHOUT_EFFECT.contains(&key.as_str()));
            kept.map(|(key, value)| (known(&key).map_or(key.clone(), str::to_string), value))
                .collect::<Map<String, Value>>()
                .into()
        }
        other => other,
    }
}
