//! Path templates such as `runs/{epoch:02}-{val_loss:.2}.safetensors`.
//!
//! Parsed once, so that mistakes are reported before the first step.

use crate::model::history::Logs;
use std::path::PathBuf;
use systole_ir::{Result, ensure, err};

/// A path with fields.
#[derive(Clone, Debug)]
pub(crate) struct PathTemplate {
    text: String,
    parts: Vec<TemplatePart>,
}

#[derive(Clone, Debug)]
enum TemplatePart {
    Text(String),
    Field { name: String, format: NumberFormat },
}

/// Python format: fill and alignment, width, precision, and `d`, `f` or `e`.
#[derive(Clone, Copy, Debug)]
struct NumberFormat {
    fill: char,
    align: char,
    width: usize,
    digits: Option<usize>,
    kind: char,
}

impl PathTemplate {
    /// Parses a path template with fields: `{epoch}`, `{epoch:03d}`, `{val_loss:.2}`, `{loss:.1e}`, `{epoch:>3}`.
    pub fn parse(text: &str) -> Result<PathTemplate> {
        let bad = |why: String| {
            err!(Config, "the path `{text}` has an invalid field")
                .because(why)
                .hint("use {epoch}, {epoch:02}, {step} or values of the epoch such as {val_loss:.2}")
        };
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, after)) = rest.split_once('{') {
            let (field, tail) = after.split_once('}').ok_or_else(|| bad("a { has no matching }".into()))?;
            let (name, format) = field.split_once(':').unwrap_or((field, ""));
            ensure!(!name.is_empty(), bad("{} contains no name".into()));
            if name == "batch" {
                return Err(bad(
                    "{batch} is not available: models are saved after epochs or steps of the run; use {step}"
                        .into(),
                ));
            }
            let format = NumberFormat::parse(format)
                .ok_or_else(|| bad(format!("`{format}` is not a number format")))?;
            if !before.is_empty() {
                parts.push(TemplatePart::Text(before.into()));
            }
            parts.push(TemplatePart::Field { name: name.into(), format });
            rest = tail;
        }
        parts.push(TemplatePart::Text(rest.into()));
        Ok(PathTemplate { text: text.into(), parts })
    }

    /// Inserts the name before each value, as Lightning does: `{epoch:02d}` as `epoch=02`.
    pub fn with_names(mut self) -> PathTemplate {
        let named = self.parts.into_iter().flat_map(|part| match part {
            TemplatePart::Field { name, format } => {
                vec![TemplatePart::Text(format!("{name}=")), TemplatePart::Field { name, format }]
            }
            text => vec![text],
        });
        self.parts = named.collect();
        self
    }

    /// Whether the path template has no fields.
    pub fn is_fixed(&self) -> bool {
        !self.parts.iter().any(|part| matches!(part, TemplatePart::Field { .. }))
    }

    /// Returns the names of values that the path template requires besides epoch and step.
    pub fn values(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            TemplatePart::Field { name, .. } if !["epoch", "step"].contains(&name.as_str()) => {
                Some(name.as_str())
            }
            _ => None,
        })
    }

    /// Returns an error if a value in the path template is not measured.
    pub fn check(&self, measured: &[String]) -> Result<()> {
        let unknown = self.values().find(|name| {
            let plain = name.strip_prefix("val_").unwrap_or(name);
            // A metric with several values appends an index to its name.
            !measured.iter().any(|m| plain.starts_with(m.as_str()))
        });
        match unknown {
            None => Ok(()),
            Some(name) => Err(err!(Config, "the path `{}` has an invalid field", self.text)
                .because(format!("the value `{name}` is not measured"))
                .hint(format!(
                    "use {{epoch}}, {{step}}, {}, or one of these names with the prefix val_",
                    measured.join(", ")
                ))),
        }
    }

    /// Returns the template's folder, if no field is part of its name.
    pub fn folder(&self) -> Option<PathBuf> {
        let fixed = match self.parts.first() {
            Some(TemplatePart::Text(text)) => text.as_str(),
            _ => "",
        };
        let folder = fixed.rsplit_once(['/', std::path::MAIN_SEPARATOR])?.0;
        (!folder.is_empty()).then(|| folder.into())
    }

    /// Returns the path for an epoch (from 0) and a step; epochs are written from 1 on, as in Keras. `None` if a value
    /// is missing.
    pub fn fill(&self, epoch: usize, step: u64, logs: &Logs) -> Option<PathBuf> {
        let mut out = String::new();
        for part in &self.parts {
            match part {
                TemplatePart::Text(text) => out.push_str(text),
                TemplatePart::Field { name, format } if name == "epoch" => {
                    out.push_str(&format.whole(epoch as u64 + 1))
                }
                TemplatePart::Field { name, format } if name == "step" => out.push_str(&format.whole(step)),
                TemplatePart::Field { name, format } => out.push_str(&format.number(logs.get(name)?)),
            }
        }
        Some(out.into())
    }
}

impl NumberFormat {
    fn parse(text: &str) -> Option<NumberFormat> {
        let mut format = NumberFormat { fill: ' ', align: '>', width: 0, digits: None, kind: ' ' };
        let chars: Vec<char> = text.chars().collect();
        let is_align = |c: Option<&char>| c.is_some_and(|c| "<>^".contains(*c));
        let mut rest = match (is_align(chars.get(1)), is_align(chars.first())) {
            (true, _) => {
                (format.fill, format.align) = (chars[0], chars[1]);
                &chars[2..]
            }
            (_, true) => {
                format.align = chars[0];
                &chars[1..]
            }
            _ => &chars[..],
        };
        if rest.first() == Some(&'0') {
            format.fill = '0';
        }
        let digits = |rest: &mut &[char]| -> Option<usize> {
            let n = rest.iter().take_while(|c| c.is_ascii_digit()).count();
            let (number, after) = rest.split_at(n);
            *rest = after;
            number.iter().collect::<String>().parse().ok().filter(|n| *n <= 100)
        };
        if rest.first().is_some_and(char::is_ascii_digit) {
            format.width = digits(&mut rest)?;
        }
        if let ['.', after @ ..] = rest {
            rest = after;
            format.digits = Some(digits(&mut rest)?);
        }
        match rest {
            [] => Some(format),
            [kind @ ('d' | 'f' | 'e' | 'g')] => Some(NumberFormat { kind: *kind, ..format }),
            _ => None,
        }
    }

    fn whole(&self, n: u64) -> String {
        match self.kind {
            'f' | 'e' => self.number(n as f64),
            _ => self.padded(n.to_string()),
        }
    }

    fn number(&self, v: f64) -> String {
        let digits = self.digits.unwrap_or(4);
        self.padded(match self.kind {
            'e' => {
                // Python writes a sign and at least two digits of the exponent.
                let text = format!("{v:.digits$e}");
                let (number, exponent) = text.split_once('e').unwrap_or((&text, "0"));
                let exponent: i32 = exponent.parse().unwrap_or(0);
                let sign = if exponent < 0 { '-' } else { '+' };
                format!("{number}e{sign}{:02}", exponent.abs())
            }
            'd' => format!("{v:.0}"),
            _ => format!("{v:.digits$}"),
        })
    }

    fn padded(&self, text: String) -> String {
        let lacking = self.width.saturating_sub(text.chars().count());
        let fill = |n: usize| self.fill.to_string().repeat(n);
        match self.align {
            '<' => text + &fill(lacking),
            '^' => fill(lacking / 2) + &text + &fill(lacking - lacking / 2),
            _ => fill(lacking) + &text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::ErrorKind;
    use systole_testing::assert_error;

    fn logs() -> Logs {
        let mut logs = Logs::new();
        logs.insert("loss", 0.012_34);
        logs
    }

    #[test]
    fn formats_are_pythons() {
        for (template, expected) in [
            ("{epoch}", "7"),
            ("{epoch:02}", "07"),
            ("{epoch:03d}", "007"),
            ("m-{epoch:>3}.x", "m-  7.x"),
            ("{epoch:_<3}", "7__"),
            ("{loss}", "0.0123"),
            ("{loss:.2}", "0.01"),
            ("{loss:.3f}", "0.012"),
            ("{loss:.2e}", "1.23e-02"),
            ("{loss:08.3f}", "0000.012"),
            ("{step:06d}", "000070"),
        ] {
            let path = PathTemplate::parse(template).unwrap().fill(6, 70, &logs()).unwrap();
            assert_eq!(path, PathBuf::from(expected), "{template}");
        }
    }

    #[test]
    fn names_of_values_stand_before_them_as_lightning_writes_them() {
        let template = PathTemplate::parse("{epoch:02d}-{loss:.2f}-{step}").unwrap();
        let (path, named) = (template.fill(1, 9, &logs()), template.clone().with_names().fill(1, 9, &logs()));
        assert_eq!(path, Some("02-0.01-9".into()));
        assert_eq!(named, Some("epoch=02-loss=0.01-step=9".into()));
        assert!(!template.is_fixed() && PathTemplate::parse("a").unwrap().with_names().is_fixed());
    }

    #[test]
    fn mistakes_are_told_before_anything_is_saved() {
        for wrong in ["{batch}", "{epoch", "{}", "{epoch:x}", "{loss:.2q}", "{loss:.}"] {
            let e = PathTemplate::parse(wrong).unwrap_err().to_string();
            assert!(e.contains("{epoch:02}"), "{wrong}: {e}");
        }
        let measured = ["loss".to_string(), "accuracy".into()];
        assert!(PathTemplate::parse("{val_loss}-{accuracy}").unwrap().check(&measured).is_ok());
        let e = PathTemplate::parse("{val_los}").unwrap().check(&measured).unwrap_err();
        assert_error(&e, ErrorKind::Config, &["val_los"]);
        let t = PathTemplate::parse("runs/{epoch}/m-{val_loss}").unwrap();
        assert_eq!((t.folder(), t.fill(0, 9, &logs())), (Some("runs".into()), None));
    }
}
