//! The examples run and hold what they assert.

#![allow(clippy::print_stdout, reason = "says what was skipped")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where cargo puts examples: beside the program, built by the same `cargo test`.
fn program(name: &str) -> PathBuf {
    let bin = Path::new(env!("CARGO_BIN_EXE_systole"));
    bin.parent().expect("a folder").join("examples").join(name)
}

fn run(name: &str) -> String {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("example-{name}"));
    std::fs::create_dir_all(&dir).expect("a scratch folder");
    let path = program(name);
    if !path.is_file() {
        // `cargo test --test examples` builds no examples.
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--offline", "--example", name])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        assert!(built.is_ok_and(|s| s.success()), "{name} does not build");
    }
    let out =
        Command::new(&path).current_dir(&dir).output().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{name}: {text}\n{}", String::from_utf8_lossy(&out.stderr));
    text
}

#[test]
fn tiny() {
    assert!(run("tiny").contains("w 0.8000"));
}

#[test]
fn axpy() {
    assert!(run("axpy").contains("3 * x + y = [13.0, 26.0, 39.0, 52.0]"));
}

#[test]
fn custom_loop() {
    assert!(run("custom_loop").contains("epoch 2: loss"));
}

#[test]
fn custom_loss() {
    assert!(run("custom_loss").contains("confidence "));
}

#[test]
fn gan() {
    assert!(run("gan").contains("generated points lie at radius"));
}

#[test]
fn fashion_mnist() {
    let data = std::env::var("SYSTOLE_DATA").ok().filter(|d| Path::new(d).is_dir());
    if data.is_none() {
        println!("SKIPPED fashion_mnist: SYSTOLE_DATA names no folder with the data set");
        return;
    }
    assert!(run("fashion_mnist").contains("test accuracy 0.8"));
}
