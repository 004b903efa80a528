//! What commands share of the command line: common options, exit codes, suggestions.

pub(crate) mod clap_root;
pub(crate) mod common;
pub(crate) mod exit_status;
pub(crate) mod plugins;
pub(crate) mod suggest;
