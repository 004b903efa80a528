//! Tests with programs exported by JAX: bytecode and text import alike, and jaxlib reads what is written. Requires a
//! Python with JAX, set by SYSTOLE_PYTHON.

#![allow(clippy::print_stdout, reason = "a test that is skipped says so")]

mod common;

use common::bare;
use std::path::{Path, PathBuf};
use std::process::Command;
use systole_bytecode::{StablehloVersion, parse, version_of, write};
use systole_mlir::syntax::MlirModule;

/// Runs the Python script of this directory and returns its output; `None` without Python.
fn python(what: &str, folder: &Path) -> Option<String> {
    let python = std::env::var("SYSTOLE_PYTHON").ok()?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs.py");
    let out = Command::new(python).arg(script).arg(what).arg(folder).output().expect("Python runs");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
    Some(text)
}

/// Imports a module and prints it, or returns the error.
fn imported(module: &MlirModule) -> Result<String, String> {
    let program = systole_mlir::import::program(module).map_err(|e| e.what().to_owned())?.program;
    Ok(systole_ir::text::print_program(&program.graph, &program.donated, program.spread.as_ref()))
}

/// Checks one program; the versions that could be written are saved next to it.
fn check(path: &Path) -> usize {
    let name = path.display();
    let bytes = std::fs::read(path).unwrap();
    let text = std::fs::read_to_string(path.with_extension("mlir")).unwrap();
    let module = parse(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
    let of_text = systole_mlir::text::parse(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(imported(&module), imported(&of_text), "{name}");
    let names = |m: &MlirModule| m.functions.iter().map(|f| f.names.clone()).collect::<Vec<_>>();
    assert_eq!(names(&module), names(&of_text), "{name}");

    let version = version_of(&bytes).expect("a portable artifact");
    let canonical = bare(parse(&write(&of_text, version).unwrap()).unwrap());
    let module = bare(module);
    assert!(canonical == module, "{name}: otherwise than in text");

    std::fs::write(path.with_extension("text.again"), systole_mlir::text::write(&module)).unwrap();
    let mut written = 1;
    for minor in [0, 1, 4, 6, 9, 12, 15, 17] {
        match write(&module, StablehloVersion::new(1, minor, 0)) {
            Ok(again) => {
                assert!(bare(parse(&again).unwrap()) == module, "{name} at 1.{minor}.0");
                std::fs::write(path.with_extension(format!("{minor}.again")), again).unwrap();
                written += 1;
            }
            Err(e) => {
                assert!(minor < 9 && e.what().contains("requires StableHLO 1."), "{name} at 1.{minor}.0: {e}")
            }
        }
    }
    written
}

#[test]
fn artifacts_of_jax_are_as_their_text_and_jax_reads_ours() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("artifacts");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let Some(exported) = python("export", &folder) else {
        println!("SKIPPED artifacts_of_jax: SYSTOLE_PYTHON names no Python with JAX");
        return;
    };
    let entries = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path());
    let mut paths: Vec<_> = entries.filter(|p| p.extension().is_some_and(|e| e == "bc")).collect();
    paths.sort();
    assert!(paths.len() >= 25, "{exported}");
    let written: usize = paths.iter().map(|path| check(path)).sum();
    let compared = python("compare", &folder).unwrap();
    assert_eq!(compared.trim(), format!("{written} same"));
}
