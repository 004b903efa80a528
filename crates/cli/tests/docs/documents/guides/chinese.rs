//! Tests of docs/zh: commands, code, numbers and the tutorials' rows equal those of the English pages, whose commands and
//! code the other tests run.

use super::shown::{Block, blocks, words};
use crate::documents::{code_spans, files, links, prose, read, same_or_bless, without_code};
use clap::error::ErrorKind;
use std::collections::BTreeSet;

/// Pages of docs/zh, with the English pages whose code they show.
const PAGES: &[(&str, &[&str])] = &[
    ("getting-started", &["README.md", "docs/guide/tour.md"]),
    ("from-keras", &["docs/guide/from-keras.md"]),
    ("from-pytorch", &["docs/guide/from-pytorch.md"]),
    ("pytorch-today", &["docs/guide/pytorch-today.md"]),
    ("data", &["docs/guide/data.md"]),
    ("reliability", &["docs/guide/reliability.md"]),
    ("plan", &["docs/guide/plan.md"]),
    ("cloud", &["docs/guide/cloud.md"]),
    ("tpu", &["docs/guide/tpu.md"]),
    ("gpu", &["docs/guide/gpu.md"]),
    ("first-gpu-run", &["docs/guide/first-gpu-run.md"]),
    ("first-tpu-run", &["docs/guide/first-tpu-run.md"]),
    ("tutorials", &["docs/guide/tutorials.md"]),
];
/// Pages without code.
const TEXT_ONLY: [&str; 2] = ["README", "glossary"];
/// Statuses of the tutorials page in both languages.
const STATUSES: [(&str, &str); 6] = [
    ("runs", "可运行"),
    ("compiles", "可编译"),
    ("retired", "已淘汰"),
    ("not offered", "不提供"),
    ("not run yet", "尚未运行"),
    ("estimated", "估算"),
];

fn page(name: &str) -> String {
    format!("docs/zh/{name}.md")
}

/// Returns a line of code without its comment.
fn without_comment<'a>(language: &str, line: &'a str) -> &'a str {
    let code = match language {
        "" => line,
        "rust" => line.split("//").next().unwrap_or_default(),
        _ if line.starts_with("# ") => "",
        _ => line.split(" #").next().unwrap_or_default(),
    };
    code.trim_end()
}

/// Returns the lines of a block without comments, empty lines and the lines of Rust that only the doc-tests need.
fn code(block: &Block) -> Vec<&str> {
    let is_hidden = |line: &str| block.language == "rust" && (line == "#" || line.starts_with("# "));
    let lines = block.text.lines().filter(|line| !is_hidden(line));
    lines.map(|line| without_comment(&block.language, line)).filter(|code| !code.is_empty()).collect()
}

/// Returns the commands of the shell blocks of pages.
fn commands(pages: &[&str]) -> Vec<String> {
    let all = pages.iter().flat_map(|page| blocks(&read(page)));
    let shell = all.filter(|block| block.language == "sh");
    shell.flat_map(|block| code(&block).into_iter().map(String::from).collect::<Vec<_>>()).collect()
}

/// With `SYSTOLE_BLESS=1` the commands of the English pages are copied; the Chinese comments stay.
#[test]
fn the_commands_of_the_chinese_pages_are_those_of_the_english_pages() {
    for (name, sources) in PAGES {
        let file = page(name);
        let (own, english) = (commands(&[file.as_str()]), commands(sources));
        assert_eq!(own.len(), english.len(), "{file} and {sources:?} show {own:#?} and {english:#?}");
        let (text, mut remaining) = (read(&file), english.iter());
        let (mut generated, mut is_shell) = (String::new(), false);
        for line in text.lines() {
            let old = without_comment("sh", line);
            match line.strip_prefix("```") {
                Some(language) => {
                    is_shell = language == "sh";
                    generated += line;
                }
                None if is_shell && !old.is_empty() => {
                    generated.push_str(remaining.next().expect("as many commands"));
                    generated += &line[old.len()..];
                }
                None => generated += line,
            }
            generated.push('\n');
        }
        same_or_bless(&file, &generated);
    }
}

#[test]
fn the_commands_of_the_chinese_pages_are_read() {
    let mut n = 0;
    for (name, _) in PAGES {
        let file = page(name);
        for command in commands(&[file.as_str()]).iter().filter(|c| c.starts_with("systole ")) {
            match systole_cli::command().try_get_matches_from(words(command)) {
                Err(e) if e.kind() != ErrorKind::DisplayHelp => panic!("{file}: {command}\n{e}"),
                _ => n += 1,
            }
        }
    }
    assert!(n >= 100, "the Chinese pages show only {n} commands");
}

#[test]
fn the_code_of_the_chinese_pages_is_that_of_the_english_pages() {
    for (name, sources) in PAGES {
        let english: Vec<Block> = sources.iter().flat_map(|source| blocks(&read(source))).collect();
        let own = blocks(&read(&page(name)));
        for block in own.iter().filter(|block| block.language != "sh") {
            let is_there = english.iter().any(|b| b.language == block.language && code(b) == code(block));
            assert!(is_there, "{}:{}: {sources:?} do not have this block", page(name), block.line);
        }
    }
}

#[test]
fn commands_in_the_chinese_text_are_on_an_english_page() {
    let english = ["README.md", "docs/README.md"].map(String::from).into_iter();
    let mut known: BTreeSet<String> = BTreeSet::new();
    for file in english.chain(files("docs/guide", ".md")) {
        let text = read(&file);
        known.extend(blocks(&text).iter().flat_map(code).map(|line| line.trim().to_string()));
        known.extend(prose(&text).into_iter().flat_map(|(_, line)| code_spans(line)).map(String::from));
    }
    for file in files("docs/zh", ".md") {
        for (number, line) in prose(&read(&file)) {
            let mut spans = code_spans(line).into_iter();
            let unknown = spans.find(|span| span.starts_with("systole ") && !known.contains(*span));
            assert!(unknown.is_none(), "{file}:{number}: no English page shows {unknown:?}");
        }
    }
}

/// Returns a line without the targets of its links and without what is between back-ticks.
fn text_without_code_and_targets(line: &str) -> String {
    let line = without_code(line);
    let mut parts = line.split("](");
    let mut text = parts.next().unwrap_or_default().to_string();
    for part in parts {
        text += part.split_once(')').map_or("", |(_, rest)| rest);
    }
    text
}

/// Returns the numbers of a page's text.
fn numbers(file: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (_, line) in prose(&read(file)) {
        let line = text_without_code_and_targets(line);
        let numbers = line.split(|c: char| !(c.is_ascii_digit() || ".,-".contains(c)));
        let numbers = numbers.map(|n| n.trim_matches(['.', ',', '-'])).filter(|n| !n.is_empty());
        found.extend(numbers.map(String::from));
    }
    found
}

#[test]
fn numbers_of_the_chinese_pages_are_on_the_english_pages() {
    for (name, sources) in PAGES {
        let english: BTreeSet<String> = sources.iter().flat_map(|source| numbers(source)).collect();
        let file = page(name);
        let own = numbers(&file);
        let others: Vec<&String> = own.difference(&english).collect();
        assert!(others.is_empty(), "{file}: numbers that {sources:?} do not have: {others:?}");
    }
}

/// Code spans and status of each row of a page's tables. `head` is the beginning of their first lines.
fn rows(file: &str, head: &str) -> Vec<(Vec<String>, String)> {
    let row = |line: &str| {
        let mut spans: Vec<String> = code_spans(line).into_iter().map(String::from).collect();
        spans.sort();
        let status = line.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        (spans, status.trim().to_string())
    };
    read(file).lines().filter(|l| l.starts_with("| ") && !l.starts_with(head)).map(row).collect()
}

#[test]
fn the_chinese_tutorials_page_has_the_rows_of_the_english_page() {
    let english = rows("docs/guide/tutorials.md", "| taught");
    let chinese = rows("docs/zh/tutorials.md", "| 教程内容");
    assert_eq!(english.len(), chinese.len(), "rows of both pages");
    for ((spans, status), (own_spans, own_status)) in english.iter().zip(&chinese) {
        assert_eq!(spans, own_spans, "docs/zh/tutorials.md");
        for (word, own_word) in STATUSES {
            let is_same = status.contains(word) == own_status.contains(own_word);
            assert!(is_same, "docs/zh/tutorials.md: {status} and {own_status}: {spans:?}");
        }
    }
}

#[test]
fn the_chinese_index_lists_every_page() {
    let index = read("docs/zh/README.md");
    let linked: BTreeSet<String> = prose(&index).into_iter().flat_map(|(_, line)| links(line)).collect();
    for file in files("docs/zh", ".md") {
        let name = file.trim_start_matches("docs/zh/").trim_end_matches(".md");
        match TEXT_ONLY.contains(&name) {
            true => assert!(blocks(&read(&file)).is_empty(), "{file} has code, and no row in PAGES"),
            false => assert!(PAGES.iter().any(|(page, _)| *page == name), "{file} has no row in PAGES"),
        }
        let is_linked = name == "README" || linked.contains(&format!("{name}.md"));
        assert!(is_linked, "docs/zh/README.md does not link to {file}");
    }
}

/// Whether a space or a full-width mark is missing between two characters.
fn lacks_space(a: char, b: char) -> bool {
    let is_chinese = |c: char| ('\u{4e00}'..='\u{9fff}').contains(&c);
    let is_latin = |c: char| c.is_ascii_alphanumeric() || "`,;:?".contains(c);
    is_chinese(a) && is_latin(b) || is_latin(a) && is_chinese(b)
}

#[test]
fn chinese_text_has_spaces_around_latin_words_and_full_width_marks() {
    for file in files("docs/zh", ".md").into_iter().chain(["README.zh-CN.md".to_string()]) {
        for (number, line) in prose(&read(&file)) {
            // Code counts as a Latin word: its back-ticks stay.
            let kept = line.split('`').step_by(2).collect::<Vec<_>>().join("``");
            let parts = kept.split("](").enumerate();
            let shown = parts.map(|(i, part)| match i {
                0 => part,
                _ => part.split_once(')').map_or("", |(_, rest)| rest),
            });
            let shown = shown.collect::<String>().replace(['[', ']', '*'], "");
            let shown: Vec<char> = shown.chars().collect();
            let joined = shown.windows(2).find(|pair| lacks_space(pair[0], pair[1]));
            assert!(joined.is_none(), "{file}:{number}: {joined:?} in {line}");
        }
    }
}
