//! Pairs weight names of Hugging Face's ViT with Systole's: encoder, and classifier on the class token.

use super::family::ModelFamily;
use super::hf_config::{DerivedModel, FamilyConfig};
use super::transformer_encoder::{EncoderBlockNames, dense, odd, same, shape_of};
use crate::weight_mapping::{LayoutStep, WeightPart, WeightRule};
use serde_json::Value;
use systole_ir::{DType, Error, ErrorKind, Literal, Result, TensorType};
use systole_nn::Model;
use systole_nn::applications::ViT;

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

pub(crate) const FAMILY: ModelFamily = ModelFamily {
    name: "ViT",
    model_types: &["vit"],
    about: "images: classes, features",
    prefix: |files| prefix(files.tensors),
    architecture: |files, prefix| architecture(files.tensors, files.config, prefix),
    is_one,
    rules: |model, _, prefix| rules(model, prefix),
    is_unused: |_, files, name| prefix(files.tensors).is_some_and(|prefix| is_pooler(name, prefix)),
};

/// Returns the common name prefix if the tensors are a ViT's.
fn prefix(theirs: &[(String, Literal)]) -> Option<&'static str> {
    let has = |name: String| theirs.iter().any(|(n, _)| *n == name);
    ["vit.", ""].into_iter().find(|p| {
        has(format!("{p}embeddings.cls_token")) && has(format!("{p}encoder.layer.0.layernorm_before.weight"))
    })
}

/// Whether a tensor belongs to the pooler, which classifiers do not use.
fn is_pooler(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|name| name.starts_with("pooler."))
}

/// Derives the layers from the tensors, and from config.json for the number of heads; also returns the type of one
/// sample.
///
/// # Errors
/// If a tensor is missing, or config.json has an unsupported setting.
fn architecture(theirs: &[(String, Literal)], config: Option<&Value>, prefix: &str) -> Result<DerivedModel> {
    let config = FamilyConfig::new(FAMILY.name, FAMILY.model_types, config)?;
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
    let num_layers = (0..1000).take_while(|i| inside(*i).is_some()).count();
    check(&config)?;
    let image_size = side.saturating_mul(patch_size);
    config.same_all(&[
        ("hidden_size", hidden_dim),
        ("intermediate_size", mlp_dim),
        ("num_hidden_layers", num_layers),
        ("num_channels", channels),
        ("patch_size", patch_size),
        ("image_size", image_size),
    ])?;
    let classes = shape_of::<2>(theirs, "classifier.weight").map_or(0, |[n, _]| n);
    let vit = ViT {
        classes,
        classifier_activation: config.head(classes)?,
        image_size,
        patch_size,
        num_layers,
        num_heads: config.heads("num_attention_heads", hidden_dim)?,
        hidden_dim,
        mlp_dim,
        dropout_rate: config.dropout("hidden_dropout_prob", 0.0, &["attention_probs_dropout_prob"])?,
        layer_norm_epsilon: config.number_or("layer_norm_eps", 1e-12, 1e-12)?,
        ..ViT::default()
    };
    let inputs = vec![TensorType::new(DType::F32, [image_size, image_size, channels])];
    Ok(DerivedModel { architecture: vit.architecture()?, inputs, config: config.finish()? })
}

fn check(config: &FamilyConfig<'_>) -> Result<()> {
    let function = config.text_or("hidden_act", "gelu")?;
    if function != "gelu" {
        return Err(config.wrong(format!("its hidden_act is {function}, expected gelu")));
    }
    config.only("is_encoder_decoder", false)?;
    config.nothing_pruned()?;
    config.only("qkv_bias", true)
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
