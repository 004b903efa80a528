//! Pairs weight names of Hugging Face's BERT with Systole's: encoder, pooled output and classifier.

use super::transformer_encoder::{EncoderBlockNames, dense, odd, same, shape_of};
use crate::weight_mapping::WeightRule;
use serde_json::Value;
use systole_ir::{DType, Error, ErrorKind, Literal, Result, TensorType};
use systole_nn::applications::Bert;
use systole_nn::{Activation, Architecture, Model};

const BLOCK: EncoderBlockNames = EncoderBlockNames {
    attention: "attention.self.",
    parts: [
        ("self_attention/attention_output", "attention.output.dense"),
        ("self_attention_layer_norm", "attention.output.LayerNorm"),
        ("feedforward_intermediate_dense", "intermediate.dense"),
        ("feedforward_output_dense", "output.dense"),
        ("feedforward_layer_norm", "output.LayerNorm"),
    ],
};

/// Returns the common name prefix if the tensors are a BERT's.
pub(crate) fn prefix(theirs: &[(String, Literal)]) -> Option<&'static str> {
    let has = |name: String| theirs.iter().any(|(n, _)| *n == name);
    ["bert.", ""].into_iter().find(|p| {
        has(format!("{p}encoder.layer.0.attention.self.query.weight"))
            && has(format!("{p}embeddings.token_type_embeddings.weight"))
    })
}

/// Whether a tensor belongs to a pretraining head, which the models here lack.
pub(crate) fn is_head(name: &str) -> bool {
    name.starts_with("cls.")
}

/// Returns the current name of a tensor; early files used TensorFlow's names for normalizations.
pub(crate) fn today(name: &str) -> String {
    match name.rsplit_once(".LayerNorm.") {
        Some((start, "gamma")) => format!("{start}.LayerNorm.weight"),
        Some((start, "beta")) => format!("{start}.LayerNorm.bias"),
        _ => name.to_string(),
    }
}

/// Derives the layers from the tensors, and from config.json for heads and activations; also returns the type of one
/// sample of each input.
///
/// # Errors
/// If a table is missing, or config.json has an unsupported setting.
pub(crate) fn architecture(
    theirs: &[(String, Literal)],
    config: Option<&Value>,
    prefix: &str,
) -> Result<(Architecture, Vec<TensorType>)> {
    let table = |name: &str| {
        let name = format!("{prefix}{name}.weight");
        shape_of::<2>(theirs, &name).ok_or_else(|| odd("BERT", &format!("table {name} is missing")))
    };
    let [vocabulary_size, hidden_dim] = table("embeddings.word_embeddings")?;
    let [max_sequence_length, _] = table("embeddings.position_embeddings")?;
    let [num_segments, _] = table("embeddings.token_type_embeddings")?;
    let [intermediate_dim, _] = table("encoder.layer.0.intermediate.dense")?;
    let num_layers =
        (0..1000).take_while(|i| table(&format!("encoder.layer.{i}.intermediate.dense")).is_ok()).count();
    let number = |key: &str| config.and_then(|c| c.get(key)).and_then(Value::as_f64);
    // All published models have heads of width 64.
    let num_heads = number("num_attention_heads").map_or((hidden_dim / 64).max(1), |n| n as usize);
    if num_heads == 0 || hidden_dim % num_heads != 0 {
        return Err(odd("BERT", &format!("its width {hidden_dim} is not divisible by {num_heads} heads")));
    }
    let is_pooled = table("pooler.dense").is_ok();
    let classes = shape_of::<2>(theirs, "classifier.weight").filter(|_| is_pooled).map_or(0, |[n, _]| n);
    let bert = Bert {
        vocabulary_size,
        num_layers,
        num_heads,
        hidden_dim,
        intermediate_dim,
        max_sequence_length,
        num_segments,
        activation: activation(config)?,
        layer_norm_epsilon: number("layer_norm_eps").unwrap_or(1e-12),
        dropout: number("hidden_dropout_prob").unwrap_or(0.1),
        output: if is_pooled { "pooled" } else { "sequence" }.into(),
        classes,
        ..Bert::default()
    };
    let ids = TensorType::new(DType::I32, [max_sequence_length]);
    Ok((bert.architecture()?, vec![ids.clone(), ids]))
}

fn activation(config: Option<&Value>) -> Result<Activation> {
    let text = |key: &str| config.and_then(|c| c.get(key)).and_then(Value::as_str);
    if let Some(kind) = text("position_embedding_type").filter(|kind| *kind != "absolute") {
        return Err(odd("BERT", &format!("its position_embedding_type is {kind}, expected absolute")));
    }
    if config.and_then(|c| c.get("is_decoder")).and_then(Value::as_bool) == Some(true) {
        return Err(odd("BERT", "its config.json sets is_decoder: causal attention is not supported"));
    }
    match text("hidden_act").unwrap_or("gelu") {
        "gelu" => Ok(Activation::Gelu { approximate: false }),
        "gelu_new" | "gelu_pytorch_tanh" => Ok(Activation::Gelu { approximate: true }),
        "relu" => Ok(Activation::Relu),
        other => {
            Err(odd("BERT", &format!("its hidden_act is {other}; supported are gelu, gelu_new and relu")))
        }
    }
}

/// Whether a model is a BERT.
pub(crate) fn is_one(model: &Model) -> bool {
    let has = |name: &str| model.architecture().nodes.iter().any(|n| n.name == name);
    has("token_embedding") && has("embeddings_layer_norm") && has("transformer_layer_0")
}

/// Returns the rules for all layers of a BERT.
///
/// # Errors
/// If the model has a weight that BERT lacks.
pub(crate) fn rules(model: &Model, prefix: &str) -> Result<Vec<WeightRule>> {
    let rule = |path: &str, dims: &[usize]| {
        rule(path, dims, prefix).ok_or_else(|| {
            Error::new(ErrorKind::Config, format!("weight {path} has no name in Hugging Face's BERT"))
        })
    };
    model.weights().into_iter().map(|(path, value)| rule(path, value.ty().shape.dims())).collect()
}

fn rule(path: &str, dims: &[usize], prefix: &str) -> Option<WeightRule> {
    let table = |name: &str| Some(same(path, dims, format!("{prefix}embeddings.{name}.weight")));
    match (path, dims) {
        ("token_embedding/embeddings", _) => return table("word_embeddings"),
        ("position_embedding/embeddings", _) => return table("position_embeddings"),
        ("segment_embedding/embeddings", _) => return table("token_type_embeddings"),
        ("embeddings_layer_norm/gamma", _) => return table("LayerNorm"),
        ("embeddings_layer_norm/beta", _) => {
            return Some(same(path, dims, format!("{prefix}embeddings.LayerNorm.bias")));
        }
        ("pooled_dense/kernel", [_, _]) => {
            return Some(dense(path, dims, format!("{prefix}pooler.dense.weight")));
        }
        ("pooled_dense/bias", _) => return Some(same(path, dims, format!("{prefix}pooler.dense.bias"))),
        ("predictions/kernel", [_, _]) => return Some(dense(path, dims, "classifier.weight".into())),
        ("predictions/bias", _) => return Some(same(path, dims, "classifier.bias".into())),
        _ => {}
    }
    let (i, weight) = path.strip_prefix("transformer_layer_")?.split_once('/')?;
    BLOCK.rule(path, weight, dims, &format!("{prefix}encoder.layer.{i}."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weight_mapping::LayoutStep;

    #[test]
    fn names_of_the_first_years_are_those_of_today() {
        assert_eq!(today("bert.embeddings.LayerNorm.gamma"), "bert.embeddings.LayerNorm.weight");
        assert_eq!(today("encoder.layer.1.output.LayerNorm.beta"), "encoder.layer.1.output.LayerNorm.bias");
        assert_eq!(today("pooler.dense.weight"), "pooler.dense.weight");
        let rule = rule("transformer_layer_3/self_attention/query/bias", &[2, 4], "bert.").unwrap();
        assert_eq!(rule.parts[0].theirs, "bert.encoder.layer.3.attention.self.query.bias");
        assert_eq!(rule.parts[0].steps, [LayoutStep::Reshape(vec![2, 4])]);
    }
}
