//! The parts of a layer's context, by subject.

pub(crate) mod penalties_and_constraints;
pub(crate) mod quantization;
pub(crate) mod random_draws;
pub(crate) mod values;
pub(crate) mod weights;
