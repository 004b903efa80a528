//! Tests the examples in the guides: TOML is parsed by the program's own parser, commands by its command line, and both
//! are run.

use super::{PAGES, page};
use crate::documents::read;
use clap::error::ErrorKind;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use systole::config::RunConfig;
use toml::{Table, Value};

/// A fenced block of a page.
pub struct Block {
    pub language: String,
    pub text: String,
    /// Line of its fence.
    pub line: usize,
}

/// The fenced blocks of a page.
pub fn blocks(text: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut open = false;
    for (i, line) in text.lines().enumerate() {
        match (line.strip_prefix("```"), open) {
            (Some(language), false) => {
                found.push(Block { language: language.into(), text: String::new(), line: i + 1 });
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
    found
}

/// The name that a block gives itself in its first line: `# mine.toml`, `// mine.mlir`.
fn file_name(block: &Block) -> Option<&str> {
    let (comment, ending) = match block.language.as_str() {
        "toml" => ("# ", ".toml"),
        "mlir" => ("// ", ".mlir"),
        _ => return None,
    };
    block.text.lines().next()?.strip_prefix(comment).filter(|name| name.ends_with(ending))
}

/// Every block of TOML is a part of a configuration: it replaces that part of the preset `glyphs`.
#[test]
fn the_toml_of_the_guides_is_read() {
    let mut n = 0;
    for name in PAGES {
        for block in blocks(&read(&page(name))).iter().filter(|b| b.language == "toml") {
            let place = format!("{}, block of line {}", page(name), block.line);
            let text = match file_name(block) {
                Some(_) => block.text.clone(),
                None => completed(&block.text, &place),
            };
            let config = RunConfig::parse(&text, &place).unwrap_or_else(|e| panic!("{place}: {e}\n{text}"));
            if block.text.contains("[model]") || block.text.contains("[[layers]]") {
                config.untrained().unwrap_or_else(|e| panic!("{place}: {e}"));
            }
            n += 1;
        }
    }
    assert!(n >= 12, "the guides show only {n} blocks of TOML");
}

/// The preset `glyphs` with the tables of `part` in the place of its own.
fn completed(part: &str, place: &str) -> String {
    let part: Table = part.parse().unwrap_or_else(|e| panic!("{place}: {e}"));
    let preset = RunConfig::preset_text("glyphs").expect("a preset");
    let mut whole: Table = preset.parse().expect("TOML");
    if part.contains_key("model") || part.contains_key("layers") {
        whole.remove("layers");
    }
    for (key, value) in part {
        match (whole.get_mut(&key), value) {
            // An optimizer's arguments are its own.
            (Some(Value::Table(old)), Value::Table(new)) if key != "optimizer" => old.extend(new),
            (_, value) => drop(whole.insert(key, value)),
        }
    }
    toml::to_string(&whole).expect("TOML")
}

/// A command's words: what stands in quotes is one of them.
pub fn words(line: &str) -> Vec<String> {
    let line = line.split(" # ").next().unwrap_or("").trim();
    let mut words = Vec::new();
    for (i, part) in line.split('\'').enumerate() {
        match i % 2 {
            1 => words.push(part.to_string()),
            _ => words.extend(part.split_whitespace().map(str::to_string)),
        }
    }
    words
}

/// A page with its generated parts left empty: descriptions there name commands without their arguments.
fn by_hand(text: &str) -> String {
    let mut generated = false;
    let keep = |line: &str| {
        generated = line != "<!-- end -->" && (generated || line.starts_with("<!-- "));
        if generated { "" } else { line }.to_string()
    };
    text.lines().map(keep).collect::<Vec<_>>().join("\n")
}

/// Commands of shell blocks and of the text's own `systole …`, with the line.
fn commands(text: &str) -> Vec<(usize, String)> {
    let shell = blocks(text).into_iter().filter(|b| b.language == "sh");
    let of_block = |b: Block| -> Vec<(usize, String)> {
        b.text.lines().enumerate().map(|(i, l)| (b.line + 1 + i, l.to_string())).collect()
    };
    let by_hand = by_hand(text);
    let spans = crate::documents::prose(&by_hand).into_iter().flat_map(|(line, text)| {
        let spans = crate::documents::code_spans(text).into_iter().filter(|s| s.starts_with("systole "));
        spans.map(|s| (line, s.to_string())).collect::<Vec<_>>()
    });
    let spans: Vec<(usize, String)> = spans.collect();
    shell.flat_map(of_block).chain(spans).collect()
}

#[test]
fn the_commands_of_the_guides_are_read() {
    let mut n = 0;
    for name in PAGES {
        for (line, command) in commands(&read(&page(name))) {
            let read = systole_cli::command().try_get_matches_from(words(&command));
            match read {
                Err(e) if e.kind() != ErrorKind::DisplayHelp => {
                    panic!("{}:{line}: {command}\n{e}", page(name))
                }
                _ => n += 1,
            }
        }
    }
    assert!(n >= 20, "the guides show only {n} commands");
}

/// An empty folder for the commands of a page, with the files that the page shows.
fn folder(name: &str, text: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("guide-{name}"));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).expect("a scratch folder");
    for block in &blocks(text) {
        if let Some(file) = file_name(block) {
            fs::write(dir.join(file), &block.text).expect("a file");
        }
    }
    dir
}

#[test]
fn the_commands_of_the_guides_run() {
    for name in PAGES {
        let text = read(&page(name));
        let dir = folder(name, &text);
        for block in blocks(&text).iter().filter(|b| b.language == "sh") {
            for line in block.text.lines() {
                let words = words(line);
                assert_eq!(words[0], "systole", "{line}");
                let output = Command::new(env!("CARGO_BIN_EXE_systole"))
                    .args(&words[1..])
                    .current_dir(&dir)
                    .env("SYSTOLE_CACHE", dir.join("cache"))
                    .output()
                    .expect("the program starts");
                let (out, err) =
                    (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
                assert!(output.status.success(), "{}: {line}: {}\n{out}\n{err}", page(name), output.status);
            }
        }
        let _ = fs::remove_dir_all(dir);
    }
}
