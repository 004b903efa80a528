//! Test binary for training runs: data, settings, progress, results, kills and resumed runs.

#[path = "../program/mod.rs"]
mod program;

mod arrays;
mod augment;
mod callbacks;
mod class_weight;
mod compat;
mod determinism;
mod distributed;
mod faults;
mod fine_tune;
mod hosts;
mod hugging_face;
mod int8_limits;
mod limits;
mod lr_find;
mod others;
mod outcome;
mod own_data;
mod pictures;
mod records;
mod resume;
mod run_data;
mod run_report;
mod same_bits;
mod saved_model;
mod sentences;
mod small_images;
mod small_tables;
mod sweep;
mod tensorboard;
mod terminal;
mod text;
mod tui;
