//! Weight names in external files: one module per model family, and one for layers of any model.

mod albert;
pub(crate) mod bert;
mod clip;
mod convnext;
mod deit;
pub(crate) mod dinov2;
pub(crate) mod distilbert;
pub(crate) mod encoder_layers;
pub(crate) mod family;
pub(crate) mod gpt2;
pub(crate) mod hf_config;
pub(crate) mod keras;
pub(crate) mod language_models;
pub(crate) mod layer;
pub(crate) mod match_by_order;
mod module_names;
mod mpnet;
pub(crate) mod resnet;
mod swin;
mod t5;
pub(crate) mod torch_defaults;
pub(crate) mod transformer_encoder;
pub(crate) mod vit;
mod whisper;

use family::{FamilyInfo, ModelFamily};

/// Families of models, in the order in which files are compared with them: first those that config.json names.
pub(crate) const FAMILIES: &[ModelFamily] = &[
    mpnet::FAMILY,
    albert::FAMILY,
    t5::FAMILY,
    deit::FAMILY,
    dinov2::FAMILY,
    convnext::FAMILY,
    swin::FAMILY,
    clip::FAMILY,
    whisper::FAMILY,
    gpt2::FAMILY,
    bert::FAMILY,
    vit::FAMILY,
    resnet::FAMILY,
];

/// Returns the families of models whose layers follow from a folder's config.json and tensors, in table order.
pub fn families() -> impl Iterator<Item = FamilyInfo> {
    FAMILIES.iter().map(|f| FamilyInfo { name: f.name, model_types: f.model_types, about: f.about })
}
