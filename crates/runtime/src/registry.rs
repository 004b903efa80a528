//! Registry of backends, and the choice of one by name. `ref` and `null` are built in; the facade crate registers the
//! others.

use crate::{Backend, NullBackend, ReferenceBackend};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use systole_ir::{ErrorKind, Result, err, knobs};

/// A backend that can be opened by name.
#[derive(Clone, Copy)]
pub struct BackendProvider {
    /// Name for `--device` and `SYSTOLE_BACKEND`.
    pub name: &'static str,
    /// Priority: `auto` opens the available backend of the highest rank.
    pub rank: u32,
    /// Opens the backend; called once.
    pub open: fn() -> Result<Arc<dyn Backend>>,
}

#[derive(Default)]
struct BackendRegistry {
    providers: Vec<BackendProvider>,
    open: BTreeMap<&'static str, Arc<dyn Backend>>,
}

static REGISTRY: LazyLock<Mutex<BackendRegistry>> = LazyLock::new(|| {
    let mut registry = BackendRegistry::default();
    registry.providers.push(BackendProvider {
        name: "ref",
        rank: 1,
        open: || Ok(Arc::new(ReferenceBackend)),
    });
    registry.providers.push(BackendProvider { name: "null", rank: 0, open: || Ok(Arc::new(NullBackend)) });
    Mutex::new(registry)
});

/// Registers a backend; ignored if the name is already registered.
pub fn register(provider: BackendProvider) {
    let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    if registry.providers.iter().all(|p| p.name != provider.name) {
        registry.providers.push(provider);
    }
}

/// Names of all registered backends, highest rank first.
pub fn provider_names() -> Vec<&'static str> {
    let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    registry.providers.sort_by_key(|p| std::cmp::Reverse(p.rank));
    registry.providers.iter().map(|p| p.name).collect()
}

/// Opens the backend `name`. `auto` means the value of `SYSTOLE_BACKEND`; if that is `auto` too, the highest-ranked
/// backend that opens.
///
/// # Errors
/// If the backend cannot be opened. For `auto`: the error of the last backend tried, or the first configuration error,
/// which is never skipped in favor of a slower backend.
pub fn backend(name: &str) -> Result<Arc<dyn Backend>> {
    let chosen = if name == "auto" { knobs::BACKEND.get() } else { name.to_string() };
    let names = provider_names();
    let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    let mut last = None;
    for candidate in names.iter().filter(|n| chosen == "auto" || chosen == **n) {
        if let Some(open) = registry.open.get(candidate) {
            return Ok(open.clone());
        }
        let Some(provider) = registry.providers.iter().find(|p| p.name == *candidate).copied() else {
            continue;
        };
        match (provider.open)() {
            Ok(backend) => {
                registry.open.insert(provider.name, backend.clone());
                return Ok(backend);
            }
            Err(e) if e.kind() == ErrorKind::Config => return Err(e),
            Err(e) => last = Some(e),
        }
    }
    Err(last.unwrap_or_else(|| {
        err!(Config, "unknown backend `{chosen}`").hint(format!("choose one of: auto, {}", names.join(", ")))
    }))
}
