//! CSV parsing (RFC 4180): splits records into fields, with quoting.

use systole_base::{Result, err};

/// Parses the CSV record at the start of `text`: returns its fields and its length in bytes including the line end.
/// Returns `None` if the text ends within a quoted field, so that more of it is needed.
pub fn record(text: &str, separator: char) -> Option<(Vec<String>, usize)> {
    let (mut fields, mut field) = (Vec::new(), String::new());
    let mut is_quoted = false;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' if is_quoted => {
                if chars.peek().is_some_and(|(_, next)| *next == '"') {
                    chars.next();
                    field.push('"');
                } else {
                    is_quoted = false;
                }
            }
            '"' if field.is_empty() => is_quoted = true,
            c if is_quoted => field.push(c),
            c if c == separator => fields.push(std::mem::take(&mut field)),
            '\r' if chars.peek().is_some_and(|(_, next)| *next == '\n') => {}
            '\n' => {
                fields.push(field);
                return Some((fields, at + 1));
            }
            c => field.push(c),
        }
    }
    if is_quoted {
        return None;
    }
    fields.push(field);
    Some((fields, text.len()))
}

/// Whether a CSV cell is a missing value. `nan` is not: it is a non-finite value.
pub fn is_missing(cell: &str) -> bool {
    ["", "NA", "N/A", "n/a", "#N/A", "<NA>", "null", "NULL", "None", "?"].contains(&cell.trim())
}

/// Parses `true` or `false`, in any case; `None` for other cells.
pub fn boolean(cell: &str) -> Option<bool> {
    let cell = cell.trim();
    let is = |word: &str| cell.eq_ignore_ascii_case(word);
    (is("true") || is("false")).then(|| is("true"))
}

/// Parses a number with a decimal comma: `3,25`.
pub fn comma_number(cell: &str) -> Option<f64> {
    let cell = cell.trim();
    (!cell.contains('.') && cell.matches(',').count() == 1).then(|| cell.replace(',', ".").parse().ok())?
}

/// Returns unique column names for a CSV header: trimmed, unnamed columns by index, duplicates with a suffix (`a`,
/// `a_1`).
pub fn names(header: &[String]) -> Vec<String> {
    let mut all: Vec<String> = Vec::with_capacity(header.len());
    for (i, field) in header.iter().enumerate() {
        let name = match field.trim_start_matches('\u{feff}').trim() {
            "" => i.to_string(),
            name => name.to_string(),
        };
        let is_free = |n: &String| !all.contains(n) && (*n == name || header.iter().all(|h| h.trim() != n));
        let unique = std::iter::once(name.clone()).chain((1..).map(|k| format!("{name}_{k}"))).find(is_free);
        all.push(unique.unwrap_or(name));
    }
    all
}

/// Parses a number; the error shows the field.
pub(crate) fn number<T: std::str::FromStr>(text: &str, kind: &str) -> Result<T> {
    text.trim().parse().map_err(|_| {
        let shown: String = text.chars().take(40).collect();
        err!(Data, "expected {kind}, got {shown:?}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_column_has_a_name_of_its_own() {
        let of = |header: &str| names(&record(header, ',').unwrap().0).join("|");
        assert_eq!(of("a, b ,label"), "a|b|label");
        assert_eq!(of("a,a,a_1,a"), "a|a_2|a_1|a_3");
        assert_eq!(of(",x,"), "0|x|2");
        assert_eq!(
            (comma_number("-1,5"), comma_number("1.5"), comma_number("1,2,3")),
            (Some(-1.5), None, None)
        );
        assert_eq!((boolean(" True"), boolean("FALSE"), boolean("yes")), (Some(true), Some(false), None));
        assert!(is_missing(" NA ") && is_missing("") && !is_missing("nan") && !is_missing("0"));
    }

    #[test]
    fn quotes_separators_and_line_ends() {
        let fields = |text: &str| record(text, ',').map(|(f, n)| (f.join("|"), n));
        assert_eq!(fields("a,b,c\nd"), Some(("a|b|c".into(), 6)));
        assert_eq!(fields("a,,\r\nd"), Some(("a||".into(), 5)));
        assert_eq!(fields("\"x,\"\"y\"\"\nz\",2\n"), Some(("x,\"y\"\nz|2".into(), 14)));
        assert_eq!(fields("last"), Some(("last".into(), 4)));
        assert_eq!(fields("\"open\n"), None);
        assert_eq!(record("1;2\n", ';').unwrap().0, ["1", "2"]);
    }
}
