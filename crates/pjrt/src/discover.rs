//! Where plugins are: the first place that has one is taken, and all that were looked at can be shown.
//!
//! Nothing is loaded or run here, no Python either: its packages are folders.

use std::env;
use std::path::{Path, PathBuf};
use systole_ir::{Error, ErrorKind, Result, knobs};

/// What a plugin drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceleratorPlatform {
    /// Google's TPUs: `libtpu.so`.
    Tpu,
    /// NVIDIA's GPUs: `xla_cuda_plugin.so`.
    Cuda,
    /// This computer's processor, by XLA's kernels: `pjrt_c_api_cpu_plugin.so`.
    Xla,
}

impl AcceleratorPlatform {
    /// Those that need a device beside the processor.
    pub const ACCELERATORS: [AcceleratorPlatform; 2] = [AcceleratorPlatform::Tpu, AcceleratorPlatform::Cuda];

    /// What `--device` calls it: `tpu`, `cuda` or `xla`.
    pub fn name(self) -> &'static str {
        match self {
            AcceleratorPlatform::Tpu => "tpu",
            AcceleratorPlatform::Cuda => "cuda",
            AcceleratorPlatform::Xla => "xla",
        }
    }

    /// What `systole setup` calls it.
    pub fn setup(self) -> &'static str {
        match self {
            AcceleratorPlatform::Xla => "xla-cpu",
            _ => self.name(),
        }
    }

    /// The library's file name.
    pub fn file(self) -> &'static str {
        match self {
            AcceleratorPlatform::Tpu => "libtpu.so",
            AcceleratorPlatform::Cuda => "xla_cuda_plugin.so",
            AcceleratorPlatform::Xla => "pjrt_c_api_cpu_plugin.so",
        }
    }

    /// Folders of Python packages that hold it.
    fn packages(self) -> &'static [&'static str] {
        match self {
            AcceleratorPlatform::Tpu => &["libtpu"],
            AcceleratorPlatform::Cuda => &["jax_plugins/xla_cuda13", "jax_plugins/xla_cuda12"],
            AcceleratorPlatform::Xla => &["lammps_jax_pjrt_cpu"],
        }
    }
}

/// A path that was looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchPath {
    /// Which rule led there: `TPU_LIBRARY_PATH`, `Python packages`.
    pub rule: String,
    /// The file.
    pub path: PathBuf,
    /// Whether it is there.
    pub found: bool,
}

/// What a search found, and where it looked.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// The paths, in order; the last is the plugin where one was found.
    pub paths: Vec<SearchPath>,
}

impl Search {
    /// The plugin's file.
    pub fn plugin(&self) -> Option<&SearchPath> {
        self.paths.last().filter(|p| p.found)
    }

    /// The plugin's file, or an error that says what to do.
    pub fn require(&self, platform: AcceleratorPlatform) -> Result<PathBuf> {
        let name = platform.name();
        self.plugin().map(|p| p.path.clone()).ok_or_else(|| {
            let rules: Vec<String> = self.paths.iter().map(SearchPath::to_string).collect();
            Error::new(ErrorKind::Unsupported, format!("there is no PJRT plugin for {name} here"))
                .because(format!(
                    "looked at {}",
                    if rules.is_empty() { "nothing".into() } else { rules.join("; ") }
                ))
                .hint(format!(
                    "`systole setup {}` fetches {}; or name a file with SYSTOLE_PJRT_PLUGIN",
                    platform.setup(),
                    platform.file()
                ))
        })
    }

    /// Looks at a path; a file that the user named ends the search even where it is missing.
    fn look(&mut self, rule: &str, path: PathBuf, named: bool) -> bool {
        let found = path.is_file();
        self.paths.push(SearchPath { rule: rule.into(), path, found });
        found || named
    }
}

impl std::fmt::Display for SearchPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let missing = if self.found { "" } else { " (not there)" };
        write!(f, "{}: {}{missing}", self.rule, self.path.display())
    }
}

/// Searches for a platform's plugin. The order: `named` (from `--device pjrt:PATH`), `SYSTOLE_PJRT_PLUGIN`,
/// `TPU_LIBRARY_PATH`, installed Python packages, Systole's cache of plugins, the system's folders.
pub fn discover(platform: AcceleratorPlatform, named: Option<&Path>, cache: Option<&Path>) -> Search {
    let mut search = Search::default();
    let variable = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let ours = Some(knobs::PJRT_PLUGIN.get()).filter(|v| !v.is_empty()).map(PathBuf::from);
    // A variable that stands for an accelerator's plugin does not stand for XLA on the processor.
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

/// Folders of installed Python packages: of the interpreter that `SYSTOLE_PYTHON` names, of an active environment, of
/// the `python3` that would run, of the user.
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

/// `lib/python3.*/{site,dist}-packages`, the newest version first.
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
