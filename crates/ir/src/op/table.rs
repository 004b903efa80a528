//! The op table: one line for each mnemonic. Everything that must hold for every op iterates over it.

use super::*;

/// One mnemonic.
pub struct Entry {
    /// The StableHLO mnemonic.
    pub name: &'static str,
    /// One line for `systole ops`.
    pub doc: &'static str,
    /// Section of the specification or other source.
    pub spec: &'static str,
    /// Tiny programs for the tests.
    pub samples: fn() -> Vec<Sample>,
}

/// Every op.
pub const TABLE: &[Entry] = &[];

/// The entry of a mnemonic.
pub fn entry(name: &str) -> Option<&'static Entry> {
    TABLE.iter().find(|e| e.name == name)
}
