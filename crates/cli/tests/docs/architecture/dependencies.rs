//! Tests the third-party crates against deny.toml: licenses, banned crates, duplicate versions and sources. `cargo
//! deny` checks the same and more, but takes minutes to build, so it runs only occasionally.

use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Of crates behind features that are off; the one that needs C's zstd is left to `cargo deny`.
const FEATURES: &str = "parquet,object-stores,gif,webp";

/// The lists of deny.toml.
struct Rules {
    licences: Vec<String>,
    banned: Vec<String>,
    /// Name and the beginning of the version.
    skipped: Vec<(String, String)>,
}

impl Rules {
    fn read() -> Rules {
        let text = std::fs::read_to_string(format!("{ROOT}/deny.toml")).expect("deny.toml");
        let table: toml::Table = text.parse().expect("TOML");
        let list = |section: &str, key: &str| -> Vec<String> {
            let items = table[section][key].as_array().expect("a list");
            items.iter().map(|i| i.get("crate").unwrap_or(i).as_str().expect("a name").into()).collect()
        };
        assert_eq!(table["bans"]["multiple-versions"].as_str(), Some("deny"));
        assert!(
            ["unknown-registry", "unknown-git"].iter().all(|k| table["sources"][k].as_str() == Some("deny"))
        );
        let pair = |spec: String| {
            let (name, version) = spec.split_once('@').expect("NAME@VERSION");
            (name.to_string(), version.to_string())
        };
        Rules {
            licences: list("licenses", "allow"),
            banned: list("bans", "deny"),
            skipped: list("bans", "skip").into_iter().map(pair).collect(),
        }
    }
}

/// All crates, those of optional features too where they are on this machine.
fn packages() -> (Vec<Value>, bool) {
    let ask = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO"));
        command.args(["metadata", "--format-version=1", "--offline", "--locked"]).current_dir(ROOT);
        command.args(["--filter-platform", "x86_64-unknown-linux-gnu"]).args(more);
        let out = command.output().expect("cargo runs");
        let told = || serde_json::from_slice::<Value>(&out.stdout).expect("JSON");
        out.status.success().then(|| told()["packages"].as_array().expect("packages").clone())
    };
    match ask(&["--features", FEATURES]) {
        Some(all) => (all, true),
        None => {
            println!(
                "SKIPPED crates_are_those_that_deny_toml_allows: optional crates were never fetched here"
            );
            (ask(&[]).expect("what was built is here"), false)
        }
    }
}

/// Whether an expression of SPDX allows what is among these.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    // An old form of the same.
    let text = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut at = 0;
    let is = any(&words, &mut at, allowed);
    is && at == words.len()
}

fn any(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let mut is = all(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        is |= all(words, at, allowed);
    }
    is
}

fn all(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let mut is = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        is &= one(words, at, allowed);
    }
    is
}

fn one(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let word = words.get(*at).copied().unwrap_or_default();
    *at += 1;
    if word == "(" {
        let is = any(words, at, allowed);
        *at += 1;
        return is && words.get(*at - 1) == Some(&")");
    }
    let mut name = word.to_string();
    if words.get(*at) == Some(&"WITH") {
        name = format!("{word} WITH {}", words.get(*at + 1).copied().unwrap_or_default());
        *at += 2;
    }
    allowed.contains(&name)
}

#[test]
fn expressions_of_licences_are_read() {
    let allowed = ["MIT", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"].map(String::from);
    for (expression, is) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0/MIT", true),
        ("GPL-3.0 AND MIT", false),
        ("(MIT OR GPL-3.0) AND Unicode-3.0", true),
        ("(MIT OR GPL-3.0) AND GPL-2.0", false),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("Apache-2.0", false),
        ("(MIT", false),
        ("MIT GPL-3.0", false),
        ("", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), is, "{expression}");
    }
}

#[test]
fn crates_are_those_that_deny_toml_allows() {
    let rules = Rules::read();
    let (packages, is_whole) = packages();
    let mut wrong = Vec::new();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut registries: BTreeMap<&str, &str> = BTreeMap::new();
    for package in &packages {
        let of = |key: &str| package[key].as_str().unwrap_or_default();
        let (name, version) = (of("name"), of("version"));
        versions.entry(name).or_default().push(version);
        if !is_allowed(of("license"), &rules.licences) {
            wrong.push(format!("{name} {version}: its licence is `{}`", of("license")));
        }
        if rules.banned.iter().any(|banned| banned == name) {
            wrong.push(format!("{name} {version} is banned"));
        }
        match of("source") {
            "" if !name.starts_with("systole") => wrong.push(format!("{name} {version} is a folder")),
            "" => {}
            source if source.starts_with("registry+") => drop(registries.insert(source, name)),
            source => wrong.push(format!("{name} {version} comes from {source}")),
        }
    }
    if registries.len() != 1 {
        wrong.push(format!("crates come from several registries: {registries:?}"));
    }
    let is_skipped = |name: &str, version: &str| {
        let of = |(n, v): &(String, String)| n == name && format!("{version}.").starts_with(&format!("{v}."));
        rules.skipped.iter().any(of)
    };
    for (name, all) in &versions {
        let kept: Vec<&&str> = all.iter().filter(|version| !is_skipped(name, version)).collect();
        if kept.len() > 1 {
            wrong.push(format!("{name} is there as {all:?}"));
        }
    }
    // An exception that nothing needs any more hides the next one.
    for (name, version) in rules.skipped.iter().filter(|_| is_whole) {
        let all = versions.get(name.as_str()).map_or(&[][..], Vec::as_slice);
        if all.len() < 2
            || !all.iter().any(|v| is_skipped(name, v) && format!("{v}.").starts_with(&format!("{version}.")))
        {
            wrong.push(format!("{name}@{version} of bans.skip is needed no more: there is {all:?}"));
        }
    }
    assert!(wrong.is_empty(), "deny.toml does not allow:\n{}", wrong.join("\n"));
}
