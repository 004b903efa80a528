//! Character map of SentencePiece (`precompiled_charsmap`): normalizes characters by a double-array trie, mostly NFKC.
//!
//! Source: SentencePiece's `normalizer.cc`, and Hugging Face's `spm_precompiled`.

use super::unicode_categories::is_mark;

/// Longest group of a character and its marks, in bytes, that is looked up as a whole.
const MOST_OF_GROUP: usize = 5;

/// A character map: prefixes of texts and their replacements.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CharsMap {
    units: Vec<u32>,
    replacements: Vec<u8>,
}

impl CharsMap {
    /// Parses the map, in base64; `None` if it is damaged.
    pub(super) fn of(text: &str) -> Option<CharsMap> {
        let bytes = from_base64(text)?;
        let (size, rest) = bytes.split_at_checked(4)?;
        let size = u32::from_le_bytes(size.try_into().ok()?) as usize;
        let (units, replacements) = rest.split_at_checked(size)?;
        let units = units.chunks_exact(4).map(|u| u32::from_le_bytes([u[0], u[1], u[2], u[3]])).collect();
        Some(CharsMap { units, replacements: replacements.to_vec() })
    }

    /// Normalizes a text: each character with its marks, or each character.
    pub(super) fn normalize(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while !rest.is_empty() {
            let first = rest.chars().next().map_or(0, char::len_utf8);
            let marks = rest[first..].find(|c| !is_mark(c)).unwrap_or(rest.len() - first);
            let (group, after) = rest.split_at(first + marks);
            rest = after;
            match self.replacement(group).filter(|_| group.len() <= MOST_OF_GROUP) {
                Some(new) => out.push_str(new),
                None => {
                    for (at, c) in group.char_indices() {
                        let one = &group[at..at + c.len_utf8()];
                        out.push_str(self.replacement(one).unwrap_or(one));
                    }
                }
            }
        }
        out
    }

    /// Returns the replacement of the shortest prefix that has one.
    fn replacement(&self, text: &str) -> Option<&str> {
        let offset = |unit: u32| ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize;
        let mut node = offset(*self.units.first()?);
        for byte in text.bytes().take_while(|b| *b != 0) {
            node ^= usize::from(byte);
            let unit = *self.units.get(node)?;
            if unit & ((1 << 31) | 0xff) != u32::from(byte) {
                return None;
            }
            node ^= offset(unit);
            if (unit >> 8) & 1 == 1 {
                let start = (*self.units.get(node)? & 0x7fff_ffff) as usize;
                let bytes = self.replacements.get(start..)?;
                let end = bytes.iter().position(|b| *b == 0)?;
                return std::str::from_utf8(bytes.get(..end)?).ok();
            }
        }
        None
    }
}

fn from_base64(text: &str) -> Option<Vec<u8>> {
    let (mut out, mut bits, mut count) = (Vec::with_capacity(text.len() / 4 * 3), 0u32, 0);
    for byte in text.bytes().filter(|b| *b != b'=') {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        (bits, count) = ((bits << 6) | u32::from(value), count + 6);
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    Some(out)
}
