//! Tests of the README: every command runs in an empty folder, and every Rust block is built and run as a crate outside
//! this workspace. Both language versions have the same content, and the images are drawn from recorded program output.

#![allow(clippy::print_stdout, reason = "says what was skipped")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

mod pictures;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The README in both languages.
const READMES: [&str; 2] = ["README.md", "README.zh-CN.md"];
/// The commands, the presets and exit codes.
const TOUR: &str = "docs/guide/tour.md";
/// The same in Chinese.
const CHINESE_TOUR: &str = "docs/zh/getting-started.md";
/// The headline measurements.
const RESULTS: &str = "docs/results/README.md";

fn read(file: &str) -> String {
    std::fs::read_to_string(Path::new(ROOT).join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// Compares a file with what is generated; with `SYSTOLE_BLESS=1` writes it.
fn same_or_bless(file: &str, generated: &str) {
    if std::env::var_os("SYSTOLE_BLESS").is_some_and(|v| v == "1") {
        std::fs::write(Path::new(ROOT).join(file), generated).expect(file);
        return;
    }
    let written = std::fs::read_to_string(Path::new(ROOT).join(file)).unwrap_or_default();
    assert!(
        written == generated,
        "{file} is not what is generated: SYSTOLE_BLESS=1 cargo test --test docs readme"
    );
}

struct Block {
    language: String,
    text: String,
}

/// The fenced code blocks of a Markdown file.
fn blocks(file: &str) -> Vec<Block> {
    let text = read(file);
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
fn every_command_of_the_readme_and_the_tour_runs() {
    let dir = scratch("readme-commands");
    let data = std::env::var("SYSTOLE_DATA").ok().filter(|d| Path::new(d).is_dir());
    let [readme, tour] = [commands(READMES[0]), commands(TOUR)];
    for set_up in ["systole train", "cargo test --workspace"] {
        assert!(
            readme.iter().any(|line| line == set_up),
            "the README does not show the set-up command {set_up}"
        );
    }
    let mut ran = 0;
    // The tour starts with the README's first command, which need not run twice.
    for line in readme.iter().chain(tour.iter().filter(|line| !readme.contains(line))) {
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
        let out = succeed(line, output);
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
    assert!(ran >= 20, "README and tour show only {ran} commands");
}

#[test]
fn the_readmes_of_both_languages_show_the_same_code() {
    let code = |file: &str| -> Vec<String> {
        let strip = |l: &str| l.split("//").next().unwrap_or("").trim_end().to_string();
        let rust = blocks(file).into_iter().filter(|b| b.language == "rust");
        rust.map(|b| b.text.lines().map(strip).collect::<Vec<_>>().join("\n")).collect()
    };
    assert_eq!(code(READMES[0]), code(READMES[1]));
    assert_eq!(commands(READMES[0]), commands(READMES[1]));
}

/// What a page holds beside its words: what both languages must share.
#[derive(Default)]
struct Facts {
    /// Levels of the headings, in their order.
    headings: Vec<usize>,
    /// Rows of each table.
    tables: Vec<usize>,
    /// Points of each list.
    lists: Vec<usize>,
    numbers: BTreeSet<String>,
    code: BTreeSet<String>,
    links: BTreeSet<String>,
}

impl Facts {
    fn of(page: &str) -> Facts {
        let text = read(page);
        let mut facts = Facts::default();
        let (mut inside, mut before) = (false, String::new());
        for line in text.lines() {
            let fence = line.starts_with("```");
            inside ^= fence;
            if !inside && !fence {
                facts.line(line, &before);
                before = line.to_string();
            }
        }
        facts
    }

    fn line(&mut self, line: &str, before: &str) {
        match line {
            l if l.starts_with('#') => self.headings.push(l.bytes().take_while(|b| *b == b'#').count()),
            l if l.starts_with('|') && before.starts_with('|') => {
                *self.tables.last_mut().expect("a table") += 1
            }
            l if l.starts_with('|') => self.tables.push(1),
            l if l.starts_with("- ") && before.is_empty() => self.lists.push(1),
            l if l.starts_with("- ") => *self.lists.last_mut().expect("a list") += 1,
            _ => {}
        }
        self.code.extend(line.split('`').skip(1).step_by(2).map(String::from));
        let links = line.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
        let links = links.filter(|l| !READMES.contains(l));
        self.links.extend(links.map(english_page));
        let words: String = line.split('`').step_by(2).collect::<Vec<_>>().join(" ");
        let of_number = |c: char| c.is_ascii_digit() || ".,-".contains(c);
        let numbers = words.split(|c| !of_number(c)).map(|n| n.trim_matches(['.', ',', '-']));
        self.numbers.extend(numbers.filter(|n| !n.is_empty()).map(String::from));
    }
}

/// Returns the English page with the content of a page of `docs/zh`.
fn english_page(link: &str) -> String {
    match link {
        "docs/zh/README.md" => "docs/README.md".to_string(),
        CHINESE_TOUR => TOUR.to_string(),
        other => other.replace("docs/zh/", "docs/guide/"),
    }
}

#[test]
fn the_readmes_of_both_languages_say_the_same() {
    let [english, chinese] = READMES.map(Facts::of);
    assert_eq!(english.headings, chinese.headings, "headings");
    assert_eq!(english.tables, chinese.tables, "rows of tables");
    assert_eq!(english.lists, chinese.lists, "points of lists");
    for (what, one, other) in [
        ("numbers", &english.numbers, &chinese.numbers),
        ("code", &english.code, &chinese.code),
        ("links", &english.links, &chinese.links),
    ] {
        let apart: Vec<&String> = one.symmetric_difference(other).collect();
        assert!(apart.is_empty(), "{what} that only one of both pages has: {apart:?}");
    }
    assert!(english.numbers.len() > 15 && english.links.len() > 25, "{} numbers", english.numbers.len());
}

/// The README is short, and its first screen says what runs and what does not.
#[test]
fn the_readme_is_short_and_its_first_screen_is_true() {
    let page = read(READMES[0]);
    let first: String = page.lines().take(20).collect::<Vec<_>>().join(" ");
    for part in ["on CPUs", "nobody has executed them there yet", "Linux, x86-64", "docs/guide/status.md"] {
        assert!(first.contains(part), "the first screen does not say `{part}`");
    }
    let (before, _) = page.split_once("## Contributing").expect("a section Contributing");
    let words = before.split_whitespace().count();
    assert!(words <= 900, "{words} words before Contributing, and 900 are enough");
    for page in READMES {
        let text = read(page).to_lowercase();
        for boast in ["faster than a tpu", "faster than tpu", "比 tpu 快", "比tpu快"] {
            assert!(!text.contains(boast), "{page}: {boast}");
        }
        assert!(text.contains("docs/pictures/plan.svg"), "{page} does not show the plan");
    }
}

#[test]
fn every_preset_is_in_the_tour() {
    // These are what `train FOLDER`, `train RECORDS`, `train TABLE` and `train TEXTS` start from.
    let templates = ["folder", "tfrecord", "table", "sentences"];
    for page in [TOUR, CHINESE_TOUR] {
        let text = read(page);
        for preset in systole::config::PRESETS.iter().filter(|p| !templates.contains(p)) {
            let listed = |l: &str| l.starts_with('|') && l.contains(&format!("`{preset}`"));
            assert!(text.lines().any(listed), "{page}: {preset}");
        }
    }
}

/// The results page divides the tutorial's 11 ms as the plan does.
#[test]
fn the_tutorials_step_is_divided_as_the_plan_divides_it() {
    let output = Command::new(env!("CARGO_BIN_EXE_systole"))
        .args(["plan", "fashion-mnist", "--targets", "v2-8", "--explain"])
        .current_dir(scratch("readme-plan"))
        .output()
        .expect("the program starts");
    let plan = succeed("the plan", output).split_whitespace().collect::<Vec<_>>().join(" ");
    let rest =
        plan.split_once("printed 11.00 ms per step here: the device needs ").expect("the tutorial's step").1;
    let device = rest.split_once(" of it").expect("the device's part").0;
    let host = rest.split_once(", so ").expect("the host's part").1.split(" (").next().expect("a time");
    let rounded = |time: &str| {
        let (number, unit) = time.split_once(' ').expect("a unit");
        let scale = if unit == "ms" { 1.0 } else { 1e-3 };
        format!("{:.1} ms", number.parse::<f64>().expect("a number") * scale)
    };
    let (device, host) = (rounded(device), rounded(host));
    let text = read(RESULTS);
    assert!(text.contains(&device) && text.contains(&host), "{RESULTS}: {device} and {host}");
}

#[test]
fn the_lines_for_a_crate_of_ones_own_give_the_profile() {
    for file in READMES {
        let lines = blocks(file).into_iter().filter(|b| b.language == "toml").map(|b| b.text);
        let lines = lines.collect::<Vec<_>>().join("\n");
        let [dependencies, profile] = ["[dependencies]\nsystole = ", "[profile.dev]\nopt-level = 2"];
        assert!(lines.contains(dependencies) && lines.contains(profile), "{file}: {lines}");
    }
}

/// The first model of the README, as a user would have it: a crate of its own that depends on `systole` by path.
#[test]
fn the_first_model_builds_and_runs_in_a_crate_of_its_own() {
    let rust: Vec<Block> = blocks(READMES[0]).into_iter().filter(|b| b.language == "rust").collect();
    assert!(!rust.is_empty(), "the README shows no Rust");
    let dir = scratch("user-crate");
    std::fs::create_dir_all(dir.join("src/bin")).expect("folders");
    std::fs::copy(Path::new(ROOT).join("Cargo.lock"), dir.join("Cargo.lock")).expect("a lock file");
    // The lines of the README, but that only the engine is optimised: the rest builds sooner so, and runs once.
    let lines =
        blocks(READMES[0]).into_iter().find(|b| b.language == "toml").expect("lines for Cargo.toml").text;
    let (dependencies, _) = lines.split_once("[profile.dev]").expect("a profile");
    let dependencies = dependencies.replace("…/systole", ROOT);
    let manifest = format!(
        "[package]\nname = \"first-model\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
         {dependencies}\n[profile.dev]\ndebug = false\n\n[profile.dev.package.systole-cpu]\nopt-level = 2\n"
    );
    std::fs::write(dir.join("Cargo.toml"), manifest).expect("a manifest");
    for (i, block) in rust.iter().enumerate() {
        std::fs::write(dir.join(format!("src/bin/block{i}.rs")), &block.text).expect("a program");
    }
    for i in 0..rust.len() {
        user_cargo(&dir, &["run", "--quiet", "--offline", "--bin", &format!("block{i}")]);
    }
    assert!(dir.join("first-model.safetensors").is_file(), "the program saved its model");
}

/// Runs cargo in a crate outside the workspace; such crates share one target folder.
fn user_cargo(dir: &Path, args: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args(args)
        .current_dir(dir)
        .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("user-crate-target"))
        .output()
        .expect("cargo starts");
    succeed(&args.join(" "), output)
}

/// Without the default features the library needs 25 crates, loads a model and predicts.
#[test]
fn a_crate_without_default_features_predicts_and_needs_few_crates() {
    const PROGRAM: &str = r#"
        use systole::prelude::*;
        fn main() -> Result<()> {
            let saved = std::env::args().nth(1).expect("a model file");
            let mut model = Sequential::new([dense(4).activation("relu"), dense(2)]);
            model.build(&[TensorType::new(F32, [3])])?;
            model.save(&saved)?;
            let x = Literal::from_slice([2, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
            let (y, again) = (model.predict_on_batch(&x)?, load_model(&saved)?.predict_on_batch(&x)?);
            assert_eq!(y.as_slice::<f32>()?, again.as_slice::<f32>()?);
            println!("{}", y.ty());
            Ok(())
        }"#;
    let dir = scratch("inference-crate");
    std::fs::create_dir_all(dir.join("src")).expect("a folder");
    std::fs::copy(Path::new(ROOT).join("Cargo.lock"), dir.join("Cargo.lock")).expect("a lock file");
    let manifest = format!(
        "[package]\nname = \"inference\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n\
         systole = {{ path = {ROOT:?}, default-features = false }}\n\n[profile.dev]\ndebug = false\n\n\
         [profile.dev.package.systole-cpu]\nopt-level = 2\n"
    );
    std::fs::write(dir.join("Cargo.toml"), manifest).expect("a manifest");
    std::fs::write(dir.join("src/main.rs"), PROGRAM).expect("a program");
    let printed = user_cargo(&dir, &["run", "--quiet", "--offline", "--", "model.safetensors"]);
    assert_eq!(printed.trim(), "f32[2, 2]");
    let tree = user_cargo(
        &dir,
        &["tree", "--offline", "-e", "normal", "--prefix", "none", "-p", "systole", "--no-dedupe"],
    );
    let crates: std::collections::BTreeSet<_> = tree.lines().filter_map(|l| l.split(" (").next()).collect();
    assert!(crates.len() <= 25, "{crates:#?}");
}
