//! Error for a missing file or folder, with a similarly named one next to it ("did you mean").

use std::path::{Path, PathBuf};
use systole_ir::{Error, err};
use systole_nn::did_you_mean::similar;

/// Error for a missing path: the first missing ancestor and a similarly named file there.
pub(crate) fn missing(path: &Path) -> Error {
    let e = err!(Io, "no such file or folder: {}", path.display());
    let first = path.ancestors().filter(|p| !p.as_os_str().is_empty() && !p.exists()).last();
    let e = match first {
        Some(first) if first != path => e.because(format!("`{}` does not exist", first.display())),
        _ => e,
    };
    e.hint_command(match beside(first.unwrap_or(path)) {
        Some(other) => format!("check the path; did you mean `{}`?", other.display()),
        None => "check the path and the current directory".into(),
    })
}

/// Finds a file with a similar name in the folder of a missing path.
fn beside(path: &Path) -> Option<PathBuf> {
    let folder = path.parent().filter(|f| !f.as_os_str().is_empty());
    let entries = std::fs::read_dir(folder.unwrap_or(Path::new("."))).ok()?;
    let names: Vec<String> = entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.sort_unstable();
    let name = path.file_name()?.to_str()?;
    Some(folder.map_or_else(PathBuf::new, Path::to_path_buf).join(similar(name, &names)?))
}
