//! Where downloads, plugins and compiled programs are kept.

use std::path::PathBuf;
use systole_ir::knobs;

/// The user's folder for what can be made or fetched again: `SYSTOLE_CACHE`, else a folder `systole` where the system keeps
/// such things. `None` where neither that nor a home is known.
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
