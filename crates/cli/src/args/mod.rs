//! Shared command-line code: common options, exit codes, suggestions for typos.

pub(crate) mod clap_root;
pub(crate) mod common;
pub(crate) mod download;
pub(crate) mod exit_status;
pub(crate) mod grouped_help;
pub(crate) mod missing_path;
pub(crate) mod plugins;
pub(crate) mod suggest;
