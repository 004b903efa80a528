//! Tests assert kinds and names of errors (keys, options, files, layers, shapes), so that messages can be reworded.
//! `Done::fails` and `assert_error` reject prose when they run; this test finds other asserts of error wording in the sources
//! of tests.

use super::rust_files;
use std::path::{Path, PathBuf};
use systole_testing::is_prose;

/// Uses of `Done::says`, whose subject is the wording. May only shrink. The one: what a file is instead of a program (a web
/// page, HLO text, gzip) has no name.
const SAYS: usize = 1;
/// Asserts of error wording. May only shrink.
const PROSE: usize = 0;
/// Files whose comparisons are not asserts of our wording, with reasons.
const OTHER: [(&str, &str); 3] = [
    ("architecture/error_prose.rs", "the samples of this test"),
    ("cli/tests/cli/cloud.rs", "messages of the scripts that `systole cloud` writes, which have no kinds"),
    ("guides/configuration.rs", "serde's messages, from which the guide reads the keys"),
];

/// Functions whose argument is compared with a text.
const COMPARED: [&str; 3] = [".contains(\"", ".starts_with(\"", ".ends_with(\""];
/// Names that tests give to errors and their messages.
const ERRORS: [&str; 8] = ["e", "err", "error", "message", "refused", "wrong", "failure", "unwrap_err"];

fn crates() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("crates")
}

/// Test code of all crates, by path: test programs, and what follows `#[cfg(test)]` in source files.
fn test_code() -> Vec<(String, String)> {
    let root = crates();
    let crates = std::fs::read_dir(&root).expect("crates").map(|e| e.expect("entry").path());
    let mut code = Vec::new();
    for file in crates.flat_map(|dir| rust_files(&dir)) {
        let text = std::fs::read_to_string(&file).expect("readable");
        let path = file.strip_prefix(&root).expect("below").to_string_lossy().into_owned();
        let is_test = path.contains("/tests/") || path.ends_with("/tests.rs");
        let start = if is_test { Some(0) } else { text.find("#[cfg(test)]\nmod ") };
        code.extend(start.map(|start| (path.clone(), text[start..].to_string())));
    }
    code
}

/// Whether the expression before a comparison is an error or its message.
fn is_error(before: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || "_.()&?[]:".contains(c);
    let receiver: String = before.trim_end().chars().rev().take_while(|&c| is_part(c)).collect();
    let receiver: String = receiver.chars().rev().collect();
    let is_listed = |name: &str| ERRORS.contains(&name);
    let names = receiver.split(|c: char| !c.is_alphanumeric() && c != '_');
    let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
    let is_output = names.len() > 1 && names.last() == Some(&"err");
    // Standard error has notes as well: it is an error if the exit code is asserted in the same statement.
    let statement = before.rfind([';', '{', '}']).map_or(before, |at| &before[at..]);
    match is_output {
        true => statement.contains(".code"),
        false => names.iter().any(|name| is_listed(name)) || statement.contains("unwrap_err()"),
    }
}

/// Asserts of error wording in test code: line and text.
fn prose(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for head in COMPARED {
        for (at, _) in code.match_indices(head) {
            let text = &code[at + head.len()..];
            let end = text.char_indices().find(|&(i, c)| c == '"' && !text[..i].ends_with('\\'));
            let text = &text[..end.map_or(text.len(), |(i, _)| i)];
            if is_prose(text) && is_error(&code[..at]) {
                found.push(text.to_string());
            }
        }
    }
    found
}

#[test]
fn tests_assert_kinds_and_names_of_errors_rather_than_wording() {
    let (mut said, mut found) = (0, Vec::new());
    for (path, code) in test_code() {
        if OTHER.iter().any(|(file, _)| path.ends_with(file)) {
            continue;
        }
        said += code.matches(".says(").count();
        found.extend(prose(&code).into_iter().map(|text| format!("{path}: {text}")));
    }
    let hint = "assert the kind and names of the error, such as Done::fails(\"config\", &[\"`epochs`\"]) or \
                systole_testing::assert_error; lower the limit if there are fewer";
    assert_eq!(said, SAYS, "uses of Done::says: {hint}");
    assert_eq!(found.len(), PROSE, "asserts of wording: {hint}\n{}", found.join("\n"));
}

#[test]
fn wording_is_told_from_names() {
    for (code, is_found) in [
        ("assert!(e.contains(\"is not a layer\"));", true),
        ("assert!(e.to_string().contains(\"unknown key `epoch`\"));", true),
        ("let e = f().unwrap_err().to_string();\nassert!(e.starts_with(\"cannot read\"), \"{e}\");", true),
        ("assert!(done.code == Some(2) && done.err.contains(\"no such layer\"));", true),
        ("assert!(done.err.contains(\"Epoch 1 has ended\"));", false),
        ("assert!(e.contains(\"`epoch`\"));", false),
        ("assert!(e.contains(\"f32[2, 3]\") && e.contains(\"--set fit.epochs=3\"));", false),
        ("assert!(out.contains(\"all checks passed\"));", false),
    ] {
        assert_eq!(!prose(code).is_empty(), is_found, "{code}");
    }
}
