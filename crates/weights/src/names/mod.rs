//! Weight names in external files: one module per model family, and one for layers of any model.

pub(crate) mod bert;
pub(crate) mod distilbert;
pub(crate) mod gpt2;
pub(crate) mod hf_config;
pub(crate) mod keras;
pub(crate) mod layer;
pub(crate) mod match_by_order;
pub(crate) mod resnet;
pub(crate) mod transformer_encoder;
pub(crate) mod vit;
