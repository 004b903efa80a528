//! Code shared by train, resume, evaluate and quantize: data, training, signals, results.

pub(crate) mod confusion;
pub(crate) mod evaluation;
pub(crate) mod final_weights;
pub(crate) mod generator_scores;
pub(crate) mod html_report;
pub(crate) mod initial_model;
pub(crate) mod input_bottleneck;
#[cfg(feature = "launch")]
pub(crate) mod linked_plugin;
pub(crate) mod out_of_memory;
pub(crate) mod pruning;
pub(crate) mod run_data;
pub(crate) mod run_summary;
pub(crate) mod signals;
pub(crate) mod tensorboard_images;
pub(crate) mod training;
pub(crate) mod training_overlap;
pub(crate) mod user_data;
