//! Location of the cache folder for downloads, plugins and compiled programs.

use std::path::PathBuf;
use systole_ir::knobs;

/// Returns the user's cache folder: `SYSTOLE_CACHE`, or else `systole` in the system's cache directory. `None` if
/// neither the variable nor a home directory is set.
pub fn cache_folder() -> Option<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(path) = Some(knobs::CACHE.get()).filter(|v| !v.is_empty()) {
        return Some(PathBuf::from(path));
    }
    let base = if cfg!(windows) {
        var("LOCALAPPDATA")?
    } else if cfg!(target_os = "macos") {
        var("HOME")?.join("Library/Caches")
    } else {
        var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache")))?
    };
    Some(base.join("systole"))
}
