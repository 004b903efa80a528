//! Tests the maximum length of functions.

use super::rooms::{without_comments, without_tests};
use std::path::{Path, PathBuf};

/// Maximum number of lines of a function, from `fn` to its closing brace.
const MOST: usize = 60;

/// Lists functions longer than [`MOST`] lines, except test code: file, line, name, lines.
pub fn too_long(files: &[PathBuf]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file).expect("readable");
        let code = without_tests(&without_comments(&text));
        for (line, name, lines) in functions(&code) {
            if lines > MOST {
                found.push(format!("{}:{line}: {name} has {lines} lines", file.display()));
            }
        }
    }
    found
}

/// Line, name and number of lines of each function.
fn functions(code: &str) -> Vec<(usize, String, usize)> {
    let mut found = Vec::new();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    for (at, _) in code.match_indices("fn ") {
        let name: String = code[at + 3..].chars().take_while(|&c| is_word(c)).collect();
        if code[..at].chars().next_back().is_some_and(is_word) || name.is_empty() {
            continue;
        }
        let Some(length) = body_end(&code[at..]) else { continue };
        let lines = code[at..at + length].lines().count();
        found.push((1 + code[..at].matches('\n').count(), name, lines));
    }
    found
}

/// End of the body of the function that starts here; `None` for a function without a body.
fn body_end(code: &str) -> Option<usize> {
    let (mut braces, mut others) = (0i32, 0i32);
    for (n, c) in code.char_indices() {
        match c {
            '(' | '[' => others += 1,
            ')' | ']' => others -= 1,
            ';' if braces == 0 && others == 0 => return None,
            '{' => braces += 1,
            '}' => {
                braces -= 1;
                if braces == 0 && others == 0 {
                    return Some(n + 1);
                }
                if braces < 0 {
                    return None;
                }
            }
            _ => {}
        }
    }
    None
}

fn rust_files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a source folder") {
        let path = entry.expect("entry").path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
}

#[test]
fn functions_have_at_most_sixty_lines() {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut files = Vec::new();
    rust_files(&root.join("src"), &mut files);
    for entry in std::fs::read_dir(root.join("crates")).expect("crates") {
        rust_files(&entry.expect("entry").path().join("src"), &mut files);
    }
    files.sort();
    let found = too_long(&files);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn lines_are_counted_from_fn_to_brace() {
    let code = "fn a() {\n}\ntrait T { fn b(); }\nfn c(x: [u8; 3])\n{\n  if x { }\n}\n";
    let each = functions(code);
    assert_eq!(each, vec![(1, "a".into(), 2), (4, "c".into(), 4)]);
}
