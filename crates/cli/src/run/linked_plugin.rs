//! The device `pjrt`: a plugin file if one is named, otherwise Systole's own plugin, which is linked into this program.

use std::sync::Arc;
use systole_devices::{compile_cache, named};
use systole_ir::{Result, knobs};
use systole_runtime::{Backend, BackendProvider};

/// Returns the provider of `pjrt`; register it before those of the library, where `pjrt` requires a plugin file.
pub(crate) fn provider() -> BackendProvider {
    BackendProvider { name: "pjrt", rank: 0, open }
}

fn open() -> Result<Arc<dyn Backend>> {
    match knobs::PJRT_PLUGIN.get() {
        file if file.is_empty() => systole_plugin::open_linked(compile_cache()?),
        file => named(&format!("pjrt:{file}")),
    }
}
