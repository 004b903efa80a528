//! [`ModelFamily`]: how a family of models is recognized by its files, built, and filled with weights.

use super::hf_config::DerivedModel;
use crate::weight_mapping::WeightRule;
use serde_json::Value;
use systole_ir::{Literal, Result};
use systole_nn::Model;

/// Tensors and settings of a weight file or Hugging Face folder.
pub(crate) struct WeightFiles<'a> {
    pub tensors: &'a [(String, Literal)],
    /// config.json.
    pub config: Option<&'a Value>,
    /// Token that pads texts, which attention masks.
    pub padding: Option<u32>,
    /// How the features of a text's tokens become one vector, if the folder states it.
    pub pooling: Option<TextPooling>,
    /// Height and width of the images that the folder's image processor returns.
    pub image_size: Option<[usize; 2]>,
    /// Which half of a model of images and texts is read.
    pub tower: Tower,
}

/// Half of a model of images and texts, such as CLIP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tower {
    /// Encoder of images.
    #[default]
    Images,
    /// Encoder of texts.
    Texts,
}

/// How the features of a text's tokens become one vector: `1_Pooling/config.json` of sentence-transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TextPooling {
    /// Whether it is the mean of all tokens; otherwise the first token.
    pub mean: bool,
    /// Whether the vector gets length 1.
    pub normalize: bool,
}

impl WeightFiles<'_> {
    pub fn has(&self, name: &str) -> bool {
        self.tensors.iter().any(|(n, _)| n == name)
    }

    /// Returns the `model_type` of config.json.
    pub fn model_type(&self) -> Option<&str> {
        self.config?.get("model_type")?.as_str()
    }

    /// Returns the first of `prefixes` with which the tensor `marker` exists, if config.json has one of `model_types`.
    pub fn prefix(
        &self,
        model_types: &[&str],
        prefixes: &[&'static str],
        marker: &str,
    ) -> Option<&'static str> {
        self.model_type().filter(|kind| model_types.contains(kind))?;
        prefixes.iter().find(|prefix| self.has(&format!("{prefix}{marker}"))).copied()
    }
}

/// A family of models: one file of this folder, and one row of the table in `mod.rs`.
pub(crate) struct ModelFamily {
    /// Name in messages.
    pub name: &'static str,
    /// Values of config.json's `model_type`.
    pub model_types: &'static [&'static str],
    /// Inputs and outputs, for `systole import --list`.
    pub about: &'static str,
    /// Returns the common prefix of the tensor names if they are the family's.
    pub prefix: fn(&WeightFiles<'_>) -> Option<&'static str>,
    /// Derives the layers; the prefix is that of the tensor names.
    pub architecture: fn(&WeightFiles<'_>, &'static str) -> Result<DerivedModel>,
    /// Whether a model has the layers that `rules` names.
    pub is_one: fn(&Model) -> bool,
    /// Returns the rules for all weights of a model.
    pub rules: fn(&Model, &WeightFiles<'_>, &'static str) -> Result<Vec<WeightRule>>,
    /// Whether a tensor is not a weight of the model: a mask, a tied table, a pretraining head.
    pub is_unused: fn(&Model, &WeightFiles<'_>, &str) -> bool,
}

/// Whether a model has a layer of this name.
pub(crate) fn has_layer(model: &Model, name: &str) -> bool {
    model.architecture().nodes.iter().any(|n| n.name == name)
}

/// Family of models for `systole import --list`.
#[derive(Clone, Debug, PartialEq)]
pub struct FamilyInfo {
    /// Name in messages.
    pub name: &'static str,
    /// Values of config.json's `model_type`.
    pub model_types: &'static [&'static str],
    /// Inputs and outputs.
    pub about: &'static str,
}
