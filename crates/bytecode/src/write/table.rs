//! Tables of the bytecode writer: number strings, op names, attributes, types and properties, each stored once
//! (interning).

use crate::byte_io::ByteSink;
use std::collections::HashMap;
use std::hash::Hash;

/// Maps values to numbers.
struct InternTable<T> {
    all: Vec<T>,
    numbers: HashMap<T, u64>,
}

impl<T> Default for InternTable<T> {
    fn default() -> Self {
        InternTable { all: Vec::new(), numbers: HashMap::new() }
    }
}

impl<T: Clone + Eq + Hash> InternTable<T> {
    /// Returns the number of a value, adding it if it is new.
    fn number(&mut self, thing: T) -> u64 {
        let next = self.all.len() as u64;
        if let Some(n) = self.numbers.get(&thing) {
            return *n;
        }
        self.all.push(thing.clone());
        self.numbers.insert(thing, next);
        next
    }
}

/// An encoded attribute or type: dialect number, whether it uses the dialect's own encoding, bytes.
type EncodedEntry = (u64, bool, Vec<u8>);

/// All tables of a file.
#[derive(Default)]
pub(super) struct BytecodeTables {
    strings: InternTable<String>,
    /// Numbers of the dialect names.
    dialects: InternTable<u64>,
    /// Numbers of dialect and op name.
    ops: InternTable<(u64, u64)>,
    attributes: InternTable<EncodedEntry>,
    types: InternTable<EncodedEntry>,
    properties: InternTable<Vec<u8>>,
}

impl BytecodeTables {
    pub(super) fn string(&mut self, text: &str) -> u64 {
        self.strings.number(text.to_owned())
    }

    fn dialect(&mut self, name: &str) -> u64 {
        let name = self.string(name);
        self.dialects.number(name)
    }

    pub(super) fn op(&mut self, dialect: &str, name: &str) -> u64 {
        let op = (self.dialect(dialect), self.string(name));
        self.ops.number(op)
    }

    pub(super) fn attribute(&mut self, dialect: &str, encoding: ByteSink) -> u64 {
        let entry = (self.dialect(dialect), true, encoding.0);
        self.attributes.number(entry)
    }

    /// Adds an attribute as text.
    pub(super) fn attribute_text(&mut self, dialect: &str, text: &str) -> u64 {
        let entry = (self.dialect(dialect), false, [text.as_bytes(), b"\0"].concat());
        self.attributes.number(entry)
    }

    /// Adds a type in its dialect's encoding.
    pub(super) fn ty(&mut self, dialect: &str, encoding: ByteSink) -> u64 {
        let entry = (self.dialect(dialect), true, encoding.0);
        self.types.number(entry)
    }

    /// Adds a type as text.
    pub(super) fn type_text(&mut self, dialect: &str, text: &str) -> u64 {
        let entry = (self.dialect(dialect), false, [text.as_bytes(), b"\0"].concat());
        self.types.number(entry)
    }

    pub(super) fn property(&mut self, encoding: ByteSink) -> u64 {
        self.properties.number(encoding.0)
    }

    /// Writes the string lengths, last to first, then the strings.
    pub(super) fn strings(&self) -> ByteSink {
        let mut out = ByteSink::default();
        let all = &self.strings.all;
        out.number(all.len() as u64);
        all.iter().rev().for_each(|text| out.number(text.len() as u64 + 1));
        for text in all {
            out.0.extend(text.bytes());
            out.byte(0);
        }
        out
    }

    pub(super) fn dialects(&self) -> ByteSink {
        let mut out = ByteSink::default();
        out.number(self.dialects.all.len() as u64);
        self.dialects.all.iter().for_each(|name| out.flagged(*name, false));
        out.number(self.ops.all.len() as u64);
        grouped(&mut out, &self.ops.all, |op| op.0, |out, op| out.flagged(op.1, true));
        out
    }

    /// Writes attributes and types in sequence, and their sizes.
    pub(super) fn entries(&self) -> (ByteSink, ByteSink) {
        let (mut content, mut sizes) = (ByteSink::default(), ByteSink::default());
        sizes.number(self.attributes.all.len() as u64);
        sizes.number(self.types.all.len() as u64);
        for entries in [&self.attributes.all, &self.types.all] {
            grouped(
                &mut sizes,
                entries,
                |e| e.0,
                |out, (_, custom, bytes)| out.flagged(bytes.len() as u64, *custom),
            );
            entries.iter().for_each(|(.., bytes)| content.0.extend(bytes));
        }
        (content, sizes)
    }

    pub(super) fn properties(&self) -> ByteSink {
        let mut out = ByteSink::default();
        out.number(self.properties.all.len() as u64);
        self.properties.all.iter().for_each(|bytes| out.blob(bytes));
        out
    }
}

/// Writes runs of entries of one dialect: the dialect, their count, each entry.
fn grouped<T>(out: &mut ByteSink, all: &[T], dialect: impl Fn(&T) -> u64, one: impl Fn(&mut ByteSink, &T)) {
    for group in all.chunk_by(|a, b| dialect(a) == dialect(b)) {
        group.first().into_iter().for_each(|first| out.number(dialect(first)));
        out.number(group.len() as u64);
        group.iter().for_each(|item| one(out, item));
    }
}
