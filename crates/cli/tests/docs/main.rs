//! Test binary for the documents, the examples and the structure of the workspace: statements are true and examples
//! run.

#[path = "../program/mod.rs"]
mod program;

mod architecture;
mod documents;
mod examples;
mod old_names;
mod readme;
mod tutorials;
