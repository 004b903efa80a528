//! What commands share of the command line: common options, exit codes, suggestions.

pub(crate) mod common;
pub(crate) mod outcome;
pub(crate) mod plugins;
pub(crate) mod root;
pub(crate) mod suggest;
