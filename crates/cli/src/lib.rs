//! The `systole` command-line program as a library.
//!
//! `commands/` has the table of commands and one file per command, `run/` the code that training commands share,
//! `models/` opens models and data, `render/` prints output, `args/` has the shared command-line options.

mod args;
mod commands;
mod models;
mod render;
mod run;

pub use commands::{command, main};
pub use run::out_of_memory::report as report_out_of_memory;
