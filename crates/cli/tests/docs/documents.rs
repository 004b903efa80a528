//! Tests of the documents: links and paths exist, and lists of files and tables of numbers match the tree and the data.
//! With `SYSTOLE_BLESS=1` the generated parts are rewritten instead of compared.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Crates in the order of their layers. One that is not here comes after these.
const LAYERS: &[&str] = &[
    "base", "linalg", "ir", "data", "mlir", "bytecode", "compile", "runtime", "dist", "cpu", "plan",
    "program", "pjrt", "plugin", "nn", "weights",
];

fn read(file: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// Files below a folder by how their name ends, as paths from the root. Build output, runs and hidden folders are not ours.
fn files(dir: &str, ending: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from(dir)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(Path::new(ROOT).join(&folder)).expect("a folder") {
            let entry = entry.expect("an entry");
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type().expect("a type");
            if kind.is_dir()
                && !name.starts_with('.')
                && !["target", "runs", "shared"].contains(&name.as_str())
            {
                folders.push(folder.join(&name));
            } else if kind.is_file() && name.ends_with(ending) {
                found.push(folder.join(&name).to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    found
}

/// Compares a file with what is generated, or writes it.
fn same_or_bless(file: &str, generated: &str) {
    if std::env::var_os("SYSTOLE_BLESS").is_some_and(|v| v == "1") {
        fs::write(Path::new(ROOT).join(file), generated).expect(file);
        return;
    }
    let written = fs::read_to_string(Path::new(ROOT).join(file)).unwrap_or_default();
    for (i, (is, should)) in written.lines().zip(generated.lines()).enumerate() {
        assert_eq!(is, should, "{file}:{}: SYSTOLE_BLESS=1 cargo test --test docs documents", i + 1);
    }
    assert_eq!(written, generated, "{file}: SYSTOLE_BLESS=1 cargo test --test docs documents");
}

/// Lines of a page that are prose, with their numbers: code blocks left out.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut inside = false;
    let mut lines = Vec::new();
    for (i, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if !inside {
            lines.push((i + 1, line));
        }
    }
    lines
}

/// The parts of a line between back-ticks.
fn code_spans(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).collect()
}

/// A line without what is between back-ticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("")
}

/// Names by which headings are linked to, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (_, line) in prose(text) {
        let level = line.bytes().take_while(|b| *b == b'#').count();
        if level == 0 || !line[level..].starts_with(' ') {
            continue;
        }
        let kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
        let name: String = line[level + 1..].to_lowercase().chars().filter(kept).collect();
        let name = name.trim().replace(' ', "-");
        let repeated = (1..).map(|n| format!("{name}-{n}"));
        let free = std::iter::once(name.clone()).chain(repeated).find(|n| !found.contains(n));
        found.insert(free.expect("a number"));
    }
    found
}

/// Targets of the links of a line.
fn links(line: &str) -> Vec<String> {
    let line = without_code(line);
    line.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_string())).collect()
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut broken = Vec::new();
    for page in files("", ".md") {
        let text = read(&page);
        let folder = Path::new(ROOT).join(Path::new(&page).parent().expect("a folder"));
        for (number, line) in prose(&text) {
            for link in links(line).into_iter().filter(|l| !l.contains("://") && !l.starts_with("mailto:")) {
                let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
                let path = if file.is_empty() { Path::new(ROOT).join(&page) } else { folder.join(file) };
                if !path.exists() {
                    broken.push(format!("{page}:{number}: {link}: no such file"));
                } else if !heading.is_empty()
                    && !anchors(&fs::read_to_string(&path).expect("a page")).contains(heading)
                {
                    broken.push(format!("{page}:{number}: {link}: no such heading"));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Pages that code, messages and scripts name.
#[test]
fn pages_that_code_names_exist() {
    let mut broken = Vec::new();
    for ending in [".rs", ".sh", ".toml"] {
        for file in files("", ending) {
            for (i, line) in read(&file).lines().enumerate() {
                for rest in line.split("docs/").skip(1) {
                    let end = rest.find(|c: char| !(c.is_alphanumeric() || "/-_.".contains(c)));
                    let page = rest[..end.unwrap_or(rest.len())].trim_end_matches('.');
                    if page.ends_with(".md") && !Path::new(ROOT).join("docs").join(page).exists() {
                        broken.push(format!("{file}:{}: docs/{page}", i + 1));
                    }
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Paths between back-ticks: what begins with a folder or file of the root and is no command.
fn is_path(span: &str) -> bool {
    let first = span.split('/').next().unwrap_or("");
    let plain = span.chars().all(|c| c.is_alphanumeric() || "/._-".contains(c));
    let is_file = [".rs", ".md", ".py", ".toml", ".csv", ".sh"].iter().any(|e| span.ends_with(e));
    plain && !first.is_empty() && (is_file || span.contains('/') && Path::new(ROOT).join(first).is_dir())
}

/// Recipes name files that are there, from the root, so that a reader can open them.
#[test]
fn paths_of_the_recipes_exist() {
    let pages = ["CONTRIBUTING.md", "ARCHITECTURE.md", "docs/guide/toolbox.md"].map(String::from);
    let mut broken = Vec::new();
    for page in pages.into_iter().chain(files("docs/internals", ".md")) {
        for (number, line) in prose(&read(&page)) {
            for span in code_spans(line).into_iter().filter(|s| is_path(s)) {
                if !Path::new(ROOT).join(span).exists() {
                    broken.push(format!("{page}:{number}: {span}"));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// A folder's sources as one line of words: `a b folder/{c d}`. `lib`, `main` and `mod` go without saying, and `a.rs`
/// beside `a/` is that folder's `mod.rs`.
fn words(dir: &Path) -> Vec<String> {
    let mut names: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for entry in fs::read_dir(dir).expect("a source folder") {
        let path = entry.expect("an entry").path();
        let stem = path.file_stem().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() {
            let mut inner = words(&path);
            if let Some(first) = inner.first_mut() {
                first.insert(0, '{');
                inner.last_mut().expect("a word").push('}');
            }
            if !inner.is_empty() || path.join("mod.rs").is_file() {
                names.insert(stem, inner);
            }
        } else if path.extension().is_some_and(|e| e == "rs")
            && !["lib", "main", "mod"].contains(&stem.as_str())
        {
            names.entry(stem).or_default();
        }
    }
    let joined = |(name, mut inner): (String, Vec<String>)| match inner.first_mut() {
        Some(first) => {
            first.insert_str(0, &format!("{name}/"));
            inner
        }
        None => vec![name],
    };
    names.into_iter().flat_map(joined).collect()
}

/// The files of all crates, wrapped.
fn file_list() -> String {
    let mut crates: Vec<String> = fs::read_dir(Path::new(ROOT).join("crates"))
        .expect("crates")
        .map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    crates.sort_by_key(|c| (LAYERS.iter().position(|l| l == c).unwrap_or(LAYERS.len()), c.clone()));
    let mut rooms: Vec<(String, PathBuf)> =
        crates.into_iter().map(|c| (c.clone(), Path::new(ROOT).join("crates").join(c).join("src"))).collect();
    rooms.push((".".to_string(), Path::new(ROOT).join("src")));
    let mut list = String::from("```\n");
    for (name, dir) in rooms.into_iter().filter(|(_, dir)| dir.is_dir()) {
        let mut line = format!("{name:<8}");
        let words = words(&dir);
        // A crate of one file has nothing to list.
        if words.is_empty() {
            continue;
        }
        for word in words {
            if line.chars().count() + 1 + word.chars().count() > 140 {
                list += line.trim_end();
                list.push('\n');
                line = " ".repeat(8);
            }
            line.push(' ');
            line += &word;
        }
        list += line.trim_end();
        list.push('\n');
    }
    list + "```\n"
}

#[test]
fn every_file_is_listed() {
    let page = read("docs/internals/files.md");
    let (before, rest) = page.split_once("<!-- files -->\n").expect("the mark <!-- files -->");
    let (_, after) = rest.split_once("<!-- end -->").expect("the mark <!-- end -->");
    let generated = format!("{before}<!-- files -->\n{}<!-- end -->{after}", file_list());
    same_or_bless("docs/internals/files.md", &generated);
}

#[test]
fn the_architecture_is_one_page() {
    let lines = read("ARCHITECTURE.md").lines().count();
    assert!(lines <= 150, "{lines} lines, and 150 are enough");
}

/// Whether a file contains a name as a whole word, or the file or its folder has that name.
fn is_named(path: &Path, name: &str) -> bool {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    if stem == name {
        return true;
    }
    if path.is_dir() {
        let entries = fs::read_dir(path).expect("a folder");
        return entries.into_iter().any(|e| is_named(&e.expect("an entry").path(), name));
    }
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    let Ok(text) = fs::read_to_string(path) else { return false };
    text.match_indices(name)
        .any(|(at, _)| !text[..at].ends_with(in_word) && !text[at + name.len()..].starts_with(in_word))
}

/// The glossary has at most 40 rows, and each name occurs in the folder that its row gives.
#[test]
fn names_of_the_glossary_are_where_it_says() {
    let page = "docs/internals/glossary.md";
    let mut wrong = Vec::new();
    let text = read(page);
    let rows: Vec<(usize, &str)> = prose(&text).into_iter().filter(|(_, l)| l.starts_with("| `")).collect();
    assert!(rows.len() <= 40, "{page}: {} rows; use the field's name instead of a new row", rows.len());
    for (number, line) in rows {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        assert_eq!(cells.len(), 4, "{page}:{number}: name, meaning, closest established term, where");
        let name = code_spans(cells[0])[0];
        let places = code_spans(cells[3]);
        let found = places.iter().any(|place| is_named(&Path::new(ROOT).join(place), name));
        if !found {
            wrong.push(format!("{page}:{number}: `{name}` is not in {}", cells[3]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

mod figures;
mod guides;
mod hints;
mod ops;
mod results;

/// How many samples of how many operations `systole selftest` tries, as the guide says it.
#[test]
fn the_guide_counts_the_samples_that_there_are() {
    // Accelerators cannot call functions of the host program.
    let ops = systole_ir::op::TABLE.iter().filter(|e| e.name != "custom_call");
    let table: Vec<_> = ops.collect();
    let samples: usize = table.iter().map(|e| (e.samples)().len()).sum();
    let now = format!("{} samples of {}", systole_nn::grouped(samples as u64), table.len());
    let page = read("docs/guide/tpu.md");
    let mut rows = 0;
    let line = |l: &str| match (l.starts_with("| `"), l.split_once(" samples of ")) {
        (true, Some((device, rest))) => {
            rows += 1;
            let (device, _) = device.rsplit_once("| ").expect("a cell");
            let (_, rest) = rest.split_once(':').expect("a count");
            format!("{device}| {now}:{rest}\n")
        }
        _ => format!("{l}\n"),
    };
    let counted: String = page.lines().map(line).collect();
    assert!(rows >= 2, "no row of the guide counts samples");
    same_or_bless("docs/guide/tpu.md", &counted);
}
