//! Training: `fit`, and what loops of training share.

pub(crate) mod averages;
pub(crate) mod batch_size;
pub(crate) mod device_batch;
pub(crate) mod feed;
pub(crate) mod fine_tune;
pub(crate) mod fit;
pub(crate) mod hosts;
pub(crate) mod loop_backup;
pub(crate) mod lora;
pub(crate) mod lr_find;
pub(crate) mod transfer;
pub(crate) mod val_check;
