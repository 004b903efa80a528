//! Builds shell scripts from a comment header, generated settings and a fixed body.

use systole_data::shell_quoted as quoted;

/// Returns a script: comment header, settings, body.
pub(super) fn script(heading: &str, settings: &[(&str, String)], body: &str) -> String {
    let lines: String = settings.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    format!("#!/usr/bin/env bash\n{heading}set -euo pipefail\ncd \"$(dirname \"$0\")\"\n\n{lines}\n{body}")
}

/// Quotes the value of a setting.
pub(super) fn word(value: impl AsRef<str>) -> String {
    match value.as_ref() {
        "" => String::new(),
        value => quoted(value),
    }
}

/// Formats a bash array.
pub(super) fn array(words: &[String]) -> String {
    format!("({})", words.iter().map(quoted).collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_shell_would_change_is_quoted() {
        let text = script(
            "# x\n",
            &[("A", word("")), ("B", word("$x`y`")), ("C", array(&["a b".into(), "-c".into()]))],
            "echo\n",
        );
        assert!(text.ends_with("\nA=\nB='$x`y`'\nC=('a b' -c)\n\necho\n"), "{text}");
    }
}
