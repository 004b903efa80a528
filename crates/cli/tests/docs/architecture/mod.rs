//! Tests the crate layering: each dependency between crates must be in the table of ARCHITECTURE.md. Reads `cargo
//! metadata`.

#![allow(clippy::print_stdout, reason = "says what was skipped")]

mod api;
mod dependencies;
mod error_prose;
mod functions;
mod rooms;
mod type_names;

use std::process::Command;

/// Crate → what it may depend on (of ours). Every crate may import what its imports may.
const ARROWS: &[(&str, &[&str])] = &[
    ("systole-base", &[]),
    ("systole-derive", &[]),
    ("systole-testing", &["systole-base"]),
    ("systole-linalg", &["systole-base"]),
    ("systole-ir", &["systole-linalg", "systole-base"]),
    ("systole-data", &["systole-base"]),
    ("systole-tflite", &["systole-base"]),
    (
        "systole-quant",
        &[
            "systole-int8",
            "systole-onnx",
            "systole-cpu",
            "systole-compile",
            "systole-tflite",
            "systole-nn",
            "systole-dist",
            "systole-runtime",
            "systole-data",
            "systole-ir",
            "systole-base",
        ],
    ),
    (
        "systole-int8",
        &[
            "systole-cpu",
            "systole-tflite",
            "systole-compile",
            "systole-runtime",
            "systole-ir",
            "systole-base",
        ],
    ),
    ("systole-mlir", &["systole-ir", "systole-base"]),
    ("systole-onnx", &["systole-tflite", "systole-runtime", "systole-ir", "systole-base"]),
    ("systole-bytecode", &["systole-mlir", "systole-ir", "systole-base"]),
    ("systole-compile", &["systole-ir", "systole-base"]),
    ("systole-runtime", &["systole-ir", "systole-base"]),
    ("systole-datasets", &["systole-runtime", "systole-data", "systole-ir", "systole-base"]),
    ("systole-dist", &["systole-runtime", "systole-ir", "systole-base"]),
    ("systole-cpu", &["systole-compile", "systole-runtime", "systole-ir", "systole-linalg", "systole-base"]),
    (
        "systole-program",
        &[
            "systole-mlir",
            "systole-bytecode",
            "systole-onnx",
            "systole-tflite",
            "systole-runtime",
            "systole-data",
            "systole-ir",
            "systole-base",
        ],
    ),
    ("systole-plan", &["systole-compile", "systole-runtime", "systole-ir", "systole-base"]),
    (
        "systole-devices",
        &[
            "systole-cpu",
            "systole-pjrt",
            "systole-dist",
            "systole-compile",
            "systole-runtime",
            "systole-ir",
            "systole-base",
        ],
    ),
    (
        "systole-nn",
        &["systole-derive", "systole-dist", "systole-runtime", "systole-data", "systole-ir", "systole-base"],
    ),
    (
        "systole-weights",
        &[
            "systole-nn",
            "systole-dist",
            "systole-runtime",
            "systole-data",
            "systole-datasets",
            "systole-ir",
            "systole-base",
        ],
    ),
    ("systole-tpu1", &["systole-tflite", "systole-base"]),
    ("systole-pjrt", &["systole-runtime", "systole-ir", "systole-base"]),
    (
        "systole-plugin",
        &[
            "systole-bytecode",
            "systole-cpu",
            "systole-data",
            "systole-dist",
            "systole-pjrt",
            "systole-mlir",
            "systole-compile",
            "systole-runtime",
            "systole-ir",
            "systole-base",
        ],
    ),
    ("systole-progress", &["systole-nn"]),
    (
        "systole-cloud",
        &[
            "systole-plan",
            "systole-nn",
            "systole-compile",
            "systole-dist",
            "systole-runtime",
            "systole-data",
            "systole-ir",
            "systole-base",
        ],
    ),
    (
        "systole-launch",
        &[
            "systole-config",
            "systole-pjrt",
            "systole-nn",
            "systole-datasets",
            "systole-cpu",
            "systole-dist",
            "systole-runtime",
            "systole-data",
            "systole-ir",
            "systole-base",
        ],
    ),
    ("systole-report", &["systole-nn", "systole-runtime", "systole-data", "systole-ir", "systole-base"]),
    (
        "systole-config",
        &[
            "systole-nn",
            "systole-datasets",
            "systole-cpu",
            "systole-dist",
            "systole-runtime",
            "systole-data",
            "systole-ir",
            "systole-base",
        ],
    ),
    (
        "systole",
        &[
            "systole-cloud",
            "systole-launch",
            "systole-tpu1",
            "systole-config",
            "systole-progress",
            "systole-report",
            "systole-nn",
            "systole-datasets",
            "systole-devices",
            "systole-pjrt",
            "systole-cpu",
            "systole-dist",
            "systole-compile",
            "systole-runtime",
            "systole-data",
            "systole-ir",
            "systole-base",
        ],
    ),
    (
        "systole-cli",
        &[
            "systole",
            "systole-config",
            "systole-cloud",
            "systole-launch",
            "systole-plugin",
            "systole-progress",
            "systole-report",
            "systole-base",
            "systole-ir",
            "systole-data",
            "systole-datasets",
            "systole-devices",
            "systole-compile",
            "systole-runtime",
            "systole-dist",
            "systole-cpu",
            "systole-nn",
            "systole-pjrt",
            "systole-plan",
            "systole-mlir",
            "systole-program",
            "systole-tpu1",
            "systole-bytecode",
            "systole-weights",
            "systole-tflite",
            "systole-int8",
            "systole-quant",
            "systole-onnx",
        ],
    ),
];

/// Crates whose code may hold `unsafe`.
const UNSAFE_ROOMS: &[&str] = &["cpu", "pjrt", "plugin"];

fn metadata() -> serde_json::Value {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .output()
        .expect("cargo runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("cargo metadata prints JSON")
}

#[test]
fn arrows_between_crates_are_those_of_the_table() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("packages");
    assert_eq!(packages.len(), ARROWS.len(), "a crate is missing from the table");
    for package in packages {
        let name = package["name"].as_str().expect("name");
        let (_, allowed) =
            ARROWS.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("{name} is not in the table"));
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let on = dependency["name"].as_str().expect("name");
            let is_test_only = dependency["kind"].as_str() == Some("dev");
            if on.starts_with("systole") && !is_test_only {
                assert!(allowed.contains(&on), "{name} must not depend on {on}");
            }
        }
    }
}

/// Names and source folders of the crates.
fn rooms() -> Vec<(String, std::path::PathBuf)> {
    let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut rooms = vec![("systole".to_string(), root.join("src"))];
    for entry in std::fs::read_dir(root.join("crates")).expect("crates") {
        let path = entry.expect("entry").path();
        rooms.push((path.file_name().expect("name").to_string_lossy().into(), path.join("src")));
    }
    rooms
}

/// The time of day may jump; what waits, throttles or shows progress takes the monotonic clock (`Instant`). Prices grow old by
/// the calendar, the cache of compiled programs compares times of files, TensorBoard's events and the lines of a launch's log have one.
#[test]
fn only_prices_and_files_of_a_cache_grow_old_by_the_date() {
    let files = rooms().into_iter().flat_map(|(_, dir)| rust_files(&dir));
    let asks =
        |file: &std::path::PathBuf| std::fs::read_to_string(file).expect("readable").contains("SystemTime");
    let may = ["data/src/clock.rs", "pjrt/src/cache.rs", "data/src/format/tensorboard_events.rs"];
    let others: Vec<_> =
        files.filter(asks).filter(|file| !may.iter().any(|end| file.ends_with(end))).collect();
    assert!(others.is_empty(), "{others:?}");
}

/// Whoever reaches a listener must prove the run's secret before anything else is read. The launcher only binds a port of this
/// machine to learn its number, and accepts nothing.
#[test]
fn connections_are_accepted_behind_the_secret_only() {
    let may = ["plugin/src/handshake.rs", "plugin/src/multi_host.rs", "launch/src/lib.rs"];
    let listens = |file: &std::path::PathBuf| {
        let text = std::fs::read_to_string(file).expect("readable");
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        ["TcpListener", "UnixListener", "UdpSocket", "UnixDatagram"].iter().any(|name| code.contains(name))
    };
    let files = rooms().into_iter().flat_map(|(_, dir)| rust_files(&dir));
    let product = files.filter(|file| !file.ends_with("tests.rs"));
    let mut found: Vec<_> = product.filter(listens).collect();
    found.sort();
    assert!(
        found.len() == 3 && found.iter().all(|file| may.iter().any(|end| file.ends_with(end))),
        "{found:?}"
    );
    let launcher = std::fs::read_to_string(found.iter().find(|file| file.ends_with(may[2])).expect("listed"));
    let launcher = launcher.expect("readable");
    assert_eq!(
        (launcher.matches("TcpListener::bind").count(), launcher.matches(".accept()").count()),
        (1, 0)
    );
}

#[test]
fn unsafe_code_lives_only_in_its_rooms_and_says_why() {
    for (name, dir) in rooms() {
        for file in rust_files(&dir) {
            let text = std::fs::read_to_string(&file).expect("readable");
            let lines: Vec<&str> = text.lines().collect();
            for (i, line) in lines.iter().enumerate() {
                let code = line.split("//").next().unwrap_or("");
                if !code.contains("unsafe {") && !code.contains("unsafe impl") {
                    continue;
                }
                let place = format!("{}:{}", file.display(), i + 1);
                assert!(UNSAFE_ROOMS.contains(&name.as_str()), "{place}: unsafe outside {UNSAFE_ROOMS:?}");
                let explained = (i.saturating_sub(6)..=i).any(|j| lines[j].contains("SAFETY:"));
                assert!(explained, "{place}: an unsafe block without a SAFETY line");
            }
        }
    }
}

/// The spine that an outsider must read stays small.
#[test]
fn the_spine_stays_under_six_thousand_lines() {
    let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("crates");
    let mut files = rust_files(&root.join("base/src"));
    files.extend(
        rust_files(&root.join("ir/src")).into_iter().filter(|f| !f.to_string_lossy().contains("/op/")),
    );
    let lines: usize =
        files.iter().map(|f| std::fs::read_to_string(f).expect("readable").lines().count()).sum();
    assert!(lines < 6_000, "base and ir without op/ have {lines} lines");
}

/// Attributes and rows of single ops lie below the graph that holds them, and are no more part of the spine than their rules.
#[test]
fn the_spine_without_single_ops_stays_under_five_thousand_lines() {
    let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("crates");
    let of_ops = |f: &std::path::PathBuf| {
        let path = f.to_string_lossy();
        path.contains("/op/") || path.ends_with("graph/op.rs") || path.ends_with("graph/elementwise.rs")
    };
    let mut files = rust_files(&root.join("base/src"));
    files.extend(rust_files(&root.join("ir/src")).into_iter().filter(|f| !of_ops(f)));
    let lines: usize =
        files.iter().map(|f| std::fs::read_to_string(f).expect("readable").lines().count()).sum();
    assert!(lines < 5_000, "base and ir without what belongs to single ops have {lines} lines");
}

fn rust_files(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("a source folder") {
        let path = entry.expect("entry").path();
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found
}
