//! Finds PJRT plugins: uses the first location that has one, and records all that were searched.
//!
//! Nothing is loaded or run, not even Python: its packages are directories.

use std::env;
use std::path::{Path, PathBuf};
use systole_ir::{Result, err, knobs};

/// Accelerator platform of a PJRT plugin: TPU, CUDA or XLA on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceleratorPlatform {
    /// Google TPUs: `libtpu.so`.
    Tpu,
    /// NVIDIA GPUs: `xla_cuda_plugin.so`.
    Cuda,
    /// The CPU with XLA's kernels: `pjrt_c_api_cpu_plugin.so`.
    Xla,
}

impl AcceleratorPlatform {
    /// Accelerator platforms that need a device other than the CPU.
    pub const ACCELERATORS: [AcceleratorPlatform; 2] = [AcceleratorPlatform::Tpu, AcceleratorPlatform::Cuda];

    /// Returns the platform's name for `--device`: `tpu`, `cuda` or `xla`.
    pub fn name(self) -> &'static str {
        match self {
            AcceleratorPlatform::Tpu => "tpu",
            AcceleratorPlatform::Cuda => "cuda",
            AcceleratorPlatform::Xla => "xla",
        }
    }

    /// Returns the platform's name for `systole setup`.
    pub fn setup(self) -> &'static str {
        match self {
            AcceleratorPlatform::Xla => "xla-cpu",
            _ => self.name(),
        }
    }

    /// Returns the file name of the platform's plugin library.
    pub fn file(self) -> &'static str {
        match self {
            AcceleratorPlatform::Tpu => "libtpu.so",
            AcceleratorPlatform::Cuda => "xla_cuda_plugin.so",
            AcceleratorPlatform::Xla => "pjrt_c_api_cpu_plugin.so",
        }
    }

    /// Returns the Python package directories that contain it.
    fn packages(self) -> &'static [&'static str] {
        match self {
            AcceleratorPlatform::Tpu => &["libtpu"],
            AcceleratorPlatform::Cuda => &["jax_plugins/xla_cuda13", "jax_plugins/xla_cuda12"],
            AcceleratorPlatform::Xla => &["lammps_jax_pjrt_cpu"],
        }
    }
}

/// A path where a plugin was searched, and whether it was found.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchPath {
    /// Rule for searching it: `TPU_LIBRARY_PATH`, `Python packages`.
    pub rule: String,
    /// The file.
    pub path: PathBuf,
    /// Whether it exists.
    pub found: bool,
}

/// Result of searching for a plugin, with all searched paths.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// Searched paths in order; if a plugin was found, it is the last one.
    pub paths: Vec<SearchPath>,
}

impl Search {
    /// Returns the plugin file that was found.
    pub fn plugin(&self) -> Option<&SearchPath> {
        self.paths.last().filter(|p| p.found)
    }

    /// Returns the plugin file that was found, or an error with a hint.
    pub fn require(&self, platform: AcceleratorPlatform) -> Result<PathBuf> {
        let name = platform.name();
        self.plugin().map(|p| p.path.clone()).ok_or_else(|| {
            let rules: Vec<String> = self.paths.iter().map(SearchPath::to_string).collect();
            err!(Unsupported, "no PJRT plugin for `{name}` was found on this machine")
                .because(format!(
                    "searched {}",
                    if rules.is_empty() { "nothing".into() } else { rules.join("; ") }
                ))
                .hint(format!(
                    "run `systole setup {}` to download {}, or set SYSTOLE_PJRT_PLUGIN to a file",
                    platform.setup(),
                    platform.file()
                ))
        })
    }

    /// Searches a path; a file named by the user ends the search even if it does not exist.
    fn look(&mut self, rule: &str, path: PathBuf, named: bool) -> bool {
        let found = path.is_file();
        self.paths.push(SearchPath { rule: rule.into(), path, found });
        found || named
    }
}

impl std::fmt::Display for SearchPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let missing = if self.found { "" } else { " (not found)" };
        write!(f, "{}: {}{missing}", self.rule, self.path.display())
    }
}

/// Searches for a platform's plugin, in this order: `named` (from `--device pjrt:PATH`), `SYSTOLE_PJRT_PLUGIN`,
/// `TPU_LIBRARY_PATH`, installed Python packages, Systole's plugin cache, system directories.
pub fn discover(platform: AcceleratorPlatform, named: Option<&Path>, cache: Option<&Path>) -> Search {
    let mut search = Search::default();
    let variable = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let ours = Some(knobs::PJRT_PLUGIN.get()).filter(|v| !v.is_empty()).map(PathBuf::from);
    // A variable for an accelerator's plugin does not apply to XLA on the CPU.
    let fits = |path: &PathBuf| {
        platform != AcceleratorPlatform::Xla || path.file_name().is_some_and(|n| n == platform.file())
    };
    let ours = ours.filter(fits);
    let theirs = variable("TPU_LIBRARY_PATH").filter(|_| platform == AcceleratorPlatform::Tpu);
    let given = [
        ("named", named.map(Path::to_path_buf)),
        (knobs::PJRT_PLUGIN.name, ours),
        ("TPU_LIBRARY_PATH", theirs),
    ];
    for (rule, path) in given {
        if path.is_some_and(|p| search.look(rule, p, true)) {
            return search;
        }
    }
    let file = platform.file();
    for packages in python_packages() {
        for package in platform.packages() {
            if search.look("Python packages", packages.join(package).join(file), false) {
                return search;
            }
        }
    }
    if cache.is_some_and(|c| search.look("Systole's cache", c.join(platform.name()).join(file), false)) {
        return search;
    }
    for folder in ["/lib", "/usr/lib", "/usr/local/lib", "/usr/lib/x86_64-linux-gnu"] {
        if search.look("system", Path::new(folder).join(file), false) {
            return search;
        }
    }
    search
}

/// Returns the directories of installed Python packages: for `SYSTOLE_PYTHON`, the active environment, the `python3` in
/// PATH, and the user.
fn python_packages() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let prefix_of = |python: &Path| Some(python.parent()?.parent()?.to_path_buf());
    let named = Some(knobs::PYTHON.get()).filter(|v| !v.is_empty());
    let variable = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let on_path = env::var_os("PATH")
        .and_then(|path| env::split_paths(&path).map(|d| d.join("python3")).find(|python| python.is_file()));
    let prefixes = [
        named.as_ref().and_then(|p| prefix_of(Path::new(p))),
        variable("VIRTUAL_ENV"),
        variable("CONDA_PREFIX"),
        on_path.and_then(|p| prefix_of(&p)),
        variable("HOME").map(|home| home.join(".local")),
        Some("/usr/local".into()),
        Some("/usr".into()),
    ];
    for prefix in prefixes.into_iter().flatten() {
        for folder in packages_below(&prefix.join("lib")) {
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        }
    }
    folders
}

/// Returns `lib/python3.*/{site,dist}-packages`, newest version first.
fn packages_below(lib: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(lib).into_iter().flatten().flatten();
    let mut versions: Vec<(u32, PathBuf)> = entries
        .filter_map(|e| {
            let name = e.file_name();
            let minor = name.to_str()?.strip_prefix("python3")?.trim_start_matches('.').to_string();
            Some((minor.parse().unwrap_or(0), e.path()))
        })
        .collect();
    versions.sort_by_key(|(minor, _)| std::cmp::Reverse(*minor));
    let folders = versions.into_iter().flat_map(|(_, v)| [v.join("site-packages"), v.join("dist-packages")]);
    folders.filter(|f| f.is_dir()).collect()
}
