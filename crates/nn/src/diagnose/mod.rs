//! Checks that find what is wrong with a model, its data or its numbers.

pub(crate) mod anomaly_detection;
pub(crate) mod capabilities;
pub(crate) mod check_numerics;
pub(crate) mod gradients;
pub(crate) mod label_check;
