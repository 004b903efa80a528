//! State of a layer's [`Cx`](crate::Cx), split by topic.

pub(crate) mod penalties_and_constraints;
pub(crate) mod quantization;
pub(crate) mod random_draws;
pub(crate) mod values;
pub(crate) mod weights;
