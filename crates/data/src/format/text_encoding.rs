//! Text encodings (UTF-8, Latin-1, Windows-1252, UTF-16): detects byte order marks and converts to UTF-8.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use systole_base::{Error, Result, err};

/// Text encoding: UTF-8, Latin-1, Windows-1252 or UTF-16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextEncoding {
    /// UTF-8.
    Utf8,
    /// ISO 8859-1: each byte is a code point.
    Latin1,
    /// Latin-1 with quotes, dashes and the euro sign instead of 32 control characters.
    Windows1252,
    /// UTF-16, little endian.
    Utf16Le,
    /// UTF-16, big endian.
    Utf16Be,
}

/// Names of the encodings, including those used by Python and web pages.
const NAMES: [(&str, TextEncoding); 13] = [
    ("utf-8", TextEncoding::Utf8),
    ("latin1", TextEncoding::Latin1),
    ("windows-1252", TextEncoding::Windows1252),
    ("utf-16", TextEncoding::Utf16Le),
    ("utf-16be", TextEncoding::Utf16Be),
    ("utf8", TextEncoding::Utf8),
    ("latin-1", TextEncoding::Latin1),
    ("iso-8859-1", TextEncoding::Latin1),
    ("cp1252", TextEncoding::Windows1252),
    ("ansi", TextEncoding::Windows1252),
    ("utf16", TextEncoding::Utf16Le),
    ("utf-16le", TextEncoding::Utf16Le),
    ("utf-16-le", TextEncoding::Utf16Le),
];
/// Number of names listed in messages, from the first.
const NAMED: usize = 5;

/// Windows-1252 from 0x80 to 0x9f; five codes are unassigned and map as in Latin-1.
const WINDOWS: [char; 32] = [
    '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž', '\u{8f}', '\u{90}',
    '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9d}', 'ž', 'Ÿ',
];

impl FromStr for TextEncoding {
    type Err = Error;

    fn from_str(name: &str) -> Result<TextEncoding> {
        let lower = name.trim().to_lowercase().replace('_', "-");
        NAMES.iter().find(|(known, _)| *known == lower).map(|(_, encoding)| *encoding).ok_or_else(|| {
            let known: Vec<&str> = NAMES[..NAMED].iter().map(|(known, _)| *known).collect();
            err!(Config, "unknown encoding `{name}`")
                .hint_setting(format!("use one of these encodings: {}", known.join(", ")))
        })
    }
}

impl fmt::Display for TextEncoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(_, encoding)| encoding == self).map_or("", |(name, _)| *name);
        f.write_str(name)
    }
}

impl TextEncoding {
    /// Detects UTF-16 by the byte order mark.
    pub fn of_mark(start: &[u8]) -> Option<TextEncoding> {
        match start {
            [0xff, 0xfe, ..] => Some(TextEncoding::Utf16Le),
            [0xfe, 0xff, ..] => Some(TextEncoding::Utf16Be),
            _ => None,
        }
    }

    /// Whether the encoding's code units have two bytes, so that lines can be found only after decoding.
    pub fn is_wide(self) -> bool {
        matches!(self, TextEncoding::Utf16Le | TextEncoding::Utf16Be)
    }

    /// Decodes text of an encoding with single bytes. UTF-16 must have been converted to UTF-8 before.
    ///
    /// # Errors
    /// If the text should be UTF-8 and is not.
    pub fn text(self, bytes: &[u8]) -> Result<Cow<'_, str>, std::str::Utf8Error> {
        let decode = |of: fn(u8) -> char| Ok(Cow::Owned(bytes.iter().map(|b| of(*b)).collect()));
        match self {
            _ if bytes.is_ascii() => std::str::from_utf8(bytes).map(Cow::Borrowed),
            TextEncoding::Latin1 => decode(char::from),
            TextEncoding::Windows1252 => decode(|b| match b {
                0x80..=0x9f => WINDOWS[usize::from(b) - 0x80],
                b => char::from(b),
            }),
            _ => std::str::from_utf8(bytes).map(Cow::Borrowed),
        }
    }
}

/// Decodes UTF-16 and drops the byte order mark.
///
/// # Errors
/// If it is truncated or damaged.
pub fn from_utf16(name: &str, bytes: &[u8], encoding: TextEncoding) -> Result<String> {
    let marked = TextEncoding::of_mark(bytes).is_some();
    let (units, rest) = bytes[if marked { 2 } else { 0 }..].as_chunks::<2>();
    let is_big = TextEncoding::of_mark(bytes).unwrap_or(encoding) == TextEncoding::Utf16Be;
    let units = units.iter().map(|&u| if is_big { u16::from_be_bytes(u) } else { u16::from_le_bytes(u) });
    let text: Result<String, _> = char::decode_utf16(units).collect();
    match (text, rest) {
        (Ok(text), []) => Ok(text),
        _ => Err(err!(Data, "invalid UTF-16 text")
            .at(name)
            .because(match marked {
                true => "it has a UTF-16 byte order mark, but is damaged or truncated",
                false => "it is damaged, truncated, or in another encoding",
            })
            .hint("save the text file as UTF-8")),
    }
}

/// Converts a whole text to UTF-8; also returns the encoding of its byte order mark. A truncated character at the end
/// stays as it is.
///
/// # Errors
/// If it is not UTF-8 and no other encoding is known; names the byte and the line.
pub fn to_utf8(
    name: &str,
    bytes: Vec<u8>,
    told: Option<TextEncoding>,
) -> Result<(Vec<u8>, Option<TextEncoding>)> {
    let marked = TextEncoding::of_mark(&bytes);
    let encoding = marked.or(told).unwrap_or(TextEncoding::Utf8);
    if encoding.is_wide() {
        return Ok((from_utf16(name, &bytes, encoding)?.into_bytes(), marked));
    }
    let decoded = match encoding.text(&bytes) {
        Ok(Cow::Owned(text)) => Some(text.into_bytes()),
        Ok(Cow::Borrowed(_)) => None,
        Err(e) if e.error_len().is_none() => None,
        Err(e) => {
            let line = bytes[..e.valid_up_to()].iter().filter(|b| **b == b'\n').count() + 1;
            return Err(not_utf8(&bytes, e.valid_up_to())
                .at(format!("{name}, line {line}, byte {}", e.valid_up_to())));
        }
    };
    Ok((decoded.unwrap_or(bytes), None))
}

/// Returns an error about the invalid byte at an offset.
pub(crate) fn not_utf8(bytes: &[u8], at: usize) -> Error {
    let before = String::from_utf8_lossy(&bytes[at.saturating_sub(48)..at]).into_owned();
    let tail: String = before.chars().rev().take(12).collect::<Vec<_>>().into_iter().rev().collect();
    let byte = bytes.get(at).copied().unwrap_or_default();
    err!(Data, "invalid UTF-8 text")
        .because(format!("the invalid byte {byte:#04x} follows the text {tail:?}"))
        .hint_setting(
            "set the encoding: data.records.encoding=windows-1252 (latin1, utf-16); or save the file as UTF-8: iconv -f \
             WINDOWS-1252 -t UTF-8 OLD > NEW",
        )
}

// Names of the previous version.
systole_base::renamed! { Encoding => TextEncoding }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_other_encodings_become_utf_8() {
        let of = |bytes: &[u8], told| {
            to_utf8("t", bytes.to_vec(), told).map(|(b, e)| (String::from_utf8(b).unwrap(), e))
        };
        assert_eq!(of(b"caf\xe9 \x80", Some(TextEncoding::Windows1252)).unwrap().0, "café €");
        assert_eq!(of(b"caf\xe9 \x80", Some(TextEncoding::Latin1)).unwrap().0, "café \u{80}");
        let wide: Vec<u8> = "é\n€".encode_utf16().flat_map(u16::to_be_bytes).collect();
        assert_eq!(of(&wide, Some(TextEncoding::Utf16Be)).unwrap(), ("é\n€".into(), None));
        let marked = [&[0xfe, 0xff][..], &wide].concat();
        assert_eq!(of(&marked, None).unwrap(), ("é\n€".into(), Some(TextEncoding::Utf16Be)));
        let e = of(b"a\nb\xe9c", None).unwrap_err().to_string();
        for part in ["t, line 2, byte 3", "0xe9", "data.records.encoding"] {
            assert!(e.contains(part), "{e}");
        }
        // A text truncated within a character.
        assert!(to_utf8("t", "a€".as_bytes()[..3].to_vec(), None).is_ok());
        assert!(of(&wide[..3], Some(TextEncoding::Utf16Be)).unwrap_err().to_string().contains("UTF-16"));
    }

    #[test]
    fn encodings_have_names() {
        for (name, encoding) in NAMES {
            assert_eq!(name.parse::<TextEncoding>().unwrap(), encoding);
            assert_eq!(encoding.to_string().parse::<TextEncoding>().unwrap(), encoding);
        }
        assert_eq!("ISO_8859-1".parse::<TextEncoding>().unwrap(), TextEncoding::Latin1);
        assert!("ebcdic".parse::<TextEncoding>().unwrap_err().to_string().contains("windows-1252"));
    }
}
