//! BigGAN: networks, a step of training, pictures and scores. Options by the names of BigGAN-PyTorch.
//!
//! Source: Brock, Donahue and Simonyan, "Large Scale GAN Training for High Fidelity Natural Image Synthesis", 2018, and their code.

mod frechet;
mod networks;
mod options;
mod pictures;
mod scores;
mod step;

pub use frechet::{FeatureStatistics, frechet_distance, inception_score};
pub use options::{BigGan, Init, NormStyle, Param};
pub use pictures::{SampleGrid, grid};
pub use scores::{FeatureNetwork, Features};
pub(crate) use step::NAME;
