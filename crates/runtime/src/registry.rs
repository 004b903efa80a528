//! The list of backends of this program. `ref` and `null` are always in it; the facade adds the others.

use crate::{Backend, NullBackend, ReferenceBackend};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use systole_ir::{Error, ErrorKind, Result, knobs};

/// How to open a backend.
#[derive(Clone, Copy)]
pub struct BackendProvider {
    /// The name users choose it by.
    pub name: &'static str,
    /// `auto` takes the openable backend of the highest rank.
    pub rank: u32,
    /// Opens it; called once.
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

/// Adds a backend; a second one of the same name is ignored.
pub fn register(provider: BackendProvider) {
    let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    if registry.providers.iter().all(|p| p.name != provider.name) {
        registry.providers.push(provider);
    }
}

/// Names of the backends of this program, best first.
pub fn provider_names() -> Vec<&'static str> {
    let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    registry.providers.sort_by_key(|p| std::cmp::Reverse(p.rank));
    registry.providers.iter().map(|p| p.name).collect()
}

/// The backend of a name; `auto` means the knob `SYSTOLE_BACKEND`, and there the best that opens.
///
/// # Errors
/// Those of opening it; for `auto` the last, or the first of a wrong setting: nothing slower takes the place of what was
/// asked for.
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
        Error::new(ErrorKind::Config, format!("there is no backend `{chosen}`"))
            .hint(format!("one of: auto, {}", names.join(", ")))
    }))
}
