//! Configuration error that names its key, and lookup of the key's line in the TOML text.

use super::key_suggestions;
use systole_ir::{Error, ErrorKind, err};
use systole_nn::did_you_mean::{plain_serde_error, suggestion};
use toml::de::{DeTable, DeValue};

/// Error about one configuration key (`layers.0.filters`).
#[derive(Debug)]
pub(super) struct KeyError {
    pub(super) path: Vec<String>,
    pub(super) error: Error,
}

impl KeyError {
    pub(super) fn new(path: &str, what: impl Into<String>) -> KeyError {
        KeyError::of(path, Error::new(ErrorKind::Config, what))
    }

    pub(super) fn of(path: &str, error: Error) -> KeyError {
        KeyError { path: split(path), error }
    }

    #[track_caller]
    pub(super) fn hint(self, hint: impl Into<String>) -> KeyError {
        KeyError { error: self.error.hint(hint), ..self }
    }

    #[track_caller]
    pub(super) fn hint_command(self, hint: impl Into<String>) -> KeyError {
        self.hint(hint)
    }

    #[track_caller]
    pub(super) fn hint_setting(self, hint: impl Into<String>) -> KeyError {
        self.hint(hint)
    }
}

/// Splits a dotted key.
pub(super) fn split(path: &str) -> Vec<String> {
    path.split('.').map(|p| p.trim().to_string()).collect()
}

/// Returns an error for an unknown name and suggests the nearest known one. File names get the full list instead.
pub(super) fn unknown(what: &str, name: &str, known: &[&str]) -> Error {
    let hint = match name.contains(['.', '/']) {
        true => format!("use one of: {}", known.join(", ")),
        false => suggestion(name, known),
    };
    err!(Config, "{what} `{name}`").hint_setting(hint)
}

/// Converts Serde's message to a configuration error; for an unknown key or variant it suggests the nearest known one.
pub(super) fn from_serde(message: &str) -> Error {
    let message = message.trim();
    // Serde's wording: unknown field `x`, expected one of `a`, `b`
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match quoted.as_slice() {
        [key, known @ ..] if message.starts_with("unknown field") && !known.is_empty() => {
            err!(Config, "unknown key `{key}`").hint_setting(key_suggestions::hint(key, known))
        }
        [name, known @ ..] if message.starts_with("unknown variant") && !known.is_empty() => {
            unknown("unknown value", name, known)
        }
        _ => {
            let (what, hint) = plain_serde_error(message);
            let error = Error::new(ErrorKind::Config, what);
            match hint {
                Some(hint) => error.hint_setting(hint),
                None => error,
            }
        }
    }
}

/// Returns the line number, from 1, of a byte offset.
pub(super) fn line_at(text: &str, offset: usize) -> usize {
    text.as_bytes().iter().take(offset).filter(|b| **b == b'\n').count() + 1
}

/// Returns the line of the key, or of the deepest part of its path that the text contains.
pub(super) fn line_of(text: &str, path: &[String]) -> Option<usize> {
    let root = DeTable::parse(text).ok()?;
    let mut found = None;
    let mut here: Option<&DeValue<'_>> = None;
    for (depth, part) in path.iter().enumerate() {
        let table = match (depth, here) {
            (0, _) => Some(root.get_ref()),
            (_, Some(DeValue::Table(t))) => Some(t),
            _ => None,
        };
        let next = match (table, here) {
            (Some(table), _) => table.iter().find(|(k, _)| *k.get_ref() == part.as_str()).map(|(k, v)| {
                // For a list of tables the span is that of the first table; the items have their own spans.
                (k.span().start, v.get_ref())
            }),
            (None, Some(DeValue::Array(items))) => {
                part.parse::<usize>().ok().and_then(|i| items.get(i)).map(|v| (v.span().start, v.get_ref()))
            }
            _ => None,
        };
        let Some((offset, value)) = next else { break };
        found = Some(line_at(text, offset));
        here = Some(value);
    }
    found
}
