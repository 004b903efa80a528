//! See `checkpoints.rs`.
#![no_main]
#![allow(dead_code)]

#[path = "../checkpoints.rs"]
mod checkpoints;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checkpoints::model(bytes));
