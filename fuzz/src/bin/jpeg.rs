//! See `targets.rs`.
#![no_main]
#![allow(dead_code)]

#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(
    // The general decoder's panics are caught where it is called. libFuzzer's own hook would end the program before that;
    // without one, it ends where a panic is not caught.
    init: std::panic::set_hook(Box::new(|_| {})),
    |bytes: &[u8]| targets::jpeg(bytes)
);
