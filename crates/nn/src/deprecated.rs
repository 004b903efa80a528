//! Deprecated names of the previous version, kept for this release.

use crate::did_you_mean;

/// BigGAN, moved to [`applications`](crate::applications).
#[deprecated = "use systole_nn::applications::biggan"]
pub mod biggan {
    pub use crate::applications::biggan::*;
}

/// Deprecated: use [`did_you_mean::nearest`].
#[deprecated = "use systole_nn::did_you_mean::nearest"]
pub fn nearest<'a>(typed: &str, candidates: &[&'a str]) -> &'a str {
    did_you_mean::nearest(typed, candidates)
}

/// Deprecated: use [`did_you_mean::synonym`].
#[deprecated = "use systole_nn::did_you_mean::synonym"]
pub fn synonym<'a>(typed: &str, candidates: &[&'a str]) -> Option<&'a str> {
    did_you_mean::synonym(typed, candidates)
}

/// Deprecated: use [`did_you_mean::similar`].
#[deprecated = "use systole_nn::did_you_mean::similar"]
pub fn similar<'a>(typed: &str, candidates: &[&'a str]) -> Option<&'a str> {
    did_you_mean::similar(typed, candidates)
}

/// Deprecated: use [`did_you_mean::suggestion`].
#[deprecated = "use systole_nn::did_you_mean::suggestion"]
pub fn suggestion(typed: &str, known: &[&str]) -> String {
    did_you_mean::suggestion(typed, known)
}

/// Deprecated: use [`did_you_mean::plain_serde_error`].
#[deprecated = "use systole_nn::did_you_mean::plain_serde_error"]
pub fn in_plain_words(message: &str) -> (String, Option<String>) {
    did_you_mean::plain_serde_error(message)
}

/// Deprecated: use [`format_bytes`](crate::format_bytes).
#[deprecated = "use systole_nn::format_bytes"]
pub fn told_bytes(bytes: f64) -> String {
    crate::format_bytes(bytes)
}
