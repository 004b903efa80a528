//! See `weights.rs`.
#![no_main]
#![allow(dead_code)]

#[path = "../weights.rs"]
mod weights;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weights::keras(bytes));
