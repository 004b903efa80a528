//! Quotes arguments for a POSIX shell.

use std::path::Path;

/// Quotes an argument for a POSIX shell: unchanged if that is safe, otherwise in single quotes.
///
/// ```
/// assert_eq!(systole_data::shell_quoted("runs/a"), "runs/a");
/// assert_eq!(systole_data::shell_quoted("it's"), r"'it'\''s'");
/// ```
pub fn shell_quoted(argument: impl AsRef<Path>) -> String {
    let text = argument.as_ref().display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "-_./=:+,@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}
