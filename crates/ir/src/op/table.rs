//! Op table with one entry per mnemonic; generic tests and tools iterate over it.

use super::*;
use crate::graph::{binary_ops, mnemonic, structural_ops, unary_ops};

/// Entry of the op table: mnemonic, documentation, specification, test samples and parser of an op.
#[derive(Clone, Copy)]
pub struct OpEntry {
    /// StableHLO mnemonic; ops of other dialects include the dialect.
    pub name: &'static str,
    /// One line for `systole ops`.
    pub doc: &'static str,
    /// Dialect and section of the specification.
    pub spec: &'static str,
    /// Small test programs.
    pub samples: fn() -> Vec<OpSample>,
    /// Rebuilds the op from its parsed text.
    pub parse: fn(&OpSource<'_>) -> OpParseResult<Op>,
}

const fn row(
    name: &'static str,
    doc: &'static str,
    spec: &'static str,
    samples: fn() -> Vec<OpSample>,
    parse: fn(&OpSource<'_>) -> OpParseResult<Op>,
) -> OpEntry {
    OpEntry { name, doc, spec, samples, parse }
}

/// Entries of element-wise ops, generated from their rows.
macro_rules! elementwise_entries {
    ($($op:ident = $dialect:ident $name:literal, $method:tt, $doc:literal, { $($rules:tt)* };)*) => {
        &[$(row(
            mnemonic!($dialect $name),
            $doc,
            concat!(stringify!($dialect), ": ", $name),
            || elementwise_samples::elementwise(OP::$op),
            |_| Ok(OP::$op.into()),
        )),*]
    };
}

const UNARY: &[OpEntry] = {
    use Unary as OP;
    unary_ops!(elementwise_entries)
};

const BINARY: &[OpEntry] = {
    use Binary as OP;
    binary_ops!(elementwise_entries)
};

/// Entries of structural ops, generated from their rows.
macro_rules! structural_entries {
    ($($file:ident { $($op:ident = $name:literal, $doc:literal;)* })*) => {
        &[$($(row(
            $name,
            $doc,
            concat!("StableHLO: ", $name),
            <$op as StructuralOp>::samples,
            |text| Ok(<$op as StructuralOp>::parse(text)?.into()),
        )),*),*]
    };
}

const STRUCTURAL: &[OpEntry] = structural_ops!(structural_entries);

/// All ops of the IR, sorted by name. Excludes parameters, which text writes as function arguments.
pub const TABLE: &[OpEntry] =
    &by_name::<{ UNARY.len() + BINARY.len() + STRUCTURAL.len() }>([UNARY, BINARY, STRUCTURAL]);

/// Merges lists of entries and sorts them by name.
const fn by_name<const N: usize>(lists: [&[OpEntry]; 3]) -> [OpEntry; N] {
    let mut all = [STRUCTURAL[0]; N];
    let (mut n, mut list) = (0, 0);
    while list < lists.len() {
        let mut i = 0;
        while i < lists[list].len() {
            // Insertion position among the sorted entries.
            let mut at = n;
            while at > 0 && is_before(lists[list][i].name.as_bytes(), all[at - 1].name.as_bytes()) {
                all[at] = all[at - 1];
                at -= 1;
            }
            all[at] = lists[list][i];
            (i, n) = (i + 1, n + 1);
        }
        list += 1;
    }
    all
}

const fn is_before(a: &[u8], b: &[u8]) -> bool {
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i < b.len() && (i == a.len() || a[i] < b[i])
}

/// Returns the op table's entry of a mnemonic.
pub fn entry(name: &str) -> Option<&'static OpEntry> {
    TABLE.binary_search_by(|e| e.name.cmp(name)).ok().map(|i| &TABLE[i])
}
