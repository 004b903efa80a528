//! Scans the sources for the places that make the hint of an error, with their kinds.

use std::fs;
use std::path::Path;

/// Crates whose hints have kinds: the program, the configuration, data, imports and the commands that use them.
const CRATES: [&str; 10] =
    ["cli", "cloud", "config", "data", "datasets", "launch", "onnx", "progress", "quant", "weights"];

/// What a hint asks for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum HintKind {
    /// A command, option or argument: `hint_command`.
    Command,
    /// A key or value of the configuration or of a variable: `hint_setting`.
    Setting,
    /// An action outside of the program, on files, machines or in code: `hint`.
    Action,
}

/// A place in the sources that makes a hint.
#[derive(Clone, Debug)]
pub struct HintSite {
    /// Path of the file from the root.
    pub file: String,
    pub line: usize,
    pub kind: HintKind,
    /// The text literals of the hint, or the expression that computes it.
    pub text: String,
}

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Whether a file belongs to a crate whose hints have kinds.
pub fn in_scope(file: &str) -> bool {
    CRATES.iter().any(|name| file.starts_with(&format!("crates/{name}/src/")))
}

/// All places outside of tests, by file and line.
pub fn all() -> Vec<HintSite> {
    let mut sites = Vec::new();
    for name in CRATES {
        in_folder(&Path::new(ROOT).join("crates").join(name).join("src"), &mut sites);
    }
    sites.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
    sites
}

fn in_folder(dir: &Path, sites: &mut Vec<HintSite>) {
    for entry in fs::read_dir(dir).expect("a source folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            in_folder(&path, sites);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(&path).expect("readable");
            let file = path.strip_prefix(ROOT).expect("below the root").display().to_string();
            let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
            in_file(&file, code, sites);
        }
    }
}

fn in_file(file: &str, code: &str, sites: &mut Vec<HintSite>) {
    let kinds = [
        (".hint_command(", HintKind::Command),
        (".hint_setting(", HintKind::Setting),
        (".hint(", HintKind::Action),
    ];
    for (name, kind) in kinds {
        for (at, _) in code.match_indices(name) {
            let start = code[..at].rfind('\n').map_or(0, |i| i + 1);
            let argument = argument(&code[at + name.len()..]);
            // Without comments, and the methods that pass a hint on.
            if code[start..at].trim_start().starts_with("//") || argument.is_empty() || is_forwarded(code, at)
            {
                continue;
            }
            let line = code[..at].matches('\n').count() + 1;
            sites.push(HintSite { file: file.into(), line, kind, text: text_of(argument) });
        }
    }
}

/// Whether this call is the body of a method of the same name, which has its caller's location.
fn is_forwarded(code: &str, at: usize) -> bool {
    let before = &code[..at];
    let Some(header) = before.rfind("fn ") else { return false };
    before[header..].starts_with("fn hint") && before[..header].trim_end().ends_with("pub(super)")
}

/// The text up to the parenthesis that closes the call.
fn argument(rest: &str) -> &str {
    let (mut depth, mut quoted, mut escaped) = (0, false, false);
    for (i, c) in rest.char_indices() {
        match (quoted, c) {
            (true, _) if escaped => escaped = false,
            (true, '\\') => escaped = true,
            (_, '"') => quoted = !quoted,
            (false, '(') => depth += 1,
            (false, ')') if depth == 0 => return rest[..i].trim(),
            (false, ')') => depth -= 1,
            _ => {}
        }
    }
    rest
}

/// The literals of an argument, or the whole argument if it has none.
fn text_of(argument: &str) -> String {
    let literals = super::literals(argument);
    let spaced = |text: &str| text.replace("\\\n", "").split_whitespace().collect::<Vec<_>>().join(" ");
    match literals.iter().filter(|l| l.contains(' ')).count() {
        0 => spaced(argument),
        _ => literals.iter().filter(|l| l.contains(' ')).map(|l| spaced(l)).collect::<Vec<_>>().join(" / "),
    }
}
