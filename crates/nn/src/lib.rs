//! Models with Keras's names: layers, losses, optimizers, metrics, `compile`, `fit`, callbacks, model files.
//!
//! Knows no backend: graphs go to whichever one [`systole_runtime::backend`] gives.

mod activation;
pub mod applications;
mod architecture;
mod backup;
mod batch;
mod best;
pub mod callback;
mod check_numerics;
mod compile;
mod custom;
mod device_batch;
mod endless;
mod feed;
mod file;
mod fit;
mod history;
mod hosts;
mod ids;
mod initializer;
mod layer;
mod layer_loops;
pub mod layers;
mod limits;
pub mod loss;
mod lr_find;
pub mod metric;
mod model;
mod nearest;
pub mod optimizer;
mod persist;
pub mod progress;
pub mod schedule;
mod setters;
mod step;
mod synonyms;
mod val_check;

pub use activation::Activation;
pub use architecture::{Architecture, InputSpec, LayerNode, NodeInput, Symbol, any_input, input, input_of};
pub use backup::{BackupAndRestore, RunPlace};
pub use batch::{Batch, LABEL_FIELDS, WEIGHT_FIELD};
pub use best::KeepBest;
pub use compile::{Compile, TrainState};
pub use device_batch::{DeviceBatchPrediction, DeviceBatchTraining};
pub use file::ModelFile;
pub use fit::Fit;
pub use history::{BestEpoch, History, Logs, Validation};
pub use initializer::Initializer;
pub use layer::{Cx, Layer, Precision, WeightSpec};
pub use limits::{Limit, max_time, time};
pub use lr_find::{LrFind, LrFinder, SUGGESTIONS};
pub use model::{Model, SummaryRow, counted, grouped};
pub use nearest::{in_plain_words, nearest, similar, suggestion, synonym};
pub use systole_data::disk::{Disk, FileSystem, write_atomically};
pub use val_check::ValCheckInterval;
