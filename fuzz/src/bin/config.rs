//! Configuration files: any text is a configuration or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = systole::config::Config::parse(text, "fuzz");
    }
});
