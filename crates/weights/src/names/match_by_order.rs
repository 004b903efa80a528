//! Matches tensors to layers by file order if the names do not identify the layers; checks type and shape of each.

use super::layer::ModelLayers;
use crate::weight_mapping::{WeightRule, is_weight};
use systole_ir::{Error, ErrorKind, Literal, Result};
use systole_nn::Model;

/// Returns the rules for a model from the order of a state_dict.
///
/// # Errors
/// If a layer has no counterpart, or the next tensor does not match it.
pub(crate) fn rules(model: &Model, theirs: &[(String, Literal)]) -> Result<Vec<WeightRule>> {
    let mut left: Vec<&str> =
        theirs.iter().filter(|(n, v)| is_weight(n, v)).map(|(n, _)| n.as_str()).collect();
    let mut all = Vec::new();
    for layer in ModelLayers::of(model).weighted() {
        let template = layer.rules("")?;
        let first = template.first().and_then(|r| r.parts.first()).map_or("", |p| &p.theirs);
        let Some(next) = left.first().copied() else {
            let what = format!("the file has no tensor for layer {} ({})", layer.name, layer.class);
            return Err(Error::new(ErrorKind::Data, what)
                .because("all tensors of the file belong to earlier layers")
                .hint("pass the matching model with --model"));
        };
        let (prefix, level) = split(next, first).ok_or_else(|| {
            let what = format!("tensor {next} does not match layer {} ({})", layer.name, layer.class);
            Error::new(ErrorKind::Data, what)
                .because(format!(
                    "tensors are matched in file order; the layer's first tensor would be a {first}"
                ))
                .hint("define the model's layers in the order of the file")
        })?;
        let mut rules = layer.rules(prefix)?;
        // PyTorch stores a stack of recurrent layers as one module: l0, l1, …
        for part in rules.iter_mut().flat_map(|r| &mut r.parts) {
            if let Some(base) = part.theirs.strip_suffix("_l0") {
                part.theirs = format!("{base}_l{level}");
            }
        }
        left.retain(|name| !rules.iter().any(|r| r.parts.iter().any(|p| p.theirs == *name)));
        all.extend(rules);
    }
    Ok(all)
}

/// Splits a name into the prefix before the weight's own name and the level of a recurrent layer.
fn split<'a>(name: &'a str, own: &str) -> Option<(&'a str, &'a str)> {
    if let Some(base) = own.strip_suffix("_l0") {
        let (start, level) = name.rsplit_once("_l")?;
        return level.bytes().all(|b| b.is_ascii_digit()).then_some((start.strip_suffix(base)?, level));
    }
    let prefix = name.strip_suffix(own)?;
    (prefix.is_empty() || prefix.ends_with('.')).then_some((prefix, ""))
}

/// Returns rules that name each tensor by its layer for export: `dense.weight`.
pub(crate) fn by_layer(model: &Model) -> Result<Vec<WeightRule>> {
    let layers = ModelLayers::of(model);
    let rules = layers.weighted().into_iter().map(|layer| layer.rules(&format!("{}.", layer.name)));
    Ok(rules.collect::<Result<Vec<_>>>()?.concat())
}
