//! Pairs weights of layers that are named like transformers' modules (`encoder.layer.0.norm1`) with its tensors.

use super::layer::{LayerInfo, ModelLayers};
use crate::weight_mapping::{LayoutStep, WeightPart, WeightRule};
use std::collections::HashMap;
use systole_ir::{Error, ErrorKind, Literal, Result};
use systole_nn::Model;

/// Names of a family's modules, where they differ from the layers' names.
pub(crate) struct ModuleNames {
    /// Modules of the attention's query, key, value and output, within the layer's module.
    pub attention: [&'static str; 4],
    /// Layers with names of Systole's own, and their modules.
    pub renamed: &'static [(&'static str, &'static str)],
}

/// Parts of an attention layer, in the order of [`ModuleNames::attention`].
const PROJECTIONS: [&str; 4] = ["query", "key", "value", "attention_output"];

/// Tensor shapes by name.
type TensorShapes<'a> = HashMap<&'a str, &'a [usize]>;

impl ModuleNames {
    /// Returns the rules for all weights of a model whose tensors have this name prefix, or none.
    ///
    /// # Errors
    /// If a layer has no counterpart in PyTorch.
    pub fn rules(
        &self,
        model: &Model,
        tensors: &[(String, Literal)],
        prefix: &str,
    ) -> Result<Vec<WeightRule>> {
        let shapes: TensorShapes<'_> =
            tensors.iter().map(|(name, value)| (name.as_str(), value.shape().dims())).collect();
        let mut all = Vec::new();
        for layer in ModelLayers::of(model).weighted() {
            let module = self.module(layer.name, &shapes, prefix);
            for (weight, dims) in layer.weights() {
                let rule = self.rule(&layer, weight, dims, module).ok_or_else(|| unknown(&layer, weight))?;
                all.push(existing(rule, &shapes, prefix));
            }
        }
        Ok(all)
    }

    /// Returns the module of a layer; of several possible ones the first that the file has.
    fn module<'a>(&self, layer: &'a str, shapes: &TensorShapes<'_>, prefix: &str) -> &'a str
    where
        Self: 'a,
    {
        let has = |module: &str| {
            [prefix, ""].iter().any(|start| shapes.contains_key(format!("{start}{module}.weight").as_str()))
        };
        let named = || self.renamed.iter().filter(|(ours, _)| *ours == layer).map(|(_, module)| *module);
        named().find(|module| has(module)).or_else(|| named().next()).unwrap_or(layer)
    }

    fn rule(&self, layer: &LayerInfo<'_>, weight: &str, dims: &[usize], module: &str) -> Option<WeightRule> {
        let projection = weight.split_once('/').and_then(|(part, kind)| {
            let i = PROJECTIONS.iter().position(|name| *name == part)?;
            Some((i, kind))
        });
        let Some((i, kind)) = projection else { return layer.rule_of(weight, &format!("{module}.")) };
        let theirs = format!("{module}.{}", self.attention.get(i)?);
        let path = format!("{}/{weight}", layer.name);
        let steps = vec![LayoutStep::Transpose(vec![1, 0]), LayoutStep::Reshape(dims.to_vec())];
        let part = match (kind, dims) {
            ("kernel", [input, heads, width]) if i < 3 => {
                WeightPart::new(format!("{theirs}.weight"), &[heads * width, *input], steps)
            }
            ("kernel", [heads, width, out]) => {
                WeightPart::new(format!("{theirs}.weight"), &[*out, heads * width], steps)
            }
            ("bias", _) => {
                let shape = [dims.iter().product()];
                // Whisper's keys have no bias.
                WeightPart::new(format!("{theirs}.bias"), &shape, vec![LayoutStep::Reshape(dims.to_vec())])
                    .optional()
            }
            _ => return None,
        };
        Some(WeightRule::of(&path, dims, part))
    }
}

/// Resolves the tensor of a rule: with or without the prefix, as a parameter of its module or the module itself, with
/// dimensions of size 1, or with rows before the first position.
fn existing(rule: WeightRule, shapes: &TensorShapes<'_>, prefix: &str) -> WeightRule {
    let parts = rule.parts.into_iter().map(|part| {
        let module = part.theirs.rsplit_once('.').map_or("", |(module, _)| module);
        let names = [
            format!("{prefix}{}", part.theirs),
            part.theirs.clone(),
            format!("{prefix}{module}"),
            module.into(),
        ];
        let found = names.into_iter().find(|name| shapes.contains_key(name.as_str()));
        let Some(theirs) = found else {
            return WeightPart { theirs: format!("{prefix}{}", part.theirs), ..part };
        };
        let is = shapes[theirs.as_str()];
        let (count, expected): (usize, usize) = (is.iter().product(), part.shape.iter().product());
        let width = part.shape.last().copied().unwrap_or(1).max(1);
        let mut steps = part.steps.clone();
        if is == part.shape {
            return WeightPart { theirs, ..part };
        }
        if count == expected {
            steps.insert(0, LayoutStep::Reshape(part.shape.clone()));
        } else if rule.ours.contains("position") && count > expected && is.last() == part.shape.last() {
            steps.insert(0, LayoutStep::Reshape(vec![count / width, width]));
            steps.insert(1, LayoutStep::Rows((count - expected) / width, expected / width));
        } else {
            return WeightPart { theirs, ..part };
        }
        WeightPart { theirs, shape: is.to_vec(), steps, ..part }
    });
    WeightRule { parts: parts.collect(), ours: rule.ours.clone(), shape: rule.shape }
}

fn unknown(layer: &LayerInfo<'_>, weight: &str) -> Error {
    let what = format!("weight {}/{weight} has no name in Hugging Face's files", layer.name);
    Error::new(ErrorKind::Config, what)
}
