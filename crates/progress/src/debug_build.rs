//! One-time warning that the program is a debug build.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static SAID: AtomicBool = AtomicBool::new(false);

/// Returns the debug-build warning on the first call, in debug builds only; otherwise `None`.
pub fn note() -> Option<&'static str> {
    (cfg!(debug_assertions) && !SAID.swap(true, Relaxed)).then_some(
        "This is a debug build: it trains several times slower than with `cargo run --release`, and 20 to 40 times without \
         opt-level = 2 under [profile.dev]",
    )
}
