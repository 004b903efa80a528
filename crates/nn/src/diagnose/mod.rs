//! Diagnostics: non-finite numbers, invalid labels and ids, gradients, layer capabilities.

pub(crate) mod anomaly_detection;
pub(crate) mod capabilities;
pub(crate) mod check_numerics;
pub(crate) mod gradients;
pub(crate) mod label_check;
pub(crate) mod loss_activation;
