//! Parses an error as the program prints it, and tells names (keys, options, files, shapes, numbers) from prose.

use systole_base::Error;

/// An error on standard error: `error[KIND]: WHAT`, followed by `where:`, `why:` and `try:`.
#[derive(Debug, Default)]
pub struct ShownError {
    /// Word between the brackets; empty for an error that was not printed.
    pub kind: String,
    /// Message with the causes.
    pub message: String,
    /// Locations.
    pub place: String,
    /// Text after `try:`; for an error of clap its tip and usage.
    pub hint: String,
}

impl ShownError {
    /// Returns the parts of a library's error.
    pub fn of(error: &Error) -> ShownError {
        let lines = |parts: &[String]| -> String { parts.iter().map(|part| format!("{part}\n")).collect() };
        ShownError {
            kind: String::new(),
            message: format!("{}\n{}", error.what(), lines(error.reasons())),
            place: lines(error.places()),
            hint: error.hint_text().unwrap_or_default().into(),
        }
    }

    /// Parses the only error in the output of a program.
    pub fn parse(output: &str) -> Option<ShownError> {
        let start = output.lines().position(|line| line.starts_with("error["))?;
        let rest: String = output.lines().skip(start).map(|line| format!("{line}\n")).collect();
        let rest = rest.strip_prefix("error[")?;
        let (kind, text) = rest.split_once("]: ")?;
        let mut shown = ShownError { kind: kind.into(), ..ShownError::default() };
        let mut section = 0;
        for line in text.lines() {
            let heads = [
                ("  where: ", 1),
                ("  why: ", 0),
                ("  try: ", 2),
                ("  tip: ", 2),
                ("Usage: ", 2),
                ("For more ", 2),
            ];
            let head = heads.into_iter().find(|(head, _)| line.starts_with(head));
            section = head.map_or(section, |(_, section)| section);
            let line = line.strip_prefix(head.map_or("", |(head, _)| head)).unwrap_or(line);
            let part = match section {
                0 => &mut shown.message,
                1 => &mut shown.place,
                _ => &mut shown.hint,
            };
            *part += &format!("{line}\n");
        }
        Some(shown)
    }

    /// Returns why `name` is not a name that this error mentions: absent, or prose.
    pub fn lacks(&self, name: &str) -> Option<String> {
        let whole = format!("{}{}{}", self.message, self.place, self.hint);
        let is_quoted =
            ['`', '\''].iter().any(|&c| name.len() > 2 && name.starts_with(c) && name.ends_with(c));
        let is_named = has(&self.place, name)
            || is_quoted && whole.contains(name)
            || whole.split('`').skip(1).step_by(2).any(|span| has(span, name))
            || is_command(name) && has(&self.hint, name)
            || is_symbol(name) && has(&whole, name);
        match (is_named, whole.contains(name)) {
            (true, _) => None,
            (false, true) => Some(format!(
                "`{name}` is not a name: a name is in back-ticks, on the `where:` line, or a number, path, key or option"
            )),
            (false, false) => Some(format!("the error does not name `{name}`")),
        }
    }
}

/// Whether `text` contains `name` as a whole word.
fn has(text: &str, name: &str) -> bool {
    let is_inner = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(name).any(|(at, _)| {
        let before = text[..at].chars().next_back().is_some_and(is_inner) && name.starts_with(is_inner);
        let after = text[at + name.len()..].chars().next().is_some_and(is_inner) && name.ends_with(is_inner);
        !before && !after
    })
}

/// Whether the text is a command line: options with at most one value each, or the program with arguments.
fn is_command(text: &str) -> bool {
    let words: Vec<&str> = text.split(' ').collect();
    let has_values = words.windows(2).any(|pair| pair.iter().all(|word| !word.starts_with('-')));
    text.starts_with("--") && !has_values || text.starts_with("systole ") || text.starts_with("export ")
}

/// Whether a text has two English words in a row that are not a name in back-ticks.
pub fn is_prose(text: &str) -> bool {
    let outside: Vec<&str> = text.split('`').step_by(2).collect();
    outside.iter().any(|part| {
        let is_word = |word: &str| {
            let word = word.trim_matches(['.', ',', ':', ';', '(', ')', '?', '!']);
            word.len() > 1 && word.chars().all(|c| c.is_ascii_lowercase() || c == '\'')
        };
        let words: Vec<bool> = part.split(' ').filter(|w| !w.is_empty()).map(is_word).collect();
        words.windows(2).any(|pair| pair[0] && pair[1])
    })
}

/// Whether the text is an option, number with or without unit, shape, path, key or class name, which prose does not
/// contain.
fn is_symbol(text: &str) -> bool {
    let mut depth = 0;
    let is_spaced = text.chars().any(|c| {
        depth += i32::from(matches!(c, '[' | '(')) - i32::from(matches!(c, ']' | ')'));
        c == ' ' && depth == 0
    });
    let is_number = |word: &str| word.starts_with(|c: char| c.is_ascii_digit());
    let unit = text.split_once(' ').filter(|(number, _)| is_number(number)).map(|(_, unit)| unit);
    let has_unit = unit.is_some_and(|unit| ["KiB", "MiB", "GiB", "ms", "s", "%"].contains(&unit));
    let inner = text.trim_end_matches(['.', ':', ',', ';', '?', '!']);
    let has_mark = inner.contains(|c: char| c.is_ascii_digit() || "_./=*[]<>@%|".contains(c));
    let is_class = inner.chars().skip(1).any(|c| c.is_ascii_uppercase());
    has_unit || !is_spaced && (has_mark || is_class || inner.starts_with('-') || text == ".")
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_base::ErrorKind;

    #[test]
    fn names_are_told_from_prose() {
        let error = Error::new(ErrorKind::Data, "the records of `a b` have f32[2, 3] at byte 9")
            .at("data.csv, line 2")
            .because("the key is data.records.label")
            .hint("remove --tta 3");
        let shown = ShownError::of(&error);
        for name in ["a b", "`a b`", "f32[2, 3]", "9", "line 2", "data.csv", "data.records.label", "--tta 3"]
        {
            assert_eq!(shown.lacks(name), None, "{name}");
        }
        for prose in ["the records", "records", "have", "key", "99", "byte", "remove"] {
            assert!(shown.lacks(prose).is_some(), "{prose}");
        }
    }
}
