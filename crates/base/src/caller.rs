//! Formats a caller location as `file:line` if it is in user code, not in Systole or the standard library.

use std::panic::Location;

/// Formats a caller location in user code as `src/main.rs:12`; `None` in Systole's own crates and the standard library,
/// where calls through `into` appear to come from.
///
/// ```
/// use std::panic::Location;
/// let here = systole_base::user_line(Location::caller());
/// assert!(here.is_some_and(|line| line.contains(".rs:")));
/// ```
pub fn user_line(place: &Location) -> Option<String> {
    let file = place.file();
    let is_rusts = file.starts_with("/rustc/") || file.contains("/library/core/");
    (!is_rusts && !is_ours(file!(), file)).then(|| format!("{}:{}", place.file(), place.line()))
}

/// Whether `file` is a source file of a Systole crate, given the path of this file (`this`). Examples and tests count as user code.
fn is_ours(this: &str, file: &str) -> bool {
    if let Some(root) = this.strip_suffix("crates/base/src/caller.rs") {
        let inner = file.strip_prefix(root).unwrap_or_default();
        let in_crate = inner.strip_prefix("crates/").and_then(|rest| rest.split_once('/'));
        return inner.starts_with("src/") || in_crate.is_some_and(|(_, rest)| rest.starts_with("src/"));
    }
    // In a registry folder: `…/systole-base-0.1.0/src/caller.rs`.
    let crates = this.find("systole-base").and_then(|at| this.get(..at));
    let inner = crates.and_then(|crates| file.strip_prefix(crates)).unwrap_or_default();
    inner.starts_with("systole") && inner.split_once('/').is_some_and(|(_, rest)| rest.starts_with("src/"))
}

#[cfg(test)]
#[path = "../tests/unit/caller.rs"]
mod tests;
