//! Training: `fit`, fine-tuning, LoRA, learning-rate finder, multi-host training and weight averaging.

pub(crate) mod batch_size_finder;
pub(crate) mod device_batch;
pub(crate) mod fine_tune;
pub(crate) mod fit;
pub(crate) mod input_pipeline;
pub(crate) mod loop_backup;
pub(crate) mod lora;
pub(crate) mod lr_find;
pub(crate) mod measured_weights;
pub(crate) mod multi_host;
pub(crate) mod transfer_learning;
pub(crate) mod val_check;
pub(crate) mod weight_averaging;
