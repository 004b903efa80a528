//! Opens the plugin as a backend of the program that it is linked into, without a shared library.

use crate::table::GetPjrtApi;
use std::sync::Arc;
use systole_ir::Result;
use systole_pjrt::{CompileCache, Plugin, open_plugin};
use systole_runtime::Backend;

/// Opens the devices of this plugin; compiled programs are cached in `cache`. The plugin's options are those in
/// `SYSTOLE_PJRT_OPTIONS`: `num_devices`, and the address and rank if several processes are hosts of one slice.
///
/// # Errors
/// If an option is invalid, or another process does not answer.
pub fn open_linked(cache: Option<CompileCache>) -> Result<Arc<dyn Backend>> {
    // SAFETY: the table is a static of this crate, complete and constant.
    let plugin = unsafe { Plugin::linked(GetPjrtApi().cast()) }?;
    open_plugin(&plugin, cache)
}
