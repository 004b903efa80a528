//! CSV after RFC 4180: fields between separators, quoted where they hold separators, quotes or line ends.

use systole_base::{Error, ErrorKind, Result};

/// Splits one record that begins at the start of `text`: its fields, and the bytes that it takes with its line end.
/// `None`: the text ends within a quoted field, so more of it is needed.
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

/// A number of a field; the error names what is there instead.
pub(crate) fn number<T: std::str::FromStr>(text: &str, kind: &str) -> Result<T> {
    text.trim().parse().map_err(|_| {
        let shown: String = text.chars().take(40).collect();
        Error::new(ErrorKind::Data, format!("{shown:?} is no {kind}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
