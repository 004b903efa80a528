//! What was probably meant where a name was typed wrongly.

use systole_ir::{Error, ErrorKind};

/// The candidate nearest to what was typed, by edit distance; letters missing at the end count little, so that the
/// beginning of a long name finds it.
pub fn nearest<'a>(typed: &str, candidates: &[&'a str]) -> &'a str {
    candidates.iter().copied().min_by_key(|c| distance(typed, c)).unwrap_or("")
}

/// Four for each insertion, deletion or replacement that turns `a` into a beginning of `b`, one for each letter after.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    let beginnings = row.iter().enumerate().map(|(j, edits)| 4 * edits + (b.len() - j));
    beginnings.min().unwrap_or(0)
}

/// An error that names the nearest of what is known.
pub(crate) fn unknown(what: &str, typed: &str, known: &[&str]) -> Error {
    let hint = match known {
        [] => "it takes none".to_string(),
        _ => format!("did you mean `{}`? All: {}", nearest(typed, known), known.join(", ")),
    };
    Error::new(ErrorKind::Config, what).hint(hint)
}

/// Serde's message about a value as an error that names the nearest, where it lists what it knows.
pub(crate) fn with_reason(error: Error, message: &str) -> Error {
    // Serde's wording: unknown variant `x`, expected one of `a`, `b`
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match quoted.as_slice() {
        [typed, known @ ..] if message.starts_with("unknown") && !known.is_empty() => {
            let hint = format!("did you mean `{}`? All: {}", nearest(typed, known), known.join(", "));
            error.because(message).hint(hint)
        }
        _ => error.because(message),
    }
}
