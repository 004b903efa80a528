//! What the README says works as printed: every command runs in an empty folder, every Rust block is built and run as
//! the program of a user's crate outside this workspace.

#![allow(clippy::print_stdout, reason = "says what was skipped")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

struct Block {
    language: String,
    text: String,
}

/// The fenced code blocks of a Markdown file.
fn blocks(file: &str) -> Vec<Block> {
    let text = std::fs::read_to_string(Path::new(ROOT).join(file)).expect(file);
    let mut found: Vec<Block> = Vec::new();
    let mut open = false;
    for line in text.lines() {
        match (line.strip_prefix("```"), open) {
            (Some(language), false) => {
                found.push(Block { language: language.into(), text: String::new() });
                open = true;
            }
            (Some(_), true) => open = false,
            (None, true) => {
                let block = found.last_mut().expect("an open block");
                block.text += line;
                block.text.push('\n');
            }
            (None, false) => {}
        }
    }
    assert!(!open, "{file} has a code block without an end");
    found
}

/// Commands of the shell blocks, comments taken off, with the program that `cargo run` would start.
fn commands(file: &str) -> Vec<String> {
    let shell = blocks(file).into_iter().filter(|b| b.language == "sh");
    let lines: Vec<String> =
        shell.flat_map(|b| b.text.lines().map(str::to_string).collect::<Vec<_>>()).collect();
    lines
        .iter()
        .map(|l| l.split(" #").next().unwrap_or("").trim().to_string())
        .filter(|l| !l.is_empty() && !l.starts_with('#'))
        .map(|l| l.replace("cargo run --release -- ", "systole "))
        .collect()
}

fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a scratch folder");
    dir
}

fn succeed(what: &str, output: Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what} failed: {}\n{out}\n{err}", output.status);
    out.into_owned()
}

#[test]
fn every_command_of_the_readme_runs() {
    let dir = scratch("readme-commands");
    let data = std::env::var("SYSTOLE_DATA").ok().filter(|d| Path::new(d).is_dir());
    let mut ran = 0;
    for line in commands("README.md") {
        if line == "cargo test --workspace" {
            continue;
        }
        let mut words = line.split_whitespace();
        assert_eq!(words.next(), Some("systole"), "a command that this test does not know: {line}");
        if line.contains("train fashion-mnist") && data.is_none() {
            println!("SKIPPED {line}: SYSTOLE_DATA names no folder with the data set");
            continue;
        }
        let output = Command::new(env!("CARGO_BIN_EXE_systole"))
            .args(words)
            .current_dir(&dir)
            .env("SYSTOLE_CACHE", dir.join("cache"))
            .output()
            .expect("the program starts");
        let out = succeed(&line, output);
        if line.contains("--json") {
            let last = out.lines().last().unwrap_or("");
            let parsed: Result<serde_json::Value, _> = serde_json::from_str(last);
            assert!(
                parsed.is_ok_and(|v| v["epochs"].is_u64() || v["workload"].is_string()),
                "{line}: the last line is not the result: {last}"
            );
        }
        ran += 1;
    }
    assert!(ran >= 9, "the README shows only {ran} commands");
}

#[test]
fn the_readmes_of_both_languages_show_the_same_code() {
    let code = |file: &str| -> Vec<String> {
        let strip = |l: &str| l.split("//").next().unwrap_or("").trim_end().to_string();
        let rust = blocks(file).into_iter().filter(|b| b.language == "rust");
        rust.map(|b| b.text.lines().map(strip).collect::<Vec<_>>().join("\n")).collect()
    };
    assert_eq!(code("README.md"), code("README.zh-CN.md"));
    assert_eq!(commands("README.md"), commands("README.zh-CN.md"));
}

#[test]
fn the_lines_for_a_crate_of_ones_own_give_the_profile() {
    for file in ["README.md", "README.zh-CN.md"] {
        let lines = blocks(file).into_iter().filter(|b| b.language == "toml").map(|b| b.text);
        let lines = lines.collect::<Vec<_>>().join("\n");
        let [dependencies, profile] = ["[dependencies]\nsystole = ", "[profile.dev]\nopt-level = 2"];
        assert!(lines.contains(dependencies) && lines.contains(profile), "{file}: {lines}");
    }
}

/// The first model of the README, as a user would have it: a crate of its own that depends on `systole` by path.
#[test]
fn the_first_model_builds_and_runs_in_a_crate_of_its_own() {
    let rust: Vec<Block> = blocks("README.md").into_iter().filter(|b| b.language == "rust").collect();
    assert!(!rust.is_empty(), "the README shows no Rust");
    let dir = scratch("user-crate");
    std::fs::create_dir_all(dir.join("src/bin")).expect("folders");
    std::fs::copy(Path::new(ROOT).join("Cargo.lock"), dir.join("Cargo.lock")).expect("a lock file");
    let manifest = format!(
        "[package]\nname = \"first-model\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [dependencies]\nsystole = {{ path = {ROOT:?} }}\n\n[profile.dev]\nopt-level = 2\ndebug = false\n"
    );
    std::fs::write(dir.join("Cargo.toml"), manifest).expect("a manifest");
    for (i, block) in rust.iter().enumerate() {
        std::fs::write(dir.join(format!("src/bin/block{i}.rs")), &block.text).expect("a program");
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("user-crate-target");
    for i in 0..rust.len() {
        let output = Command::new(env!("CARGO"))
            .args(["run", "--quiet", "--offline", "--bin", &format!("block{i}")])
            .current_dir(&dir)
            .env("CARGO_TARGET_DIR", &target)
            .output()
            .expect("cargo starts");
        succeed("the README's Rust block", output);
    }
    assert!(dir.join("first-model.safetensors").is_file(), "the program saved its model");
}
