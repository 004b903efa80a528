//! Opens what a command names: saved models, run folders, TOML files, ONNX and .tflite files, programs.

pub(crate) mod accuracy;
pub(crate) mod answerer;
pub(crate) mod known;
pub(crate) mod lite;
pub(crate) mod onnx;
pub(crate) mod program;
pub(crate) mod run_folder;
pub(crate) mod target;
pub(crate) mod tta;
