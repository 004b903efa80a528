//! See `tokenizers.rs`.
#![no_main]
#![allow(dead_code)]

#[path = "../tokenizers.rs"]
mod tokenizers;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tokenizers::tokenizer(bytes));
