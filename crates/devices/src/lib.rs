//! Opens devices by name: the CPU engine, and accelerators through PJRT plugins; locates plugins and the compile cache.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use systole_dist::Strategy;
use systole_ir::{Result, err, knobs};
use systole_pjrt::{AcceleratorPlatform, CompileCache, Search, TpuClusterResolver};
use systole_runtime::{Backend, BackendProvider, cache_folder};

/// Returns the directory where `systole setup` installs plugins.
pub fn plugin_cache() -> Option<PathBuf> {
    cache_folder().map(|c| c.join("plugins"))
}

/// Returns the equivalent of TensorFlow's `TPUStrategy`: data parallelism over all chips of the TPU slice, including
/// other hosts'.
///
/// ```
/// use systole_devices::tpu_strategy;
/// use systole_pjrt::TpuClusterResolver;
/// let tpu = TpuClusterResolver::new("")?;
/// match tpu_strategy(&tpu) {
///     Ok(strategy) => println!("train with Compile {{ strategy, .. }}: {strategy}"),
///     Err(e) => println!("{e}"),
/// }
/// # Ok::<(), systole_ir::Error>(())
/// ```
///
/// # Errors
/// See [`TpuClusterResolver::connect`].
pub fn tpu_strategy(tpu: &TpuClusterResolver) -> Result<Strategy> {
    tpu.connect()?;
    Ok(Strategy::data_parallel())
}

/// Opens the cache of compiled programs; `None` if `SYSTOLE_COMPILE_CACHE` is `off` or there is no cache directory.
///
/// # Errors
/// If the variable is neither `off` nor a number of bytes.
pub fn compile_cache() -> Result<Option<CompileCache>> {
    if knobs::COMPILE_CACHE.get() == "off" {
        return Ok(None);
    }
    let limit = knobs::COMPILE_CACHE.get_bytes()?.unwrap_or_default();
    Ok(cache_folder().map(|c| CompileCache::new(c.join("compiled"), limit as u64)))
}

/// Searches for a platform's plugin and records the searched locations. `named` is a file given by the user.
pub fn find_plugin(platform: AcceleratorPlatform, named: Option<&Path>) -> Search {
    systole_pjrt::discover(platform, named, plugin_cache().as_deref())
}

/// Returns the providers `cpu`, `tpu`, `cuda`, `xla` and `pjrt`. `tpu` and `cuda` are preferred to the CPU if the
/// machine has such a device; otherwise nothing is loaded for them. The last two are used only on request.
pub fn providers() -> [BackendProvider; 5] {
    [
        systole_cpu::provider(),
        BackendProvider { name: "tpu", rank: 30, open: || open(AcceleratorPlatform::Tpu) },
        BackendProvider { name: "cuda", rank: 20, open: || open(AcceleratorPlatform::Cuda) },
        BackendProvider { name: "xla", rank: 0, open: || open(AcceleratorPlatform::Xla) },
        BackendProvider { name: "pjrt", rank: 0, open: open_named },
    ]
}

fn open(platform: AcceleratorPlatform) -> Result<Arc<dyn Backend>> {
    systole_pjrt::open(platform, &find_plugin(platform, None), compile_cache()?)
}

fn open_named() -> Result<Arc<dyn Backend>> {
    let path = knobs::PJRT_PLUGIN.get();
    if path.is_empty() {
        let e = err!(Config, "the device `pjrt` requires a plugin file");
        return Err(e.hint("pass pjrt:PATH, or set SYSTOLE_PJRT_PLUGIN"));
    }
    systole_pjrt::open_file(Path::new(&path), compile_cache()?)
}

/// Opens a device backend by the name that `--device` accepts: `cpu`, `ref`, `xla`, `pjrt:FILE`. Register [`providers`]
/// first.
///
/// # Errors
/// If the device does not exist or cannot be opened.
pub fn named(name: &str) -> Result<Arc<dyn Backend>> {
    match name.split_once(':') {
        Some(("pjrt", file)) if !file.is_empty() => {
            systole_pjrt::open_file(Path::new(file), compile_cache()?)
        }
        _ => systole_runtime::backend(name),
    }
}
