//! Test binary for the command line: commands, their output, wrong input and hints. `tests/runs` holds the training
//! tests.

#[path = "../program/mod.rs"]
mod program;

mod bad_input;
mod bench;
mod cloud;
mod commands;
mod compare;
mod data;
mod data_fetch;
mod formats;
mod fuzz;
mod hints;
mod plan;
mod pretrained;
mod programs;
mod run;
mod selftest;
mod suggestions;
