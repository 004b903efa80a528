//! Escapes text for HTML.

/// Escapes text for HTML and XML. Characters that are invalid in either become �.
pub fn escaped(text: &str) -> String {
    let mut done = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => done.push_str("&amp;"),
            '<' => done.push_str("&lt;"),
            '>' => done.push_str("&gt;"),
            '"' => done.push_str("&quot;"),
            '\'' => done.push_str("&#39;"),
            '\n' | '\t' => done.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => done.push('\u{fffd}'),
            c => done.push(c),
        }
    }
    done
}
