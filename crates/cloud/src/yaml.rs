//! Writes JSON values as block-style YAML.

use serde_json::Value;
use std::fmt::Write;

/// Returns a YAML document; each line ends with a line feed.
pub(super) fn yaml(value: &Value) -> String {
    let mut text = String::new();
    block(&mut text, value, 0);
    text
}

fn block(text: &mut String, value: &Value, indent: usize) {
    let pad = " ".repeat(indent);
    match value {
        Value::Object(entries) if !entries.is_empty() => {
            for (key, value) in entries {
                let _ = write!(text, "{pad}{}:", word(key));
                after_key(text, value, indent);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                let mut inner = String::new();
                block(&mut inner, item, indent + 2);
                // The first line of an item follows its hyphen.
                let _ = write!(text, "{pad}- {}", inner.trim_start());
            }
        }
        other => {
            let _ = writeln!(text, "{pad}{}", inline(other));
        }
    }
}

fn after_key(text: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(entries) if !entries.is_empty() => {
            text.push('\n');
            block(text, value, indent + 2);
        }
        Value::Array(items) if !items.is_empty() => {
            text.push('\n');
            block(text, value, indent);
        }
        Value::String(s) if s.contains('\n') && is_block(s) => {
            let _ = writeln!(text, " |{}", if s.ends_with('\n') { "" } else { "-" });
            for line in s.trim_end_matches('\n').split('\n') {
                let pad = if line.is_empty() { String::new() } else { " ".repeat(indent + 2) };
                let _ = writeln!(text, "{pad}{line}");
            }
        }
        other => {
            let _ = writeln!(text, " {}", inline(other));
        }
    }
}

/// Whether a literal block reproduces the text exactly.
fn is_block(s: &str) -> bool {
    !s.starts_with([' ', '\n', '\t'])
        && !s.ends_with("\n\n")
        && !s.chars().any(|c| c != '\n' && c != '\t' && c.is_control())
}

fn inline(value: &Value) -> String {
    match value {
        Value::String(s) => word(s),
        other => other.to_string(),
    }
}

/// Writes a string as plain YAML if it is unambiguous, otherwise as JSON.
fn word(s: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let begins = s.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    let means =
        ["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&s.to_lowercase().as_str());
    if begins && !means && s.chars().all(is_plain) { s.into() } else { Value::from(s).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn blocks_words_and_texts() {
        let value = json!({
            "a": [{"b": 1, "c": ["x y", "--z"]}, {}], "d": "true", "e": "one\n  two\n\nthree\n", "f": {"g.h/i": "2x4"}, "k": " \n",
        });
        let want = "a:\n- b: 1\n  c:\n  - \"x y\"\n  - \"--z\"\n- {}\nd: \"true\"\ne: |\n  one\n    two\n\n  three\nf:\n  g.h/i: \"2x4\"\nk: \" \\n\"\n";
        assert_eq!(yaml(&value), want);
    }
}
