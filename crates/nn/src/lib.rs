//! Keras-style models: layers, losses, optimizers, metrics, `compile`, `fit`, callbacks, model files.
//!
//! Independent of any backend: graphs are compiled by the one from [`systole_runtime::backend`].

pub mod applications;
pub mod callback;
mod checkpoint;
mod custom_objects;
mod deprecated;
mod diagnose;
pub mod did_you_mean;
mod generate;
mod json;
mod layer;
pub mod layers;
pub mod loss;
pub mod metric;
mod model;
mod name_pattern;
pub mod optimizer;
mod prune;
mod quantize;
mod setters;
mod synonyms;
mod train;

pub use callback::progress;
pub use callback::trainer_limits::{Limit, max_time, time};
pub use checkpoint::backup::{BackupAndRestore, RunPosition};
pub use checkpoint::best_model::KeepBest;
pub use deprecated::*;
pub use diagnose::capabilities::{CAPABILITIES, LayerCapabilities, layer_capabilities};
pub use generate::decoder::Decoder;
pub use generate::sampling::Sampling;
pub use generate::text_generator::TextGenerator;
pub use layer::activation::Activation;
pub use layer::capability::{ChannelPruning, IncrementalDecoding};
pub use layer::constraint::Constraint;
pub use layer::fake_quant::fake_quant_with_min_max_vars;
pub use layer::initializer::Initializer;
pub use layer::lowering::{
    ConvolutionKind, ConvolutionLowering, ElementWise, LayerLowering, RecurrentCell, RecurrentLowering,
};
pub use layer::masks::MaskPropagation;
pub use layer::quantized_weight::{QuantizedWeightReport, WeightBits};
pub use layer::quantizer::QuantizeRanges;
pub use layer::regularizer::Regularizer;
pub use layer::weight_role::{WeightLayout, WeightRole};
pub use layer::{Cx, Layer, Precision, WeightSpec};
pub use model::accelerator::{Accelerator, LoopFunction, LoopState, LoopStep};
pub use model::architecture::{
    Architecture, InputSpec, LayerNode, NodeInput, Outputs, Symbol, any_input, input, input_of,
};
pub use model::batch::{Batch, LABEL_FIELDS, WEIGHT_FIELD};
pub use model::compile::{Compile, TrainState};
pub use model::history::{BestEpoch, History, Logs, Validation};
pub use model::model_file::ModelFile;
pub use model::quantize_options::Quantize;
pub use model::sparsity::{Pruning, PruningSchedule};
pub use model::train_step::{StepCx, TrainStep};
pub use model::{Model, SummaryRow, counted, grouped};
pub use optimizer::schedule;
pub use prune::channels::RemovedChannels;
pub use prune::masks::WeightSparsity;
pub use quantize::qat_ranges::{TrainedRange, TrainedRanges};
pub use systole_data::file_system::{FileSystem, OsFileSystem, write_atomically};
#[doc(hidden)]
pub use systole_data::with_defaults;
pub use train::batch_size_finder::{BatchSizeFinder, BatchSizeResult, format_bytes, needed_by_step};
pub use train::device_batch::{DeviceBatchPrediction, DeviceBatchTraining};
pub use train::fine_tune::FineTune;
pub use train::fit::Fit;
pub use train::loop_backup::LoopBackup;
pub use train::lora::LoraOptions;
pub use train::lr_find::{LrFind, LrFindResult, SUGGESTIONS};
pub use train::transfer_learning::{FrozenBatchNorm, TransferredWeights};
pub use train::val_check::ValCheckInterval;

// Names of the previous version.
systole_ir::renamed! { BatchSizeFound => BatchSizeResult, Convolution => ConvolutionLowering, Generation => TextGenerator, Lowering => LayerLowering, LrFinder => LrFindResult, PackedWeight => QuantizedWeightReport, Recurrent => RecurrentLowering, RecurrentKind => RecurrentCell, RunPlace => RunPosition, Sparsity => WeightSparsity, TakenWeights => TransferredWeights }
#[doc(hidden)]
pub use self::OsFileSystem as Disk;
