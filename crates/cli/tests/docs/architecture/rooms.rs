//! Tests the module dependencies inside each crate: folders import only downwards, and import cycles have at most two
//! neighboring files.
//!
//! Reads the `use` lines and the paths that begin with `crate`, `super` or `self`. A re-exported name counts for the
//! file that defines it. Code compiled only for tests is ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A module path without the leading `crate`.
type Module = Vec<String>;

/// One file of a crate.
struct File {
    /// Path relative to the crate's `src`.
    path: PathBuf,
    /// Code without comments, strings and test code.
    code: String,
    /// Re-exported names: name → path as written. Globs have the name `*`.
    exports: Vec<(String, Module)>,
}

/// The files of a crate, by module.
struct Crate {
    files: BTreeMap<Module, File>,
}

/// Lists all import cycles and upward imports of the crates, one line each.
pub fn violations(root: &Path) -> Vec<String> {
    let mut dirs: Vec<PathBuf> = std::fs::read_dir(root.join("crates"))
        .expect("crates")
        .map(|entry| entry.expect("entry").path().join("src"))
        .collect();
    dirs.push(root.join("src"));
    dirs.sort();
    let mut found = Vec::new();
    for dir in dirs {
        let name = dir.strip_prefix(root).expect("below the root").display().to_string();
        let arrows = Crate::read(&dir).arrows();
        found.extend(circles_of_files(&arrows).into_iter().map(|what| format!("{name}: {what}")));
        found.extend(circles_of_folders(&arrows).into_iter().map(|what| format!("{name}: {what}")));
        found.extend(across_families(&arrows).into_iter().map(|what| format!("{name}: {what}")));
    }
    found
}

/// Import cycles of more than two files, or across folders.
fn circles_of_files(arrows: &BTreeMap<PathBuf, BTreeSet<PathBuf>>) -> Vec<String> {
    let too_large = |circle: &BTreeSet<PathBuf>| {
        let folders: BTreeSet<_> = circle.iter().map(|file| folder_of(file)).collect();
        circle.len() > 2 || folders.len() > 1
    };
    circles(arrows)
        .into_iter()
        .filter(too_large)
        .map(|circle| format!("circle of files: {circle:?}"))
        .collect()
}

/// Import cycles between folders, or between a folder and a file beside it.
fn circles_of_folders(arrows: &BTreeMap<PathBuf, BTreeSet<PathBuf>>) -> Vec<String> {
    let mut by_folder: BTreeMap<PathBuf, BTreeMap<PathBuf, BTreeSet<PathBuf>>> = BTreeMap::new();
    for (from, to) in arrows.iter().flat_map(|(from, tos)| tos.iter().map(move |to| (from, to))) {
        let common: PathBuf =
            from.iter().zip(to.iter()).take_while(|(a, b)| a == b).map(|(a, _)| a).collect();
        let depth = common.iter().count();
        let item = |path: &Path| path.iter().take(depth + 1).collect::<PathBuf>();
        if item(from) != item(to) {
            by_folder.entry(common).or_default().entry(item(from)).or_default().insert(item(to));
        }
    }
    let is_folder = |item: &PathBuf| item.extension().is_none();
    let mut found = Vec::new();
    for arrows in by_folder.values() {
        found.extend(
            circles(arrows)
                .into_iter()
                .filter(|circle| circle.iter().any(is_folder))
                .map(|circle| format!("folders in a circle: {circle:?}")),
        );
    }
    found
}

fn folder_of(file: &Path) -> PathBuf {
    file.parent().map(Path::to_path_buf).unwrap_or_default()
}

/// Kernels that import internals of another kernel family; shared code must lie below all families.
fn across_families(arrows: &BTreeMap<PathBuf, BTreeSet<PathBuf>>) -> Vec<String> {
    let family = |file: &Path| {
        let inside = file.strip_prefix("kernels").ok()?;
        (inside.iter().count() > 1).then(|| inside.iter().next().map(PathBuf::from))?
    };
    let all = arrows.iter().flat_map(|(from, tos)| tos.iter().map(move |to| (from, to)));
    let across = all
        .filter(|(from, to)| matches!((family(from), family(to)), (Some(own), Some(other)) if own != other));
    across.map(|(from, to)| format!("{} imports {}", from.display(), to.display())).collect()
}

/// Strongly connected components with more than one node.
fn circles(arrows: &BTreeMap<PathBuf, BTreeSet<PathBuf>>) -> Vec<BTreeSet<PathBuf>> {
    let reach = |from: &PathBuf| {
        let (mut seen, mut todo) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(at) = todo.pop() {
            for to in arrows.get(&at).into_iter().flatten() {
                if seen.insert(to.clone()) {
                    todo.push(to.clone());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&PathBuf, BTreeSet<PathBuf>> = arrows.keys().map(|k| (k, reach(k))).collect();
    let mut done: BTreeSet<PathBuf> = BTreeSet::new();
    let mut found = Vec::new();
    for (from, to) in &reached {
        if done.contains(*from) {
            continue;
        }
        let mut circle: BTreeSet<PathBuf> = to
            .iter()
            .filter(|other| reached.get(other).is_some_and(|r| r.contains(*from)))
            .cloned()
            .collect();
        if circle.contains(*from) {
            circle.insert((*from).clone());
            done.extend(circle.iter().cloned());
            if circle.len() > 1 {
                found.push(circle);
            }
        }
    }
    found
}

impl Crate {
    fn read(src: &Path) -> Crate {
        let mut files = BTreeMap::new();
        for root in ["lib.rs", "main.rs"] {
            if src.join(root).exists() {
                let module = if root == "lib.rs" { vec![] } else { vec!["main".to_string()] };
                read_module(src, Path::new(root), module, &mut files);
            }
        }
        for path in declared_by_tables(src) {
            let module = path.with_extension("").iter().map(|s| s.to_string_lossy().into_owned()).collect();
            if !files.contains_key(&module) {
                read_module(src, &path, module, &mut files);
            }
        }
        Crate { files }
    }

    /// Imports of each file: file → files whose names it uses.
    fn arrows(&self) -> BTreeMap<PathBuf, BTreeSet<PathBuf>> {
        let mut arrows: BTreeMap<PathBuf, BTreeSet<PathBuf>> = BTreeMap::new();
        for (module, file) in &self.files {
            let to = arrows.entry(file.path.clone()).or_default();
            let facade: BTreeSet<&Module> = file.exports.iter().map(|(_, path)| path).collect();
            for path in paths(&file.code) {
                let Some(path) = self.absolute(module, &path) else { continue };
                // Re-exporting its own files is not an import.
                let handed_on = facade.contains(&path) && path.starts_with(module);
                if handed_on {
                    continue;
                }
                if let Some(target) = self.resolve(&path, 0)
                    && target != module
                {
                    to.insert(self.files[target].path.clone());
                }
            }
        }
        arrows
    }

    /// Resolves a path written in `module` relative to the crate root; `None` if it leads out of the crate.
    fn absolute(&self, module: &Module, path: &Module) -> Option<Module> {
        let mut at: Module = match path.first()?.as_str() {
            "crate" => vec![],
            "self" => module.clone(),
            "super" => module[..module.len().checked_sub(1)?].to_vec(),
            // In the 2024 edition a path in `use` may begin with a child.
            first => {
                let mut child = module.clone();
                child.push(first.to_string());
                self.files.get(&child)?;
                child
            }
        };
        let mut rest = &path[1..];
        while rest.first().is_some_and(|word| word == "super") {
            at.pop()?;
            rest = &rest[1..];
        }
        at.extend(rest.iter().cloned());
        Some(at)
    }

    /// Returns the module whose file defines the item of a path.
    fn resolve(&self, path: &[String], depth: usize) -> Option<&Module> {
        let known = (0..=path.len()).rev().find_map(|n| self.files.get_key_value(&path[..n]))?;
        let (module, file) = known;
        let Some(name) = path.get(module.len()) else { return Some(module) };
        if depth > 8 {
            return Some(module);
        }
        let forwarded = file.exports.iter().filter(|(as_name, _)| as_name == name || as_name == "*");
        for (as_name, target) in forwarded {
            let mut target = target.clone();
            if as_name == "*" {
                let Some(inner) = self.resolve(&target, depth + 1) else { continue };
                if !defines(&self.files[inner].code, name) {
                    continue;
                }
                target = inner.clone();
                target.push(name.clone());
            } else {
                target.extend(path[module.len() + 1..].iter().cloned());
            }
            if let Some(found) = self.resolve(&target, depth + 1) {
                return Some(found);
            }
        }
        Some(module)
    }
}

/// Whether a file defines a name (heuristic).
fn defines(code: &str, name: &str) -> bool {
    let words = ["struct", "enum", "fn", "trait", "type", "const", "static", "union", "macro_rules!"];
    words.iter().any(|word| code.contains(&format!("{word} {name}")))
}

/// Files beside a `mod.rs` without a `mod name;` line, which are declared by a macro.
fn declared_by_tables(src: &Path) -> Vec<PathBuf> {
    let by_table = |path: &PathBuf| {
        let parent = std::fs::read_to_string(path.with_file_name("mod.rs"));
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        stem != "mod" && parent.is_ok_and(|text| !text.contains(&format!("mod {stem};")))
    };
    let all = super::rust_files(src).into_iter().filter(by_table);
    all.map(|path| path.strip_prefix(src).expect("below src").to_path_buf()).collect()
}

fn read_module(src: &Path, path: &Path, module: Module, files: &mut BTreeMap<Module, File>) {
    let text = std::fs::read_to_string(src.join(path)).expect("a source file");
    let code = without_tests(&without_comments(&text));
    let is_root = matches!(path.file_name().and_then(|n| n.to_str()), Some("lib.rs" | "main.rs" | "mod.rs"));
    let folder =
        if is_root { path.parent().expect("a folder").to_path_buf() } else { path.with_extension("") };
    for inner in declared(&code) {
        let at: PathBuf = inner.iter().collect();
        for file in [folder.join(&at).with_extension("rs"), folder.join(&at).join("mod.rs")] {
            if src.join(&file).exists() {
                let mut child: Module = if module == ["main"] { vec![] } else { module.clone() };
                child.extend(inner.iter().cloned());
                read_module(src, &file, child, files);
            }
        }
    }
    let own = if module == ["main"] { vec![] } else { module.clone() };
    let exports = exports(&code, &own, &folder, src);
    // `conv.rs` beside a folder `conv` counts as a file of that folder, like `conv/mod.rs`.
    let place =
        if !is_root && src.join(&folder).is_dir() { folder.join("mod.rs") } else { path.to_path_buf() };
    files.entry(module).or_insert(File { path: place, code, exports });
}

/// Modules declared by a file, including those inside `mod folder { … }`.
fn declared(code: &str) -> Vec<Module> {
    let (mut found, mut around) = (Vec::new(), Vec::new());
    for line in code.split_inclusive([';', '}', '{']) {
        let words: Vec<&str> = line[..line.len() - 1].split_whitespace().collect();
        let name = match words[..] {
            [.., "mod", name] => Some(name.to_string()),
            _ => None,
        };
        match (line.chars().next_back(), name) {
            (Some('{'), name) => around.push(name),
            (Some('}'), _) => drop(around.pop()),
            (_, Some(name)) => found.push(around.iter().flatten().cloned().chain([name]).collect()),
            _ => {}
        }
    }
    found
}

/// Re-exports of a file, as paths from the crate root.
fn exports(code: &str, module: &Module, folder: &Path, src: &Path) -> Vec<(String, Module)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let before = code[..at].trim_end();
        let visible = before.ends_with("pub")
            || (before.ends_with(')')
                && before.rfind("pub(").is_some_and(|p| !before[p..].contains([';', '}', '{'])));
        let Some(end) = code[at..].find(';') else { continue };
        if !visible {
            continue;
        }
        let mut leaves = Vec::new();
        expand(&code[at + 4..at + end], &mut vec![], &mut leaves);
        for (name, path) in leaves {
            let absolute: Module = match path.first().map(String::as_str) {
                Some("crate") => path[1..].to_vec(),
                Some("self") => module.iter().chain(&path[1..]).cloned().collect(),
                Some("super") if !module.is_empty() => {
                    module[..module.len() - 1].iter().chain(&path[1..]).cloned().collect()
                }
                Some(first) => {
                    let own = src.join(folder).join(format!("{first}.rs")).exists()
                        || src.join(folder).join(first).join("mod.rs").exists();
                    if !own {
                        continue;
                    }
                    module.iter().chain(&path).cloned().collect()
                }
                None => continue,
            };
            found.push((name, absolute));
        }
    }
    found
}

/// Paths in a file that may refer to other files of its crate.
fn paths(code: &str) -> Vec<Module> {
    let mut found = Vec::new();
    let mut rest = code.to_string();
    // `use` trees first; the remaining paths are inline.
    while let Some(at) = find_word(&rest, "use") {
        let Some(end) = rest[at..].find(';') else { break };
        let mut leaves = Vec::new();
        expand(&rest[at + 3..at + end], &mut vec![], &mut leaves);
        found.extend(leaves.into_iter().map(|(_, path)| path));
        rest.replace_range(at..at + end, "");
    }
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in rest.match_indices(start) {
            if rest[..at].chars().next_back().is_some_and(|c| is_word(c) || c == ':' || c == '$') {
                continue;
            }
            let tail: String = rest[at..].chars().take_while(|&c| is_word(c) || c == ':').collect();
            found.push(tail.split("::").filter(|s| !s.is_empty()).map(str::to_string).collect());
        }
    }
    // Children by their names: `child::item`.
    for (at, _) in rest.match_indices("::") {
        let head: String = rest[..at].chars().rev().take_while(|&c| is_word(c)).collect();
        let head: String = head.chars().rev().collect();
        let before = &rest[..at - head.len()];
        if head.is_empty() || before.ends_with("::") || matches!(head.as_str(), "crate" | "super" | "self") {
            continue;
        }
        let tail: String = rest[at..].chars().take_while(|&c| is_word(c) || c == ':').collect();
        let path =
            std::iter::once(head).chain(tail.split("::").filter(|s| !s.is_empty()).map(str::to_string));
        found.push(path.collect());
    }
    found
}

fn find_word(code: &str, word: &str) -> Option<usize> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).map(|(at, _)| at).find(|&at| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && after.is_some_and(char::is_whitespace)
    })
}

/// Leaves of a `use` tree: the local name and the path of each.
fn expand(tree: &str, prefix: &mut Module, leaves: &mut Vec<(String, Module)>) {
    let tree = tree.trim();
    if let Some(open) = tree.find('{') {
        let close = tree.rfind('}').unwrap_or(tree.len());
        let depth = prefix.len();
        prefix.extend(tree[..open].split("::").map(str::trim).filter(|s| !s.is_empty()).map(str::to_string));
        let (mut level, mut start, inner) = (0, 0, &tree[open + 1..close]);
        for (at, c) in inner.char_indices() {
            match c {
                '{' => level += 1,
                '}' => level -= 1,
                ',' if level == 0 => {
                    expand(&inner[start..at], prefix, leaves);
                    start = at + 1;
                }
                _ => {}
            }
        }
        expand(&inner[start..], prefix, leaves);
        prefix.truncate(depth);
        return;
    }
    if tree.is_empty() {
        return;
    }
    let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(p, a)| (p, Some(a.trim())));
    let mut full = prefix.clone();
    full.extend(path.split("::").map(str::trim).filter(|s| !s.is_empty()).map(str::to_string));
    if full.last().is_some_and(|last| last == "self") && full.len() > 1 {
        full.pop();
    }
    let Some(last) = full.last().cloned() else { return };
    if last == "*" {
        full.pop();
    }
    leaves.push((alias.map_or(last, str::to_string), full));
}

/// Blanks comments and the contents of string and character literals.
pub fn without_comments(text: &str) -> String {
    let (mut out, bytes) = (String::with_capacity(text.len()), text.as_bytes());
    let mut i = 0;
    let keep_lines = |out: &mut String, piece: &str| out.extend(piece.chars().filter(|&c| c == '\n'));
    while i < bytes.len() {
        let rest = &text[i..];
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |n| n + 2)
        } else if let Some(n) = string_length(rest) {
            out.push_str("\"\"");
            n
        } else {
            let c = rest.chars().next().expect("a character");
            out.push(c);
            i += c.len_utf8();
            continue;
        };
        keep_lines(&mut out, &rest[..length]);
        i += length;
    }
    out
}

/// Length of the string or character literal that starts here, if any.
fn string_length(rest: &str) -> Option<usize> {
    let bytes = rest.as_bytes();
    let raw = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r'));
    if let Some(tail) = raw {
        let hashes = tail.bytes().take_while(|&b| b == b'#').count();
        if tail.as_bytes().get(hashes) == Some(&b'"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let start = rest.len() - tail.len() + hashes + 1;
            return Some(rest[start..].find(&end).map_or(rest.len(), |n| start + n + end.len()));
        }
    }
    match bytes[0] {
        b'"' => {
            let mut at = 1;
            while at < bytes.len() && bytes[at] != b'"' {
                at += if bytes[at] == b'\\' { 2 } else { 1 };
            }
            Some((at + 1).min(rest.len()))
        }
        b'\'' if bytes.get(1) == Some(&b'\\') => {
            rest[2..].char_indices().skip(1).find(|(_, c)| *c == '\'').map(|(n, _)| n + 3)
        }
        b'\'' => {
            let c = rest[1..].chars().next()?;
            let end = 1 + c.len_utf8();
            (bytes.get(end) == Some(&b'\'')).then_some(end + 1)
        }
        _ => None,
    }
}

/// Removes code compiled only for tests.
pub fn without_tests(code: &str) -> String {
    let mut out = code.to_string();
    while let Some(at) = out.find("#[cfg(test)]") {
        let tail = &out[at..];
        let body = tail.find(['{', ';']).unwrap_or(tail.len() - 1);
        let mut end = body + 1;
        if tail.as_bytes()[body] == b'{' {
            let mut level = 0;
            for (n, c) in tail.char_indices().skip(body) {
                level += match c {
                    '{' => 1,
                    '}' => -1,
                    _ => 0,
                };
                if level == 0 {
                    end = n + 1;
                    break;
                }
            }
        }
        let lines: String = tail[..end].chars().filter(|&c| c == '\n').collect();
        out.replace_range(at..at + end, &lines);
    }
    out
}

#[test]
fn folders_import_downwards_and_files_in_no_circles() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let found = violations(Path::new(&root));
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The import reader detects cycles.
#[test]
fn circles_are_found_where_there_are_some() {
    let arrows = |list: &[(&str, &str)]| {
        let mut arrows: BTreeMap<PathBuf, BTreeSet<PathBuf>> = BTreeMap::new();
        for (from, to) in list {
            arrows.entry(from.into()).or_default().insert(to.into());
            arrows.entry(to.into()).or_default();
        }
        arrows
    };
    let pair = arrows(&[("a.rs", "b.rs"), ("b.rs", "a.rs")]);
    assert!(circles_of_files(&pair).is_empty() && circles_of_folders(&pair).is_empty());
    let three = arrows(&[("a.rs", "b.rs"), ("b.rs", "c.rs"), ("c.rs", "a.rs")]);
    assert_eq!(circles_of_files(&three).len(), 1);
    let across = arrows(&[("x/a.rs", "y/b.rs"), ("y/b.rs", "x/a.rs")]);
    assert_eq!(circles_of_files(&across).len(), 1);
    let folders = arrows(&[("x/a.rs", "y/b.rs"), ("y/c.rs", "x/d.rs")]);
    assert!(circles_of_files(&folders).is_empty());
    assert_eq!(circles_of_folders(&folders).len(), 1);
    let families = arrows(&[("kernels/a/x.rs", "kernels/b/y.rs"), ("kernels/mod.rs", "kernels/b/y.rs")]);
    assert_eq!(across_families(&families).len(), 1);
    let mut leaves = Vec::new();
    expand("crate::a::{self, b::{c as d, *}}", &mut vec![], &mut leaves);
    let names: Vec<&str> = leaves.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["a", "d", "*"]);
    let code = without_tests(&without_comments(
        "let a = \"crate::x\"; // crate::y\n#[cfg(test)]\nmod t { use crate::z; }\nfn f<'a>() { '{' }",
    ));
    assert!(paths(&code).is_empty() && code.contains("fn f<'a>()"), "{code}");
    let nested = declared("mod a; table! { mod b { X in mod c; } } pub mod d;");
    assert_eq!(nested, [vec!["a"], vec!["b", "c"], vec!["d"]]);
}
