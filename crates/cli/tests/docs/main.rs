//! The documents, the examples and the structure of the workspace: what is written is so, and what is shown runs.

#[path = "../program/mod.rs"]
mod program;

mod architecture;
mod documents;
mod examples;
mod readme;
mod tutorials;
