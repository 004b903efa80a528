//! Pairs weight names of Hugging Face's ViT with Systole's: encoder, and classifier on the class token.

use super::transformer_encoder::{EncoderBlockNames, dense, odd, same, shape_of};
use crate::weight_mapping::{LayoutStep, WeightPart, WeightRule};
use serde_json::Value;
use systole_ir::{DType, Error, ErrorKind, Literal, Result, TensorType};
use systole_nn::applications::ViT;
use systole_nn::{Architecture, Model};

const BLOCK: EncoderBlockNames = EncoderBlockNames {
    attention: "attention.attention.",
    parts: [
        ("self_attention/attention_output", "attention.output.dense"),
        ("self_attention_layer_norm", "layernorm_before"),
        ("feedforward_intermediate_dense", "intermediate.dense"),
        ("feedforward_output_dense", "output.dense"),
        ("feedforward_layer_norm", "layernorm_after"),
    ],
};

/// Returns the common name prefix if the tensors are a ViT's.
pub(crate) fn prefix(theirs: &[(String, Literal)]) -> Option<&'static str> {
    let has = |name: String| theirs.iter().any(|(n, _)| *n == name);
    ["vit.", ""].into_iter().find(|p| {
        has(format!("{p}embeddings.cls_token")) && has(format!("{p}encoder.layer.0.layernorm_before.weight"))
    })
}

/// Whether a tensor belongs to the pooler, which classifiers do not use.
pub(crate) fn is_pooler(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|name| name.starts_with("pooler."))
}

/// Derives the layers from the tensors, and from config.json for the number of heads; also returns the type of one
/// sample.
///
/// # Errors
/// If a tensor is missing, or config.json has an unsupported setting.
pub(crate) fn architecture(
    theirs: &[(String, Literal)],
    config: Option<&Value>,
    prefix: &str,
) -> Result<(Architecture, TensorType)> {
    let lacks = |name: &str| odd("ViT", &format!("{prefix}{name} is missing or has another rank"));
    let name = "embeddings.patch_embeddings.projection.weight";
    let [hidden_dim, channels, patch_size, other] =
        shape_of::<4>(theirs, &format!("{prefix}{name}")).ok_or_else(|| lacks(name))?;
    let name = "embeddings.position_embeddings";
    let [_, places, _] = shape_of::<3>(theirs, &format!("{prefix}{name}")).ok_or_else(|| lacks(name))?;
    let side = (places.max(1) - 1).isqrt();
    if side * side + 1 != places || patch_size != other || side == 0 || patch_size == 0 {
        let why = format!("its {places} positions with patches of {patch_size} by {other} are not square");
        return Err(odd("ViT", &why));
    }
    let inside = |i: usize| {
        shape_of::<2>(theirs, &format!("{prefix}encoder.layer.{i}.intermediate.dense.weight")).map(|d| d[0])
    };
    let mlp_dim = inside(0).ok_or_else(|| lacks("encoder.layer.0.intermediate.dense.weight"))?;
    let number = |key: &str| config.and_then(|c| c.get(key)).and_then(Value::as_f64);
    // All published models have heads of width 64.
    let num_heads = number("num_attention_heads").map_or((hidden_dim / 64).max(1), |n| n as usize);
    if num_heads == 0 || hidden_dim % num_heads != 0 {
        return Err(odd("ViT", &format!("its width {hidden_dim} is not divisible by {num_heads} heads")));
    }
    check(config)?;
    let image_size = side.saturating_mul(patch_size);
    let vit = ViT {
        classes: shape_of::<2>(theirs, "classifier.weight").map_or(0, |[n, _]| n),
        image_size,
        patch_size,
        num_layers: (0..1000).take_while(|i| inside(*i).is_some()).count(),
        num_heads,
        hidden_dim,
        mlp_dim,
        dropout_rate: number("hidden_dropout_prob").unwrap_or(0.0),
        layer_norm_epsilon: number("layer_norm_eps").unwrap_or(1e-12),
        ..ViT::default()
    };
    Ok((vit.architecture()?, TensorType::new(DType::F32, [image_size, image_size, channels])))
}

fn check(config: Option<&Value>) -> Result<()> {
    let function = config.and_then(|c| c.get("hidden_act")).and_then(Value::as_str).unwrap_or("gelu");
    if function != "gelu" {
        return Err(odd("ViT", &format!("its hidden_act is {function}, expected gelu")));
    }
    if config.and_then(|c| c.get("qkv_bias")).and_then(Value::as_bool) == Some(false) {
        return Err(odd("ViT", "its config.json disables the biases of query, key and value"));
    }
    Ok(())
}

/// Whether a model is a ViT.
pub(crate) fn is_one(model: &Model) -> bool {
    let has = |name: &str| model.architecture().nodes.iter().any(|n| n.name == name);
    has("patch_embedding") && has("class_token") && has("transformer_layer_0")
}

/// Returns the rules for all layers of a ViT.
///
/// # Errors
/// If the model has a weight that ViT lacks.
pub(crate) fn rules(model: &Model, prefix: &str) -> Result<Vec<WeightRule>> {
    let rule = |path: &str, dims: &[usize]| {
        rule(path, dims, prefix).ok_or_else(|| {
            Error::new(ErrorKind::Config, format!("weight {path} has no name in Hugging Face's ViT"))
        })
    };
    model.weights().into_iter().map(|(path, value)| rule(path, value.ty().shape.dims())).collect()
}

fn rule(path: &str, dims: &[usize], prefix: &str) -> Option<WeightRule> {
    let at = |name: &str| format!("{prefix}{name}");
    let widened = |name: &str, shape: &[usize]| {
        let steps = vec![LayoutStep::Reshape(dims.to_vec())];
        Some(WeightRule::of(path, dims, WeightPart::new(at(name), shape, steps)))
    };
    let patches = "embeddings.patch_embeddings.projection";
    match (path, dims) {
        ("patch_embedding/kernel", [h, w, channels, out]) => {
            let steps = vec![LayoutStep::Transpose(vec![2, 3, 1, 0])];
            let part = WeightPart::new(at(&format!("{patches}.weight")), &[*out, *channels, *h, *w], steps);
            return Some(WeightRule::of(path, dims, part));
        }
        ("patch_embedding/bias", _) => return Some(same(path, dims, at(&format!("{patches}.bias")))),
        ("class_token/token", [width]) => return widened("embeddings.cls_token", &[1, 1, *width]),
        ("position_embedding/embeddings", [places, width]) => {
            return widened("embeddings.position_embeddings", &[1, *places, *width]);
        }
        ("layer_norm/gamma", _) => return Some(same(path, dims, at("layernorm.weight"))),
        ("layer_norm/beta", _) => return Some(same(path, dims, at("layernorm.bias"))),
        ("predictions/kernel", [_, _]) => return Some(dense(path, dims, "classifier.weight".into())),
        ("predictions/bias", _) => return Some(same(path, dims, "classifier.bias".into())),
        _ => {}
    }
    let (i, weight) = path.strip_prefix("transformer_layer_")?.split_once('/')?;
    BLOCK.rule(path, weight, dims, &format!("{prefix}encoder.layer.{i}."))
}
