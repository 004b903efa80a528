//! Names of weights in other systems: a file for each family of models, and one for layers of any model.

pub(crate) mod bert;
pub(crate) mod encoder;
pub(crate) mod gpt2;
pub(crate) mod keras;
pub(crate) mod layer;
pub(crate) mod order;
pub(crate) mod resnet;
pub(crate) mod vit;
