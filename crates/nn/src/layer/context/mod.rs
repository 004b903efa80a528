//! The parts of a layer's context, by subject.

pub(crate) mod draws;
pub(crate) mod quantization;
pub(crate) mod rules;
pub(crate) mod values;
pub(crate) mod weights;
