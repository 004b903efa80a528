//! The wheel for Python, as a user has it: built, installed into a fresh virtual environment beside JAX, and used through
//! `JAX_PLATFORMS=systole` alone.

#![allow(clippy::print_stdout, reason = "says what was skipped")]

mod program;

use program::Folder;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A fresh environment with the wheel in it, beside the packages of the Python that SYSTOLE_PYTHON names.
struct Environment {
    folder: Folder,
    python: PathBuf,
}

fn succeed(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let (said, wrong) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{command:?}:\n{said}\n{wrong}");
    said.into_owned()
}

impl Environment {
    /// `None`: there is no Python with the packages that a test needs.
    fn new(test: &str, packages: &str) -> Option<Environment> {
        let told = |why: &str| println!("SKIPPED {test}: {why}");
        let Ok(base) = std::env::var("SYSTOLE_PYTHON") else {
            told("SYSTOLE_PYTHON names no Python");
            return None;
        };
        let site = "import sysconfig; print(sysconfig.get_path('purelib'))";
        let found = Command::new(&base).args(["-c", &format!("import {packages}\n{site}")]).output();
        let Some(found) = found.ok().filter(|out| out.status.success()) else {
            told(&format!("{base} lacks one of {packages}"));
            return None;
        };
        let folder = Folder::new(&format!("wheel-{test}"));
        let wheel = built(&folder.path("dist"));
        succeed(Command::new(&base).args(["-m", "venv"]).arg(folder.path("venv")));
        let python = folder.path("venv/bin/python");
        let own = succeed(Command::new(&python).args(["-c", site]));
        let beside = Path::new(own.trim()).join("beside.pth");
        std::fs::write(beside, found.stdout).unwrap();
        let install =
            ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"];
        succeed(Command::new(&python).args(install).arg(wheel));
        Some(Environment { folder, python })
    }

    /// Runs a script, which checks its own numbers.
    fn run(&self, script: &str, devices: usize) -> String {
        let mut command = Command::new(&self.python);
        command.arg("-c").arg(script).current_dir(&self.folder.0).env("SYSTOLE_DEVICES", devices.to_string());
        command.env("JAX_PLATFORMS", "systole").env("TPU_SKIP_MDS_QUERY", "1");
        let said = succeed(&mut command);
        assert!(said.ends_with("the end\n"), "{said}");
        said
    }
}

/// The wheel of what cargo has built for the tests.
fn built(to: &Path) -> PathBuf {
    let exe = std::env::current_exe().expect("a test has a path");
    let plugin =
        exe.ancestors().skip(1).take(2).map(|d| d.join("libsystole_plugin.so")).find(|p| p.is_file());
    let plugin = plugin.expect("`cargo test --workspace` builds the plugin's library");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/python/wheel.py");
    let mut command = Command::new("python3");
    command.arg(script).arg(env!("CARGO_PKG_VERSION")).arg(env!("CARGO_BIN_EXE_systole")).arg(plugin).arg(to);
    PathBuf::from(succeed(&mut command).trim())
}

#[test]
fn twenty_programs_a_sharded_loop_and_systole_run_through_the_wheel() {
    let Some(e) = Environment::new("programs", "jax, scipy") else { return };
    e.run(include_str!("wheel/programs.py"), 1);
    e.run(include_str!("wheel/sharded.py"), 8);
    e.run(include_str!("wheel/module.py"), 1);
    // It stands below JAX's own CPU.
    let usual =
        "import jax; assert jax.default_backend() == 'cpu'; assert jax.devices('systole'); print('the end')";
    let mut command = Command::new(&e.python);
    assert_eq!(succeed(command.arg("-c").arg(usual).env("TPU_SKIP_MDS_QUERY", "1")), "the end\n");
    succeed(Command::new(e.folder.path("venv/bin/systole")).arg("--version"));
}

#[test]
fn flax_trains_through_the_wheel() {
    let Some(e) = Environment::new("flax", "jax, flax, optax") else { return };
    e.run(include_str!("wheel/flax_training.py"), 1);
}
