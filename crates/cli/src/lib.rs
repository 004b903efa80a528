//! The `systole` program as a library: `commands/` has the table of commands and one file for each, `run/` what training commands
//! share, `models/` what opens models and data, `render/` what is printed, `args/` what is common to the command line.

mod args;
mod commands;
mod models;
mod render;
mod run;

pub use commands::{command, main};
