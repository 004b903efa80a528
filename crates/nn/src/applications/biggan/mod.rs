//! BigGAN: networks, training step, image generation, FID and IS. Options are named as in BigGAN-PyTorch.
//!
//! Source: Brock, Donahue and Simonyan, "Large Scale GAN Training for High Fidelity Natural Image Synthesis", 2018, and
//! their code.

mod feature_network;
mod frechet;
mod networks;
mod options;
mod sample_images;
mod train_step;

pub use feature_network::{FeatureNetwork, ImageFeatures};
pub use frechet::{FeatureStatistics, frechet_distance, inception_score};
pub use options::{BigGan, Init, NormStyle, WeightParametrization};
pub use sample_images::{SampleGrid, grid};
pub(crate) use train_step::NAME;

// Names of the previous version.
systole_ir::renamed! { Features => ImageFeatures, Param => WeightParametrization }
