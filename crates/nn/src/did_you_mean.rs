//! Suggests the intended name for an unknown one.
//!
//! Considers other spellings, synonyms of PyTorch, JAX or fastai, and the nearest name by edit distance.

use crate::synonyms::SYNONYMS;
use systole_ir::{Error, ErrorKind};

/// Returns the most likely intended candidate: a synonym, otherwise the nearest by edit distance. Empty if none is
/// near: a wrong guess is worse than none.
pub fn nearest<'a>(typed: &str, candidates: &[&'a str]) -> &'a str {
    synonym(typed, candidates).or_else(|| similar(typed, candidates)).unwrap_or("")
}

/// Returns the candidate that is another spelling of `typed` (`conv_2d`) or its equivalent of a PyTorch, JAX or fastai
/// name (`nn.Linear`).
pub fn synonym<'a>(typed: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let find = |name: &str| candidates.iter().copied().find(|c| plain(c) == plain(name));
    // Without the module: torch.nn.Linear, jax::nn::relu.
    let last = typed.rsplit(['.', ':']).next().unwrap_or(typed);
    find(typed).or_else(|| find(last)).or_else(|| {
        let last = plain(last);
        let mut rows = SYNONYMS.iter().filter(|(_, others)| others.split(' ').any(|other| other == last));
        rows.find_map(|(name, _)| find(name))
    })
}

/// Returns the candidate most similar to `typed` if at most every third letter differs. Letters missing at the end cost
/// little, so that the beginning of a long name finds it.
pub fn similar<'a>(typed: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let letters: Vec<char> = plain(typed).chars().collect();
    let reach = if letters.len() < 2 { 0 } else { (letters.len() / 3).max(1) };
    let measured =
        candidates.iter().map(|c| (distance(&letters, c), *c)).filter(|((edits, _), _)| *edits <= reach);
    let nearest = measured.min_by_key(|((edits, missing), _)| 4 * edits + missing);
    nearest.filter(|_| !letters.is_empty()).map(|(_, c)| c)
}

/// Removes case and punctuation from a name.
fn plain(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Edit distance with transpositions between `a` and a prefix of `b`, and the number of letters of `b` after that
/// prefix. Chooses the prefix that minimizes four times the first plus the second.
fn distance(a: &[char], b: &str) -> (usize, usize) {
    let b: Vec<char> = plain(b).chars().collect();
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut edits = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                edits = edits.min(rows[i - 2][j - 2] + 1);
            }
            row.push(edits);
        }
        rows.push(row);
    }
    let beginnings = rows[a.len()].iter().enumerate().map(|(j, edits)| (*edits, b.len() - j));
    beginnings.min_by_key(|(edits, missing)| 4 * edits + missing).unwrap_or((a.len(), b.len()))
}

/// Returns a hint for an unknown name: the likely intended name, if clear, and all known names.
pub fn suggestion(typed: &str, known: &[&str]) -> String {
    match (nearest(typed, known), known.join(", ")) {
        ("", all) if all.is_empty() => "it accepts none".into(),
        ("", all) => format!("one of: {all}"),
        (meant, all) => format!("did you mean `{meant}`? available: {all}"),
    }
}

/// Like [`suggestion`], for more names than a line holds: the three most similar ones, and the command that lists all.
pub fn nearest_three(typed: &str, known: &[&str], lists_all: &str) -> String {
    let letters: Vec<char> = plain(typed).chars().collect();
    let meant = nearest(typed, known);
    let mut others: Vec<&str> = known.iter().copied().filter(|name| *name != meant).collect();
    others.sort_by_key(|name| {
        let (edits, missing) = distance(&letters, name);
        4 * edits + missing
    });
    let others =
        |n: usize| others.iter().take(n).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    match meant {
        "" => format!("similar names: {}; list all with `{lists_all}`", others(3)),
        meant => format!("did you mean `{meant}`? similar: {}; list all with `{lists_all}`", others(2)),
    }
}

/// Creates an error whose hint suggests the likely intended name.
pub(crate) fn unknown(what: &str, typed: &str, known: &[&str]) -> Error {
    Error::new(ErrorKind::Config, what).hint(suggestion(typed, known))
}

/// Creates an error about an unknown argument. Arguments are few, so the hint always suggests the nearest.
pub(crate) fn unknown_argument(what: &str, typed: &str, known: &[&str]) -> Error {
    let letters: Vec<char> = plain(typed).chars().collect();
    let measure = |c: &&&str| {
        let (edits, missing) = distance(&letters, c);
        4 * edits + missing
    };
    match (nearest(typed, known), known.iter().min_by_key(measure)) {
        ("", Some(least_far)) => Error::new(ErrorKind::Config, what)
            .hint(format!("did you mean `{least_far}`? available: {}", known.join(", "))),
        _ => unknown(what, typed, known),
    }
}

/// Adds serde's message about a value to an error in plain words, with a hint: the likely intended name if serde lists
/// known names, or the correct notation of the value.
pub(crate) fn with_reason(error: Error, message: &str) -> Error {
    // A name that a type's own parser rejected, with its hint.
    if let Some((why, hint)) = message.split_once("; ").filter(|_| message.starts_with("unknown")) {
        return error.because(why).hint(hint);
    }
    // Serde's wording: unknown variant `x`, expected one of `a`, `b`
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match quoted.as_slice() {
        [typed, known @ ..] if message.starts_with("unknown") && !known.is_empty() => {
            let why = message.split(", expected ").next().unwrap_or(message);
            error.because(why).hint(suggestion(typed, known))
        }
        _ => {
            let (why, hint) = plain_serde_error(message);
            match hint {
                Some(hint) => error.because(why).hint(hint),
                None => error.because(why),
            }
        }
    }
}

/// Rust types in serde's messages, and how users call them.
const TYPES: [(&str, &str); 12] = [
    ("usize", "an integer"),
    ("u64", "an integer"),
    ("u32", "an integer"),
    ("u16", "an integer"),
    ("u8", "an integer from 0 to 255"),
    ("i64", "an integer"),
    ("i32", "an integer"),
    ("f64", "a number"),
    ("f32", "a number"),
    ("a boolean", "true or false"),
    ("a sequence", "a list"),
    ("a map", "a table"),
];

/// Rewrites serde's `invalid type: string "10", expected usize` without Rust types, and suggests a correction.
pub fn plain_serde_error(message: &str) -> (String, Option<String>) {
    let Some((found, expected)) = message.split_once(", expected ") else { return (message.into(), None) };
    let (expected, rest) = expected.split_once(" at line ").map_or((expected, None), |(e, r)| (e, Some(r)));
    let Some((_, called)) = TYPES.iter().find(|(ty, _)| *ty == expected) else {
        return (message.into(), None);
    };
    let unsigned = expected.starts_with('u') && found.contains("integer `-");
    let below = if unsigned { " of at least 0" } else { "" };
    let place = rest.map_or(String::new(), |r| format!(" at line {r}"));
    let hint = rewritten(found, called).unwrap_or_else(|| format!("write {called}{below}"));
    (format!("{found}, expected {called}{below}{place}"), Some(hint))
}

/// Returns the correct notation of a value that serde rejected only for its notation.
fn rewritten(found: &str, called: &str) -> Option<String> {
    let text = found.split_once("string \"").and_then(|(_, rest)| rest.strip_suffix('"'));
    if let Some(text) = text {
        let whole = called.starts_with("an integer") && text.trim().parse::<u64>().is_ok();
        let number = called == "a number" && text.trim().parse::<f64>().is_ok_and(f64::is_finite);
        let truth = called == "true or false" && ["true", "false"].contains(&text.trim());
        return (whole || number || truth).then(|| format!("write it without quotes: {}", text.trim()));
    }
    let (_, float) = found.split_once("floating point `")?;
    let value: f64 = float.strip_suffix('`')?.parse().ok()?;
    let is_whole = called.starts_with("an integer") && value.fract() == 0.0 && value.abs() < 9e15;
    is_whole.then(|| format!("write it without the decimal point: {value:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::initializer;
    use crate::layers::LAYER_NAMES;
    use crate::{loss, metric, optimizer};

    #[test]
    fn names_of_other_systems_come_before_what_looks_alike() {
        let layers = [
            ("Linear", "Dense"),
            ("nn.Linear", "Dense"),
            ("torch.nn.BatchNorm2d", "BatchNormalization"),
            ("AdaptiveAvgPool2d", "GlobalAveragePooling2D"),
            ("MaxPool2d", "MaxPooling2D"),
            ("Conv2d", "Conv2D"),
            ("conv_2d", "Conv2D"),
            ("LayerNorm", "LayerNormalization"),
            ("cat", "Concatenate"),
            ("Embed", "Embedding"),
            ("TransformerEncoderLayer", "TransformerBlock"),
            ("MultiHeadDotProductAttention", "MultiHeadAttention"),
            ("RNN", "SimpleRNN"),
            ("Desne", "Dense"),
        ];
        for (typed, meant) in layers {
            assert_eq!(nearest(typed, LAYER_NAMES), meant, "{typed}");
        }
        for typed in ["cross_entropy", "CrossEntropyLoss", "nll_loss", "F.cross_entropy"] {
            assert_eq!(nearest(typed, &loss::NAMES), "sparse_categorical_crossentropy", "{typed}");
        }
        assert_eq!(nearest("binary_cross_entropy", &loss::NAMES), "binary_crossentropy");
        assert_eq!(nearest("MSELoss", &loss::NAMES), "mean_squared_error");
        assert_eq!(nearest("SmoothL1Loss", &loss::NAMES), "huber");
        assert_eq!(nearest("momentum", optimizer::NAMES), "sgd");
        assert_eq!(nearest("lion", optimizer::NAMES), "lion");
        assert_eq!(nearest("top5", metric::NAMES), "sparse_top_k_categorical_accuracy");
        assert_eq!(nearest("xavier_uniform_", &initializer::NAMES), "glorot_uniform");
        assert_eq!(nearest("kaiming_normal_", &initializer::NAMES), "he_normal");
        assert_eq!(nearest("lr", &["epochs", "learning_rate"]), "learning_rate");
    }

    #[test]
    fn where_nothing_is_near_nothing_is_guessed() {
        for typed in ["lbfgs", "adabelief", "shampoo", "x", ""] {
            assert_eq!(nearest(typed, optimizer::NAMES), "", "{typed}");
        }
        assert_eq!(nearest("early_stopping", &["epochs", "batch_size", "steps_per_epoch"]), "");
        assert_eq!(nearest("fit", &["init", "plan"]), "");
        assert_eq!(suggestion("adagrad", &["sgd", "adam"]), "one of: sgd, adam");
        assert_eq!(suggestion("adm", &["sgd", "adam"]), "did you mean `adam`? available: sgd, adam");
        assert_eq!(
            similar("lino", &["sgd", "lion"]),
            Some("lion"),
            "neighbours that are swapped are one mistake"
        );
    }

    #[test]
    fn every_synonym_means_something_and_is_written_as_it_is_compared() {
        let mut seen = std::collections::HashSet::new();
        for (name, others) in SYNONYMS {
            for other in others.split(' ') {
                assert_eq!(other, plain(other), "{name}");
                assert_ne!(other, plain(name), "{name} is found without");
                assert!(seen.insert((other, name)), "{other} stands twice for {name}");
            }
        }
    }

    #[test]
    fn serde_s_words_are_told_in_plain_ones() {
        let told = |message: &str| plain_serde_error(message);
        let (why, hint) = told("invalid type: string \"10\", expected usize");
        assert_eq!(why, "invalid type: string \"10\", expected an integer");
        assert_eq!(hint.as_deref(), Some("write it without quotes: 10"));
        let (why, hint) = told("invalid value: integer `-1`, expected usize");
        assert_eq!(why, "invalid value: integer `-1`, expected an integer of at least 0");
        assert_eq!(hint.as_deref(), Some("write an integer of at least 0"));
        assert_eq!(told("invalid type: string \"1e400\", expected f64").1.unwrap(), "write a number");
        let (why, hint) = told("invalid type: floating point `10.0`, expected u64");
        assert!(
            why.ends_with("expected an integer") && hint.unwrap().ends_with("decimal point: 10"),
            "{why}"
        );
        assert_eq!(told("invalid type: floating point `0.5`, expected usize").1.unwrap(), "write an integer");
        let (why, hint) = told("invalid type: string \"true\", expected a boolean");
        assert!(why.ends_with("true or false") && hint.unwrap().ends_with("quotes: true"), "{why}");
        assert_eq!(
            told("expected an integer or two: 3 or [3, 3]").0,
            "expected an integer or two: 3 or [3, 3]"
        );
    }
}
