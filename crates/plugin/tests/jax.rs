//! Tests of JAX on the plugin: each case is a Python script that checks its results with NumPy.

#![allow(clippy::print_stdout, reason = "says what was skipped")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Returns the plugin library next to the tests.
fn library() -> PathBuf {
    let exe = std::env::current_exe().expect("a test has a path");
    let found = exe.ancestors().skip(1).take(2).map(|d| d.join("libsystole_plugin.so")).find(|p| p.is_file());
    found.expect("cargo builds the library with its tests")
}

/// Creates a directory of Python modules in which JAX finds the plugin, as in the wheel.
fn modules() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("jax");
        let package = folder.join("jax_plugins/systole");
        std::fs::create_dir_all(&package).expect("a folder is made");
        for (name, text) in [
            ("__init__.py", include_str!("../../../packaging/python/jax_plugins/systole/__init__.py")),
            ("callbacks.py", include_str!("../../../packaging/python/jax_plugins/systole/callbacks.py")),
            ("buffers.py", include_str!("../../../packaging/python/jax_plugins/systole/buffers.py")),
            (
                "sharding_inspection.py",
                include_str!("../../../packaging/python/jax_plugins/systole/sharding_inspection.py"),
            ),
            (
                "partitioning_rules.py",
                include_str!("../../../packaging/python/jax_plugins/systole/partitioning_rules.py"),
            ),
            ("ffi.py", include_str!("../../../packaging/python/jax_plugins/systole/ffi.py")),
        ] {
            std::fs::write(package.join(name), text).expect("a file is written");
        }
        let link = package.join("libsystole_plugin.so");
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(library(), link).expect("a link is made");
        folder
    })
}

/// Start of every script.
const BEGIN: &str = "
import threading, tempfile, os, jax.experimental
import numpy as np, jax, jax.numpy as jnp
from functools import partial
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
assert jax.devices()[0].platform == 'systole'
def close(a, b, tolerance=1e-5):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)
def mesh(*sizes):
    return Mesh(np.array(jax.devices()).reshape(sizes), ('x', 'y')[:len(sizes)])
";

/// Runs a script on this number of devices.
fn run(name: &str, devices: usize, script: &str) {
    let Ok(python) = std::env::var("SYSTOLE_PYTHON") else {
        println!("SKIPPED {name}: SYSTOLE_PYTHON names no Python with JAX");
        return;
    };
    let has_jax = Command::new(&python).args(["-c", "import jax"]).output();
    if !has_jax.is_ok_and(|out| out.status.success()) {
        println!("SKIPPED {name}: {python} has no JAX");
        return;
    }
    let out = Command::new(python)
        .arg("-c")
        .arg(format!("{BEGIN}{script}\nprint('the end')"))
        .env("PYTHONPATH", modules())
        .env("JAX_PLATFORMS", "systole,cpu")
        .env("SYSTOLE_DEVICES", devices.to_string())
        .env("TPU_SKIP_MDS_QUERY", "1")
        .output()
        .expect("Python starts");
    let (said, wrong) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && said.ends_with("the end\n"), "{name}: {said}\n{wrong}");
}

/// Defines a test for each script in `tests/jax`.
macro_rules! scripts {
    ($($name:ident: $devices:literal;)*) => {
        $(#[test]
        fn $name() {
            run(stringify!($name), $devices, include_str!(concat!("jax/", stringify!($name), ".py")));
        })*
    };
}

scripts! {
    arithmetic: 1;
    training: 1;
    control_flow: 1;
    random_numbers: 1;
    element_types: 1;
    donation: 2;
    threads: 2;
    clients: 2;
    errors: 1;
    profiler: 1;
    what_is_told: 1;
    kept_programs: 1;
    several_devices: 8;
    manual_computations: 8;
    memory: 1;
    memory_kinds: 2;
    exchange: 1;
    layouts: 1;
    decompositions: 1;
    general_matrices: 1;
    callbacks: 1;
    callbacks_on_devices: 8;
    buffer_callbacks: 2;
    sharding_inspection: 8;
    distributed: 1;
    ffi_handlers: 2;
    signals: 1;
}
