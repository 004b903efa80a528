//! Opens the models and data that a command names: saved models, run folders, TOML files, .tflite and ONNX files,
//! programs.

pub(crate) mod accuracy;
pub(crate) mod binary_output;
pub(crate) mod command_target;
pub(crate) mod image_preparation;
pub(crate) mod imported;
pub(crate) mod model_data;
pub(crate) mod onnx;
pub(crate) mod predictor;
pub(crate) mod preprocessing;
pub(crate) mod pretrained;
pub(crate) mod program;
pub(crate) mod run_directory;
pub(crate) mod test_time_augmentation;
pub(crate) mod tflite;
