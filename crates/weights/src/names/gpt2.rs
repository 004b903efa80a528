//! Pairs weights of Hugging Face's GPT-2 with Systole's: names, kernels `[in, out]`, fused query, key and value.

use super::family::ModelFamily;
use super::hf_config::{DerivedModel, FamilyConfig};
use super::layer::ModelLayers;
use crate::weight_mapping::{LayoutStep, WeightPart, WeightRule};
use serde_json::Value;
use systole_ir::{DType, Error, ErrorKind, Literal, Result, TensorType};
use systole_nn::Model;
use systole_nn::applications::Gpt2;

pub(crate) const FAMILY: ModelFamily = ModelFamily {
    name: "GPT-2",
    model_types: &["gpt2"],
    about: "texts: the next token",
    prefix: |files| prefix(files.tensors),
    architecture: |files, prefix| architecture(files.tensors, files.config, prefix),
    is_one,
    rules: |model, _, prefix| rules(model, prefix),
    is_unused: |model, _, name| {
        let is_tied = model.weight("token_embedding/reverse_embeddings").is_err();
        is_mask(name) || (is_tied && name == "lm_head.weight")
    },
};

/// Returns the common name prefix if the tensors are a GPT-2's.
pub(crate) fn prefix(theirs: &[(String, Literal)]) -> Option<&'static str> {
    let has = |name: &str| theirs.iter().any(|(n, _)| n == name);
    ["transformer.", ""].into_iter().find(|p| has(&format!("{p}h.0.attn.c_attn.weight")))
}

/// Whether an array is a mask, not a weight.
pub(crate) fn is_mask(name: &str) -> bool {
    name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")
}

/// Derives the layers from the tensors, and from config.json for the number of heads.
///
/// # Errors
/// If a table is missing, or config.json has an unsupported setting.
pub(crate) fn architecture(
    theirs: &[(String, Literal)],
    config: Option<&Value>,
    prefix: &str,
) -> Result<DerivedModel> {
    let config = FamilyConfig::new("GPT-2", &["gpt2"], config)?;
    let shape = |name: &str| {
        let found = theirs.iter().find(|(n, _)| *n == format!("{prefix}{name}"));
        found.map(|(_, v)| v.shape().to_vec())
    };
    let table = |name: &str| match shape(name).as_deref() {
        Some([rows, width]) => Ok((*rows, *width)),
        _ => Err(odd(&format!("table {prefix}{name} is missing"))),
    };
    let ((vocabulary_size, hidden_dim), (max_sequence_length, _)) =
        (table("wte.weight")?, table("wpe.weight")?);
    let (_, intermediate_dim) = table("h.0.mlp.c_fc.weight")?;
    let num_layers = (0..1000).take_while(|i| shape(&format!("h.{i}.attn.c_attn.weight")).is_some()).count();
    for (key, size) in [
        ("vocab_size", vocabulary_size),
        ("n_embd", hidden_dim),
        ("n_positions", max_sequence_length),
        ("n_ctx", max_sequence_length),
        ("n_inner", intermediate_dim),
        ("n_layer", num_layers),
    ] {
        config.same(key, size)?;
    }
    check(&config)?;
    let num_heads = config.heads("n_head", hidden_dim)?;
    let tokens = theirs.iter().find(|(n, _)| *n == format!("{prefix}wte.weight")).map(|(_, v)| v);
    let head = theirs.iter().find(|(n, _)| n == "lm_head.weight").map(|(_, v)| v);
    let tie_weights = head.is_none() || head == tokens;
    if head.is_none() && !config.is("tie_word_embeddings", true)? {
        return Err(config.wrong("config.json: tie_word_embeddings = false, but lm_head.weight is missing"));
    }
    config.head(0)?;
    let gpt2 = Gpt2 {
        vocabulary_size,
        num_layers,
        num_heads,
        hidden_dim,
        intermediate_dim,
        max_sequence_length,
        tie_weights,
        dropout: config.dropout("resid_pdrop", 0.1, &["attn_pdrop", "embd_pdrop"])?,
        ..Gpt2::default()
    };
    let inputs = vec![TensorType::new(DType::I32, [max_sequence_length])];
    Ok(DerivedModel { architecture: gpt2.architecture()?, inputs, config: config.finish()? })
}

fn check(config: &FamilyConfig<'_>) -> Result<()> {
    let activation = config.text_or("activation_function", "gelu_new")?;
    if !["gelu_new", "gelu_pytorch_tanh", "gelu_fast"].contains(&activation) {
        return Err(config.wrong(format!("its activation_function is {activation}, expected gelu_new")));
    }
    let epsilon = config.number_or("layer_norm_epsilon", 1e-5, 1e-5)?;
    if (epsilon - 1e-5).abs() > 1e-9 {
        return Err(config.wrong(format!("its layer_norm_epsilon is {epsilon}, expected 1e-5")));
    }
    config.only("scale_attn_weights", true)?;
    config.is("tie_word_embeddings", true)?;
    for key in [
        "scale_attn_by_inverse_layer_idx",
        "reorder_and_upcast_attn",
        "add_cross_attention",
        "is_encoder_decoder",
    ] {
        config.only(key, false)?;
    }
    config.nothing_pruned()
}

fn odd(why: &str) -> Error {
    super::transformer_encoder::odd("GPT-2", why)
}

/// Whether a model is a GPT-2.
pub(crate) fn is_one(model: &Model) -> bool {
    let has = |name: &str| model.architecture().nodes.iter().any(|n| n.name == name);
    has("token_embedding") && has("position_embedding") && has("transformer_layer_0")
}

/// Returns the rules for all layers of a GPT-2.
///
/// # Errors
/// If the model has a weight that GPT-2 lacks.
pub(crate) fn rules(model: &Model, prefix: &str) -> Result<Vec<WeightRule>> {
    let mut all = Vec::new();
    let layers = ModelLayers::of(model);
    let heads = layers.weighted().iter().map(|l| l.heads()).max().unwrap_or(1).max(1);
    for (path, value) in model.weights() {
        let dims = value.ty().shape.to_vec();
        let rule = rule(path, &dims, prefix, heads).ok_or_else(|| {
            Error::new(ErrorKind::Config, format!("weight {path} has no name in Hugging Face's GPT-2"))
        })?;
        all.push(rule);
    }
    Ok(all)
}

fn rule(path: &str, dims: &[usize], prefix: &str, heads: usize) -> Option<WeightRule> {
    let same = |name: String| WeightRule::of(path, dims, WeightPart::new(name, dims, Vec::new()));
    match path {
        "token_embedding/embeddings" => return Some(same(format!("{prefix}wte.weight"))),
        "token_embedding/reverse_embeddings" => {
            let part = WeightPart::new(
                "lm_head.weight",
                &[dims[1], dims[0]],
                vec![LayoutStep::Transpose(vec![1, 0])],
            );
            return Some(WeightRule::of(path, dims, part));
        }
        "position_embedding/embeddings" => return Some(same(format!("{prefix}wpe.weight"))),
        "layer_norm/gamma" => return Some(same(format!("{prefix}ln_f.weight"))),
        "layer_norm/beta" => return Some(same(format!("{prefix}ln_f.bias"))),
        _ => {}
    }
    let (i, weight) = path.strip_prefix("transformer_layer_")?.split_once('/')?;
    let at = |name: &str| format!("{prefix}h.{i}.{name}");
    if let Some(rule) = attention(path, weight, dims, &at, heads) {
        return Some(rule);
    }
    let name = match weight {
        "self_attention_layer_norm/gamma" => "ln_1.weight",
        "self_attention_layer_norm/beta" => "ln_1.bias",
        "feedforward_layer_norm/gamma" => "ln_2.weight",
        "feedforward_layer_norm/beta" => "ln_2.bias",
        "feedforward_intermediate_dense/kernel" => "mlp.c_fc.weight",
        "feedforward_intermediate_dense/bias" => "mlp.c_fc.bias",
        "feedforward_output_dense/kernel" => "mlp.c_proj.weight",
        "feedforward_output_dense/bias" => "mlp.c_proj.bias",
        "self_attention/attention_output/bias" => "attn.c_proj.bias",
        _ => return None,
    };
    Some(same(at(name)))
}

fn attention(
    path: &str,
    weight: &str,
    dims: &[usize],
    at: &dyn Fn(&str) -> String,
    heads: usize,
) -> Option<WeightRule> {
    let part = weight.strip_prefix("self_attention/")?;
    let reshaped = LayoutStep::Reshape(dims.to_vec());
    if part == "attention_output/kernel" {
        let width = dims[2];
        let part = WeightPart::new(at("attn.c_proj.weight"), &[dims[0] * dims[1], width], vec![reshaped]);
        return Some(WeightRule::of(path, dims, part));
    }
    let (name, kind) = part.split_once('/')?;
    let k = ["query", "key", "value"].iter().position(|n| *n == name)?;
    let width = heads * dims.last()?;
    let steps = vec![LayoutStep::Columns(k * width, width), reshaped];
    let part = match kind {
        "kernel" => WeightPart::new(at("attn.c_attn.weight"), &[dims[0], 3 * width], steps),
        _ => WeightPart::new(at("attn.c_attn.bias"), &[3 * width], steps),
    };
    Some(WeightRule::of(path, dims, part))
}
