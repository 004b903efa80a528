//! Says, once, that the program was built for debugging.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static SAID: AtomicBool = AtomicBool::new(false);

/// What to say of this build, the first time.
pub fn note() -> Option<&'static str> {
    (cfg!(debug_assertions) && !SAID.swap(true, Relaxed)).then_some(
        "This is a debug build: it trains several times slower than with `cargo run --release`, and 20 to 40 times without \
         opt-level = 2 under [profile.dev]",
    )
}
