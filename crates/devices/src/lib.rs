//! Devices by name: the CPU engine, and accelerators behind PJRT plugins.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use systole_dist::Strategy;
use systole_ir::{Error, ErrorKind, Result, knobs};
use systole_pjrt::{AcceleratorPlatform, CompileCache, Search, TpuClusterResolver};
use systole_runtime::{Backend, BackendProvider, cache_folder};

/// Where `systole setup` puts plugins.
pub fn plugin_cache() -> Option<PathBuf> {
    cache_folder().map(|c| c.join("plugins"))
}

/// The tutorials' `TPUStrategy`: each chip of the TPU, those of other hosts of the slice too, takes a part of every batch.
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
/// As [`TpuClusterResolver::connect`].
pub fn tpu_strategy(tpu: &TpuClusterResolver) -> Result<Strategy> {
    tpu.connect()?;
    Ok(Strategy::data_parallel())
}

/// Where compiled programs are kept; `None` where `SYSTOLE_COMPILE_CACHE` is `off` or there is no folder for downloads.
///
/// # Errors
/// When the knob is neither `off` nor a number of bytes.
pub fn compile_cache() -> Result<Option<CompileCache>> {
    if knobs::COMPILE_CACHE.get() == "off" {
        return Ok(None);
    }
    let limit = knobs::COMPILE_CACHE.get_bytes()?.unwrap_or_default();
    Ok(cache_folder().map(|c| CompileCache::new(c.join("compiled"), limit as u64)))
}

/// Where a platform's plugin is, and where it was looked for. `named` is a file that the user gave.
pub fn find_plugin(platform: AcceleratorPlatform, named: Option<&Path>) -> Search {
    systole_pjrt::discover(platform, named, plugin_cache().as_deref())
}

/// `cpu`, `tpu`, `cuda`, `xla` and `pjrt`. `tpu` and `cuda` are preferred to the CPU where the machine has such a device;
/// elsewhere nothing of theirs is loaded. The last two are used only where they are asked for.
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
        let e = Error::new(ErrorKind::Config, "the device `pjrt` needs a plugin's file");
        return Err(e.hint("write it as pjrt:PATH, or set SYSTOLE_PJRT_PLUGIN"));
    }
    systole_pjrt::open_file(Path::new(&path), compile_cache()?)
}

/// The device of a name as `--device` takes it: `cpu`, `ref`, `xla`, `pjrt:FILE`; [`providers`] were registered before.
///
/// # Errors
/// When there is no such device, or it cannot be opened.
pub fn named(name: &str) -> Result<Arc<dyn Backend>> {
    match name.split_once(':') {
        Some(("pjrt", file)) if !file.is_empty() => {
            systole_pjrt::open_file(Path::new(file), compile_cache()?)
        }
        _ => systole_runtime::backend(name),
    }
}
