//! Tests that a type's name says what it is: few names are defined more than once, and none is a word that fits anything.

use super::{rooms, rust_files};
use std::collections::BTreeMap;

/// Words that name nothing in particular, as whole names of types.
const VAGUE: [&str; 16] = [
    "Asked", "Form", "Found", "Given", "Kind", "Opened", "Part", "Place", "Rows", "Said", "Shown", "Told",
    "Wanted", "Way", "Work", "Written",
];

/// Name and place of every struct, enum, trait, union and type alias of the library crates and the program, without tests.
fn definitions() -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in rooms().into_iter().flat_map(|(_, dir)| rust_files(&dir)) {
        let path = file.to_string_lossy().into_owned();
        if path.ends_with("tests.rs") || path.contains("/tests/") {
            continue;
        }
        let text = std::fs::read_to_string(&file).expect("readable");
        let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        for line in text.lines() {
            found.entry(defined_in(line).unwrap_or_default()).or_default().push(path.clone());
        }
    }
    found.remove("");
    // A type that is defined once for each processor architecture is one type.
    found.values_mut().for_each(|files| files.dedup());
    found
}

/// The name of the type that a line defines. Indented aliases belong to traits.
fn defined_in(line: &str) -> Option<String> {
    let code = line.trim_start();
    let code = code.strip_prefix("pub").map_or(code, |rest| match rest.strip_prefix('(') {
        Some(scope) => scope.split_once(") ").map_or("", |(_, rest)| rest),
        None => rest.trim_start(),
    });
    let code = code.strip_prefix("unsafe ").unwrap_or(code);
    let (keyword, rest) = code.split_once(' ')?;
    let is_alias = keyword == "type" && !line.starts_with(' ');
    let is_type = is_alias || ["struct", "enum", "trait", "union"].contains(&keyword);
    let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (is_type && name.starts_with(char::is_uppercase)).then_some(name)
}

#[test]
fn names_of_types_are_rarely_used_twice() {
    let several: Vec<_> = definitions()
        .into_iter()
        .filter(|(name, files)| files.len() > 1 && name != "Args" && name != "Error")
        .collect();
    assert!(several.len() <= 80, "{} names are defined more than once: {several:?}", several.len());
    for (name, files) in several {
        assert!(files.len() <= 3, "{name} is defined in {files:?}");
    }
}

#[test]
fn names_of_types_say_what_they_are() {
    let all = definitions();
    assert!(all.len() > 1_000, "{} types were found", all.len());
    for name in VAGUE {
        assert_eq!(all.get(name), None, "{name} names nothing in particular");
    }
}

#[test]
fn definitions_are_found_in_lines() {
    for (line, name) in [
        ("pub(crate) struct PackedRow<'a> {", Some("PackedRow")),
        ("    pub unsafe trait Lanes: Copy {", Some("Lanes")),
        ("pub type Result<T> = ();", Some("Result")),
        ("    type Output = f32;", None),
        ("let structure = 1;", None),
        ("/// struct Example;", None),
    ] {
        assert_eq!(defined_in(line).as_deref(), name, "{line}");
    }
}
